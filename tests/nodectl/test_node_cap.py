"""A cap in watts without a controller: RAPL limits where there are any, clocks where there are none."""

import numpy as np
import pytest

from foundation.shell.errors import NodectlError
from nodectl.decide import power_walk
from nodectl.decide.node_cap import CAP_ROW, NO_CAP, CapRequest, FixedCap, PackageCap, packages_mw
from nodectl.loop.agent import Agent
from nodectl.loop.survey import fit_to_node, survey
from tests.nodectl.small_node import layout, sample
from tests.nodectl.test_agent import node, run, settings

NO_POLICY = {"cpu_policy": {"name": "none"}, "gpu_policy": {"name": "none"}}
LONG_TERM = "/sys/class/powercap/intel-rapl:0/constraint_0_power_limit_uw"


def walk(cap_w: float, watts: list[float], is_local: bool = True) -> list[int]:
    """The first clock limit after each interval in which the package drew so much."""
    made = layout()
    state = power_walk.initial(power_walk.WalkParams(), made)
    limits = []
    for power_w in watts:
        told = power_walk.under(PackageCap(round(cap_w * 1000), is_local))(state)
        state, request = power_walk.decide(power_walk.WalkParams(), made, told, sample(made, energy_j=power_w * 0.1))
        limits.append(int(request.target[0]))
    return limits


def packages_w(agent: Agent) -> float:
    summary = agent.summary()
    packages = (part.joules for part in summary.energy if part.name in ("package-0", "package-1"))
    return sum(packages) / summary.elapsed_s


def test_what_the_node_draws_elsewhere_comes_off_the_cap_first():
    assert packages_mw(CapRequest(300.0), 60.0) == 240_000
    assert packages_mw(CapRequest(50.0), 60.0) == 1, "nothing left is a cap, not the absence of one"
    assert packages_mw(None, 60.0) == 0
    assert packages_mw(CapRequest(60.002), 60.0) == 2
    assert packages_mw(CapRequest(60.0029), 60.0) == 2, "never more than what is left"


def test_a_cap_from_the_settings_is_the_same_at_all_times_and_none_where_it_is_zero():
    assert FixedCap(0.5).request(0) == FixedCap(0.5).request(10**18) == CapRequest(0.5, "the settings")
    assert FixedCap(0.0).request(0) is None and FixedCap(-1.0).request(0) is None


def test_without_a_cap_this_node_is_left_to_itself():
    assert (NO_CAP.packages_mw, NO_CAP.is_local) == (0, True)


def test_journals_and_settings_name_the_cap_as_the_manual_does():
    assert CAP_ROW == "node/cap_mw"


def test_clocks_fall_above_the_cap_rest_at_it_and_rise_slowly_below():
    limits = walk(100.0, [150.0, 120.0, 97.0, 97.0, 60.0, 60.0])
    assert 0 < limits[1] < limits[0] < 2_800_000
    assert limits[1] == limits[2] == limits[3]
    assert limits[3] < limits[4] < limits[5] <= limits[3] * 1.11


def test_a_node_that_cannot_see_its_watts_goes_to_the_lowest_clock_within_a_second():
    limits = walk(100.0, [float("nan")] * 10)
    assert np.all(np.diff(limits) <= 0)
    assert limits[-1] == 1_200_000


def test_limits_go_step_by_step_when_a_controller_takes_the_cap():
    made = layout()
    held = power_walk.WalkState(100.0, 0.5)
    limits = []
    for _ in range(12):
        held = power_walk.under(PackageCap(100_000, is_local=False))(held)
        held, request = power_walk.decide(power_walk.WalkParams(), made, held, sample(made, energy_j=50.0))
        limits.append(int(request.target[0]))
    assert limits[0] == pytest.approx(0.55 * 2_800_000, abs=2)
    assert limits[-1] == 0
    assert walk(0.0, [300.0]) == [0], "no cap, no limit"


def test_rapl_limits_enforce_the_cap_and_are_as_before_at_the_end(tmp_path):
    with node("skylake-6146", "hpl") as inside:
        limit_uw = int(inside.ports.files.read(LONG_TERM))
        free, _ = run(inside, settings(tmp_path / "free", mode="monitor"), 2.0)
        assert packages_w(free) > 1.2 * 200
        capped = settings(tmp_path, caps={"node_w": 260.0, "rest_w": 60.0}, **NO_POLICY)
        seen: list[int] = []
        sleep = inside.ports.clock.sleep_until_ns

        def look_and_sleep(until_ns: int) -> None:
            seen.append(int(inside.ports.files.read(LONG_TERM)))
            sleep(until_ns)

        inside.ports.clock.sleep_until_ns = look_and_sleep
        agent, said = run(inside, capped, 5.0)
        assert seen[-1] == 100_000_000, "two packages, half of 200 W each"
        assert packages_w(agent) <= 1.05 * 200
        assert int(inside.ports.files.read(LONG_TERM)) == limit_uw
        assert not any("ALARM" in line or "cap" in line for line in said)


def test_a_cap_that_nothing_here_can_enforce_is_refused(tmp_path):
    with node("skylake-6146", "hpl") as inside:
        found = survey(inside.ports)
        found.knobs.clear()
        with pytest.raises(NodectlError, match="no RAPL limits, no clock limits, and no controller"):
            fit_to_node(settings(tmp_path, caps={"node_w": 200.0}), found)
