#!/bin/sh
# Programs that move a node's knobs by themselves (tuned, TLP, thermald, power-profiles-daemon), a container runtime
# (crun), and programs that read a node (hwloc, numactl, sensors, udevadm, s-tui), its counters (PAPI) and its registers
# (msr-tools, likwid; qemu-user gives them the CPUID of another processor), that monitor one (collectd, powertop,
# prometheus-node-exporter and others), and Slurm with one node, for the tests that run them on an emulated node;
# Prometheus, which reads a partition; mosquitto, a broker of MQTT; and a browser without windows
# (chromium-headless-shell), for the tests of pages.
# They are downloaded and unpacked into build/foreign, with what they need and this machine lacks, and *never
# installed*: their packages would start services here.
set -eu
cd "$(dirname "$0")/.."
. scripts/apt.sh
target=build/foreign
programs="busybox-static crun dbus dbus-bin dbus-daemon power-profiles-daemon thermald tuned"
programs="$programs hwloc-nox likwid lm-sensors msr-tools numactl papi-tools qemu-user s-tui udev"
programs="$programs collectd-core powertop prometheus-node-exporter"
programs="$programs cpufetch cpufrequtils htop inxi stress-ng sysstat"
programs="$programs munge slurm-client slurmctld slurmd chromium-headless-shell mosquitto"
apart="tlp" # conflicts with power-profiles-daemon
alone="prometheus" # without the 200 MB that its own pages need
[ -f "$target/complete" ] && [ "$(cat "$target/complete")" = "$programs $apart $alone" ] && exit 0

missing_here() { # the packages and what they depend on, as far as not installed; those installed are asked for again
    apt-get install -s -qq --no-install-recommends --reinstall "$@" | awk '/^Inst/ { print $2 }'
}
fetch() {
    # shellcheck disable=SC2046,SC2086 # lists of words
    (cd "$target/packages" && apt-get download -qq $( (missing_here $programs; missing_here $apart; echo $alone) | sort -u) >/dev/null 2>&1)
}

rm -rf "$target"
mkdir -p "$target/packages" "$target/root"
fetch || { apt_get update -qq && fetch; } || {
    echo "foreign: the Debian packages could not be downloaded: $programs $apart $alone" >&2
    exit 1
}
for package in "$target"/packages/*.deb; do dpkg -x "$package" "$target/root"; done
rm -r "$target/packages"
for each in bin sbin lib; do # links into usr on the machines that run this, where the tests lay it over /usr
    [ ! -d "$target/root/$each" ] || cp -a "$target/root/$each" "$target/root/usr/"
done
rm -rf "$target/root/var/run" "$target/root/var/lock" # munge has a folder where systems have a link to /run
printf '%s' "$programs $apart $alone" >"$target/complete"
