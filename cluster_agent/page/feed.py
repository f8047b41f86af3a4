"""One asker for all viewers: it polls the cluster agent, and keeps what was said last as a ``Snapshot``.

An answer costs the cluster agent the more, the more rows it has: 10,000 nodes take its loop a tenth of a second. So of
nodes only what has changed is requested, a few at a time, and what took long is requested again only after some times
that. When nobody looks, only what the power over time needs is requested, every ten seconds.

Questions are sent from a thread, since an answer may take seconds; all else runs in the loop of the page's process.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar, cast

from msgspec.structs import replace

from cluster_agent.commands.jobs import rows_since
from cluster_agent.errors import ClusterError
from cluster_agent.fabric.ask import Place, RefusedError, ask
from cluster_agent.history.kept_rows import KEPT
from cluster_agent.jobs.job import Job
from cluster_agent.page.alarm_fixes import fix_of
from cluster_agent.page.power_ring import FINE_S, PowerRing, point_of
from cluster_agent.page.row_table import RowTable
from cluster_agent.page.snapshot import Alarm, Snapshot, order_of
from cluster_agent.page.start_prediction import predicted, with_run_times
from cluster_agent.page.user_energy import WEEK_S, by_user, median_per_node_h_j
from cluster_agent.serve.job_requests import NO_JOBS
from cluster_agent.serve.people_protocol import (
    BudgetView,
    ExplainCap,
    ExportState,
    JobRow,
    ListBudgetChanges,
    ListHistory,
    ListJobChanges,
    ListNodeChanges,
    ListRunning,
    NodeRow,
    ShowBudget,
    ShowJob,
)
from cluster_agent.serve.why import Why

POLL_S: Final = 0.8
NODES_S: Final = 0.5
LONGEST_POLL_S: Final = 5.0
OWN_SHARE: Final = 0.19
"""Ours: of one processor, this process takes about so much: with many viewers of costly views rows move less often."""

REST: Final = 8.0
NODES_REST: Final = 4.0
"""Ours: of the cluster agent's time, questions about jobs take a ninth at most, and mostly far less. Those about nodes,
whose answers are small parts, may follow each other sooner: all rows are new within a second."""

ENDED_S: Final = 30.0
"""Ours: jobs that have ended are looked for that often."""

PREDICTED_S: Final = 30.0
"""Ours: starts are predicted again that often, if somebody looks: a replay of 5,000 jobs takes a second of a processor,
and the cluster agent's loop some milliseconds."""

LOOKED_AT_S: Final = 60.0
"""Ours: so long after the last page was requested, nobody looks."""

DETAIL_S: Final = 2.0
DETAILS: Final = 256
DETAILS_PER_S: Final = 5
"""Ours: what a page says of one node or job may be so old; so many are kept, and so many requested in a second, whoever
looks."""

Part = TypeVar("Part")


class NotNowError(Exception):
    """The cluster agent does not answer, or has got enough requests in this second, and nothing is kept."""


class Feed:
    """``snapshot`` is the newest. ``version`` grows each time it changes, ``nodes_version`` and ``rows_version`` when
    rows of nodes, or of jobs, do. ``run`` until it is cancelled."""

    def __init__(
        self,
        place: Place,
        partition: str = "",
        wall_s: Callable[[], float] = time.time,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._place, self._wall_s, self._now_s = place, wall_s, now_s
        self.snapshot = Snapshot(partition=partition)
        self.version = self.nodes_version = self.rows_version = 0
        self._changed = asyncio.Condition()
        self._ring = PowerRing()
        self._node_table = RowTable[NodeRow](ListNodeChanges, lambda one: ask(place, one), "name", "heard_s_ago")
        self._job_table = RowTable[JobRow](ListJobChanges, lambda one: ask(place, one), "job", "took_s")
        self._due_s: dict[str, float] = {}
        self._failing: dict[str, tuple[float, str]] = {}  # since when, and why
        self._alarms_since_s: dict[str, float] = {}
        self._looked_s = self._jobs_s = float("-inf")
        self._woken = asyncio.Event()
        self._details: OrderedDict[str, tuple[float, Any]] = OrderedDict()
        self._sent_at_s = 0
        self._sent = 0

    async def run(self) -> None:
        """Poll for ever: the budget often, and rows as often as they may cost."""
        await asyncio.gather(
            self._poll_budget(),
            self._poll("nodes", self._of_nodes, NODES_S),
            self._poll("rows", self._rows, POLL_S),
            self._predict(),
        )

    async def _poll_budget(self) -> None:
        while True:
            began_s = self._now_s()
            await self._try("budget", self._budget)
            await self._pause(max(began_s + POLL_S - self._now_s(), POLL_S / 4))

    async def _poll(self, name: str, request: Callable[[], Awaitable[dict[str, Any]]], poll_s: float) -> None:
        used_s = time.process_time()
        while True:
            await self._try(name, request)
            before_s, used_s = used_s, time.process_time()
            await self._pause(min(max(poll_s, (used_s - before_s) / OWN_SHARE), LONGEST_POLL_S))

    async def _predict(self) -> None:
        """When jobs start that are not planned."""
        while True:
            await self._pause(POLL_S)
            now_s = self._now_s()
            is_wanted = any(row.state == "queued" and row.planned_s is None for row in self.snapshot.jobs)
            if is_wanted and self._is_looked_at and now_s >= self._due_s.get("starts", float("-inf")):
                await self._try("starts", self._starts)
                self._due_s["starts"] = now_s + max(PREDICTED_S, REST * (self._now_s() - now_s))

    async def _starts(self) -> dict[str, Any]:
        """``RefusedError`` of an older cluster agent: it is not known how its jobs would start."""
        try:
            state = await asyncio.to_thread(lambda: ask(self._place, ExportState(past=0)))
        except RefusedError:
            return {}
        at_s, shown = self._wall_s(), self.snapshot
        return {"predicted": await predicted(with_run_times(state, shown.jobs, shown.ended), at_s)}

    async def _pause(self, seconds: float) -> None:
        """So long, or until somebody looks if nobody does."""
        self._woken.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._woken.wait(), seconds if self._is_looked_at else FINE_S)

    async def _try(self, name: str, request: Callable[[], Awaitable[dict[str, Any]]]) -> None:
        """Publish what a request gives: fields of the snapshot; or that nobody answers."""
        began_s, was_lost = self._wall_s(), bool(self._failing)
        try:
            fields = await request()
            self._failing.pop(name, None)
        except ClusterError as error:
            fields = {}
            since_s, _ = self._failing.get(name, (began_s, ""))
            self._failing[name] = since_s, _first_clause(error)
        lost_since_s, lost_why = min(self._failing.values(), default=(None, ""))
        async with self._changed:
            self.snapshot = replace(self.snapshot, **fields, lost_since_s=lost_since_s, lost_why=lost_why)
            if not fields.keys().isdisjoint(("jobs", "predicted")):
                order = order_of(self.snapshot.jobs, self.snapshot.predicted)
                self.snapshot = replace(self.snapshot, order=order)
            self.version += 1
            was_said = was_lost != bool(self._failing)
            self.nodes_version += name == "nodes" or was_said
            self.rows_version += name in ("rows", "starts") or was_said
            self._changed.notify_all()

    async def changed(self, version: int) -> int:
        """Wait until there is another than this ``version``; its number."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.version != version)
        return self.version

    async def look(self, patience_s: float) -> None:
        """Somebody looks. If nobody has for a while, wait for what is new, but no longer than this."""
        was_looked_at, self._looked_s = self._is_looked_at, self._now_s()
        if was_looked_at and self._jobs_s > float("-inf"):
            return
        since_s = self._jobs_s
        self._woken.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s), self._changed:
                await self._changed.wait_for(lambda: self._jobs_s > since_s or bool(self._failing))

    async def why(self, node: str) -> Why | None:
        """Why a node has its cap; None: there is no such node. ``NotNowError``: not known now."""
        return await self._detail(f"node {node}", lambda: ask(self._place, ExplainCap(node)))

    async def job(self, number: int) -> tuple[JobRow, Job] | None:
        """All about a job; None: there is none. ``NotNowError``: not known now."""
        return await self._detail(f"job {number}", lambda: ask(self._place, ShowJob(number)))

    async def _detail(self, key: str, request: Callable[[], Part]) -> Part | None:
        """The answer to a question about one thing. A burst of them gets what is kept."""
        now_s = self._now_s()
        kept_s, answer = self._details.get(key, (float("-inf"), None))
        kept = cast("Part | None", answer)
        if now_s - kept_s < DETAIL_S:
            return kept
        second = int(now_s)
        if second != self._sent_at_s:
            self._sent_at_s, self._sent = second, 0
        if self._sent >= DETAILS_PER_S or self.snapshot.lost_since_s is not None:
            return self._last(key, kept)
        self._sent += 1
        try:
            found = await asyncio.to_thread(request)
        except RefusedError:
            found = None
        except ClusterError:
            return self._last(key, kept)
        self._details[key] = now_s, found
        self._details.move_to_end(key)
        if len(self._details) > DETAILS:
            self._details.popitem(last=False)
        return found

    def _last(self, key: str, kept: Part | None) -> Part | None:
        if key not in self._details:
            raise NotNowError
        return kept

    @property
    def _is_looked_at(self) -> bool:
        return self._now_s() - self._looked_s < LOOKED_AT_S

    async def _budget(self) -> dict[str, Any]:
        def request() -> dict[str, Any]:
            budget, changes = ask(self._place, ShowBudget()), ask(self._place, ListBudgetChanges())
            return {"budget": budget, "changes": tuple(changes), "alarms": self._alarms(budget)}

        return {**await asyncio.to_thread(request), "taken_s": self._wall_s()}

    async def _of_nodes(self) -> dict[str, Any]:
        """Rows of nodes, and a point of the power over time."""
        fields = await self._part("nodes", self._nodes, NODES_REST)
        at_s, budget = self._wall_s(), self.snapshot.budget
        if budget is not None and self._ring.is_due(at_s):
            self._ring.add(point_of(at_s, budget, fields.get("nodes", self.snapshot.nodes)))
            fields["power"] = self._ring.points()
        return fields

    async def _rows(self) -> dict[str, Any]:
        """Jobs, if somebody looks and they are due."""
        fields: dict[str, Any] = {}
        if self._is_looked_at:
            fields |= await self._part("ended", self._ended, REST, ENDED_S)
            fields |= await self._part("jobs", self._jobs, REST)
            self._jobs_s = self._now_s()
        return fields

    async def _part(
        self, name: str, request: Callable[[], dict[str, Any]], rest: float, at_least_s: float = 0.0
    ) -> dict[str, Any]:
        """A part, if it is due: what took long is due after ``rest`` times that."""
        if self._now_s() < self._due_s.get(name, float("-inf")):
            return {}
        began_s = self._now_s()
        made = await asyncio.to_thread(request)
        ended_s = self._now_s()
        self._due_s[name] = ended_s + max(rest * (ended_s - began_s), at_least_s)
        return made

    def _alarms(self, budget: BudgetView) -> tuple[Alarm, ...]:
        kinds = [*budget.alarm_kinds, *[""] * (len(budget.alarms) - len(budget.alarm_kinds))]
        now_s = self._wall_s()
        self._alarms_since_s = {kind: self._alarms_since_s.get(kind, now_s) for kind in kinds}
        return tuple(
            Alarm(kind, words, fix_of(kind), self._alarms_since_s[kind])
            for kind, words in zip(kinds, budget.alarms, strict=True)
        )

    def _nodes(self) -> dict[str, Any]:
        rows = self._node_table.read()
        before, now_s = self.snapshot.bound_since_s, self._wall_s()
        since_s = {row.name: before.get(row.name, now_s) for row in rows if row.bound_by}
        return {"nodes": rows, "bound_since_s": since_s}

    def _jobs(self) -> dict[str, Any]:
        try:
            jobs, has_jobs = self._job_table.read(), True
        except RefusedError as error:
            if NO_JOBS not in str(error):
                raise
            jobs, has_jobs = (), False
        return {"jobs": jobs, "has_jobs": has_jobs, "running": tuple(ask(self._place, ListRunning()))}

    def _ended(self) -> dict[str, Any]:
        """The jobs that have ended since; those that ended a week ago go. Several may end at one moment, so the last
        one is requested again."""
        before, week_s = self.snapshot.ended, self._wall_s() - WEEK_S
        known = [row for row in before if row.ended_s >= week_s]
        since_s = known[0].ended_s - 1.0 if known else week_s
        latest = [row for row in known if row.ended_s > since_s]
        rows = rows_since(self._place, ListHistory(since_s))
        new = [row for row in rows if row not in latest]
        if not new and len(known) == len(before):
            return {}
        ended = tuple(sorted([*new, *known], key=lambda row: -row.ended_s)[:KEPT])
        return {"ended": ended, "energy": by_user(ended), "median_per_node_h_j": median_per_node_h_j(ended)}


def _first_clause(error: ClusterError) -> str:
    """Without the advice for whoever types a command."""
    return str(error).partition("; is `clusterctl serve` running")[0]
