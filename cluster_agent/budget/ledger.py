"""The ledger: how much each node may draw at most, and how that changes without the sum ever passing the budget.

For every node the ledger keeps a *count*: no less than the highest cap that may be in force there now or later, by all
that has been sent and received, whatever the network lost. The sum of counts, the fixed power and a reserve for nodes
that reboot at once must stay within the budget before a raise is sent. So a lower cap frees watts only when the node
confirms it. A lost message, a late one or a dead node leaves watts unused, but never exceeds the budget.

What moves a count, and the rule it follows (docs/ledger.md):

    a grant is sent           up to its cap if that is more, committed to the store first           1, 2
    a cap is confirmed        to the reported limit or the highest grant still open                 5
    a grant's time is over    it may have been taken, and then lapsed to the safe cap         3, 4
    the last lease is over    to the lesser of itself and the safe cap, but at least the boot power  6, 7
    a node has rebooted       at least safe cap and boot power, until it confirms                    8
    a node was never heard    its TDP                                                                8
    a node leaves             its TDP, before it may                                                 4
    a node is switched off    nothing, once it has no power                                          6
    a node is switched on     at least safe cap and boot power, before it may be                     8

The inputs are the time (CLOCK_BOOTTIME of this machine, seconds), the reports that arrive, and the wanted caps; the
ledger returns the grants to send. It opens no socket and reads no clock, so a simulation can test it with any fault.

Every rule works on many nodes at once, since a change of the budget moves the caps of all of them; ``at`` are their
places in the columns of ``Accounts``.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from cluster_agent.budget.accounts import FORGOTTEN, NONE, UNBOUNDED, Accounts, Bools, Floats, Ints
from cluster_agent.budget.budget_line import BudgetLine
from cluster_agent.budget.kept_counts import NOTHING, Change, LedgerStore, Snapshot
from cluster_agent.budget.levels import Levels
from foundation.wire.power_messages import Declaration, Grant, Report

EPOCH_LEAP: Final = 1 << 20
"""Ours: as many restarts a store may have lost. 2**62 epochs fit into a message."""

CLOCK_RATE_ERROR: Final = 1e-3
"""Clocks of nodes and of this machine run at rates within this of true time."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What an administrator sets. Powers in mW.

    ``fixed_mw``: what the budget also pays for and nobody caps (switches, storage, nodes without an agent).
    ``failing_together``: how many nodes may reboot at once, by default those of one chassis.
    """

    fixed_mw: int = 0
    failing_together: int = 1
    lease_s: float = 10.0
    renew_after: float = 0.3  # of a lease


class Ledger:
    """One partition's ledger, owned from here on under a new epoch of ``store``."""

    def __init__(
        self, store: LedgerStore, terms: Terms, budget: BudgetLine, now_s: float, levels: Levels | None = None
    ) -> None:
        """``levels``: limits of groups of nodes. ``DeposedError`` or another ``ClusterError`` if the store cannot be
        taken over."""
        self.terms = terms
        self.budget = budget
        self.levels = levels or Levels()
        self.accounts = Accounts()
        self.total_mw = 0
        """Of all counts."""
        self._slowest_s = 0.0
        self._next_s = math.inf  # no deadline is earlier
        self._store = store
        snapshot = store.take_over()
        self.epoch = snapshot.epoch
        self._is_certain = snapshot.is_certain
        self._young_until_s = now_s
        self._restore(now_s, snapshot)

    # --- what happens

    def hear(self, now_s: float, *reports: Report) -> list[Report]:
        """Take the reports of nodes; return those that count. A report older than the last one of its node is void.

        ``DeposedError``: a node has seen a newer cluster agent's epoch, and the store confirms it.
        """
        taken: list[Report] = []
        for one_of_each in _one_of_each_node(reports):
            taken += self._hear(now_s, one_of_each)
        return taken

    def expect(self, now_s: float, nodes: Mapping[str, Declaration]) -> None:
        """Add nodes that belong to the partition. A node without a report counts at its TDP."""
        self._recount(now_s, self._add({name: one for name, one in nodes.items() if name not in self.accounts}))
        accounts = self.accounts
        back = accounts.at([name for name in nodes if accounts.is_forgotten[accounts.places[name]]])
        if len(back):
            self._declare(back, [nodes[accounts.names[place]] for place in back.tolist()])
            accounts.limit_mw[back] = accounts.tdp_mw[back]
            self._recount(now_s, back)

    def forget(self, now_s: float, name: str, change: Change | None = None) -> None:
        """The node has no power, as a person states, and does not belong to the partition any more: it counts nothing,
        and that is stored, with who said so. If it reports all the same, it counts like one that was never heard of.

        ``DeposedError`` and ``ClusterError`` as ``grants``; then nothing has changed.
        """
        at, accounts = self.accounts.at([name]), self.accounts
        counts_mw = accounts.stored_mw.copy()
        counts_mw[at] = NONE
        nodes = {place: (accounts.names[place], accounts.declarations[place]) for place in accounts.unstored}
        who = {} if change is None else {"change": change}
        self._store.commit(self.epoch, {**nodes, int(at[0]): (name, FORGOTTEN)}, at, counts_mw, **who)
        self._declare(at, [FORGOTTEN])
        accounts.unstored.clear()
        accounts.close_grants(at)
        accounts.boot_ids[int(at[0])] = ""  # of this boot, too, it starts like a new node
        accounts.limit_mw[at] = 0
        accounts.heard_s[at], accounts.watch_s[at] = -math.inf, math.inf
        for column in (accounts.stored_mw, accounts.target_mw, accounts.wanted_mw, accounts.granted_report_id,
                       accounts.least_granted_mw):  # fmt: skip
            column[at] = NONE
        for is_so in (accounts.is_leased, accounts.has_confirmed, accounts.is_leaving, accounts.has_left,
                      accounts.is_awaited, accounts.is_disbelieved, accounts.owes_epoch):  # fmt: skip
            is_so[at] = False
        self._note_off(at, False)
        self._recount(now_s, at)

    def switched_off(self, now_s: float, name: str) -> None:
        """The node has no power, as something other than its agent reports: it counts nothing until its next report."""
        at, accounts = self.accounts.at([name]), self.accounts
        self._note_off(at, True)
        accounts.has_left[at] = False
        accounts.close_grants(at)
        accounts.limit_mw[at] = 0
        accounts.owes_epoch[at] = False  # it has no lease of anybody's
        self._recount(now_s, at)

    def await_boots(self, names: Iterable[str]) -> None:
        """Set the nodes that are to be switched on, these and no others: ``plan`` sets watts aside for them."""
        self.accounts.is_awaited[:] = False
        self.accounts.is_awaited[self.accounts.at(list(names))] = True

    def boot_costs_mw(self, at: Ints) -> Ints:
        """How much more these nodes would count once they are switched on."""
        costs_mw: Ints = np.maximum(self._unconfirmed_mw(at, self._leased_mw(at)) - self.accounts.count_mw[at], 0)
        return costs_mw

    def switch_on(self, now_s: float, name: str) -> bool:
        """Whether the node, which is off or silent, may be switched on now. True: from here on it counts as one that
        has booted (8), and that is on the disk. False: there are no watts for that yet.

        ``DeposedError`` and ``ClusterError`` as ``grants``.
        """
        self.pass_time(now_s)
        at, accounts = self.accounts.at([name]), self.accounts
        if accounts.is_forgotten[at].any():
            return False  # nothing says how much it would draw
        costs_mw = self.boot_costs_mw(at)
        if not self._affordable(now_s, at, costs_mw)[0]:
            return False
        self._commit(at, accounts.count_mw[at] + costs_mw)
        accounts.limit_mw[at] = np.maximum(accounts.limit_mw[at], accounts.count_mw[at] + costs_mw)
        self._note_off(at, False)
        accounts.is_awaited[at] = accounts.has_confirmed[at] = accounts.has_left[at] = False
        accounts.target_mw[at] = NONE
        self._recount(now_s, at)
        return True

    def want(self, at: Ints, caps_mw: Ints) -> None:
        """Set the wanted caps of the nodes at these places; ``grants`` approaches them as far as the budget allows."""
        self.accounts.wanted_mw[at] = caps_mw

    def grants(self, now_s: float, heard: Iterable[str] = (), only_stored: bool = False) -> list[Grant]:
        """What to send now: lower caps at once, raises as far as there is room, and renewals to the nodes ``heard``.
        ``only_stored``: nothing can be stored, so only what the stored counts cover.

        Counts are committed before the grants are returned. ``DeposedError``: another cluster agent owns the partition;
        ``ClusterError``: the store failed. Then nothing is sent, and nothing is lost.
        """
        self.pass_time(now_s)
        at, caps_mw = self._changes(now_s)
        if only_stored:
            at, caps_mw = self._stored(at, caps_mw)
        due = self._renewals(now_s, self.accounts.at(list(heard)), at)
        renewed_mw = self._renewed_mw(due)
        if only_stored:
            due, renewed_mw = self._stored(due, renewed_mw)
        return self._send(now_s, np.concatenate((at, due)), np.concatenate((caps_mw, renewed_mw)))

    def pass_time(self, now_s: float) -> None:
        """Count the nodes again whose grants or leases have run out."""
        self.budget.advance(now_s)
        accounts = self.accounts
        if now_s >= self._next_s:
            is_silent = accounts.watch_s <= now_s
            at = np.flatnonzero((accounts.open_deadline_s <= now_s).any(axis=0) | is_silent)
            self._retire_overdue(now_s, at)
            accounts.watch_s[is_silent] = math.inf
            self._recount(now_s, at)
            self._next_s = float(min(accounts.open_deadline_s.min(), accounts.watch_s.min()))
        if now_s >= self._young_until_s and self.is_young:
            grown_up = np.flatnonzero(accounts.owes_epoch)
            accounts.owes_epoch[:] = False
            self._recount(now_s, grown_up)

    # --- the present state

    @property
    def is_certain(self) -> bool:
        """Whether every commit was found: the store's machine has not been down since the last one."""
        return self._is_certain

    @property
    def reserve_mw(self) -> int:
        """What nodes that reboot together could draw in addition to their counts (7)."""
        return self._largest_mw(self.accounts.boot_need_mw - self.accounts.count_mw)

    def reserve_with_mw(self, at: Ints, caps_mw: Ints) -> int:
        """The same if the nodes at these places had these caps."""
        beyond_mw = self.accounts.boot_need_mw - self.accounts.count_mw
        beyond_mw[at] = self.accounts.boot_need_mw[at] - caps_mw
        return self._largest_mw(beyond_mw)

    @property
    def settle_s(self) -> float:
        """How long until a decrease is in force even on a node that is cut off now: its lease, its slowest knob, and,
        where software ends the lease, the watchdog."""
        return self._lease_here_s() + self._slowest_s

    @property
    def is_young(self) -> bool:
        """Whether leases of the ledger before this one may still be in force, so that nothing is raised (9)."""
        return bool(self.accounts.owes_epoch.any())

    def spendable_mw(self, now_s: float) -> int:
        """The budget that new decisions must keep, less what is fixed (10)."""
        return self.budget.spendable_mw(now_s, self.settle_s) - self.terms.fixed_mw

    def free_mw(self, now_s: float) -> int:
        """What could be granted on top now; below 0: counts and reserve must come down first."""
        return self.spendable_mw(now_s) - self.total_mw - self.reserve_mw

    def over_mw(self, now_s: float) -> int:
        """By how much nodes could exceed the budget in force: above 0 also while they are being lowered to it."""
        self.budget.advance(now_s)
        return self.total_mw + self.terms.fixed_mw - self.budget.budget_mw

    def breach_mw(self, now_s: float) -> int:
        """By how much they could exceed what is promised (10); above 0: an alarm."""
        return self.total_mw + self.terms.fixed_mw - self.budget.promised_mw(now_s)

    def is_silent(self, now_s: float) -> Bools:
        """Per node, whether it has not reported for so long that it has no lease any more."""
        accounts = self.accounts
        return now_s >= accounts.heard_s + self._lease_here_s() + accounts.after_lease_s

    def is_within_reach(self, now_s: float) -> Bools:
        """Per node, whether a cap can be planned for it: it reports, or the ledger before had granted it a cap and it
        may report any moment."""
        accounts = self.accounts
        is_inherited = accounts.is_leased & ~accounts.is_heard if self.is_young else np.False_
        return ~accounts.has_left & (is_inherited | ~self.is_silent(now_s))

    def trouble(self, is_trial: bool = False) -> str:
        """Why nothing can be stored, "" if it can; ``is_trial``: try it now."""
        return self._store.trouble(is_trial)

    # --- the rules, each where it can be read alone

    def _in_force_mw(self, limit_mw: Ints, power_mw: Ints, is_provisional: Bools) -> Ints:
        """The highest cap in force by a report (5): a provisional cap counts as the measured power if that is more."""
        return np.where(is_provisional, np.maximum(limit_mw, power_mw), limit_mw)

    def _retire_confirmed(self, at: Ints, sequence: Ints) -> None:
        """A confirmed sequence retires itself and all before it (5)."""
        is_confirmed = self.accounts.open_sequence[:, at] <= sequence
        if is_confirmed.any():
            self.accounts.close_grants(at, is_confirmed)
        newest = at[sequence >= self.accounts.sequence[at]]
        self.accounts.least_granted_mw[newest] = self.accounts.target_mw[newest]

    def _retire_overdue(self, now_s: float, at: Ints) -> None:
        """A grant whose time is over can no longer be taken (3). If the node took it, it has fallen to its safe cap
        since (4), or, with a sticky controller, still has the cap (6)."""
        accounts = self.accounts
        cap_mw, is_over = accounts.open_mw[:, at], accounts.open_deadline_s[:, at] <= now_s
        left_mw = np.where(accounts.is_sticky[at], cap_mw, np.minimum(cap_mw, accounts.safe_mw[at]))
        accounts.limit_mw[at] = np.maximum(accounts.limit_mw[at], np.where(is_over, left_mw, 0).max(axis=0))
        accounts.close_grants(at, is_over)

    def _lease_here_s(self) -> float:
        """A node's lease by this machine's clock: the node's may be slow, and ours fast (3)."""
        return self.terms.lease_s * (1 + CLOCK_RATE_ERROR) / (1 - CLOCK_RATE_ERROR)

    def _deadline_s(self, at: Ints) -> Floats:
        """When a lease that answers the last report is surely over, and the node has acted on that (3, 6)."""
        return self.accounts.heard_s[at] + self._lease_here_s() + self.accounts.after_lease_s[at]

    def _leased_mw(self, at: Ints) -> Ints:
        """The highest cap that may be in force while the node has a lease (1)."""
        open_mw: Ints = self.accounts.open_mw[:, at].max(axis=0)
        return np.maximum(self.accounts.limit_mw[at], open_mw)

    def _silent_mw(self, at: Ints, leased_mw: Ints) -> Ints:
        """What a node without a lease may draw (6, 7): it fell to its safe cap, or is booting."""
        accounts = self.accounts
        fallen_mw = np.maximum(np.minimum(leased_mw, accounts.safe_mw[at]), accounts.boot_mw[at])
        return np.where(accounts.is_sticky[at], leased_mw, fallen_mw)

    def _unconfirmed_mw(self, at: Ints, leased_mw: Ints) -> Ints:
        """What a node may draw that has confirmed nothing since its boot (8); one that joins may draw anything."""
        accounts = self.accounts
        least_mw = np.maximum(accounts.safe_mw[at], accounts.boot_mw[at])
        least_mw = np.where(accounts.is_leased[at], least_mw, np.maximum(least_mw, accounts.tdp_mw[at]))
        return np.maximum(leased_mw, least_mw)

    def _boot_need_mw(self, at: Ints) -> Ints:
        """What to set aside for the node's reboot (7). A sticky controller keeps its cap through a reboot, but not
        without power: a node that is off may come up by itself, whatever its lease class."""
        accounts = self.accounts
        return np.where(accounts.is_sticky[at] & ~accounts.is_off[at], 0, accounts.boot_mw[at])

    def _heading_mw(self, at: Ints) -> Ints:
        """The count once all open grants have retired. While the sum of counts must fall (10), a grant above this is a
        raise even if it is below the present count: it would stop the fall."""
        target_mw = self.accounts.target_mw[at]
        heading_mw = np.where(target_mw >= 0, target_mw, self.accounts.safe_mw[at])
        return np.minimum(heading_mw, self.accounts.backed_mw[at])

    def _new_boot(self, at: Ints, boot_ids: Sequence[str]) -> None:
        """A reboot voids all that was granted (8)."""
        accounts = self.accounts
        for place, boot_id in zip(at.tolist(), boot_ids, strict=True):
            accounts.reboot(place, boot_id)
        accounts.close_grants(at)
        accounts.has_confirmed[at] = accounts.has_left[at] = False
        accounts.target_mw[at] = accounts.granted_report_id[at] = accounts.least_granted_mw[at] = NONE

    def _largest_mw(self, beyond_mw: Ints) -> int:
        """The sum of the k largest, none below 0 (7)."""
        k = min(self.terms.failing_together, len(beyond_mw))
        return int(np.maximum(np.partition(beyond_mw, len(beyond_mw) - k)[len(beyond_mw) - k :], 0).sum()) if k else 0

    def _affordable(self, now_s: float, at: Ints, costs_mw: Ints) -> Bools:
        """Which raises there is room for (1, 7, 10), cheapest first; none while older leases may run (9).

        A raise within the node's count costs nothing, but needs a sum that is within the budget."""
        is_affordable = np.zeros(len(at), np.bool_)
        if not len(at) or self.is_young:
            return is_affordable
        in_turn = np.lexsort((at, costs_mw))
        if self.levels.names:  # rule 11: what its groups cannot bear is left out first
            in_turn = in_turn[self._fit_groups(now_s, at[in_turn], costs_mw[in_turn])]
            if not len(in_turn):
                return is_affordable
        at, costs_mw = at[in_turn], costs_mw[in_turn]
        total_mw = self.total_mw + np.cumsum(costs_mw)
        beyond_mw = self.accounts.boot_need_mw - self.accounts.count_mw
        spendable_mw = self.spendable_mw(now_s)

        def exceeds(n: int) -> bool:
            """Whether the cheapest n are too many. A raise adds its cost, and may lower the reserve by as much."""
            still_mw = beyond_mw.copy()
            still_mw[at[:n]] -= costs_mw[:n]
            return int(total_mw[n - 1]) + self._largest_mw(still_mw) > spendable_mw

        n = len(at) if not exceeds(len(at)) else bisect.bisect_left(range(1, len(at)), True, key=exceeds)
        is_affordable[in_turn[:n]] = True
        return is_affordable

    def _fit_groups(self, now_s: float, at: Ints, costs_mw: Ints) -> Bools:
        """Which raises there is room for in every group of their node (11)."""
        spendable_mw = self.levels.spendable_mw(now_s, self.settle_s)
        return self.levels.fitting(self.accounts, self.terms.failing_together, spendable_mw, at, costs_mw)

    def _restored_mw(self, at: Ints, stored_mw: Ints) -> Ints:
        """What a node may draw that only the store knows (8, 9); its stored count is not used if commits were lost."""
        accounts = self.accounts
        tdp_mw = accounts.tdp_mw[at]
        if not self.is_young:
            stored_mw = self._silent_mw(at, stored_mw if self._is_certain else tdp_mw)
        return np.where(accounts.is_leased[at], stored_mw, tdp_mw)

    def _left_mw(self, at: Ints, leased_mw: Ints) -> Ints:
        """What a node may draw that was granted leave, which is uncapped (4)."""
        return np.maximum(leased_mw, self.accounts.tdp_mw[at])

    def _off_mw(self, at: Ints, leased_mw: Ints) -> Ints:
        """What a node draws that is known to be without power (6)."""
        return np.zeros_like(leased_mw)

    # --- how they are applied

    def _restore(self, now_s: float, snapshot: Snapshot) -> None:
        if snapshot.names:
            accounts = self.accounts
            at = self._add(dict(zip(snapshot.names, snapshot.declarations, strict=True)))
            accounts.unstored.clear()
            # nodes after the last one that was granted anything have no count
            accounts.stored_mw[: len(snapshot.counts_mw)] = snapshot.counts_mw
            accounts.is_leased[:] = accounts.stored_mw >= 0
            accounts.limit_mw[:] = np.where(accounts.is_leased, accounts.stored_mw, accounts.tdp_mw)
            self._be_young(now_s)
            self._recount(now_s, at)

    def _be_young(self, now_s: float) -> None:
        self.accounts.owes_epoch[:] = True
        self._young_until_s = now_s + self.settle_s

    def _hear(self, now_s: float, reports: Sequence[Report]) -> Sequence[Report]:
        """Take reports, one per node."""
        accounts = self.accounts
        self._add({one.node: one.declaration for one in reports if one.node not in accounts.places})
        at = accounts.at([one.node for one in reports])
        is_new_boot, is_past_boot = accounts.compare_boots(at, [one.boot_id for one in reports])
        report_id = np.array([one.report_id for one in reports], np.int64)
        is_void = is_past_boot | (~is_new_boot & (report_id <= accounts.report_id[at]))
        kept = np.flatnonzero(~is_void)
        at, is_new_boot, report_id = at[kept], is_new_boot[kept], report_id[kept]
        reports = [reports[n] for n in kept.tolist()]
        if not reports:
            return reports
        rows = [
            (one.seen_epoch, one.epoch, one.sequence, one.limit_mw, one.power_mw, one.useful_mw, one.is_leaving,
             one.effect == "provisional", one.declaration != accounts.declarations[place])
            for place, one in zip(at.tolist(), reports, strict=True)
        ]  # fmt: skip
        columns = np.array(rows, np.int64).T
        seen_epoch, epoch, sequence, limit_mw, power_mw, useful_mw = columns[:6]
        is_leaving, is_provisional, is_declared = columns[6:].astype(np.bool_)
        self._mind_epoch(now_s, at, seen_epoch)
        if is_new_boot.any():
            self._new_boot(at[is_new_boot], [reports[n].boot_id for n in np.flatnonzero(is_new_boot).tolist()])
        accounts.report_id[at], accounts.seen_epoch[at], accounts.heard_s[at] = report_id, seen_epoch, now_s
        accounts.is_leaving[at] = is_leaving
        accounts.useful_mw[at] = np.where(useful_mw >= 0, useful_mw, UNBOUNDED)
        self._note_off(at[accounts.is_off[at]], False)
        is_back = accounts.has_left[at] & ~is_leaving  # its agent runs again
        accounts.has_left[at] &= ~is_back
        accounts.has_confirmed[at] = (accounts.has_confirmed[at] & ~is_back) | (sequence > 0)
        if is_declared.any():
            self._declare(at[is_declared], [reports[n].declaration for n in np.flatnonzero(is_declared).tolist()])
        self._retire_confirmed(at, np.where(epoch == self.epoch, sequence, NONE))
        accounts.limit_mw[at] = in_force_mw = self._in_force_mw(limit_mw, power_mw, is_provisional)
        self._note_unbacked(at, in_force_mw)
        accounts.watch_s[at] = deadline_s = self._deadline_s(at)
        self._next_s = min(self._next_s, float(deadline_s.min()))
        if self._is_certain:
            accounts.owes_epoch[at] &= seen_epoch != self.epoch
        self._recount(now_s, at)
        return reports

    def _note_unbacked(self, at: Ints, in_force_mw: Ints) -> None:
        """A node that reports a cap above what it counted is granted no more than that count for now, but at least its
        MOP, below which it cannot be capped (8)."""
        accounts = self.accounts
        unbacked = at[in_force_mw > accounts.count_mw[at]]
        backed_mw = np.maximum(accounts.count_mw[unbacked], accounts.mop_mw[unbacked])
        accounts.backed_mw[unbacked] = np.minimum(accounts.backed_mw[unbacked], backed_mw)

    def _mind_epoch(self, now_s: float, at: Ints, seen_epoch: Ints) -> None:
        """A node has heard of an epoch that is not ours: we are deposed, or the store has lost one, or it lies.

        It is believed once, and not if the epoch is so far ahead that no store can have lost the way to it. So a node
        that lies can neither keep the ledger young, in which nobody's cap is raised, nor use up the epochs.
        """
        accounts = self.accounts
        is_claim = (seen_epoch > self.epoch) | ((seen_epoch == self.epoch) & (accounts.sequence[at] == 0))
        is_lie = is_claim & (accounts.has_claimed[at] | (seen_epoch > self.epoch + EPOCH_LEAP))
        accounts.is_disbelieved[at] = is_lie
        accounts.has_claimed[at] |= is_claim
        believed = seen_epoch[is_claim & ~is_lie]
        if len(believed):
            self._store.commit(self.epoch, {}, NOTHING, NOTHING)  # raises if we are deposed
            self.epoch = self._store.take_over(int(believed.max()) + 1).epoch
            self._is_certain = False
            self._be_young(now_s)

    def _add(self, nodes: dict[str, Declaration]) -> Ints:
        at = self.accounts.add(nodes) if nodes else np.zeros(0, np.int64)
        self.levels.add(nodes)
        self._note_declared(at)
        return at

    def _declare(self, at: Ints, declarations: Sequence[Declaration]) -> None:
        self.accounts.declare(at, declarations)
        self._note_declared(at)

    def _note_off(self, at: Ints, is_off: bool) -> None:
        self.accounts.is_off[at] = is_off
        self.accounts.boot_need_mw[at] = self._boot_need_mw(at)

    def _note_declared(self, at: Ints) -> None:
        self.accounts.boot_need_mw[at] = self._boot_need_mw(at)
        self._slowest_s = float(self.accounts.after_lease_s[at].max(initial=self._slowest_s))

    def _recount(self, now_s: float, at: Ints) -> None:
        """Compute the counts of these nodes; where several rules apply to a node, the last one decides."""
        accounts = self.accounts
        leased_mw = self._leased_mw(at)
        count_mw = leased_mw
        for applies, rule in (
            (~accounts.has_confirmed[at], self._unconfirmed_mw),
            ((now_s >= self._deadline_s(at)) & (accounts.target_mw[at] >= 0), self._silent_mw),
            (accounts.has_left[at], self._left_mw),
            (accounts.heard_s[at] == -math.inf, self._restored_mw),
            (accounts.is_off[at], self._off_mw),
        ):
            if applies.any():
                count_mw = np.where(applies, rule(at, leased_mw), count_mw)
        self.total_mw += int((count_mw - accounts.count_mw[at]).sum())
        accounts.count_mw[at] = count_mw

    def _can_be_reached(self, now_s: float, at: Ints) -> Bools:
        """A grant must answer a recent report, or its lease would end soon after it arrives."""
        is_fresh = now_s - self.accounts.heard_s[at] < self.terms.lease_s / 2
        return is_fresh & ~self.accounts.has_left[at]

    def _changes(self, now_s: float) -> tuple[Ints, Ints]:
        """The nodes within reach whose cap is to change now, and the new caps."""
        accounts = self.accounts
        is_other = (accounts.wanted_mw >= 0) & (accounts.wanted_mw != accounts.target_mw)
        at = np.flatnonzero(is_other | accounts.is_leaving)
        if len(at):
            at = at[self._can_be_reached(now_s, at)]
        caps_mw = np.where(accounts.is_leaving[at], accounts.tdp_mw[at], accounts.wanted_mw[at])
        if not len(at):
            return at, caps_mw
        costs_mw = np.maximum(caps_mw - accounts.count_mw[at], 0)
        is_raise = (costs_mw > 0) | (caps_mw > self._heading_mw(at))
        is_sent = ~is_raise
        is_sent[is_raise] = self._affordable(now_s, at[is_raise], costs_mw[is_raise])
        return at[is_sent], caps_mw[is_sent]

    def _renewed_mw(self, at: Ints) -> Ints:
        """The cap to renew: the one granted last, or less if the node has fallen below it, since a renewal raises
        nothing. For a node without a grant in this boot it is the cap in force there, or the wanted cap if that is
        less.

        A renewal must not use watts that were given to others. Two kinds of node report a cap above their count: one
        that was suspended beyond its watchdog time and wakes with the cap that it was taken to have lost, and one that
        has rebooted, which has no cap. The sum of counts is then above the budget until caps are confirmed lower. If
        the node were renewed at what it reports, it would keep for a lease the watts that others have been granted
        since. So the answer to that very report grants it at most its count from before (``backed_mw``). Renewals of
        others are at most their counts, and raises (``_changes``) find no room. So after such a report no grant adds to
        the sum, and the first one takes away what the node had added."""
        accounts = self.accounts
        target_mw, wanted_mw = accounts.target_mw[at], accounts.wanted_mw[at]
        in_force_mw = np.minimum(accounts.limit_mw[at], accounts.tdp_mw[at])
        in_force_mw = np.where(wanted_mw >= 0, np.minimum(in_force_mw, wanted_mw), in_force_mw)
        renewed_mw = np.where(target_mw >= 0, np.minimum(target_mw, self._leased_mw(at)), in_force_mw)
        return np.minimum(renewed_mw, accounts.backed_mw[at])

    def _stored(self, at: Ints, caps_mw: Ints) -> tuple[Ints, Ints]:
        """The nodes and caps that need no commit."""
        is_stored = np.maximum(caps_mw, self.accounts.count_mw[at]) <= self.accounts.stored_mw[at]
        return at[is_stored], caps_mw[is_stored]

    def _renewals(self, now_s: float, heard: Ints, sent: Ints) -> Ints:
        """Those of the nodes ``heard`` whose leases are to be renewed and that are sent no new cap."""
        accounts = self.accounts
        is_candidate = np.zeros(len(accounts), np.bool_)
        is_candidate[heard] = True
        is_candidate[sent] = False
        heard = np.flatnonzero(is_candidate)
        age_ns = accounts.report_id[heard] - accounts.granted_report_id[heard]
        is_due = age_ns >= self.terms.renew_after * self.terms.lease_s * 1e9
        is_due |= (accounts.granted_report_id[heard] < 0) | (accounts.seen_epoch[heard] != self.epoch)
        return heard[is_due & self._can_be_reached(now_s, heard)]

    def _send(self, now_s: float, at: Ints, caps_mw: Ints) -> list[Grant]:
        if not len(at):
            return []
        self._commit(at, caps_mw)
        accounts = self.accounts
        accounts.sequence[at] += 1
        accounts.target_mw[at], accounts.granted_report_id[at] = caps_mw, accounts.report_id[at]
        accounts.is_leased[at] = True
        accounts.backed_mw[at] = UNBOUNDED  # from here on the new grant is the bound
        accounts.has_left[at] = accounts.is_leaving[at] & (caps_mw >= accounts.tdp_mw[at])
        accounts.open_grants(at, caps_mw, self._deadline_s(at))
        self._next_s = min(self._next_s, float(accounts.open_deadline_s[:, at].min()))
        self._recount(now_s, at)
        lease_ns, epoch = round(self.terms.lease_s * 1e9), self.epoch
        names, boot_ids = accounts.names, accounts.boot_ids
        columns = (at, accounts.sequence[at], caps_mw, accounts.report_id[at], accounts.has_left[at])
        return [
            Grant(names[place], epoch, boot_ids[place], sequence, cap_mw, report_id, lease_ns, is_leave)
            for place, sequence, cap_mw, report_id, is_leave in zip(*(one.tolist() for one in columns), strict=True)
        ]

    def _commit(self, at: Ints, caps_mw: Ints) -> None:
        """Store every count before it can rise. Counts that fell are stored at the same time, but are no reason to
        write."""
        accounts = self.accounts
        counts_mw = np.where(accounts.is_leased, accounts.count_mw, NONE)
        counts_mw[at] = np.maximum(caps_mw, accounts.count_mw[at])
        if (counts_mw[at] <= accounts.stored_mw[at]).all():
            self._store.commit(self.epoch, {}, NOTHING, NOTHING)  # raises if we are deposed
            return
        nodes = {place: (accounts.names[place], accounts.declarations[place]) for place in accounts.unstored}
        changed = np.flatnonzero(counts_mw != accounts.stored_mw)
        self._store.commit(self.epoch, nodes, changed, counts_mw)
        accounts.stored_mw[:] = counts_mw
        accounts.unstored.clear()


def _one_of_each_node(reports: Sequence[Report]) -> Iterator[list[Report]]:
    """The reports in order, split so that no part has two of one node."""
    while reports:
        first: dict[str, Report] = {}
        later = [one for one in reports if first.setdefault(one.node, one) is not one]
        yield list(first.values())
        reports = later
