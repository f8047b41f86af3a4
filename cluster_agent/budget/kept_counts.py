"""What must outlive the cluster agent for the budget to be kept: the epoch, and the most each node may draw.

A raise is committed to the store before it is sent. A store belongs to one cluster agent at a time, the one with the
newest epoch; the commits of an older one that still runs are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np

from cluster_agent.budget.accounts import Ints
from cluster_agent.errors import ClusterError
from foundation.wire.power_messages import Declaration

NOTHING: Final[Ints] = np.zeros(0, np.int64)


class DeposedError(ClusterError):
    """Another cluster agent has taken over: this one must not send grants any more. Exit status 2, on which the service
    manager does not restart it (``clusterctl.service``): a restart would take the store back, and the two would take
    turns."""

    exit_status = 2


@dataclass(frozen=True, slots=True)
class Change:
    """One change by a person or a feed, of the budget or of what it rests on."""

    unix_s: float
    who: str
    what: str


@dataclass(slots=True)
class Snapshot:
    """What was stored when the store was taken over; the epoch is the new one.

    Nodes by place: the most that each may draw by its grants, -1 if it has never been granted anything (such a node
    does not fall to its safe cap by itself). ``is_certain``: no commit can have been lost since, that is, the machine
    that wrote it has not gone down.
    """

    epoch: int
    names: list[str] = field(default_factory=list)
    declarations: list[Declaration] = field(default_factory=list)
    counts_mw: Ints = field(default_factory=lambda: NOTHING)
    is_certain: bool = True


class LedgerStore(Protocol):
    """Durable and checked. A method that cannot do its work raises ``ClusterError`` and changes nothing."""

    def take_over(self, at_least: int = 0) -> Snapshot:
        """Become the owner, in one step: return a new epoch, above all before it and at least ``at_least``, and all
        that is stored. From then on nobody else can commit."""
        ...

    def commit(
        self, epoch: int, nodes: Mapping[int, tuple[str, Declaration]], changed: Ints, counts_mw: Ints,
        change: Change | None = None,
    ) -> None:  # fmt: skip
        """Store the names and declarations of these places, and the counts of those that changed (``counts_mw``: of all
        places), and with them who changed that, if a person did. Returns once it is on the disk.

        ``DeposedError`` if ``epoch`` is not the newest. With nothing to store it only checks that."""
        ...

    def trouble(self, is_trial: bool = False) -> str:
        """Why nothing can be stored, "" if it can, as far as is known; ``is_trial``: try it now."""
        ...
