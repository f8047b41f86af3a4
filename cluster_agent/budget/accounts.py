"""What the ledger knows of its nodes, as columns: a node has one place in all of them, from when it is first named.

No rule is written here. Columns are exactly as long as there are nodes, with room behind them, so a node that joins
copies nothing most of the time. Powers are mW; -1 where there is none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar, cast

import numpy as np
import numpy.typing as npt

from nodectl.wire import Declaration

Ints: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]
Bools: TypeAlias = npt.NDArray[np.bool_]

NONE: Final = -1
UNBOUNDED: Final = np.iinfo(np.int64).max

OPEN: Final = 4
"""Ours: open grants of a node that are told apart. A grant that a newer one is not below need not be kept, so more are
only wanted by a node that is lowered five times and confirms nothing."""

Kind = TypeVar("Kind", bound=np.generic)


@dataclass(frozen=True, slots=True)
class _Column:
    kind: type[np.generic]
    fill: float
    rows: tuple[int, ...]


def _column(kind: type[Kind], fill: float = 0, rows: tuple[int, ...] = ()) -> npt.NDArray[Kind]:
    """Declares a column of ``Accounts``. ``fill``: what it holds for a node that is new; ``rows``: of how many values
    per node, one if empty."""
    return cast("npt.NDArray[Kind]", _Column(kind, fill, rows))


@dataclass(frozen=True, slots=True)
class Account:
    """One node, as its columns were when it was asked for."""

    index: int
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
    """All nodes. As a mapping it gives one ``Account`` by name, for whoever looks at few of them."""

    # what the node declared
    tdp_mw = _column(np.int64)
    mop_mw = _column(np.int64)
    safe_mw = _column(np.int64)
    boot_mw = _column(np.int64)
    is_sticky = _column(np.bool_)
    after_lease_s = _column(np.float64)
    """How long after its lease is over a node may still draw more than its safe cap."""
    boot_need_mw = _column(np.int64)
    """What the reserve must cover if it reboots."""

    # what may act
    limit_mw = _column(np.int64)
    """The most that may act beside the open grants."""
    count_mw = _column(np.int64)
    stored_mw = _column(np.int64, NONE)
    """What the store has of it; -1: never granted anything."""
    is_leased = _column(np.bool_)
    """Whether it has ever been granted anything: only then does it fall to its safe cap by itself."""

    # what was heard
    report_id = _column(np.int64, NONE)
    seen_epoch = _column(np.int64, NONE)
    heard_s = _column(np.float64, -math.inf)
    """When its last report came; -inf: never."""
    watch_s = _column(np.float64, math.inf)
    """When its silence must be noticed; inf: it has been."""
    has_confirmed = _column(np.bool_)
    """Any grant, in this boot."""
    is_leaving = _column(np.bool_)
    has_left = _column(np.bool_)
    is_off = _column(np.bool_)
    is_awaited = _column(np.bool_)
    """Whether it is to be switched on as soon as there are watts for its boot."""
    owes_epoch = _column(np.bool_)
    """Whether it has not acknowledged the ledger's epoch, and is waited for."""

    # what was granted
    sequence = _column(np.int64)
    target_mw = _column(np.int64, NONE)
    """The cap granted last; -1: none in this boot."""
    wanted_mw = _column(np.int64, NONE)
    granted_report_id = _column(np.int64, NONE)
    backed_mw = _column(np.int64, UNBOUNDED)
    """What it counted when it was heard with a higher limit than that; until it is granted anything."""
    last_deadline_s = _column(np.float64, -math.inf)
    open_mw = _column(np.int64, NONE, (OPEN,))
    """``OPEN`` x nodes, in no order: the grants that may still be taken, or may have been; -1: none here (the
    columns below: never confirmed, never over)."""
    open_sequence = _column(np.int64, np.iinfo(np.int64).max, (OPEN,))
    open_deadline_s = _column(np.float64, math.inf, (OPEN,))

    def __init__(self) -> None:
        self.names: list[str] = []
        self.places: dict[str, int] = {}
        self.declarations: list[Declaration] = []
        self.boot_ids: list[str] = []
        self.past_boots: list[frozenset[str]] = []
        self.unstored: dict[int, None] = {}
        """Places whose name and declaration the store does not have."""
        self._room: dict[str, npt.NDArray[np.generic]] = {}
        self._make_room(0)

    def __getitem__(self, name: str) -> Account:
        at = self.places[name]
        return Account(
            at, name, self.declarations[at], self.boot_ids[at],
            int(self.limit_mw[at]), int(self.count_mw[at]), int(self.target_mw[at]), int(self.wanted_mw[at]),
            bool(self.is_leased[at]), bool(self.is_heard[at]), bool(self.has_confirmed[at]),
            bool(self.is_leaving[at]), bool(self.has_left[at]), bool(self.is_off[at]),
        )  # fmt: skip

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self.places

    @property
    def is_heard(self) -> Bools:
        """Whether anything has ever come from the node."""
        return self.heard_s > -math.inf

    def at(self, names: Sequence[str]) -> Ints:
        """The places of these nodes; ``KeyError`` for one that is not known."""
        return np.array([self.places[name] for name in names], np.int64)

    def add(self, nodes: Mapping[str, Declaration]) -> Ints:
        """Places for nodes that have none yet, as nobody knows them: what may act is their TDP."""
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
        """What these nodes say of themselves from now on."""
        told = [(one.tdp_mw, one.mop_mw, one.safe_mw, one.boot_mw) for one in declarations]
        self.tdp_mw[at], self.mop_mw[at], self.safe_mw[at], self.boot_mw[at] = np.array(told, np.int64).T
        self.is_sticky[at] = [one.lease_class == "sticky" for one in declarations]
        self.after_lease_s[at] = [after_lease_s(one) for one in declarations]
        for place, declaration in zip(at.tolist(), declarations, strict=True):
            self.declarations[place] = declaration
            self.unstored[place] = None

    def compare_boots(self, at: Ints, boot_ids: Sequence[str]) -> tuple[Bools, Bools]:
        """Per node: whether this is another boot than it was in, and whether it is one from before that."""
        of_nodes = list(zip(at.tolist(), boot_ids, strict=True))
        is_other = np.array([boot_id != self.boot_ids[place] for place, boot_id in of_nodes], np.bool_)
        is_past = np.array([boot_id in self.past_boots[place] for place, boot_id in of_nodes], np.bool_)
        return is_other, is_past

    def reboot(self, place: int, boot_id: str) -> None:
        """The node is in another boot than it was."""
        if self.boot_ids[place]:
            self.past_boots[place] |= {self.boot_ids[place]}
        self.boot_ids[place] = boot_id

    # --- open grants

    def open_grants(self, at: Ints, caps_mw: Ints, deadlines_s: Floats) -> None:
        """Keep a new grant for each of these nodes. It goes by its present ``sequence``, and is open for at least as
        long as all before it.

        So of the grants before it those not above it say nothing any more that it does not. Where four above it are
        open, it is taken together with the lowest of them: what then counts is too much rather than too little.
        """
        self.last_deadline_s[at] = deadline_s = np.maximum(self.last_deadline_s[at], deadlines_s)
        before_mw = self.open_mw[:, at]
        lowest = before_mw.argmin(axis=0)
        self.close_grants(at, before_mw <= caps_mw)
        self.open_mw[lowest, at] = np.maximum(self.open_mw[lowest, at], caps_mw)
        self.open_sequence[lowest, at] = self.sequence[at]
        self.open_deadline_s[lowest, at] = deadline_s

    def close_grants(self, at: Ints, which: Bools | np.bool_ = np.True_) -> None:
        """Forget the open grants of these nodes, all or those that are marked (``OPEN`` x nodes)."""
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
    """How long after its lease is over a node may still draw more than its safe cap."""
    watchdog_ms = declaration.watchdog_ms if declaration.lease_class == "os" else 0
    return (declaration.settle_ms + watchdog_ms) / 1000
