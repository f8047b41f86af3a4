"""The scheduler of unlike nodes in plain Python, as the papers tell it.

It looks at every waiting job in every pass. The native scheduler is tested against it
(``csrc/resources/nodes.c``).
"""

from __future__ import annotations

import numpy as np

from cluster_agent.scheduler.idle_off import switch_s
from cluster_agent.scheduler.job_columns import Int64s, Jobs
from cluster_agent.scheduler.policy_phases import Composition, Queue
from cluster_agent.scheduler.power_cap import PowerCap, drawn_uw, whole_uw
from cluster_agent.scheduler.queue import served
from cluster_agent.scheduler.rules import est
from cluster_agent.scheduler.unlike_nodes.node_aware import Placed, PowerSource, allowed_w
from cluster_agent.scheduler.unlike_nodes.node_jobs import CORES, GPUS, MEMORY, MICS, Nodes
from tests.oracle.one_frequency import UnderACap


class NodeScheduler(UnderACap):
    """The queue and the running jobs (see ``interfaces.Scheduler``)."""

    def __init__(
        self,
        composition: Composition,
        jobs: Jobs,
        nodes: Nodes,
        cap: PowerCap,
        power: PowerSource | None = None,
    ) -> None:
        super().__init__(cap, seen_s=-1)
        self.composition = composition
        self.jobs = jobs
        self.free = nodes.has.copy()
        self.queue: list[int] = []
        self.placed: dict[int, Placed] = {}  # of every job that was started
        self.admitted_w = jobs.watts.copy()
        self._admitted_uw = [drawn_uw(watts) for watts in jobs.watts.tolist()]
        self._counted_uw = list(self._admitted_uw)  # of the running jobs: as admitted, or as metered since
        self._unmetered: list[int] = []
        self._power = power
        self._total = jobs.total()
        self._has = nodes.has
        self._end_s: dict[int, int] = {}  # of the running jobs, as expected
        self._estimate_s = jobs.request_s.copy()
        self._started_s: dict[int, int] = {}
        # where nodes go off
        self.groups = nodes.group
        self._group_bit = nodes.group_bit
        self._jobs_on = [0] * len(nodes)
        self._idle_s: list[int | None] = [None] * len(nodes)  # None: since the pass to come
        self._on_s = [0] * len(nodes)  # when each is on if a job starts in this pass
        self._longest_s = max((sum(switch_s(one)) for one in nodes.group), default=0) if composition.idle_off_s else 0
        self._now_s = 0
        self._begins_s: dict[int, int] = {}
        self._boot_uw: dict[int, int] = {}

    # --- what happens

    def submit(self, now_s: int, job: int) -> bool:
        """The job joins the queue."""
        if self._power is not None:
            self._predict(self._power, job)
        self.queue.append(job)
        return True

    def end(self, job: int) -> None:
        """Free the job's room and watts; the source of power estimates learns its power."""
        del self._end_s[job], self._started_s[job]
        for node in set(self.placed[job].node.tolist()):
            self._jobs_on[node] -= 1
            self._idle_s[node] = None
        self._change(job, self.placed[job], self.free, 1)
        if self._power is not None and self.jobs.knows_watts[job]:
            self._power.learn(job, float(self.jobs.watts[job]))
            for waiting in self._waiting_like(job):
                self._predict(self._power, waiting)

    def overrun(self, job: int) -> int:
        """A job that runs longer than requested, on a machine that allows it, is expected to take twice as long."""
        self._estimate_s[job] *= 2
        self._end_s[job] = self._begins_s[job] + int(self._estimate_s[job])
        return self._end_s[job]

    def begins_s(self, now_s: int, job: int) -> int:
        """When the nodes of a job whose start was decided now are on."""
        return self._begins_s[job]

    def expected_end_s(self, job: int) -> int:
        """When a running job is expected to end."""
        return self._end_s[job]

    # --- a pass

    def decide(self, now_s: int) -> list[int]:
        """The jobs to start now."""
        self._read_meters()
        self._follow(now_s)
        started: list[int] = []
        head: int | None = None
        reserved: Reservation | None = None
        for job in self._ordered(now_s):
            placed = self._fits_with(now_s, job, reserved) if reserved else self._fits_now(now_s, job)
            if placed is not None:
                self._start(now_s, job, placed)
                if reserved is not None and now_s + self._estimate_s[job] + self._longest_s > reserved.from_s:
                    uw = max(self._admitted_uw[job], self._boot_uw[job])
                    self._change(job, placed, reserved.spare, -1)
                    reserved.spare_uw -= uw
                started.append(job)
            elif self.composition.backfill == "none":
                break
            elif head is None:
                head = job
                if self.composition.backfill == "easy":
                    reserved = self._reservation(now_s, job)
        gone = set(started)
        self.queue = [job for job in self.queue if job not in gone]
        return started

    def _ordered(self, now_s: int) -> list[int]:
        if not self.queue:
            return []
        job = np.array(self.queue, np.int64)
        jobs = self.jobs
        queue = Queue(
            job=job,
            submit_s=jobs.submit_s[job],
            request_s=jobs.request_s[job],
            estimate_s=self._estimate_s[job],
            width=self._total[job, CORES],
            user=jobs.user[job],
            units=jobs.units[job].astype(float),
            gpus=self._total[job, GPUS].astype(float),
            mics=self._total[job, MICS].astype(float),
            memory_kib=self._total[job, MEMORY].astype(float),
            watts=self.admitted_w[job],
            promise_s=np.array([wait_s or np.nan for wait_s in jobs.max_wait_s[job]], float),
        )
        order = served(self.composition.order or est, queue, now_s)
        return [int(one) for one in job[order]]

    def _fits_now(self, now_s: int, job: int) -> Placed | None:
        uw, span_s = self._admitted_uw[job], int(self._estimate_s[job]) + self._longest_s
        left_uw = self.left_uw(now_s, span_s)
        if uw > left_uw:
            return None
        placed = self._place(self.free, job)
        return placed if self._booting_uw(placed) <= left_uw else None

    def _fits_with(self, now_s: int, job: int, reserved: Reservation) -> Placed | None:
        """Whether there is room now, and, if the job is to run into the reservation, also next to that."""
        uw, span_s = self._admitted_uw[job], int(self._estimate_s[job]) + self._longest_s
        left_uw = self.left_uw(now_s, span_s)
        if uw > left_uw:
            return None
        is_late = now_s + span_s > reserved.from_s
        placed = self._place(np.minimum(self.free, reserved.spare) if is_late else self.free, job)
        uw = max(uw, self._booting_uw(placed))
        if uw > left_uw or (is_late and uw > reserved.spare_uw):
            return None
        return placed

    def _start(self, now_s: int, job: int, placed: Placed) -> None:
        self._change(job, placed, self.free, -1)
        self.placed[job] = placed
        self._started_s[job] = now_s
        self._begins_s[job] = max([now_s, *(self._on_s[node] for node in placed.node.tolist())])
        self._end_s[job] = self._begins_s[job] + int(self._estimate_s[job])
        self._counted_uw[job] = self._admitted_uw[job]
        self._boot_uw[job] = self._booting_uw(placed)
        for node in set(placed.node.tolist()):
            self._jobs_on[node] += 1
        if self.composition.power is not None and self.composition.power.is_metered:
            self._unmetered.append(job)

    # --- watts

    def _predict(self, power: PowerSource, job: int) -> None:
        predicted_w = power.predict(job) * (self.composition.power.margin if self.composition.power else 1.0)
        # at most what the cap allows, or the job would wait for ever; its true power is known to be possible
        most_w = allowed_w(self.jobs, job, self.cap)
        self.admitted_w[job] = min(predicted_w, most_w)
        self._admitted_uw[job] = min(drawn_uw(predicted_w), whole_uw(most_w))

    def _waiting_like(self, job: int) -> list[int]:
        """Waiting jobs of the same user and request, of which more is known now that ``job`` has ended."""
        jobs, waiting = self.jobs, np.array(self.queue, np.int64)
        is_like = (jobs.user[waiting] == jobs.user[job]) & (jobs.units[waiting] == jobs.units[job])
        is_like &= (jobs.need[waiting] == jobs.need[job]).all(axis=1)
        return [int(one) for one in waiting[is_like]]

    def drawn_uw(self, at_s: int) -> int:
        """What the running jobs draw that are expected to run beyond ``at_s``."""
        return sum(self._uw_of(job, at_s) for job, end_s in self._end_s.items() if end_s > at_s)

    def _uw_of(self, job: int, time_s: int) -> int:
        """Of a running job, or of the nodes that boot for it."""
        return max(self._counted_uw[job], self._boot_uw[job] if time_s < self._begins_s[job] else 0)

    def _read_meters(self) -> None:
        if self._power is None or not self._unmetered:
            return
        for job in self._unmetered:
            watts = self._power.metered(job)
            self._counted_uw[job] = self._counted_uw[job] if watts is None else drawn_uw(watts)
        self._unmetered.clear()

    # --- reservation

    def _reservation(self, now_s: int, head: int) -> Reservation | None:
        """Nodes and watts for ``head`` at the earliest time that expected ends and announced caps allow.

        None if that is never: a later cap or a broken node has made the job impossible.
        """
        span_s, uw = int(self._estimate_s[head]) + self._longest_s, self._admitted_uw[head]
        free = self.free.copy()
        running = sorted(self._end_s, key=lambda job: (self._end_s[job], job))
        horizon_s = max([self._end_s[running[-1]] if running else now_s, *self.cap.time_s]) + 1
        ended = 0
        for time_s in sorted({*self._end_s.values(), *self.cap.changes(now_s, horizon_s)}):
            while ended < len(running) and self._end_s[running[ended]] <= time_s:
                self._change(running[ended], self.placed[running[ended]], free, 1)
                ended += 1
            spare_uw = self.left_uw(time_s, span_s) - uw
            if spare_uw < 0:
                continue
            placed = self._place(free, head)
            spare_uw -= max(self._booting_uw(placed) - uw, 0)
            if placed is not None and spare_uw >= 0:
                self._change(head, placed, free, -1)
                return Reservation(time_s, free, spare_uw)
        return None

    # --- nodes

    def _follow(self, now_s: int) -> None:
        """Nodes that have been idle for long enough are going off, or off, and boot for the next job."""
        self._now_s, idle_off_s = now_s, self.composition.idle_off_s
        for node, group in enumerate(self.groups if idle_off_s else ()):
            if self._jobs_on[node]:
                continue
            idle_s = now_s if self._idle_s[node] is None else self._idle_s[node]
            self._idle_s[node], self._on_s[node] = idle_s, now_s
            assert idle_off_s is not None and idle_s is not None
            if idle_s + idle_off_s < now_s:
                switch_off_s, boot_s = switch_s(group)
                self._on_s[node] = max(idle_s + idle_off_s + switch_off_s, now_s) + boot_s

    def _booting_uw(self, placed: Placed | None) -> int:
        """Of the nodes that boot for a job there."""
        return sum(
            drawn_uw(self.groups[node].boot_j / max(switch_s(self.groups[node])[1], 1))
            for node in (set(placed.node.tolist()) if placed is not None else ())
            if self._on_s[node] > self._now_s and not self._jobs_on[node]
        )

    def _place(self, room: Int64s, job: int) -> Placed | None:
        """Nodes for the units of all components, each next to those before it, or None."""
        room, found = room.copy(), []
        for need, units, within in self._requests(job):
            placed = self._place_units(room, need, units, within)
            if placed is None:
                return None
            room[placed.node] -= placed.count[:, None] * need
            found.append(placed)
        return Placed(*(np.concatenate([getattr(one, name) for one in found]) for name in ("node", "count")))

    def _place_units(self, room: Int64s, need: Int64s, units: int, within: int) -> Placed | None:
        """Equal situations give equal nodes."""
        is_needed = need > 0
        fits = (
            (room[:, is_needed] // need[is_needed]).min(axis=1)
            if is_needed.any()
            else np.full(len(room), units, np.int64)
        )
        if within:
            fits = np.where(self._group_bit & within, fits, 0)
        if int(fits.sum()) < units:
            return None
        node = np.flatnonzero(fits)
        is_cold = np.array(self._on_s)[node] > self._now_s
        if self.composition.placing != "pack":
            node = node[np.lexsort((node, is_cold))]
        else:
            blocked = np.zeros(len(node), np.int64)
            for kind in (GPUS, MICS):
                if not is_needed[kind]:
                    blocked += np.where(room[node, kind] > 0, ACCELERATOR_RANK[kind], 0)
            node = node[np.lexsort((node, room[node, 0], is_cold, blocked))]
        before = np.cumsum(fits[node]) - fits[node]
        count = np.minimum(fits[node], np.maximum(units - before, 0))
        used = count > 0
        return Placed(node[used], count[used])

    def _change(self, job: int, placed: Placed, room: Int64s, sign: int) -> None:
        """Unit by unit: each takes what its component needs."""
        nodes = np.repeat(placed.node, placed.count).tolist()
        needs = [need for need, units, _ in self._requests(job) for _ in range(units)]
        for node, need in zip(nodes, needs, strict=True):
            room[node] += sign * need

    def _requests(self, job: int) -> list[tuple[Int64s, int, int]]:
        """What a unit needs, how many units, and the groups of nodes, of each component of the job."""
        jobs, parts = self.jobs, self.jobs.components
        if parts is None:
            return [(jobs.need[job], int(jobs.units[job]), int(jobs.within[job]))]
        rows = [row for row in range(len(parts.units)) if parts.first[job] <= row < parts.first[job] + parts.count[job]]
        return [(parts.need[row], int(parts.units[row]), int(parts.within[row])) for row in rows]


ACCELERATOR_RANK = {GPUS: 2, MICS: 1}
"""Ours: which node a job without accelerators blocks last. On Eurora jobs request GPUs far more often than MICs."""


class Reservation:
    """What other jobs may use next to the head from ``from_s`` on: nodes and watts."""

    def __init__(self, from_s: int, spare: Int64s, spare_uw: int) -> None:
        self.from_s = from_s
        self.spare = spare
        self.spare_uw = spare_uw
