"""What is said of a job before it runs, and learned once it has ended: typical and expected watts, and a band.

``typical_w`` is what such a job mostly draws: it is right for one job. ``expected_w`` is the mean of such jobs, which a
few hungry ones raise: it is right for sums, of a partition or of a month. Showing the mean, or adding typical watts,
is wrong by as much as the two differ (Jensen's inequality).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final

import msgspec

from cluster_agent.prediction.bands import COVERAGE, Band, Bands
from cluster_agent.prediction.job_power import Prediction, Submission
from cluster_agent.prediction.models import Model, predictor_of
from foundation.shell.extension import Extension

MOST_WAITING: Final = 200_000
"""Ours: jobs that were predicted and have not ended; the oldest are forgotten."""


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

    def predict(self, job: Hashable, submission: Submission) -> Forecast:
        """``job``: by which ``learn`` finds what was said of it."""
        found = self._predictor.predict(submission)
        band = self._bands.of(submission.user, found.origin)
        self._waiting[job] = found, band
        if len(self._waiting) > MOST_WAITING:
            self._waiting.popitem(last=False)
        low_w, high_w = (found.typical_w * band.low, found.typical_w * band.high) if band else (None, None)
        return Forecast(
            found.typical_w, found.expected_w, found.maximum_w, low_w, high_w, found.origin, found.similar
        )  # fmt: skip

    def learn(self, job: Hashable, submission: Submission, average_w: float, maximum_w: float | None = None) -> None:
        """The job has ended, or its meters have said enough. ``ValueError`` for watts that are not above 0."""
        self._predictor.learn(submission, average_w, maximum_w)
        if said := self._waiting.pop(job, None):
            found, band = said
            self._bands.learn(submission.user, found.origin, average_w / found.typical_w, band)
