"""The event log: a scheduler's inputs and decisions in order, so that the decisions can be made again and compared.

The first line names the replay (``Setting``). Then there is one JSON array a line; jobs are rows of ``jobs.csv``, from
0:

["submit", time, job, is_pass_due]              the job joins the queue
["end", time, job]                              the running job has ended
["overrun", time, job, expected_end]            it ran longer than its estimate, and gets this new one
["meter", time, microjoules]                    energy of the cluster since the last of these lines
["advance", time, is_react_due]                 a cap or the power plan changes, nodes are off or on; is *react* next
["react", time, [job, ...], [[job, level]]]     killed jobs, other frequencies
["pass", time, [[job, level, expected_end]]]    one pass: what is started, at which frequency
["recorded", time, job, expected_end]           in a warm start: the job starts, and no pass has started it

A scheduler with the same inputs must decide the same; ``check`` gives them to another one of the same policy and
compares. The scheduler is wrapped, not changed, so a live one can be logged in the same way.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any

import msgspec
import numpy as np

from cluster_agent.errors import ClusterError
from cluster_agent.replay import written_whole
from cluster_agent.scheduler.interfaces import Clock, Machine, Scheduler
from cluster_agent.scheduler.job_columns import Int64s
from cluster_agent.scheduler.power_phases import Ends, Reaction
from foundation.shell.extension import Origin
from foundation.shell.plain_text import read_utf8

VERSION = 2

DAMAGED = (TypeError, ValueError, LookupError, OverflowError, RecursionError)
"""What a line raises that is none of ours; msgspec's errors are of the second kind."""


class Setting(msgspec.Struct, frozen=True):
    """The inputs of a replay, as given on the command line."""

    trace: str
    policy: str
    machine: str | None = None
    cap: str | None = None
    instance: str | None = None
    closed_loop: str | None = None
    seed: int = 0
    configurations: str | None = None
    job_watts: str | None = None
    state: str | None = None
    """Without a trace of its own it is ``trace``, too."""
    plan_from: str | None = None
    limits: str | None = None
    partitions: str | None = None
    memory: str | None = None
    failures: str | None = None
    reservations: str | None = None
    pairs: str | None = None
    windows: str | None = None
    best_effort: str | None = None


class Header(msgspec.Struct, frozen=True, omit_defaults=True):
    """The first line: of which replay the log is, and the marks of the files that decide with it."""

    event_log: int
    setting: Setting
    sha256: str  # of the trace
    origin: Origin | None = None  # of a policy that does not ship with nodectl
    state_sha256: str = ""
    model: Origin | None = None  # that predicts watts
    profile: Origin | None = None  # of a budget of joules


class LoggedScheduler:
    """Passes all calls on to a scheduler, and logs them with its answers (see ``interfaces.Scheduler``)."""

    def __init__(self, scheduler: Scheduler, clock: Clock, file: IO[bytes]) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._file = file
        self.level, self.begins_s = scheduler.level, scheduler.begins_s
        self.next_change_s, self.expected_end_s = scheduler.next_change_s, scheduler.expected_end_s

    def submit(self, now_s: int, job: int) -> bool:
        """The job joins the queue."""
        is_pass_due = self._scheduler.submit(now_s, job)
        self._write("submit", now_s, job, is_pass_due)
        return is_pass_due

    def end(self, job: int) -> None:
        """The running job has ended."""
        self._scheduler.end(job)
        self._write("end", self._clock.now_s(), job)

    def overrun(self, job: int) -> int:
        """The running job runs longer than its estimate."""
        expected_end_s = self._scheduler.overrun(job)
        self._write("overrun", self._clock.now_s(), job, expected_end_s)
        return expected_end_s

    def advance(self, now_s: int) -> bool:
        """A cap or the power plan changes, nodes are off or on."""
        is_react_due = self._scheduler.advance(now_s)
        self._write("advance", now_s, is_react_due)
        return is_react_due

    def react(self, now_s: int) -> Reaction:
        """Jobs may be killed or slowed."""
        reaction = self._scheduler.react(now_s)
        self._write("react", now_s, *_reaction(reaction))
        return reaction

    def decide(self, now_s: int) -> Sequence[int]:
        """One pass."""
        started = self._scheduler.decide(now_s)
        self._write("pass", now_s, _starts(self._scheduler, started))
        return started

    def carry_out(self, now_s: int, job: int) -> None:
        """The waiting job starts now, as recorded."""
        self._scheduler.carry_out(now_s, job)
        self._write("recorded", now_s, job, self._scheduler.expected_end_s(job))

    @property
    def reacts_to_ends(self) -> Ends:
        """Whether *react* is to be called when jobs have ended."""
        return self._scheduler.reacts_to_ends

    def _write(self, *values: Any) -> None:
        self._file.write(msgspec.json.encode(values) + b"\n")


@contextmanager
def writing(path: str, header: Header) -> Iterator[IO[bytes]]:
    """The file, with its first line written; gzipped if it is called so. ``ClusterError`` if it cannot be written."""
    with (
        written_whole.one_file(path, "--log") as made,
        gzip.open(made, "wb", 1) if path.endswith(".gz") else made.open("wb") as file,
    ):
        file.write(msgspec.json.encode(header) + b"\n")
        yield file  # type: ignore[misc]  # a GzipFile writes bytes too


class ReplayMeter:
    """The meter of a loop that repeats a replay: the cluster's energy there. ``power_uw``: times, and microwatts from
    each to the next."""

    def __init__(self, power_uw: tuple[Int64s, Int64s]) -> None:
        self._times_s, self._uw = power_uw
        self._read_s: int | None = None
        self._clock: Clock | None = None
        self._file: IO[bytes] | None = None

    def follow(self, clock: Clock, file: IO[bytes]) -> None:
        """Read by this clock, and log every reading."""
        self._clock, self._file = clock, file

    def __call__(self) -> int:
        """Microjoules since the last call."""
        assert self._clock is not None and self._file is not None
        now_s = self._clock.now_s()
        from_s = int(self._times_s[0]) if self._read_s is None else self._read_s
        edges_s = np.clip([*self._times_s, max(now_s, int(self._times_s[-1]))], from_s, now_s)
        energy_uj = int((np.diff(edges_s) * self._uw).sum())
        self._read_s = now_s
        self._file.write(msgspec.json.encode(("meter", now_s, energy_uj)) + b"\n")
        return energy_uj


class LogMeter:
    """The meter of a scheduler that gets its inputs from a log: returns the log's next reading."""

    def __init__(self) -> None:
        self.energy_uj: int | None = None

    def __call__(self) -> int:
        """``ValueError`` if the log has no reading here."""
        if self.energy_uj is None:
            raise ValueError("no reading")
        energy_uj, self.energy_uj = self.energy_uj, None
        return energy_uj


def write_log(
    path: str,
    header: Header,
    scheduler: Scheduler,
    machine: Machine,
    start_s: Int64s,
    meter: ReplayMeter | None = None,
) -> None:
    """Run the engine's loop and log it. ``start_s``: when a replay of whole logs started each job, -1 never.
    ``meter``: that of the scheduler.

    ``ClusterError`` if the loop starts a job at another time.
    """
    from cluster_agent.replay.simulated import JumpingClock  # only here: a short replay is as long as its imports
    from cluster_agent.scheduler.loop import run

    clock, started = JumpingClock(), _Started(machine)
    with writing(path, header) as file:
        if meter is not None:
            meter.follow(clock, file)
        run(LoggedScheduler(scheduler, clock, file), clock, started)
    for job, at_s in enumerate(start_s.tolist()):
        if started.start_s.get(job, -1) != at_s:
            raise ClusterError(
                f"{path}: job {job} started at {started.start_s.get(job, -1)} s here and at {at_s} s in the replay:"
                " this is a defect of the scheduler: please report it with the log"
            )


class _Started:
    """A machine that notes when each job was last started."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.start_s: dict[int, int] = {}
        self.events, self.next_event_s = machine.events, machine.next_event_s
        self.set_level, self.expect = machine.set_level, machine.expect
        self.kill = machine.kill

    def start(self, now_s: int, job: int, expected_end_s: int, level: int = 0) -> None:
        """Start the job."""
        self.start_s[job] = now_s
        self._machine.start(now_s, job, expected_end_s, level)


class EventLog:
    """An event log on disk."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            content = read_utf8(path)
        except OSError as error:
            raise ClusterError(f"{path}: cannot read the event log: {error.strerror}") from None
        first, *self._lines = content.splitlines() or [b""]
        try:
            header = msgspec.json.decode(first, type=Header)
        except (ValueError, RecursionError):  # msgspec's errors, what it says of no UTF-8, and of lists in lists
            raise ClusterError(f"{path}:1: not an event log; write one with `clusterctl replay --log`") from None
        if header.event_log != VERSION:
            raise ClusterError(f"{path}:1: event log version {header.event_log}, but this clusterctl reads {VERSION}")
        self.setting = header.setting
        self.sha256 = header.sha256
        self.origin = header.origin
        self.state_sha256 = header.state_sha256
        self.model = header.model
        self.profile = header.profile

    def check(self, scheduler: Scheduler, jobs: int, meter: LogMeter | None = None) -> int:
        """Give ``scheduler`` (and its ``meter``) the inputs of the log; returns how many lines were compared.

        ``ClusterError`` names the line at which the decisions differ, or which is damaged.
        """
        feeder = _Feeder(scheduler, jobs, meter or LogMeter())
        for number, line in enumerate(self._lines, 2):
            where = f"{self.path}:{number}"
            try:
                kind, now_s, *values = msgspec.json.decode(line)
                decided = feeder.feed(kind, now_s, values)
            except DAMAGED:
                raise ClusterError(f"{where}: damaged line, or one out of order; write the log again") from None
            if decided != values:
                given, found = (msgspec.json.encode(one).decode() for one in (values, decided))
                raise ClusterError(f"{where}: at {now_s} s the log has {kind} {given}, this scheduler {found}")
        return len(self._lines)


class _Feeder:
    """Gives a scheduler the lines of a log. A native scheduler trusts its inputs, so impossible ones are refused
    here."""

    def __init__(self, scheduler: Scheduler, jobs: int, meter: LogMeter) -> None:
        self._scheduler = scheduler
        self._meter = meter
        self._unsubmitted = set(range(jobs))
        self._waiting: set[int] = set()
        self._running: set[int] = set()

    def feed(self, kind: str, now_s: int, values: list[Any]) -> list[Any]:
        """Take one line; returns what this scheduler would have in its place."""
        scheduler = self._scheduler
        if kind == "advance":
            is_react_due = scheduler.advance(now_s)
            if self._meter.energy_uj is not None:
                raise ValueError("a reading where none is due")
            return [is_react_due]
        if kind == "meter":
            self._meter.energy_uj = int(values[0])
            return [self._meter.energy_uj]
        if kind == "react":
            reaction = scheduler.react(now_s)
            self._running -= set(reaction.kill)
            return _reaction(reaction)
        if kind == "pass":
            started = scheduler.decide(now_s)
            self._running |= set(started)
            self._waiting -= set(started)
            return [_starts(scheduler, started)]
        job = values[0]
        if kind == "recorded":
            self._take(self._waiting, job)
            scheduler.carry_out(now_s, job)
            self._running.add(job)
            return [job, scheduler.expected_end_s(job)]
        if kind == "submit":
            self._take(self._unsubmitted, job)
            self._waiting.add(job)
            return [job, scheduler.submit(now_s, job)]
        if kind == "overrun" and job in self._running:
            return [job, scheduler.overrun(job)]
        if kind != "end":
            raise ValueError(kind)
        self._take(self._running, job)
        scheduler.end(job)
        return [job]

    @staticmethod
    def _take(jobs: set[int], job: int) -> None:
        if job not in jobs:
            raise ValueError(job)
        jobs.remove(job)


def _starts(scheduler: Scheduler, started: Sequence[int]) -> list[list[int]]:
    return [[int(job), scheduler.level(job), scheduler.expected_end_s(job)] for job in started]


def _reaction(reaction: Reaction) -> list[Any]:
    return [[int(job) for job in reaction.kill], [[int(job), int(level)] for job, level in reaction.level.items()]]
