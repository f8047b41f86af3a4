"""Honest counters: what they say of the work is off, by draws that a policy cannot know."""

import numpy as np
import pytest

from twin.machine import load_machine
from twin.physics.curves import random_counter_error, stream
from twin.physics.model import Twin
from twin.programs.workload import load_workload


def _beta_from_stalls(bias: float, seed: int) -> float:
    """What the formula would say of NAS (beta 0.4) at the highest clock: 1 - stall share."""
    machine = load_machine("curie")
    twin = Twin(machine, load_workload("nas", machine, seed=seed, bias=bias), seed=seed)
    for domain in range(2):
        twin.set_domain(domain, governor="performance")
    twin.advance(5.0)
    cycles, stalls = twin.counters(["cycles", "stalls"]).sum(axis=0)
    return float(1.0 - stalls / cycles)


def test_without_bias_stalls_tell_beta() -> None:
    assert _beta_from_stalls(0.0, 1) == pytest.approx(0.4, abs=0.04)  # waiting at barriers and noise remain


def test_with_bias_they_do_not() -> None:
    fair = _beta_from_stalls(0.0, 1)
    errors = [abs(_beta_from_stalls(0.4, seed) / fair - 1.0) for seed in range(1, 6)]
    assert min(errors) > 0.1
    assert max(errors) < 0.5


@pytest.mark.parametrize("bias", [0.0, 0.2, 0.4])
def test_draws_stay_away_from_zero_and_within_the_bias(bias: float) -> None:
    drawn = np.array(
        [[d.bound, d.loss, d.level, d.level2] for d in (random_counter_error(stream(s), bias) for s in range(200))]
    )
    assert np.abs(drawn).max() <= bias
    assert np.abs(drawn).min() >= bias / 2
    if bias > 0:
        assert (drawn > 0).any() and (drawn < 0).any()


def test_instructions_fall_otherwise_than_speed_does() -> None:
    machine = load_machine("curie")
    workload = load_workload("nas", machine, seed=3, bias=0.4)
    rates = []
    for khz in (2_700_000, 1_200_000):
        twin = Twin(machine, workload)
        for domain in range(2):
            twin.set_domain(domain, governor="performance", max_khz=khz)
        twin.advance(5.0)
        instructions, reference = twin.counters(["instructions", "reference-cycles"]).sum(axis=0)
        rates.append(instructions / reference)
    loss = workload.truth.groups[0].phases[0].counter_error.loss
    assert rates[1] / rates[0] == pytest.approx(1.0 - (1.0 + loss) * (1.0 - 1.0 / 1.5), abs=0.06)
    assert abs(loss) >= 0.2


def test_noise_varies_slowly() -> None:
    machine = load_machine("curie")
    twin = Twin(machine, load_workload("hpl", machine))
    for domain in range(2):
        twin.set_domain(domain, governor="performance")
    rates, last = [], twin.counters(["instructions"])[0, 0]
    for _ in range(200):
        twin.advance(0.05)
        now = twin.counters(["instructions"])[0, 0]
        rates.append(now - last)
        last = now
    rates = np.array(rates[1:]) / np.mean(rates[1:])
    assert 0.01 < rates.std() < 0.04
    assert np.corrcoef(rates[:-1], rates[1:])[0, 1] > 0.4


def test_truth_names_its_seed_and_draws() -> None:
    machine = load_machine("xh2415")
    truth = load_workload("easywave", machine, seed=11, bias=0.2).truth
    assert (truth.seed, truth.bias) == (11, 0.2)
    phases = truth.groups[1].phases
    assert [phase.name for phase in phases] == ["propagate", "gather"]
    assert all(0.1 <= abs(phase.counter_error.loss) <= 0.2 for phase in phases)
    assert phases[0].counter_error != phases[1].counter_error
    assert truth == load_workload("easywave", machine, seed=11, bias=0.2).truth


def dram_active_s(twin: Twin, mhz: int) -> float:
    """Seconds that the DRAM of the first GPU shows as active in 3 s at a locked clock."""
    card = twin.gpus.gpu[0]
    twin.lock_gpu(0, mhz, mhz)
    twin.advance(1.0)
    before = card.gpm_dram_active_s
    twin.advance(3.0)
    return float(card.gpm_dram_active_s - before)


def test_dram_traffic_of_a_gpu_falls_otherwise_than_speed_does() -> None:
    machine = load_machine("xh2415")
    workload = load_workload("qe-pw", machine, seed=2, bias=0.4)
    shown = [dram_active_s(Twin(machine, workload), mhz) for mhz in (1410, 1005)]
    loss = workload.truth.groups[1].phases[0].counter_error.loss
    assert shown[1] / shown[0] == pytest.approx(1.0 - (1.0 + loss) * (1.0 - 1005 / 1410), abs=0.06)
