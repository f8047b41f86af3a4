"""Alarms: what an operator must act on, as opposed to what the protocol will correct by itself.

The ledger adds up what all nodes could draw. In three cases more than the budget is expected and no alarm:

- the budget was lowered without notice: for one settle time nodes may draw what was in force before (rule 10 of
  docs/ledger.md). This is logged as information, with the time and the watts that are still to be confirmed;
- nodes were added to the list: they count their TDP until they report and are capped, and the others are lowered for
  them. Likewise after a restart, until nodes have reported the caps in force (rule 9);
- a node draws a little more than a cap in force, within the tolerance by which the node itself judges that (rule 5
  counts the measured power). One reading is a tick of its agent; here the mean over some seconds decides.

All else is an alarm as soon as it is known, and so are these three when their time is over.

A node that does not report is an alarm after a minute, also while the budget is kept: it counts the most that it may
draw, which others lack, and nobody else may notice. Not so one that is off, has left, is drained, or is being switched.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from cluster_agent.budget.accounts import Ints
from cluster_agent.budget.ledger import Ledger
from cluster_agent.budget.plan import Plan
from foundation.wire.power_messages import CAP_TOLERANCE, Report

LEAST_MEAN_S: Final = 4.0
"""Ours: over less time than this a node's energy says little about whether its cap has an effect."""

OBSERVED: Final = "; nothing is capped while `mode` is observe in the settings"

NAMED: Final = 3
"""Ours: how many nodes a line names."""

SILENT_S: Final = 60.0
"""Ours: an agent that is started again is back in some seconds. The alert of Prometheus waits as long."""

KINDS: Final = (
    "declared", "descriptors", "disbelieved", "dispatched", "feed", "hazard", "history", "jobs", "joules", "links",
    "over", "queues", "raised", "sharer", "short", "silent", "store",
)  # fmt: skip
"""Every alarm that there can be, in one word, for metrics."""


class Alarms:
    """``say`` logs a line when something begins or ends. Times are those of the ledger."""

    def __init__(self, ledger: Ledger, say: Callable[[str], None], is_observing: bool = False) -> None:
        """``is_observing``: nothing is granted, so nothing is lowered."""
        self._ledger, self._say, self._is_observing = ledger, say, is_observing
        self._on: dict[str, str] = {}
        self._lowering_mw: int | None = None  # the budget that was last logged as being approached
        self._awaited_until_s = -math.inf
        self._energy: dict[str, tuple[float, Report, bool]] = {}  # (since when, its report then, above its cap)
        self._silent_s: dict[int, float] = {}  # by place, since when it has no lease
        self.may_be_silent: Callable[[str], bool] = lambda name: False
        """Whether nobody expects a report of this node, as the jobs of the partition know it."""

    @property
    def texts(self) -> list[str]:
        """The alarms that are on, in their latest words."""
        return list(self._on.values())

    @property
    def kinds(self) -> list[str]:
        """The alarms that are on, of ``KINDS``."""
        return list(self._on)

    def __contains__(self, kind: str) -> bool:
        return kind in self._on

    def set(self, kind: str, what: str) -> None:
        """Log an alarm when it begins, and when it ends (``what`` is empty); keep its latest words for ``texts``."""
        if what and kind not in self._on:
            self._say(f"ALARM: {what}")
        elif not what and kind in self._on:
            self._say(f"the alarm is over: {self._on[kind]}")
        if what:
            self._on[kind] = what
        else:
            self._on.pop(kind, None)

    def begin(self, now_s: float) -> None:
        """The ledger begins. The counts that it read from the store are at least the caps in force, mostly more."""
        ledger, levels = self._ledger, self._ledger.levels
        until_s = now_s + ledger.settle_s
        ledger.budget.allow(until_s, ledger.total_mw + ledger.terms.fixed_mw)
        of_groups_mw = levels.sums_mw(ledger.accounts.count_mw) + levels.fixed_mw
        for line, most_mw in zip(levels.lines, of_groups_mw.tolist(), strict=True):
            line.allow(until_s, most_mw)

    def expect(self, now_s: float, before_mw: int, of_groups_mw: Ints) -> None:
        """Nodes were added to the list; they count their TDP from now on. Before, all counts were ``before_mw``, and
        ``of_groups_mw`` in each group."""
        ledger, levels = self._ledger, self._ledger.levels
        self._awaited_until_s = now_s + ledger.settle_s
        added_mw = (levels.sums_mw(ledger.accounts.count_mw) - of_groups_mw).tolist()
        lines = [(ledger.budget, ledger.total_mw - before_mw), *zip(levels.lines, added_mw, strict=True)]
        for line, more_mw in lines:
            line.allow(self._awaited_until_s, line.promised_mw(now_s) + more_mw)

    def lowering_s(self, now_s: float) -> float | None:
        """How long, at most, until what nodes could draw is lowered to the budget; None: nothing is being lowered."""
        until_s = self._ledger.budget.lowered_s(now_s)
        if until_s is None or self._is_observing:
            return None
        return until_s - now_s if self._ledger.over_mw(now_s) > 0 >= self._ledger.breach_mw(now_s) else None

    def mind(self, now_s: float, plan: Plan, reports: Mapping[str, Report]) -> None:
        """Compare what the nodes could draw now with the budget."""
        self.mind_lowering(now_s)
        unreached_mw, unreached = self._unreached(now_s)
        is_early = unreached_mw > 0 and now_s < self._awaited_until_s and "short" not in self
        is_short = plan.short_mw > 0 and bool(plan.names or unreached_mw) and not is_early
        of_group = "" if is_early else self._short_group(now_s, plan)
        self.set("short", self._short(now_s, plan, unreached_mw) + unreached if is_short else of_group)
        self.set("silent", self._silent(now_s))
        self.set("disbelieved", self._disbelieved(now_s))
        self.set("raised", self._raised(now_s, reports))
        over = self._over(now_s, reports)
        self.set("over", over + ("" if is_short or OBSERVED in over else unreached) if over else "")

    def _over(self, now_s: float, reports: Mapping[str, Report]) -> str:
        """By how much nodes could exceed the budget or, if not that, the limit of which group by most; "" if they could
        exceed neither."""
        ledger, levels = self._ledger, self._ledger.levels
        breach_mw, of_groups_mw = ledger.breach_mw(now_s), levels.breach_mw(now_s, ledger.accounts)
        if breach_mw <= 0 and not (of_groups_mw > 0).any():
            self._energy.clear()
            return ""
        above_mw = self._above_caps_mw(now_s, reports)
        observed = OBSERVED if self._is_observing else ""
        if breach_mw > int(above_mw.sum()):
            return f"nodes could exceed the budget by {ledger.over_mw(now_s) / 1000:g} W{observed}"
        of_groups_mw = of_groups_mw - levels.sums_mw(above_mw)
        if not (of_groups_mw > 0).any():
            return ""
        group = int(of_groups_mw.argmax())
        return (
            f"nodes of {levels.names[group]} could exceed its limit by {int(of_groups_mw[group]) / 1000:g} W{observed}"
        )

    def mind_lowering(self, now_s: float) -> None:
        """Log that a lowering begins, or is done."""
        left_s, budget_mw = self.lowering_s(now_s), self._ledger.budget.budget_mw
        if left_s is not None and self._lowering_mw != budget_mw:
            self._lowering_mw = budget_mw
            self._say(
                f"lowering to {budget_mw / 1000:g} W within {left_s:.1f} s:"
                f" {self._ledger.over_mw(now_s) / 1000:g} W still to be confirmed"
            )
        elif left_s is None and self._lowering_mw is not None:
            if self._ledger.over_mw(now_s) <= 0:
                self._say(f"lowered to {budget_mw / 1000:g} W: all of it is confirmed")
            self._lowering_mw = None

    @property
    def is_lowering(self) -> bool:
        """Whether the end of a lowering is still to be logged."""
        return self._lowering_mw is not None

    def _short(self, now_s: float, plan: Plan, unreached_mw: int) -> str:
        """By how much the budget is too small for every node's MOP, and, unless that is due to nodes that cannot be
        reached, which nodes need most and what helps."""
        ledger, short_w = self._ledger, plan.short_mw / 1000
        budget_w = (ledger.spendable_mw(now_s) + ledger.terms.fixed_mw) / 1000
        short = f"the budget of {budget_w:g} W is {short_w:g} W less than every node at its MOP needs"
        if plan.short_mw <= unreached_mw:
            return short
        accounts = ledger.accounts
        mop_mw = {name: int(accounts.mop_mw[accounts.places[name]]) for name in plan.names}
        highest = sorted(mop_mw, key=lambda name: (-mop_mw[name], name))[:NAMED]
        named = ", ".join(f"{name} {mop_mw[name] / 1000:g} W" for name in highest)
        return (
            f"{short} ({len(mop_mw)} nodes at their MOPs need {sum(mop_mw.values()) / 1000:g} W: {named}"
            f"{', ...' if len(mop_mw) > NAMED else ''}): set at least {budget_w + short_w:g} W, or switch nodes off"
        )

    def _short_group(self, now_s: float, plan: Plan) -> str:
        """Which group's limit is most too small for the MOPs of its nodes, and what helps; "" if none is."""
        if not plan.group_short_mw.any():
            return ""
        group, ledger, levels = int(plan.group_short_mw.argmax()), self._ledger, self._ledger.levels
        limits_mw = levels.spendable_mw(now_s, ledger.settle_s) + levels.fixed_mw
        short_w, limit_w = int(plan.group_short_mw[group]) / 1000, int(limits_mw[group]) / 1000
        others = int((plan.group_short_mw > 0).sum()) - 1
        return (
            f"the limit of {levels.names[group]}, {limit_w:g} W, is {short_w:g} W less than its gear and every node in"
            f" it at its MOP need: set at least {limit_w + short_w:g} W, or switch nodes off"
            f"{f'; {others} more groups lack watts' if others else ''}"
        )

    def _disbelieved(self, now_s: float) -> str:
        """Which nodes report an epoch that no cluster agent can have given; "" if none."""
        accounts = self._ledger.accounts
        if not accounts.is_disbelieved.any():
            return ""
        places = np.flatnonzero(accounts.is_disbelieved & self._ledger.is_within_reach(now_s))
        if not len(places):
            return ""
        if len(places) == 1:
            return (
                "1 node reports grants of a cluster agent that is not there, and takes none of ours:"
                f" restart its agent; if that does not help, revoke its key ({self._names(places)})"
            )
        return (
            f"{len(places)} nodes report grants of a cluster agent that is not there, and take none of ours:"
            f" restart their agents; if that does not help, revoke their keys ({self._names(places)})"
        )

    def _silent(self, now_s: float) -> str:
        """Which nodes have not reported for more than ``SILENT_S`` after their lease, and for how long; "" if none."""
        accounts = self._ledger.accounts
        is_away = accounts.is_off | accounts.has_left | accounts.is_forgotten
        silent = np.flatnonzero(self._ledger.is_silent(now_s) & ~is_away).tolist()
        before = self._silent_s
        self._silent_s = {at: before.get(at, now_s) for at in silent if not self.may_be_silent(accounts.names[at])}
        late = [at for at, since_s in self._silent_s.items() if now_s - since_s >= SILENT_S]
        if not late:
            return ""
        names = sorted((accounts.names[at], at) for at in late)
        named = ", ".join(f"{name} {_ago(now_s - float(accounts.heard_s[at]))}" for name, at in names[:NAMED])
        what = "1 node does not report" if len(late) == 1 else f"{len(late)} nodes do not report"
        agents = "its agent" if len(late) == 1 else "their agents"
        return f"{what} ({named}{', ...' if len(late) > NAMED else ''}): start {agents}, or `clusterctl drain NODE`"

    def _raised(self, now_s: float, reports: Mapping[str, Report]) -> str:
        """On which nodes somebody has set a limit above the cap, and who; "" if on none."""
        is_reached = self._ledger.is_within_reach(now_s)
        places = self._ledger.accounts.places
        by = {name: one.raised_by for name, one in reports.items() if one.raised_by and is_reached[places[name]]}
        if not by:
            return ""
        named = ", ".join(f"{name}: {by[name]}" for name in sorted(by)[:NAMED])
        plural = "nodes were" if len(by) > 1 else "node was"
        return (
            f"{len(by)} {plural} set above the cap by a program that runs there, and set back; until that is confirmed"
            f" the limit that was set counts ({named}{', ...' if len(by) > NAMED else ''})"
        )

    def _names(self, places: Ints) -> str:
        """The names of the first nodes at these places."""
        names = ", ".join(self._ledger.accounts.names[at] for at in places[:NAMED].tolist())
        return f"{names}, ..." if len(places) > NAMED else names

    def _unreached(self, now_s: float) -> tuple[int, str]:
        """The watts of nodes that cannot be reached, and the words for an alarm: the most frequent reason of a
        shortage."""
        ledger = self._ledger
        is_unreached = ~ledger.is_within_reach(now_s) & (ledger.accounts.count_mw > 0)
        counts_mw = int(ledger.accounts.count_mw[is_unreached].sum())
        if not counts_mw:
            return 0, ""
        places = np.flatnonzero(is_unreached)
        if len(places) == 1:
            return counts_mw, (
                f"; 1 node that cannot be reached counts {counts_mw / 1000:.1f} W: start its agent; if the node is"
                " gone, revoke its key, see that it has no power, and `clusterctl nodes forget NAME --is-off`"
                f" ({self._names(places)})"
            )
        return counts_mw, (
            f"; {len(places)} nodes that cannot be reached count {counts_mw / 1000:.1f} W: start their agents; of those"
            " that are gone, revoke the keys, see that they have no power, and `clusterctl nodes forget NAME --is-off`"
            f" ({self._names(places)})"
        )

    def _above_caps_mw(self, now_s: float, reports: Mapping[str, Report]) -> Ints:
        """Of each place, how much of its count is power measured above caps in force, where it is known."""
        accounts = self._ledger.accounts
        found_mw = np.zeros(len(accounts), np.int64)
        before, self._energy = self._energy, {}
        for name, report in reports.items():
            if report.effect != "provisional" or report.power_mw <= report.limit_mw:
                continue
            at = accounts.places[name]
            cap_mw = max(report.limit_mw, int(accounts.open_mw[:, at].max()))
            above_mw = report.power_mw - cap_mw
            if above_mw <= 0 or accounts.count_mw[at] != report.power_mw:
                continue
            since_s, then, is_above = before.get(name, (now_s, report, False))
            if now_s - since_s >= LEAST_MEAN_S:
                is_above = _mean_mw(then, report) > CAP_TOLERANCE * cap_mw
                since_s, then = now_s, report
            self._energy[name] = since_s, then, is_above
            found_mw[at] = 0 if is_above else above_mw
        return found_mw


def _ago(silence_s: float) -> str:
    """How long a node has been silent, in words that do not change each second."""
    if silence_s == math.inf:
        return "never has"
    minutes = int(silence_s // 60)
    return f"for {minutes} min" if minutes < 120 else f"for {minutes // 60} h"


def _mean_mw(before: Report, now: Report) -> float:
    """The node's mean power between two reports by its own energy and clock; the latest reading where these are
    void."""
    elapsed_ns = now.report_id - before.report_id
    if before.boot_id != now.boot_id or elapsed_ns <= 0 or not 0 <= before.energy_mj <= now.energy_mj:
        return now.power_mw
    return (now.energy_mj - before.energy_mj) * 1e9 / elapsed_ns
