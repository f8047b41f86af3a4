"""One turn of a sharer: from the present state of ledger and jobs to the caps, with the reasons."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from cluster_agent.budget.accounts import Ints
from cluster_agent.budget.ledger import Ledger
from cluster_agent.budget.sharers.api import Sharer
from cluster_agent.budget.sharers.view import Job, Parts, Shares, View, Why


class Sharing:
    """One rebalance: ``plan(ledger, now_s, Sharing(...))``; afterwards ``why`` gives each node's reason.

    ``jobs`` in the order of their starts; ``need_mw`` from ``needs.Needs``, for nodes where it is known.
    """

    def __init__(
        self, sharer: Sharer, ledger: Ledger, jobs: Iterable[Job], need_mw: Mapping[str, int] | None = None
    ) -> None:
        self._sharer, self._ledger = sharer, ledger
        self._jobs, self._need_mw = tuple(jobs), need_mw or {}
        self._at: Ints | None = None
        self._whole: View | None = None
        self._parts: Parts | None = None
        self.view: View | None = None
        self.shares: Shares | None = None

    def __call__(self, at: Ints, available_mw: int) -> Ints:
        """A cap in mW for each of the nodes; ``plan`` calls this more than once, for the same nodes and other watts,
        and for some of them."""
        if self._at is not None and self._whole is not None and len(at) < len(self._at):
            self._parts = self._parts or Parts(self._whole)
            self.view = self._parts.of(np.searchsorted(self._at, at))
        elif at is not self._at or self._whole is None:
            accounts, self._at, self._parts = self._ledger.accounts, at, None
            names = [accounts.names[place] for place in at.tolist()]
            self._whole = View.of(names, accounts.tdp_mw[at], accounts.mop_mw[at], self._jobs, self._need_mw)
            self.view = self._whole
        else:
            self.view = self._whole
        self.shares = self._sharer(self.view, available_mw)
        return self.shares.caps_mw

    def why(self, node: str) -> Why | None:
        """None if no cap was planned for the node: it was out of reach, or the budget is less than the sum of MOPs and
        every node gets its MOP."""
        if self.view is None or self.shares is None or node not in self.view.nodes:
            return None
        return self.shares.why(self.view, node)
