"""Fitting a machine's power to measured sweeps: the law, its judge, the machine file, and what ships."""

import csv
import re
from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks import twin_fit
from tests.recorded import RECORDED, needs_recorded
from twin.cli import twin as command
from twin.errors import TwinError
from twin.fit.judge import fit_and_judge
from twin.fit.law import Bench, Card, estimate, fit_card
from twin.fit.speed_laws import knee_time, left_out_speeds
from twin.fit.sweep import Curve, read_sweep
from twin.machine import MACHINES, load_machine
from twin.physics import curves
from twin.physics.model import Twin
from twin.programs.workload import load_workload

CLOCKS = (700.0, 800.0, 900.0, 1000.0, 1100.0, 1200.0, 1400.0)
VOLTS = ((700.0, 0.70), (1000.0, 0.72), (1200.0, 0.84), (1400.0, 1.0))
TRUE = Card(VOLTS, 30.0, 40.0, "work")
SHARES = ((120.0, 10.0, 20.0), (60.0, 60.0, 10.0), (90.0, 5.0, 5.0), (30.0, 40.0, 30.0), (150.0, 20.0, 0.0))
"""Watts of core, memory, awake of some workloads, from compute-bound to memory-bound."""


def _synthetic(rows: int = 5) -> list[Curve]:
    """Exact curves of a card that follows the law."""
    made = []
    for number, shares in enumerate(SHARES[:rows]):
        knee = (2000.0, 800.0, 1500.0, 750.0, 1300.0)[number]
        speed = curves.knee_speed([mhz * 1e3 for mhz in CLOCKS], knee, 6.0)
        blank = Curve(f"w{number}", CLOCKS, tuple(float(s) for s in speed), (1.0,) * len(CLOCKS))
        base, shapes = Bench([blank], "work").shapes(TRUE)
        watts = base[0] + shapes[0] @ np.array(shares)
        made.append(msgspec.structs.replace(blank, power_w=tuple(float(w) for w in watts)))
    return made


# --- the law and its judge ---


def test_watts_of_a_card_that_follows_the_law_are_fitted_within_a_few_thousandths() -> None:
    made = _synthetic()
    bench = Bench(made, "work")
    _, law_w = estimate(bench, fit_card(made, "work", 30.0), bench.known("all"))
    assert np.abs(law_w / bench.watts - 1).max() < 0.006


def test_watts_of_a_workload_that_the_fit_has_not_seen_follow_from_those_at_two_clocks() -> None:
    verdict = fit_and_judge(_synthetic(), "work", 30.0).verdict
    assert verdict.two_clocks is not None
    assert verdict.top_clock is not None
    assert verdict.two_clocks.worst_pct < 3.0
    assert verdict.two_clocks.median_pct < verdict.top_clock.median_pct  # one clock says less


def test_no_share_is_negative() -> None:
    made = _synthetic()
    falling = msgspec.structs.replace(made[0], power_w=tuple(reversed(made[0].power_w)))
    shares, _ = estimate(bench := Bench([falling, *made[1:]], "work"), TRUE, bench.known("all"))
    assert (shares >= 0).all()


def test_a_left_out_workloads_own_watts_between_the_given_clocks_are_not_used() -> None:
    made = _synthetic()
    middle = len(CLOCKS) // 2
    altered = [*made[0].power_w]
    altered[middle] *= 1.5
    plain = fit_and_judge(made, "work", 30.0).verdict.worst_of["w0"][1]
    own = fit_and_judge([msgspec.structs.replace(made[0], power_w=tuple(altered)), *made[1:]], "work", 30.0)
    assert own.verdict.worst_of["w0"][1] == pytest.approx(100 * (1 - 1 / 1.5), abs=plain)


@needs_recorded("gpu-dvfs")
def test_left_out_workloads_of_the_v100_table_are_predicted_as_required() -> None:
    """Two clocks given: median 2 %, worst 6 %. The top clock given: median 4 %, 95 % within 12 %."""
    assert twin_fit.main(["--quick"]) == 0


@needs_recorded("gpu-dvfs")
def test_a_law_without_what_stays_awake_misses_the_requirement(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Bench.shapes

    def shapes(self: Bench, card: Card) -> tuple[curves.type_f64, curves.type_f64]:
        base, columns = whole(self, card)
        return base, columns[..., :2]

    monkeypatch.setattr(Bench, "shapes", shapes)
    monkeypatch.setattr(Bench, "kinds", ("core_w", "memory_w"))
    assert twin_fit.unmet(twin_fit.fitted(msgspec.structs.replace(twin_fit.V100, rate="clock"))) != []


def test_speeds_of_one_sharpness_are_predicted_from_those_at_two_clocks() -> None:
    clock = np.array(CLOCKS)
    made = [
        Curve(f"k{knee}", CLOCKS, tuple(float(x) for x in 1 / knee_time(clock / clock[-1], knee, 4.0)), (100.0,) * 7)
        for knee in (0.5, 0.8, 1.0, 2.0)
    ]
    errors = left_out_speeds(made)
    assert errors["knee"].worst_pct < 1e-6
    assert errors["beta"].worst_pct > 3.0
    assert left_out_speeds([msgspec.structs.replace(curve, has_speed=False) for curve in made]) == {}


# --- the model ---


@pytest.mark.parametrize("name", ["genoa-h100", "spr-h100"])
def test_a_machine_that_was_not_fitted_draws_the_same_watts_to_the_last_bit(name: str) -> None:
    gpu = load_machine(name).gpu
    assert gpu is not None
    speed = curves.knee_speed(gpu.clocks_khz, 1000.0)
    before = (
        curves.gpu_ready_w(gpu) + gpu.power.memory_w * 0.37 * speed + gpu.power.sm_w * 0.81 * curves.gpu_switching(gpu)
    )
    assert (curves.gpu_kernel_w(gpu, 0.81, 0.37, speed) == before).all()


def test_stalled_cores_of_a_fitted_card_draw_less_the_slower_the_work() -> None:
    gpu = load_machine("a100").gpu
    assert gpu is not None
    speed = curves.knee_speed(gpu.clocks_khz, 900.0)
    half = curves.gpu_kernel_w(gpu, 1.0, 0.0, 0.5 * speed)
    whole = curves.gpu_kernel_w(gpu, 1.0, 0.0, speed)
    assert (whole - half)[-1] == pytest.approx(0.5 * gpu.power.sm_w)


def test_clock_bound_work_on_the_a100_falls_to_the_measured_share_of_its_power(tmp_path: Path) -> None:
    """pi-solver at 300 W: 135.25 W at 1005 MHz, 296.01 W at 1410 MHz (gpu-clock-powercap), a share of 0.457."""
    program = tmp_path / "pi-solver.toml"
    program.write_text(
        'name = "pi-solver"\nsummary = "clock-bound"\nsource = "a test"\n[[gpu]]\n[[gpu.phase]]\nname = "pi"\n'
        "seconds = 1000.0\nknee_mhz = 5000.0\nactivity = 1.0\ndram_active = 0.09\n"
    )
    machine = load_machine("a100")
    watts = []
    for mhz in (1005, 1410):
        twin = Twin(machine, load_workload(str(program), machine))
        card = twin.gpus.gpu[0]
        twin.lock_gpu(0, mhz, mhz)
        twin.advance(200.0)  # until it is as warm as it gets
        before = card.energy_uj
        twin.advance(20.0)
        watts.append((card.energy_uj - before) * 1e-6 / 20.0)
    assert watts[0] / watts[1] == pytest.approx(135.25 / 296.01, abs=0.01)
    assert watts[1] == pytest.approx(296.01, rel=0.03)


# --- machine files ---


def _sweep(path: Path, rows: int = 3) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["workload", "clock_mhz", "speed", "power_w"])
        for curve in _synthetic(rows):
            writer.writerows(
                [curve.workload, *point] for point in zip(curve.clock_mhz, curve.speed, curve.power_w, strict=True)
            )
    return path


def _fit(*arguments: str | Path) -> str:
    result = CliRunner().invoke(command, ["fit", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.output


def test_the_command_writes_a_machine_whose_other_lines_are_those_of_the_base(tmp_path: Path) -> None:
    output = tmp_path / "mine.toml"
    shown = _fit(_sweep(tmp_path / "sweep.csv"), "--machine", "genoa-h100", "--output", output)
    assert "left out, watts at two clocks given: 15 points" in shown
    machine = load_machine(str(output))
    assert machine.name == "mine"
    assert machine.gpu is not None
    assert machine.gpu.fit is not None
    assert [share.workload for share in machine.gpu.fit.shares] == ["w0", "w1", "w2"]
    assert machine.gpu.power.sm_work == 1.0
    fitted = {"name", "volts", "ready_w", "memory_w", "sm_w"}
    for line in (MACHINES / "genoa-h100.toml").read_text().splitlines():
        if line.split(" =")[0] not in fitted:
            assert line in output.read_text().splitlines()


def test_a_second_fit_replaces_the_first(tmp_path: Path) -> None:
    first, second = tmp_path / "card.toml", tmp_path / "again" / "card.toml"
    second.parent.mkdir()
    sweep = _sweep(tmp_path / "sweep.csv")
    _fit(sweep, "--machine", "v100", "--output", first)
    _fit(sweep, "--machine", first, "--output", second)
    assert second.read_text() == first.read_text()


def test_a_sweep_that_was_read_from_a_sensor_with_a_gain_gives_the_watts_that_the_card_draws(tmp_path: Path) -> None:
    sweep, text = _sweep(tmp_path / "sweep.csv"), (MACHINES / "a100.toml").read_text()
    exact = tmp_path / "exact.toml"
    exact.write_text(re.sub(r"(?m)^power_(gain|offset_w) = .*\n", "", text))
    watts = []
    for base, idle_w in ((str(exact), 40.0), ("a100", (40.0 + 1.2) / 0.954)):
        _fit(sweep, "--machine", base, "--idle", str(idle_w), "--output", tmp_path / "fitted.toml")
        gpu = load_machine(str(tmp_path / "fitted.toml")).gpu
        assert gpu is not None
        watts.append(curves.gpu_kernel_w(gpu, 0.7, 0.5, curves.knee_speed(gpu.clocks_khz, 900.0)))
    assert 0.954 * watts[1] - 1.2 == pytest.approx(watts[0], rel=0.003)


def test_power_above_the_sweeps_highest_clock_goes_on_along_the_law(tmp_path: Path) -> None:
    """The ladder of the V100 ends at 1530 MHz, the sweep at 1400: the watts at 1400 MHz are those of the sweep."""
    output = tmp_path / "mine.toml"
    _fit(_sweep(tmp_path / "sweep.csv", 5), "--machine", "v100", "--idle", "30", "--output", output)
    gpu = load_machine(str(output)).gpu
    assert gpu is not None
    assert gpu.fit is not None
    busiest = max(gpu.fit.shares, key=lambda share: share.core_w)
    clock = np.asarray(gpu.clocks_khz) / 1e3
    core = curves.gpu_kernel_w(gpu, 1.0, 0.0, clock / clock[-1]) - curves.gpu_ready_w(gpu)
    assert np.interp(1400.0, clock, core) == pytest.approx(busiest.core_w, rel=0.01)


def test_a_packages_fit_sets_its_volts_and_the_watts_of_a_core(tmp_path: Path) -> None:
    output = tmp_path / "node.toml"
    _fit(_sweep(tmp_path / "sweep.csv"), "--machine", "xh2415", "--part", "package", "--output", output)
    machine, base = load_machine(str(output)), load_machine("xh2415")
    assert machine.power.volts != base.power.volts
    assert machine.power.volts[-1] == base.power.volts[-1]
    assert machine.power.dynamic_w != base.power.dynamic_w
    assert machine.gpu == base.gpu


@needs_recorded("gpu-dvfs")
@needs_recorded("gpu-clock-powercap")
@pytest.mark.parametrize(
    ("name", "sweep", "card"),
    [
        ("a100", "gpu-clock-powercap/clock-powercap.csv", "A100-PCIe-80GB"),
        ("v100", "gpu-dvfs/v100-frequency.csv", ""),
    ],
)
def test_a_shipped_fit_is_that_of_its_sweep(name: str, sweep: str, card: str, tmp_path: Path) -> None:
    output = tmp_path / f"{name}.toml"
    _fit(RECORDED / sweep, *(["--card", card] if card else []), "--machine", name, "--output", output)
    shipped, again = (
        [float(number) for number in re.findall(r"-?\d+\.\d+", path.read_text())]
        for path in (MACHINES / f"{name}.toml", output)
    )
    assert again == pytest.approx(shipped, rel=0.01, abs=0.15)


# --- sweeps ---


def test_rows_at_the_highest_power_limit_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "sweep.csv"
    path.write_text(
        "gpu,code,clock_mhz_requested,power_limit_w,time_s,power_w\n"
        "A,pi,1000,150,3,100\nA,pi,1000,300,2,120\nA,pi,1200,300,1.5,160\nA,pi,1400,300,1,200\nA,pi,1400,300,1,220\n"
    )
    (curve,) = read_sweep(path)
    assert curve.clock_mhz == (1000.0, 1200.0, 1400.0)
    assert curve.power_w == (120.0, 160.0, 210.0)
    assert curve.speed == pytest.approx((0.5, 2 / 3, 1.0))


def test_work_without_a_time_follows_the_clock(tmp_path: Path) -> None:
    path = tmp_path / "sweep.csv"
    path.write_text("workload,clock_mhz,power_w\na,500,50\na,750,70\na,1000,100\n")
    (curve,) = read_sweep(path)
    assert not curve.has_speed
    assert curve.speed == (0.5, 0.75, 1.0)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("workload,power_w\na,1\n", "has no column for clock_mhz: one of clock_mhz, core_mhz"),
        ("workload,clock_mhz,power_w\na,x,1\n", ':2: clock_mhz: "x" is not a number'),
        ("workload,clock_mhz,power_w\na,5,-1\n", ":2: power_w: -1 is negative"),
        ("workload,clock_mhz,power_w\na,5,1e308\n", ":2: power_w: 1e308 is negative or nothing that was measured"),
        (
            "workload,clock_mhz,power_w,time_s\na,5,1,5e-324\n",
            ":2: time_s: 5e-324 is negative or nothing",
        ),
        ("workload,clock_mhz,power_w,speed\na,5,1,0\n", ":2: the speed is 0: leave such a row out"),
        ("workload,clock_mhz,power_w\na,5,\n", ":2: clock or watts are missing"),
        ("workload,clock_mhz,power_w\na,5,1\na,6,1\n", "no workload that was measured at three clocks"),
        ("gpu,workload,clock_mhz,power_w\nA,a,5,1\nB,a,5,1\n", "has several cards, name one: A, B"),
    ],
)
def test_a_sweep_that_cannot_be_fitted_is_an_error_of_one_line(text: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "sweep.csv"
    path.write_text(text)
    with pytest.raises(TwinError, match=re.escape(problem)):
        read_sweep(path)
