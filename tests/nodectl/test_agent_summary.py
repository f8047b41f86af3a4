import numpy as np
import pytest

from nodectl.decide.decisions import Decisions, PolicyDecision
from nodectl.decide.temperature_limit import POLICY as THERMAL
from nodectl.decide.temperature_limit import ThermalParams
from nodectl.loop.loss import LossAccount
from nodectl.loop.summary import RunAccount, Summary, Timing
from nodectl.policies.api import Request
from nodectl.policies.firmware import FirmwareParams, FirmwareState
from pmu.readings import Quality
from tests.nodectl.small_node import CLOCKS_MHZ, layout, sample


def request(loss: list[float], saved_w: list[float]) -> Request:
    size = len(loss)
    return Request(np.zeros(size, np.int64), np.zeros(size, np.uint8), np.array(loss), np.array(saved_w))


def summary(account: RunAccount) -> Summary:
    cpu, gpu = account.estimates()
    timing = Timing(0.1, 0.2)
    return Summary(
        "optimize", account.elapsed_s, 1, 0, 100.0, account.energy(), cpu, gpu, account.gpu_held_back_s, timing, timing,
        timing, [],
    )  # fmt: skip


def test_slowdown_is_time_lost_over_time_at_free_clocks():
    account = LossAccount(1)
    account.add(request([0.10], [0.0]), np.array([1.1]))  # 1.1 s instead of 1.0 s
    account.add(request([0.0], [0.0]), np.array([1.0]))
    assert account.estimate().slowdown == pytest.approx(0.05)


def test_a_clock_counts_by_its_use_and_the_worst_is_named():
    account = LossAccount(2)
    account.add(request([0.10, 0.0], [0.0, 0.0]), np.array([1.1, 10.0]))
    estimate = account.estimate()
    assert estimate.slowdown == pytest.approx(0.1 / 11.0)
    assert estimate.worst_slowdown == pytest.approx(0.10)


def test_what_a_policy_cannot_say_is_not_assumed():
    account = LossAccount(1)
    account.add(request([np.nan], [np.nan]), np.array([3.0]))
    account.add_saving(request([np.nan], [np.nan]), 3.0)
    nothing = account.estimate()
    assert (nothing.slowdown, nothing.saved_j, nothing.coverage) == (None, None, 0.0)
    account.add(request([0.0], [5.0]), np.array([1.0]))
    assert account.estimate().coverage == pytest.approx(0.25)


def test_a_saving_allows_for_the_shorter_run_that_free_clocks_would_have_had():
    account = LossAccount(1)
    account.add(request([0.10], [50.0]), np.array([1.1]))
    account.add_saving(request([0.10], [50.0]), 1.1)
    # 110 J drawn, 55 J saved in the same 1.1 s; free, the work takes 1.0 s at 150 W
    assert account.estimate().saving(110.0) == pytest.approx(1 - 110 / 150)


def test_joules_are_added_by_quality_and_subzones_are_not_counted_twice():
    node = layout()
    account = RunAccount(node)
    account.add_sample(sample(node, energy_j=10.0, gpu_energy_j=30.0))
    stale = sample(node, energy_j=10.0, gpu_energy_j=30.0)
    stale.energy_quality[:] = Quality.STALE
    account.add_sample(stale)
    result = summary(account)
    assert result.joules("cpu") == pytest.approx(20.0)  # package, without its core zone
    assert result.joules("gpu") == pytest.approx(120.0)
    assert result.quality("cpu") == "50.0% measured, 50.0% stale"
    assert result.quality("gpu") == "measured"


def test_a_missing_reading_is_time_without_joules_and_never_zero_joules_measured():
    node = layout()
    account = RunAccount(node)
    gone = sample(node, gpu_quality=[Quality.MISSING, Quality.MEASURED])
    gone.gpu.energy_j[0] = np.nan
    account.add_sample(gone)
    lost = next(part for part in account.energy() if part.name == "gpu-0")
    assert (lost.joules, lost.by_quality, lost.missing_s) == (0.0, {}, pytest.approx(0.1))
    assert "not known: gpu-0 for 0.1 s" in summary(account).line()


def test_the_closing_line_says_estimated_and_what_is_not_known():
    node = layout()
    account = RunAccount(node)
    shown = sample(node)
    account.add_sample(shown)
    of_gpus = PolicyDecision("gpu-ladder", FirmwareParams(), FirmwareState(), request([0.02, 0.01], [60.0, 60.0]))
    account.add_decisions(shown, Decisions((of_gpus,)), {"gpu-ladder": "gpu"})
    assert summary(account).line() == (
        "time 0.10 s; GPU boards 60.0 J (measured); CPU packages and DRAM 10.0 J (measured); GPU boards: estimated"
        " saving 15.4%, estimated slowdown 1.5% (worst clock 2.0%); not known: the rest of the node"
    )


def test_a_hot_gpu_is_walked_down_a_rung_a_second_and_back_when_cool():
    node = layout(n_gpus=1)
    params = ThermalParams(limit_c=70.0)
    state = THERMAL.initial(params, node)
    seen = []
    for temperature_c in (75.0,) * 25 + (69.0,) * 20 + (60.0,) * 30:
        state, limit = THERMAL.decide(params, node, state, sample(node, 0.1, temperature_c=temperature_c))
        seen.append(int(limit.target[0]))
    assert seen[0] == CLOCKS_MHZ[-2]
    assert seen[24] == CLOCKS_MHZ[-4]
    assert seen[44] == CLOCKS_MHZ[-4], "between limit and hysteresis nothing moves"
    assert seen[-1] == 0, "cool for long enough: no limit"


def test_a_gpu_whose_temperature_is_missing_keeps_its_limit():
    node = layout(n_gpus=1)
    params = ThermalParams(limit_c=70.0)
    state, _ = THERMAL.decide(params, node, THERMAL.initial(params, node), sample(node, 1.0, temperature_c=80.0))
    for _ in range(30):
        state, limit = THERMAL.decide(params, node, state, sample(node, 1.0, temperature_c=np.nan))
    assert limit.target.tolist() == [CLOCKS_MHZ[-2]]
