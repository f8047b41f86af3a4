"""What must outlive the cluster agent for the budget to hold: the epoch, and the most each node may draw.

A raise is in the store before it is on the wire. A store belongs to one cluster agent at a time, the one that holds
the newest epoch; an older one that still runs finds its commits refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np

from cluster_agent.budget.accounts import Ints
from cluster_agent.errors import ClusterError
from nodectl.wire.power_messages import Declaration

NOTHING: Final[Ints] = np.zeros(0, np.int64)


class DeposedError(ClusterError):
    """Another cluster agent has taken the epoch: this one must not send grants any more. Exit status 2, on which a
    service manager leaves it alone (``clusterctl.service``): started anew it would take the epoch back, and so on."""

    exit_status = 2


@dataclass(slots=True)
class Snapshot:
    """What was stored when the store was taken over, under an epoch that is new since.

    Nodes by place: the most that each may draw by what has been granted, -1 if it has never been granted anything
    (only then it does not fall to its safe cap by itself). ``is_certain``: nothing that was committed can have been
    lost since, that is, the machine that wrote it has not gone down.
    """

    epoch: int
    names: list[str] = field(default_factory=list)
    declarations: list[Declaration] = field(default_factory=list)
    counts_mw: Ints = field(default_factory=lambda: NOTHING)
    is_certain: bool = True


class LedgerStore(Protocol):
    """Durable and checked. Every method raises ``ClusterError`` when it cannot do its work, and then did nothing."""

    def take_over(self, at_least: int = 0) -> Snapshot:
        """Become the owner, in one step: a new epoch, above all before it and not below ``at_least``, and all that is
        stored. From then on nobody else can commit."""
        ...

    def commit(self, epoch: int, nodes: Mapping[int, tuple[str, Declaration]], changed: Ints, counts_mw: Ints) -> None:
        """Put on the disk who is at these places, and the counts of those that changed; ``counts_mw`` are all of them.

        ``DeposedError`` if ``epoch`` is not the newest. Nothing to put only checks that."""
        ...
