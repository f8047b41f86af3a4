"""How a cap in watts reaches the agent, and the form in which one tick decides with it.

A ``CapSource`` (the administrator's settings, or a cluster's grants) is called once per tick and returns the cap on the
whole node, or None. The power outside the processor packages (board, fans, GPUs; ``caps.rest_w``) is subtracted as a
constant, and the packages get the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

CAP_ROW: Final = "node/cap_mw"
"""The row of ``Decisions`` for the packages' cap, and the name by which the settings delegate it to a controller."""


class CapRequest(msgspec.Struct, frozen=True):
    """A cap on the mean power of the whole node, and who requests it (shown to people)."""

    node_w: float
    source: str = "the settings"


class CapSource(Protocol):
    """Where a cap on this node comes from."""

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
    """The input of one tick's decisions in addition to the sample, and therefore a part of the journal.

    ``packages_mw``: the cap of all processor packages together, 0 for no cap. ``is_local``: this node must enforce it
    by itself, with clocks and RAPL limits; otherwise a controller enforces it and confirms that it is in force.
    """

    packages_mw: int = 0
    is_local: bool = True


NO_CAP: Final = PackageCap()


@dataclass(frozen=True, slots=True)
class CapLease:
    """From ``end_ns`` on, by the clock ``now_ns``, the controller caps the packages at ``cap_mw``."""

    end_ns: int
    cap_mw: int
    now_ns: Callable[[], int]


def packages_mw(request: CapRequest | None, rest_w: float) -> int:
    """The cap that is left for the packages, rounded down; at least 1 mW, since 0 would mean no cap."""
    if request is None:
        return 0
    return max(int((request.node_w - rest_w) * 1000 + 1e-6), 1)
