"""What is said of a job before it runs, and learned once it has ended: typical and expected watts, and a band.

``typical_w`` is what such a job mostly draws: it is right for one job. ``expected_w`` is the mean of such jobs, which a
few hungry ones raise: it is right for sums, of a partition or of a month. Showing the mean, or adding typical watts,
is wrong by as much as the two differ (Jensen's inequality).

Jobs come in bursts of the same request, and what is wrong for the first of a burst is wrong for all: the errors add up.
So what is expected is corrected by the last jobs of that user with that request and walltime: by what they drew over
what was expected of them, with some weight on 1. What is typical is not.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Final

import msgspec

from cluster_agent.prediction.bands import COVERAGE, Band, Bands
from cluster_agent.prediction.job_power import Prediction, Submission
from cluster_agent.prediction.models import Model, predictor_of
from foundation.shell.extension import Extension

MOST_WAITING: Final = 200_000
"""Ours: jobs that were predicted and have not ended; the oldest are forgotten."""


LAST_ALIKE: Final = 5
PRIOR_ALIKE: Final = 3.0
"""Ours: how many last jobs correct what is expected, and how many jobs the prediction itself is worth. Chosen on the
second quarter of Eurora's log (``benchmarks.power_prediction``)."""

REQUESTS_KEPT: Final = 20_000

UNCORRECTED: Final = ("model", "TDP")
"""What comes from a model or from full load is corrected by no last jobs, and says nothing of how wrong others are."""


class Forecast(msgspec.Struct, frozen=True):
    """Watts of the whole job. ``low_w``, ``high_w``: the band; None: too few jobs have ended. ``similar``: on how many
    ended jobs the watts rest."""

    typical_w: float
    expected_w: float
    maximum_w: float
    low_w: float | None
    high_w: float | None
    origin: str
    similar: int


class OnLinePower:
    """``predict`` at submission, ``learn`` at the end. ``tdp_w``: full load of what a job requests."""

    def __init__(
        self, tdp_w: Callable[[Submission], float], coverage: float = COVERAGE, model: Extension[Model] | None = None
    ) -> None:
        self._predictor, self._bands = predictor_of(model, tdp_w), Bands(coverage)
        self._waiting: OrderedDict[Hashable, tuple[Prediction, Band | None]] = OrderedDict()
        self._alike: OrderedDict[Hashable, deque[tuple[float, float]]] = OrderedDict()  # drawn and expected watts

    def predict(self, job: Hashable, submission: Submission) -> Forecast:
        """``job``: by which ``learn`` finds what was said of it."""
        found = self._predictor.predict(submission)
        band = self._bands.of(submission.user, found.origin)
        self._waiting[job] = found, band
        if len(self._waiting) > MOST_WAITING:
            self._waiting.popitem(last=False)
        low_w, high_w = (found.typical_w * band.low, found.typical_w * band.high) if band else (None, None)
        expected_w = found.expected_w if found.origin in UNCORRECTED else self._corrected(submission, found)
        return Forecast(
            found.typical_w, expected_w, found.maximum_w, low_w, high_w, found.origin, found.similar
        )  # fmt: skip

    def learn(self, job: Hashable, submission: Submission, average_w: float, maximum_w: float | None = None) -> None:
        """The job has ended, or its meters have said enough. ``ValueError`` for watts that are not above 0."""
        self._predictor.learn(submission, average_w, maximum_w)
        if said := self._waiting.pop(job, None):
            found, band = said
            self._bands.learn(submission.user, found.origin, average_w / found.typical_w, band)
            if found.origin in UNCORRECTED:
                return
            alike = self._alike.setdefault(_alike(submission), deque(maxlen=LAST_ALIKE))
            alike.append((average_w, found.expected_w))
            self._alike.move_to_end(_alike(submission))
            if len(self._alike) > REQUESTS_KEPT:
                self._alike.popitem(last=False)

    def _corrected(self, submission: Submission, found: Prediction) -> float:
        alike = self._alike.get(_alike(submission), ())
        prior_w = PRIOR_ALIKE * found.expected_w
        drawn_w, expected_w = (prior_w + sum(watts) for watts in zip(*alike, strict=True)) if alike else (1.0, 1.0)
        return found.expected_w * drawn_w / expected_w


def _alike(submission: Submission) -> Hashable:
    return submission.user, submission.request, submission.request_s
