"""How policies choose among the configurations of a job.

*choose* says at every pass in which configuration a waiting job should run, and the job starts if that one can start
now. The head of the queue, when it cannot, gets a reservation of nodes *and* watts at the earliest time at which both
suffice; jobs behind it may start if they end before, or leave it its nodes and its watts (EASY, Lifka 1995, in two
dimensions: RMAP's text has nodes only).

The choices of the policies that ship are native (``csrc/resources/choices.c``); one of a policy that was added is
called by the engine, job by job. Watts are added up as whole microwatts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from cluster_agent.scheduler.configurations.table import Configuration


class ChoiceInput(msgspec.Struct, frozen=True):
    """What *choose* gets of one waiting job and of the cluster."""

    now_s: int
    rows: Sequence[Configuration]
    nodes: int  # that the job requests
    request_s: int
    cluster_nodes: int
    cluster_w: float
    free_nodes: int
    free_w: float
    earliest_s: Callable[[Configuration], int | None]
    """When a row could start if no other job waited; None: never."""


Choose: TypeAlias = Callable[[ChoiceInput], Configuration | None]
"""The configuration in which the job is to run, now or when there is room; None: no configuration."""


class Rule(NamedTuple):
    """A choice that is native, with the parameters of its policy."""

    name: Literal["traditional", "naive", "adaptive", "stock", "cores-endtime", "energy"]
    th: float = 0.0
    near: float = 0.0
    priority: float = 1.0
    slowdown: float = 1.0


def length_s(row: Configuration) -> int:
    """The engine counts whole seconds."""
    return max(ceil(row.time_s - 1e-9), 1)
