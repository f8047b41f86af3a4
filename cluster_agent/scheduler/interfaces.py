"""What the engine's loop needs of the world: a clock, a machine, and a scheduler.

In a replay the clock jumps and the machine is a simulation (``cluster_agent.replay.simulated``). On a live partition
the clock is the system's and the machine is the resource manager. The loop is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple, Protocol, TypeAlias

from cluster_agent.errors import WrongUseError
from cluster_agent.scheduler.power_phases import Ends, Reaction


class Kind(Enum):
    """What can happen; most of it to a job."""

    SUBMITTED = "submitted"
    ENDED = "ended"
    OVERRUN = "overrun"  # still running at its expected end
    CAP = "cap"  # another power cap is in force; of no job (-1)
    ROOM = "room"  # nodes became free, or a job has left the queue; of no job (-1)
    RECORDED = "recorded"  # it starts now by the record of a warm start, and no pass has started it


class Event(NamedTuple):
    """Something that has happened. ``job``: its index in the table of jobs, -1 for events that are of no job."""

    kind: Kind
    job: int


class Clock(Protocol):
    """Time in whole seconds, never running backwards."""

    def now_s(self) -> int:
        """The present."""
        ...

    def wait_until(self, time_s: int | None) -> bool:
        """Return at ``time_s``, or earlier when something may have happened; False: the loop is to end.

        None: no event is foreseen. A live clock then waits for messages, a simulated one ends.
        """
        ...


class Machine(Protocol):
    """Runs jobs, and reports what happens to them."""

    def events(self, now_s: int) -> Sequence[Event]:
        """The next events up to ``now_s``, which share a pass, in the order in which they count. Empty: no more."""
        ...

    def next_event_s(self) -> int | None:
        """When the next foreseeable event is due: an expected end, or in a simulation whatever comes next."""
        ...

    def start(self, at_s: int, job: int, expected_end_s: int, level: int = 0) -> None:
        """Start the job at a frequency, 0 the highest; ``at_s`` is later than now where nodes have to boot first. It
        counts as overrun if it has not ended at ``expected_end_s``."""
        ...

    def kill(self, now_s: int, job: int) -> None:
        """End a running job before its time; no event reports this."""
        ...

    def set_level(self, now_s: int, job: int, level: int, expected_end_s: int) -> None:
        """A running job goes on at another frequency, and its expected end moves."""
        ...

    def expect(self, now_s: int, job: int, expected_end_s: int) -> None:
        """A running job's expected end has moved. A time not after ``now_s`` leaves it overrun, without another
        event."""
        ...


class Scheduler(Protocol):
    """Decides which jobs start. Its methods are called in order of time."""

    def submit(self, now_s: int, job: int) -> bool:
        """The job joins the queue; True if this calls for a pass."""
        ...

    def end(self, job: int) -> None:
        """The running job has ended; this always calls for a pass."""
        ...

    def overrun(self, job: int) -> int:
        """The running job runs longer than estimated: returns its new expected end. No pass follows, nothing is
        free."""
        ...

    def decide(self, now_s: int) -> Sequence[int]:
        """One pass: the jobs to start now, in the order of decision. They count as running from here on."""
        ...

    def carry_out(self, now_s: int, job: int) -> None:
        """The waiting job starts now, as recorded (``recorded``)."""
        ...

    def level(self, job: int) -> int:
        """The frequency of a running job, 0 the highest."""
        ...

    def begins_s(self, now_s: int, job: int) -> int:
        """When a job begins to run whose start was decided now: later where nodes have to boot first."""
        ...

    def next_change_s(self) -> int | None:
        """When a cap begins, changes, ends or becomes known next, or nodes are switched. None: never, as known now."""
        ...

    def advance(self, now_s: int) -> bool:
        """Such a time has come: a pass is due. True if *react* is to be called before it."""
        ...

    def react(self, now_s: int) -> Reaction:
        """What to do to running jobs. This is decided; the machine must follow."""
        ...

    @property
    def reacts_to_ends(self) -> Ends:
        """Whether *react* is also called when jobs have ended."""
        ...

    def expected_end_s(self, job: int) -> int:
        """When a running job is expected to end."""
        ...


Meter: TypeAlias = Callable[[], int]
"""Microjoules that the cluster has drawn since the last call."""


def unmetered() -> int:
    """The meter of a scheduler that has no budget of joules."""
    raise WrongUseError("a budget of joules needs a meter, which this scheduler does not have: choose another policy")
