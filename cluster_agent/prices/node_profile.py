"""How many nodes stay on in each hour of a day, as a share of those that are unused (Bridi, PhD thesis, Bologna 2018,
ch. 7). What the forecast is, ``node_forecast`` says.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from cluster_agent.prices.profit_days import DAY_S, Carried, Work

HOUR_S: Final = 3600
HOURS: Final = 24
FULL: Final = 0.84
"""Above this utilisation nothing goes off (thesis, ch. 7)."""


def extraction(before: Sequence[float], forecast: Sequence[float], offset: float) -> list[float]:
    """The share of nodes that stay on in each hour of a day, from the utilisation of each hour of the day before, and
    of the forecast. ``offset``: the share of unused nodes that stay on. As printed: if the day before was used above
    84 %, everything stays on; else everything does in each hour that such 24 hours precede."""
    if sum(before) / HOURS > FULL:
        return [1.0] * HOURS
    series = [*before, *forecast]
    used = [sum(series[hour : hour + HOURS]) / HOURS for hour in range(HOURS)]
    return [1.0 if one > FULL else one + (1 - one) * offset for one in used]


def used_by_hour(work: Work, carried: Carried, day: int) -> list[float]:
    """The share of the cores that jobs use in each hour of the day."""
    starts = carried.start_s < np.iinfo(np.int64).max
    edges = day * DAY_S + HOUR_S * np.arange(HOURS + 1)
    gone_s = np.clip(edges[:, None] - carried.start_s[starts], 0, work.jobs.run_s[starts])
    core_s = np.diff(gone_s @ work.jobs.width[starts].astype(np.int64))
    used: list[float] = (core_s / (HOUR_S * work.nodes.has[:, 0].sum())).tolist()
    return used


def whole_nodes(shares: Sequence[float], nodes: int) -> list[int]:
    """At least so many."""
    return [math.ceil(share * nodes - 1e-9) for share in shares]
