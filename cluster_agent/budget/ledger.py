"""The ledger: how much each node may draw at most, and how that changes without the sum ever passing the budget.

For every node the ledger keeps a *count*: no less than the highest cap that may act there now or later by what has
been sent and heard, whatever the network lost. Sum of counts + what is fixed + a reserve for nodes that may reboot at
once must stay within the budget before a raise is sent. So lowering a cap frees watts only when the node confirms, and
a lost message, a late one or a dead node costs watts that nobody uses, and never the budget.

What moves a count, and the rule it follows (docs/ledger.md):

    a grant is sent           up to its cap if that is more, committed to the store first           1, 2
    a cap is confirmed        to the reported limit or the highest grant still open                 5
    a grant's time is over    it can no longer be taken, but it may have been, and lapsed            3, 4
    the last lease is over    to the lesser of itself and the safe cap, but at least the boot power  6, 7
    a node comes back anew    at least safe cap and boot power, until it confirms                    8
    a node was never heard    its TDP                                                                8
    a node leaves             its TDP, before it may                                                 4

The ledger is told the time (CLOCK_BOOTTIME of this machine, seconds), what arrives, and what caps are wanted; it
returns the grants to send. It opens no socket and reads no clock, so a simulation can try it with faults of any kind.
"""

from __future__ import annotations

import bisect
import heapq
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from cluster_agent.budget.line import BudgetLine
from cluster_agent.budget.store import LedgerStore, Snapshot, Stored
from nodectl.wire import Declaration, Grant, Report

CLOCK_RATE_ERROR: Final = 1e-3
"""Clocks of nodes and of this machine run at rates within this of true time."""

type_mw = npt.NDArray[np.int64]


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


@dataclass(slots=True)
class Open:
    """A grant that may still be taken, or may have been."""

    sequence: int
    cap_mw: int
    deadline_s: float


@dataclass(slots=True)
class Account:
    """What is known of one node."""

    index: int
    name: str
    declaration: Declaration
    limit_mw: int
    """The most that may act beside the open grants."""
    is_leased: bool = False
    """Whether it has ever been granted anything: only then does it fall to its safe cap by itself."""
    boot_id: str = ""
    past_boots: set[str] = field(default_factory=set)
    report_id: int = -1
    silent_from_s: float = math.inf
    """When every lease that answers its last report is over, and acted on."""
    is_watched: bool = False
    """Whether it is noticed when that time comes."""
    is_heard: bool = False
    has_confirmed: bool = False
    """Any grant, in this boot."""
    is_leaving: bool = False
    has_left: bool = False
    is_off: bool = False
    seen_epoch: int = -1
    sequence: int = 0
    open: list[Open] = field(default_factory=list)
    target_mw: int = -1
    """The cap granted last; -1: none in this boot."""
    wanted_mw: int = -1
    granted_report_id: int = -1


class Ledger:
    """One partition's ledger, owned from here on under a new epoch of ``store``."""

    def __init__(self, store: LedgerStore, terms: Terms, budget: BudgetLine, now_s: float) -> None:
        """``DeposedError`` or another ``ClusterError`` if the store cannot be taken over."""
        self.terms = terms
        self.budget = budget
        self.accounts: dict[str, Account] = {}
        self.count_mw: type_mw = np.zeros(0, np.int64)
        """Per node, by ``Account.index``."""
        self.total_mw = 0
        self._columns_mw: type_mw = np.zeros((2, 16), np.int64)  # counts and boot powers, and room for more nodes
        self._boot_mw: type_mw = np.zeros(0, np.int64)
        self._slowest_s = 0.0
        self._pending: dict[str, None] = {}  # reachable or not, they are to get another cap than they were granted
        self._deadlines: list[tuple[float, str]] = []  # of grants
        self._silences: list[tuple[float, str]] = []  # one per node heard, not later than its ``silent_from_s``
        self._store = store
        self._stored_mw: dict[str, int] = {}
        self._unstored: dict[str, None] = {}
        snapshot = store.load()
        self.epoch = store.take_epoch()
        self._is_certain = snapshot.is_certain
        self._unacknowledged: dict[str, None] = {}
        self._young_until_s = now_s
        self._restore(now_s, snapshot)

    # --- what happens

    def hear(self, now_s: float, report: Report) -> bool:
        """Take a node's report; False if it is void, being older than what is known.

        ``DeposedError``: the node has heard of a newer cluster agent, and the store says the same.
        """
        account = self.accounts.get(report.node) or self._add(report.node, report.declaration)
        is_new_boot = report.boot_id != account.boot_id
        if report.boot_id in account.past_boots or (not is_new_boot and report.report_id <= account.report_id):
            return False
        self._mind_epoch(now_s, account, report)
        if is_new_boot:
            self._new_boot(account, report)
        account.report_id, account.seen_epoch = report.report_id, report.seen_epoch
        account.is_heard, account.is_off, account.is_leaving = True, False, report.is_leaving
        if account.has_left and not report.is_leaving:  # its agent is back
            account.has_left, account.has_confirmed = False, False
        if report.declaration != account.declaration:
            self._declare(account, report.declaration)
        if report.epoch == self.epoch:
            self._retire_confirmed(account, report)
        account.has_confirmed |= report.sequence > 0
        account.limit_mw = self._acting_mw(report)
        account.silent_from_s = self._deadline_s(now_s, account)
        if not account.is_watched:
            account.is_watched = True
            heapq.heappush(self._silences, (account.silent_from_s, account.name))
        if account.seen_epoch == self.epoch and self._is_certain:
            self._unacknowledged.pop(account.name, None)
        if account.is_leaving or (account.wanted_mw >= 0 and account.wanted_mw != account.target_mw):
            self._pending[account.name] = None
        self._recount(now_s, account)
        return True

    def expect(self, now_s: float, name: str, declaration: Declaration) -> None:
        """A node that belongs to the partition and has not been heard of: it counts at its TDP."""
        if name not in self.accounts:
            self._recount(now_s, self._add(name, declaration))

    def switched_off(self, now_s: float, name: str) -> None:
        """The node is known to be without power, from elsewhere than itself: it counts nothing until it is heard."""
        account = self.accounts[name]
        account.is_off, account.open, account.has_left = True, [], False
        self._recount(now_s, account)

    def want(self, caps_mw: Mapping[str, int]) -> None:
        """The caps that the sharer wishes; ``grants`` goes towards them as far as the budget lets it."""
        for name, cap_mw in caps_mw.items():
            account = self.accounts[name]
            account.wanted_mw = cap_mw
            if cap_mw != account.target_mw:
                self._pending[name] = None

    def grants(self, now_s: float, heard: Iterable[str] = ()) -> list[Grant]:
        """What to send now: lower caps at once, raises as far as there is room, and renewals to the nodes ``heard``.

        What they may cause is committed before they are returned. ``DeposedError``: another cluster agent owns the
        partition; ``ClusterError``: the store is not to be had. Then nothing is sent, and nothing is lost.
        """
        self.pass_time(now_s)
        chosen: dict[str, int] = {}
        raises: list[tuple[int, Account, int]] = []
        for name in self._pending:
            account = self.accounts[name]
            if not self._can_be_reached(now_s, account):
                continue
            cap_mw = account.declaration.tdp_mw if account.is_leaving else account.wanted_mw
            cost_mw = max(cap_mw - int(self.count_mw[account.index]), 0)
            if cost_mw > 0 or cap_mw > self._heading_mw(account):
                raises.append((cost_mw, account, cap_mw))
            else:
                chosen[name] = cap_mw
        chosen |= self._affordable(now_s, raises)
        for name in heard:
            account = self.accounts[name]
            if name not in chosen and self._is_renewal_due(now_s, account):
                chosen[name] = self._holding_mw(account)
        return self._send(now_s, chosen)

    def pass_time(self, now_s: float) -> None:
        """Count anew what ran out since."""
        self.budget.advance(now_s)
        while self._deadlines and self._deadlines[0][0] <= now_s:
            account = self.accounts[heapq.heappop(self._deadlines)[1]]
            self._retire_overdue(now_s, account)
            self._recount(now_s, account)
        while self._silences and self._silences[0][0] <= now_s:
            account = self.accounts[heapq.heappop(self._silences)[1]]
            if account.silent_from_s > now_s:
                heapq.heappush(self._silences, (account.silent_from_s, account.name))
            else:
                account.is_watched = False
                self._recount(now_s, account)
        if self._unacknowledged and now_s >= self._young_until_s:
            grown_up, self._unacknowledged = self._unacknowledged, {}
            for name in grown_up:
                self._recount(now_s, self.accounts[name])

    # --- what holds

    @property
    def reserve_mw(self) -> int:
        """What nodes that reboot together could draw beyond their counts (7)."""
        return self._largest_mw(self._boot_mw - self.count_mw)

    def reserve_with_mw(self, index: type_mw, caps_mw: type_mw) -> int:
        """The same if the nodes at these indices had these caps."""
        beyond_mw = self._boot_mw - self.count_mw
        beyond_mw[index] = self._boot_mw[index] - caps_mw
        return self._largest_mw(beyond_mw)

    @property
    def settle_s(self) -> float:
        """How long until a decrease holds even on a node that is cut off now: its lease, its slowest knob, and, where
        software ends the lease, the watchdog."""
        return self._lease_here_s() + self._slowest_s

    @property
    def is_young(self) -> bool:
        """Whether leases of the ledger before this one may still be in force, so that nothing is raised (9)."""
        return bool(self._unacknowledged)

    def spendable_mw(self, now_s: float) -> int:
        """The budget that new decisions must keep, less what is fixed (10)."""
        return self.budget.spendable_mw(now_s, self.settle_s) - self.terms.fixed_mw

    def free_mw(self, now_s: float) -> int:
        """What could be granted on top now; below 0: counts and reserve must come down first."""
        return self.spendable_mw(now_s) - self.total_mw - self.reserve_mw

    def over_mw(self, now_s: float) -> int:
        """By how much nodes could exceed the budget in force; above 0: an alarm."""
        self.budget.advance(now_s)
        return self.total_mw + self.terms.fixed_mw - self.budget.budget_mw

    def is_silent(self, now_s: float, name: str) -> bool:
        """Whether nothing has come from the node for so long that it has no lease any more."""
        account = self.accounts[name]
        return not account.is_heard or now_s >= account.silent_from_s

    def is_within_reach(self, now_s: float, name: str) -> bool:
        """Whether a cap can be planned for the node: it is heard, or was by the ledger before and may be any moment."""
        account = self.accounts[name]
        is_inherited = self.is_young and account.is_leased and not account.is_heard
        return not account.has_left and (is_inherited or not self.is_silent(now_s, name))

    # --- the rules, each where it can be read alone

    def _acting_mw(self, report: Report) -> int:
        """What a report says may act (5): a provisional cap is trusted only as far as the draw that was measured."""
        return max(report.limit_mw, report.power_mw) if report.effect == "provisional" else report.limit_mw

    def _retire_confirmed(self, account: Account, report: Report) -> None:
        """A confirmed sequence retires itself and all before it (5)."""
        account.open = [grant for grant in account.open if grant.sequence > report.sequence]

    def _retire_overdue(self, now_s: float, account: Account) -> None:
        """A grant that is over can no longer be taken (3); if it was, the node fell to its safe cap since (4), or holds
        it still (6)."""
        declared = account.declaration
        for grant in account.open:
            if grant.deadline_s <= now_s:
                left_mw = grant.cap_mw if declared.lease_class == "sticky" else min(grant.cap_mw, declared.safe_mw)
                account.limit_mw = max(account.limit_mw, left_mw)
        account.open = [grant for grant in account.open if grant.deadline_s > now_s]

    def _lease_here_s(self) -> float:
        """A node's lease by this machine's clock: the node's may be slow, and ours fast (3)."""
        return self.terms.lease_s * (1 + CLOCK_RATE_ERROR) / (1 - CLOCK_RATE_ERROR)

    def _deadline_s(self, received_s: float, account: Account) -> float:
        """When a lease that answers a report received at ``received_s`` is surely over, and acted on (3, 6)."""
        return received_s + self._lease_here_s() + after_lease_s(account.declaration)

    def _held_mw(self, account: Account) -> int:
        """The highest cap that may act while the node has a lease (1)."""
        return max([account.limit_mw, *(grant.cap_mw for grant in account.open)])

    def _silent_mw(self, account: Account, held_mw: int) -> int:
        """What a node without a lease may draw (6, 7): it fell to its safe cap, or is booting."""
        if account.declaration.lease_class == "sticky":
            return held_mw
        return max(min(held_mw, account.declaration.safe_mw), account.declaration.boot_mw)

    def _unconfirmed_mw(self, account: Account, held_mw: int) -> int:
        """What a node may draw that has confirmed nothing since its boot (8); one that joins may draw anything."""
        declared = account.declaration
        return max(held_mw, declared.safe_mw, declared.boot_mw, 0 if account.is_leased else declared.tdp_mw)

    def _boot_need_mw(self, account: Account) -> int:
        """What to set aside for the node's reboot (7); a sticky controller keeps its cap through one."""
        return 0 if account.declaration.lease_class == "sticky" else account.declaration.boot_mw

    def _heading_mw(self, account: Account) -> int:
        """Where a count will be when all that is open has retired. While the sum of counts must fall (10), a grant
        above that is a raise even if it is below the count: it would stop the fall."""
        return account.target_mw if account.target_mw >= 0 else account.declaration.safe_mw

    def _new_boot(self, account: Account, report: Report) -> None:
        """A reboot voids all that was granted (8)."""
        if account.boot_id:
            account.past_boots.add(account.boot_id)
        account.boot_id, account.open = report.boot_id, []
        account.has_confirmed = account.has_left = False
        account.target_mw = account.granted_report_id = -1

    def _largest_mw(self, beyond_mw: type_mw) -> int:
        """The sum of the k largest, none below 0 (7)."""
        k = min(self.terms.failing_together, len(beyond_mw))
        return int(np.maximum(np.partition(beyond_mw, len(beyond_mw) - k)[len(beyond_mw) - k :], 0).sum()) if k else 0

    def _affordable(self, now_s: float, raises: list[tuple[int, Account, int]]) -> dict[str, int]:
        """Which raises there is room for (1, 7, 10), cheapest first; none while older leases may run (9).

        A raise within the count costs nothing, but there must be no debt."""
        if not raises or self.is_young:
            return {}
        raises = sorted(raises, key=lambda one: (one[0], one[1].index))
        spendable_mw = self.spendable_mw(now_s)

        def exceeds(n: int) -> bool:
            """Whether the cheapest n are too many. Each takes its cost, and may give back as much of the reserve."""
            index = np.array([account.index for _, account, _ in raises[:n]], np.int64)
            counts_mw = self.count_mw.copy()
            counts_mw[index] += np.array([cost_mw for cost_mw, _, _ in raises[:n]], np.int64)
            return int(counts_mw.sum()) + self._largest_mw(self._boot_mw - counts_mw) > spendable_mw

        fitting = bisect.bisect_left(range(1, len(raises) + 1), True, key=exceeds)
        return {account.name: cap_mw for _, account, cap_mw in raises[:fitting]}

    def _restored_mw(self, account: Account) -> int:
        """What a node may draw that only the store knows of (8, 9); one that lost commits is not believed."""
        if not account.is_leased:
            return account.declaration.tdp_mw
        if self.is_young:
            return account.limit_mw
        return self._silent_mw(account, account.limit_mw if self._is_certain else account.declaration.tdp_mw)

    # --- how

    def _restore(self, now_s: float, snapshot: Snapshot) -> None:
        for name, stored in snapshot.nodes.items():
            account = self._add(name, stored.declaration)
            account.limit_mw, account.is_leased = stored.count_mw, stored.is_leased
            self._stored_mw[name] = stored.count_mw
        self._be_young(now_s)
        for account in self.accounts.values():
            self._recount(now_s, account)

    def _be_young(self, now_s: float) -> None:
        self._unacknowledged = dict.fromkeys(self.accounts)
        self._young_until_s = now_s + self.settle_s

    def _mind_epoch(self, now_s: float, account: Account, report: Report) -> None:
        """A node has heard of an epoch that is not ours: we are deposed, or the store has lost one."""
        is_foreign = report.seen_epoch == self.epoch and account.sequence == 0
        if report.seen_epoch > self.epoch or is_foreign:
            self._store.commit(self.epoch, {})  # raises if we are deposed
            self.epoch = self._store.take_epoch(report.seen_epoch + 1)
            self._is_certain = False
            self._be_young(now_s)

    def _add(self, name: str, declaration: Declaration) -> Account:
        account = Account(len(self.accounts), name, declaration, declaration.tdp_mw)
        self.accounts[name] = account
        if len(self.accounts) > self._columns_mw.shape[1]:  # room for twice as many: an array per node takes n² to fill
            self._columns_mw = np.concatenate((self._columns_mw, np.zeros_like(self._columns_mw)), axis=1)
        self.count_mw, self._boot_mw = self._columns_mw[:, : len(self.accounts)]
        self._declare(account, declaration)
        return account

    def _declare(self, account: Account, declaration: Declaration) -> None:
        account.declaration = declaration
        self._boot_mw[account.index] = self._boot_need_mw(account)
        self._slowest_s = max(self._slowest_s, after_lease_s(declaration))

    def _recount(self, now_s: float, account: Account) -> None:
        if account.is_off:
            count_mw = 0
        elif not account.is_heard:
            count_mw = self._restored_mw(account)
        elif account.has_left:
            count_mw = max(self._held_mw(account), account.declaration.tdp_mw)
        elif now_s >= account.silent_from_s and account.target_mw >= 0:
            count_mw = self._silent_mw(account, self._held_mw(account))
        elif not account.has_confirmed:
            count_mw = self._unconfirmed_mw(account, self._held_mw(account))
        else:
            count_mw = self._held_mw(account)
        before_mw = int(self.count_mw[account.index])
        if count_mw != before_mw:
            self.total_mw += count_mw - before_mw
            self.count_mw[account.index] = count_mw
            self._unstored[account.name] = None

    def _can_be_reached(self, now_s: float, account: Account) -> bool:
        """A grant must answer a report, and leave the node some time."""
        age_s = now_s - account.silent_from_s + self._deadline_s(0.0, account)
        return account.is_heard and not account.has_left and age_s < self.terms.lease_s / 2

    def _holding_mw(self, account: Account) -> int:
        """The cap to renew: the one granted last, unless the node has fallen below it since; a renewal raises nothing.
        A node that has been granted none in this boot holds what acts there, or less if that is wanted."""
        if account.target_mw >= 0:
            return min(account.target_mw, self._held_mw(account))
        acting_mw = min(account.limit_mw, account.declaration.tdp_mw)
        return min(acting_mw, account.wanted_mw) if account.wanted_mw >= 0 else acting_mw

    def _is_renewal_due(self, now_s: float, account: Account) -> bool:
        if not self._can_be_reached(now_s, account):
            return False
        age_ns = account.report_id - account.granted_report_id
        is_old = age_ns >= self.terms.renew_after * self.terms.lease_s * 1e9
        return account.granted_report_id < 0 or is_old or account.seen_epoch != self.epoch

    def _send(self, now_s: float, chosen: Mapping[str, int]) -> list[Grant]:
        if not chosen:
            return []
        self._commit(chosen)
        return [self._grant(now_s, self.accounts[name], cap_mw) for name, cap_mw in chosen.items()]

    def _commit(self, chosen: Mapping[str, int]) -> None:
        """Store every count before it can rise; counts that fell go along, but are no reason to write."""
        stored: dict[str, Stored] = {}
        for name, cap_mw in chosen.items():
            account = self.accounts[name]
            count_mw = max(cap_mw, int(self.count_mw[account.index]))
            if count_mw > self._stored_mw.get(name, -1):
                stored[name] = Stored(count_mw, account.declaration, True)
        for name in self._unstored if stored else ():
            account = self.accounts[name]
            is_leased = account.is_leased or name in chosen
            stored.setdefault(name, Stored(int(self.count_mw[account.index]), account.declaration, is_leased))
        self._store.commit(self.epoch, stored)
        self._stored_mw.update({name: one.count_mw for name, one in stored.items()})
        if stored:
            self._unstored = {}

    def _grant(self, now_s: float, account: Account, cap_mw: int) -> Grant:
        account.sequence += 1
        account.target_mw, account.granted_report_id, account.is_leased = cap_mw, account.report_id, True
        account.has_left = account.is_leaving and cap_mw >= account.declaration.tdp_mw
        heapq.heappush(self._deadlines, (account.silent_from_s, account.name))
        account.open.append(Open(account.sequence, cap_mw, account.silent_from_s))
        if account.has_left or cap_mw == account.wanted_mw:
            self._pending.pop(account.name, None)
        self._recount(now_s, account)
        lease_ns = round(self.terms.lease_s * 1e9)
        return Grant(
            account.name, self.epoch, account.boot_id, account.sequence, cap_mw, account.report_id, lease_ns,
            account.has_left,
        )  # fmt: skip


def after_lease_s(declaration: Declaration) -> float:
    """How long after its lease is over a node may still draw more than its safe cap."""
    watchdog_ms = declaration.watchdog_ms if declaration.lease_class == "os" else 0
    return (declaration.settle_ms + watchdog_ms) / 1000
