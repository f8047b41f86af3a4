"""Daemons that cap a client's power and clocks, on a served twin: what they see there makes them act there.

None is installed (tests/twin/foreign.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.twin.foreign import DBUS, laid, why_not_foreign
from tests.twin.host import unchanged_host
from tests.twin.served_node import ServedNode, why_not_served
from tests.waiting import PATIENCE_S, within

if why_not_served():
    pytest.skip(why_not_served(), allow_module_level=True)

if why_not_foreign():
    pytest.skip(why_not_foreign(), allow_module_level=True)

LIMIT = "/sys/class/powercap/intel-rapl:0/constraint_0_power_limit_uw"
LIMIT_UW = 28_000_000  # of this machine
SENSORS = ("/sys/class/thermal/thermal_zone0/temp", "/sys/class/hwmon/*/temp*_input")
PREFERENCES = "/sys/devices/system/cpu/cpufreq/policy*/energy_performance_preference"
BIAS = "/sys/devices/system/cpu/cpu7/power/energy_perf_bias"


@pytest.fixture(scope="module")
def node() -> Iterator[ServedNode]:
    with (
        unchanged_host("dbus-daemon", "power-profiles-", "thermald"),
        ServedNode("client", "--workload", "hpl") as served,
    ):
        yield served


def test_thermald_lowers_the_power_limit_of_a_hot_package(node: ServedNode) -> None:
    """97 C lie between the temperatures at which it starts to cool this processor and at which it ends the system."""
    for path in SENSORS:
        node.twin("fault", "add", "stuck", path, "value=97000")
    try:
        half, log = laid(
            node,
            f"""{DBUS}
            thermald --no-daemon --loglevel=info --ignore-cpuid-check --poll-interval 1 \\
                >/run/thermald.log 2>&1 & daemon=$!
            until [ $(cat {LIMIT}) -le {LIMIT_UW // 2} ]; do kill -0 $daemon; sleep 0.1; done
            cat {LIMIT}; grep -m 1 'Set : threshold' /run/thermald.log
            kill $daemon; wait $daemon || true
            """,
        ).splitlines()
    finally:
        for number in ("1", "2"):
            node.twin("fault", "remove", number)
        node.output("sh", "-c", f"echo {LIMIT_UW} >{LIMIT}")
    assert int(half) == LIMIT_UW // 2  # thermald takes no more than half of the limit
    assert "temperature:97000, cdev:0(rapl_controller)" in log


ONE_CORE = """
name = "one-core"
summary = "clock-bound work on one core"
source = "test"
[[cpu]]
cpus = "0"
[[cpu.phase]]
name = "p"
seconds = 10000.0
beta = 1.0
"""

WATTS = """
import time
def joules(): return int(open("/sys/class/powercap/intel-rapl:0/energy_uj").read()) / 1e6
began_s, began_j = time.monotonic(), joules()
time.sleep(1)
print((joules() - began_j) / (time.monotonic() - began_s))
"""


def test_the_power_saver_profile_lowers_the_clock_and_the_watts_of_a_load(tmp_path: Path) -> None:
    (tmp_path / "one.toml").write_text(ONE_CORE)
    clock = "/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq"
    with ServedNode("client", "--workload", str(tmp_path / "one.toml")) as node:
        assert within(PATIENCE_S, lambda: node.read(clock) == "4700000")
        watts = [float(node.python(WATTS))]
        laid(
            node,
            f"""{DBUS}
            state=/var/lib/power-profiles-daemon; mkdir -p $state
            printf '[State]\\nDriver=intel_pstate\\nProfile=power-saver\\n' >$state/state.ini
            /usr/libexec/power-profiles-daemon & daemon=$!
            until powerprofilesctl get >/dev/null 2>&1; do kill -0 $daemon; sleep 0.1; done
            kill $daemon; wait $daemon || true
            """,
        )
        assert within(PATIENCE_S, lambda: node.read(clock) == "2800000")
        watts.append(float(node.python(WATTS)))
    assert watts[1] < 0.85 * watts[0]


@pytest.mark.parametrize(
    ("profile", "preference", "bias"), [("power-saver", "power", 15), ("balanced", "balance_performance", 6)]
)
def test_power_profiles_daemon_sets_the_hints_of_its_profile(
    node: ServedNode, profile: str, preference: str, bias: int
) -> None:
    """The profile is the one it was left with; a change by D-Bus needs polkit, which is not here."""
    hints = laid(
        node,
        f"""{DBUS}
        state=/var/lib/power-profiles-daemon; mkdir -p $state
        printf '[State]\\nDriver=intel_pstate\\nProfile={profile}\\n' >$state/state.ini
        for each in {PREFERENCES}; do echo default >$each; done; echo 0 >{BIAS}
        /usr/libexec/power-profiles-daemon & daemon=$!
        until powerprofilesctl get >/dev/null 2>&1; do kill -0 $daemon; sleep 0.1; done
        powerprofilesctl get; cat {PREFERENCES} | sort -u; cat {BIAS}
        kill $daemon; wait $daemon || true
        """,
    )
    assert hints.splitlines() == [profile, preference, str(bias)]
