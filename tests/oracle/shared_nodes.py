"""How fast jobs on shared nodes run, second by second as it is defined: the native engine's ends are tested against it
(``csrc/resources/sharing.c``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil

import numpy as np
import numpy.typing as npt

Nodes = Mapping[int, int]
"""The nodes of a job, and how many of their two shares it has."""


def ends(
    start_s: Sequence[int],
    run_s: Sequence[int],
    on: Sequence[Nodes],
    kind: Sequence[int],
    speed: npt.NDArray[np.float64],
) -> list[int]:
    """When each job ends that starts then on these nodes. ``speed[kind, partner]``, in the last column next to nobody.
    All speeds are worked out again at each start and each end."""
    done, end_s, now = [0.0] * len(run_s), [-1] * len(run_s), min(start_s)
    while True:
        running = [job for job in range(len(run_s)) if start_s[job] <= now and end_s[job] < 0]
        pace = {job: slowest(job, running, on, kind, speed) for job in running}
        # a job that is done at a change of its partners is seen at the next second
        ending = [now + max(ceil((run_s[job] - done[job]) / pace[job] - 1e-9), 1) for job in running]
        then = min([*ending, *(at for at in start_s if at > now)], default=None)
        if then is None:
            return end_s
        for job, at in zip(running, ending, strict=True):
            done[job] += (then - now) * pace[job]
            if at == then:
                end_s[job] = then
        now = then


def slowest(
    job: int, running: Sequence[int], on: Sequence[Nodes], kind: Sequence[int], speed: npt.NDArray[np.float64]
) -> float:
    """The job's speed on its slowest node."""
    found = []
    for node, shares in on[job].items():
        others = [other for other in running if other != job and node in on[other]]
        assert sum(on[other][node] for other in others) + shares <= 2
        found.append(1.0 if shares == 2 else speed[kind[job], kind[others[0]] if others else -1])
    return float(min(found))
