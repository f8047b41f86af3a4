"""The jobs of a live partition as predictions learn from them: ours, and those of another manager."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping
from typing import Final

import msgspec

from cluster_agent.commands.jobs import rows_of, rows_since
from cluster_agent.errors import ClusterError
from cluster_agent.fabric.ask import Place, ask
from cluster_agent.history.job_history import HistoryRow
from cluster_agent.history.usage import PARTS
from cluster_agent.history.watts_ahead import request
from cluster_agent.prediction.job_power import METERED_AFTER_S, Submission
from cluster_agent.serve.people_protocol import JobRow, ListForeign, ListHistory, ListJobs

LONGEST_AGO_S: Final = 60 * 86_400.0


class PastJob(msgspec.Struct, frozen=True):
    """Times in Unix seconds, infinite for what has not happened. ``watts``: mean of the whole job; None: not known."""

    submitted_s: float
    started_s: float
    ended_s: float
    submission: Submission
    watts: float | None
    maximum_w: float | None = None
    parts: Mapping[str, tuple[float, float]] = {}
    """By part with meters of its own (``usage.PARTS``), the mean and the highest watts of the whole job."""

    @property
    def run_s(self) -> float:
        """How long it ran."""
        return self.ended_s - self.started_s


def past_jobs(place: Place) -> list[PastJob]:
    """The jobs that have ended, ours and another manager's, in the order of their ends."""
    rows = rows_since(place, ListHistory(time.time() - LONGEST_AGO_S))
    return sorted(map(_past, rows), key=lambda job: job.ended_s)


def waiting_and_running(place: Place) -> tuple[list[PastJob], list[str]]:
    """The jobs that wait or run; and what is not known of them, in words."""
    found, remarks = list[PastJob](), list[str]()
    with contextlib.suppress(ClusterError):
        found += [_own(row) for row in rows_of(place, ListJobs())]
    try:
        found += [
            PastJob(one.began_s, one.began_s, math.inf, request(one.user, one.title, len(one.nodes), 0), None)
            for one in ask(place, ListForeign())
        ]
    except ClusterError as error:
        remarks.append(f"jobs that another manager runs now are left out: {error}")
    return found, remarks


def _own(row: JobRow) -> PastJob:
    nodes = row.requested or row.nodes
    return PastJob(
        row.submitted_s, math.inf if row.started_s is None else row.started_s,
        math.inf if row.ended_s is None else row.ended_s,
        request(row.user, row.title, nodes, row.walltime_s), _mean_w(row),
    )  # fmt: skip


def _mean_w(row: JobRow) -> float | None:
    """Of a running job, once it has been metered for a while."""
    if not row.energy_j or row.took_s is None or row.took_s < METERED_AFTER_S:
        return None
    return row.energy_j / row.took_s


def _past(row: HistoryRow) -> PastJob:
    highest_w = row.measured.highest_w
    maximum_w = None if highest_w is None or row.watts is None else max(highest_w * row.nodes, row.watts)
    submission = request(row.user, row.application, row.nodes, row.request_s)
    return PastJob(
        row.submitted_s, row.began_s, row.began_s + row.run_s, submission, row.watts, maximum_w, _parts(row)
    )  # fmt: skip


def _parts(row: HistoryRow) -> dict[str, tuple[float, float]]:
    found = {}
    for part in PARTS:
        mean_w, highest_w = (getattr(row.measured, f"{part}_{name}") for name in ("w", "highest_w"))
        if mean_w is not None and 0 < mean_w < math.inf:
            found[part] = mean_w * row.nodes, max(mean_w, highest_w or 0.0) * row.nodes
    return found
