"""The jobs in the JSON of ``squeue --json`` and slurmrestd, whose shapes differ between versions of Slurm.

| Slurm | its OpenAPI | numbers | states |
|---|---|---|---|
| 22.05 | v0.0.38 | plain, null if not set | one word |
| 23.02 | v0.0.39 | times plain, others ``{set, infinite, number}`` | one word |
| 23.11 to 24.05 | v0.0.40, v0.0.41 | ``{set, infinite, number}``, counts of restarts plain | a list of words |

22.05 was tried; the others are read by published descriptions and output. One reader takes all of these: a number is
plain or has ``number``, a state is a word or a list. What a field has that none of them has is an error with its name.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Final

from cluster_agent.budget.sharers.view import tag_of
from cluster_agent.errors import ClusterError
from foundation.shell.errors import UsageError
from foundation.shell.names import expanded

ON_NODES: Final = frozenset(
    {"RUNNING", "CONFIGURING", "COMPLETING", "RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED", "POWER_UP_NODE"}
)
"""Words of which one says that the job has its nodes now. A suspended job has none: another may run there."""

ELSEWHERE: Final = frozenset(
    {
        *("PENDING", "SUSPENDED", "COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL"),
        *("DEADLINE", "OUT_OF_MEMORY", "LAUNCH_FAILED", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"),
        *("REVOKED", "RESV_DEL_HOLD", "RECONFIG_FAIL", "UPDATE_DB"),
    }
)

_TAG: Final = re.compile(r"(?:^|[ ,;\t])nodectl=([A-Za-z]+)(?=$|[ ,;\t])")


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A job of another manager that has its nodes now. ``node_list``: a list as Slurm writes it; ``submitted_s``: Unix
    seconds."""

    job: str
    node_list: str
    nodes: frozenset[str]
    submitted_s: int
    restarts: int
    user: str
    title: str
    tag: str
    cluster: str
    partition: str = ""


def jobs_on_nodes(text: bytes | str) -> tuple[list[QueuedJob], list[str]]:
    """The jobs that have nodes, and the state words that no version above has, which count as having nodes.
    ``ClusterError`` in one line for anything else."""
    try:
        rows = [(row, _words(row)) for row in _rows(json.loads(text))]
        jobs = [_job(row) for row, words in rows if words & ON_NODES or words - ELSEWHERE]
        unknown = sorted({word for _, words in rows for word in words - ON_NODES - ELSEWHERE})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, UsageError) as error:
        what = f"{type(error).__name__} {error}" if isinstance(error, KeyError) else str(error)
        raise ClusterError(f"Slurm's answer has no jobs as versions 22.05 to 24.05 write them: {what[:200]}") from None
    return [job for job in jobs if job.nodes], unknown


def _rows(answer: Any) -> list[dict[str, Any]]:
    """An answer may have both: an error of one part, and what the others know."""
    rows: list[dict[str, Any]] = answer["jobs"]
    for one in answer.get("errors") or ():
        if not rows:
            raise ClusterError(f"Slurm answers: {one.get('description') or one.get('error') or one}")
    return rows


def _words(row: dict[str, Any]) -> set[str]:
    state = row["job_state"]
    words = state if isinstance(state, list) else str(state).split()
    return {str(word).upper() for word in words}


def _job(row: dict[str, Any]) -> QueuedJob:
    node_list = str(row.get("nodes") or "")
    return QueuedJob(
        job=str(_number(row, "job_id")),
        node_list=node_list,
        nodes=frozenset(expanded(node_list)) if node_list else frozenset(),
        submitted_s=_number(row, "submit_time"),
        restarts=_number(row, "restart_cnt"),
        user=str(row.get("user_name") or ""),
        title=str(row.get("name") or ""),
        tag=tag_said(str(row.get("comment") or "")),
        cluster=str(row.get("cluster") or ""),
        partition=str(row.get("partition") or ""),
    )


def _number(row: dict[str, Any], name: str) -> int:
    value = row[name]
    if isinstance(value, dict):
        value = value["number"] if value.get("set", True) else 0
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 2**63:
        raise ValueError(f"{name} is {json.dumps(value)[:60]}, no number")
    return int(value)


def tag_said(comment: str) -> str:
    """The first tag among the words ``nodectl=WORD`` of a comment; empty: none."""
    return next(filter(None, map(_tag, _TAG.findall(comment))), "")


def _tag(word: str) -> str:
    try:
        return tag_of(word).name.lower()
    except ValueError:
        return ""
