"""A replay whose scheduler is another process that speaks Batsim's protocol, such as one of pybatsim's.

Batsim is a simulator (Dutot et al., JSSPP 2016) whose schedulers are programs of their own: it says what happens, and
they answer who starts where. Here the native engine is that simulator: a world that stops at each instant (``Steps``).
Its seconds are whole ones: what a scheduler decides within a second counts from that second on, and a call for a part
of a second comes with the next one. Batsim's times have to be above 0: if a log begins before second 1, Batsim's clock
is ahead of the log's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from math import ceil, floor
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from cluster_agent import choosing
from cluster_agent.errors import ClusterError, SchedulerError, StepError, WrongUseError
from cluster_agent.library.fitting import fitted
from cluster_agent.library.given import World
from cluster_agent.library.own_policies import policy
from cluster_agent.library.remarks import remarks_on
from cluster_agent.library.replaying import LOGGER
from cluster_agent.library.results import Result
from cluster_agent.replay import world_run
from cluster_agent.replay.world_run import Decided
from cluster_agent.scheduler.job_columns import NEVER_S
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.stepping.batsim_link import Link
from cluster_agent.stepping.batsim_messages import (
    PROFILE,
    WORKLOAD,
    Event,
    Intervals,
    Said,
    beginning,
    decoded,
    encoded,
    in_order,
    intervals,
    procset,
)
from cluster_agent.stepping.steps import Steps
from foundation.shell.errors import nearest

if TYPE_CHECKING:
    from cluster_agent.library.fitting import Progress, Say

IDLE_CALLS: Final = 100_000
"""Ours: after so many calls in a row between which nothing has happened, and nothing can, a scheduler is stuck. So it
is after as many messages in one second in which no job has come, started, or ended."""

COMING, WAITS, RUNS, OVER, REJECTED = range(5)
_STATES: Final = ("has not been submitted", "waits", "runs already", "has ended", "was rejected")

_NOT_HERE: Final = (
    "CHANGE_JOB_STATE", "REGISTER_JOB", "REGISTER_PROFILE", "RESOURCES_ADDED", "RESOURCES_REMOVED",
    "SET_RESOURCE_STATE", "TO_JOB_MSG",
)  # fmt: skip
"""Events of Batsim's for which there is nothing here."""


class Foreign(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A scheduler in another process: where it listens, how long it may think about one message, whether it may be on
    another machine, and what it is called in results."""

    address: str = "tcp://127.0.0.1:28000"
    timeout_s: float = 60.0
    remote: bool = False
    name: str = "batsim"

    def __post_init__(self) -> None:
        if not 0 < self.timeout_s <= 1e6:
            raise ValueError(f"timeout_s={self.timeout_s:g}: give seconds, more than 0 and at most 1000000")


def foreign(text: str) -> Foreign:
    """``batsim[:KEY=VALUE,...]``. ``WrongUseError`` for another kind of schedulers, or a parameter that is none."""
    kind = text.partition(":")[0].strip()
    if kind != "batsim":
        raise WrongUseError(f"--scheduler {text}: no kind of scheduler is called {kind!r}: give batsim[:KEY=VALUE,...]")
    return choosing.read_params("--scheduler", text, "batsim", Foreign)


def replay(
    world: World, scheduler: str | Foreign = "batsim", *, progress: Progress | None = None, say: Say | None = None
) -> Result:
    """Schedule the jobs of ``world`` again as a scheduler in another process says: it listens already, or will within
    its ``timeout_s``. ``progress`` and ``say`` as of the library's ``replay``.

    ``SchedulerError`` in one sentence, with the event's text, for an answer that cannot be carried out; ``StepError``
    for a world that cannot be stepped, ``ClusterError`` if no job was ever started.
    """
    of = foreign(scheduler) if isinstance(scheduler, str) else scheduler
    say = say or partial(logging.getLogger(LOGGER).warning, "%s")
    choice = policy(Composition(), name=of.name)
    for option, value in (("state", world.state), ("closed-loop", world.closed_loop), ("plan-from", world.plan_from)):
        if value is not None:
            raise WrongUseError(f"--{option} {value}: not with --scheduler: leave one of them out")
    kind = world.kind(choice)
    if kind != "processors":
        raise WrongUseError("--scheduler: a trace with nodes; Batsim's jobs take processors: give a log of these")
    steps = Steps(fitted(world, choice, kind, say), choice.on(kind), "instants")
    with Link(of.address, of.timeout_s, of.remote) as link:
        simulation = Simulation(steps, link.ask)
        simulation.run(progress)
        say(f"{of.name}: {link.messages} messages, for whose answers we waited {link.waited_s:.3g} s; {simulation}")
    result = world_run.Result(steps.world, steps.schedule, decided=simulation.decided())
    if result.unstarted == len(result.jobs):
        raise ClusterError(f"{result.world.trace.path}: {of.name} has started none of {len(result.jobs)} jobs")
    remarks = remarks_on(choice, kind, steps.world, result)
    for remark in remarks:
        say(remark)
    fields = {name: getattr(result, name) for name in world_run.Result.__struct_fields__}
    return Result(**fields, given=world, policy=choice, whole=result, remarks=tuple(remarks))


class Simulation:
    """Batsim's side of the conversation, over a world that stops at each instant. ``ask`` sends a message and returns
    the answer to it."""

    def __init__(self, steps: Steps, ask: Callable[[bytes], bytes]) -> None:
        self._steps, self._ask, jobs = steps, ask, steps.jobs
        workload = steps.world.workload
        is_numbered = len(np.unique(jobs.number)) == len(jobs)
        numbers = (jobs.number if is_numbered else np.arange(len(jobs))).tolist()
        self._names = [f"{WORKLOAD}!{number}" for number in numbers]
        self._jobs = {name: job for job, name in enumerate(self._names)}
        self._has_requests, self._is_cut = workload.has_requests, workload.is_cut.tolist()
        self._width, self._submit_s = jobs.width.tolist(), jobs.submit_s.tolist()
        self._request_s, self._run_s = jobs.request_s.tolist(), jobs.run_s.tolist()
        self._later_s = max(1 - self._submit_s[0], 0)  # Batsim's clock is so much later than the log's
        self._path = workload.path

        self._state = bytearray(len(jobs))
        self._free = (1 << steps.processors) - 1  # a bit for each processor
        self._taken: dict[int, int] = {}  # the bits of each running job
        self._given: dict[int, Intervals] = {}
        self._killed: list[int] = []
        self._waiting = self._rejected = self._ended = self._submitted = self._unkept = 0
        self._calls: list[int] = []  # in seconds of the log, a heap
        self._idle_calls = 0
        self._idle_messages, self._seen = 0, (0.0, *(0,) * 4)
        self._now = 0.0  # the scheduler's
        self._at = float(steps.now_s + self._later_s)  # the world's, where it was heard of last
        self._news: list[Said] = []  # what it has not heard yet

    def __str__(self) -> str:
        unkept = f", {self._unkept} SET_JOB_METADATA not kept" if self._unkept else ""
        return f"it has rejected {self._rejected} jobs and killed {len(self._killed)}{unkept}"

    def run(self, progress: Progress | None = None) -> None:
        """From SIMULATION_BEGINS to SIMULATION_ENDS."""
        steps, jobs, shown = self._steps, len(self._state), -1
        self._news = [beginning(steps.processors, self._path)]
        self._tell(0.0)
        while self._calls and self._calls[0] < steps.now_s:  # before the first job
            at = float(heappop(self._calls) + self._later_s)
            self._news.append(Said(at, "REQUESTED_CALL", {}))
            self._tell(at)
        if not self._submitted:
            self._hear()
        while self._news:
            self._tell(float(steps.now_s + self._later_s))
            if not self._news:
                self._go_on(NEVER_S)
            if progress is not None and self._ended > shown:
                shown = self._ended + jobs // world_run.SLICES
                progress(self._ended, jobs)
        self._news = [Said(max(self._now, float(steps.now_s + self._later_s)), "SIMULATION_ENDS", {})]
        self._tell(self._news[0].timestamp, is_last=True)
        if progress is not None:
            progress(self._ended, jobs)

    def decided(self) -> Decided:
        """What it has decided in addition to starts, for a ``Result``."""
        count = np.array([len(self._given.get(job, ())) for job in range(len(self._state))], np.int32)
        rows = [pair for _, given in sorted(self._given.items()) for pair in given]
        is_killed = np.zeros(len(self._state), np.bool_)
        is_killed[self._killed] = True
        first = np.cumsum(count, dtype=np.int64) - count
        return Decided(np.array(rows, np.int32).reshape(-1, 2), first, count, is_killed)

    # --- what the scheduler hears

    def _tell(self, now: float, is_last: bool = False) -> None:
        """Send what there is, and carry out what is answered."""
        now = max(now, self._now)
        events, self._news = self._news, []
        answer = decoded(self._ask(encoded(now, events)), now)
        if is_last:
            return
        for event in answer.events:
            if event.timestamp >= self._at + 1.0:
                self._go_on(floor(event.timestamp) - self._later_s)
            self._carry_out(event)
        if answer.now >= self._at + 1.0:
            self._go_on(floor(answer.now) - self._later_s)
        self._now = answer.now
        self._check_progress()

    def _check_progress(self) -> None:
        """``SchedulerError`` for a scheduler that gives itself news for ever, and time no chance to pass."""
        seen = self._at, self._submitted, len(self._given), self._ended, self._rejected
        self._idle_messages = self._idle_messages + 1 if seen == self._seen else 0
        self._seen = seen
        if self._idle_messages > IDLE_CALLS:
            raise SchedulerError(
                f"the scheduler has requested news {IDLE_CALLS} times in a row in the same second, and"
                f" starts, rejects and kills nothing: it is stuck at {self._now:.0f} s"
            )

    def _go_on(self, until_s: int) -> None:
        """The world goes on: to the next instant at which something happens, or, if ``until_s`` comes, to that time
        with all that happens by then."""
        steps, is_open = self._steps, until_s == NEVER_S
        if not self._submitted and until_s > steps.now_s:
            self._hear()
        while not steps.is_over and steps.now_s < until_s and not (is_open and (self._news or self._is_done())):
            call_s = self._calls[0] if self._calls else NEVER_S
            steps.advance(None if is_open and not self._calls else min(call_s, until_s))
            self._hear()

    def _is_done(self) -> bool:
        """Whether the only jobs that are left were rejected."""
        return self._ended + self._rejected == len(self._state)

    def _hear(self) -> None:
        """What has happened at this instant: ends, submissions, calls."""
        steps = self._steps
        now_s = steps.now_s
        at = self._at = float(now_s + self._later_s)
        news, state = self._news, self._state
        before, submitted = len(news), steps.submitted
        for job in steps.ended_since(self._ended):
            self._over(job)
            news.append(self._completed(at, job, "COMPLETED_WALLTIME_REACHED" if self._is_cut[job] else _SUCCESS))
        for job in range(self._submitted, submitted):
            state[job] = WAITS
            news.append(Said(at, "JOB_SUBMITTED", {"job_id": self._names[job], "job": self._described(job)}))
        if self._submitted < submitted == len(state):
            news.append(Said(at, "NOTIFY", {"type": "no_more_static_job_to_submit"}))
        self._submitted = submitted
        self._idle_calls = 0 if len(news) > before or self._taken else self._idle_calls + 1
        while self._calls and self._calls[0] <= now_s:
            heappop(self._calls)
            news.append(Said(at, "REQUESTED_CALL", {}))
        if self._idle_calls > IDLE_CALLS and self._submitted == len(state):
            raise SchedulerError(
                f"the scheduler has requested {IDLE_CALLS} calls in a row, while no job runs or comes,"
                f" and starts none of those that wait: it is stuck at {at:.0f} s"
            )

    def _described(self, job: int) -> dict[str, Any]:
        name, later_s = self._names[job], self._later_s
        found = {
            "id": name,
            "res": self._width[job],
            "subtime": float(self._submit_s[job] + later_s),
            "profile": PROFILE,
        }
        if self._has_requests:
            found["walltime"] = self._request_s[job]
        return found

    def _completed(self, at: float, job: int, state: str) -> Said:
        data = {
            "job_id": self._names[job],
            "job_state": state,
            "return_code": 0 if state == _SUCCESS else -1,
            "alloc": procset(self._given[job]),
        }
        return Said(at, "JOB_COMPLETED", data)

    def _over(self, job: int) -> None:
        self._state[job] = OVER
        self._free |= self._taken.pop(job)
        self._ended += 1

    # --- what the scheduler decides

    def _carry_out(self, event: Event) -> None:
        carry_out = _DECISIONS.get(event.type)
        if carry_out is not None:
            carry_out(self, event)
        elif event.type in _NOT_HERE:
            raise event.wrong("a replay of a log has nothing of this kind (docs/batsim.md)")
        else:
            raise event.wrong(f"no event is called {event.type[:40]!r}{nearest(event.type, _DECISIONS)}")

    def _execute(self, event: Event) -> None:
        """EXECUTE_JOB: the job starts on these processors."""
        job = self._waits(event, event.value("job_id", str))
        text = event.value("alloc", str)
        given = intervals(text)
        if given is None:
            raise event.wrong(f"alloc {text[:40]!r} is no set of processors, such as 0-3 7")
        processors, bits = self._steps.processors, 0
        for first, last in given:
            if last >= processors:
                raise event.wrong(f"processor {last} does not exist: they go from 0 to {processors - 1}")
            part = ((1 << (last - first + 1)) - 1) << first
            if bits & part:
                raise event.wrong(f"processor {_lowest(bits & part)} is in its alloc twice")
            bits |= part
        if busy := bits & ~self._free:
            whose = next(self._names[other] for other, taken in self._taken.items() if taken & busy)
            raise event.wrong(f"processor {_lowest(busy)} is in use by {whose}")
        if (count := bits.bit_count()) != self._width[job]:
            raise event.wrong(f"the job needs {self._width[job]} processors, and its alloc has {count}")
        try:
            self._steps.start([job])
        except StepError as error:
            raise event.wrong(str(error)) from None
        self._state[job] = RUNS
        self._free &= ~bits
        self._taken[job], self._given[job] = bits, in_order(given)

    def _reject(self, event: Event) -> None:
        """REJECT_JOB: the job will never run."""
        self._state[self._waits(event, event.value("job_id", str))] = REJECTED
        self._rejected += 1

    def _kill(self, event: Event) -> None:
        """KILL_JOB: jobs end now. Of those that have ended by themselves JOB_KILLED has no progress."""
        names, now_s = event.value("job_ids", list[str]), self._steps.now_s
        at, progress = float(now_s + self._later_s), {}
        for name in names:
            job = self._known(event, name)
            if self._state[job] == OVER:
                continue
            if self._state[job] != RUNS:
                raise event.wrong(f"{name} {_STATES[self._state[job]]}, and only jobs that run can be killed")
            ran_s = now_s - int(self._steps.schedule.start_s[job])
            if not ran_s:
                raise event.wrong(f"{name} has started in this second, and here seconds are whole")
            self._steps.end(job)
            self._over(job)
            self._killed.append(job)
            self._news.append(self._completed(at, job, "COMPLETED_KILLED"))
            progress[name] = {"profile": PROFILE, "progress": ran_s / self._run_s[job]}
        self._news.append(Said(at, "JOB_KILLED", {"job_ids": names, "job_progress": progress}))

    def _call(self, event: Event) -> None:
        """CALL_ME_LATER."""
        at = event.value("timestamp", float)
        if not at >= event.timestamp:
            raise event.wrong(f"the call is for {at:g} s, and it is {event.timestamp:.10g} s already")
        heappush(self._calls, min(ceil(at), NEVER_S - 1 - self._later_s) - self._later_s)

    def _query(self, event: Event) -> None:
        """QUERY: the joules since the start."""
        requests = event.value("requests", dict[str, Any])
        if [*requests] != ["consumed_energy"]:
            raise event.wrong("the only query here is consumed_energy")
        try:
            joules = self._steps.joules
        except StepError:
            raise event.wrong("joules need a machine with watts, such as --machine curie") from None
        at = float(self._steps.now_s + self._later_s)
        self._news.append(Said(at, "ANSWER", {"consumed_energy": joules}))

    def _notify(self, event: Event) -> None:
        """NOTIFY: that it registers no more jobs, of which there are none here anyway."""
        if (kind := event.value("type", str)) not in ("registration_finished", "continue_registration"):
            raise event.wrong(f"no notice is called {kind[:40]!r}")

    def _note(self, event: Event) -> None:
        """SET_JOB_METADATA: changes no decision, and is counted."""
        self._unkept += 1

    def _known(self, event: Event, name: str) -> int:
        job = self._jobs.get(name)
        if job is None:
            raise event.wrong(f"no job is called {name[:40]!r}")
        return job

    def _waits(self, event: Event, name: str) -> int:
        job = self._known(event, name)
        if self._state[job] != WAITS:
            raise event.wrong(f"{name} {_STATES[self._state[job]]}")
        return job


def _lowest(bits: int) -> int:
    """The number of the lowest bit that is set."""
    return (bits & -bits).bit_length() - 1


_SUCCESS: Final = "COMPLETED_SUCCESSFULLY"
_DECISIONS: Final[dict[str, Callable[[Simulation, Event], None]]] = {
    "CALL_ME_LATER": Simulation._call,
    "EXECUTE_JOB": Simulation._execute,
    "KILL_JOB": Simulation._kill,
    "NOTIFY": Simulation._notify,
    "QUERY": Simulation._query,
    "REJECT_JOB": Simulation._reject,
    "SET_JOB_METADATA": Simulation._note,
}
