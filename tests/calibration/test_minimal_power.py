"""The search for the minimal operating power, on emulated nodes that hang below a hidden cap."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import numpy as np
import pytest

from calibration.limits.heartbeat import NativeHeartbeat
from calibration.limits.minimal_power import MopPlan, MopStep, find_mop
from calibration.limits.probes import Beats, LimitsError
from calibration.limits.session_probes import PackagesCap
from lab.emulated.emulated_limits import emulated_heartbeat
from pmu.system import MonotonicClock
from tests.calibration.limited_node import loaded_node, machine_that_hangs
from twin.faults.fault import Fault
from twin.machine import load_machine

PLAN = MopPlan()


@pytest.mark.parametrize(("hangs_w", "stop"), [(201.0, "heartbeat"), (203.0, "writer"), (248.0, "writer")])
def test_the_mop_is_within_a_step_above_the_cap_below_which_the_node_hangs(
    tmp_path: Path, hangs_w: float, stop: str
) -> None:
    with loaded_node(machine_that_hangs(hangs_w), tmp_path) as node:
        mop = find_mop(node.cap(), emulated_heartbeat(node.twin), node.knobs, PLAN)
        assert 0 <= mop.mop_w - hangs_w <= PLAN.step_w
        assert (mop.stop, mop.has_recovered) == (stop, True)
        assert 0 < mop.back_off_s < 2
        assert node.twin.packages_limit_w == 330.0  # as it was found
    assert [step.cap_w for step in mop.steps] == sorted((step.cap_w for step in mop.steps), reverse=True)


def test_a_cap_that_power_does_not_keep_is_no_mop(tmp_path: Path) -> None:
    with loaded_node(load_machine("skylake-6146"), tmp_path) as node:
        mop = find_mop(node.cap(), emulated_heartbeat(node.twin), node.knobs, PLAN)
    assert mop.stop == "rest"
    under = {step.cap_w: step.power_w for step in mop.steps}
    assert under[mop.mop_w] <= 1.01 * mop.mop_w
    assert 0 <= mop.mop_w - mop.steps[-1].power_w <= PLAN.step_w
    assert f"{mop.steps[-1].power_w:.1f} W" in mop.why


def test_the_search_ends_at_the_lowest_cap_that_can_be_set(tmp_path: Path) -> None:
    with loaded_node(load_machine("skylake-6146"), tmp_path) as node:
        mop = find_mop(node.cap(lowest_w=280.0), emulated_heartbeat(node.twin), node.knobs, PLAN)
    assert (mop.mop_w, mop.stop) == (280.0, "lowest cap")


def test_a_node_that_is_late_without_a_cap_is_refused_in_one_line(tmp_path: Path) -> None:
    with loaded_node(machine_that_hangs(400.0), tmp_path) as node:
        with pytest.raises(
            LimitsError, match=r"^no minimal operating power: at the highest cap, 330 W, .* s .*allowed$"
        ):
            find_mop(node.cap(), emulated_heartbeat(node.twin), node.knobs, PLAN)
        assert node.twin.packages_limit_w == 330.0


def test_a_hot_node_is_left_alone(tmp_path: Path) -> None:
    with loaded_node(load_machine("skylake-6146"), tmp_path) as node:
        node.inside.faults.add(Fault("stuck", "/sys/class/hwmon/hwmon0/temp1_input", value="99000"))
        with pytest.raises(LimitsError, match=r"the node is hot: .* 99 C"):
            find_mop(node.cap(), emulated_heartbeat(node.twin), node.knobs, PLAN)


def test_a_writer_that_refuses_ends_the_search_at_the_last_good_cap(tmp_path: Path) -> None:
    with loaded_node(load_machine("skylake-6146"), tmp_path) as node:

        def refuse_below(step: MopStep) -> None:
            if step.cap_w == 300.0:
                node.inside.faults.add(Fault("refused", "/sys/class/powercap/intel-rapl:0/*limit_uw", value="ENODATA"))

        mop = find_mop(node.cap(), emulated_heartbeat(node.twin), node.knobs, PLAN, refuse_below)
        assert (mop.mop_w, mop.stop) == (300.0, "writer")
        assert "rapl/package-0/long_term_uw: refused" in mop.why
        node.inside.faults.clear()


def test_a_node_without_power_limits_says_why(tmp_path: Path) -> None:
    line = r"power limits cannot be set: .*no long_term limit.*nodectl doctor"
    with loaded_node(load_machine("rome"), tmp_path) as node, pytest.raises(LimitsError, match=line):
        node.cap()


def test_ctrl_c_in_the_middle_puts_the_limits_back(tmp_path: Path) -> None:
    with loaded_node(load_machine("skylake-6146"), tmp_path) as node:

        def press(step: MopStep) -> None:
            if step.cap_w < 280:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            find_mop(node.cap(), emulated_heartbeat(node.twin), node.knobs, PLAN, press)
        assert node.twin.packages_limit_w == 330.0


class Cap:
    """A cap without a node: power follows, with an error."""

    lowest_w, highest_w, settle_s = 50.0, 200.0, 0.0

    def __init__(self) -> None:
        self.caps: list[float] = []

    def set_cap_w(self, watts: float) -> float:
        self.caps.append(watts)
        return 0.0

    def read_watts(self) -> float:
        return min(self.caps[-1], 180.0)

    def trouble(self) -> str:
        return ""

    def release(self) -> None:
        self.caps.append(self.highest_w)


class Steps:
    """Time that passes when it is slept."""

    def __init__(self) -> None:
        self.ns = 0

    def now_ns(self) -> int:
        return self.ns

    def sleep_until_ns(self, deadline_ns: int) -> None:
        self.ns = max(self.ns, deadline_ns)


class Beating:
    """One overdue beat below a cap, which no thread reports while it hangs."""

    period_s = 0.01

    def __init__(self, cap: Cap, below_w: float) -> None:
        self._cap, self._below_w = cap, below_w

    def start(self) -> None:
        self.is_started = True

    def beats(self) -> Beats:
        return Beats([], 9.0) if self._cap.caps and self._cap.caps[-1] < self._below_w else Beats([1e-4] * 5, 0.0)

    def stop(self) -> None:
        self.is_started = False


def test_one_overdue_beat_ends_a_step_at_the_first_look() -> None:
    cap, clock = Cap(), Steps()
    heartbeat = Beating(cap, 122.0)
    seen: list[int] = []
    mop = find_mop(cap, heartbeat, clock, PLAN, lambda step: seen.append(clock.ns))
    assert (mop.mop_w, mop.stop, mop.has_recovered) == (125.0, "heartbeat", True)
    assert (seen[-1] - seen[-2]) / 1e9 <= 0.05
    assert cap.caps[-3:] == [120.0, 125.0, 200.0]
    assert not heartbeat.is_started


class HeatingCap(Cap):
    """Below 150 W the package warms by 20 K a second, whatever the cap: leakage feeds itself."""

    def __init__(self, clock: Steps) -> None:
        super().__init__()
        self._clock, self._since_ns = clock, 0
        self.settle_s = 4.0

    def set_cap_w(self, watts: float) -> float:
        if watts < 150.0 and not self._since_ns:
            self._since_ns = self._clock.ns
        return super().set_cap_w(watts)

    @property
    def celsius(self) -> float:
        return 60.0 + (20.0 * (self._clock.ns - self._since_ns) / 1e9 if self._since_ns else 0.0)

    def trouble(self) -> str:
        return f"the node is hot: {self.celsius:.0f} C" if self.celsius >= 95.0 else ""


def test_a_package_that_runs_away_within_a_step_ends_the_search_without_an_answer() -> None:
    clock = Steps()
    cap = HeatingCap(clock)
    with pytest.raises(LimitsError, match=r"^no minimal operating power: the node is hot: 9[5-6] C$"):
        find_mop(cap, Beating(cap, 0.0), clock, PLAN)
    assert cap.caps[-2:] == [145.0, 200.0], "the step is left at once, and the cap released"
    assert cap.celsius < 97.0


def test_the_native_heartbeat_shows_a_thread_that_is_kept_from_running() -> None:
    heartbeat = NativeHeartbeat(MonotonicClock(), period_s=0.005)
    begun_s = time.monotonic()
    heartbeat.start()
    try:
        time.sleep(0.5)
        calm = heartbeat.beats()
    finally:
        heartbeat.stop()
    assert 1 <= len(calm.late_s) <= (time.monotonic() - begun_s) / 0.005 + 1
    assert 0 <= np.min(calm.late_s) < 0.005


def test_a_twin_without_the_key_never_hangs(tmp_path: Path) -> None:
    machine = load_machine("skylake-6146")
    assert machine.power.responsive_above_w == 0
    with loaded_node(machine, tmp_path) as node:
        heartbeat = emulated_heartbeat(node.twin)
        heartbeat.start()
        node.cap().set_cap_w(70.0)
        node.knobs.sleep_until_ns(node.knobs.now_ns() + 10**9)
        late_s, overdue_s = heartbeat.beats()
        assert 99 <= len(late_s) <= 100 and max(late_s) < 1e-3 and overdue_s < 0.01
        assert node.inside.tree.delayed_s == 0.0


def test_the_emulated_heartbeat_is_overdue_while_the_node_hangs_and_comes_when_the_cap_is_raised(
    tmp_path: Path,
) -> None:
    with loaded_node(machine_that_hangs(200.0), tmp_path) as node:
        cap: PackagesCap = node.cap()
        heartbeat = emulated_heartbeat(node.twin)
        heartbeat.start()
        cap.set_cap_w(150.0)
        node.knobs.sleep_until_ns(node.knobs.now_ns() + 100_000_000)
        assert heartbeat.beats().overdue_s > 0.05
        assert cap.set_cap_w(250.0) >= 0.8
        node.knobs.sleep_until_ns(node.knobs.now_ns() + 100_000_000)
        late_s, overdue_s = heartbeat.beats()
        assert 0.05 < late_s[0] < 0.12 and max(late_s[1:]) < 1e-3 and overdue_s < 0.01


def test_a_machine_file_takes_the_hidden_cap(tmp_path: Path) -> None:
    text = Path(load_machine("skylake-6146").path).read_text()
    file = tmp_path / "hangs.toml"
    file.write_text(text.replace("rest_w = 70.0", "rest_w = 70.0\nresponsive_above_w = 180.0"))
    assert load_machine(str(file)).power.responsive_above_w == 180.0
    assert msgspec.structs.asdict(PLAN)["bound_s"] == 0.005
