"""Job logs that say which nodes each job requested: SWF with three columns more, as MetaCentrum publishes them.

Behind the 18 columns are the cores that the job got, ``{1244,1244}``, its queue, and its request to the batch system
(PBS): ``2:ppn=8:cl_zegox`` are two units of eight cores on nodes of the cluster *zegox*. ``^`` in front of a property
excludes the nodes that have it. Column 10 is memory of a unit in bytes, not in kilobytes of a processor: the logs' own
simulator, Alea, reads it so (``SWFLoader.java``, github.com/aleasimulator/alea), and no node has more.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from cluster_agent.cluster import Machine
from cluster_agent.workloads import swf
from cluster_agent.workloads.node_trace import NodeTrace, NodeTraceBuilder, Unusable
from cluster_agent.workloads.text_tables import text_of

KIB: Final = 1024
QUEUE, REQUEST = 1, 2
"""The columns behind the 18 of the format; the first has the cores."""

SINGLE_NODES: Final = "name nodes, or exclude some, by themselves"
ALONE: Final = "request nodes for themselves alone"
PROPERTIES: Final = "request other properties of nodes than the cluster"
UNLIKE_UNITS: Final = "request units that differ: taken as single processors"


class Requested(NamedTuple):
    """What a job requests: so many units of so many cores; ``within``: the clusters that it may be on."""

    units: int
    cores: int
    nodes: int  # as requested; memory is of each
    within: tuple[str, ...]
    ignored: tuple[str, ...]


def read_requests(path: str, machine: Machine, is_strict: bool = False) -> NodeTrace:
    """The jobs of a log on the clusters of ``machine``. ``TraceError`` if there is none, or, if ``is_strict``, at the
    first that must be corrected."""
    log = swf.read_swf(path)
    lines = text_of(path)[0].split("\n")
    clusters = [group.name for group in machine.groups]
    builder = NodeTraceBuilder(path, log.sha256, is_strict)
    for finding in log.findings:
        builder.note(finding.first_line, finding.what, finding.done, finding.fix, finding.count)
    for job, line in enumerate(log.lines.tolist()):
        columns, more = log.columns[:, job].tolist(), lines[line - 1].split()[swf.THINK + 1 :]
        builder.add(line, lambda columns=columns, more=more: _row(columns, more, clusters))  # type: ignore[misc]
    return builder.finish()


def _row(columns: list[int], more: Sequence[str], clusters: Sequence[str]) -> Mapping[str, Any]:
    run_s, width = columns[swf.RUN], columns[swf.WANTED] if columns[swf.WANTED] > 0 else columns[swf.ALLOCATED]
    if columns[swf.SUBMIT] < 0:
        raise Unusable("jobs without a submit time", "delete it")
    if columns[swf.STATUS] == swf.CANCELLED and run_s <= 0:
        raise Unusable("jobs cancelled before they ran", "delete it")
    if run_s < 0:
        raise Unusable("jobs without a run time", "delete it")
    if width <= 0:
        raise Unusable("jobs without a number of processors", "delete it")
    found = parsed(more[REQUEST] if len(more) > REQUEST else "", width, clusters)
    if not found.within:
        raise Unusable("jobs that exclude all clusters", "correct its request")
    memory_kib = -(-max(columns[swf.MEMORY_WANTED], 0) // KIB) * found.nodes
    return {
        "name": str(columns[swf.NUMBER]),
        "submit_s": columns[swf.SUBMIT],
        "wait_s": max(columns[swf.WAIT], 0),
        "run_s": run_s,
        "request_s": columns[swf.REQUEST] if columns[swf.REQUEST] > 0 else None,
        "units": found.units,
        "cores": found.units * found.cores,
        "memory_kib": memory_kib,
        "watts": None,
        "user": str(columns[swf.USER]),
        "queue": more[QUEUE] if len(more) > QUEUE else "",
        "within": found.within,
        "ignored": found.ignored,
    }


def parsed(request: str, width: int, clusters: Sequence[str]) -> Requested:
    """The request of a job with so many processors; what does not fit these is taken as single processors."""
    chunks, ignored = request.split("+"), set[str]()
    units, cores = 1, 0
    may, must_not = set[str](), set[str]()
    for word in filter(None, re.split(r"[:#]", chunks[0])):
        if word.isdecimal():
            units = _count(word)
        elif word.startswith("ppn="):
            cores = _count(found[0]) if (found := re.match(r"\d+", word[4:])) else 0
        elif word == "excl":
            ignored.add(ALONE)
        elif not word.startswith("mem="):  # column 10 has it
            _place(word, clusters, may, must_not, ignored)
    cores, nodes = cores or -(-width // max(units, 1)), units + len(chunks) - 1
    if len(chunks) > 1 or units * cores != width:
        ignored.add(UNLIKE_UNITS)
        units, cores = width, 1
    within = tuple(one for one in clusters if (one in may or not may) and one not in must_not)
    return Requested(units, cores, min(max(nodes, 1), width), within, tuple(sorted(ignored)))


def _count(digits: str) -> int:
    """One with more digits than any log has jobs or cores is only far too large."""
    return int(digits.lstrip("0")[:20] or 0)


def _place(word: str, clusters: Sequence[str], may: set[str], must_not: set[str], ignored: set[str]) -> None:
    """A property of the nodes that a job requests, or excludes: a cluster, a node of one, or another one."""
    name = word.lstrip("^").removeprefix("host=")
    for cluster in clusters:
        if name == f"cl_{cluster}":
            (must_not if word.startswith("^") else may).add(cluster)
            return
        if re.match(rf"{re.escape(cluster)}\d", name):
            ignored.add(SINGLE_NODES)
            if not word.startswith("^"):
                may.add(cluster)
            return
    ignored.add(PROPERTIES)
