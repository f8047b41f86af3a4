"""REGALE's interception prototype, decided by the agent from hints (D2.3 §3.4)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nodectl.policies import gpu_events
from nodectl.policies.gpu_events import BUSY, COPY, KERNEL, NO_HINT, Params
from pmu.readings import NO_HINTS, Hint, HintSample, Quality
from tests.policies.gpu_nodes import layout, sample

LOW, HIGH = 1005, 1410  # D2.3 §3.4, A100-80


def hinted(last: Hint, quality: Quality = Quality.MEASURED) -> HintSample:
    return HintSample(last, 0, 1, 1, 0, 0, quality)


def ask(hints: HintSample, *occupancy: float) -> tuple[list[int], list[int]]:
    node, params = layout(len(occupancy)), Params()
    seen = replace(sample(node, sm_occupancy=list(occupancy)), hints=hints)
    _, request = gpu_events.decide(params, node, gpu_events.initial(params, node), seen)
    return request.target.tolist(), request.reason.tolist()


def test_a_big_copy_lowers_the_clock_of_the_cards_that_are_not_busy() -> None:
    assert ask(hinted(Hint.COPY), 0.05, 0.5, np.nan, 0.1) == ([LOW, HIGH, HIGH, HIGH], [COPY, BUSY, BUSY, BUSY])


def test_a_kernel_raises_it_at_once_whatever_the_occupancy_of_the_interval_before() -> None:
    assert ask(hinted(Hint.KERNEL), 0.0) == ([HIGH], [KERNEL])


@pytest.mark.parametrize("hints", [NO_HINTS, hinted(Hint.NONE), hinted(Hint.COPY, Quality.CLIPPED)])
def test_without_a_hint_that_is_believed_no_clock_is_lowered(hints: HintSample) -> None:
    assert ask(hints, 0.0) == ([HIGH], [NO_HINT])


def test_a_node_without_gpus_asks_for_nothing() -> None:
    assert ask(hinted(Hint.COPY)) == ([], [])
