"""Memory bandwidth shared by cores, slowly and obviously: the law at the head of ``twin/csrc/model_bandwidth.c``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Thread(NamedTuple):
    """A running thread: GB/s that it takes alone, the share of its time in which it waits for them, its core."""

    gbs: float
    waiting: float
    core: int


def paces(
    threads: Sequence[Thread],
    *,
    core_gbs: float,
    package_gbs: float,
    link_cores: int = 0,
    link_gbs: float = 0.0,
    link_loss: float = 0.0,
) -> list[float]:
    """Each thread's speed over that with the memory to itself, in one package."""
    waiting = [min(max(thread.waiting, thread.gbs / core_gbs), 1.0) for thread in threads]
    stretch = [1.0] * len(threads)

    def traffic(members: Sequence[int], least: float) -> float:
        return sum(threads[i].gbs / (1 - waiting[i] + max(stretch[i], least) * waiting[i]) for i in members)

    def fit(members: Sequence[int], capacity: float) -> None:
        low, high = 1.0, 1e6
        if not members or traffic(members, low) <= capacity:
            return
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (middle, high) if traffic(members, middle) > capacity else (low, middle)
        for i in members:
            stretch[i] = max(stretch[i], high)

    for core in {thread.core for thread in threads}:
        fit([i for i, thread in enumerate(threads) if thread.core == core], core_gbs)
    if link_cores:
        for link in {thread.core // link_cores for thread in threads}:
            members = [i for i, thread in enumerate(threads) if thread.core // link_cores == link]
            worth = sum(min(threads[i].gbs, core_gbs) for i in members) / core_gbs
            fit(members, link_gbs * max(1 - link_loss * max(worth - 1, 0), 0.5))
    fit(list(range(len(threads))), package_gbs)
    return [1 / (1 - w + s * w) for w, s in zip(waiting, stretch, strict=True)]
