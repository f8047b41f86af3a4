"""Which GPUs move together.

The GPUs of a parallel job wait for each other. If each explored other clocks at other times, the job would lose the sum
of all. So GPUs of one model start as one group with one clock, which learns from their mean readings; that also
averages their noise. A GPU whose power or traffic at the same clock differs for some seconds runs something else: it
joins a group that it resembles, or becomes a group of its own with a copy of what is known. When nothing has run on any
GPU for a while, the job has ended, and all are one group again.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from nodectl.policies.parts.gpu_state import State, writable
from pmu.readings import type_f64, type_i64

WATTS, TRAFFIC = range(2)  # columns of State.alike

MEMORY_S: Final = 3.0
"""Ours: the readings that decide about groups are averaged over this, longer than the GPUs of a job differ at its
barriers."""

POWER_APART: Final = 0.20
"""Ours: relative difference of power; chips of one model differ by less under the same load."""

TRAFFIC_APART: Final = 0.12
"""Ours: difference of memory activity, which is 0 to 1."""

IDLE: Final = 0.005
REGROUP_S: Final = 2.0
"""Ours: so long must all GPUs have been idle before all are one group again."""

PER_GROUP: Final = (
    "table",
    "facts",
    "phase",
    "level",
    "reason",
    "blocks",
    "sums",
    "last",
    "last_level",
    "moved_s",
    "since_s",
    "power_w",
    "range_w",
    "odd",
    "doubted",
    "limbo_s",
    "forgotten_s",
    "shift",
    "is_apart",
    "share",
    "settled",
    "after",
    "came_from",
)
"""Fields of ``State`` with a row per group; a new group begins with a copy of the row of its old one. Some may be
None."""


def regroup(
    state: State,
    kind: type_i64,
    watts: type_f64,
    traffic: type_f64,
    utilization: type_f64,
    is_there: npt.NDArray[np.bool_],
    pulse_s: float,
) -> tuple[State, type_f64, type_f64]:
    """Move GPUs that no longer resemble their leader; returns the state, and the next ``alike`` and ``idle_s``."""
    if len(kind) == 1:
        return state, state.alike, state.idle_s
    now = np.array([watts, traffic]).T
    before = np.where(np.isnan(state.alike), now, state.alike)
    alike = np.where(is_there[:, None], before + (1.0 - math.exp(-pulse_s / MEMORY_S)) * (now - before), np.nan)
    idle_s = np.where(is_there & (utilization > IDLE), 0.0, state.idle_s + pulse_s)
    if idle_s.min() >= REGROUP_S:
        if not np.array_equal(state.leader, kind):
            state = replace(state, leader=kind.copy())
    elif state.time_s > MEMORY_S:
        apart = is_there & _differ(alike, state.leader)
        if apart.any():
            state = _move(state, kind, alike, apart)
    return state, alike, idle_s


def _differ(alike: type_f64, other: type_i64) -> npt.NDArray[np.bool_]:
    most = np.maximum(alike[:, WATTS], alike[other, WATTS])
    return np.asarray(
        (abs(alike[:, WATTS] - alike[other, WATTS]) > POWER_APART * most)
        | (abs(alike[:, TRAFFIC] - alike[other, TRAFFIC]) > TRAFFIC_APART)
    )


def _move(state: State, kind: type_i64, alike: type_f64, apart: npt.NDArray[np.bool_]) -> State:
    state = writable(state)
    for index in np.flatnonzero(apart).tolist():
        old = int(state.leader[index])
        for lead in sorted(set(state.leader.tolist())):
            is_possible = lead != old and kind[lead] == kind[index] and state.level[lead] == state.level[old]
            if is_possible and not _differ(alike, np.full(len(kind), lead))[index]:
                state.leader[index] = lead
                break
        else:
            state.leader[index] = index
            for name in PER_GROUP:
                rows = getattr(state, name)
                if rows is not None:
                    rows[index] = rows[old]
    return state
