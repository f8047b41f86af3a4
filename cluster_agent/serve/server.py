"""``clusterctl serve``: one loop over the links to nodes, the socket for people, signals and time.

All decisions are made in ``budget_service.Partition`` and ``job_service``; the loop gives them messages and the time.
One thread, no callbacks: the network is the front process's (``fabric.front``). The times of a schedule are converted
from the wall clock to CLOCK_BOOTTIME when it is read.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from cluster_agent.budget.budget_line import BudgetLine
from cluster_agent.budget.group_settings import levels_of
from cluster_agent.budget.kept_counts import Change, LedgerStore, Snapshot
from cluster_agent.budget.sharers import registry as sharers
from cluster_agent.budget.sharers.api import Models
from cluster_agent.budget.sharers.node_factors import read_factors
from cluster_agent.budget.sharers.speed import SpeedModel
from cluster_agent.budget.sharers.view import Tag
from cluster_agent.budget_rules.group_limits import GroupLimits, change
from cluster_agent.budget_rules.rule_sets import RuleSets
from cluster_agent.cluster import Kept
from cluster_agent.dispatch.live.dispatched_jobs import CLUSTER, DispatchedJobs
from cluster_agent.errors import ClusterError, StoreError, WrongUseError
from cluster_agent.fabric import descriptors
from cluster_agent.fabric.admin import RANKS, AdminSocket
from cluster_agent.fabric.allowed import Allowed
from cluster_agent.fabric.loop_lag import LoopLag
from cluster_agent.fabric.people import PATIENCE_S, AnswerEnvelope, Caller, Later, Request, answer
from cluster_agent.fabric.router import PeopleRequest, Router
from cluster_agent.history.history_requests import HistoryRequests
from cluster_agent.history.job_history import JobHistory
from cluster_agent.jobs.exported_replay import files_of
from cluster_agent.jobs.foreign_jobs import ForeignJobs
from cluster_agent.scheduler.owner import NO_SHARER
from cluster_agent.scheduler.policies import registry
from cluster_agent.scheduler.switches.live_limits import NONE
from cluster_agent.serve import policy_watts
from cluster_agent.serve.budget_feed import Fed, Feed
from cluster_agent.serve.budget_schedule import divide, read_schedule, refuse_low, refuse_past
from cluster_agent.serve.budget_service import Partition
from cluster_agent.serve.config import JobSettings, Settings, milliwatts
from cluster_agent.serve.job_requests import JobRequests, no_jobs
from cluster_agent.serve.job_service import JobService
from cluster_agent.serve.live_sharing import Sharing
from cluster_agent.serve.people_protocol import (
    BudgetView,
    Changes,
    ExplainCap,
    ExportReplay,
    ForgetNode,
    ListBudgetChanges,
    ListNodeChanges,
    ListNodes,
    LowerBudget,
    NodeName,
    NodeRow,
    Sentences,
    SetBudget,
    SetSchedule,
    ShowBudget,
    SwitchRules,
)
from cluster_agent.serve.power_commands import PowerCommands
from cluster_agent.serve.row_changes import RowParts
from cluster_agent.serve.why import Why
from cluster_agent.slurm.foreign_starts import ForeignStarts
from cluster_agent.slurm.job_joules import JobJoules
from cluster_agent.store.database import Database, free_bytes
from cluster_agent.store.job_store import JobStore
from cluster_agent.store.ledger_store import BudgetStore, SqliteLedgerStore
from cluster_agent.store.mending import open_store
from cluster_agent.thermal_hazard.budget_lowering import Lowerings
from foundation.boot import boot_id, boottime_s
from foundation.shell.errors import NodectlError
from foundation.shell.notify import Notifier
from foundation.steady_clock import as_shown, kept_clock
from foundation.wire.keys import read_pair
from foundation.wire.power_messages import Declaration, Grant

OWN_KEY: Final = "cluster.key"
FEED: Final = "feed"
EXPECT_S: Final = 5.0
LISTED_S: Final = 60.0
"""Ours: without an allow list, nodes that have not reported after this time are taken for none of the partition."""
CLOCK_SET_S: Final = 1.0
"""Ours: a wall clock that is so far from where it should be was set, or has drifted as far; a schedule then follows."""

"""Ours: how often the allow list is searched for new nodes."""


ROUND_S, LONGEST_ROUND_S, ROUND_OF_WORK = 0.005, 0.025, 4.0
"""Ours: messages that arrive within this time are handled together. A round costs as much for one report as for twenty,
and a thousand nodes report a thousand times a second; a message after a pause does not wait. If rounds take long, as
with ten thousand nodes, there are fewer: the pause is this many times the duration of the round before."""


PEOPLE_S: Final = 0.1
"""Ours: for so long a round answers people. An answer may take a while, and leases must not end meanwhile."""


class Unstored:
    """A ledger store for observe mode, which writes nothing and owns nothing. ``database``: what else is stored."""

    def __init__(self, database: Database | None = None) -> None:
        self._database = database

    def take_over(self, at_least: int = 0) -> Snapshot:
        """Nothing is stored; the epoch is never sent to a node."""
        return Snapshot(max(1, at_least))

    def commit(self, epoch: int, *changes: object) -> None:
        """Nothing is granted, so there is nothing to store."""

    def trouble(self, is_trial: bool = False) -> str:
        """The database's."""
        if self._database is None:
            return ""
        if is_trial and self._database.trouble:
            self._database.try_writing()
        return self._database.trouble


class Server:
    """A cluster agent. ``run`` until it is stopped, then ``close``."""

    def __init__(
        self, settings: Settings, say: Callable[[str], None], now_s: Callable[[], float] | None = None,
        wall_s: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._settings, self._say = settings, say
        self._now_s = now_s or boottime_s
        self._wall_s = wall_s
        self._ahead_s = self._now_s() - wall_s()
        self._schedule: tuple[int, list[tuple[float, int]]] = 0, []
        self._lowered, self._mop_mw = "", 0
        hazard = settings.hazard
        self._lowerings = Lowerings(Path(f"{settings.store}.hazard"), hazard.lower_to, hazard.hours, say)
        self._rules = RuleSets(settings.rules, Path(f"{settings.store}.rules"), say)
        self._rules_s, self._rules_said = -math.inf, ""
        levels = levels_of(settings.budget.group, settings.gear)
        self._limits = GroupLimits(levels, self._rules, Path(f"{settings.store}.groups"), say)
        directory = Path(settings.keys)
        self._allowed = Allowed(directory)
        self.jobs: JobService | None = None
        foreign = ForeignJobs(Path(f"{settings.store}.notices"))
        sharing = Sharing(
            settings.sharer,
            lambda: [*(self.jobs.sharers_jobs() if self.jobs else ()), *foreign.for_sharer()],
            lambda: self.jobs.need_mw() if self.jobs else {},
            read_factors(Path(settings.nodes.factors)) if settings.nodes.factors else None,
            policy_watts.caps_sharer(lambda: self.jobs) if settings.sharer == NO_SHARER else None,
        )
        if sharing.origin:
            say(f"sharer {settings.sharer}: {sharing.origin}")
        keys = None if settings.insecure else read_pair(directory / OWN_KEY)
        is_observing = settings.mode == "observe"
        self.database = open_store(Path(settings.store), say)
        self._budgets = BudgetStore(self.database)
        now = self._now_s()
        store: LedgerStore = Unstored(self.database) if is_observing else SqliteLedgerStore(self.database, boot_id())
        joules = JobJoules(Path(f"{settings.store}.joules"))
        self.history = HistoryRequests(
            JobHistory(Path(f"{settings.store}.history"), settings.history.keep_days), lambda: self.jobs, foreign,
            joules, lambda: self.partition.reports,
        )  # fmt: skip
        self._ahead = self.history.forecast(settings.budget.w - settings.fixed_mw / 1000, wall_s())
        starts = ForeignStarts(
            foreign, lambda: self.partition, self._send, self._now_s, joules, wall_s, self.history.foreign_ended
        )
        self.dispatched = DispatchedJobs(foreign, *starts.noticed_by(CLUSTER))
        # the socket first: a second agent fails here, before it would take the epoch
        self.handlers: dict[type[Request[Any]], Callable[[Caller, Any], Any]] = {
            ListNodes: self._nodes,
            ListNodeChanges: self._node_changes,
            ExplainCap: self._why,
            ForgetNode: self._forget,
            ShowBudget: self._budget,
            ListBudgetChanges: self._changes,
            ExportReplay: self._export_replay,
            SetBudget: self._set_budget,
            SetSchedule: self._set_schedule,
            LowerBudget: self._lower,
            SwitchRules: self._switch_rules,
            **starts.handlers,
            **self.history.handlers,
        }
        self.admin = AdminSocket(
            Path(settings.socket), self.handlers, frozenset(settings.admins), frozenset(settings.notifiers)
        )
        self._later: list[tuple[PeopleRequest, Later]] = []
        self._from_afar: list[tuple[float, PeopleRequest]] = []  # until when somebody waits for the answer
        try:
            self.router = Router(settings.listen, keys, self._allowed, say, settings.insecure)
        except BaseException:
            self.admin.close()
            raise
        self.partition = Partition(
            store,
            settings.terms,
            self._line(now),
            sharing,
            now,
            is_observing,
            say,
            settings.nodes.gap_s,
            settings.bounds,
            levels,
        )
        if settings.jobs:
            self.jobs = self._open_jobs(settings.jobs, None if is_observing else self.partition.ledger.epoch)
            self.partition.alarms.may_be_silent = self.jobs.may_be_silent
        self._node_parts = RowParts[str, NodeRow](self._node_marks, self._node_row, "heard_s_ago")
        self._power = self._power_commands()
        self.handlers |= JobRequests(self.jobs).handlers if self.jobs else no_jobs()
        budget = settings.budget
        self._feed = Feed(Path(budget.feed), budget.feed_stale_s, settings.fixed_mw) if budget.feed else None
        self._unstored_feed: Fed | None = None
        self._switches = settings.jobs.switches if settings.jobs else NONE
        self._listed_s = now + LISTED_S
        self._expected: set[str] = set()
        self._expect_s = now
        self._round_end_s = 0.0
        self._lag = LoopLag()
        self._stop_read, self._stop_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def _power_commands(self) -> PowerCommands | None:
        """What switches nodes off and on, where the settings have commands for it."""
        jobs = self._settings.jobs
        if not (self.jobs and jobs and jobs.power and self.jobs.can_switch):
            return None
        return PowerCommands(
            jobs, jobs.power, self.jobs, self.partition.ledger, lambda: self.partition.happened(self._now_s(), "node")
        )

    def run(self) -> None:
        """Until SIGTERM or SIGINT. ``DeposedError`` when another cluster agent has taken over."""
        notifier = Notifier()
        descriptors.take()
        before = signal.set_wakeup_fd(self._stop_write, warn_on_full_buffer=False)
        handlers = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            epoch = self.partition.ledger.epoch
            self._say(f"listening at {self.router.url}, mode {self._settings.mode}, epoch {epoch}")
            notifier.send("READY=1")
            while self.step(1.0):
                notifier.alive(time.monotonic_ns())
                notifier.status(time.monotonic_ns(), self.status)
        finally:
            signal.set_wakeup_fd(before)
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def status(self) -> str:
        """Budget, what of it nodes may draw, nodes and health in one line, which ``systemctl status`` shows."""
        view = self.partition.budget_view(self._now_s())
        if view.alarms:
            health = f"ALARM: {view.alarms[0]}" + (f" (and {len(view.alarms) - 1} more)" if view.alarms[1:] else "")
        else:
            health = "no alarm"
        silent = f", {view.silent} of them silent" if view.silent else ""
        return (
            f"budget {view.budget_w:.0f} W, granted {view.counts_w:.0f} W to {view.nodes} nodes{silent}; {health}"
            f" (mode {view.mode}, epoch {view.epoch})"
        )

    def step(self, longest_s: float) -> bool:
        """Wait for something to happen, at most so long, and handle it; False when it is to stop."""
        links, people = self.router.interests(), self.admin.interests()
        poller = select.poll()
        for descriptor, is_writing in links.items():  # these are read while they are written
            poller.register(descriptor, select.POLLIN | (select.POLLOUT if is_writing else 0))
        for descriptor, is_writing in people.items():
            poller.register(descriptor, select.POLLOUT if is_writing else select.POLLIN)
        poller.register(self._stop_read, select.POLLIN)
        wait_s = min(self.partition.due_s(self._now_s()), longest_s, self.jobs.due_s() if self.jobs else longest_s)
        due_s = min([self.admin.due_s, *(later.until_s for _, later in self._later)])
        wait_s = 0.0 if self._from_afar else min(wait_s, max(due_s - self._now_s(), 0.0))
        if self._power:
            wait_s = min(wait_s, self._power.due_s(self._now_s()))
        ready = {descriptor for descriptor, _ in poller.poll(max(round(wait_s * 1000), 1))}
        woke_s = time.monotonic()
        if self._stop_read in ready:
            return False
        time.sleep(max(self._round_end_s - time.monotonic(), 0.0))
        began_s = time.monotonic()
        people_s = self._turn(self._now_s(), [descriptor for descriptor in people if descriptor in ready])
        round_s = ROUND_OF_WORK * (time.monotonic() - began_s - people_s)
        self._round_end_s = began_s + min(max(round_s, ROUND_S), LONGEST_ROUND_S)
        self._lag.add(time.monotonic(), time.monotonic() - woke_s)
        return True

    def _turn(self, now_s: float, waiting: list[int]) -> float:
        """Handle what has arrived, and do what is due. ``waiting``: descriptors at which people wait for an answer.
        How many seconds were theirs."""
        if now_s >= self._expect_s:
            self._expect_nodes(now_s)
        self._follow_clock(now_s)
        if self._wall_s() >= self._rules_s:
            self._follow_rules(now_s)
        if self._feed:
            self._follow(self._feed, now_s)
        reports = self.router.receive(now_s)
        self._send(self.partition.hear(now_s, reports))
        self.history.hear(now_s, self._wall_s(), reports)
        self.dispatched.hear(reports)
        self.partition.alarms.set("dispatched", self.dispatched.trouble)
        if self.jobs:
            if not self.partition.is_observing:
                self.jobs.store.own(self.partition.ledger.epoch)  # which a report may have raised
            within = list(map(self.partition.bounds.within, reports))
            self.jobs.hear(self.router.job_news(), within, self.partition.bound)
        began_s = time.monotonic()
        from_afar = self._serve_people(now_s, waiting)
        people_s = time.monotonic() - began_s
        if self.jobs and not self.partition.is_observing:
            policy_watts.pass_budget(self.partition.ledger, self._now_s(), self.jobs)
        if self.jobs and (happened := self.jobs.turn(is_urgent=bool(waiting) or from_afar)):
            self.partition.happened(self._now_s(), *happened)
            self._send(self.partition.turn(now_s))
        if self.jobs:
            self.partition.alarms.set("jobs", self.jobs.alarm)
        if self._power:
            self._power.step(now_s)
        self.router.flush()
        return people_s

    def _serve_people(self, now_s: float, waiting: list[int]) -> bool:
        """Answer requests, for ``PEOPLE_S`` and the last of them; others wait for the next turn, as long as whoever
        asks does. True if one came over a link."""
        until_s = time.monotonic() + PEOPLE_S
        self.admin.serve_all(now_s, waiting, until_s)
        self.admin.tidy(now_s)
        self._from_afar += [(now_s + PATIENCE_S, one) for one in self.router.requests()]
        self._from_afar.sort(key=lambda waits: RANKS.get(waits[1].caller.role, len(RANKS)))
        answered: list[tuple[PeopleRequest, AnswerEnvelope | Later]] = []
        while self._from_afar and (not answered or time.monotonic() < until_s):
            gone_s, one = self._from_afar.pop(0)
            if now_s < gone_s:
                answered.append((one, answer(self.handlers, one.caller, one.frame)))
        self._answer(now_s, answered)
        return bool(answered)

    def _answer(self, now_s: float, from_afar: list[tuple[PeopleRequest, AnswerEnvelope | Later]]) -> None:
        """Answer requests that came over links: these, and those whose answer is due later."""
        waiting, self._later = [*self._later, *from_afar], []
        for request, found in waiting:
            envelope = found.answer(now_s) if isinstance(found, Later) else found
            if envelope:
                self.router.answer(request, envelope)
            elif isinstance(found, Later):
                self._later.append((request, found))

    def close(self) -> None:
        """Close everything; caps stay in force until their leases end."""
        if self._power:
            self._power.close()
        self.admin.close()
        self.router.close()
        if self.jobs:
            self.jobs.close()
        self.history.close()
        self.database.close()
        os.close(self._stop_read)
        os.close(self._stop_write)

    def _send(self, grants: list[Grant]) -> None:
        for grant in grants:
            self.router.send(grant)

    def _open_jobs(self, settings: JobSettings, epoch: int | None) -> JobService:
        chosen = registry.choose(settings.policy)
        origins = {
            "policy": chosen.origin,
            "the model of": chosen.model_origin,
            "the profile of": chosen.profile_origin,
        }
        for what, origin in origins.items():
            if origin:
                self._say(f"{what} {settings.policy}: {origin}")
        store = JobStore(self.database, self._say)
        store.own(epoch)
        nodes = [entry.name for entry in self._allowed.entries() if entry.role == "node"]
        clock = kept_clock(Path(f"{self._settings.store}-clock"), is_free=False)
        return JobService(
            settings, store, nodes, self.router.send_job, self.router.speaks_jobs, self._say,
            now=clock, as_shown=lambda unix_s: as_shown(unix_s, clock),
            can_switch=settings.power is not None and self._settings.mode == "cap",
            models=self._models(), mop_mw=policy_watts.declared_mops(self.partition.ledger),
            ended=self.history.own_ended,
        )  # fmt: skip

    def _models(self) -> Models:
        """Of the sharer and of those of the rules: a job's model is chosen when it starts, whoever shares later."""
        found: dict[Tag | None, SpeedModel] = {}
        for text in dict.fromkeys(one.sharer for one in self._settings.rules if one.sharer):
            chosen = sharers.choose(text)
            found |= chosen.method.models(chosen.params)
        return found | dict(self.partition.sharing.models)

    def _expect_nodes(self, now_s: float) -> None:
        self._expect_s = now_s + EXPECT_S
        self._mind_lowering(now_s)
        self._ahead.step(self._wall_s(), self.history.alive)
        self.partition.alarms.set("links", self.router.trouble)
        self.partition.alarms.set("history", self.history.history.trouble)
        tdp_mw = milliwatts(self._settings.nodes.tdp_w)
        names = [entry.name for entry in self._allowed.entries() if entry.role == "node"]
        if new := [name for name in names if name not in self._expected]:
            self._expected.update(new)
            self.partition.expect(now_s, dict.fromkeys(new, Declaration(tdp_mw, tdp_mw, tdp_mw, tdp_mw, "sticky")))
            self.partition.alarms.set("descriptors", descriptors.missing(len(names)))
            if self.jobs:
                self.jobs.expect(new)
        if names or now_s >= self._listed_s:
            known = {*names, *self.partition.reports, *self.partition.ledger.accounts.names}
            unknown = self._switches.unknown_nodes(known)
            waits = f"{unknown}: jobs of that queue may wait for ever" if unknown else ""
            self.partition.alarms.set("queues", waits or self.partition.groups.unknown_nodes(known))

    # --- the budget

    def _line(self, now_s: float) -> BudgetLine:
        """The budget set last, or the settings' at the first start; a schedule in the settings continues from now."""
        settings = self._settings.budget
        stored = self._budgets.load()
        budget_mw, steps = stored or (milliwatts(settings.w), [])
        if settings.schedule and not stored:
            steps = read_schedule(Path(settings.schedule))
            if steps[-1][0] <= self._wall_s():
                self._say(
                    f"{settings.schedule}: the schedule is past; its last line is in force: {steps[-1][1] / 1000:g} W"
                )
        self._schedule = budget_mw, steps
        past_mw, coming = divide(steps, self._wall_s())
        budget_mw, coming = self._rules.lowered(past_mw or budget_mw, coming, self._wall_s())
        if budget_mw <= self._settings.fixed_mw:
            raise WrongUseError(
                f"the budget of {budget_mw / 1000:g} W is not above fixed_w ({self._settings.fixed_mw / 1000:g} W): set"
                " budget.w, or begin the schedule in the past"
            )
        return BudgetLine(budget_mw, self._here(coming, now_s))

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
        self._limits.put(now_s, wall_s, self.partition.ledger.settle_s)
        if not self._schedule[1] and not self._lowered:
            return
        budget_w, coming = self._put(now_s)
        self._say(
            f"the clock was set by {set_by_s:+.0f} s: the schedule follows, {budget_w:g} W now, {coming} steps to come"
        )

    def _put(self, now_s: float) -> tuple[float, int]:
        """Put the budget in force that was set, lowered where a hazard is predicted, and plan for it; the watts now,
        and how many steps are to come."""
        wall_s, ledger = self._wall_s(), self.partition.ledger
        self._mop_mw = self.partition.mop_mw
        self._lowered = self._lowerings.text(wall_s)
        least_mw = ledger.terms.fixed_mw + self._mop_mw
        ruled = self._rules.lowered(*self._set_now(wall_s), wall_s)
        budget_mw, coming = self._lowerings.over(*ruled, wall_s, least_mw)
        self._limits.put(now_s, wall_s, ledger.settle_s)
        change(ledger.budget, now_s, budget_mw, self._here(coming, now_s), ledger.settle_s)
        self.partition.alarms.set("hazard", self._lowered)
        self.partition.replan(now_s)
        self._send(self.partition.turn(now_s))
        return budget_mw / 1000, len(coming)

    def _follow_rules(self, now_s: float) -> None:
        """Put in force what the set of rules has that is in force now, and announce what the next ones will have."""
        wall_s = self._wall_s()
        self._rules_s = self._rules.due_s(wall_s)
        if not self._settings.rules:
            if self._limits.names:
                self._put(now_s)
            return
        one, words = self._rules.in_force(wall_s), self._rules.words(wall_s)
        sharer = (one.sharer if one else "") or self._settings.sharer
        if sharer != self.partition.sharing.name:
            try:
                self.partition.sharing.use(sharer)
            except NodectlError as error:  # a file of one's own, which somebody has changed since
                self._say(f"{error}; {self.partition.sharing.name} goes on sharing the watts")
        if words != self._rules_said:
            self._rules_said = words
            self._say(words)
        self._put(now_s)

    def _switch_rules(self, caller: Caller, request: SwitchRules) -> Sentences:
        now_s, wall_s = self._now_s(), self._wall_s()
        self._rules.switch(request.name, request.is_on, wall_s)
        what = f"switched the rules {request.name} {'on' if request.is_on else 'off'}"
        self._say(f"{caller.name} {what}")
        with contextlib.suppress(StoreError):  # the record alone; the switch itself is in its own file
            self._budgets.note(Change(wall_s, caller.name, what))
        self._follow_rules(now_s)
        return [what, self._rules.words(wall_s), f"{self.partition.ledger.budget.budget_mw / 1000:g} W now"]

    def _set_now(self, wall_s: float) -> tuple[int, list[tuple[float, int]]]:
        """The budget by hand, schedule or feed at this time, and its steps to come by the wall clock."""
        base_mw, steps = self._schedule
        past_mw, coming = divide(steps, wall_s)
        return past_mw or base_mw, coming

    def _mind_lowering(self, now_s: float) -> None:
        """Nodes that come have a MOP, too, below which the budget is not lowered; and a lowering ends."""
        is_new = self._lowerings.text(self._wall_s()) != self._lowered
        if is_new or (self._lowered and self.partition.mop_mw != self._mop_mw):
            self._put(now_s)

    def _lower(self, caller: Caller, request: LowerBudget) -> Sentences:
        now_s, wall_s = self._now_s(), self._wall_s()
        self._lowerings.begin(wall_s, request.hours, request.why)
        what = self._lowerings.text(wall_s) or f"the budget is not lowered for a hazard any more: {request.why}"
        change = Change(wall_s, "hazard", f"{caller.name}: {what}")
        self._budgets.change(change, *self._schedule, only_lowers=request.hours > 0)
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

    def _set_budget(self, caller: Caller, request: SetBudget) -> Sentences:
        now_s, budget_mw = self._now_s(), milliwatts(request.w)
        if request.group:
            groups, ledger = self.partition.groups, self.partition.ledger
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
        refusal = self.partition.refusal(budget_mw)
        if refusal:
            raise WrongUseError(refusal)
        lines = self.partition.preview(now_s, budget_mw)
        if request.dry_run:
            return [f"would set {request.w:g} W", *lines]
        line = self.partition.ledger.budget
        is_lower, steps = budget_mw < line.budget_mw, len(self._set_now(self._wall_s())[1])
        self._move(
            now_s,
            Change(self._wall_s(), caller.name, f"set {request.w:g} W by hand"),
            budget_mw,
            [],
            f"{caller.name} set the budget to {request.w:g} W",
        )
        settle = self.partition.ledger.settle_s
        in_force = f"; in force in {settle:.1f} s at the latest" if is_lower else ""
        void = [f"announced steps that are void now: {steps}"] if steps else []
        return [f"set {request.w:g} W{in_force}", *void, *lines]

    def _set_schedule(self, caller: Caller, request: SetSchedule) -> Sentences:
        now_s, wall_s = self._now_s(), self._wall_s()
        refuse_past(Path(request.source), request.steps, wall_s)
        if request.group:
            return self._schedule_group(caller, request)
        fixed_mw = self.partition.ledger.terms.fixed_mw
        refuse_low(request.source, request.steps, fixed_mw)
        past_mw, coming = divide(request.steps, wall_s)
        budget_mw = past_mw or self._set_now(wall_s)[0]
        what = f"schedule {request.source}: {len(coming)} steps to come"
        self._move(now_s, Change(wall_s, caller.name, what), budget_mw, coming, f"{caller.name} set the {what}")
        short = [mw for _, mw in coming if mw < fixed_mw + self.partition.mop_mw]
        worst_w = (fixed_mw + self.partition.mop_mw - min(short, default=0)) / 1000
        return [what] + ([f"ALARM: at its lowest {worst_w:g} W are missing for every node's MOP"] if short else [])

    def _schedule_group(self, caller: Caller, request: SetSchedule) -> Sentences:
        groups, wall_s, name = self.partition.groups, self._wall_s(), request.group
        place = groups.place(name)
        refuse_low(request.source, request.steps, int(self.partition.ledger.levels.fixed_mw[place]))
        past_mw, coming = divide(request.steps, wall_s)
        what = f"set {name} by schedule {request.source}: {len(coming)} steps to come"
        problem = self._set_group(caller, name, past_mw or self._limits.set_now(name, wall_s)[0], coming, what)
        short_mw = groups.least_mw(place) - min(mw for _, mw in coming)
        alarm = f"ALARM: at its lowest {short_mw / 1000:g} W are missing for every node's MOP" if short_mw > 0 else ""
        return [what, *(line for line in (problem, alarm) if line)]

    def _follow(self, feed: Feed, now_s: float) -> None:
        """Set the feed's budget, if it differs from the one in force. One that cannot be stored waits until it can."""
        fed = feed.look(now_s, self._wall_s)
        self.partition.alarms.set("feed", feed.alarm)
        if fed is None and "store" not in self.partition.alarms:
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
            self.partition.mind_store(now_s)

    def _move(self, now_s: float, change: Change, budget_mw: int, steps: list[tuple[float, int]], line: str) -> None:
        """Record who moves the budget, put it in force and plan for it. ``steps`` to come, by the wall clock."""
        base_mw, coming = self._set_now(self._wall_s())  # what counts after a restart, whatever rules make of it
        before = BudgetLine(base_mw, self._here(coming, now_s))
        only_lowers = before.is_never_above(now_s, budget_mw, self._here(steps, now_s))
        self._budgets.change(change, budget_mw, steps, only_lowers)
        self._schedule = budget_mw, steps
        if change.who != FEED:
            self._lowerings.end(self._wall_s())
        self._say(line)
        self._put(now_s)

    # --- answers

    def _nodes(self, caller: Caller, request: ListNodes) -> list[NodeRow]:
        rows = self.partition.nodes(self._now_s(), request.after, request.most or None)
        if self.jobs:
            for row, state in zip(rows, self.jobs.node_states(row.name for row in rows), strict=True):
                row.jobs, row.job, row.jobs_why = state
        return rows

    def _node_changes(self, caller: Caller, request: ListNodeChanges) -> Changes[NodeRow, NodeName]:
        return self._node_parts.answer(self._now_s(), len(self.partition.ledger.accounts), request)

    def _node_marks(self, now_s: float, places: range) -> list[list[Any]]:
        marks = self.partition.marks_at(now_s, places)
        return [*marks, self.jobs.node_states(marks[0])] if self.jobs else marks

    def _node_row(self, now_s: float, *marks: Any) -> NodeRow | None:
        if not self.jobs:
            return self.partition.row(now_s, *marks)
        row = self.partition.row(now_s, *marks[:-1])
        if row is not None:
            row.jobs, row.job, row.jobs_why = marks[-1]
        return row

    def _forget(self, caller: Caller, request: ForgetNode) -> Sentences:
        """Drop the count of a node that is gone: by a person's word alone, which is recorded with it."""
        now_s, name, partition = self._now_s(), request.node, self.partition
        partition.refuse_forgetting(now_s, name)
        if any(entry.name == name and entry.role == "node" for entry in self._allowed.entries()):
            raise WrongUseError(
                f"{name} may come back at any time: revoke its key first (`clusterctl keys revoke {name}`)"
            )
        count_w = partition.ledger.accounts[name].count_mw / 1000
        if not request.is_off:
            raise WrongUseError(
                f"{name} counts {count_w:g} W, which it may draw, and the budget is kept only if it does not:"
                " see that it has no power, then say so (--is-off)"
            )
        what = f"forgot node {name}, which counted {count_w:g} W: it has no power, says {caller.name}"
        partition.forget(now_s, name, Change(self._wall_s(), caller.name, what))
        if self.jobs:
            self.jobs.is_off(name)
        self._expected.discard(name)
        self._say(what)
        self._send(partition.turn(now_s))
        return [f"{name} is forgotten: {count_w:g} W are free; if it reports again, it counts like a new node"]

    def _why(self, caller: Caller, request: ExplainCap) -> Why:
        return self.partition.why(self._now_s(), request.node)

    def _budget(self, caller: Caller, request: ShowBudget) -> BudgetView:
        view = self.partition.budget_view(self._now_s())
        return msgspec.structs.replace(
            view, loop_lag_s=self._lag.worst_s, store_free_bytes=free_bytes(Path(self._settings.store)),
            ahead=self._ahead.ahead(self._wall_s()), ahead_over=self._over(view.steps),
            rules=self._rules.views(self._wall_s()),
        )  # fmt: skip

    def _over(self, steps: Sequence[tuple[float, float]]) -> list[str]:
        """Announced steps that leave less for jobs than they are expected to draw."""
        if not steps:
            return []
        accounts, busy = self.partition.ledger.accounts, self.history.busy()
        counts = accounts.is_heard & ~accounts.is_off
        idle = [at for at, name in enumerate(accounts.names) if counts[at] and name not in busy]
        aside_mw = self.partition.ledger.terms.fixed_mw + int(accounts.mop_mw[idle].sum())
        return self._ahead.over([(in_s, watts - aside_mw / 1000) for in_s, watts in steps], self._wall_s())

    def _export_replay(self, caller: Caller, request: ExportReplay) -> dict[str, str]:
        if self.jobs is None:
            raise ClusterError("this cluster agent runs no jobs: there is nothing to replay without a [jobs] table")
        live, side = self.jobs.live, self.jobs
        budget_mw, steps = self._schedule
        budget = [(0.0, budget_mw / 1000), *((at_s, mw / 1000) for at_s, mw in steps)]
        machine = live.watts.as_planned(len(live.nodes))
        kept = Kept() if machine is None else policy_watts.kept_of(self.partition.ledger, self._now_s(), machine)
        return files_of(live, side.store, kept, budget, side.now())

    def _changes(self, caller: Caller, request: ListBudgetChanges) -> list[Change]:
        return self._budgets.changes()
