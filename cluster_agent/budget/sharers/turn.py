"""One turn of a sharer: from the present state of ledger and jobs to the caps, with the reasons."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cluster_agent.budget.accounts import Ints
from cluster_agent.budget.ledger import Ledger
from cluster_agent.budget.sharers.api import Sharer
from cluster_agent.budget.sharers.view import Job, Shares, View, Why


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
        self.view: View | None = None
        self.shares: Shares | None = None

    def __call__(self, at: Ints, available_mw: int) -> Ints:
        """A cap in mW for each of the nodes; ``plan`` calls this more than once, for the same nodes and other watts."""
        if self.view is None or at is not self._at:
            accounts, self._at = self._ledger.accounts, at
            names = [accounts.names[place] for place in at.tolist()]
            self.view = View.of(names, accounts.tdp_mw[at], accounts.mop_mw[at], self._jobs, self._need_mw)
        self.shares = self._sharer(self.view, available_mw)
        return self.shares.caps_mw

    def why(self, node: str) -> Why | None:
        """None if no cap was planned for the node: it was out of reach, or the budget is less than the sum of MOPs and
        every node gets its MOP."""
        if self.view is None or self.shares is None or node not in self.view.nodes:
            return None
        return self.shares.why(self.view, node)
