"""Job power from the submission: the nearest past jobs of the same user, learned online.

A user repeats a few kinds of jobs, so the best guess for a job is what the user's most similar and most recent jobs
drew per unit (node), times its units. If the user is new or has no similar job, jobs with the same request by any user
decide; if there is none, the machine's watts at full load (TDP). Only what is known at submission is used, and only
jobs that have ended are learned from.

After: Borghesi et al., Predictive modeling for job power consumption in HPC systems, ISC 2016 (per-user models from
requests); Antici et al., Online job failure prediction in an HPC system, Euro-Par 2023 workshops (nearest neighbours
over embedded text). Distances, weights and bounds are ours.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final, Literal, TypeAlias

import msgspec
import numpy as np

from cluster_agent.prediction.text import Embedding, Float32s, HashedNgrams

Origin: TypeAlias = Literal["user", "same request", "TDP", "model"]

METERED_AFTER_S: Final = 60.0
"""Ours: from so long after its start on a job's meters are taken to say what it draws."""

NEIGHBOURS: Final = 16
FAR: Final = 3.0
"""Jobs at a larger squared distance are ignored: three doublings of one quantity, or another kind of accelerator."""
AGE_WEIGHT: Final = 1e-4
"""Squared distance added to a past job for each later one of that user: of equal jobs the recent ones count more."""
TEXT_WEIGHT: Final = 0.5
"""Squared distance of texts that have nothing in common, over 2."""
SAME_REQUEST_JOBS: Final = 8
"""How many jobs are remembered per request, the last ones."""
REQUESTS_KEPT: Final = 20_000


class Submission(msgspec.Struct, frozen=True):
    """What is known when a job is submitted. Amounts are over all units. ``login``, ``title``: the names of user and
    job, where ``user`` and ``text`` are others, a uid and a command line."""

    user: str
    text: str
    units: int
    cores: int
    gpus: int
    mics: int
    memory_kib: int
    request_s: int
    login: str = ""
    title: str = ""

    @property
    def request(self) -> tuple[int, int, int, int]:
        """What makes two requests the same, by any user."""
        return (self.units, self.cores, self.gpus, self.mics)


class Prediction(msgspec.Struct, frozen=True):
    """Watts of the whole job. ``typical_w``: the geometric mean of similar jobs, to show; ``expected_w``: their mean,
    for every sum; ``maximum_w``: the highest. ``origin``: what the prediction rests on; ``similar``: on how many jobs.
    """

    typical_w: float
    expected_w: float
    maximum_w: float
    origin: Origin
    similar: int = 0

    def watts(self, of: str) -> float:
        """By the word that a policy has for it (``scheduler.power_phases.Admitted``)."""
        return {"maximum": self.maximum_w, "expected": self.expected_w}.get(of, self.typical_w)


class PowerPredictor:
    """``predict`` at submission, ``learn`` at the end. Memory is bounded, whatever the number of jobs and users."""

    def __init__(
        self,
        tdp_w: Callable[[Submission], float],
        embedding: Embedding | None = None,
        per_user: int = 2048,
        jobs_kept: int = 100_000,
    ) -> None:
        """``tdp_w``: full load of what a job requests. The last ``per_user`` jobs of each user are remembered, of the
        most recent users, up to ``jobs_kept`` jobs."""
        self.trouble = ""  # a model may have some (``models``)
        self._tdp_w = tdp_w
        self._embedding: Embedding = embedding or HashedNgrams()
        self._per_user = per_user
        self._jobs_kept = jobs_kept
        self._kept = 0
        self._users: OrderedDict[str, _History] = OrderedDict()
        self._requests: OrderedDict[tuple[int, ...], deque[tuple[float, float]]] = OrderedDict()

    @property
    def nearest(self) -> PowerPredictor:
        """Itself, which answers where a model fails (``models``)."""
        return self

    def predict(self, job: Submission) -> Prediction:
        """From the user's similar jobs, else from the same request, else TDP."""
        history = self._users.get(job.user)
        per_unit = history.like(self._features(job)) if history else None
        if per_unit is not None:
            typical, expected, highest, similar = per_unit
            return Prediction(typical * job.units, expected * job.units, highest * job.units, "user", similar)
        if past := self._requests.get(job.request):
            average, maximum = np.mean([watts for watts, _ in past]), max(highest for _, highest in past)
            average_w = float(average) * job.units
            return Prediction(average_w, average_w, maximum * job.units, "same request", len(past))
        tdp_w = self._tdp_w(job)
        return Prediction(tdp_w, tdp_w, tdp_w, "TDP")

    def learn(self, job: Submission, average_w: float, maximum_w: float | None = None) -> None:
        """Learn from a job that has ended. Without ``maximum_w`` only its mean is known. Watts must be above 0."""
        if not 0 < average_w < math.inf:
            raise ValueError(f"a job that drew {average_w} W teaches nothing; leave it out")
        highest_w = average_w if maximum_w is None else maximum_w
        watts = (average_w / job.units, highest_w / job.units)
        if job.user not in self._users:
            self._users[job.user] = _History(len(NUMBER_SCALES) + self._embedding.size, self._per_user)
        self._users.move_to_end(job.user)
        history = self._users[job.user]
        self._kept -= len(history)
        history.append(self._features(job), *watts)
        self._kept += len(history)
        while self._kept > self._jobs_kept and len(self._users) > 1:
            self._kept -= len(self._users.popitem(last=False)[1])
        self._requests.setdefault(job.request, deque(maxlen=SAME_REQUEST_JOBS)).append(watts)
        self._requests.move_to_end(job.request)
        if len(self._requests) > REQUESTS_KEPT:
            self._requests.popitem(last=False)

    def _features(self, job: Submission) -> Float32s:
        """Squared differences of these add up to the distance."""
        units = job.units
        features = np.empty(len(NUMBER_SCALES) + self._embedding.size, np.float32)
        features[: len(NUMBER_SCALES)] = (
            math.log2(units),
            math.log2(max(job.cores / units, 1)),
            job.gpus / units,
            job.mics / units,
            math.log2(max(job.memory_kib / units, 1 << 17)),
            math.log2(max(job.request_s, 60)),
        )
        features[: len(NUMBER_SCALES)] *= NUMBER_SCALES
        np.multiply(self._embedding(job.text), TEXT_WEIGHT**0.5, out=features[len(NUMBER_SCALES) :])
        return features


NUMBER_SCALES: Final = np.array([0.5, 1.0, 1.5, 1.5, 0.5, 0.5], np.float32)
"""Units, cores per unit, GPUs, MICs, memory per unit, request: the distance that one doubling (one card) makes."""


class _History:
    """The last jobs of one user: a ring of features and of watts per unit, which grows up to its bound."""

    def __init__(self, size: int, most: int) -> None:
        self._most = most
        self._features = np.zeros((min(16, most), size), np.float32)
        self._watts = np.zeros((min(16, most), 2))
        self._count = 0  # ever

    def __len__(self) -> int:
        return min(self._count, self._most)

    def append(self, features: Float32s, average: float, maximum: float) -> None:
        at = self._count % self._most
        if at == len(self._features):
            more = min(2 * at, self._most) - at
            self._features = np.concatenate([self._features, np.zeros((more, self._features.shape[1]), np.float32)])
            self._watts = np.concatenate([self._watts, np.zeros((more, 2))])
        self._features[at] = features
        self._watts[at] = average, maximum
        self._count += 1

    def like(self, features: Float32s) -> tuple[float, float, float, int] | None:
        """Typical, expected and highest watts per unit of the nearest past jobs, and how many; None: none is near."""
        count = len(self)
        # with sum, log and exp below that have one result on every processor: einsum's, and NumPy's log and exp, depend
        # on its vector unit, and a replay would differ between machines
        difference = self._features[:count] - features
        squared = np.multiply(difference, difference, out=difference).sum(axis=1)
        age = (self._count - 1 - np.arange(count)) % self._most
        distance = squared + AGE_WEIGHT * age
        nearest = np.argpartition(distance, NEIGHBOURS)[:NEIGHBOURS] if count > NEIGHBOURS else np.arange(count)
        nearest = np.sort(nearest[squared[nearest] <= FAR])
        if not len(nearest):
            return None
        weight = 1 / (distance[nearest] + 0.01)
        # typical is the geometric mean: a neighbour that draws ten times as much is as wrong as one that draws a tenth.
        # In a sum it counts ten times as much, so what is expected is the plain mean
        logs = np.array([math.log(watts) for watts in self._watts[nearest, 0].tolist()])
        watts = self._watts[nearest]
        expected = float((weight * watts[:, 0]).sum() / weight.sum())
        return math.exp((weight * logs).sum() / weight.sum()), expected, float(watts[:, 1].max()), len(nearest)
