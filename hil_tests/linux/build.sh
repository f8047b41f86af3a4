#!/bin/sh
# The guest kernels, from Debian's linux-source-6.12: user-mode Linux (`um`, kernel.config) and one for QEMU's `virt`
# machine (`arm64`, kernel-arm64.config). Debian's own arm64 kernel has neither the virtio transport nor cpufreq of SCMI.
#
#   hil_tests/linux/build.sh um|arm64         build it unless it is there, and print its path
#   hil_tests/linux/build.sh um|arm64 find    print its path, or fail when it has not been built
#
# Kept per version of the sources and of the configuration in ~/.cache/nodectl (NODECTL_CACHE names another folder),
# so that it is built once: a few minutes and 2 GB in a temporary folder, 6 MB afterwards.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
source=/usr/src/linux-source-6.12.tar.xz
fail() { printf '%s\n' "hil-linux: $*" >&2; exit 1; }

case ${1:-} in
um) config=$here/kernel.config made=linux name=uml cross= ;;
arm64) config=$here/kernel-arm64.config made=arch/arm64/boot/Image name=arm64 cross=aarch64-linux-gnu- ;;
*) fail "usage: build.sh um|arm64 [find]" ;;
esac
[ -f "$source" ] || fail "$source is missing: run scripts/setup.sh linux"
[ -z "$cross" ] || command -v "${cross}gcc" >/dev/null || fail "${cross}gcc is missing: run scripts/setup.sh linux"
version=$(dpkg-query -W -f '${Version}' linux-source-6.12)
cache=${NODECTL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/nodectl}
kernel=$cache/$name-$version-$(sha256sum "$config" | cut -c1-12)
if [ ! -f "$kernel" ]; then
    [ "${2:-build}" = build ] || fail "the guest kernel ($1) has not been built: run make hil-linux"
    mkdir -p "$cache"
    work=$(mktemp -d "$cache/build.XXXXXX")
    trap 'rm -rf "$work"' EXIT INT TERM
    printf '%s\n' "hil-linux: building Linux $version ($1), once; this takes some minutes" >&2
    tar -xf "$source" -C "$work" --strip-components=1
    mkdir "$work/out"
    kbuild() { nice -n 10 make -C "$work" ARCH="$1" CROSS_COMPILE="$cross" O=out "$2" "$3"; }
    {
        kbuild "$1" KCONFIG_ALLCONFIG="$config" allnoconfig
        kbuild "$1" -j"$(nproc)" "$(basename "$made")"
    } >"$cache/build-$1.log" 2>&1 || { tail -n 20 "$cache/build-$1.log" >&2; fail "the build failed; see $cache/build-$1.log"; }
    # Kconfig silently drops options that it does not know, or whose dependencies are off.
    grep -v '=n$' "$config" | grep '^CONFIG' | while read -r line; do
        grep -qxF "$line" "$work/out/.config" || fail "this source has no $line"
    done
    mv "$work/out/$made" "$kernel"
fi
printf '%s\n' "$kernel"
