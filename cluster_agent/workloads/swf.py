"""Job logs in Standard Workload Format, plain or packed.

A log is lines of ``; Key: value`` and lines of 18 columns, one per job, -1 where unknown
(https://www.cs.huji.ac.il/labs/parallel/workload/swf.html). Real ones have no header, more columns, broken lines and
fractions. This module reads them as they are; ``job_log`` makes jobs of them that a machine could have run.
"""

from __future__ import annotations

import gzip
from io import BytesIO
from pathlib import Path

import msgspec
import numpy as np

from cluster_agent._native import ffi, lib
from cluster_agent.errors import ClusterError
from cluster_agent.scheduler.job_columns import Int64s
from foundation.shell.plain_text import utf8

NUMBER, SUBMIT, WAIT, RUN, ALLOCATED, CPU_USED, MEMORY_USED, WANTED, REQUEST, MEMORY_WANTED = range(10)
STATUS, USER, GROUP, EXECUTABLE, QUEUE, PARTITION, PRECEDING, THINK = range(10, 18)
"""The columns, counted from 0."""

FAILED, COMPLETED, CANCELLED = 0, 1, 5
"""Values of STATUS; a job may be cancelled before or after its start."""

PARTIAL = (2, 4)
"""The least and the highest STATUS of a line that is one part of a run, which was suspended or restarted. The line of
the whole job stands above its parts and has the time of all of them."""


class Finding(msgspec.Struct, frozen=True):
    """Lines of a log that were corrected or dropped."""

    what: str  # "jobs wider than the machine"
    done: str  # "dropped"
    count: int
    first_line: int
    fix: str

    def __str__(self) -> str:
        return f"{self.what}: {self.count} {self.done} (first: line {self.first_line})"


class Log(msgspec.Struct, frozen=True):
    """The job lines of a log that could be read: ``columns[c, j]`` and the line number of each."""

    path: str
    sha256: str
    header: dict[str, str]
    columns: Int64s
    lines: Int64s
    findings: tuple[Finding, ...]


class TraceError(ClusterError):
    """A trace that cannot be used as it is; the message says file, line and how to fix it."""


def read_swf(path: str) -> Log:
    """Read a log. ``TraceError`` if there is none, or no job in it."""
    import hashlib  # loads OpenSSL: faster for a log than foundation.digest, and nothing for an agent that reads none

    raw = _bytes(path)
    sha256 = hashlib.sha256(raw).hexdigest()
    try:
        raw = utf8(raw)
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from None
    capacity = raw.count(b"\n") + 1
    columns = np.empty((lib.SWF_COLUMNS, capacity), np.int64)
    lines = np.empty(capacity, np.int64)
    found = ffi.new("swf_found_t *")
    lib.swf_parse(
        ffi.from_buffer(raw),
        len(raw),
        capacity,
        ffi.from_buffer("int64_t[]", columns),
        ffi.from_buffer("int64_t[]", lines),
        found,
    )
    findings = _findings(found)
    if not found.jobs:
        seen = f"; {findings[0]}: {findings[0].fix}" if findings else ""
        raise TraceError(f"{path}: no job lines{seen}; a job line of the Standard Workload Format has 18 columns")
    columns, lines, partial = _without_parts(columns[:, : found.jobs], lines[: found.jobs])
    return Log(path, sha256, _header(raw), columns, lines, (*findings, *partial))


def compressed(content: bytes) -> bytes:
    """Gzipped without a time stamp, so that equal content gives equal files."""
    return gzip.compress(content, mtime=0)


def _bytes(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}; name a readable .swf or .swf.gz file") from None


def _header(raw: bytes) -> dict[str, str]:
    """The ``; Key: value`` lines before the first job; of repeated keys the first counts, but notes are joined, and so
    are the lines of queues and partitions."""
    header: dict[str, str] = {}
    for line in BytesIO(raw):
        text = line.decode("utf-8", "replace").strip()
        if text and not text.startswith(";"):
            break
        key, colon, value = text.lstrip("; \t").partition(":")
        key, value = key.strip(), value.strip()
        if colon and value and " " not in key:
            mark = {"Note": "; ", "Queue": "\n", "Partition": "\n"}.get(key)
            header[key] = f"{header[key]}{mark}{value}" if mark and key in header else header.get(key, value)
    return header


def _without_parts(columns: Int64s, lines: Int64s) -> tuple[Int64s, Int64s, list[Finding]]:
    """Without the parts of runs whose job has a line of its own."""
    is_part = (columns[STATUS] >= PARTIAL[0]) & (columns[STATUS] <= PARTIAL[1])
    if is_part.any():
        is_part &= np.isin(columns[NUMBER], columns[NUMBER][~is_part])
    if not is_part.any():
        return columns, lines, []
    what, fix = "partial executions of jobs that have a line of their own", "delete them"
    found = Finding(what, "dropped", int(is_part.sum()), int(lines[is_part].min()), fix)
    return columns[:, ~is_part], lines[~is_part], [found]


def _findings(found: ffi.CData) -> tuple[Finding, ...]:
    """What the parser found, in words."""
    findings = []
    if count := found.broken[lib.SWF_TOO_FEW]:
        columns = found.first_column[lib.SWF_TOO_FEW]
        findings.append(
            Finding(
                "lines with too few columns",
                "dropped",
                count,
                found.first_line[lib.SWF_TOO_FEW],
                f"it has {columns} of {lib.SWF_COLUMNS} columns: complete it with -1 or delete it",
            )
        )
    if count := found.broken[lib.SWF_NO_NUMBER]:
        column = found.first_column[lib.SWF_NO_NUMBER]
        findings.append(
            Finding(
                "lines with something that is no number",
                "dropped",
                count,
                found.first_line[lib.SWF_NO_NUMBER],
                f"column {column} is no number such as 12 or 12.5: write -1 if it is unknown",
            )
        )
    if found.cut:
        findings.append(
            Finding(
                "lines with fractions",
                "cut to whole numbers",
                found.cut,
                found.first_cut_line,
                "round its columns to whole numbers",
            )
        )
    return tuple(findings)
