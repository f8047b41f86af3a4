"""The time until a requested clock is in force, as measured on an EPYC 7502."""

import csv

import numpy as np
import pytest

from tests.recorded import RECORDED, needs_recorded
from twin.machine import load_machine
from twin.physics.model import Twin
from twin.programs.workload import load_workload

PAIRS = {(1500, 2200): "up", (1500, 2500): "up", (2200, 1500): "down", (2500, 1500): "down", (2200, 2500): "up"}
STEP_US = 50


def _latencies_us(start_mhz: int, end_mhz: int, count: int = 1200, seed: int = 1) -> np.ndarray:
    """From requests at any time to the change of the clock, to half a step of the model."""
    twin = Twin(load_machine("rome"), seed=seed)
    random = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        twin.set_domain(0, max_khz=start_mhz * 1000)
        twin.advance(0.003 + STEP_US * 1e-6 * int(random.integers(0, 20)))
        assert twin.cpu_khz(0) == start_mhz * 1000
        twin.set_domain(0, max_khz=end_mhz * 1000)
        waited = 0
        while twin.cpu_khz(0) != end_mhz * 1000:
            twin.advance(STEP_US * 1e-6)
            waited += STEP_US
        found.append(waited)
    return np.array(found)


@needs_recorded("cpu-epyc-rome")
@pytest.mark.parametrize("pair", PAIRS)
def test_a_clock_changes_as_late_as_measured_on_rome(pair: tuple[int, int]) -> None:
    with (RECORDED / "cpu-epyc-rome" / "transition-latency.csv").open(newline="") as file:
        rows = {(int(row["from_mhz"]), int(row["to_mhz"])): row for row in csv.DictReader(file)}
    found = np.concatenate([_latencies_us(*pair, count=300, seed=seed) for seed in range(6)])
    for percent in (5, 25, 50, 75, 95):
        measured = float(rows[pair][f"p{percent}_us"])
        assert np.percentile(found, percent) == pytest.approx(measured, abs=STEP_US)
    assert found.mean() == pytest.approx(float(rows[pair]["mean_us"]), abs=0.6 * STEP_US)


def test_latencies_are_uniform_over_the_interval_above_a_fixed_time() -> None:
    found = _latencies_us(2500, 1500, 2000)
    assert found.min() >= 397 - STEP_US
    assert found.max() <= 1397 + STEP_US
    counts = np.histogram(found, bins=5, range=(397, 1397))[0]
    assert counts.min() > 0.75 * 2000 / 5


def test_requests_within_one_interval_come_into_force_together() -> None:
    twin = Twin(load_machine("rome"), seed=5)
    twin.advance(0.01)
    changed: dict[int, int] = {}
    for number in range(110):
        if number % 4 == 0 and number < 80:
            twin.set_domain(number // 4, max_khz=1_500_000)
        twin.advance(STEP_US * 1e-6)
        for domain in range(20):
            if twin.domain_khz(domain) == 1_500_000:
                changed.setdefault(domain, number)
    instants = sorted(set(changed.values()))
    assert len(changed) == 20
    assert 4 <= len(instants) <= 5
    assert set(np.diff(instants)) == {20}  # steps of a millisecond


def test_packages_and_nodes_have_instants_of_their_own() -> None:
    first: dict[tuple[int, int], int] = {}
    for seed in range(4):
        twin = Twin(load_machine("rome"), seed=seed)
        twin.advance(0.01)
        for domain in (0, 32):
            twin.set_domain(domain, max_khz=1_500_000)
        for step in range(40):
            twin.advance(STEP_US * 1e-6)
            for domain in (0, 32):
                if twin.domain_khz(domain) == 1_500_000:
                    first.setdefault((seed, domain), step)
    assert len(set(first.values())) > 4


def test_a_dynamic_governor_waits_for_the_instants_too() -> None:
    machine = load_machine("rome")
    twin = Twin(machine)
    for domain in range(len(machine.domains)):
        twin.set_domain(domain, governor="schedutil")
    twin.advance(0.5)
    assert twin.cpu_khz(0) == 1_500_000
    twin.start_workload(load_workload("hpl", machine))
    waited = 0
    while twin.cpu_khz(0) == 1_500_000:
        twin.advance(STEP_US * 1e-6)
        waited += STEP_US
    assert 365 - STEP_US <= waited <= 20_000 + 1365 + STEP_US
    before = twin.cpu_khz(32)
    twin.advance(0.05)
    assert twin.cpu_khz(32) == 2_500_000 >= before
