"""Which share of a node's TDP the jobs of each tag need, so that a cap at that share costs them little.

A kernel has the tag that its measured loss gives it, by the marks of the agent's own load tag. It needs the watts that
the packages draw at the lowest clock at which it loses no more than ``MOST_LOSS``; a tag needs what its most demanding
kernel does, the upper end of the interval counting, and never less than a less sensitive tag. The rest of the node is
declared once for all jobs, so it is the most that the meter showed beyond the packages. TDP is the most that they and
the rest drew together. These are the percentages that the sharer ``aapc`` takes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from calibration.table.pstate_table import Point
from nodectl.decide.load_tag import BETA

LEVEL: Final = "all"
TAGS: Final = ("memory", "mixed", "compute")

MOST_LOSS: Final = 0.05
"""Ours: what a job may lose by the cap of its tag; ``aapc`` caps COMPUTE jobs last since they lose most."""


def tag_shares(points: Sequence[Point], has_meter: bool) -> dict[str, float]:
    """By tag, per cent of TDP; without the tags that no kernel has. Of packages alone without a meter."""
    own = [one for one in points if one.level == LEVEL]
    if not own:
        return {}
    rest_w = max(one.node_w - one.package_w for one in own) if has_meter else 0.0
    tdp_w = max(one.package_w for one in own) + rest_w
    needs = dict.fromkeys(TAGS, 0.0)
    for kernel in dict.fromkeys(one.kernel for one in own):
        curve = [one for one in own if one.kernel == kernel]
        tag = tag_of(clock_share(curve))
        needs[tag] = max(needs[tag], _needed_w(curve) + rest_w)
    found, least_w = {}, 0.0
    for tag in TAGS:
        if needs[tag]:
            least_w = max(least_w, needs[tag])
            found[tag] = math.ceil(10 * min(100 * least_w / tdp_w, 100.0)) / 10
    return found


def clock_share(curve: Sequence[Point]) -> float:
    """The share of a kernel's time that follows the clock, from the lowest to the highest."""
    low, top = curve[0], curve[-1]
    return (top.speed / low.speed - 1.0) / max(top.clock_khz / low.clock_khz - 1.0, 1e-9)


def tag_of(beta: float) -> str:
    """The tag of work with this share."""
    return TAGS[0] if beta <= BETA[0] else TAGS[2] if beta >= BETA[1] else TAGS[1]


def _needed_w(curve: Sequence[Point]) -> float:
    return min(
        one.package_w + (one.package_half if math.isfinite(one.package_half) else 0.0)
        for one in curve
        if curve[-1].speed / one.speed - 1.0 <= MOST_LOSS
    )
