"""A clock for each phase that a program announces (REGALE D2.3 §3.5)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nodectl.policies import phase_levels
from nodectl.policies.phase_levels import GIVEN, NO_HINT, OTHER, Params
from nodectl.policies.registry import PolicyError, check
from pmu.readings import NO_HINTS, Hint, HintSample, Quality
from tests.policies.cpu_nodes import MAX_KHZ, MIN_KHZ, layout, sample


def ask(levels: str, hints: HintSample) -> tuple[set[int], set[int]]:
    node, params = layout(4), Params(levels)
    seen = replace(sample(node, np.full(4, float(MAX_KHZ)), 0.5), hints=hints)
    _, request = phase_levels.decide(params, node, phase_levels.initial(params, node), seen)
    return set(request.target.tolist()), set(request.reason.tolist())


def phase(number: int) -> HintSample:
    return HintSample(Hint.NONE, number, 0, 0, 1, 0, Quality.MEASURED)


def test_each_phase_has_the_lowest_clock_of_at_least_its_share() -> None:
    levels = "1:1/3:0.5/4294967295:0.01"
    assert ask(levels, phase(3)) == ({MAX_KHZ // 2}, {GIVEN})
    assert ask(levels, phase(4294967295)) == ({MIN_KHZ}, {GIVEN})
    assert ask(levels, phase(1)) == ({0}, {GIVEN}), "the highest is no request"
    assert ask(levels, phase(2)) == ask(levels, phase(0)) == ask("", phase(3)) == ({0}, {OTHER})
    assert ask(levels, NO_HINTS) == ask(levels, replace(phase(3), quality=Quality.CLIPPED)) == ({0}, {NO_HINT})


@pytest.mark.parametrize("levels", ["3", "0:0.5", "-1:0.5", "3:0", "3:1.1", "3:nan", "x:0.5", "3:0.5/", "4294967296:1"])
def test_what_is_no_level_is_one_line_when_the_run_is_asked_for(levels: str) -> None:
    with pytest.raises(PolicyError, match=r"^phase-levels: levels: '.*' is no phase \(1, 2, \.\.\.\) with a share"):
        check("phase-levels", "cpu", {"levels": levels})
