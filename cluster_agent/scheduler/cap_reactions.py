"""Reactions to a power cap that slow the jobs of volunteers and kill only what is left over (REGALE D2.3 §4.1).

The report says what happens when a cap begins or drops: the nodes of EcoJobs go to their lowest frequency; if that is
not enough, jobs are killed, those of no volunteer first, the newest first; then frequencies rise again until the cap is
just met. The same procedure is right at every other event: a cap that rises kills nobody and speeds jobs up, one that
ends brings the highest frequency back.

All EcoJobs get the same frequency. The report leaves open whether all lose the same share or in proportion to their
power. On nodes of one kind both are the same: a frequency takes the same share of what each draws above idle.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from cluster_agent.scheduler.job_columns import Bools, Int32s, Int64s
from cluster_agent.scheduler.power_phases import React, Reaction, Running, Situation

Victim: TypeAlias = Literal["newest-start", "newest-submit", "least-lost"]
"""Who is killed first. ``least-lost`` (ours): who has done the fewest processor-seconds."""

Raise: TypeAlias = Literal["singly", "together"]
"""The last step up to the cap: ``together``, the highest frequency that all can have; ``singly``, then jobs one more
step each, the oldest first, as long as it fits: the cap is "just met"."""


def kills(victim: Victim) -> React:
    """FCFS_killer: while the cluster draws more than the cap, end the next victim."""

    def react(situation: Situation) -> Reaction:
        """Only kills; slows no job."""
        running = situation.running
        none = np.zeros(len(running.job), np.bool_)
        saved_w = running.watts - watts_at(situation, np.full(len(running.job), -1, np.int32))
        return Reaction(kill=running.job[victims(situation, victim, none, saved_w, situation.watts)].tolist())

    return react


def slows(raised: Raise) -> React:
    """Floor, then raise, as ``slows_then_kills``; nobody is killed, whatever the cap."""
    return slows_then_kills(None, raised)


def slows_then_kills(victim: Victim | None, raised: Raise) -> React:
    """FCFS_eco_mode: floor, kill, raise. EcoJobs are those that may be given more than one frequency."""

    def react(situation: Situation) -> Reaction:
        """The levels that change, and the jobs to kill."""
        running = situation.running
        is_eco: Bools = running.lowest > 0
        floor_w = watts_at(situation, running.lowest)
        drawn_w = situation.watts + float((floor_w - running.watts).sum())
        saved_w = floor_w - watts_at(situation, np.full(len(running.job), -1, np.int32))
        killed = np.zeros(0, np.int64)
        if victim is not None:
            killed = victims(situation, victim, is_eco, saved_w, drawn_w)
        stays = np.ones(len(running.job), np.bool_)
        stays[killed] = False
        drawn_w -= float(saved_w[killed].sum())
        level = _raised(situation, stays & is_eco, floor_w, drawn_w, raised)
        changed = np.flatnonzero(stays & (level != running.level))
        return Reaction(
            kill=running.job[killed].tolist(),
            level=dict(zip(running.job[changed].tolist(), level[changed].tolist(), strict=True)),
        )

    return react


def victims(
    situation: Situation, victim: Victim, is_eco: Bools, saved_w: npt.NDArray[np.float64], drawn_w: float
) -> Int64s:
    """Positions in order of killing, as few as the cap needs. ``is_eco``: who comes last; ``saved_w``: what each one's
    end saves; ``drawn_w``: what the cluster draws before."""
    order = np.lexsort((*_keys(situation.running, victim, situation.now_s), is_eco))
    left_w = drawn_w - np.concatenate(([0.0], np.cumsum(saved_w[order])))
    fits = np.flatnonzero(left_w <= situation.cap_watts + TOLERANCE_W)
    return order[: int(fits[0]) if len(fits) else len(order)]


def _keys(running: Running, victim: Victim, now_s: int) -> tuple[Int64s, ...]:
    """Sort keys, the most important last; jobs are numbered in order of submission."""
    newest = -np.arange(len(running.job))
    if victim == "newest-submit":
        return (-running.job.astype(np.int64),)
    if victim == "least-lost":
        return (newest, (now_s - running.start_s) * running.width)
    return (newest,)


def _raised(
    situation: Situation, is_raised: Bools, floor_w: npt.NDArray[np.float64], drawn_w: float, raised: Raise
) -> Int32s:
    running = situation.running
    level = running.lowest.copy()
    cap_w = situation.cap_watts + TOLERANCE_W - _rounding_w(situation)
    for common in range(int(running.lowest.max(initial=0)) + 1):
        tried = np.where(is_raised, np.minimum(running.lowest, common), running.lowest).astype(np.int32)
        watts = watts_at(situation, tried)
        more_w = float((watts - floor_w)[is_raised].sum())
        if drawn_w + more_w <= cap_w:
            level, drawn_w = tried, drawn_w + more_w
            break
    if raised == "singly":
        more = watts_at(situation, np.maximum(level - 1, 0).astype(np.int32)) - watts_at(situation, level)
        for i in np.flatnonzero(is_raised & (level > 0)):
            if drawn_w + more[i] <= cap_w:
                level[i] -= 1
                drawn_w += float(more[i])
    return level


def _rounding_w(situation: Situation) -> float:
    """By how much the watts of other frequencies may be too low, where jobs have watts of their own: the engine counts
    each processor in whole microwatts, and what is raised starts from these."""
    running, levels = situation.running, range(len(situation.machine.node.frequency_mhz))
    nameplate_w = np.array([situation.watts_at(1, at) for at in levels])[running.level] * running.width
    is_own = np.abs(running.watts - nameplate_w) > TOLERANCE_W
    return float(running.width[is_own].sum()) * len(levels) * 1e-6


TOLERANCE_W = 1e-7
"""Less than the microwatt in which the engine counts, so that no job is killed for the rounding of sums."""


def watts_at(situation: Situation, level: Int32s) -> npt.NDArray[np.float64]:
    """What each running job would draw at these levels, idle share included; level -1: its processors without it."""
    running = situation.running
    levels = len(situation.machine.node.frequency_mhz)
    idle_w = situation.watts_at(1, -1)
    extra_w = np.array([situation.watts_at(1, at) - idle_w for at in range(levels)] + [0.0])
    idle = running.width * idle_w
    found: npt.NDArray[np.float64] = idle + (running.watts - idle) * extra_w[level] / extra_w[running.level]
    return found
