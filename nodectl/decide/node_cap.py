"""How a cap in watts reaches the agent, and what it is to the decisions of one tick.

Whoever answers for watts, the administrator's settings today and a cluster's grants later, is a ``CapSource``: it is
asked once per tick and gives the cap on the whole node, or None. What the node draws outside its processor packages
(board, fans, GPUs; ``caps.rest_w``) comes off first, constant, and the packages get what is left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

CAP_ROW: Final = "node/cap_mw"
"""The row of ``Decisions`` for the packages' share, and the name under which the settings give it to a controller."""


class CapRequest(msgspec.Struct, frozen=True):
    """A cap on the mean power of the whole node, and who asks for it (shown to people)."""

    node_w: float
    source: str = "the settings"


class CapSource(Protocol):
    """Whoever may cap this node."""

    def request(self, now_ns: int) -> CapRequest | None:
        """The cap at an instant of the node's monotonic clock; None for none. Must not block."""


@dataclass(frozen=True, slots=True)
class FixedCap:
    """The cap that the settings or ``--cap-w`` give."""

    node_w: float

    def request(self, now_ns: int) -> CapRequest | None:
        """The same at all times; 0 is no cap."""
        return CapRequest(self.node_w) if self.node_w > 0 else None


@dataclass(frozen=True, slots=True)
class PackageCap:
    """What one tick's decisions rest on beside the sample, and therefore a part of the journal.

    ``packages_mw``: the share of all processor packages together, 0 for no cap. ``is_local``: this node must hold it by
    itself, with clocks and RAPL limits; otherwise a controller has it and says that it is in force.
    """

    packages_mw: int = 0
    is_local: bool = True


NO_CAP: Final = PackageCap()


@dataclass(frozen=True, slots=True)
class CapLease:
    """From ``end_ns`` of the clock ``now_ns`` on a package has ``cap_mw`` at most, which its controller sees to."""

    end_ns: int
    cap_mw: int
    now_ns: Callable[[], int]


def packages_mw(request: CapRequest | None, rest_w: float) -> int:
    """What the cap leaves to the packages, rounded down; at least 1 mW, since 0 would mean no cap."""
    if request is None:
        return 0
    return max(int((request.node_w - rest_w) * 1000 + 1e-6), 1)
