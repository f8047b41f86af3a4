"""Watts of single jobs of a log: what they draw, whose users volunteered to be slowed, and predictions.

A log in the Standard Workload Format has no watts. ``--job-watts`` adds them: a table (CSV, or Parquet) with the
columns ``job`` (or ``job_id``), the log's number, and ``watts``, of the whole job on average at the highest frequency,
with its share of the nodes' idle watts; or ``generated``, random with a seed. A table may also say what predictions
know of a job and a log has no columns for: ``user``, ``title`` and ``text``, and ``model``, which is not empty where a
live partition's model failed to answer. ``state export --replay`` writes them.
There a job may have no watts: it draws what the machine file gives, and teaches nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec
import numpy as np
from msgspec.structs import replace

from cluster_agent.choosing import read_params
from cluster_agent.cluster import MOST_W, UW
from cluster_agent.errors import WrongUseError
from cluster_agent.scheduler.job_columns import Bools, Int64s
from cluster_agent.scheduler.native.governor import Watts
from cluster_agent.scheduler.power_phases import Admitted, Power, Volunteers
from cluster_agent.workloads.job_log import Words, Workload
from cluster_agent.workloads.parquet_tables import read_columns
from cluster_agent.workloads.swf import EXECUTABLE, GROUP, QUEUE, USER, TraceError
from cluster_agent.workloads.text_tables import rows_of

if TYPE_CHECKING:
    from cluster_agent.prediction.job_power import Submission

GENERATED: Final = "generated"
LEAST_SHARE: Final = 0.3
"""Ours: the least that a generated job's processor draws above idle, as a share of what a busy one draws above idle."""


class Generated(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Each user has a few kinds of jobs, by application and width; jobs of a kind differ by ``spread``, a standard
    deviation."""

    seed: int = 1
    spread: float = 0.05


class JobWatts(msgspec.Struct, frozen=True):
    """Per job of a workload: microwatts of a processor. ``findings``: what was wrong, in words. ``words``: by the log's
    number of a job."""

    uw: Int64s
    findings: tuple[str, ...]
    words: Mapping[int, Words] = MappingProxyType({})


def read_job_watts(of_jobs: str | Mapping[int, float], workload: Workload, watts: Watts) -> JobWatts:
    """``generated[:seed=N,spread=S]``, a file, or watts by number; ``WrongUseError`` or ``TraceError`` in one line."""
    text = of_jobs if isinstance(of_jobs, str) else "job_watts"
    if text.partition(":")[0] == GENERATED:
        params = read_params("--job-watts", text, GENERATED, Generated)
        if params.seed < 0 or not 0 <= params.spread < 1:
            raise WrongUseError(f"--job-watts {text}: seed must be 0 or more, spread at least 0 and below 1")
        return JobWatts(_generated(params, workload, watts), ("watts of jobs are generated",))
    words: Mapping[int, Words] = {}
    if isinstance(of_jobs, str):
        given, words = _table(text)
    else:
        given = _checked(of_jobs)
    width = workload.jobs.width
    uw = np.full(len(width), watts.busy_uw[0], np.int64)
    known = np.array([number in given for number in workload.jobs.number.tolist()], np.bool_)
    if not known.any() and not words:
        raise TraceError(f"{text}: no job of {workload.log.path} in it; its jobs are the log's numbers (column 1)")
    given_w = np.array([given.get(number, 0.0) for number in workload.jobs.number.tolist()], np.float64)
    uw[known] = np.round(given_w[known] / width[known] * UW).astype(np.int64)
    findings = []
    if missing := int((~known).sum()):
        findings.append(f"jobs without watts in {text}: {missing} draw what the machine file gives")
    if low := int((uw < watts.idle_uw).sum()):
        findings.append(f"jobs that draw less than idle processors: {low} taken as idle")
        uw = np.maximum(uw, watts.idle_uw)
    if high := int((uw > watts.plan_uw[0]).sum()):
        findings.append(f"jobs that draw more than the machine's highest watts: {high}; they may exceed a cap")
    return JobWatts(uw, tuple(findings), words)


def _checked(of_jobs: Mapping[int, float]) -> Mapping[int, float]:
    for number, power_w in of_jobs.items():
        if not isinstance(power_w, int | float) or not 0 < power_w < MOST_W:
            raise TraceError(f"job_watts: job {number} has {power_w!r:.60} W: give watts above 0 and below {MOST_W:g}")
    return of_jobs


def _table(path: str) -> tuple[Mapping[int, float], Mapping[int, Words]]:
    found, words = dict[int, float](), dict[int, Words]()
    for line, job, watts, said in _parquet(path) if path.endswith(".parquet") else _csv(path):
        where = f"{path}:{line}"
        is_unknown = said is not None and watts == ""
        try:
            number, power_w = int(str(job)), math.nan if is_unknown else float(str(watts))
        except (TypeError, ValueError):
            raise TraceError(f"{where}: job and watts must be numbers") from None
        if not is_unknown and not 0 < power_w < MOST_W:
            raise TraceError(f"{where}: {watts} W: give watts above 0 and below {MOST_W:g}, or leave the line out")
        if number in found or number in words:
            raise TraceError(f"{where}: job {number} occurs twice; delete one line")
        if said is not None:
            words[number] = Words(*said[:3], has_watts=not is_unknown, without_model=bool(said[3]))
        if not is_unknown:
            found[number] = power_w
    return found, words


Row: TypeAlias = tuple[int, object, object, tuple[str, str, str, str] | None]
"""Its line, the job, watts, and what is said of the job in words."""


def _csv(path: str) -> list[Row]:
    rows, _ = rows_of(path)
    found: list[Row] = []
    for line, row in rows:
        name = "job" if "job" in row else "job_id"
        if name not in row or "watts" not in row:
            raise TraceError(f"{path}:1: the first line must name the columns job and watts")
        said = None
        if "user" in row:
            said = row["user"], row.get("title", ""), row.get("text", ""), row.get("model", "")
        found.append((line, row[name], row["watts"], said))
    return found


def _parquet(path: str) -> list[Row]:
    columns = read_columns(path, ("watts",), ("job", "job_id"))
    job = columns.get("job") or columns.get("job_id")
    if job is None:
        raise TraceError(f"{path}: no column job or job_id; name one so")
    return [(row, *values, None) for row, values in enumerate(zip(job, columns["watts"], strict=True), 1)]


def _generated(params: Generated, workload: Workload, watts: Watts) -> Int64s:
    columns, jobs = workload.log.columns[:, workload.row], workload.jobs
    kind = np.stack([columns[USER], columns[EXECUTABLE], np.log2(jobs.width).astype(np.int64)], axis=1)
    _, of_job = np.unique(kind, axis=0, return_inverse=True)
    random = np.random.default_rng(params.seed)
    share = random.uniform(LEAST_SHARE, 1.0, int(of_job.max()) + 1)[of_job.ravel()]
    share = np.clip(share * (1 + params.spread * random.standard_normal(len(jobs))), LEAST_SHARE, 1.0)
    return (watts.idle_uw + np.round((watts.busy_uw[0] - watts.idle_uw) * share)).astype(np.int64)


def of_jobs(watts: Watts, workload: Workload, power: Power) -> Watts:
    """``watts`` with the columns of jobs that the policy needs; columns that exist already stay."""
    if power.volunteers is not None and watts.job_lowest is None:
        flags = volunteers(workload, power.volunteers)
        watts = replace(watts, job_lowest=np.where(flags, watts.lowest, 0).astype(np.int32))
    if power.admitted is not None and watts.job_plan_uw is None:
        watts = _planned(watts, workload, power.admitted, power)
    return watts


def _planned(watts: Watts, workload: Workload, admitted: Admitted, power: Power) -> Watts:
    if watts.job_busy_uw is None:
        raise WrongUseError(
            "this policy plans with watts of single jobs, and the log has none: give them with --job-watts"
            " FILE|generated"
        )
    if admitted == "given":
        planned_uw = np.clip(np.round(watts.job_busy_uw * power.margin), watts.idle_uw, watts.plan_uw[0]).astype(
            np.int64
        )
        return replace(watts, job_plan_uw=planned_uw)
    nobody = np.full(len(workload.jobs), watts.plan_uw[0], np.int64)
    return replace(
        watts,
        job_plan_uw=nobody,
        new_predictor=lambda: _Predicted(workload, watts, admitted, power),
        margin=power.margin,
    )


class _Predicted:
    """The power predictor (``prediction.job_power``) on a log's columns: user, application, group, queue, request."""

    def __init__(self, workload: Workload, watts: Watts, of: Admitted, power: Power) -> None:
        from cluster_agent.prediction.admitted_power import AdmittedPower  # only here: few replays predict

        self._workload = workload
        self._admitted = AdmittedPower(
            lambda job: job.units * watts.plan_uw[0] / UW, lambda job: 0.0, of, power.guard, power.model
        )

    def predict(self, job: int) -> float:
        """Watts of the whole job."""
        words = self._workload.words.get(int(self._workload.jobs.number[job]))
        return self._admitted.admit(
            job, submission(self._workload, job), words is not None and words.without_model
        )  # fmt: skip

    def learn(self, job: int, watts: float) -> None:
        """The job's watts are taken as both mean and maximum, if they are known."""
        words = self._workload.words.get(int(self._workload.jobs.number[job]))
        if words is None or words.has_watts:
            self._admitted.learn(job, submission(self._workload, job), watts)


def submission(workload: Workload, job: int) -> Submission:
    """What was known of ``job`` when it was submitted."""
    from cluster_agent.prediction.job_power import Submission

    column, width = workload.log.columns[:, workload.row[job]], int(workload.jobs.width[job])
    words = workload.words.get(int(workload.jobs.number[job]))
    return Submission(
        user=str(column[USER]),
        text=f"{column[EXECUTABLE]} {column[GROUP]} {column[QUEUE]}" if words is None else words.text,
        units=width,
        cores=width,
        gpus=0,
        mics=0,
        memory_kib=0,
        request_s=int(workload.jobs.request_s[job]),
        login=words.user if words else "",
        title=words.title if words else "",
    )


def volunteers(workload: Workload, choice: Volunteers) -> Bools:
    """Which jobs may be slowed. A larger share drawn with the same seed contains a smaller one."""
    if choice.queue is not None:
        flags: Bools = workload.log.columns[QUEUE, workload.row] == choice.queue
        return flags
    chosen: Bools = np.random.default_rng(choice.seed).random(len(workload.jobs)) < choice.share
    return chosen
