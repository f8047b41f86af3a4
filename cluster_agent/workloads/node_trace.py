"""From the rows of a table to jobs that a machine of unlike nodes could run, whatever the table's format.

A reader returns each row as a mapping of named values, or says why it cannot (``Unusable``). A row that cannot have
been a job is dropped, one that is only imprecise is corrected, and both are counted with the first line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from cluster_agent.cluster import MOST_PROCESSORS, MOST_W
from cluster_agent.scheduler.job_columns import RESOURCES, Bools, Int64s, Jobs
from cluster_agent.scheduler.power_cap import PowerCap
from cluster_agent.scheduler.unlike_nodes.components import MOST_COMPONENTS, Components
from cluster_agent.scheduler.unlike_nodes.node_aware import impossible
from cluster_agent.scheduler.unlike_nodes.node_jobs import Nodes
from cluster_agent.workloads.job_log import LONGEST_S
from cluster_agent.workloads.swf import Finding, TraceError

TEXTS: Final = ("name", "queue", "user", "text")
MOST_KIB: Final = 1 << 50
"""Ours: memory of a job, an exbibyte."""
LONGEST_NUMBER: Final = 18
"""Digits of a job's number that fits 64 bits."""
TOO_MANY: Final = (
    f"jobs with more than {MOST_COMPONENTS} components", "dropped", "submit it with fewer, or delete it",
)  # fmt: skip


class Unusable(Exception):  # noqa: N818
    """A row that cannot have been a job: what is wrong with such rows, and how to correct this one."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(what, fix)
        self.what = what
        self.fix = fix


class NodeTrace(msgspec.Struct, frozen=True):
    """The jobs of a table in order of submission, which begins at 0 s. ``text``: the other text of the submission."""

    path: str
    sha256: str
    jobs: Jobs
    user: tuple[str, ...]  # "" where unknown
    text: tuple[str, ...]
    wait_s: Int64s  # as it was in the table's own schedule
    is_cut: Bools  # ran beyond its request in the table, and is ended at it here
    line: Int64s
    findings: tuple[Finding, ...]
    ignored: tuple[tuple[str, ...], ...]  # what each job states and no replay looks at, as ``not_modelled`` says it
    is_measured: bool = False  # by meters, which may be wrong; else the watts are predictions
    within: tuple[tuple[str, ...], ...] = ()  # groups of nodes, by name, that each job may be on; () for all jobs: all

    @property
    def dropped(self) -> int:
        """Rows that are not replayed."""
        return sum(finding.count for finding in self.findings if finding.done == "dropped")

    def on(self, nodes: Nodes, cap: PowerCap, is_strict: bool = False) -> NodeTrace:
        """The trace on these nodes: unknown watts are assumed, and jobs that could not even run alone are dropped."""
        known, findings = self._believable(nodes, is_strict)
        assumed = replace(
            self.jobs, watts=np.where(known, self.jobs.watts, nodes.assumed_w(self.jobs)), knows_watts=known
        )
        if self.within:
            assumed = replace(assumed, within=nodes.bits_of(self.within))
        if (components := assumed.components) is not None:
            components = replace(components, within=assumed.within[components.job])
            assumed = replace(assumed, components=components.scarcest_first(nodes.has, nodes.group_bit))
        trace = replace(self, jobs=assumed, findings=findings)
        cannot = impossible(trace.jobs, nodes, cap)
        if not cannot:
            return trace
        fix = "delete it, or give another --machine or --cap"
        if is_strict:
            job, what = cannot[0]
            where = f"{self.path}:{self.line[job]}"
            raise TraceError(f"{where}: {what} (first of {len(cannot)}): {fix}, or leave out --strict")
        found = list(findings)
        for what in dict.fromkeys(what for _, what in cannot):
            lines = [int(self.line[job]) for job, one in cannot if one == what]
            found.append(Finding(what, "dropped", len(lines), min(lines), fix))
        stays = np.ones(len(self.jobs), np.bool_)
        stays[[job for job, _ in cannot]] = False
        if not stays.any():
            raise TraceError(f"{self.path}: no job is left: {'; '.join(map(str, found))}")
        return replace(trace.only(np.flatnonzero(stays)), findings=tuple(found))

    def _believable(self, nodes: Nodes, is_strict: bool) -> tuple[Bools, tuple[Finding, ...]]:
        """Which jobs have watts that these nodes can draw, and the findings with one about those that have not."""
        known, most_w = self.jobs.knows_watts, nodes.highest_w
        if not self.is_measured or most_w is None:
            return known, self.findings
        wrong = known & (self.jobs.watts > most_w * self.jobs.units)
        if not wrong.any():
            return known, self.findings
        what, fix = f"jobs with more than the machine's {most_w:g} W a node", "correct the machine file or the joules"
        lines = self.line[wrong]
        if is_strict:
            where = f"{self.path}:{lines.min()}"
            raise TraceError(f"{where}: {what} (first of {len(lines)}): {fix}, or leave out --strict")
        finding = Finding(what, "taken as unmeasured", len(lines), int(lines.min()), fix)
        return known & ~wrong, (*self.findings, finding)

    @property
    def name(self) -> str:
        """The file's name; commas would break a table."""
        return Path(self.path).name.replace(",", "_")

    def not_modelled(self) -> dict[str, int]:
        """How many jobs state what no replay on nodes looks at, by what it is."""
        queues = Counter(queue for queue in self.jobs.queue if queue)
        found = {"are in another queue or partition than most": queues.total() - max(queues.values(), default=0)}
        found |= Counter(what for one in self.ignored for what in one)
        return {what: jobs for what, jobs in found.items() if jobs}

    def only(self, rows: Int64s) -> NodeTrace:
        """The jobs ``rows``, in that order."""
        return replace(
            self,
            jobs=self.jobs.only(rows),
            user=tuple(self.user[row] for row in rows),
            text=tuple(self.text[row] for row in rows),
            wait_s=self.wait_s[rows],
            is_cut=self.is_cut[rows],
            line=self.line[rows],
            ignored=tuple(self.ignored[row] for row in rows),
            within=tuple(self.within[row] for row in rows) if self.within else (),
        )


class NodeTraceBuilder:
    """Collects rows; ``finish`` makes the trace of them."""

    def __init__(self, path: str, sha256: str, is_strict: bool, is_measured: bool = False) -> None:
        self._path = path
        self._sha256 = sha256
        self._is_strict = is_strict
        self._is_measured = is_measured
        self._rows: list[dict[str, Any]] = []
        self._found: dict[tuple[str, str], Finding] = {}

    def add(self, line: int, read: Callable[[], Mapping[str, Any]]) -> None:
        """One row. ``read`` gives ``name, submit_s, wait_s, run_s, request_s, units, queue``, what all units have
        together of ``RESOURCES``, ``watts`` or None, and if known ``max_wait_s, user,
        text, ignored, within, component_of`` (see ``_together``), and ``notes``: what was corrected, as
        arguments of ``note``."""
        try:
            row = dict.fromkeys(RESOURCES, 0) | dict(read())
            self._check(row)
        except Unusable as error:
            self.note(line, error.what, "dropped", error.fix)
            return
        except KeyError as error:
            missing = str(error.args[0])
            raise TraceError(f"{self._path}:1: the column {missing} is missing; add it to the header") from None
        texts: dict[str, str] = {name: str(row[name]) for name in TEXTS if name in row}
        if not all(text.isprintable() for text in texts.values()):
            self.note(line, "jobs with control characters in a name", "taken as spaces", "rename it")
            texts = {name: _printable(text) for name, text in texts.items()}
        row |= texts
        for what, done, fix in row.pop("notes", ()):
            self.note(line, what, done, fix)
        row["line"] = line
        row["is_cut"] = False
        if row["run_s"] == 0:
            self.note(line, "jobs with a run time of 0", "taken as 1 s", "write the true end time")
            row["run_s"] = 1
        if row["request_s"] is None:
            row["request_s"] = 0  # replaced by the longest of all in ``finish``
        elif row["run_s"] > row["request_s"]:
            self.note(line, "jobs that ran beyond their request", "ended at the request", "raise the request")
            row["run_s"], row["is_cut"] = row["request_s"], True
        if row["watts"] is not None and row["watts"] <= 0:
            row["watts"] = None
        self._rows.append(row)

    def note(self, line: int, what: str, done: str, fix: str, rows: int = 1) -> None:
        """Count a row, or several, that was corrected or dropped; ``TraceError`` if ``is_strict``."""
        if self._is_strict:
            raise TraceError(f"{self._path}:{line}: {what}: {fix}, or leave out --strict")
        known = self._found.get((what, done))
        count, first = (known.count + rows, known.first_line) if known else (rows, line)
        self._found[what, done] = Finding(what, done, count, first, known.fix if known else fix)

    def finish(self) -> NodeTrace:
        """``TraceError`` if no job is left."""
        findings = tuple(self._found.values())
        if not self._rows:
            reasons = "; ".join(map(str, findings)) or "it has no rows"
            fix = f": {findings[0].fix}" if findings else "; name another table"
            raise TraceError(f"{self._path}: no job in it ({reasons}){fix}")
        longest_s = max(row["request_s"] for row in self._rows)
        for row in self._rows:
            if row["request_s"] == 0:
                self.note(row["line"], "jobs without a requested time", "taken as the longest", "write the limit")
                row["request_s"] = max(longest_s, row["run_s"])
        joined, too_many = _together(self._rows)
        for line in too_many:
            self.note(line, *TOO_MANY)
        if not joined:
            raise TraceError(f"{self._path}: no job in it ({'; '.join(map(str, self._found.values()))}): {TOO_MANY[2]}")
        rows = sorted(joined, key=lambda row: row["submit_s"])  # equal ones stay in the table's order
        jobs = _jobs(rows)
        return NodeTrace(
            self._path,
            self._sha256,
            jobs,
            tuple(str(row.get("user", "")) for row in rows),
            tuple(str(row.get("text", "")) for row in rows),
            _column(rows, "wait_s"),
            np.array([row["is_cut"] for row in rows], np.bool_),
            _column(rows, "line"),
            tuple(self._found.values()),
            tuple(tuple(row.get("ignored", ())) for row in rows),
            self._is_measured,
            tuple(row["within"] for row in rows) if "within" in rows[0] else (),
        )

    @staticmethod
    def _check(row: Mapping[str, Any]) -> None:
        if row["run_s"] < 0:
            raise Unusable("jobs that end before they start", "swap or correct its times")
        if row["wait_s"] < 0:
            raise Unusable("jobs that start before their submission", "swap or correct its times")
        _check_amounts(row)
        if max(row["run_s"], row["wait_s"], abs(row["submit_s"]), row["request_s"] or 0) > LONGEST_S:
            raise Unusable(f"jobs with a time beyond {LONGEST_S} s", "delete it")
        if row["request_s"] is not None and row["request_s"] <= 0:
            raise Unusable("jobs with a requested time that is not above 0", "write the limit in seconds")


def _check_amounts(row: Mapping[str, Any]) -> None:
    amounts = [row[kind] for kind in RESOURCES]
    if row["units"] < 1 or sum(amounts) < 1:
        raise Unusable("jobs without resources", "write what it requests, or delete it")
    if min(amounts) < 0:
        raise Unusable("jobs with a negative amount of something", "write 0 where it requests none")
    counts = max(row["units"], *(row[kind] for kind in RESOURCES if kind != "memory_kib"))
    if counts > MOST_PROCESSORS or row["memory_kib"] > MOST_KIB or (row["watts"] or 0.0) > MOST_W:
        raise Unusable("jobs with more of something than any machine has", "correct the number, or delete it")


def _jobs(rows: list[dict[str, Any]]) -> Jobs:
    units = _column(rows, "units")
    whole = np.stack([_column(rows, kind) for kind in RESOURCES], axis=1)
    knows_watts = np.array([row["watts"] is not None for row in rows], np.bool_)
    given_w = np.array([np.nan if row["watts"] is None else row["watts"] for row in rows], np.float64)
    submit_s = _column(rows, "submit_s")
    _, user = np.unique([str(row.get("user", "")) for row in rows], return_inverse=True)
    names = tuple(str(row["name"]) for row in rows)
    return Jobs(
        number=np.array([int(name) if _is_number(name) else at for at, name in enumerate(names, 1)], np.int64),
        submit_s=submit_s - submit_s.min(),
        run_s=_column(rows, "run_s"),
        request_s=_column(rows, "request_s"),
        width=whole[:, 0].astype(np.int32),
        user=user.astype(np.int32),
        name=names,
        units=units,
        # amounts that do not divide evenly are rounded up, so that no unit has too little
        need=-(-whole // units[:, None]),
        watts=given_w,
        knows_watts=knows_watts,
        queue=tuple(str(row["queue"]) for row in rows),
        max_wait_s=np.array([row.get("max_wait_s", 0) for row in rows], np.int64),
        components=_components_of(rows),
    )


def _together(rows: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[int]]:
    """The rows with one for each job, at the place of its first component, and the lines of jobs that have too many.
    ``component_of`` of a row: what is the same in all components of a job, its name the first; () or none: an ordinary
    job. They start together, so the job was submitted with its first, started with its last, and has the longest
    request and the longest run of all; its units and watts are the sums."""
    if not any(row.get("component_of") for row in rows):
        return list(rows), []
    of: dict[Any, list[dict[str, Any]]] = {}
    for at, row in enumerate(rows):
        of.setdefault(row.get("component_of") or at, []).append(row)
    few = (mine for mine in of.values() if len(mine) <= MOST_COMPONENTS)
    jobs = [_joined(mine) if mine[0].get("component_of") else mine[0] for mine in few]
    return jobs, [mine[0]["line"] for mine in of.values() if len(mine) > MOST_COMPONENTS]


def _joined(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    first: dict[str, Any] = rows[0]
    submit_s = min(row["submit_s"] for row in rows)
    watts = [row["watts"] for row in rows]
    return first | {
        "name": str(first["component_of"][0]),
        "submit_s": submit_s,
        "wait_s": max(row["submit_s"] + row["wait_s"] for row in rows) - submit_s,
        "run_s": max(row["run_s"] for row in rows),
        "request_s": max(row["request_s"] for row in rows),
        "is_cut": any(row["is_cut"] for row in rows),
        "units": sum(row["units"] for row in rows),
        **{kind: sum(row[kind] for row in rows) for kind in RESOURCES},
        "watts": None if None in watts else sum(watts),
        "ignored": tuple(dict.fromkeys(what for row in rows for what in row.get("ignored", ()))),
        "components": rows,
    }


def _components_of(rows: Sequence[dict[str, Any]]) -> Components | None:
    """Of the jobs in these rows; None: all have one."""
    lists = [row.get("components", (row,)) for row in rows]
    if not any("components" in row for row in rows):
        return None
    each = [one for mine in lists for one in mine]
    units = np.array([one["units"] for one in each], np.int64)
    whole = np.array([[one[kind] for kind in RESOURCES] for one in each], np.int64)
    return Components.of(list(map(len, lists)), units, -(-whole // units[:, None]))


def _printable(text: str) -> str:
    return "".join(one if one.isprintable() else " " for one in text)


def _is_number(name: str) -> bool:
    return name.isdecimal() and len(name) <= LONGEST_NUMBER


def _column(rows: list[dict[str, Any]], name: str) -> Int64s:
    return np.array([row[name] for row in rows], np.int64)
