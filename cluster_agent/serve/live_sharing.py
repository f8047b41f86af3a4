"""The sharers at work: what they see of a live partition, and their reason for each node's cap.

A sharer that raises an error, or answers what it must not, does not cost the partition its budget: the watts of that
plan are shared by ``fspc``, which needs nothing but each node's MOP and TDP, and ``trouble`` says what happened. The
last caps would not do: the budget may have been lowered and nodes may have come since.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

import numpy as np

from cluster_agent.budget.accounts import NONE, Ints
from cluster_agent.budget.ledger import Ledger
from cluster_agent.budget.sharers import fspc, registry
from cluster_agent.budget.sharers.api import Models, Sharer, flaw
from cluster_agent.budget.sharers.even_out import even_out
from cluster_agent.budget.sharers.view import Job, Parts, Reason, Shares, View
from cluster_agent.budget.sharers.view import Why as SharersWhy
from foundation.shell.extension import Origin, in_one_line, where_defined

NO_JOBS: Final[Callable[[], Iterable[Job]]] = tuple


class _Part(NamedTuple):
    """Nodes among which watts were divided, and how. ``words``: of each, what decided its cap."""

    view: View
    shares: Shares
    words: list[str]


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
        self.origin: Origin | None = None
        self.models: Models = {}
        if policys is None:
            self.use(text)
        else:
            self.name, self._sharer = text, policys
        self.trouble = ""
        """What went wrong since this was emptied."""
        self._jobs, self._need_mw, self._factors = jobs, need_mw, factors
        self._at: Ints | None = None
        self._whole: View | None = None
        self._parts: Parts | None = None
        self._last: list[_Part] = []
        """Of the last plan; the last one that has a node decided its cap."""
        self._index: dict[str, tuple[int, int]] = {}

    def use(self, text: str) -> None:
        """Share with this one from the next plan on. ``WrongUseError`` for a sharer or parameter that does not
        exist."""
        chosen = registry.choose(text)
        self.name, self._sharer = text, chosen.share
        self.origin, self.models = chosen.origin, chosen.method.models(chosen.params)

    def begin(self) -> None:
        """A plan begins. It first shares among all nodes within reach; where it shares among fewer after that, they
        are some of these."""
        self._at = self._whole = None

    def share(self, ledger: Ledger, at: Ints, available_mw: int) -> Ints:
        """A cap in mW for each of the nodes at these places; ``available_mw`` is at least the sum of their MOPs."""
        accounts = ledger.accounts
        if self._whole is None or self._at is None or (at is not self._at and len(at) >= len(self._at)):
            names = [accounts.names[place] for place in at.tolist()]
            most_mw, mop_mw = accounts.most_mw(at), accounts.mop_mw[at]
            self._whole = View.of(names, most_mw, mop_mw, self._jobs(), self._need_mw(), self._factors)
            self._at, self._parts = at, None
        if at is self._at:  # a plan calls this several times with the same nodes
            whole, self._last = self._whole, []
        else:
            self._parts = self._parts or Parts(self._whole)
            whole = self._parts.of(np.searchsorted(self._at, at))
        view, full = whole.at_full_power(available_mw)
        shares = self._shared(view, available_mw)
        reason = shares.reason.copy()
        reason[full] = Reason.FULL_POWER
        shares = dataclasses.replace(shares, caps_mw=even_out(view, shares), reason=reason)
        self._last.append(_Part(view, shares, []))
        self._index = {}
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
        """Why the node had its cap at the last plan; the sharer's name is empty if it had none then."""
        if not self._last:
            return _unshared(name, "nothing has been shared yet")
        if (found := self._found(name)) is None:
            return _unshared(name, "it could not be reached when watts were shared last")
        part, _ = found
        return part.shares.why(part.view, name)

    def tag(self, name: str) -> tuple[str, str]:
        """The tag that was used for the node's job at the last plan, and its source; empty: no job, or one without."""
        if (found := self._found(name)) is None:
            return "", ""
        part, at = found
        if (owner := int(part.shares.owner[at])) < 0:
            return "", ""
        job = part.view.jobs[owner]
        return ("", "") if job.tag is None else (job.tag.name, job.tag_source)

    def in_short(self, name: str) -> tuple[str, float | None]:
        """What decided its cap, as a word with the sharer's name, and the slowdown predicted for its job."""
        if (found := self._found(name)) is None:
            return "", None
        part, at = found
        owner = int(part.shares.owner[at])
        speed = float(part.shares.speed[owner]) if owner >= 0 else math.nan
        slowdown = None if math.isnan(speed) else 1 / speed - 1
        return self.decided_by(name), slowdown

    def decided_by(self, name: str) -> str:
        """What decided its cap, as a word with the sharer's name; "" if the last plan had none for it."""
        if (found := self._found(name)) is None:
            return ""
        (_, shares, words), at = found
        if not words:
            named = {int(reason): f"{shares.sharer}: {reason.name.lower()}" for reason in Reason}
            words += [named[reason] for reason in shares.reason.tolist()]
        return words[at]

    def _found(self, name: str) -> tuple[_Part, int] | None:
        """Where the node's cap was decided."""
        if not self._index:
            for n, part in enumerate(self._last):
                self._index.update(zip(part.view.nodes, ((n, at) for at in range(len(part.view.nodes))), strict=True))
        found = self._index.get(name)
        return None if found is None else (self._last[found[0]], found[1])


def _unshared(name: str, words: str) -> SharersWhy:
    return SharersWhy(name, NONE, "", "", "", "", "", None, words)
