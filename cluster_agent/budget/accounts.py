"""The ledger's data: one row per node, stored as columns.

Problem. A change of the budget may move the caps of all nodes at once, up to 100 000 of them. And at every moment the
ledger must know the highest cap that may be in force at each node, whatever messages were lost.

Idea. Every value is a numpy column over all nodes. A node has the same index, its *place*, in all columns, from the
moment it is first named, and it keeps that place. So a rule is one array expression for any number of nodes. The rules
are in ``ledger.py``; this file only stores, except for the open grants:

    open grant   a cap that was sent, was not confirmed, and may still be taken by the node or has been
    count_mw     max(limit_mw, caps of the node's open grants)        mW, the normal case; ledger.py has the others
    budget       sum of count_mw + fixed + reserve <= budget          mW, checked before a raise is sent

Invariant. The newer an open grant of a node is, the lower is its cap, and its deadline is not earlier. For a new grant
closes every older one whose cap is not above its own: the new one is open for at least as long, and whatever confirms
it confirms the older ones too, so the maximum above does not need them. What remains is a descending list, which grows
only while a node is lowered again and again without confirming. ``OPEN`` entries suffice; a fifth is merged with the
lowest, which counts too much rather than too little.

Cost. O(1) to find a node by name, O(OPEN) per node for a grant, amortised O(1) to add a node: columns are views of
arrays with spare room, which at least doubles when it is used up. A node takes 274 bytes of columns. The grants that
follow a change of the budget of 10 000 nodes took 9 ms, against 204 ms with an object per node (``fspc``,
docs/benchmarks-cluster.md).

Powers are mW, times s of this machine's CLOCK_BOOTTIME; -1 means none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias, TypeVar, cast

import numpy as np
import numpy.typing as npt

from foundation.wire.power_messages import Declaration

Ints: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]
Bools: TypeAlias = npt.NDArray[np.bool_]

NONE: Final = -1
UNBOUNDED: Final = np.iinfo(np.int64).max

FORGOTTEN: Final = Declaration(tdp_mw=0, mop_mw=0, safe_mw=0, boot_mw=0, lease_class="sticky")
"""Stored in place of what a node declared that was forgotten: its place stays, and counts nothing."""

OPEN: Final = 4
"""Ours: how many open grants of a node are kept apart. Only a node that is lowered five times in a row and confirms
nothing would need more."""

Kind = TypeVar("Kind", bound=np.generic)


@dataclass(frozen=True, slots=True)
class _Column:
    kind: type[np.generic]
    fill: float
    rows: tuple[int, ...]


def _column(kind: type[Kind], fill: float = 0, rows: tuple[int, ...] = ()) -> npt.NDArray[Kind]:
    """Declares a column of ``Accounts``.

    ``fill``: its value for a new node. ``rows``: shape of the values of one node; empty: a single value.
    """
    return cast("npt.NDArray[Kind]", _Column(kind, fill, rows))


class Account(NamedTuple):
    """One node: a copy of its columns at the time of the look-up."""

    place: int
    name: str
    declaration: Declaration
    boot_id: str
    limit_mw: int
    count_mw: int
    target_mw: int
    wanted_mw: int
    is_leased: bool
    is_heard: bool
    has_confirmed: bool
    is_leaving: bool
    has_left: bool
    is_off: bool


class Accounts(Mapping[str, Account]):
    """All nodes. As a mapping it returns an ``Account`` by name, for callers that need few nodes."""

    # declared by the node
    tdp_mw = _column(np.int64)
    mop_mw = _column(np.int64)
    safe_mw = _column(np.int64)
    boot_mw = _column(np.int64)
    is_sticky = _column(np.bool_)
    after_lease_s = _column(np.float64)
    """How long after the end of its lease a node may still draw more than its safe cap."""
    boot_need_mw = _column(np.int64)
    """Power that the reserve must cover if the node reboots."""

    # caps that may be in force
    limit_mw = _column(np.int64)
    """The highest cap that may be in force apart from the open grants."""
    count_mw = _column(np.int64)
    """What the node counts in the ledger's sum."""
    stored_mw = _column(np.int64, NONE)
    """The count that was last committed to the store; -1: never granted anything."""
    is_leased = _column(np.bool_)
    """Whether it has ever been granted anything. Only such a node falls to its safe cap by itself."""

    # from its reports
    report_id = _column(np.int64, NONE)
    seen_epoch = _column(np.int64, NONE)
    heard_s = _column(np.float64, -math.inf)
    """When its last report arrived; -inf: never."""
    watch_s = _column(np.float64, math.inf)
    """When it becomes silent unless it reports again; inf: never heard, or already handled."""
    has_confirmed = _column(np.bool_)
    """Whether it has confirmed a grant in this boot."""
    useful_mw = _column(np.int64, UNBOUNDED)
    """The highest cap that it can use, as it reports."""
    is_leaving = _column(np.bool_)
    has_left = _column(np.bool_)
    is_off = _column(np.bool_)
    is_awaited = _column(np.bool_)
    """Whether it is to be switched on as soon as the budget has room for its boot."""
    has_claimed = _column(np.bool_)
    """Whether it has once reported an epoch that this ledger had not given."""
    is_disbelieved = _column(np.bool_)
    """Whether its last report had such an epoch and was not believed in that."""
    owes_epoch = _column(np.bool_)
    """Whether the ledger still waits for it to acknowledge the epoch: a lease of an older ledger may be in force."""

    # from its grants
    sequence = _column(np.int64)
    target_mw = _column(np.int64, NONE)
    """The last cap granted; -1: none in this boot."""
    wanted_mw = _column(np.int64, NONE)
    granted_report_id = _column(np.int64, NONE)
    """The report that the last grant answered."""
    backed_mw = _column(np.int64, UNBOUNDED)
    """Upper bound of the next grant after the node reported a cap above its count: that count, at least the MOP."""
    least_granted_mw = _column(np.int64, NONE)
    """The lowest of the cap that it confirmed when that was its newest grant, and of those granted since; -1: it has
    not confirmed a newest grant in this boot."""
    last_deadline_s = _column(np.float64, -math.inf)
    open_mw = _column(np.int64, NONE, (OPEN,))
    """``OPEN`` x nodes, in no order: caps of the open grants; -1: a free entry, whose sequence and deadline are never
    reached."""
    open_sequence = _column(np.int64, np.iinfo(np.int64).max, (OPEN,))
    open_deadline_s = _column(np.float64, math.inf, (OPEN,))

    def __init__(self) -> None:
        self.names: list[str] = []
        self.places: dict[str, int] = {}
        self.declarations: list[Declaration] = []
        self.boot_ids: list[str] = []
        self.past_boots: list[frozenset[str]] = []
        self.unstored: dict[int, None] = {}
        """Places whose name and declaration are not in the store yet."""
        self._room: dict[str, npt.NDArray[np.generic]] = {}
        self._make_room(0)

    def __getitem__(self, name: str) -> Account:
        (account,) = self.copies([self.places[name]])
        return account

    def copies(self, at: Sequence[int]) -> list[Account]:
        """The nodes at these places. One list for each column: of many nodes far faster than a look-up of each."""
        places = np.asarray(at, np.int64)
        columns = (
            self.limit_mw, self.count_mw, self.target_mw, self.wanted_mw, self.is_leased, self.heard_s > -math.inf,
            self.has_confirmed, self.is_leaving, self.has_left, self.is_off,
        )  # fmt: skip
        values = zip(*(column[places].tolist() for column in columns), strict=True)
        return [
            Account(place, self.names[place], self.declarations[place], self.boot_ids[place], *one)
            for place, one in zip(at, values, strict=True)
        ]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self.places

    def most_mw(self, at: Ints) -> Ints:
        """The highest cap of use to these nodes: their TDP, or what their own sites' limits allow, but at least their
        MOP."""
        return np.maximum(np.minimum(self.tdp_mw[at], self.useful_mw[at]), self.mop_mw[at])

    def assured_mw(self, at: Ints) -> Ints:
        """What these nodes may draw at least, in mW, whichever of their grants has arrived; -1: nothing is known.

        ``limit_mw`` alone does not say that: it is the highest cap that may be in force, so it counts a raise before
        its effect is confirmed, and an older cap though a lower one has been granted since."""
        return np.minimum(self.limit_mw[at], self.least_granted_mw[at])

    @property
    def is_forgotten(self) -> Bools:
        """Whether the node does not belong to the partition any more. No node that reports has a TDP of 0."""
        is_forgotten: Bools = self.tdp_mw == 0
        return is_forgotten

    @property
    def is_heard(self) -> Bools:
        """Whether the node has ever reported."""
        return self.heard_s > -math.inf

    def at(self, names: Sequence[str]) -> Ints:
        """The places of these nodes; ``KeyError`` for an unknown one."""
        return np.array([self.places[name] for name in names], np.int64)

    def add(self, nodes: Mapping[str, Declaration]) -> Ints:
        """Add nodes and return their places. No cap is known to be in force at a new node, so its limit is its TDP."""
        first = len(self.names)
        for name in nodes:
            self.places[name] = len(self.names)
            self.names.append(name)
        n = len(self.names)
        self.boot_ids += [""] * (n - first)
        self.past_boots += [frozenset()] * (n - first)
        self.declarations += nodes.values()
        self._make_room(n)
        at = np.arange(first, n)
        self.declare(at, list(nodes.values()))
        self.limit_mw[at] = self.tdp_mw[at]
        return at

    def declare(self, at: Ints, declarations: Sequence[Declaration]) -> None:
        """Replace the declarations of these nodes."""
        powers_mw = [(one.tdp_mw, one.mop_mw, one.safe_mw, one.boot_mw) for one in declarations]
        self.tdp_mw[at], self.mop_mw[at], self.safe_mw[at], self.boot_mw[at] = np.array(powers_mw, np.int64).T
        self.is_sticky[at] = [one.lease_class == "sticky" for one in declarations]
        self.after_lease_s[at] = [after_lease_s(one) for one in declarations]
        for place, declaration in zip(at.tolist(), declarations, strict=True):
            self.declarations[place] = declaration
            self.unstored[place] = None

    def compare_boots(self, at: Ints, boot_ids: Sequence[str]) -> tuple[Bools, Bools]:
        """Per node: whether its boot differs from the one on record, and whether it is one of the boots before that."""
        of_nodes = list(zip(at.tolist(), boot_ids, strict=True))
        is_other = np.array([boot_id != self.boot_ids[place] for place, boot_id in of_nodes], np.bool_)
        is_past = np.array([boot_id in self.past_boots[place] for place, boot_id in of_nodes], np.bool_)
        return is_other, is_past

    def reboot(self, place: int, boot_id: str) -> None:
        """Record a new boot of the node, and remember the one before."""
        if self.boot_ids[place]:
            self.past_boots[place] |= {self.boot_ids[place]}
        self.boot_ids[place] = boot_id

    # --- open grants

    def open_grants(self, at: Ints, caps_mw: Ints, deadlines_s: Floats) -> None:
        """Add an open grant for each of these nodes, under the node's present ``sequence``.

        It closes the older grants that are not above it. If all ``OPEN`` entries are above it, it is merged with the
        lowest: the cap of that one, with the sequence and deadline of the new one. See the invariant at the top.
        """
        self.last_deadline_s[at] = deadline_s = np.maximum(self.last_deadline_s[at], deadlines_s)
        before_mw = self.open_mw[:, at]
        lowest = before_mw.argmin(axis=0)
        self.close_grants(at, before_mw <= caps_mw)
        self.open_mw[lowest, at] = np.maximum(self.open_mw[lowest, at], caps_mw)
        self.open_sequence[lowest, at] = self.sequence[at]
        self.open_deadline_s[lowest, at] = deadline_s
        self.least_granted_mw[at] = np.minimum(self.least_granted_mw[at], caps_mw)

    def close_grants(self, at: Ints, which: Bools | np.bool_ = np.True_) -> None:
        """Close the open grants of these nodes: all of them, or those marked in ``which`` (``OPEN`` x nodes)."""
        self.open_mw[:, at] = np.where(which, NONE, self.open_mw[:, at])
        self.open_sequence[:, at] = np.where(which, np.iinfo(np.int64).max, self.open_sequence[:, at])
        self.open_deadline_s[:, at] = np.where(which, math.inf, self.open_deadline_s[:, at])

    def _make_room(self, n: int) -> None:
        for name, column in _COLUMNS.items():
            room = self._room.get(name, np.zeros((*column.rows, 0), column.kind))
            if n > room.shape[-1]:
                more = np.full((*column.rows, max(16, 2 * n) - room.shape[-1]), column.fill, column.kind)
                room = np.concatenate((room, more), axis=-1)
            self._room[name] = room
            setattr(self, name, room[..., :n])


_COLUMNS: Final = {name: column for name, column in vars(Accounts).items() if isinstance(column, _Column)}


def after_lease_s(declaration: Declaration) -> float:
    """How long after the end of its lease a node may still draw more than its safe cap."""
    watchdog_ms = declaration.watchdog_ms if declaration.lease_class == "os" else 0
    return (declaration.settle_ms + watchdog_ms) / 1000
