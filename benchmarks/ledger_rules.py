"""How often each rule of the ledger has acted in a world (``ledger_world``): one that never does has not been tried.

Most rules are written for many nodes at once, as ``numpy.where``: a line that ran has not yet decided anything. So a
world runs subclasses of the ledger and of the nodes' lease here, which look at what goes into a rule and what comes
out, and count the nodes for which it made a difference. They decide nothing themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from cluster_agent.budget.accounts import Bools, Ints
from cluster_agent.budget.kept_counts import DeposedError
from cluster_agent.budget.ledger import Ledger
from foundation.wire.power_messages import Effect, Grant, Report
from nodectl.member.lease import NodeLease

STEPS: Final = (
    "1 a grant not retired counts more than the cap that was confirmed",
    "1 what counts more is stored before it is sent",
    "1 nothing is stored where nothing counts more",
    "1 a raise has room",
    "1 a raise waits for watts",
    "1 of several raises only some have room",
    "1 a fifth open grant is taken together with the lowest",
    "1 a renewal is no more than what is in force",
    "2 a node takes a grant",
    "2 refused: it was made for another boot of this node",
    "2 refused: a newer cluster agent has taken over since",
    "2 refused: a newer one is in force",
    "2 refused: it answers a report that this agent has not sent",
    "2 a report that was overtaken is void",
    "2 a cap waits for a report that it can answer",
    "3 refused: its lease is over",
    "3 a grant can no longer be taken",
    "4 a lease ends and the cap falls to the safe cap",
    "4 a lease ends and the cap, not above the safe cap, stays",
    "4 a grant whose time is over is taken to have lapsed",
    "4 a node is given leave",
    "4 a node that wants leave has to wait",
    "4 a node that has left counts its TDP",
    "4 a node that had left is back",
    "5 a cap is confirmed by its effect",
    "5 a cap is confirmed provisionally",
    "5 a confirmation retires a grant",
    "5 a provisional cap counts what was measured",
    "6 a silent node fell to its safe cap",
    "6 a silent sticky node keeps its count",
    "6 a sticky node may keep a grant whose time is over",
    "6 a node known to be off counts nothing",
    "7 a silent node counts its boot power",
    "7 watts are set aside for reboots",
    "7 of the nodes that may reboot only the k largest count",
    "7 a raise waits for the reserve alone",
    "7 nothing is set aside for a sticky node",
    "7 watts are set aside for a sticky node that is off",
    "8 a reboot voids a grant",
    "8 a report from before a reboot is void",
    "8 a node that has confirmed nothing since its boot counts more than its cap",
    "8 a node that joins counts its TDP",
    "8 a node never heard of counts its TDP",
    "8 a boot is granted",
    "8 a boot waits for its watts",
    "8 a report above the count is not granted on",
    "9 a stored count is reloaded",
    "9 a stored count is taken to have lapsed",
    "9 a stored count is not believed",
    "9 no raise while older leases may run",
    "9 a node has acknowledged the epoch",
    "9 older leases have run out",
    "9 an older ledger is deposed",
    "9 the store has lost the epoch and a newer one is taken",
    "10 a drop is obeyed before it comes",
    "10 a cap within the count is granted though above the one before it",
    "10 a cap within the count waits while the sum must fall",
)
"""What the rules do (docs/ledger.md), with their numbers."""


def counting(acted: Counter[str]) -> tuple[type[Ledger], type[NodeLease]]:
    """A ledger and a lease for ``World``, whose rules are counted in ``acted``."""

    def note(what: str, is_so: Any = True) -> None:
        assert what in STEPS, what
        if n := int(np.count_nonzero(is_so)):
            acted[what] += n

    class CountingLedger(Ledger):
        def grants(self, now_s: float, heard: Any = (), only_stored: bool = False) -> list[Grant]:
            with _noting_deposed():
                return super().grants(now_s, heard, only_stored)

        def pass_time(self, now_s: float) -> None:
            was_young = self.is_young
            super().pass_time(now_s)
            note("9 older leases have run out", was_young and not self.is_young)

        def switch_on(self, now_s: float, name: str) -> bool:
            is_on = super().switch_on(now_s, name)
            note("8 a boot is granted" if is_on else "8 a boot waits for its watts")
            return is_on

        def spendable_mw(self, now_s: float) -> int:
            found_mw = super().spendable_mw(now_s)
            note("10 a drop is obeyed before it comes", found_mw < self.budget.budget_mw - self.terms.fixed_mw)
            return found_mw

        def _in_force_mw(self, limit_mw: Ints, power_mw: Ints, is_provisional: Bools) -> Ints:
            in_force_mw = super()._in_force_mw(limit_mw, power_mw, is_provisional)
            note("5 a provisional cap counts what was measured", in_force_mw > limit_mw)
            return in_force_mw

        def _retire_confirmed(self, at: Ints, sequence: Ints) -> None:
            n_open = (self.accounts.open_mw[:, at] >= 0).sum()
            super()._retire_confirmed(at, sequence)
            note("5 a confirmation retires a grant", n_open > (self.accounts.open_mw[:, at] >= 0).sum())

        def _retire_overdue(self, now_s: float, at: Ints) -> None:
            accounts = self.accounts
            is_over = (accounts.open_deadline_s[:, at] <= now_s) & (accounts.open_mw[:, at] >= 0)
            is_sticky = accounts.is_sticky[at]
            note("3 a grant can no longer be taken", is_over)
            note("6 a sticky node may keep a grant whose time is over", is_over & is_sticky)
            is_above = accounts.open_mw[:, at] > accounts.safe_mw[at]
            note("4 a grant whose time is over is taken to have lapsed", is_over & ~is_sticky & is_above)
            super()._retire_overdue(now_s, at)

        def _boot_need_mw(self, at: Ints) -> Ints:
            need_mw = super()._boot_need_mw(at)
            is_sticky = self.accounts.is_sticky[at]
            note("7 nothing is set aside for a sticky node", is_sticky & (need_mw == 0))
            note("7 watts are set aside for a sticky node that is off", is_sticky & (need_mw > 0))
            return need_mw

        def _largest_mw(self, beyond_mw: Ints) -> int:
            found_mw = super()._largest_mw(beyond_mw)
            note("7 watts are set aside for reboots", found_mw > 0)
            k = self.terms.failing_together
            note("7 of the nodes that may reboot only the k largest count", 0 < k < np.count_nonzero(beyond_mw > 0))
            return found_mw

        def _affordable(self, now_s: float, at: Ints, costs_mw: Ints) -> Bools:
            has_room = super()._affordable(now_s, at, costs_mw)
            if self.is_young:
                note("9 no raise while older leases may run", ~has_room)
                return has_room
            note("1 a raise has room", has_room & (costs_mw > 0))
            note("1 a raise waits for watts", ~has_room & (costs_mw > 0))
            note("1 of several raises only some have room", has_room.any() and not has_room.all())
            left_mw = super().spendable_mw(now_s) - self.total_mw - int(costs_mw[has_room].sum())
            note("7 a raise waits for the reserve alone", ~has_room & (costs_mw > 0) & (costs_mw <= left_mw))
            return has_room

        def _new_boot(self, at: Ints, boot_ids: Sequence[str]) -> None:
            note("8 a reboot voids a grant", (self.accounts.open_mw[:, at] >= 0).any(axis=0))
            super()._new_boot(at, boot_ids)

        def _hear(self, now_s: float, reports: Sequence[Report]) -> Sequence[Report]:
            accounts = self.accounts
            known = [one for one in reports if one.node in accounts]
            at = accounts.at([one.node for one in known])
            is_new, is_past = accounts.compare_boots(at, [one.boot_id for one in known])
            report_id = np.array([one.report_id for one in known], np.int64)
            note("8 a report from before a reboot is void", is_past)
            note("2 a report that was overtaken is void", ~is_past & ~is_new & (report_id < accounts.report_id[at]))
            had_left, owed = accounts.has_left[at], accounts.owes_epoch[at]
            with _noting_deposed():
                taken = super()._hear(now_s, reports)
            note("4 a node that had left is back", had_left & ~accounts.has_left[at] & ~is_new)
            note("9 a node has acknowledged the epoch", owed & ~accounts.owes_epoch[at])
            return taken

        def _note_unbacked(self, at: Ints, in_force_mw: Ints) -> None:
            before_mw = self.accounts.backed_mw[at]
            super()._note_unbacked(at, in_force_mw)
            note("8 a report above the count is not granted on", self.accounts.backed_mw[at] < before_mw)

        def _mind_epoch(self, now_s: float, at: Ints, seen_epoch: Ints) -> None:
            before = self.epoch
            super()._mind_epoch(now_s, at, seen_epoch)
            note("9 the store has lost the epoch and a newer one is taken", self.epoch != before)

        def _recount(self, now_s: float, at: Ints) -> None:
            super()._recount(now_s, at)
            self._note_counts(now_s, at)

        def _note_counts(self, now_s: float, at: Ints) -> None:
            """Which rule the count of each node is by: of those that apply, the last."""
            accounts, count_mw, leased_mw = self.accounts, self.accounts.count_mw[at], self._leased_mw(at)
            left = np.ones(len(at), np.bool_)

            def by(applies: Bools) -> Bools:
                nonlocal left
                found, left = left & applies, left & ~applies
                return found

            note("6 a node known to be off counts nothing", by(accounts.is_off[at]) & (count_mw == 0))
            unheard, is_leased = by(accounts.heard_s[at] == -np.inf), accounts.is_leased[at]
            note("8 a node never heard of counts its TDP", unheard & ~is_leased & (count_mw == accounts.tdp_mw[at]))
            note("9 a stored count is reloaded", unheard & is_leased & self.is_young)
            is_believed = self._is_certain and not self.is_young
            note("9 a stored count is taken to have lapsed", unheard & is_leased & is_believed)
            is_lost = not self._is_certain and not self.is_young
            note("9 a stored count is not believed", unheard & is_leased & is_lost)
            note("4 a node that has left counts its TDP", by(accounts.has_left[at]))
            silent = by((now_s >= self._deadline_s(at)) & (accounts.target_mw[at] >= 0))
            is_sticky, safe_mw = accounts.is_sticky[at], accounts.safe_mw[at]
            note("6 a silent sticky node keeps its count", silent & is_sticky)
            note("6 a silent node fell to its safe cap", silent & ~is_sticky & (count_mw < leased_mw))
            note(
                "7 a silent node counts its boot power",
                silent & ~is_sticky & (count_mw > np.minimum(leased_mw, safe_mw)),
            )
            unconfirmed = by(~accounts.has_confirmed[at])
            note("8 a node that joins counts its TDP", unconfirmed & ~is_leased)
            what = "8 a node that has confirmed nothing since its boot counts more than its cap"
            note(what, unconfirmed & is_leased & (count_mw > leased_mw))
            what = "1 a grant not retired counts more than the cap that was confirmed"
            note(what, left & (count_mw > accounts.limit_mw[at]))

        def _changes(self, now_s: float) -> tuple[Ints, Ints]:
            accounts = self.accounts
            is_other = (accounts.wanted_mw >= 0) & (accounts.wanted_mw != accounts.target_mw)
            at = np.flatnonzero(is_other | accounts.is_leaving)
            caps_mw = np.where(accounts.is_leaving[at], accounts.tdp_mw[at], accounts.wanted_mw[at])
            is_reached = self._can_be_reached(now_s, at)
            is_within = (caps_mw <= accounts.count_mw[at]) & (caps_mw > self._heading_mw(at)) & is_reached
            sent, sent_mw = super()._changes(now_s)
            is_sent = np.isin(at, sent)
            note("2 a cap waits for a report that it can answer", ~is_reached & ~accounts.has_left[at])
            note("10 a cap within the count is granted though above the one before it", is_within & is_sent)
            is_debt = not self.is_young
            note("10 a cap within the count waits while the sum must fall", is_within & ~is_sent & is_debt)
            note("4 a node that wants leave has to wait", accounts.is_leaving[at] & is_reached & ~is_sent)
            return sent, sent_mw

        def _renewed_mw(self, at: Ints) -> Ints:
            renewed_mw = super()._renewed_mw(at)
            note("1 a renewal is no more than what is in force", renewed_mw < self.accounts.target_mw[at])
            return renewed_mw

        def _send(self, now_s: float, at: Ints, caps_mw: Ints) -> list[Grant]:
            is_full = (self.accounts.open_mw[:, at] > caps_mw).all(axis=0)
            made = super()._send(now_s, at, caps_mw)
            note("1 a fifth open grant is taken together with the lowest", is_full)
            note("4 a node is given leave", [one.is_leave for one in made])
            return made

        def _commit(self, at: Ints, caps_mw: Ints) -> None:
            stored_mw = self.accounts.stored_mw.copy()
            super()._commit(at, caps_mw)
            is_more = (self.accounts.stored_mw > stored_mw).any()
            note("1 what counts more is stored before it is sent", is_more)
            note("1 nothing is stored where nothing counts more", not is_more)

    class CountingLease(NodeLease):
        def take(self, now_ns: int, grant: Grant) -> str:
            why = super().take(now_ns, grant)
            rule = "3" if why == "its lease is over" else "2"
            note(f"{rule} refused: {why}" if why else "2 a node takes a grant")
            return why

        def lapse(self, now_ns: int) -> bool:
            is_over = now_ns >= self.lease_end_ns
            has_fallen = super().lapse(now_ns)
            note("4 a lease ends and the cap falls to the safe cap", has_fallen)
            note("4 a lease ends and the cap, not above the safe cap, stays", is_over and not has_fallen)
            return has_fallen

        def confirm(self, effect: Effect) -> None:
            super().confirm(effect)
            note("5 a cap is confirmed by its effect", effect == "seen")
            note("5 a cap is confirmed provisionally", effect == "provisional")

    class _noting_deposed:
        def __enter__(self) -> None: ...

        def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
            note("9 an older ledger is deposed", kind is DeposedError)

    return CountingLedger, CountingLease
