"""Training: a version of a model from ended jobs, with what it would have been worth on the last of them.

The last fifth of the jobs, by their submission, is predicted by a table of those that had ended before, and by the
nearest past jobs, which go on learning meanwhile (``prediction.job_power``): they predict where no model does, so a
first model has to beat them. The version itself is then trained on all jobs. Nothing depends on the time of day, so the
same records give the same files.
"""

from __future__ import annotations

import heapq
from typing import Final

import numpy as np
from msgspec.structs import replace

from cluster_agent.errors import ClusterError
from cluster_agent.model_service.group_table import Float64s, kinds_of, trained
from cluster_agent.model_service.job_ring import Records
from cluster_agent.model_service.model_registry import Card, Metrics, Registry, Version
from cluster_agent.model_service.on_line_errors import Pairs, errors, errors_of, shares_of, unseen
from cluster_agent.prediction.job_power import PowerPredictor, Submission

LEAST_JOBS: Final = 50
"""Ours: fewer jobs train nothing."""

JUDGED_SHARE: Final = 0.2
SHAPES: Final = 48
MOST_JUDGED: Final = 2000
MOST_LEARNED: Final = 10_000
"""Ours: of a long history the nearest past jobs learn from so many before, and so many are judged: some seconds."""


def train(registry: Registry, records: Records) -> Version:
    """A new version. ``ClusterError`` for too few jobs. The caller has ``locked``."""
    if len(records) < LEAST_JOBS:
        raise ClusterError(f"{len(records)} jobs with metered watts have ended: a model needs {LEAST_JOBS}")
    metrics = judged(records)
    card = Card(
        name=registry.name, version=0, jobs=len(records), known_s=float(records["ended_s"].max()),
        error=metrics.error, model_sha256="", metrics_sha256="", shares=shares_of(records),
    )  # fmt: skip
    return registry.add(card, metrics, trained(records))


def judged(records: Records) -> Metrics:
    """What a table of the earlier jobs is worth on the last ones."""
    records = records[np.lexsort((records["job"], records["submitted_s"]))]
    cut = len(records) - min(int(len(records) * JUDGED_SHARE), MOST_JUDGED)
    last = records[cut:]
    if not len(last):
        return Metrics()
    known = records[records["ended_s"] < last["submitted_s"][0]]
    if not len(known):
        return Metrics()
    table_errors = errors_of(last, trained(known).predict(last).watts[:, 0])
    nearest_errors = _of_nearest(known[np.argsort(known["ended_s"], kind="stable")][-MOST_LEARNED:], last)
    pairs = Pairs()
    pairs.add(last, kinds_of(last), nearest_errors, table_errors)
    found = Metrics(len(last), float(table_errors.mean()), float(nearest_errors.mean()))
    if gain := pairs.gain():
        found = replace(found, gain=gain.mean, gain_low=gain.low, gain_high=gain.high)
    return found


def nearest_error(newest: Records, known_s: float) -> float | None:
    """The mean error of the nearest past jobs on those by which drift is judged; None: there are none."""
    last = unseen(newest, known_s)
    if not len(last):
        return None
    last = last[np.lexsort((last["job"], last["submitted_s"]))]
    known = newest[newest["ended_s"] < last["submitted_s"][0]]
    return float(_of_nearest(known[np.argsort(known["ended_s"], kind="stable")], last).mean())


def _of_nearest(known: Records, last: Records) -> Float64s:
    """Errors of the nearest past jobs, each predicted at its submission from what had ended. Names are equal or not:
    the records do not have their letters. A job of which nothing is known counts as wrong."""
    predictor = PowerPredictor(lambda submission: np.nan)
    for at in range(len(known)):
        _learn(predictor, known, at)
    typical_w, ended = np.empty(len(last)), list[tuple[float, int]]()
    for at, now_s in enumerate(last["submitted_s"].tolist()):
        while ended and ended[0][0] < now_s:
            _learn(predictor, last, heapq.heappop(ended)[1])
        submission = _submission(last, at)
        typical_w[at] = predictor.predict(submission).typical_w / submission.units
        heapq.heappush(ended, (float(last["ended_s"][at]), at))
    drawn_w = last["node_w"].astype(np.float64)
    return np.nan_to_num(errors(typical_w, drawn_w), nan=1.0)


def _learn(predictor: PowerPredictor, records: Records, at: int) -> None:
    submission = _submission(records, at)
    row = records[at]
    predictor.learn(submission, float(row["node_w"]) * submission.units, float(row["most_w"]) * submission.units)


def _submission(records: Records, at: int) -> Submission:
    row = records[at]
    nodes = int(row["nodes"])
    text = f"{int(row['text']):x}".translate(_LETTERS)
    cores = nodes << int(row["shape"]) % SHAPES  # another shape is at least as far as twice the cores
    return Submission(f"{int(row['user']):x}", text, nodes, cores, 0, 0, 0, int(row["request_s"]))


_LETTERS: Final = str.maketrans("0123456789", "ghijklmnop")
"""Digits of a text count as one sign."""
