"""From the lines of a log to jobs that a machine could have run.

A line that cannot have been a job here is dropped, one that is only imprecise is corrected, and both are counted: a
schedule means nothing without knowing of which jobs it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace

from cluster_agent.scheduler.job_columns import Bools, Int64s, Jobs
from cluster_agent.workloads.swf import (
    ALLOCATED,
    CANCELLED,
    MEMORY_WANTED,
    NUMBER,
    PARTITION,
    PRECEDING,
    QUEUE,
    REQUEST,
    RUN,
    STATUS,
    SUBMIT,
    USER,
    WAIT,
    WANTED,
    Finding,
    Log,
    TraceError,
)

LONGEST_S = 1 << 40
"""Ours: 35 thousand years. Times beyond it are damage, and the sum of a million below it fits 64 bits."""


PRECEDED: Final = "wait for a preceding job"


class Words(msgspec.Struct, frozen=True):
    """What a submission says in words. ``has_watts``: whether its watts are known; ``without_model``: whether a site's
    model failed to predict it, when it was live."""

    user: str
    title: str
    text: str
    has_watts: bool
    without_model: bool = False


class Workload(msgspec.Struct, frozen=True):
    """The jobs of a log for one machine. ``row`` is each job's row in ``log.columns``. ``words``: by the log's number,
    what else is known of a submission (``job_watts``)."""

    log: Log
    processors: int
    jobs: Jobs
    row: Int64s
    has_requests: bool  # if not, ``request_s`` are the run times, which limit nothing
    is_cut: Bools  # ran beyond its request in the log, and is ended at it here
    findings: tuple[Finding, ...]
    words: Mapping[int, Words] = MappingProxyType({})

    @property
    def users(self) -> list[int]:
        """The log's user numbers; a job's user is the place of its number in this list."""
        users, _ = np.unique(self.log.columns[USER, self.row], return_counts=True)  # alone it would import numpy.ma
        return [int(user) for user in users]

    @property
    def dropped(self) -> int:
        """Job lines of the log that are not replayed."""
        return sum(finding.count for finding in self.findings if finding.done == "dropped")

    @property
    def path(self) -> str:
        """Of the log."""
        return self.log.path

    @property
    def sha256(self) -> str:
        """Of the log's file."""
        return self.log.sha256

    @property
    def name(self) -> str:
        """The file's name without its endings; commas would break a table."""
        name = Path(self.path).name
        for ending in (".gz", ".swf"):
            name = name.removesuffix(ending)
        return name.replace(",", "_")

    @property
    def line(self) -> Int64s:
        """Of each job."""
        return self.log.lines[self.row]

    @property
    def wait_s(self) -> Int64s:
        """In the log's own schedule; below 0 where it is unknown."""
        return self._column(WAIT)

    @property
    def user(self) -> Int64s:
        """The log's number of each job's user."""
        return self._column(USER)

    def _column(self, column: int) -> Int64s:
        found: Int64s = self.log.columns[column, self.row]
        return found

    def only(self, rows: Int64s | Bools) -> Workload:
        """The jobs ``rows``, in that order."""
        return replace(self, jobs=self.jobs.only(rows), row=self.row[rows], is_cut=self.is_cut[rows])

    def not_modelled(self) -> dict[str, int]:
        """How many jobs state what no replay on processors looks at, by what it is. Queues and partitions matter where
        there are several: jobs outside of the largest one may have had other rules or other processors."""
        columns, row = self.log.columns, self.row
        found = {
            "are in another queue than most": _outside_largest(columns[QUEUE, row]),
            "are in another partition than most": _outside_largest(columns[PARTITION, row]),
            "request memory": int((columns[MEMORY_WANTED, row] > 0).sum()),
            PRECEDED: int((columns[PRECEDING, row] > 0).sum()),
        }
        return {what: jobs for what, jobs in found.items() if jobs}


def _outside_largest(values: Int64s) -> int:
    """How many of those that are known are not the most frequent one."""
    known = values[values >= 0]
    _, jobs = np.unique(known, return_counts=True)
    return len(known) - int(jobs.max(initial=0))


def machine_of(log: Log) -> int | None:
    """The processors that the log's header states, if it does."""
    try:
        processors = int(log.header.get("MaxProcs", ""))
    except ValueError:
        return None
    return processors if processors > 0 else None


def prepare(log: Log, processors: int, needs_requests: bool = True, is_strict: bool = False) -> Workload:
    """The jobs of ``log`` on a machine of ``processors``.

    ``TraceError`` if none is left, if the schedule needs requested times and the log has none, or, if ``is_strict``,
    at the first line that would be dropped or corrected.
    """
    rows = np.arange(log.columns.shape[1])
    columns = [*log.columns]
    columns[RUN], columns[REQUEST] = columns[RUN].copy(), columns[REQUEST].copy()  # only these are mended
    findings = list(log.findings)

    for what, fix, is_bad in _unusable(columns, processors):
        bad = is_bad[rows]
        if bad.any():
            findings.append(_finding(log, rows[bad], what, "dropped", fix))
            rows = rows[~bad]
    if not len(rows):
        reasons = "; ".join(map(str, findings))
        raise TraceError(f"{log.path}: no job is left for a machine of {processors} processors: {reasons}")

    has_requests = bool((columns[REQUEST][rows] > 0).any())
    if needs_requests and not has_requests:
        raise TraceError(
            f"{log.path}: no job has a requested time (column 9), which this policy plans with; choose"
            " estimate=clairvoyant, or fcfs, which needs none"
        )
    for what, done, fix, is_odd, mended in _imprecise(columns, rows, has_requests):
        odd = is_odd[rows]
        if odd.any():
            findings.append(_finding(log, rows[odd], what, done, fix))
            column, values = mended
            columns[column][rows[odd]] = values[rows[odd]]
    is_cut = log.columns[RUN] > columns[REQUEST]

    submit_s = columns[SUBMIT][rows]
    is_late = np.flatnonzero(submit_s < np.maximum.accumulate(submit_s))
    if len(is_late):
        what = "jobs submitted before the one above them"
        findings.append(_finding(log, rows[is_late], what, "sorted", "sort the log by submit time (column 2)"))
        rows = rows[np.argsort(submit_s, kind="stable")]
    if is_strict and findings:
        first = min(findings, key=lambda finding: finding.first_line)
        where = f"{log.path}:{first.first_line}"
        raise TraceError(f"{where}: {first.what} (first of {first.count}): {first.fix}, or leave out --strict")
    return Workload(log, processors, _jobs(columns, rows), rows, has_requests, is_cut[rows], tuple(findings))


def _finding(log: Log, rows: Int64s, what: str, done: str, fix: str) -> Finding:
    return Finding(what, done, len(rows), int(log.lines[rows].min()), fix)


def _unusable(columns: Sequence[Int64s], processors: int) -> Iterator[tuple[str, str, Bools]]:
    """(What, the fix, which rows). Each is evaluated on the rows that are left."""
    width, run_s, submit_s = width_of(columns), columns[RUN], columns[SUBMIT]
    delete = "delete it"
    yield "jobs without a submit time", delete, submit_s < 0
    yield "jobs cancelled before they ran", delete, (columns[STATUS] == CANCELLED) & (run_s <= 0)
    yield "jobs without a run time", delete, run_s < 0
    yield "jobs without a number of processors", delete, width <= 0
    yield "jobs wider than the machine", "delete it, or give a larger --machine", width > processors
    too_long = np.maximum(np.maximum(submit_s, run_s), columns[REQUEST]) > LONGEST_S
    yield f"jobs with a time beyond {LONGEST_S} s", delete, too_long


def _imprecise(
    columns: Sequence[Int64s], rows: Int64s, has_requests: bool
) -> Iterator[tuple[str, str, str, Bools, tuple[int, Int64s]]]:
    """(What, what is done, the fix, which rows, the new values of a column). Each is applied after the one before."""
    run_s, request_s = columns[RUN], columns[REQUEST]
    one_s = np.ones_like(run_s)
    yield "jobs with a run time of 0", "taken as 1 s", "write 1 in column 4", run_s == 0, (RUN, one_s)
    if has_requests:
        # the longest request is the best guess at the site's limit; the run time would reveal the future
        longest_s = np.maximum(request_s[rows].max(), run_s)
        what, fix = "jobs without a requested time", "write the site's limit in column 9"
        yield what, "taken as the log's longest", fix, request_s <= 0, (REQUEST, longest_s)
    else:
        columns[REQUEST][:] = run_s  # no limit
    what, fix = "jobs that ran beyond their request", "lower column 4 or raise column 9"
    yield what, "ended at the request", fix, columns[RUN] > columns[REQUEST], (RUN, columns[REQUEST])


def width_of(columns: Sequence[Int64s]) -> Int64s:
    """The processors of each row: as requested, else as allocated."""
    width: Int64s = np.where(columns[WANTED] > 0, columns[WANTED], columns[ALLOCATED])
    return width


def _places(values: Int64s) -> Int64s:
    """The place of each among the values that there are, in ascending order."""
    least, most = int(values.min()), int(values.max())
    if most - least > 2 * len(values):
        return np.unique(values, return_inverse=True)[1]
    is_there = np.zeros(most - least + 1, np.bool_)  # faster than to sort
    is_there[values - least] = True
    places: Int64s = np.cumsum(is_there) - 1
    return places[values - least]


def _jobs(columns: Sequence[Int64s], rows: Int64s) -> Jobs:
    return Jobs(
        number=columns[NUMBER][rows],
        submit_s=columns[SUBMIT][rows],
        run_s=columns[RUN][rows],
        request_s=columns[REQUEST][rows],
        width=width_of(columns)[rows].astype(np.int32),
        user=_places(columns[USER][rows]).astype(np.int32),
    )
