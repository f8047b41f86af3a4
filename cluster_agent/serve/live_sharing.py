"""The sharers at work: what they see of a live partition, and their reason for each node's cap.

A sharer that raises an error, or answers what it must not, does not cost the partition its budget: the watts of that
plan are shared by ``fspc``, which needs nothing but each node's MOP and TDP, and ``trouble`` says what happened. The
last caps would not do: the budget may have been lowered and nodes may have come since.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from cluster_agent.budget.accounts import NONE, Ints
from cluster_agent.budget.ledger import Ledger
from cluster_agent.budget.sharers import fspc, registry
from cluster_agent.budget.sharers.api import Models, Sharer, flaw
from cluster_agent.budget.sharers.even_out import even_out
from cluster_agent.budget.sharers.view import Job, Reason, Shares, View
from cluster_agent.budget.sharers.view import Why as SharersWhy
from foundation.shell.extension import Origin, in_one_line, where_defined

NO_JOBS: Final[Callable[[], Iterable[Job]]] = tuple


class Sharing:
    """One sharer, ``NAME[:key=value,...]``. ``jobs`` gives the running jobs in the order of their starts; ``need_mw``
    what nodes draw when they are not cap-bound, where it is known."""

    def __init__(
        self,
        text: str,
        jobs: Callable[[], Iterable[Job]] = NO_JOBS,
        need_mw: Callable[[], Mapping[str, int]] = dict,
        factors: Mapping[str, float] | None = None,
        policys: Sharer | None = None,
    ) -> None:
        """``factors``: as of ``View.factor``; ``policys``: in place of a sharer, where the scheduling policy owns the
        watts. ``WrongUseError`` for a sharer or parameter that does not exist."""
        self.name = text
        self.origin: Origin | None = None
        self.models: Models = {}
        if policys is None:
            chosen = registry.choose(text)
            self.origin, self.models = chosen.origin, chosen.method.models(chosen.params)
            policys = chosen.share
        self._sharer = policys
        self.trouble = ""
        """What went wrong since this was emptied."""
        self._jobs, self._need_mw, self._factors = jobs, need_mw, factors
        self._at: Ints | None = None
        self._view: View | None = None
        self._last: tuple[View, Shares] | None = None
        self._index: dict[str, int] = {}
        self._words: list[str] = []

    def share(self, ledger: Ledger, at: Ints, available_mw: int) -> Ints:
        """A cap in mW for each of the nodes at these places; ``available_mw`` is at least the sum of their MOPs."""
        accounts = ledger.accounts
        if self._view is None or at is not self._at:  # a plan calls this several times with the same nodes
            names = [accounts.names[place] for place in at.tolist()]
            most_mw, mop_mw = accounts.most_mw(at), accounts.mop_mw[at]
            self._view = View.of(names, most_mw, mop_mw, self._jobs(), self._need_mw(), self._factors)
        view, full = self._view.at_full_power(available_mw)
        shares = self._shared(view, available_mw)
        reason = shares.reason.copy()
        reason[full] = Reason.FULL_POWER
        shares = dataclasses.replace(shares, caps_mw=even_out(view, shares), reason=reason)
        self._at, self._last, self._index, self._words = at, (view, shares), {}, []
        return shares.caps_mw

    def _shared(self, view: View, available_mw: int) -> Shares:
        try:
            shares = self._sharer(view, available_mw)
            wrong = flaw(shares, view, available_mw)
            problem = f"{where_defined(self._sharer)}: {wrong}" if wrong else ""
        except (Exception, SystemExit) as error:
            problem = in_one_line(error)
        if not problem:
            return shares
        self.trouble = f"the sharer {self.name} failed, and {fspc.METHOD.name} shares the watts: {problem}"
        return dataclasses.replace(fspc.share(view, available_mw), note=f"{self.name} failed")

    def why(self, name: str) -> SharersWhy:
        """Why the node had its cap at the last ``share``; the sharer's name is empty if it had none then."""
        if self._last is None:
            return _unshared(name, "nothing has been shared yet")
        view, shares = self._last
        try:
            return shares.why(view, name)
        except KeyError:
            return _unshared(name, "it could not be reached when watts were shared last")

    def tag(self, name: str) -> tuple[str, str]:
        """The tag that was used for the node's job at the last plan, and its source; empty: no job, or one without."""
        at = self._place(name)
        if self._last is None or at is None or (owner := int(self._last[1].owner[at])) < 0:
            return "", ""
        job = self._last[0].jobs[owner]
        return ("", "") if job.tag is None else (job.tag.name, job.tag_source)

    def in_short(self, name: str) -> tuple[str, float | None]:
        """What decided its cap, as a word with the sharer's name, and the slowdown predicted for its job."""
        if self._last is None:
            return "", None
        shares, at = self._last[1], self._place(name)
        if at is None:
            return "", None
        speed = float(shares.speed[shares.owner[at]]) if shares.owner[at] >= 0 else math.nan
        slowdown = None if math.isnan(speed) else 1 / speed - 1
        return self.decided_by(name), slowdown

    def decided_by(self, name: str) -> str:
        """What decided its cap, as a word with the sharer's name; "" if the last plan had none for it."""
        if self._last is None or (at := self._place(name)) is None:
            return ""
        if not self._words:
            shares = self._last[1]
            words = {int(reason): f"{shares.sharer}: {reason.name.lower()}" for reason in Reason}
            self._words = [words[reason] for reason in shares.reason.tolist()]
        return self._words[at]

    def _place(self, name: str) -> int | None:
        if not self._index and self._last is not None:
            self._index = {node: at for at, node in enumerate(self._last[0].nodes)}
        return self._index.get(name)


def _unshared(name: str, words: str) -> SharersWhy:
    return SharersWhy(name, NONE, "", "", "", "", "", None, words)
