"""Overshoot, settling and steady error of caps: of responses that are known, and of emulated packages."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from calibration.limits.probes import LimitsError
from calibration.limits.session_probes import PackagePower
from calibration.limits.standing_power import highest_recorded_w, standing_power
from calibration.limits.step_response import judge_step, measure_step, with_settling
from nodectl.knobs.timing import KnobLatency, Spread
from pmu.layout import Column
from tests.calibration.limited_node import loaded_node
from twin.machine import load_machine

POLL_S = 0.01
TIMES = np.arange(1, 1001) * POLL_S


def test_a_step_down_that_falls_too_far_and_comes_back_is_measured_as_drawn() -> None:
    tau_s = 0.5
    power = np.where(TIMES < 0.05, 300.0, 200.0 - 60.0 * np.exp(-TIMES / tau_s)) + 1.0
    found = judge_step("rapl", (300.0, 200.0), 300.0, TIMES.tolist(), power.tolist())
    assert found.reach_s == pytest.approx(0.05, abs=2 * POLL_S)
    settled_s = tau_s * np.log(60.0 / (0.03 * 201.0))
    assert found.settle_s == pytest.approx(settled_s, abs=0.1)
    assert found.overshoot == pytest.approx(60 / 200 * np.exp(-0.1 / tau_s), abs=0.03)
    assert found.steady_error == pytest.approx(0.005, abs=1e-3)
    assert found.above == pytest.approx(0.005, abs=1e-3)


def test_a_step_up_that_goes_above_the_cap_says_by_how_much() -> None:
    power = np.where(TIMES < 0.02, 200.0, 300.0 + 30.0 * np.exp(-TIMES / 1.0))
    found = judge_step("rapl", (200.0, 300.0), 200.0, TIMES.tolist(), power.tolist())
    assert found.above == pytest.approx(0.1 * np.exp(-0.07), abs=0.01)
    assert found.overshoot == pytest.approx(found.above, abs=1e-3)


@pytest.mark.parametrize(
    ("power", "line"),
    [
        (np.full(1000, 180.0), "the cap does not bind"),
        (np.linspace(300.0, 100.0, 1000), "power has not settled"),
        (np.full(1000, np.nan), "read 0 times"),
    ],
)
def test_a_response_that_shows_nothing_is_refused_in_one_line(power: np.ndarray, line: str) -> None:
    before_w = 180.0 if power[-1] == 180.0 else 300.0
    with pytest.raises(LimitsError, match=line):
        judge_step("rapl", (300.0, 200.0), before_w, TIMES.tolist(), power.tolist())


def test_an_emulated_package_keeps_its_cap_after_its_window(tmp_path: Path) -> None:
    with loaded_node(load_machine("skylake-6146"), tmp_path) as node:
        cap = node.cap()
        steps = [
            measure_step(PackagePower.knob, cap.set_cap_w, cap.read_watts, node.knobs, caps_w, 8.0)
            for caps_w in ((300.0, 220.0), (220.0, 300.0))
        ]
    for step in steps:
        assert abs(step.steady_error) < 0.01
        assert 0.5 < step.settle_s < 2.5  # the window is a second
        assert step.overshoot > 0.03  # a running average lets power go beyond
    assert steps[1].above > 0.03 > steps[0].above
    latency = KnobLatency(PackagePower.knob, Spread(1, 0.01, 0.01), Spread(1, 0.01, 0.01))
    assert with_settling(latency, steps).settle_s == max(step.settle_s for step in steps)


class Recorded:
    """Files of a meter."""

    def __init__(self, texts: dict[str, str]) -> None:
        self._texts = texts

    def read(self, path: str) -> str:
        if path not in self._texts:
            raise FileNotFoundError(2, "No such file", path)
        return self._texts[path]


METER = Column(
    instrument="hwmon", name="hwmon3/power_meter/node", unit="W", kind="level", source="/h/power1_average", per_unit=1e6
)


def test_boot_power_is_what_a_meter_has_recorded_and_otherwise_a_line() -> None:
    files = Recorded({"/h/power1_average_highest": "612000000\n"})
    assert highest_recorded_w(files, [METER]) == 612.0  # type: ignore[arg-type]
    assert highest_recorded_w(Recorded({}), [METER]) is None  # type: ignore[arg-type]
    assert highest_recorded_w(files, []) is None  # type: ignore[arg-type]
    measured = standing_power((60.0, 150.0), (300.0, 420.0), 20.0, 612.0)
    assert (measured.rest_w, measured.boot_w, measured.missing) == (100.0, 612.0, ())
    none = standing_power((60.0, float("nan")), (300.0, float("nan")), 0.0, None)
    assert none.rest_w is None and none.idle_node_w is None
    assert [line.partition(":")[0] for line in none.missing] == ["rest_w", "boot_w"]
