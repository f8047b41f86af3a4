"""The watts with which a job is admitted: what the predictor says, or so many that it rarely draws more.

A ``Guard`` states how rarely: at most the share ``violation`` of jobs. The watts are then the prediction times the
quantile of what ended jobs drew over what had been predicted for them, for each origin of a prediction on its own. Of n
ended jobs it is the one of rank (n + 1) (1 - violation), right for any distribution, as long as jobs to
come are like those that ended (split conformal prediction: Vovk et al., Algorithmic Learning in a Random World, 2005).
Fewer than 1 / violation ended jobs say nothing about so rare a case. Until then a job counts as what a calibrated node
was measured to draw under load, between its least and its most hungry kernel, all of that range equally likely (ours);
without a table, as full load.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec
import numpy as np

from cluster_agent.prediction.job_power import Origin, Prediction, Submission
from cluster_agent.prediction.models import Model, predictor_of
from cluster_agent.prediction.node_watts import NodeWatts
from cluster_agent.scheduler.power_phases import Admitted
from foundation.shell.extension import Extension
from foundation.shell.plain_text import say

LAST: Final = 1000
"""Ours: ended jobs that the quantile is taken of, for each origin."""


MOST_WAITING: Final = 200_000
"""Ours: jobs that were predicted and have not ended; the oldest are forgotten."""


class Guard(msgspec.Struct, frozen=True):
    """At most the share ``violation`` of jobs shall draw more than they were admitted with."""

    violation: float
    node: NodeWatts | None = None


class AdmittedPower:
    """``admit`` at submission, ``learn`` at the end. ``cores_w``: full load of the cores that a job requests, where no
    table says it; ``others_w``: of its accelerators."""

    def __init__(
        self,
        cores_w: Callable[[Submission], float],
        others_w: Callable[[Submission], float],
        of: Admitted,
        guard: Guard | None = None,
        model: Extension[Model] | None = None,
        say: Callable[[str], None] = say,
        clock_s: Callable[[], float] | None = None,
    ) -> None:
        """``say``, ``clock_s``: as of ``models.SafePredictor``."""
        self._cores_w, self._others_w, self._of, self._guard = cores_w, others_w, of, guard
        self._predictor = predictor_of(model, self._full_w, say, clock_s)
        self._nearest = self._predictor.nearest
        self._has_model = model is not None
        self.model_failed = False
        """Whether there is a model and it did not answer for the job that was admitted last."""
        self._known: dict[tuple[Submission, bool], Prediction] = {}  # a cache; emptied by ``learn``
        self._predicted: dict[int, Prediction] = {}
        self._ratios: dict[Origin, deque[float]] = {}

    @property
    def trouble(self) -> str:
        """Why the site's model does not predict; empty: there is none, or it does."""
        return self._predictor.trouble

    def admit(self, job: int, submission: Submission, without_model: bool = False) -> float:
        """Watts of the whole job. ``without_model``: by the nearest past jobs, since the model failed to answer when
        this was live."""
        asks, key = self._nearest if without_model else self._predictor, (submission, without_model)
        found = self._known.get(key) or asks.predict(submission)
        self._known[key] = found
        self.model_failed = self._has_model and found.origin != "model"
        if self._guard is None:
            return found.watts(self._of)
        self._predicted[job] = found
        if len(self._predicted) > MOST_WAITING:  # jobs that were cancelled teach nothing, and never end here
            del self._predicted[next(iter(self._predicted))]
        ratio = self._quantile(found.origin, self._guard.violation)
        return self._unproven_w(submission, self._guard) if ratio is None else found.typical_w * ratio

    def learn(self, job: int, submission: Submission, watts: float) -> None:
        """The job has ended; its watts are taken as both mean and maximum."""
        if (predicted := self._predicted.pop(job, None)) is not None:
            self._ratios.setdefault(predicted.origin, deque(maxlen=LAST)).append(watts / predicted.typical_w)
        self._predictor.learn(submission, watts)
        self._known.clear()

    def _full_w(self, submission: Submission) -> float:
        node = self._guard.node if self._guard else None
        cores_w = self._cores_w(submission) if node is None else node.most_w * submission.cores
        return cores_w + self._others_w(submission)

    def _unproven_w(self, submission: Submission, guard: Guard) -> float:
        """What counts while too few jobs have ended: the table's range of watts, else full load."""
        full_w = self._full_w(submission)
        if guard.node is None:
            return full_w
        return full_w - guard.violation * (guard.node.most_w - guard.node.least_w) * submission.cores

    def _quantile(self, origin: Origin, violation: float) -> float | None:
        """What ended jobs drew over their predictions is above it for the stated share; None: too few to say."""
        ratios = self._ratios.get(origin, ())
        rank = math.ceil((len(ratios) + 1) * (1 - violation))
        return None if rank > len(ratios) else float(np.partition(np.array(ratios), rank - 1)[rank - 1])
