"""What a schedule of Slurm's jobs reads twice a second, the whole queue and which nodes are idle, and what it changes.

1,000 jobs as JSON are 1.4 MB and a second of processor time; as columns they are 120 KB and 25 ms. Every column but the
last is of words that Slurm has checked itself. A constraint may have almost any character, so it comes last.
Source: squeue(1), ``--Format`` with a suffix for each column, Slurm 22.05; times as Unix seconds by SLURM_TIME_FORMAT.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from cluster_agent.errors import ClusterError
from cluster_agent.slurm.slurm_programs import PATIENCE_S, last_line, run
from cluster_agent.workloads.sacct_values import MOST_LIMIT_S, limit_s
from foundation.shell.errors import UsageError
from foundation.shell.names import expanded

COLUMNS: Final = (
    "JobArrayID", "StateCompact", "EligibleTime", "SubmitTime", "StartTime", "RestartCnt", "NumNodes", "TimeLimit",
    "UserID", "HetJobID", "PriorityLong", "Partition", "QOS", "Account", "NodeList", "ReqNodes", "tres-per-node",
    "Reason", "Dependency", "Feature",
)  # fmt: skip
NOTHING: Final = ("", "(null)", "N/A", "None", "Unknown")
HAVE_NODES: Final = frozenset({"R", "CF", "CG", "RS", "SI", "SO", "ST"})
"""States in which the job has its nodes; a suspended job (S) has none."""

WAITS_FOR: Final = ("Dependency", "JobHeld", "JobHoldMaxRequeue", "DependencyNeverSatisfied")
"""Reasons, by how they begin, for which Slurm starts a job at no time; it says them before a release, too."""

REFUSALS: Final = (
    "QOS", "Assoc", "MaxJobs", "Partition", "Licenses", "Invalid", "BadConstraints", "Reservation", "AccountNotAllowed",
    "Dependency", "JobHeld", "MaxMemPerLimit", "UserLimit", "NodeDown",
)  # fmt: skip
"""Reasons, by how they begin, that say more than that its nodes are not idle yet."""

LIMITS: Final = ("QOS", "Assoc", "MaxJobs", "UserLimit")
"""Of these, the ones that other jobs of the same user have, too."""

OwnNodes = Literal["", "requires", "excludes"]
NodeState = Literal["idle", "busy", "away"]
BUSY: Final = ("allocated", "mixed", "completing", "planned")
"""States of nodes, by how they begin, that end soon. ``planned``: Slurm keeps the node for a job of its own choice."""

LONGEST: Final = 4000
"""scontrol reads lines of 4,095 characters; longer commands get a process each (``src/scontrol/scontrol.c``)."""

EACH_S: Final = 0.5
"""Ours: for each command, in addition; 12 ms when nothing else runs."""

NO_TERMINAL: Final = {"TERM": "dumb", "COLUMNS": "5000"}
"""Else scontrol, which reads lines by readline, scrolls long ones, and that looks like a complaint."""

_IS_NONE: Final = re.compile(
    r"^scontrol: *(update .*)?$|^[0-9_,]+: No error$|no longer pending execution|has already finished"
)


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A job of the queue. ``key``: its number, or array and task, as commands take it; times: Unix seconds.

    ``eligible_s``: its begin time; ``limit_s``: a time limit of its own, or of its partition; ``priority`` 0: a user or
    an administrator keeps it from starting; ``group``: of user, QOS and account, whose limits it shares."""

    key: str
    state: str
    eligible_s: int
    submitted_s: int
    started_s: int
    restarts: int
    width: int
    limit_s: int
    uid: int
    is_component: bool
    priority: int
    partitions: tuple[str, ...]
    group: tuple[int, str, str]
    nodes: tuple[str, ...]
    requires: str
    """The nodes of its request, or of a release."""
    has_wants: bool
    """Whether it requests features or devices, by which Slurm chooses its nodes."""
    reason: str
    waits_for_jobs: bool
    """Whether a dependency is not met: the reason says so only once Slurm has looked at the job."""

    @property
    def has_nodes(self) -> bool:
        """Whether it has its nodes now."""
        return self.state in HAVE_NODES and bool(self.nodes)

    @property
    def run(self) -> tuple[int, int]:
        """Which run of this number it is."""
        return self.submitted_s, self.restarts

    @property
    def order(self) -> tuple[int, list[int]]:
        """As jobs were submitted; those of one second by their numbers."""
        return self.submitted_s, [int(number) for number in re.findall("[0-9]+", self.key)]

    @property
    def may_start(self) -> bool:
        """Whether a release would start it, as far as Slurm says."""
        is_kept = self.priority == 0 or self.waits_for_jobs or self.reason.startswith(WAITS_FOR)
        return self.state == "PD" and not is_kept


class QueueTable:
    """``partition``: whose nodes are looked at. The queue is that of all partitions, since they may share nodes.
    ``programs``: the folder of Slurm's, with a slash; empty: they are found by PATH."""

    def __init__(self, partition: str, programs: str = "") -> None:
        self._partition = partition
        self._squeue, self._sinfo, self._scontrol = (programs + name for name in ("squeue", "sinfo", "scontrol"))

    def read(self) -> tuple[list[QueueRow], dict[str, NodeState]]:
        """The jobs, and the nodes of the partition; ``ClusterError`` in one line if Slurm does not answer. Nodes come
        last: one that a job of the queue has left since is idle, and no other job has it."""
        form = ",".join(f"{name}:|" for name in COLUMNS)
        jobs = _answer([self._squeue, "-a", "-h", "-r", "-O", form])
        nodes = _answer([self._sinfo, "-h", "-N", "-p", self._partition, "-o", "%N|%T"])
        states = {name: _node_state(state) for name, _, state in (one.partition("|") for one in nodes)}
        if not states:
            raise ClusterError(f"Slurm has no partition {self._partition} with nodes")
        return [row for row in map(row_of, jobs) if row is not None], states

    def update(self, commands: Sequence[str]) -> list[str]:
        """Have scontrol run these commands, one after the other; what it complains of. That a job is not pending any
        more is no complaint: the next look shows what it is."""
        short = [one for one in commands if len(one) < LONGEST]
        done = [run([self._scontrol, *one.split()]) for one in commands if len(one) >= LONGEST]
        if short:
            patience_s = PATIENCE_S + EACH_S * len(short)
            lines = "".join(f"{one}\n" for one in short).encode()
            done.append(run([self._scontrol], environment=NO_TERMINAL, reads=lines, patience_s=patience_s))
        said = b"".join(one.stdout + one.stderr for one in done).decode(errors="replace")
        return [line.strip() for line in said.splitlines() if line.strip() and not _IS_NONE.search(line.strip())]

    def own_nodes(self, key: str) -> OwnNodes:
        """Whether the user requires nodes or excludes some, as job_submit.lua has noted; without an answer, neither."""
        said = run([self._scontrol, "-o", "show", "job", key]).stdout
        return "requires" if b" (requires nodes)" in said else "excludes" if b" (excludes nodes)" in said else ""


def _node_state(word: str) -> NodeState:
    if word in ("idle", "idle~"):
        return "idle"
    return "busy" if word.startswith(BUSY) and word[-1] not in "*$@" else "away"


def row_of(line: str) -> QueueRow | None:
    """None for a line that is none, as one that a line feed in a constraint makes."""
    values = line.split("|", len(COLUMNS) - 1)
    if len(values) != len(COLUMNS):
        return None
    named = dict(zip(COLUMNS, values, strict=True))
    try:
        return _row(named)
    except (ValueError, UsageError):
        return None


def _row(named: dict[str, str]) -> QueueRow:
    limit, _ = limit_s("", named["TimeLimit"])
    uid, nodes = int(named["UserID"]), named["NodeList"]
    return QueueRow(
        key=named["JobArrayID"],
        state=named["StateCompact"],
        eligible_s=_seconds(named["EligibleTime"]),
        submitted_s=_seconds(named["SubmitTime"]),
        started_s=_seconds(named["StartTime"]),
        restarts=int(named["RestartCnt"]),
        width=int(named["NumNodes"].partition("-")[0]),
        limit_s=min(limit or MOST_LIMIT_S, MOST_LIMIT_S),
        uid=uid,
        is_component=named["HetJobID"] not in (*NOTHING, "0"),
        priority=int(named["PriorityLong"]),
        partitions=tuple(named["Partition"].split(",")),
        group=(uid, named["QOS"], named["Account"]),
        nodes=() if nodes in NOTHING else tuple(expanded(nodes)),
        requires="" if named["ReqNodes"] in NOTHING else named["ReqNodes"],
        has_wants=not {named["tres-per-node"], named["Feature"].rstrip("|")} <= {*NOTHING},
        reason=named["Reason"],
        waits_for_jobs="unfulfilled" in named["Dependency"],
    )


def _seconds(text: str) -> int:
    return 0 if text in NOTHING else int(text)


def _answer(command: Sequence[str]) -> list[str]:
    done = run([*command], environment={"SLURM_TIME_FORMAT": "%s"})
    if done.returncode:
        raise ClusterError(f"{command[0]} failed: {last_line(done.stderr, done.stdout)}")
    return done.stdout.decode(errors="replace").splitlines()
