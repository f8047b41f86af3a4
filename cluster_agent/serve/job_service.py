"""Jobs in the cluster agent: passes messages of nodes and requests of people to the live partition, and its answers
back.

    NodeJobs, reports ──► hear ──► live_jobs.Partition ──► turn ──► messages to nodes, after they are on the disk
    people  ──► job_commands ──►        │
    the sharer  ◄── sharers_jobs, need_mw ◄┘

It opens no socket. When the store fails, memory may be ahead of the disk. Then all of it is dropped, as if the agent
had been killed, and is read again from the disk once that works. Nodes go on with what they run meanwhile.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

import msgspec

from cluster_agent.budget.kept_counts import DeposedError
from cluster_agent.budget.scored_tags import ScoredTags
from cluster_agent.budget.sharers import view
from cluster_agent.budget.sharers.api import Models
from cluster_agent.budget.sharers.needs import Needs, is_cap_bound
from cluster_agent.budget.sharers.rates import Rates
from cluster_agent.budget.sharers.speed import SpeedModel
from cluster_agent.errors import ClusterError, StoreError, WrongUseError
from cluster_agent.jobs.job import OVER, Account, Job
from cluster_agent.jobs.job_nodes import Node
from cluster_agent.jobs.job_runs import Happening
from cluster_agent.jobs.job_tags import JobTags
from cluster_agent.jobs.live_jobs import Partition
from cluster_agent.jobs.owned_watts.live_owner import NodeBudget
from cluster_agent.jobs.power_switching import Switched
from cluster_agent.prediction.models import find_model
from cluster_agent.serve.config import JobSettings
from cluster_agent.serve.node_meter import NodeMeter
from cluster_agent.store.job_store import JobStore
from foundation.steady_clock import steady_time
from foundation.wire.job_messages import JobQuery, JobStart, Message, NodeJobs
from foundation.wire.power_messages import Report

TURN_GAP_S: Final = 0.05
"""Ours: least time between two turns for messages of nodes; requests of people do not wait."""

QUERY_AFTER_S, QUERY_IDLE_AFTER_S = 2.5, 7.5
"""Ours: a node that sends power reports, but has not reported its jobs for so long, is sent a query for them. The
second value is for a node without jobs, which reports that less often."""

MOPS_GAP_S: Final = 5.0
"""Ours: at most so often other MOPs change the plan, since its scheduler then begins again. Until then the difference
is set aside, so a node that declares another one with each report costs no more than that."""

NOT_YET: Final = "no report yet"
"""No report about jobs: the cluster agent or the node has just started."""

STORE_RETRY_S: Final = 5.0
REMEMBERED: Final = 1000
"""Ours: how many of the jobs that ended last are job history for tags after a restart."""

LONGEST_METERED_S: Final = 15.0
"""Ours: if a node's readings of energy are further apart than this, its last power is used in place of their mean."""

Send: TypeAlias = Callable[[str, Message | JobQuery], bool]
Bound: TypeAlias = Callable[[Report], tuple[str, float | None]]
"""For a report of a cap-bound node: what bound it, and the predicted slowdown."""


class JobService:
    """Jobs on ``nodes``. ``speaks``: whether a node's agent knows messages about jobs. ``now`` is Unix time that does
    not jump; ``as_shown`` gives what the wall clock, which may, has for a time of it."""

    def __init__(
        self,
        settings: JobSettings,
        store: JobStore,
        nodes: Iterable[str],
        send: Send,
        speaks: Callable[[str], bool],
        say: Callable[[str], None] = lambda line: None,
        now: Callable[[], float] | None = None,
        as_shown: Callable[[float], float] = lambda unix_s: unix_s,
        can_switch: bool = False,
        models: Models = MappingProxyType({}),
        mop_mw: Mapping[str, int] = MappingProxyType({}),
        ended: Callable[[Job], None] = lambda job: None,
    ) -> None:
        """``mop_mw``: the minimal operating power of nodes, as far as it is known. ``ended`` gets each job that had
        nodes and has ended."""
        self.can_switch = can_switch
        """Whether nodes are switched off and on."""
        self.policy, self.jobs_per_user = settings.policy, settings.jobs_per_user
        self._settings, self._store, self._send, self._speaks, self._say = settings, store, send, speaks, say
        self.now, self.as_shown = now or steady_time(), as_shown
        self._names = set(nodes)
        self._live: Partition | None = None
        self._scored = self._scored_tags(settings)
        self._tags = JobTags()
        self._meter = NodeMeter(self.now)
        self._back_s = -math.inf
        self._why_shut, self._is_alarmed = "", False
        self._is_due = True
        self._turned_s = self._wake_s = -math.inf
        self._last_jobs: dict[str, NodeJobs] = {}
        self._heard_s: dict[str, float] = {}
        self._reported_s: dict[str, float] = {}
        self._back_again_s: dict[str, float] = {}  # since when the node reports without a long silence
        self._began_s = self.now()
        self._before: dict[str, Report] = {}
        self._tag_of: dict[str, str] = {}
        self._needs, self._rates = Needs(), Rates()
        self._ended = ended
        self._models, self._mop_mw, self._mops_s = models, mop_mw, -math.inf
        self._taken_for: dict[str, tuple[SpeedModel | None, str]] = {}  # by job: its table, its kind
        self._running: dict[int, Job] = {}
        self._jobs_on: dict[str, list[str]] = {}
        self._job_on: dict[str, str] = {}
        with self._shutting():  # jobs that cannot be read never keep the budget from being kept
            self._open()

    # --- for the loop

    def hear(self, news: Iterable[NodeJobs], reports: Iterable[Report], bound: Bound) -> None:
        """Take what nodes have sent."""
        now_s = self.now()
        if self._live is None and now_s >= self._back_s:
            with self._shutting():
                self._store.try_writing()
                self._open()
        for report in reports:
            self._meter.hear(report)
            name = report.node
            if not self._reports(name, now_s):
                self._back_again_s[name] = now_s
            self._reported_s[name] = now_s
            silent_s = now_s - self._heard_s.get(name, -math.inf)
            if silent_s > QUERY_AFTER_S and silent_s > self._patience_s(name) and self._speaks(name):
                self._send(name, JobQuery())
        if self._live is None:
            return
        with self._shutting(), self._store.together():
            for one in news:
                silent_s = now_s - self._heard_s.get(one.node, -math.inf)
                state = _without_energy(one)
                self._is_due |= state != self._last_jobs.get(one.node) or silent_s > QUERY_IDLE_AFTER_S
                self._last_jobs[one.node], self._heard_s[one.node] = state, now_s
                self._live.heard(one)
            for report in reports:
                self._live.spoke(report.node, report.boot_id)
                self._add_power(self._live, now_s, report, bound)
            self._live.runs.save_ends()
        self._send_out()

    def turn(self, is_urgent: bool = False) -> set[Happening]:
        """Schedule, if it is due; returns what happened to jobs since the last turn. ``is_urgent``: a person waits."""
        live, now_s = self._live, self.now()
        if live is None:
            return set()
        is_time = now_s >= self._wake_s or (self._is_due and now_s - self._turned_s >= TURN_GAP_S)
        if not (is_urgent or is_time):
            return set()
        self._is_due, self._turned_s = False, now_s
        with self._shutting():
            self._wake_s = live.turn()
            self._send_out()
        happened, live.runs.happened = live.runs.happened, set()
        if happened:
            self._follow(live)
        return happened

    def due_s(self) -> float:
        """How long until ``turn`` has something to do by itself."""
        now_s = self.now()
        if self._live is None:
            return max(self._back_s - now_s, 0.0)
        due_s = min(self._wake_s, self._turned_s + TURN_GAP_S if self._is_due else math.inf)
        return max(due_s - now_s, 0.0)

    def expect(self, names: Iterable[str]) -> None:
        """Add nodes of the allow list."""
        new = set(names) - self._names
        if new:
            self._names |= new
            self._is_due = True
            if self._live is not None and (strange := new - self._live.nodes.keys()):
                self._live.take_in(strange)

    @property
    def job_on(self) -> Mapping[str, str]:
        """By node, the number of the job that it has; without nodes of two, whose counters say nothing of one job."""
        return self._job_on

    @property
    def busy(self) -> Collection[str]:
        """The nodes that have a job, or two."""
        return self._jobs_on.keys()

    # --- for the sharer

    def sharers_jobs(self) -> list[view.Job]:
        """The jobs that have nodes, in the order of their starts, with their tags."""
        if self._live is None:
            return []
        found = []
        for job, nodes in self._live.runs.running():
            # the counters of a node that two jobs have say nothing of either
            tags = (self._tag_of.get(name, "") if name not in job.halves else "" for name in nodes)
            tag = self._tags.give(job, tags, nodes)
            name = str(job.id)
            self._taken_for[name] = self._models.get(tag), f"{job.user}/{job.title}"
            found.append(view.Job(name, nodes, tag, job.tag_source, learned=self._rates.learned(name),
                                  full_power=job.full_power))  # fmt: skip
        return found

    def need_mw(self) -> dict[str, int]:
        """What nodes draw in their present jobs when they are not cap-bound, where it is known."""
        return self._needs.need_mw

    @property
    def alarm(self) -> str:
        """What about jobs an operator must look at; empty: nothing."""
        own = self._live.alarm if self._live else ""
        return own or (self._scored.trouble if self._scored is not None else "")

    def is_off(self, name: str) -> None:
        """A person states that this node has no power."""
        if self._live is not None:
            with self._shutting():
                self._live.no_longer_runs(name)

    # --- where the policy owns the watts

    @property
    def idle_mw(self) -> int | None:
        """The cap of a node without a job; None: a sharer says."""
        return self._live.watts.idle_mw if self._live and self._live.watts.owns_watts else None

    def caps_mw(self) -> Mapping[str, int]:
        """The caps of nodes with a job, as the policy plans with them."""
        return self._live.caps_mw() if self._live else {}

    def planned_mw(self) -> Mapping[str, int]:
        """The same, and the caps of idle nodes that are not ``idle_mw``."""
        return self._live.planned_mw() if self._live else {}

    def wanted_mw(self) -> Mapping[str, int]:
        """The same, as far as the budget is enough: the policy may plan with less."""
        return self._live.wanted_mw() if self._live else {}

    def set_mops(self, mop_mw: Mapping[str, int]) -> None:
        """What nodes draw at least, as they have declared: with the next turn idle nodes count that."""
        if self._live is not None and mop_mw != self._mop_mw and self.now() - self._mops_s >= MOPS_GAP_S:
            self._mop_mw, self._mops_s, self._is_due = mop_mw, self.now(), True
            self._live.set_mops(mop_mw)

    def set_budget(self, budget: NodeBudget) -> None:
        """From the next turn on the nodes may draw this together."""
        self._is_due |= self._live is not None and self._live.set_budget(budget)

    # --- for people

    @property
    def live(self) -> Partition:
        """The partition of jobs; ``ClusterError`` while the store cannot be written."""
        if self._live is None:
            raise ClusterError(f"{self._why_shut}; running jobs go on, but no other request about jobs works")
        return self._live

    @property
    def is_open(self) -> bool:
        """Whether the store can be written, as far as is known."""
        return self._live is not None

    @property
    def store(self) -> JobStore:
        """All jobs, also those that have ended."""
        return self._store

    @contextlib.contextmanager
    def changing(self) -> Iterator[Partition]:
        """Change something at a person's request; if the store fails, the error goes to that person."""
        live = self.live
        with self._shutting(is_urgent=True):
            yield live

    @contextlib.contextmanager
    def updating(self) -> Iterator[Partition]:
        """Change something without a person's request. At the end it is on the disk, or all that was in memory is
        dropped (``is_open``)."""
        live = self.live
        self._is_due = True
        with self._shutting(), self._store.together():
            yield live

    def accounts(self) -> Mapping[int, Account]:
        """By job that has nodes, what it has used so far, as it is on the disk."""
        if self._live is not None:
            with self._shutting():
                self._live.store_accounts()
        return self._live.runs.stored if self._live is not None else {}

    def close(self) -> None:
        """Store what running jobs have used since they were stored last."""
        if self._live is not None:
            with self._shutting(), contextlib.suppress(DeposedError):
                self._live.runs.save()

    def node_states(self, names: Iterable[str]) -> list[tuple[str, str, str]]:
        """Of each node its state, its job (empty: none), and more about it."""
        nodes = self._live.nodes if self._live else {}
        return [self._node_state(name, nodes.get(name)) for name in names]

    def _node_state(self, name: str, node: Node | None) -> tuple[str, str, str]:
        if node is None:
            return "unknown", "", self._why_shut
        why = node.gets_none
        if node.switched is not None:
            why = _why_switched(node.switched)
        elif node.state == "down":
            why = self._why_down(name)
        return node.state, ", ".join(self._jobs_on.get(name, ())), why

    def may_be_silent(self, name: str) -> bool:
        """Whether the node is drained or being switched, so that nobody expects a report of it."""
        node = self._live.nodes.get(name) if self._live else None
        return node is not None and node.may_be_silent

    # --- inside

    def _scored_tags(self, settings: JobSettings) -> ScoredTags | None:
        if not settings.tag_model:
            return None
        model = find_model(settings.tag_model)
        self._say(f"the model of tags {settings.tag_model}: {model.origin}")
        return ScoredTags(model, self._say, time.monotonic)

    def _open(self) -> None:
        """Read the partition from the disk."""
        settings = self._settings
        self._tags = JobTags(self._store.ended(REMEMBERED), self._scored)
        made = Partition(
            sorted(self._names), settings.composition, self._store, self.now, self._say, settings.times,
            power=settings.power_times if self.can_switch else None,
            machine=settings.live_machine, meter=self._meter.read, configurations=settings.tables,
            mop_mw=self._mop_mw, switches=settings.switches, pairs=settings.live_pairs,
        )  # fmt: skip
        if self._is_alarmed:
            self._say(f"the alarm is over: {self._why_shut}")
        self._why_shut, self._is_alarmed = "", False
        self._live, self._is_due, self._wake_s = made, True, -math.inf
        self._last_jobs.clear()
        self._follow(made)

    @contextlib.contextmanager
    def _shutting(self, is_urgent: bool = False) -> Iterator[None]:
        try:
            yield
        except (DeposedError, WrongUseError):
            raise
        except ClusterError as error:
            # of a disk that is full or fails the partition's alarm speaks
            if not self._why_shut and not isinstance(error, StoreError):
                self._say(f"ALARM: {error}; no job is started or accepted until that is mended")
                self._is_alarmed = True
            self._live, self._why_shut, self._back_s = None, str(error), self.now() + STORE_RETRY_S
            if is_urgent:
                raise

    def _send_out(self) -> None:
        if self._live is not None:
            outbox, self._live.outbox = self._live.outbox, []
            for name, message in outbox:
                if isinstance(message, JobStart) and self._settings.share_phases:
                    message = msgspec.structs.replace(message, keeps_phases=True)
                self._send(name, message)

    def _follow(self, live: Partition) -> None:
        """Note which job is on which node; the tags of jobs that have ended become history."""
        for number, job in self._running.items():
            if number not in live.jobs and job.state in OVER:
                self._tags.ended(job)
                self._ended(job)
        running = live.runs.running()
        self._running = {job.id: job for job, _ in running}
        self._jobs_on = {}
        for job, nodes in running:
            for name in nodes:
                self._jobs_on.setdefault(name, []).append(str(job.id))
        self._job_on = {name: jobs[0] for name, jobs in self._jobs_on.items() if len(jobs) == 1}
        self._taken_for = {name: taken for name, taken in self._taken_for.items() if int(name) in self._running}

    def _patience_s(self, name: str) -> float:
        """How long the node may be without a report of its jobs before it is sent a query."""
        last = self._last_jobs.get(name)
        return QUERY_AFTER_S if last is None or last.parts or name in self._jobs_on else QUERY_IDLE_AFTER_S

    def _add_power(self, live: Partition, now_s: float, report: Report, bound: Bound) -> None:
        name = report.node
        self._tag_of[name] = report.tag
        if self._scored is not None:
            self._scored.hear(report, self._job_on.get(name, ""))
        before = self._before.get(name)
        self._before[name] = report
        job, power_mw = self._job_on.get(name, ""), _mean_mw(before, report)
        cap_mw = report.asked_mw
        tdp_mw = report.declaration.tdp_mw
        is_bound = is_cap_bound(report)
        model, like = self._taken_for.get(job, (None, ""))
        expected_mw = round(model.power[0] * tdp_mw) if model else -1
        self._needs.hear(now_s, name, job, report.power_mw, cap_mw if cap_mw >= 0 else tdp_mw, tdp_mw, report.held,
                         expected_mw)  # fmt: skip
        rate, kind = _rate(before, report) if report.held != "unsure" else (-1.0, "")
        self._rates.hear(now_s, name, job, rate, kind, model, power_mw, cap_mw if is_bound else -1, tdp_mw,
                         self._needs.of(name), like)  # fmt: skip
        if name in self._jobs_on:
            by, slowdown = bound(report)
            live.add_power(name, power_mw, report.quality, cap_mw, by if is_bound else "", slowdown)

    def _reports(self, name: str, now_s: float) -> bool:
        return now_s - self._reported_s.get(name, -math.inf) <= self._settings.down_after_s

    def _why_down(self, name: str) -> str:
        now_s = self.now()
        if not self._reports(name, now_s):
            is_new = name not in self._reported_s and now_s - self._began_s <= self._settings.down_after_s
            return NOT_YET if is_new else "it does not report"
        if not self._speaks(name):
            return "its agent is too old to run jobs"
        if now_s - self._back_again_s[name] <= QUERY_IDLE_AFTER_S:
            return NOT_YET
        return "its agent runs no jobs (`jobs = true` in its [cluster])"


def _without_energy(news: NodeJobs) -> NodeJobs:
    """What the scheduler must know of; energy changes with every report."""
    if not any(part.energy for part in news.parts):
        return news
    parts = [msgspec.structs.replace(part, energy=None) for part in news.parts]
    return msgspec.structs.replace(news, parts=parts)


def _elapsed_s(before: Report | None, report: Report) -> float | None:
    """Time between two reports of one boot by the node's own clock; None if a mean over it would say nothing."""
    if before is None or before.boot_id != report.boot_id:
        return None
    elapsed_s = (report.report_id - before.report_id) / 1e9
    return elapsed_s if 0.1 <= elapsed_s <= LONGEST_METERED_S else None


def _mean_mw(before: Report | None, report: Report) -> int:
    """Mean power since the report before, by the node's own energy where it reports that."""
    elapsed_s = _elapsed_s(before, report)
    if not before or not elapsed_s or report.power_mw < 0 or not 0 <= before.energy_mj <= report.energy_mj:
        return report.power_mw
    return round((report.energy_mj - before.energy_mj) / elapsed_s)


def _rate(before: Report | None, report: Report) -> tuple[float, str]:
    """Work per second since the report before, and its kind; (-1, "") where none was counted."""
    elapsed_s = _elapsed_s(before, report)
    if before and elapsed_s:
        if 0 <= before.units <= report.units:
            return (report.units - before.units) / elapsed_s, "progress"
        if 0 <= before.instructions <= report.instructions:
            return (report.instructions - before.instructions) / elapsed_s, "instructions"
    return -1.0, ""


def _why_switched(one: Switched) -> str:
    """What the state does not say."""
    if one.is_wanted:
        return f"{one.reason}; waits for watts for its boot" if one.reason else "waits for watts for its boot"
    return one.reason or ("by hand" if one.is_by_hand else "")
