"""Nodes and runs that differ: by as much as was measured, the same for the same seeds, and not at all by default."""

import csv
from collections import defaultdict

import msgspec
import numpy as np
import pytest

from lab.node_demo.experiment import Experiment, run
from tests.recorded import RECORDED, needs_recorded
from twin.machine import load_machine
from twin.physics.model import Report, Twin
from twin.physics.variation import NONE, Variation
from twin.programs.workload import load_workload


def _run(machine: str, workload: str, variation: Variation, seed: int = 1, duration_s: float = 20.0) -> Report:
    model = load_machine(machine)
    twin = Twin(model, load_workload(workload, model, duration_s=duration_s), seed=seed, variation=variation)
    while not twin.finished:
        twin.advance(1.0)
    return twin.report()


def _only(node: int = 1, **deviations: float) -> Variation:
    return msgspec.structs.replace(NONE, node=node, **deviations)


def test_by_default_nodes_and_runs_are_alike() -> None:
    model = load_machine("xh2415")
    assert NONE.parts(2, 4, seed=7).gpu_w == (1.0,) * 4
    assert NONE.parts(2, 4, seed=7).package_w == (1.0,) * 2
    assert NONE.work(7, "easywave", 0) == 1.0
    work = load_workload("easywave", model, duration_s=5.0)
    default, none = Twin(model, work, seed=7), Twin(model, work, seed=7, variation=NONE)
    for twin in (default, none):
        twin.advance(6.0)
    assert default.report() == none.report()


def test_a_run_is_the_same_again_for_the_same_seeds_and_another_for_other_seeds() -> None:
    first, again, other = (_run("xh2415", "easywave", Variation(), seed) for seed in (1, 1, 2))
    assert first == again
    assert first.time_s != other.time_s
    assert first.energy_j["gpu-0"] != other.energy_j["gpu-0"]


def test_gpus_of_a_node_draw_unlike_watts_and_keep_their_order_from_run_to_run() -> None:
    runs = [_run("xh2415", "easywave", _only(node=5, card=0.05, run_gpu=0.002), seed) for seed in (1, 2)]
    order = [sorted(range(4), key=lambda gpu, run=run: run.energy_j[f"gpu-{gpu}"]) for run in runs]  # type: ignore[misc]
    assert order[0] == order[1]
    joules = [runs[0].energy_j[f"gpu-{gpu}"] for gpu in range(4)]
    assert max(joules) / min(joules) > 1.01
    another = _run("xh2415", "easywave", _only(node=6, card=0.05), 1)
    assert order[0] != sorted(range(4), key=lambda gpu: another.energy_j[f"gpu-{gpu}"])


def test_a_package_draws_more_by_its_own_factor() -> None:
    variation = _only(package=0.05)
    factors = variation.parts(2, 0, seed=1).package_w
    varied, plain = (_run("curie", "hpl", each) for each in (variation, NONE))
    for package in range(2):
        more = varied.energy_j[f"package-{package}"] / plain.energy_j[f"package-{package}"]
        assert 0.6 < (more - 1) / (factors[package] - 1) < 1.5  # cores are most of it, and leak more when they are hot


def test_a_power_limit_applies_to_what_the_card_itself_draws() -> None:
    model, variation = load_machine("xh2415"), _only(card=0.06)
    twin = Twin(model, load_workload("qe-pw", model), variation=variation)
    for index in range(4):
        card = twin.gpus.gpu[index]
        card.power_limit_mw = 220_000
        card.limit_seq += 1
    twin.advance(4.0)
    factors = variation.parts(2, 4, seed=1).gpu_w
    clocks = np.zeros(4)
    for _ in range(200):  # each alternates between two neighbours
        twin.advance(0.001)
        clocks += [twin.gpus.gpu[index].sm_clock_mhz / 200 for index in range(4)]
    by_factor = [clocks[index] for index in np.argsort(factors)]
    assert by_factor == sorted(clocks, reverse=True)
    assert by_factor[0] > by_factor[-1]
    assert all(twin.gpus.gpu[index].power_mw <= 221_000 for index in range(4))


def test_power_under_a_steady_load_varies_by_its_deviation() -> None:
    model = load_machine("xh2415")
    watts = []
    for variation in (NONE, _only(power=0.02)):
        twin = Twin(model, load_workload("qe-pw", model), variation=variation)
        for index in range(4):
            twin.lock_gpu(index, 1005, 1005)
        joules = []
        for _ in range(60):
            twin.advance(0.05)
            joules.append([twin.report().energy_j[f"gpu-{index}"] for index in range(4)])
        watts.append(np.diff(joules, axis=0)[10:])
    off = watts[1] / watts[0] - 1
    assert np.sqrt((off**2).mean()) == pytest.approx(0.02, rel=0.3)  # slow: 200 values are worth some 20


def test_iterations_differ_and_their_mean_does_not() -> None:
    times = [_run("v100", "v100:RNN", _only(iteration=0.05), seed).time_s for seed in range(1, 9)]
    plain = _run("v100", "v100:RNN", NONE).time_s
    assert len(set(times)) == len(times)
    assert np.mean(times) == pytest.approx(plain, rel=0.004)
    model = load_machine("v100")
    ((_, count, _),) = load_workload("v100:RNN", model, duration_s=20.0).groups[1].program
    assert np.std(times) / plain == pytest.approx(0.05 / np.sqrt(count), rel=0.6)  # each iteration has its own
    cpu = {_run("curie", "hpl", _only(iteration=0.05), seed).time_s for seed in (1, 2)}
    assert len(cpu) == 2


def test_the_work_of_a_run_differs_from_run_to_run_on_one_twin() -> None:
    model, variation = load_machine("curie"), _only(run_work=0.05)
    work = load_workload("hpl", model, duration_s=10.0)
    twin, plain = Twin(model, work, seed=3, variation=variation), _run("curie", "hpl", NONE, duration_s=10.0).time_s
    times = []
    for _ in range(2):
        while not twin.finished:
            twin.advance(1.0)
        times.append(twin.report().time_s)
        twin.start_workload(work)
    factors = [variation.work(3, "hpl", run) for run in range(2)]
    assert factors[0] != factors[1]
    assert [time / plain for time in times] == pytest.approx(factors, rel=3e-3)  # the second run finds a warm node


def test_drawn_factors_have_the_deviation_that_is_requested() -> None:
    variation = Variation(run_gpu=0.0, run_package=0.0)
    cards = [
        factor for node in range(150) for factor in msgspec.structs.replace(variation, node=node).parts(2, 8, 1).gpu_w
    ]
    packages = [
        f for node in range(400) for f in msgspec.structs.replace(variation, node=node).parts(2, 0, 1).package_w
    ]
    runs = [variation.work(seed, "a", 0) for seed in range(800)]
    for factors, deviation in ((cards, variation.card), (packages, variation.package), (runs, variation.run_work)):
        assert np.mean(factors) == pytest.approx(1.0, abs=0.2 * deviation)
        assert np.std(factors) == pytest.approx(deviation, rel=0.1)


@needs_recorded("cpu-gpu-caps")
def test_runs_differ_by_as_much_as_measured_repetitions_do() -> None:
    """Median sample deviation of all points of the node with repetitions; compared with that of equally many draws."""
    points = defaultdict(list)
    with (RECORDED / "cpu-gpu-caps" / "cpu-gpu-caps.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if row["node"] == "rtx6000":
                key = tuple(row[name] for name in ("suite", "application", "size", "sweep", "cpu_cap_w", "gpu_cap_w"))
                points[key].append(row)
    measured: dict[str, list[float]] = {"time": [], "gpu": [], "cpu": []}
    drawn: dict[str, list[float]] = {"time": [], "gpu": [], "cpu": []}
    variation, random = Variation(), np.random.default_rng(1)
    sizes = {"time": variation.run_work, "gpu": variation.run_gpu, "cpu": variation.run_package}
    for rows in points.values():
        times = np.array([float(row["time_s"]) for row in rows])
        if len(rows) < 2 or times.mean() < 20.0:
            continue
        for kind, size in sizes.items():
            has = [bool(row.get(f"{kind}_energy_j", "x")) for row in rows]
            if sum(has) < 2:
                continue
            values = (
                times if kind == "time" else np.array([float(row[f"{kind}_energy_j"]) for row in np.array(rows)[has]])
            )
            values = values if kind == "time" else values / times[has]
            measured[kind].append(float(values.std(ddof=1) / values.mean()))
            drawn[kind].append(float((size * random.standard_normal(sum(has))).std(ddof=1)))
    assert len(measured["time"]) > 1700
    for kind in sizes:
        assert np.median(drawn[kind]) == pytest.approx(np.median(measured[kind]), rel=0.12)


def test_savings_of_a_policy_are_measured_on_nodes_and_runs_that_differ() -> None:
    def saving(seed: int, variation: Variation | None) -> float:
        joules = []
        for clock in (1095, 1410):
            own = Experiment("xh2415", "easywave", seed, duration_s=14.0, gpu_policy="fixed", variation=variation)
            joules.append(run(msgspec.structs.replace(own, gpu_params={"clock_mhz": clock})).joules("gpu"))
        return 1 - joules[0] / joules[1]

    alike, varied = (
        [saving(seed, variation and msgspec.structs.replace(variation, node=seed)) for seed in (1, 2, 3)]
        for variation in (None, Variation())
    )
    assert np.mean(varied) == pytest.approx(np.mean(alike), abs=0.01)
    assert np.std(varied) > 2 * np.std(alike)
