"""``clusterctl serve``: one loop over the links to nodes, the socket for people, signals and time.

All decisions are made in ``budget_service.Partition``, ``live_budget`` and ``job_service``; the loop gives them
messages and the time. One thread, no callbacks: the network is the front process's (``fabric.front``).
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from cluster_agent.budget.group_settings import levels_of
from cluster_agent.budget.kept_counts import Change, LedgerStore, Snapshot
from cluster_agent.budget.sharers import registry as sharers
from cluster_agent.budget.sharers.api import Models
from cluster_agent.budget.sharers.node_factors import read_factors
from cluster_agent.budget.sharers.speed import SpeedModel
from cluster_agent.budget.sharers.view import Tag
from cluster_agent.cluster import Kept
from cluster_agent.dispatch.live.dispatched_jobs import CLUSTER, DispatchedJobs
from cluster_agent.errors import ClusterError, WrongUseError
from cluster_agent.fabric import descriptors
from cluster_agent.fabric.admin import RANKS, AdminSocket
from cluster_agent.fabric.allowed import Allowed
from cluster_agent.fabric.loop_lag import LoopLag
from cluster_agent.fabric.people import PATIENCE_S, AnswerEnvelope, Caller, Later, Request, answer
from cluster_agent.fabric.router import PeopleRequest, Router
from cluster_agent.history.history_requests import HistoryRequests, PhaseFolder
from cluster_agent.history.job_history import JobHistory
from cluster_agent.jobs.exported_replay import files_of
from cluster_agent.jobs.foreign_jobs import ForeignJobs
from cluster_agent.scheduler.owner import NO_SHARER
from cluster_agent.scheduler.policies import registry
from cluster_agent.scheduler.switches.live_limits import NONE
from cluster_agent.serve import policy_watts
from cluster_agent.serve.budget_service import Partition
from cluster_agent.serve.config import JobSettings, Settings, milliwatts
from cluster_agent.serve.job_requests import JobRequests, no_jobs
from cluster_agent.serve.job_service import JobService
from cluster_agent.serve.live_budget.budget_in_force import LiveBudget
from cluster_agent.serve.live_sharing import Sharing
from cluster_agent.serve.people_protocol import (
    BudgetView,
    Changes,
    ExplainCap,
    ExportReplay,
    ForgetNode,
    ListNodeChanges,
    ListNodes,
    NodeName,
    NodeRow,
    Sentences,
    ShowBudget,
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
from foundation.boot import boot_id, boottime_s
from foundation.shell.notify import Notifier
from foundation.steady_clock import as_shown, kept_clock
from foundation.wire.keys import read_pair
from foundation.wire.power_messages import Declaration, Grant

OWN_KEY: Final = "cluster.key"
EXPECT_S: Final = 5.0
"""Ours: how often the allow list is searched for new nodes."""
LISTED_S: Final = 60.0
"""Ours: without an allow list, nodes that have not reported after this time are taken for none of the partition."""

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
        levels = levels_of(settings.budget.group, settings.gear)
        self._live_budget = LiveBudget(settings, levels, say, self._now_s, wall_s, lambda: self.partition, self._send)
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
        now = self._now_s()
        store: LedgerStore = Unstored(self.database) if is_observing else SqliteLedgerStore(self.database, boot_id())
        joules = JobJoules(Path(f"{settings.store}.joules"))
        self.history = HistoryRequests(
            JobHistory(Path(f"{settings.store}.history"), settings.history.keep_days), lambda: self.jobs, foreign,
            joules, lambda: self.partition.reports, lambda: self.router,
            PhaseFolder(
                Path(f"{settings.store}.phases"), wall_s, say, bool(settings.jobs and settings.jobs.share_phases)
            ),
        )  # fmt: skip
        self._ahead = self.history.forecast(settings.budget.w - settings.fixed_mw / 1000, wall_s())
        self._foreign_starts = starts = ForeignStarts(
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
            ExportReplay: self._export_replay,
            **self._live_budget.handlers,
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
            self._live_budget.open(BudgetStore(self.database), now),
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
        self._live_budget.follow_time(now_s)
        reports = self.router.receive(now_s)
        self._send(self.partition.hear(now_s, reports))
        self.history.hear(now_s, self._wall_s(), reports)
        self._foreign_starts.hear(now_s, reports)
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
        self._live_budget.mind_lowering(now_s)
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
            rules=self._live_budget.rules.views(self._wall_s()),
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
        budget_mw, steps = self._live_budget.schedule
        budget = [(0.0, budget_mw / 1000), *((at_s, mw / 1000) for at_s, mw in steps)]
        machine = live.watts.as_planned(len(live.nodes))
        kept = Kept() if machine is None else policy_watts.kept_of(self.partition.ledger, self._now_s(), machine)
        return files_of(live, side.store, kept, budget, side.now())
