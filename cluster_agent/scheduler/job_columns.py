"""The jobs of a trace or a queue, as columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import force_setattr, replace

if TYPE_CHECKING:
    from cluster_agent.scheduler.unlike_nodes.components import Components
    from cluster_agent.scheduler.unlike_nodes.node_aware import Placed

Int64s: TypeAlias = npt.NDArray[np.int64]
Int32s: TypeAlias = npt.NDArray[np.int32]
Bools: TypeAlias = npt.NDArray[np.bool_]
Float64s: TypeAlias = npt.NDArray[np.float64]


RESOURCES: Final = ("cores", "gpus", "mics", "memory_kib")
"""What a unit of a job takes of a node: the columns of ``Jobs.need``."""

_UNKNOWN: Final = np.full(0, -1, np.int64)
_EVERYWHERE: Final = np.zeros(0, np.int64)
NEVER_S: Final = 2**63 - 1
"""As the engine has it: later than any time."""

_UNKNOWN_W: Final = np.full(0, np.nan)
_NONE_KNOWN: Final = np.zeros(0, np.bool_)


class Jobs(msgspec.Struct, frozen=True):
    """Jobs 0..n-1 in order of submission; a job's index is its name inside the engine. The columns of every kind of
    trace: what a trace does not know is NaN, or -1 in whole numbers, never 0.

    ``run_s`` and ``request_s`` are at least 1 and ``run_s`` is at most ``request_s``: a job is ended at its request.
    """

    number: Int64s  # as in the log
    submit_s: Int64s  # ascending, 0 or later
    run_s: Int64s
    request_s: Int64s
    width: Int32s  # processors, or cores of all units, 1 or more; with configurations the nodes that are requested
    user: Int32s  # 0..n_users-1
    units: Int64s = _UNKNOWN  # start together, each on one node, several on one node if they fit
    need: Int64s = _UNKNOWN  # need[job, resource], of one unit; with ``components`` on average, rounded up
    watts: Float64s = _UNKNOWN_W  # of the whole job while it runs
    knows_watts: Bools = _NONE_KNOWN  # else they are assumed
    max_wait_s: Int64s = _UNKNOWN  # the wait that the job's queue promises; 0: none
    within: Int64s = _EVERYWHERE  # the groups of nodes that the job may be on, as bits; 0: all
    name: tuple[str, ...] = ()  # as in the trace, which need not be a number; empty: the numbers
    queue: tuple[str, ...] = ()
    components: Components | None = None
    """What each takes of nodes, where some jobs have units that differ; else all have equal units."""
    best_effort: Bools | None = None
    """Which run on what no other job can use now, and are preempted when one can; None: none does."""

    def __post_init__(self) -> None:
        for name, (unknown, value) in KNOWN_ON_NODES.items():
            if getattr(self, name) is unknown:
                shape = (len(self), len(RESOURCES)) if name == "need" else len(self)
                force_setattr(self, name, np.broadcast_to(value, shape))  # takes no memory

    def __len__(self) -> int:
        return len(self.number)

    @property
    def has_units(self) -> bool:
        """Whether it is known what the jobs take of nodes."""
        return self.units.strides != (0,)

    def only(self, rows: Int64s | Bools) -> Jobs:
        """The jobs ``rows``, in that order, their users numbered again."""
        left = self.each(lambda column: column[rows])
        _, user = np.unique(left.user, return_inverse=True)
        places = np.arange(len(self))[rows].tolist() if self.name or self.queue else ()
        name, queue = (tuple(texts[row] for row in places) if texts else () for texts in (self.name, self.queue))
        components = None if self.components is None else self.components.only(rows)
        best_effort = None if self.best_effort is None else self.best_effort[rows]
        return replace(
            left, user=user.astype(np.int32), name=name, queue=queue, components=components, best_effort=best_effort
        )

    def each(self, of: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]) -> Jobs:
        """With what ``of`` makes of each column that is known. Names, queues, components and which are
        best-effort stay as they are."""
        found: dict[str, Any] = {name: of(getattr(self, name)) for name in KNOWN_EVERYWHERE}
        for name, (unknown, _) in KNOWN_ON_NODES.items():
            found[name] = of(getattr(self, name)) if self.has_units else unknown
        return replace(self, **found)

    def total(self) -> Int64s:
        """``total[job, resource]`` over all units."""
        if self.components is not None:
            return self.components.total()
        whole: Int64s = self.need * self.units[:, None]
        return whole

    def total_of(self, job: int) -> Int64s:
        """The same of one job: ``need`` alone says too much of units that differ."""
        of = self if self.components is None else self.components
        rows = slice(job, job + 1) if self.components is None else self.components.rows(job)
        whole: Int64s = of.units[rows] @ of.need[rows]
        return whole

    def apart(self, job: int, placed: Placed) -> list[tuple[Int64s, Placed]]:
        """What a unit needs, and its nodes, of those of the job, of each component."""
        if self.components is None:
            return [(self.need[job], placed)]
        return [(self.components.need[row], own) for row, own in self.components.apart(job, placed)]

    @property
    def n_users(self) -> int:
        """Users that submitted at least one job."""
        return int(self.user.max(initial=-1)) + 1


class Submitted(msgspec.Struct, frozen=True):
    """A job that is submitted now, as an *estimate* in Python sees it."""

    job: int  # its index
    submit_s: int
    request_s: int
    width: int  # processors
    user: int


class Past(msgspec.Struct, frozen=True):
    """The jobs that have ended, as columns in the order of their ends. They are read-only, and stay as they are."""

    job: Int32s
    submit_s: Int64s
    request_s: Int64s
    run_s: Int64s
    width: Int32s  # processors
    user: Int32s


class Busy(msgspec.Struct, frozen=True):
    """The machine, as a *backfill* in Python sees it: running jobs as columns, in order of expected end."""

    free: int  # processors without a job
    job: Int32s
    width: Int32s  # processors
    end_s: Int64s  # expected, later than now


KNOWN_EVERYWHERE: Final = ("number", "submit_s", "run_s", "request_s", "width", "user")
KNOWN_ON_NODES: Final[dict[str, tuple[npt.NDArray[Any], npt.NDArray[Any]]]] = {
    "units": (_UNKNOWN, np.array(-1)),
    "need": (_UNKNOWN, np.array(-1)),
    "watts": (_UNKNOWN_W, np.array(np.nan)),
    "knows_watts": (_NONE_KNOWN, np.array(False)),
    "max_wait_s": (_UNKNOWN, np.array(-1)),
    "within": (_EVERYWHERE, np.array(0)),
}
"""What stands for a column that is not known, and the value that its jobs have then."""
