"""The budget as a tree: groups of nodes (rooms, racks, PDUs, partitions), each with a limit kept like the budget.

Problem. A rack's supply bears less than its nodes could draw together, though the whole site is far below its budget.

Idea. A group is a budget of its own: its nodes' counts, the fixed power behind it and its reserve stay within its
limit. A raise is sent only if it fits into every group of its node and into the budget:

    for each group g:  sum of count_mw of its nodes + fixed_mw[g] + reserve[g] <= limit[g]                mW

Invariant. If some raises fit together, any of them fit alone: a raise by c adds c to the sum, and lowers the reserve by
at most c. So the groups are tried one depth after the other, the deepest first, and each leaves out what it cannot
bear. None has to be tried again, and the watts of a room are not kept for a raise that its rack refuses.

A node is in at most one group at each depth, so a depth is one column over all nodes: the group that contains the node,
-1 for none. The limits of the groups of a parent may be more than the parent's limit together: that is how a room's
watts go to the rack that needs them. A single one may not.

Cost. O(nodes) for each depth and each question (docs/benchmarks-cluster.md). Powers are mW, times s of CLOCK_BOOTTIME.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from cluster_agent.budget.accounts import Accounts, Bools, Ints
from cluster_agent.budget.budget_line import BudgetLine

NO_GROUP: Final = -1


@dataclass(frozen=True, slots=True)
class Group:
    """``limit_mw``: of its own nodes, those of the groups below it, and ``fixed_mw``, the power behind it that nobody
    caps. ``nodes``: those that are in no group below it. ``parent``: "" for the whole budget."""

    name: str
    limit_mw: int
    nodes: tuple[str, ...] = ()
    parent: str = ""
    fixed_mw: int = 0


class Levels:
    """The groups of one partition. ``groups`` make a tree: each parent is there, and no node is in two."""

    def __init__(self, groups: Sequence[Group] = ()) -> None:
        parents = {one.name: one.parent for one in groups}
        paths = {name: _path(name, parents) for name in parents}
        ordered = sorted(groups, key=lambda one: len(paths[one.name]))
        self.names = [one.name for one in ordered]
        """Every group after its parent."""
        self.places = {name: at for at, name in enumerate(self.names)}
        self.parents = [one.parent for one in ordered]
        self.lines = [BudgetLine(one.limit_mw) for one in ordered]
        self.depths = np.array([len(paths[name]) - 1 for name in self.names], np.int64)
        self.fixed_mw = np.zeros(len(ordered), np.int64)
        """What is fixed in each, with all below it."""
        for one in ordered:
            self.fixed_mw[[self.places[name] for name in paths[one.name]]] += one.fixed_mw
        self.depth = int(self.depths.max(initial=-1)) + 1
        self._path_of = {node: [self.places[name] for name in paths[one.name]] for one in ordered for node in one.nodes}
        self.nodes = {node: one.name for one in ordered for node in one.nodes}
        """All nodes that the groups name, each with the innermost group that it is in."""
        self._room: Ints = np.full((self.depth, 0), NO_GROUP, np.int64)
        self.member: Ints = self._room
        """depth x nodes: the group at that depth in which the node at that place of the ledger is, or ``NO_GROUP``."""

    def __len__(self) -> int:
        return len(self.names)

    def add(self, nodes: Iterable[str]) -> None:
        """Take nodes that the ledger adds, in its order."""
        first = self.member.shape[1]
        paths = [self._path_of.get(name, []) for name in nodes]
        n = first + len(paths)
        if n > self._room.shape[1]:
            more = np.full((self.depth, max(16, 2 * n) - self._room.shape[1]), NO_GROUP, np.int64)
            self._room = np.concatenate((self._room, more), axis=1)
        for at, path in enumerate(paths, first):
            self._room[: len(path), at] = path
        self.member = self._room[:, :n]

    def path(self, place: int) -> list[int]:
        """The groups of the node at this place, the widest first."""
        return [at for at in self.member[:, place].tolist() if at != NO_GROUP]

    def sums_mw(self, values_mw: Ints, at: Ints | None = None) -> Ints:
        """Of each group, the sum over its nodes of what ``values_mw`` has for each place of ``at`` (None: for all)."""
        found = np.zeros(len(self), np.int64)
        for row in self.member if at is None else self.member[:, at]:
            found += _sums(row, values_mw, len(self))
        return found

    def reserve_mw(self, beyond_mw: Ints, k: int) -> Ints:
        """Of each group, the sum of its k largest, none below 0 (7)."""
        found = np.zeros(len(self), np.int64)
        for row in self.member:
            found += _largest(row, beyond_mw, len(self), k)
        return found

    def spendable_mw(self, now_s: float, settle_s: float) -> Ints:
        """What the nodes of each group may draw by new decisions (10)."""
        limits_mw = np.array([line.spendable_mw(now_s, settle_s) for line in self.lines], np.int64)
        spendable_mw: Ints = limits_mw - self.fixed_mw
        return spendable_mw

    def breach_mw(self, now_s: float, accounts: Accounts) -> Ints:
        """By how much the nodes of each group could exceed what is promised of it (10); above 0: an alarm."""
        if not self.names:
            return self.fixed_mw
        promised_mw = np.array([line.promised_mw(now_s) for line in self.lines], np.int64)
        breach_mw: Ints = self.sums_mw(accounts.count_mw) + self.fixed_mw - promised_mw
        return breach_mw

    def free_mw(self, now_s: float, settle_s: float, accounts: Accounts, k: int) -> Ints:
        """What could be granted on top in each group, by its own limit; below 0: it must come down first."""
        used_mw = self.sums_mw(accounts.count_mw) + self.reserve_mw(accounts.boot_need_mw - accounts.count_mw, k)
        free_mw: Ints = self.spendable_mw(now_s, settle_s) - used_mw
        return free_mw

    def fitting(self, accounts: Accounts, k: int, spendable_mw: Ints, at: Ints, costs_mw: Ints) -> Bools:
        """Which raises every group of their node has room for, cheapest first; those of nodes in no group all are.

        ``at``: the nodes' places, each at most once; ``spendable_mw`` of each group."""
        is_fitting = np.ones(len(at), np.bool_)
        beyond_mw = accounts.boot_need_mw - accounts.count_mw
        for row in self.member[::-1]:
            left = np.flatnonzero(is_fitting & (row[at] != NO_GROUP))
            if len(left):
                room_mw = spendable_mw - _sums(row, accounts.count_mw, len(self))
                is_fitting[left] = _cheapest(row, beyond_mw, k, room_mw, at[left], costs_mw[left])
        return is_fitting


def _path(name: str, parents: dict[str, str]) -> list[str]:
    """From the widest group to this one."""
    found = [name]
    while found[-1] and parents[found[-1]]:
        found.append(parents[found[-1]])
    return found[::-1]


def _sums(row: Ints, values_mw: Ints, n: int) -> Ints:
    """By group. The sums are below 2**53, so they are whole in doubles, too."""
    return np.bincount(row + 1, values_mw, n + 1)[1:].astype(np.int64)


def _largest(row: Ints, beyond_mw: Ints, n: int, k: int) -> Ints:
    """By group, the sum of its k largest values, none below 0."""
    found = np.zeros(n + 1, np.int64)
    if k == 1:
        np.maximum.at(found, row + 1, beyond_mw)
    elif k > 1:
        order = np.lexsort((-beyond_mw, row))
        kept = order[(_rank(row[order]) < k) & (beyond_mw[order] > 0)]
        np.add.at(found, row[kept] + 1, beyond_mw[kept])
    return found[1:]


def _rank(ordered: Ints) -> Ints:
    """Of each entry, its number among those of its group; groups stand together."""
    at = np.arange(len(ordered))
    begins: Bools = np.ones(len(ordered), np.bool_)
    begins[1:] = ordered[1:] != ordered[:-1]
    return at - np.maximum.accumulate(np.where(begins, at, 0))


def _cheapest(row: Ints, beyond_mw: Ints, k: int, room_mw: Ints, at: Ints, costs_mw: Ints) -> Bools:
    """Of the raises in groups of one depth, those that fit: of each group as many of the cheapest as it has room for,
    found for all groups together by bisection. ``room_mw``: of each group, without its reserve."""
    n, group = len(room_mw), row[at]
    in_turn = np.lexsort((at, costs_mw, group))
    turn = np.empty(len(at), np.int64)
    turn[in_turn] = _rank(group[in_turn])

    def fits(most: Ints) -> Bools:
        """Of each group, whether so many of its cheapest raises fit."""
        is_in = turn < most[group]
        still_mw = beyond_mw.copy()
        still_mw[at[is_in]] -= costs_mw[is_in]
        needed_mw = _sums(group[is_in], costs_mw[is_in], n) + _largest(row, still_mw, n, k)
        is_within: Bools = needed_mw <= room_mw
        return is_within

    n_raises = np.bincount(group, minlength=n)
    too_many = n_raises + fits(n_raises)  # one more than all where all fit
    enough = np.where(too_many > n_raises, n_raises, 0)
    while (is_open := too_many - enough > 1).any():
        middle = (enough + too_many) // 2
        is_within = fits(middle)
        enough = np.where(is_open & is_within, middle, enough)
        too_many = np.where(is_open & ~is_within, middle, too_many)
    is_first: Bools = turn < enough[group]
    return is_first
