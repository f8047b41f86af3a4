"""The phases of a policy that knows watts: *admit* by watts, *react*, *idle*; their inputs and results.

All three get the machine, the caps known so far and what runs. *admit* is native: a job may start at the
highest frequency at which it fits under every known cap for as long as it may run. *react* and *idle* are Python
functions, called when a cap becomes known, begins, changes or ends, and never per job. Powers here are watts of the
whole cluster; the engine itself counts whole microwatts per processor, so that the native and the plain-Python engine
decide alike to the last bit.

A node draws its idle watts and, for each core in use, an equal share of what it draws more when busy: jobs that share a
node are charged by their cores (our reading; Glesser 2016 §4.5 counts a partly used node as fully busy).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from cluster_agent.cap_steps import Cap
from cluster_agent.cluster import Machine
from cluster_agent.scheduler.energy_window import Budget
from cluster_agent.scheduler.job_columns import Int32s, Int64s

if TYPE_CHECKING:
    from cluster_agent.prediction.admitted_power import Guard
    from cluster_agent.prediction.models import Model
    from foundation.shell.extension import Extension


class Running(msgspec.Struct, frozen=True):
    """The running jobs as columns, in order of start, equal ones in order of decision."""

    job: Int32s
    start_s: Int64s
    width: Int32s  # processors
    level: Int32s  # index into the machine's frequencies, 0 the highest
    lowest: Int32s  # the lowest that the job may be given
    limit_s: Int64s  # when the job is ended at the latest, at its present frequency
    watts: npt.NDArray[np.float64]  # what it draws, idle share included


class Situation(msgspec.Struct, frozen=True):
    """The input of *react* at ``now_s``."""

    now_s: int
    machine: Machine
    caps: Sequence[Cap]  # known by now and not over, in order of time
    watts: float  # the cluster's power now, as planned
    cap_watts: float  # the cap now; infinite: none
    running: Running
    lowest: int  # the lowest frequency that the policy allows, as an index: the highest number
    watts_at: Callable[[int, int], float]
    """``watts_at(width, level)``: what so many processors draw, busy at a frequency, or idle with level -1."""


class Reaction(msgspec.Struct, frozen=True):
    """What is done at once: jobs that are killed, and jobs whose frequency changes (job: level)."""

    kill: Sequence[int] = ()
    level: Mapping[int, int] = {}


React: TypeAlias = Callable[[Situation], Reaction]
"""``react(situation)``: called when a cap begins, changes or ends; ``cap_reactions`` has some."""


class Off(msgspec.Struct, frozen=True):
    """The last ``nodes`` nodes of the machine are off in [from_s, to_s). They are emptied before: a job that may run
    into the window, extended by the time for switching at both ends, does not get them."""

    from_s: int
    to_s: int
    nodes: int


Idle: TypeAlias = Callable[[Machine, Sequence[Cap], int], Sequence[Off]]
"""``idle(machine, caps, now_s)``: which nodes are off when, given all caps known by now, in order of time and not
overlapping. Called when a cap becomes known; the answer replaces the last one."""


Ends: TypeAlias = Literal["unheard", "before", "after"]
"""Whether *react* is called too when jobs end under a cap, and if so before or after the pass that follows."""


class Volunteers(msgspec.Struct, frozen=True):
    """Whose jobs may be slowed: those of one queue of the log, or a random share of the jobs."""

    queue: int | None = None
    share: float = 0.0
    seed: int = 0


class Predictor(Protocol):
    """Predicts a job's power at submission, and learns its true power at its end."""

    def predict(self, job: int) -> float:
        """Watts of the whole job; more than 0."""
        ...

    def learn(self, job: int, watts: float) -> None:
        """The job has ended; its mean power was ``watts``."""
        ...


Admitted: TypeAlias = Literal["given", "average", "maximum", "expected"]
"""The watts that a job is admitted with: those of its trace, or a prediction from the submission: of similar jobs the
geometric mean, the highest, or the mean, which is right for sums."""


Levels: TypeAlias = Literal["all", "highest"]
"""Of ``Power.lowers_caps``, as policies that have it call it."""


class Power(msgspec.Struct, frozen=True):
    """The part of a composition that knows watts."""

    floor_mhz: int | None = None
    """The lowest frequency at which *admit* may start a job; None: only the highest. The one above it, if the machine
    does not have it."""
    floor_share: float | None = None
    """The same as a share of a busy node's highest watts: the lowest frequency that draws no less."""
    react: React | None = None
    idle: Idle | None = None
    volunteers: Volunteers | None = None
    """Only jobs whose users agreed to it may be given lower frequencies; None: all."""
    starts_slowed: bool = True
    """*admit* may choose a lower frequency; False: only *react* may."""
    reacts_to_ends: Ends = "unheard"
    rescales: bool = False
    """*react* lowers the jobs that run, as far as the caps need it, whenever a row of the plan begins (``slows``): so a
    job counts with its lowest frequency in all later rows."""
    meters: bool = False
    """On nodes that are alike: from the first pass after its start on a job counts with what it draws, as measured."""
    looks_ahead: bool = True
    """Whether announced caps count from their announcement; False: a cap is unknown until it begins."""
    requeue: bool = True
    """Whether a killed job goes back to its place in the queue and begins again; False: it ends, as killed."""
    application: str | None = None
    """The class of applications whose slowdown counts (``Machine.slowdowns``)."""
    budget: Budget | None = None
    """Joules for a window (``budget``)."""
    admitted: Admitted | None = None
    """Jobs are planned with watts of their own, times ``margin``; None: with the machine's, the most they can draw. A
    prediction is made once, when the job is submitted, and is used until its end."""
    margin: float = 1.0
    guard: Guard | None = None
    """How rarely a job may draw more than it was admitted with (``prediction.admitted_power``)."""
    model: Extension[Model] | None = None
    """Who predicts (``prediction.models``); None: the nearest past jobs."""
    is_metered: bool = False
    """On nodes that differ: whether a job counts with its measured power from the pass after its start on."""
    lowers_caps: bool = False
    """Live: a job is admitted with the watts of its nodes at their lowest frequency, to which their caps can be lowered
    when the budget drops or another job starts; what the budget leaves raises them all alike, up to the highest."""
    node_w: float | None = None
    """What a busy node is planned with at the highest frequency; None: what the machine says."""

    def __post_init__(self) -> None:
        if self.rescales and not self.starts_slowed:
            raise ValueError("rescale=true counts jobs with their lowest frequency: let them start slowed")
        if self.meters and self.admitted is not None:
            raise ValueError("metered=true counts nameplate watts until a job runs: leave out the watts of single jobs")

    @property
    def lowers_frequencies(self) -> bool:
        """Whether jobs may get another frequency than the highest."""
        return self.floor_mhz is not None or self.floor_share is not None
