"""What must outlive the cluster agent for the budget to hold: the epoch, and the most each node may draw.

A raise is in the store before it is on the wire. A store belongs to one cluster agent at a time, the one that holds
the newest epoch; an older one that still runs finds its commits refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from cluster_agent.errors import ClusterError
from nodectl.wire import Declaration


class DeposedError(ClusterError):
    """Another cluster agent has taken the epoch: this one must not send grants any more."""


@dataclass(slots=True)
class Stored:
    """A node as stored: the most it may draw by what has been granted, what it declared, and whether it has ever been
    granted anything (only then it falls to its safe cap by itself)."""

    count_mw: int
    declaration: Declaration
    is_leased: bool


@dataclass(slots=True)
class Snapshot:
    """The store as found at a start. ``is_certain``: nothing that was committed can have been lost since, that is, the
    machine that wrote it has not gone down."""

    epoch: int = 0
    nodes: dict[str, Stored] = field(default_factory=dict)
    is_certain: bool = True


class LedgerStore(Protocol):
    """Durable and checked. Every method raises ``ClusterError`` when it cannot do its work, and then did nothing."""

    def take_epoch(self, at_least: int = 0) -> int:
        """Become the owner: the new epoch, above all before it and not below ``at_least`` (compare-and-set)."""
        ...

    def load(self) -> Snapshot:
        """All that is stored."""
        ...

    def commit(self, epoch: int, nodes: Mapping[str, Stored]) -> None:
        """Put these on the disk; ``DeposedError`` if ``epoch`` is not the newest. Nothing to put only checks that."""
        ...
