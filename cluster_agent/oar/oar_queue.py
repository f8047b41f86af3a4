"""The jobs in the JSON of ``oarstat -J``, as OAR 2.5.9 writes it: one object, with a job for each number.

OAR prints nothing where it has no job, and fails where its database does not answer. A job of type ``container`` is
left out: the jobs inside it are what runs on its nodes. An OAR job never starts again under its number: OAR submits
another one.
"""

from __future__ import annotations

import json
from typing import Any, Final

from cluster_agent.errors import ClusterError
from cluster_agent.slurm.queue_json import QueuedJob, tag_said
from cluster_agent.slurm.slurm_programs import last_line, run
from foundation.shell.errors import UsageError
from foundation.shell.names import expanded

ON_NODES: Final = frozenset({"toLaunch", "Launching", "Running", "Finishing", "Resuming"})
"""States of a job that has its nodes now. A suspended job has none: another may run there."""

ELSEWHERE: Final = frozenset({"Waiting", "Hold", "toAckReservation", "toError", "Suspended", "Terminated", "Error"})

PACKAGE: Final = "oar-user"


def read_oar(cluster: str, oarstat: str = "oarstat") -> tuple[list[QueuedJob], list[str]]:
    """What OAR runs now; ``ClusterError`` in one line if it does not answer."""
    done = run([oarstat, "-J"], "OAR's database", package=PACKAGE)
    if done.returncode:
        raise ClusterError(f"oarstat failed: {last_line(done.stderr, done.stdout)}")
    return oar_jobs_on_nodes(done.stdout, cluster)


def oar_jobs_on_nodes(text: bytes | str, cluster: str) -> tuple[list[QueuedJob], list[str]]:
    """The jobs that have nodes, and the states that version 2.5.9 lacks, which count as having nodes. ``cluster``: the
    name that this OAR has here. ``ClusterError`` in one line for anything else."""
    try:
        rows = list(json.loads(text).values()) if text.strip() else []
        states = {str(row["state"]) for row in rows}
        jobs = [_job(row, cluster) for row in rows if row["state"] not in ELSEWHERE and not _is_container(row)]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, UsageError) as error:
        what = f"{type(error).__name__} {error}" if isinstance(error, KeyError) else str(error)
        raise ClusterError(f"OAR's answer has no jobs as version 2.5.9 writes them: {what[:200]}") from None
    return [job for job in jobs if job.nodes], sorted(states - ON_NODES - ELSEWHERE)


def _is_container(row: dict[str, Any]) -> bool:
    return any(kind == "container" or kind.startswith("container=") for kind in row["types"])


def _job(row: dict[str, Any], cluster: str) -> QueuedJob:
    nodes = [str(name) for name in row["assigned_network_address"] if name]  # a licence is on no node
    if expanded(",".join(nodes)) != nodes if nodes else False:
        raise ValueError(f"assigned_network_address is {json.dumps(nodes)[:60]}, no list of nodes")
    return QueuedJob(
        job=str(_number(row, "Job_Id")),
        node_list=",".join(nodes),
        nodes=frozenset(nodes),
        submitted_s=_number(row, "submissionTime"),
        restarts=0,
        user=str(row["owner"] or ""),
        title=str(row["name"] or ""),
        tag=tag_said(" ".join(map(str, row["types"]))),
        cluster=cluster,
    )


def _number(row: dict[str, Any], name: str) -> int:
    value = row[name]
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise ValueError(f"{name} is {json.dumps(value)[:60]}, no number")
    return value
