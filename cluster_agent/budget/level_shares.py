"""Watts shared so that every group of nodes stays within its limit, whichever sharer divides them.

The sharer first divides the budget among all nodes, as if there were no groups. Where the caps of a group's nodes are
then more than the group may have, its watts are divided among its nodes alone, by the same sharer: so AAPC lowers in a
rack that is too full the jobs that lose least of those that run there. The budget that is left goes to all other nodes
again, until no group has too much. The deepest groups come first: a room may have enough once its racks have what they
may. Each round settles at least one more group for good, so there are at most as many rounds as groups; mostly there
are one or two.

What a group's own reserve takes from it depends on the caps, as with the whole budget (``plan``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from cluster_agent.budget.accounts import Accounts, Ints
from cluster_agent.budget.levels import NO_GROUP, Levels

UNSETTLED: Final = 1 << 30
"""Deeper than any group."""


class LevelShares:
    """``at``: the places of the nodes that caps are planned for; ``left_mw``: of each group, what they may draw
    together, before its reserve; ``share``: a sharer, as ``plan`` calls it."""

    def __init__(
        self, levels: Levels, accounts: Accounts, at: Ints, left_mw: Ints, share: Callable[[Ints, int], Ints]
    ) -> None:
        self._at, self._share, self._left_mw = at, share, left_mw
        self._row: Ints = levels.member[:, at]
        self._n = len(levels)
        self._mop_mw = accounts.mop_mw[at]
        self._caps_mw = self._mop_mw.copy()
        self.bound: Ints = np.full(len(at), NO_GROUP, np.int64)
        """Of each node, the group among whose nodes its watts were divided; ``NO_GROUP``: among all."""

    def caps_mw(self, available_mw: int, reserve_mw: Ints) -> Ints:
        """Caps whose sum is at most ``available_mw``, at least that of all MOPs, and in each group at most what is left
        less its reserve; where that is less than its MOPs, its nodes get these."""
        self._most_mw = self._left_mw - reserve_mw
        self.bound[:] = NO_GROUP
        self._divide(np.arange(len(self._at)), available_mw, 0)
        return self._caps_mw.copy()

    def _divide(self, ours: Ints, available_mw: int, depth: int) -> None:
        """Divide watts among these nodes; the groups above ``depth`` are settled."""
        settled = np.full(len(ours), UNSETTLED, np.int64)  # the depth of the group that settled the node
        free = ours
        while True:  # also once every node is settled: a room of full racks may be too full itself
            left_mw = available_mw - int(self._caps_mw[ours[settled < UNSETTLED]].sum())
            if left_mw < int(self._mop_mw[free].sum()):
                self._caps_mw[free] = self._mop_mw[free]
            elif len(free):
                is_all = len(free) == len(self._at)
                self._caps_mw[free] = self._share(self._at if is_all else self._at[free], left_mw)
            over = self._too_full(ours, settled, depth)
            if not over:
                return
            for at_depth, groups in over:
                row = self._row[at_depth, ours]
                by_group = np.argsort(row, kind="stable")
                begins, ends = (np.searchsorted(row[by_group], groups, side) for side in ("left", "right"))
                for group, begin, end in zip(groups.tolist(), begins.tolist(), ends.tolist(), strict=True):
                    at = by_group[begin:end]
                    self.bound[ours[at]] = group
                    settled[at] = at_depth
                    self._divide(ours[at], int(self._most_mw[group]), at_depth + 1)
            free = ours[settled == UNSETTLED]

    def _too_full(self, ours: Ints, settled: Ints, depth: int) -> list[tuple[int, Ints]]:
        """By depth, from ``depth`` on, the groups that have more than they may and are not settled, but for those that
        have such a group below them."""
        found: list[tuple[int, Ints]] = []
        is_waiting = np.zeros(self._n, np.bool_)  # above one that was found
        for at_depth in range(len(self._row) - 1, depth - 1, -1):
            row = self._row[at_depth, ours]
            has_mw = np.bincount(row + 1, self._caps_mw[ours], self._n + 1)[1:]
            is_over = (row != NO_GROUP) & (settled > at_depth) & (has_mw[row] > self._most_mw[row])
            if not is_over.any():
                continue
            found.append((at_depth, np.unique(row[is_over & ~is_waiting[row]])))
            for above in self._row[:at_depth, ours]:
                is_waiting[above[is_over]] = True
        return [one for one in found if len(one[1])]
