"""REGALE's daemon: two clocks on one threshold (D2.3 §3.4)."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from nodectl.policies import bdpo_gpu
from nodectl.policies.bdpo_gpu import BUSY, IDLE, MISSING, Params
from pmu.readings import type_i64
from tests.policies.gpu_nodes import layout, sample

LOW, HIGH = 1005, 1410  # D2.3 §3.4, A100-80


def ask(occupancy: list[float], params: Params | None = None) -> tuple[type_i64, list[int]]:
    node = layout(len(occupancy))
    params = params or Params()
    state = bdpo_gpu.initial(params, node)
    _, request = bdpo_gpu.decide(params, node, state, sample(node, sm_occupancy=occupancy))
    return request.target, request.reason.tolist()


def test_an_a100_gets_the_two_clocks_of_the_report() -> None:
    target, reason = ask([0.05, 0.50])
    assert target.tolist() == [LOW, HIGH]
    assert reason == [IDLE, BUSY]


def test_exactly_ten_percent_is_not_under_ten_percent() -> None:
    target, _ = ask([0.10, np.nextafter(0.10, 0.0)])
    assert target.tolist() == [HIGH, LOW]


def test_a_missing_occupancy_never_lowers_the_clock() -> None:
    target, reason = ask([np.nan])
    assert target.tolist() == [HIGH]
    assert reason == [MISSING]


def test_the_daemon_has_no_memory_and_no_dwell() -> None:
    node, params = layout(), Params()
    state = bdpo_gpu.initial(params, node)
    seen = []
    for occupancy in (0.5, 0.0, 0.5, 0.0):
        state, request = bdpo_gpu.decide(params, node, state, sample(node, sm_occupancy=occupancy))
        seen.append(int(request.target[0]))
    assert seen == [HIGH, LOW, HIGH, LOW]


def test_other_cards_get_the_same_share_of_their_highest_clock() -> None:
    clocks = tuple(range(210, 1981, 15))  # an H100
    low, high = bdpo_gpu.clocks(Params(), layout(clocks=clocks).gpus[0])
    assert high == 1980
    assert low in clocks
    assert low / high == pytest.approx(LOW / HIGH, abs=0.005)


def test_a_card_that_names_no_clocks_is_left_alone() -> None:
    node = layout(clocks=())
    _, request = bdpo_gpu.decide(Params(), node, bdpo_gpu.initial(Params(), node), sample(node))
    assert request.target.tolist() == [0]


def test_low_above_high_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="low_mhz must not be above high_mhz"):
        msgspec.convert({"low_mhz": 1410, "high_mhz": 1005}, Params)
