"""Measured errors of DRAM activity: derived from the recorded table, drawn per phase, and what programs then see."""

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from tests.recorded import RECORDED, needs_recorded
from tests.twin.test_model_counters import dram_active_s
from twin.cli import twin as twin_commands
from twin.errors import TwinError
from twin.fit import counter_errors
from twin.machine import load_machine
from twin.physics import error_curves
from twin.physics.error_curves import ErrorCurve, at_quantile, choices, shipped_curves, spread
from twin.physics.model import Twin
from twin.programs.workload import PhaseTruth, load_workload


def _gpu_phases(counter_error: str, seed: int = 1) -> list[PhaseTruth]:
    machine = load_machine("xh2415")
    truth = load_workload("mixed-gpu:1", machine, seed=seed, counter_error=counter_error).truth
    return [phase for group in truth.groups if group.on_gpu for phase in group.phases]


@needs_recorded("gpu-v100-counters")
def test_the_shipped_curves_are_those_of_the_recorded_table() -> None:
    derived = counter_errors.derive(RECORDED / "gpu-v100-counters" / "v100-counters.csv")
    assert derived == shipped_curves()


def test_a_curve_is_the_change_of_activity_times_run_time(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """A counter that errs by a known law of the clock; suspect rows and an application full of them do not count."""
    lines = ["application,clock_mhz,dram_active,energy_over_power_s,suspect"]
    for mhz in range(400, 1001, 5):
        speed = mhz / 1000 * 0.8 + 0.2
        error = 1.0 + 0.3 * (1.0 - mhz / 1000)
        lines.append(f"bent,{mhz},{0.5 * speed * error},{100 / speed},")
        lines.append(f"bent,{mhz},0.9,1.0,energy" if mhz % 50 == 0 else f"true,{mhz},{0.5 * speed},{7 / speed},")
        lines.append(f"broken,{mhz},0.5,1.0,{'power' if mhz % 3 == 0 else ''}")
    table = tmp_path / "sweep.csv"
    table.write_text("\n".join(lines))
    bent, true = counter_errors.derive(table)
    assert (bent.name, true.name) == ("bent", "true")
    middle = slice(1, -1)  # at the ends the median is that of one side
    top = 1.0 + 0.3 * 0.0125
    expected = (1.0 + 0.3 * (1.0 - np.array(bent.clock))) / top
    assert np.array(bent.ratio)[middle] == pytest.approx(expected[middle], abs=0.002)
    assert set(true.ratio) == {1.0}


def test_the_curves_are_mostly_small_with_a_heavy_tail() -> None:
    """Halves of the applications agree on the median. They cannot on the tail: one application of 15 has most of it."""
    curves = shipped_curves()
    assert len(curves) == 15
    median, p95 = spread(curves)
    assert median == pytest.approx(0.017, abs=0.001)
    assert p95 == pytest.approx(0.177, abs=0.001)
    first, second = spread(curves[::2]), spread(curves[1::2])
    assert abs(first[0] - second[0]) < 0.005
    without = [curve for curve in curves if curve.name != "tpacf"]
    assert spread(without)[1] < 0.13


def test_dram_activity_falls_as_the_drawn_application_says() -> None:
    machine = load_machine("xh2415")
    workload = load_workload("qe-pw", machine, seed=2, counter_error="measured:tpacf")
    shown = [dram_active_s(Twin(machine, workload), mhz) for mhz in (1410, 1005)]
    speed = 1005 / 1410  # QE-PW follows the clock
    ratio = np.interp(speed, (0.70, 0.75), (1.402, 1.304))  # of the shipped table
    assert shown[1] / shown[0] == pytest.approx(speed * ratio, rel=0.03)


def test_the_truth_names_the_curve_of_each_phase_and_is_otherwise_unchanged() -> None:
    uniform, measured = _gpu_phases("uniform"), _gpu_phases("measured")
    assert {phase.error_curve for phase in uniform} == {""}
    names = {curve.name for curve in shipped_curves()}
    assert all(phase.error_curve in names for phase in measured)
    assert [msgspec.structs.replace(phase, error_curve="") for phase in measured] == uniform
    assert _gpu_phases("measured") == measured
    drawn = {phase.error_curve for seed in range(40) for phase in _gpu_phases("measured", seed)}
    assert drawn == names


def test_measured_errors_leave_cpus_alone() -> None:
    machine = load_machine("curie")
    uniform, measured = (load_workload("hpl", machine, counter_error=word) for word in ("uniform", "measured"))
    assert uniform.truth == measured.truth
    for a, b in zip(uniform.groups[0].phases, measured.groups[0].phases, strict=True):
        assert (a.tables == b.tables).all()


def test_a_curve_holds_its_end_below_the_lowest_measured_clock_and_is_linear_between() -> None:
    curve = ErrorCurve("one", (0.4, 0.5, 1.0), (1.4, 1.2, 1.0))
    assert curve.at([200, 400, 450, 750, 1000]) == pytest.approx([1.4, 1.4, 1.3, 1.1, 1.0])


def test_a_quantile_of_curves_is_the_smallest_that_is_as_large_as_that_share() -> None:
    curves = [ErrorCurve(str(k), (0.5, 1.0), (1.0 + 0.01 * k * (-1) ** k, 1.0)) for k in (3, 1, 4, 2)]
    assert [at_quantile(share, curves).name for share in (0.0, 0.25, 0.26, 0.5, 0.75, 0.95, 1.0)] == list("1122344")


@pytest.mark.parametrize("word", ["mesured", "measured:", "uniform:x", "", "measured:tpafc"])
def test_an_unknown_kind_of_error_is_refused_by_name(word: str) -> None:
    with pytest.raises(TwinError, match="counter error"):
        choices(word)


def test_uniform_errors_need_no_curve() -> None:
    assert choices("uniform") == ()
    assert error_curves.drawn((), np.random.default_rng(1)) is None
    assert [curve.name for curve in choices("measured:stream")] == ["stream"]


def test_the_command_line_has_the_option() -> None:
    assert "--counter-error" in CliRunner().invoke(twin_commands, ["run", "--help"]).output
