"""Daemons that move knobs by themselves, and a container runtime, run on the twin: they act there, and nowhere else.

None is installed (tests/twin/foreign.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.twin.foreign import DBUS, FOREIGN, laid, why_not_foreign
from tests.twin.host import unchanged_host
from tests.twin.served_node import ServedNode, why_not_served

if why_not_served():
    pytest.skip(why_not_served(), allow_module_level=True)

if why_not_foreign():
    pytest.skip(why_not_foreign(), allow_module_level=True)

PROGRAMS = ("crun", "dbus-daemon", "power-profiles-", "thermald", "tlp", "tuned")
MAX_KHZ = "/sys/devices/system/cpu/cpu0/cpufreq/scaling_max_freq"
WAIT = "until {condition}; do sleep 0.1; done"


@pytest.fixture(scope="module")
def node() -> Iterator[ServedNode]:
    with unchanged_host(*PROGRAMS), ServedNode("skylake-6146", "--workload", "hpl") as served:
        yield served


def foreign(node: ServedNode, script: str) -> list[str]:
    """Lines that a script prints where the foreign programs are laid."""
    return laid(node, DBUS + script).splitlines()


def test_tuned_sets_the_runs_sysctls_and_finds_them_set(node: ServedNode) -> None:
    applied = WAIT.format(
        condition="grep -q 'static tuning from profile .* applied' /var/log/tuned/tuned.log 2>/dev/null"
    )
    lines = foreign(
        node,
        f"""
        host=$(cat /proc/sys/vm/dirty_ratio)
        tuned -d -P /run/tuned.pid -l /var/log/tuned/tuned.log -p throughput-performance
        {applied}
        tuned-adm active; tuned-adm verify
        echo $host $(cat /proc/sys/vm/dirty_ratio)
        kill $(cat /run/tuned.pid)
        {WAIT.format(condition="! kill -0 $(cat /run/tuned.pid) 2>/dev/null")}
        """,
    )
    assert "Current active profile: throughput-performance" in lines
    assert any("succeeded" in line for line in lines), lines
    host, in_run = lines[-1].split()
    assert in_run == "40" != host  # tuned's throughput-performance/tuned.conf
    assert Path("/proc/sys/vm/dirty_ratio").read_text().strip() == host


def test_tlp_caps_the_runs_clocks(node: ServedNode) -> None:
    settings = "TLP_DEFAULT_MODE=BAT\\nTLP_PERSISTENT_DEFAULT=1\\nCPU_SCALING_MIN_FREQ_ON_BAT=1200000\\n"
    lines = foreign(
        node,
        f"""
        printf '{settings}CPU_SCALING_MAX_FREQ_ON_BAT=1500000\\n' >/etc/tlp.d/99-test.conf
        tlp start >/dev/null
        cat {MAX_KHZ} /proc/sys/vm/laptop_mode
        echo 3200000 >{MAX_KHZ}
        """,
    )
    assert lines == ["1500000", "2"]
    assert Path("/proc/sys/vm/laptop_mode").read_text() == "0\n"


def test_thermald_and_power_profiles_daemon_run_on_the_twin(node: ServedNode) -> None:
    ask = "dbus-send --system --print-reply --dest=net.hadess.PowerProfiles /net/hadess/PowerProfiles"
    get = "org.freedesktop.DBus.Properties.Get string:net.hadess.PowerProfiles string:ActiveProfile"
    lines = foreign(
        node,
        f"""
        thermald --no-daemon --loglevel=info --ignore-cpuid-check >/run/thermald.log 2>&1 & thermald=$!
        /usr/libexec/power-profiles-daemon >/dev/null 2>&1 & profiles=$!
        {WAIT.format(condition="grep -q 'thd_engine_thread begin' /run/thermald.log")}
        {WAIT.format(condition=f"{ask} {get} >/run/active 2>/dev/null")}
        kill -0 $thermald $profiles && cat /run/active
        kill $thermald $profiles; wait
        """,
    )
    assert any("balanced" in line for line in lines), lines


def test_a_container_starts_and_reads_the_twins_clocks(node: ServedNode) -> None:
    inside = (
        f"cat {MAX_KHZ}; grep -c ^processor /proc/cpuinfo; ps | wc -l; echo 1 >/proc/sys/vm/stat_interval || echo no"
    )
    lines = foreign(
        node,
        f"""
        [ -f /sys/fs/cgroup/cgroup.procs ] || mount -t cgroup2 none /sys/fs/cgroup  # this crun knows no hybrid layout
        mkdir -p /run/bundle/rootfs/bin; cd /run/bundle
        for name in busybox sh cat grep ps wc; do cp {FOREIGN}/root/bin/busybox rootfs/bin/$name; done
        echo '{inside}' >rootfs/go
        crun spec
        sed -i 's#"terminal": true#"terminal": false#; s#"sh"#"sh", "/go"#' config.json
        crun --root /run/crun --cgroup-manager=disabled run box 2>/dev/null
        """,
    )
    top, processors, processes, refused = lines
    assert (top, processors, refused) == ("3200000", "24", "no")
    assert int(processes) < 6  # of the container alone
