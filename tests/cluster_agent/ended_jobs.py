"""Made-up ended jobs for tests of models: four users, each with one program that draws its own watts."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from cluster_agent.history.job_history import HistoryRow
from cluster_agent.model_service.job_records import EndedJob, JobWords
from cluster_agent.model_service.job_ring import Records
from cluster_agent.prediction.job_power import Submission

USERS = ("ada", "bob", "cyd", "dan")
HOUR_S = 3600.0


def submission(at: int) -> Submission:
    user = at % 4
    return Submission(USERS[user], f"run_{at}", 2, 2, 0, 0, 0, 7200)


def ended(count: int, begin_s: float = 0.0, factor: float = 1.0, seed: int = 1) -> list[EndedJob]:
    """One job an hour; a node of the first user's jobs draws about 100 W, of the last one's 400."""
    random = np.random.default_rng(seed)
    return [
        EndedJob(f"{begin_s:g}/{at}", submission(at), begin_s + at * HOUR_S, begin_s + (at + 1) * HOUR_S,
                 2 * factor * 100.0 * (at % 4 + 1) * float(random.lognormal(0.0, 0.05)), None)
        for at in range(count)
    ]  # fmt: skip


def records(folder: Path, count: int, begin_s: float = 0.0, factor: float = 1.0, seed: int = 1) -> Records:
    return JobWords(folder, is_made=True).records(ended(count, begin_s, factor, seed))


def history_row(job: EndedJob) -> HistoryRow:
    one = job.submission
    return HistoryRow(
        job=job.key, user=one.user, application=one.text, nodes=one.units, submitted_s=job.submitted_s,
        began_s=job.submitted_s, ended_s=job.ended_s, run_s=job.ended_s - job.submitted_s, request_s=one.request_s,
        watts=job.watts,
    )  # fmt: skip
