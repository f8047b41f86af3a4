"""Every column of jobs.csv and jobs.parquet: its name, its unit, the resources that have it, and what is in it.

The first ones are those of Batsim 4, which evalys and others read, and are all that jobs.csv has; the others are ours.
What a replay does not know is empty, never 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from cluster_agent._native import lib
from cluster_agent.replay.drawn import job_w
from cluster_agent.replay.measures import EVERYWHERE
from cluster_agent.replay.world_run import Result
from cluster_agent.scheduler.job_columns import Bools, Float64s, Int64s
from cluster_agent.scheduler.native.native_tables import pointer
from cluster_agent.scheduler.unlike_nodes.shared_nodes import Company, companies, why
from cluster_agent.scheduler.world import Kind
from cluster_agent.workloads.job_log import Workload

ALLOCATED: Final = "allocated_resources"
INTERVAL_BYTES: Final = 24  # "2147483647-2147483647 " and a little
MOST_WORDS: Final = 1 << 17  # numbers whose text is kept: a megabyte, which fits a core's cache
STATES: Final = ("COMPLETED_SUCCESSFULLY", "COMPLETED_WALLTIME_REACHED", "NOT_STARTED", "COMPLETED_KILLED")


class Numbers(msgspec.Struct, frozen=True):
    """Values of a column; of jobs that are not known none. ``decimals``: in text."""

    values: npt.NDArray[Any]
    is_known: Bools | None = None
    decimals: int | None = None

    def cells(self) -> list[Any]:
        """In text; None: empty."""
        found = self.values.tolist()
        if self.values.dtype == np.bool_:
            found = [int(one) for one in found]
        if self.decimals is not None:
            found = [f"{one:.{self.decimals}f}" for one in found]
        return (
            found
            if self.is_known is None
            else [one if known else None for one, known in zip(found, self.is_known, strict=True)]
        )

    def arrow(self) -> Any:
        """As an Arrow column. ``pa.array`` would import numpy.ma, and pandas where it is installed."""
        import pyarrow as pa

        n, known = len(self.values), self.is_known
        valid = None if known is None or known.all() else pa.py_buffer(np.packbits(known, bitorder="little"))
        if self.values.dtype == np.bool_:
            return pa.Array.from_buffers(
                pa.bool_(), n, [valid, pa.py_buffer(np.packbits(self.values, bitorder="little"))]
            )
        kind = pa.from_numpy_dtype(self.values.dtype)
        return pa.Array.from_buffers(kind, n, [valid, pa.py_buffer(np.ascontiguousarray(self.values))])


class Words(msgspec.Struct, frozen=True):
    """Few words that many jobs share: the places of theirs among ``choices``."""

    codes: npt.NDArray[Any]
    choices: tuple[str, ...]

    def cells(self) -> list[Any]:
        """In text."""
        return [self.choices[code] for code in self.codes.tolist()]

    def arrow(self) -> Any:
        """As an Arrow column."""
        import pyarrow as pa

        ends = np.cumsum([0, *(len(choice.encode()) for choice in self.choices)])
        words = Text(np.frombuffer("".join(self.choices).encode(), np.uint8), ends)
        return pa.DictionaryArray.from_arrays(Numbers(self.codes.astype(np.int8)).arrow(), words.arrow())


class Text(msgspec.Struct, frozen=True):
    """Texts one after the other, as C writes them, and where each begins."""

    content: npt.NDArray[np.uint8]
    offsets: Int64s

    def cells(self) -> list[Any]:
        """One by one."""
        text, ends = self.content.tobytes().decode(), self.offsets.tolist()
        return [text[begin:end] for begin, end in pairwise(ends)]

    def arrow(self) -> Any:
        """As an Arrow column."""
        import pyarrow as pa

        n, offsets, content = len(self.offsets) - 1, pa.py_buffer(self.offsets), pa.py_buffer(self.content)
        return pa.LargeStringArray.from_buffers(n, offsets, content)


class Texts(msgspec.Struct, frozen=True):
    """A text for each job; None: not known."""

    values: Sequence[str | None]

    def cells(self) -> list[Any]:
        """One by one."""
        return list(self.values)

    def arrow(self) -> Any:
        """As an Arrow column."""
        import pyarrow as pa

        return pa.array(list(self.values), pa.string())


class Empty(msgspec.Struct, frozen=True):
    """A column of texts that no job has."""

    jobs: int

    def cells(self) -> list[Any]:
        """In text."""
        return [None] * self.jobs

    def arrow(self) -> Any:
        """As an Arrow column."""
        import pyarrow as pa

        return pa.nulls(self.jobs, pa.string())


Cells: TypeAlias = Numbers | Words | Text | Texts | Empty


class Shown:
    """A result as its columns need it."""

    def __init__(self, result: Result) -> None:
        self.result, self.schedule, self.jobs = result, result.schedule, result.jobs
        self.trace, self.kind = result.world.trace, result.world.kind
        self.start_s, self.run_s = result.start_s, result.run_s
        self.is_started: Bools = self.start_s >= 0
        self.wait_s = self.start_s - self.jobs.submit_s
        self.is_cut = self.trace.is_cut & (self.kind != "configurations")
        self.is_killed = result.is_killed
        self.has_requests = not isinstance(self.trace, Workload) or self.trace.has_requests
        self.energy_j = _energy_j(result)

    @cached_property
    def allocated(self) -> Cells:
        """``0-3 7``: processors, or nodes; with configurations it is not known which."""
        if self.kind == "configurations":
            return Empty(len(self.jobs))
        if self.kind == "nodes":
            placed = self.schedule.placed
            return Texts([intervals(placed(job).node) if at_s >= 0 else None for job, at_s in enumerate(self.start_s)])
        return next(self.allocated_in_turn(len(self.jobs)))

    def allocated_in_turn(self, jobs: int) -> Iterator[Text]:
        """Of each group of so many jobs on processors, in the same memory: the texts of a million jobs on a machine in
        pieces are a gigabyte."""
        decided, schedule = self.result.decided, self.schedule
        if decided is not None:
            first, count, places = decided.first, decided.count, pointer("interval_t", decided.intervals)
        else:
            first, count, places = schedule.interval_first, schedule.interval_count, schedule.c_intervals
        begins = range(0, max(len(count), 1), max(jobs, 1))
        most = max((int(count[begin : begin + jobs].sum()) for begin in begins), default=0)
        text, offsets = np.empty(INTERVAL_BYTES * most + 1, np.uint8), np.empty(jobs + 1, np.int64)
        table = np.empty(min(self.result.world.workload.processors, MOST_WORDS), np.uint64)
        words = pointer("word_t", table), len(table)
        lib.words_of_numbers(*words)
        for begin in begins:
            n = min(jobs, len(count) - begin)
            given = pointer("int64_t", first[begin:]), pointer("int32_t", count[begin:]), n, *words
            into = pointer("int64_t", offsets), pointer("char", text)
            yield Text(text[: lib.processors_write(places, *given, *into)], offsets[: n + 1])

    @cached_property
    def _companies(self) -> list[Company]:
        return companies(self.start_s, self.start_s + self.run_s, [*map(self.schedule.placed, range(len(self.jobs)))])

    @property
    def partners(self) -> Texts:
        """The jobs with which each shared a node."""
        names = self.jobs.name
        return Texts([" ".join(names[other] for other in one.partners) or None for one in self._companies])

    @property
    def why(self) -> Texts:
        """Why it shared nodes, or did not."""
        shared = self.result.world.shared
        assert shared is not None
        return Texts([why(shared, job, one, self.jobs.name) for job, one in enumerate(self._companies)])

    def started(self, values: npt.NDArray[Any], decimals: int | None = None) -> Numbers:
        """Known of jobs that were started."""
        return Numbers(values, self.is_started, decimals)

    @property
    def state(self) -> Words:
        """How each job came to its end."""
        return Words(np.where(self.is_started, np.where(self.is_killed, 3, self.is_cut), 2), STATES)

    def of_ways(self, name: str, kind: type = float) -> Numbers:
        """A column of the configurations in which jobs ran."""
        return Numbers(np.array([kind(getattr(one, name)) for one in self.result.chosen if one is not None]))


class Column(msgspec.Struct, frozen=True):
    """``of``: the resources that have it. ``unit`` "": none."""

    name: str
    unit: str
    cells: Callable[[Shown], Cells]
    of: tuple[Kind, ...] = EVERYWHERE


def _names(shown: Shown) -> Cells:
    if shown.kind == "configurations":
        return Texts(tuple(map(str, shown.jobs.number.tolist())))
    return Texts(shown.jobs.name) if shown.jobs.name else Numbers(shown.jobs.number)


def _width(shown: Shown) -> Cells:
    return Numbers(shown.jobs.units if shown.kind == "nodes" else shown.jobs.width)


def _request_s(shown: Shown) -> Cells:
    known = None if shown.has_requests else np.zeros(len(shown.jobs), np.bool_)
    return Numbers(shown.jobs.request_s, known)


def _success(shown: Shown) -> Cells:
    return Numbers(shown.is_started & ~shown.is_cut & ~shown.is_killed)


def _user(shown: Shown) -> Cells:
    user = shown.trace.user
    return Texts(user) if isinstance(user, tuple) else Numbers(user)


def _stretch(shown: Shown) -> Cells:
    return shown.started((shown.wait_s + shown.run_s) / np.maximum(shown.run_s, 1), 6)


BATSIM: Final = (
    Column("job_id", "", _names),
    Column("workload_name", "", lambda shown: Words(np.zeros(len(shown.jobs), np.int8), (shown.trace.name,))),
    Column("profile", "", lambda shown: Empty(len(shown.jobs))),
    Column("submission_time", "s", lambda shown: Numbers(shown.jobs.submit_s)),
    Column("requested_number_of_resources", "", _width),
    Column("requested_time", "s", _request_s),
    Column("success", "", _success),
    Column("final_state", "", lambda shown: shown.state),
    Column("starting_time", "s", lambda shown: shown.started(shown.start_s)),
    Column("execution_time", "s", lambda shown: shown.started(shown.run_s)),
    Column("finish_time", "s", lambda shown: shown.started(shown.start_s + shown.run_s)),
    Column("waiting_time", "s", lambda shown: shown.started(shown.wait_s)),
    Column("turnaround_time", "s", lambda shown: shown.started(shown.wait_s + shown.run_s)),
    Column("stretch", "", _stretch),
    Column(ALLOCATED, "", lambda shown: shown.allocated),
    Column("consumed_energy", "J", lambda shown: shown.energy_j),
    Column("metadata", "", lambda shown: Empty(len(shown.jobs))),
)
"""Of jobs.csv; on processors the rows are written by ``csrc/logs/jobs_csv.c``."""

OURS: Final = (
    Column("user", "", _user),
    Column("first_estimate", "s", lambda shown: Numbers(shown.schedule.first_estimate_s), ("processors",)),
    Column("corrections", "", lambda shown: Numbers(shown.schedule.corrections), ("processors",)),
    Column("reason", "", lambda shown: _reason(shown), ("processors",)),
    Column("frequency_mhz", "MHz", lambda shown: _frequency_mhz(shown), ("processors",)),
    Column("kills", "", lambda shown: Numbers(shown.schedule.kills), ("processors",)),
    Column("lost_processor_s", "s", lambda shown: Numbers(shown.schedule.lost), ("processors",)),
    Column("queue", "", lambda shown: Texts(shown.jobs.queue), ("nodes",)),
    Column("cores", "", lambda shown: Numbers(shown.jobs.width), ("nodes",)),
    Column("nodes", "", lambda shown: shown.of_ways("nodes", int), ("configurations",)),
    Column("cores_per_node", "", lambda shown: shown.of_ways("cores", int), ("configurations",)),
    Column("cap_w", "W", lambda shown: shown.of_ways("cap_w"), ("configurations",)),
    Column("drawn_w", "W", lambda shown: Numbers(job_w(shown.result)), ("nodes", "configurations")),
    Column("drawn_w_known", "", lambda shown: Numbers(shown.jobs.knows_watts), ("nodes",)),
    Column("admitted_w", "W", lambda shown: Numbers(_admitted_w(shown)), ("nodes",)),
    Column("partners", "", lambda shown: shown.partners, ("nodes",)),
    Column("why", "", lambda shown: shown.why, ("nodes",)),
    Column("asked_s", "s", lambda shown: Numbers(shown.jobs.run_s.astype(np.float64)), ("configurations",)),
)
"""Of jobs.parquet, in addition."""

OF_SHARES: Final = ("partners", "why")
"""Only where jobs share nodes."""

WITH_WATTS: Final = ("frequency_mhz", "kills", "lost_processor_s")
"""On processors only of a machine with watts."""


def columns(result: Result, table: Sequence[Column] = (*BATSIM, *OURS)) -> list[Column]:
    """Those that a result has."""
    missing = () if result.schedule.watts is not None else WITH_WATTS
    missing = missing if result.world.shared is not None else (*missing, *OF_SHARES)
    return [one for one in table if result.world.kind in one.of and one.name not in missing]


def _reason(shown: Shown) -> Words:
    return Words(np.where(shown.is_started, shown.schedule.overtook, 2), ("in turn", "backfilled", "not started"))


def _frequency_mhz(shown: Shown) -> Numbers:
    assert shown.schedule.watts is not None
    return shown.started(np.array(shown.schedule.watts.machine.node.frequency_mhz, np.int64)[shown.schedule.level])


def _admitted_w(shown: Shown) -> Float64s:
    assert shown.result.admitted_w is not None
    return np.asarray(shown.result.admitted_w, np.float64)


def _energy_j(result: Result) -> Numbers:
    """Joules of each job, killed runs included. A job whose watts are assumed has no known ones."""
    schedule, jobs = result.schedule, result.jobs
    if result.world.kind == "processors":
        if schedule.watts is None:
            return Numbers(np.zeros(len(jobs)), np.zeros(len(jobs), np.bool_))
        return Numbers(schedule.job_j, None, 1)
    known = jobs.knows_watts if result.world.kind == "nodes" else result.start_s >= 0
    known = known & (result.start_s >= 0)
    energy_j = np.where(known, job_w(result), 0.0) * result.run_s
    return Numbers(np.array([float(f"{one:.1f}") for one in energy_j.tolist()], np.float64), known, 1)


def intervals(nodes: Int64s) -> str:
    """``0-3 7``."""
    runs: list[list[int]] = []
    for node in sorted({int(one) for one in nodes}):  # components of a job may share a node
        if runs and node == runs[-1][1] + 1:
            runs[-1][1] = node
        else:
            runs.append([node, node])
    return " ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
