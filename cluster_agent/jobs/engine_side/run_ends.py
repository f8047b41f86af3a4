"""What becomes of a job whose run is over: it has ended, was lost with a node, or was killed for a cap or by hand.

A job that was lost with its node, or killed for a cap, waits again at its place in the queue, once and where it may;
a best-effort job that was preempted, each time.
One that is queued again by hand goes to the end of the queue.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from cluster_agent.jobs.engine_side.engine_rows import EngineRows
from cluster_agent.jobs.engine_side.start_rules import StartRules
from cluster_agent.jobs.job import PREEMPTED, Job, State
from cluster_agent.jobs.job_nodes import Node
from cluster_agent.jobs.job_runs import Run
from cluster_agent.jobs.owned_watts.live_levels import CAPPED
from cluster_agent.jobs.times import EngineClock

if TYPE_CHECKING:
    from cluster_agent.store.job_store import JobStore

REQUEUE: Final = "to be queued again"


class RunEnds:
    """Of the jobs in ``rows``."""

    def __init__(
        self,
        rows: EngineRows,
        rules: StartRules,
        store: JobStore,
        clock: EngineClock,
        now: Callable[[], float],
        say: Callable[[str], None],
    ) -> None:
        self._rows, self._rules, self._store = rows, rules, store
        self._clock, self._now, self._say = clock, now, say

    def run_over(self, one: Run) -> None:
        """No node has the job any more."""
        job, rows = one.job, self._rows
        job.nodes = list(one.parts)
        leaves = one.row in rows.runs.leaving
        rows.runs.leaving.discard(one.row)
        for name in one.parts:
            node = rows.nodes[name]
            node.runs.pop(one.row, None)
            node.yields.discard(one.row)
            node.leaving.discard(one.row)
        state, status, reason = _outcome(one)
        is_requeue = job.reason == REQUEUE and not job.is_cancelled
        waits_again = state == "lost" and not is_requeue and not leaves and self._is_to_wait_after_loss(one)
        if leaves:
            rows.has_room = True
        elif one.is_killed:
            rows.scheduler.withdraw(one.row)
            rows.killed_s.pop(one.row, None)
            rows.has_room = True
        elif waits_again:
            self._wait_after_loss(one, f"queued again: {reason}")
        else:
            rows.run_over(one)
        if is_requeue:
            self.queue_again(job, "queued again by hand")
        elif job.reason in (CAPPED, PREEMPTED) and not job.is_cancelled and not (leaves and one.ended_by_itself):
            self._wait_again(one)
        elif not waits_again:
            self.job_over(job, state, status, reason)
        self._store.save(job)

    def kill(self, now_s: int, row: int) -> None:
        """End the job for a cap. Until its nodes say that it has ended they are occupied, with the caps of idle
        ones."""
        rows, runs = self._rows, self._rows.runs
        one = runs.by_row.pop(row)
        occupied = rows.occupy(one.job.nodes, now_s)
        one.is_killed, one.waits_as, one.row = True, row, occupied
        runs.by_row[occupied] = one
        for name in one.parts:
            rows.nodes[name].runs = {occupied: -1}
        rows.killed_s[occupied] = self._now()
        self._say(f"job {one.job.id}: {CAPPED}")
        runs.stop(one, CAPPED)
        runs.happened.add("start")  # its watts are for others
        self._store.save(one.job)

    def preempt(self, row: int) -> None:
        """Another job gets the nodes of this best-effort job, and starts there when its last process has ended."""
        one = self._rows.runs.by_row[row]
        self._rows.leave_nodes(one)
        self._say(f"job {one.job.id}: {PREEMPTED}")
        one.job.reason = PREEMPTED  # also of one that is being ended: after a restart its nodes are another's
        self._rows.runs.stop(one, PREEMPTED)
        self._store.save(one.job)

    def preempt_on(self, nodes: Sequence[Node]) -> None:
        """The same of the jobs on these nodes, which a job gets by name, so that the engine has not preempted them."""
        for row in sorted({row for node in nodes for row in node.yields}):
            self._rows.scheduler.withdraw(row)
            self.preempt(row)

    def cancel(self, job: Job, reason: str = "") -> None:
        """It leaves the queue and is over."""
        self._rows.leave_queue(job)
        self.job_over(job, "cancelled", None, reason)

    def job_over(self, job: Job, state: State, status: int | None, reason: str) -> None:
        """The job is no longer alive."""
        job.state, job.status, job.reason, job.ended_s = state, status, reason, self._now()
        self._rows.jobs.pop(job.id, None)
        self._rows.postponed.is_due = True

    def queue_again(self, job: Job, reason: str) -> None:
        """To the end of the queue, since its place was taken when it started."""
        job.state, job.reason, job.status, job.ended_s = "queued", reason, None, None
        job.nodes, job.queued_s, job.expected_end_s, job.configured = [], self._now(), None, None
        job.halves, job.may_take_s = {}, 0
        if job.spec.reservation:  # it may be over
            self._rules.look_again()
        if not self._rows.postponed.postpone(job) and self._rows.fits(job):
            self._rows.fresh.append(job)

    def _is_to_wait_after_loss(self, one: Run) -> bool:
        """Note that nodes have lost the job; whether it is to run once more."""
        job = one.job
        job.losses += 1
        waits = not one.is_killed and job.losses == 1 and job.spec.requeue
        for name, part in one.parts.items():
            if part.last is not None and part.last.phase == "lost":
                self._rows.placeholders.lost(name, self._clock.now_s(), has_ended_job=waits)
        return waits

    def _wait_after_loss(self, one: Run, reason: str) -> None:
        """A job whose node failed: to its place in the queue, at once or when its node no longer runs it."""
        job, rows, place_s = one.job, self._rows, one.job.queued_s
        self.queue_again(job, reason)
        job.queued_s, rows.has_room = place_s, True
        is_ready = bool(rows.fresh) and rows.fresh[-1] is job
        may_lose = not rows.watts.owns_watts and rows.watts.pairs is None
        if is_ready and may_lose and one.row >= rows.first_row:
            rows.fresh.pop()
            rows.wait_as(one.row, job)
            rows.scheduler.lose(one.row)
            return
        rows.scheduler.withdraw(one.row)
        rows.has_grown |= is_ready  # all that wait are put in order again

    def _wait_again(self, one: Run) -> None:
        """A job that was killed for a cap, or preempted: to its place in the queue, or it is over, as the policy and it
        say."""
        job, rows, why = one.job, self._rows, one.job.reason
        if not (job.spec.requeue and rows.watts.requeues):
            self.job_over(job, "failed", None, why)
            return
        place_s = job.queued_s
        self.queue_again(job, f"queued again: {why}")
        job.queued_s = place_s
        if one.waits_as is None:  # it was killed before a restart: all that wait are put in order again
            rows.has_grown = True
        elif job in rows.fresh:  # not if it waits for a node that may still run it, or is too wide by now
            rows.fresh.remove(job)
            rows.wait_as(one.waits_as, job)
            rows.scheduler.requeue(one.waits_as)


def _outcome(one: Run) -> tuple[State, int | None, str]:
    """Of a run that is over. One that was cancelled, or ended by itself, while it was preempted has another reason."""
    state, status, reason = one.outcome
    return state, status, "" if reason == PREEMPTED else reason
