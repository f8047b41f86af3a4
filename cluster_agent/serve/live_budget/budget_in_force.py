"""The budget in force: set by hand, schedule or feed, lowered by the rules of the hour and where a hazard is predicted.

Whoever sets it last decides. Who that was is recorded, and what was set counts after a restart; rules and hazards only
lower what is in force. The times of a schedule are converted from the wall clock to CLOCK_BOOTTIME when it is read, and
again when somebody has set the wall clock. Limits of groups are set in the same ways.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from cluster_agent.budget.budget_line import BudgetLine
from cluster_agent.budget.kept_counts import Change
from cluster_agent.budget.levels import Levels
from cluster_agent.budget_rules.group_limits import GroupLimits, change
from cluster_agent.budget_rules.rule_sets import RuleSets
from cluster_agent.errors import StoreError, WrongUseError
from cluster_agent.fabric.people import Caller, Request
from cluster_agent.serve.budget_service import Partition
from cluster_agent.serve.config import Settings, milliwatts
from cluster_agent.serve.live_budget.budget_feed import Fed, Feed
from cluster_agent.serve.live_budget.budget_schedule import divide, read_schedule, refuse_low, refuse_past
from cluster_agent.serve.people_protocol import (
    ListBudgetChanges,
    LowerBudget,
    Sentences,
    SetBudget,
    SetSchedule,
    SwitchRules,
)
from cluster_agent.store.ledger_store import BudgetStore
from cluster_agent.thermal_hazard.budget_lowering import Lowerings
from foundation.shell.errors import NodectlError
from foundation.wire.power_messages import Grant

FEED: Final = "feed"
CLOCK_SET_S: Final = 1.0
"""Ours: a wall clock that is so far from where it should be was set, or has drifted as far; a schedule then follows."""


class LiveBudget:
    """Of the partition, from ``open`` on. ``schedule``: what was set last, and its steps by the wall clock; ``rules``:
    the sets of rules."""

    _budgets: BudgetStore

    def __init__(
        self,
        settings: Settings,
        levels: Levels,
        say: Callable[[str], None],
        now_s: Callable[[], float],
        wall_s: Callable[[], float],
        partition: Callable[[], Partition],
        send: Callable[[list[Grant]], None],
    ) -> None:
        self._settings, self._say, self._now_s, self._wall_s = settings, say, now_s, wall_s
        self._partition, self._send = partition, send
        self._ahead_s = now_s() - wall_s()
        self.schedule: tuple[int, list[tuple[float, int]]] = 0, []
        self._lowered, self._mop_mw = "", 0
        hazard, budget = settings.hazard, settings.budget
        self._lowerings = Lowerings(Path(f"{settings.store}.hazard"), hazard.lower_to, hazard.hours, say)
        self.rules = RuleSets(settings.rules, Path(f"{settings.store}.rules"), say)
        self._rules_s, self._rules_said = -math.inf, ""
        self._limits = GroupLimits(levels, self.rules, Path(f"{settings.store}.groups"), say)
        self._feed = Feed(Path(budget.feed), budget.feed_stale_s, settings.fixed_mw) if budget.feed else None
        self._unstored_feed: Fed | None = None
        self.handlers: dict[type[Request[Any]], Callable[[Caller, Any], Any]] = {
            ListBudgetChanges: self._changes,
            SetBudget: self._set_budget,
            SetSchedule: self._set_schedule,
            LowerBudget: self._lower,
            SwitchRules: self._switch_rules,
        }

    def open(self, budgets: BudgetStore, now_s: float) -> BudgetLine:
        """The budget set last, or the settings' at the first start; a schedule in the settings continues from now."""
        self._budgets = budgets
        settings = self._settings.budget
        stored = budgets.load()
        budget_mw, steps = stored or (milliwatts(settings.w), [])
        if settings.schedule and not stored:
            steps = read_schedule(Path(settings.schedule))
            if steps[-1][0] <= self._wall_s():
                self._say(
                    f"{settings.schedule}: the schedule is past; its last line is in force: {steps[-1][1] / 1000:g} W"
                )
        self.schedule = budget_mw, steps
        past_mw, coming = divide(steps, self._wall_s())
        budget_mw, coming = self.rules.lowered(past_mw or budget_mw, coming, self._wall_s())
        if budget_mw <= self._settings.fixed_mw:
            raise WrongUseError(
                f"the budget of {budget_mw / 1000:g} W is not above fixed_w ({self._settings.fixed_mw / 1000:g} W): set"
                " budget.w, or begin the schedule in the past"
            )
        return BudgetLine(budget_mw, self._here(coming, now_s))

    def follow_time(self, now_s: float) -> None:
        """Put in force what the clock, the rules of the hour or the feed have changed."""
        self._follow_clock(now_s)
        if self._wall_s() >= self._rules_s:
            self._follow_rules(now_s)
        if self._feed:
            self._follow(self._feed, now_s)

    def _here(self, steps: list[tuple[float, int]], now_s: float) -> list[tuple[float, int]]:
        """Wall-clock times, converted to this loop's clock."""
        self._ahead_s = now_s - self._wall_s()
        return [(at_s + self._ahead_s, mw) for at_s, mw in steps]

    def _follow_clock(self, now_s: float) -> None:
        """Have a schedule follow the wall clock, after somebody has set that."""
        wall_s = self._wall_s()
        set_by_s = wall_s + self._ahead_s - now_s
        if abs(set_by_s) < CLOCK_SET_S:
            return
        self._ahead_s = now_s - wall_s
        self._rules_s = -math.inf
        self._limits.put(now_s, wall_s, self._partition().ledger.settle_s)
        if not self.schedule[1] and not self._lowered:
            return
        budget_w, coming = self._put(now_s)
        self._say(
            f"the clock was set by {set_by_s:+.0f} s: the schedule follows, {budget_w:g} W now, {coming} steps to come"
        )

    def _put(self, now_s: float) -> tuple[float, int]:
        """Put the budget in force that was set, lowered where a hazard is predicted, and plan for it; the watts now,
        and how many steps are to come."""
        wall_s, ledger = self._wall_s(), self._partition().ledger
        self._mop_mw = self._partition().mop_mw
        self._lowered = self._lowerings.text(wall_s)
        least_mw = ledger.terms.fixed_mw + self._mop_mw
        ruled = self.rules.lowered(*self._set_now(wall_s), wall_s)
        budget_mw, coming = self._lowerings.over(*ruled, wall_s, least_mw)
        self._limits.put(now_s, wall_s, ledger.settle_s)
        change(ledger.budget, now_s, budget_mw, self._here(coming, now_s), ledger.settle_s)
        self._partition().alarms.set("hazard", self._lowered)
        self._partition().replan(now_s)
        self._send(self._partition().turn(now_s))
        return budget_mw / 1000, len(coming)

    def _follow_rules(self, now_s: float) -> None:
        """Put in force what the set of rules has that is in force now, and announce what the next ones will have."""
        wall_s = self._wall_s()
        self._rules_s = self.rules.due_s(wall_s)
        if not self._settings.rules:
            if self._limits.names:
                self._put(now_s)
            return
        one, words = self.rules.in_force(wall_s), self.rules.words(wall_s)
        sharer = (one.sharer if one else "") or self._settings.sharer
        if sharer != self._partition().sharing.name:
            try:
                self._partition().sharing.use(sharer)
            except NodectlError as error:  # a file of one's own, which somebody has changed since
                self._say(f"{error}; {self._partition().sharing.name} goes on sharing the watts")
        if words != self._rules_said:
            self._rules_said = words
            self._say(words)
        self._put(now_s)

    def _switch_rules(self, caller: Caller, request: SwitchRules) -> Sentences:
        now_s, wall_s = self._now_s(), self._wall_s()
        self.rules.switch(request.name, request.is_on, wall_s)
        what = f"switched the rules {request.name} {'on' if request.is_on else 'off'}"
        self._say(f"{caller.name} {what}")
        with contextlib.suppress(StoreError):  # the record alone; the switch itself is in its own file
            self._budgets.note(Change(wall_s, caller.name, what))
        self._follow_rules(now_s)
        return [what, self.rules.words(wall_s), f"{self._partition().ledger.budget.budget_mw / 1000:g} W now"]

    def _set_now(self, wall_s: float) -> tuple[int, list[tuple[float, int]]]:
        """The budget by hand, schedule or feed at this time, and its steps to come by the wall clock."""
        base_mw, steps = self.schedule
        past_mw, coming = divide(steps, wall_s)
        return past_mw or base_mw, coming

    def mind_lowering(self, now_s: float) -> None:
        """Nodes that come have a MOP, too, below which the budget is not lowered; and a lowering ends."""
        is_new = self._lowerings.text(self._wall_s()) != self._lowered
        if is_new or (self._lowered and self._partition().mop_mw != self._mop_mw):
            self._put(now_s)

    def _lower(self, caller: Caller, request: LowerBudget) -> Sentences:
        now_s, wall_s = self._now_s(), self._wall_s()
        self._lowerings.begin(wall_s, request.hours, request.why)
        what = self._lowerings.text(wall_s) or f"the budget is not lowered for a hazard any more: {request.why}"
        change = Change(wall_s, "hazard", f"{caller.name}: {what}")
        self._budgets.change(change, *self.schedule, only_lowers=request.hours > 0)
        self._say(what)
        budget_w, _ = self._put(now_s)
        return [what, f"{budget_w:g} W now"]

    def _set_group(self, caller: Caller, group: str, limit_mw: int, steps: list[tuple[float, int]], what: str) -> str:
        """Record who sets the limit of a group, put it in force and plan for it. What is to be said if it could not be
        stored, else ""."""
        now_s, wall_s = self._now_s(), self._wall_s()
        problem = self._limits.set(group, limit_mw, steps)
        with contextlib.suppress(StoreError):  # a limit is lowered also where that cannot be recorded
            self._budgets.note(Change(wall_s, caller.name, what))
        self._say(f"{caller.name} {what}")
        self._put(now_s)
        return problem

    def _changes(self, caller: Caller, request: ListBudgetChanges) -> list[Change]:
        return self._budgets.changes()

    def _set_budget(self, caller: Caller, request: SetBudget) -> Sentences:
        now_s, budget_mw = self._now_s(), milliwatts(request.w)
        if request.group:
            groups, ledger = self._partition().groups, self._partition().ledger
            place = groups.place(request.group)
            if refusal := groups.refusal(place, budget_mw):
                raise WrongUseError(refusal)
            if request.dry_run:
                return [f"would set {request.w:g} W for {request.group}"]
            is_lower = budget_mw < ledger.levels.lines[place].budget_mw
            what = f"set {request.group} to {request.w:g} W by hand"
            problem = self._set_group(caller, request.group, budget_mw, [], what)
            in_force = f"; in force in {ledger.settle_s:.1f} s at the latest" if is_lower else ""
            return [f"set {request.group} to {request.w:g} W{in_force}"] + ([problem] if problem else [])
        refusal = self._partition().refusal(budget_mw)
        if refusal:
            raise WrongUseError(refusal)
        lines = self._partition().preview(now_s, budget_mw)
        if request.dry_run:
            return [f"would set {request.w:g} W", *lines]
        line = self._partition().ledger.budget
        is_lower, steps = budget_mw < line.budget_mw, len(self._set_now(self._wall_s())[1])
        self._move(
            now_s,
            Change(self._wall_s(), caller.name, f"set {request.w:g} W by hand"),
            budget_mw,
            [],
            f"{caller.name} set the budget to {request.w:g} W",
        )
        settle = self._partition().ledger.settle_s
        in_force = f"; in force in {settle:.1f} s at the latest" if is_lower else ""
        void = [f"announced steps that are void now: {steps}"] if steps else []
        return [f"set {request.w:g} W{in_force}", *void, *lines]

    def _set_schedule(self, caller: Caller, request: SetSchedule) -> Sentences:
        now_s, wall_s = self._now_s(), self._wall_s()
        refuse_past(Path(request.source), request.steps, wall_s)
        if request.group:
            return self._schedule_group(caller, request)
        fixed_mw = self._partition().ledger.terms.fixed_mw
        refuse_low(request.source, request.steps, fixed_mw)
        past_mw, coming = divide(request.steps, wall_s)
        budget_mw = past_mw or self._set_now(wall_s)[0]
        what = f"schedule {request.source}: {len(coming)} steps to come"
        self._move(now_s, Change(wall_s, caller.name, what), budget_mw, coming, f"{caller.name} set the {what}")
        short = [mw for _, mw in coming if mw < fixed_mw + self._partition().mop_mw]
        worst_w = (fixed_mw + self._partition().mop_mw - min(short, default=0)) / 1000
        return [what] + ([f"ALARM: at its lowest {worst_w:g} W are missing for every node's MOP"] if short else [])

    def _schedule_group(self, caller: Caller, request: SetSchedule) -> Sentences:
        groups, wall_s, name = self._partition().groups, self._wall_s(), request.group
        place = groups.place(name)
        refuse_low(request.source, request.steps, int(self._partition().ledger.levels.fixed_mw[place]))
        past_mw, coming = divide(request.steps, wall_s)
        what = f"set {name} by schedule {request.source}: {len(coming)} steps to come"
        problem = self._set_group(caller, name, past_mw or self._limits.set_now(name, wall_s)[0], coming, what)
        short_mw = groups.least_mw(place) - min(mw for _, mw in coming)
        alarm = f"ALARM: at its lowest {short_mw / 1000:g} W are missing for every node's MOP" if short_mw > 0 else ""
        return [what, *(line for line in (problem, alarm) if line)]

    def _follow(self, feed: Feed, now_s: float) -> None:
        """Set the feed's budget, if it differs from the one in force. One that cannot be stored waits until it can."""
        fed = feed.look(now_s, self._wall_s)
        self._partition().alarms.set("feed", feed.alarm)
        if fed is None and "store" not in self._partition().alarms:
            fed = self._unstored_feed
        if fed is None:
            return
        self._unstored_feed = None
        was_mw, were = self._set_now(self._wall_s())
        budget_mw, steps = fed.budget_mw or was_mw, fed.steps
        same_steps = [mw for _, mw in steps] == [mw for _, mw in were] and all(
            abs(new_s - old_s) < 1.0 for (new_s, _), (old_s, _) in zip(steps, were, strict=True)
        )
        if budget_mw == was_mw and same_steps:
            return
        what = f"{budget_mw / 1000:g} W" + (f", {len(steps)} steps to come" if steps else "")
        change = Change(self._wall_s(), FEED, what)
        try:
            self._move(now_s, change, budget_mw, fed.steps, f"the feed set the budget to {what}")
        except StoreError:
            self._unstored_feed = fed
            self._partition().mind_store(now_s)

    def _move(self, now_s: float, change: Change, budget_mw: int, steps: list[tuple[float, int]], line: str) -> None:
        """Record who moves the budget, put it in force and plan for it. ``steps`` to come, by the wall clock."""
        base_mw, coming = self._set_now(self._wall_s())  # what counts after a restart, whatever rules make of it
        before = BudgetLine(base_mw, self._here(coming, now_s))
        only_lowers = before.is_never_above(now_s, budget_mw, self._here(steps, now_s))
        self._budgets.change(change, budget_mw, steps, only_lowers)
        self.schedule = budget_mw, steps
        if change.who != FEED:
            self._lowerings.end(self._wall_s())
        self._say(line)
        self._put(now_s)
