"""Who shares with whom: the exact matching of most weight among the jobs of a window.

Let ``best[M]`` be the most that the jobs of set M can save. The last job of M is alone, or it has one of the others as
its partner: ``best[M] = max(best[M - last], max over j of saved[last, j] + best[M - last - j])``. Sets are the bits of
a number, so that all sets with the same last job are one stretch of the array, and those with j in it every second
block of 2^j: each step is one operation of NumPy. O(W^2 2^W), some 10 ms for 16 jobs, without a dependency. Edmonds'
blossoms are O(W^3), but pay off for longer windows alone; and sets of three or four jobs, which no blossom finds, would
be one more loop here.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from cluster_agent.errors import WrongUseError

Float64s = npt.NDArray[np.float64]

MOST_JOBS: Final = 16
"""Ours: of a window; 2^16 sets."""


def matched(saved: Float64s) -> npt.NDArray[np.int64]:
    """The partner of each job, (..., W), by its position in the window; its own where it runs alone.

    ``saved``: (..., W, W), symmetric, what a pair saves, in any unit; 0 or less: they do not share. Where matchings are
    equal, jobs run alone rather than share, and with earlier partners rather than later ones.
    """
    jobs = saved.shape[-1]
    if jobs > MOST_JOBS:
        raise WrongUseError(f"a window of {jobs} jobs: at most {MOST_JOBS} are matched at once")
    windows = saved.reshape(-1, jobs, jobs)
    best = _best(windows)
    rows, left = np.arange(len(windows)), np.full(len(windows), (1 << jobs) - 1)
    partners = np.tile(np.arange(jobs), (len(windows), 1))
    for last in reversed(range(jobs)):
        is_left = (left >> last) & 1 == 1
        rest = left & ~(1 << last)
        choices = np.full((len(windows), last + 1), -np.inf)
        choices[:, 0] = best[rows, rest]
        for j in range(last):
            there = rest >> j & 1 == 1
            with_j = windows[:, last, j] + best[rows, rest & ~(1 << j)]
            choices[:, j + 1] = np.where(there & (windows[:, last, j] > 0), with_j, -np.inf)
        chosen = choices.argmax(1) - 1
        paired = np.flatnonzero(is_left & (chosen >= 0))
        partners[paired, last], partners[paired, chosen[paired]] = chosen[paired], last
        left = np.where(is_left, rest, left)
        left[paired] &= ~(1 << chosen[paired])
    return partners.reshape(saved.shape[:-1])


def _best(windows: Float64s) -> Float64s:
    """(windows, 2^W): the most that each set of jobs can save."""
    count, jobs = windows.shape[:2]
    best = np.zeros((count, 1 << jobs))
    for last in range(jobs):
        without, with_last = best[:, : 1 << last], best[:, 1 << last : 2 << last]
        with_last[:] = without
        for j in range(last):
            blocks = (count, 1 << (last - 1 - j), 2, 1 << j)  # of 2^j sets: without j, with j, ...
            pair = without.reshape(blocks)[:, :, 0] + windows[:, last, j, None, None]
            has_j = with_last.reshape(blocks)[:, :, 1]
            np.maximum(has_j, pair, out=has_j)
    return best
