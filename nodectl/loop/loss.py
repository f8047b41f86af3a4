"""Slowdown and saving as the policies estimate them, summed over a run.

Nobody runs the job twice, so a slowdown can only be estimated: for each interval a policy gives how much longer it took
than at a free clock (``loss``) and how many watts less were drawn (``saved_w``). An interval of ``d`` seconds at loss
``l`` would have taken ``d / (1 + l)``, hence the time lost is ``d * l / (1 + l)``. CPUs count by how busy they were: an
idle CPU's clock slows nobody down. Where a policy gives no estimate (NaN), nothing is assumed; ``coverage`` is the
share of the time that has one.
"""

from __future__ import annotations

import msgspec
import numpy as np

from nodectl.policies.api import Request
from pmu.readings import type_f64


class Estimate(msgspec.Struct, frozen=True):
    """One side of the node over a run; None where it is unknown.

    ``slowdown``: share of the time at free clocks (0.02 = 2 % longer), mean over the clocks; ``worst_slowdown``: that
    of the slowest clock; ``saved_j``: joules saved over the same intervals; ``coverage``: the share of the time for
    which the policy gave an estimate.
    """

    slowdown: float | None
    worst_slowdown: float | None
    saved_j: float | None
    coverage: float

    def saving(self, energy_j: float) -> float | None:
        """The energy saved as a share of that of a run at free clocks, which is also shorter; negative if it cost
        more."""
        if self.saved_j is None or not energy_j > 0:
            return None
        free_j = (energy_j + self.saved_j) / (1 + (self.slowdown or 0.0))
        return 1 - energy_j / free_j if free_j > 0 else None


class LossAccount:
    """Sums of one side's estimates, one entry per clock (CPU or GPU)."""

    def __init__(self, size: int) -> None:
        self._all_s = np.zeros(size)
        self._known_s = np.zeros(size)
        self._lost_s = np.zeros(size)
        self._saved_j = 0.0
        self._is_saving_known = False

    def add(self, request: Request, weight_s: type_f64) -> None:
        """Count one interval; ``weight_s`` ``[size]`` is the time each clock was in use during it."""
        is_known = np.isfinite(request.loss)
        lost_s = weight_s * request.loss / (1 + request.loss)
        self._all_s += weight_s
        np.add(self._known_s, weight_s, out=self._known_s, where=is_known)
        np.add(self._lost_s, lost_s, out=self._lost_s, where=is_known)

    def add_saving(self, request: Request, elapsed_s: float) -> None:
        """Count the watts saved over one interval of ``elapsed_s``."""
        known_w = request.saved_w[np.isfinite(request.saved_w)]
        if known_w.size:
            self._is_saving_known = True
            self._saved_j += float(known_w.sum()) * elapsed_s

    def estimate(self) -> Estimate:
        """What is known by now."""
        all_s, known_s, lost_s = (float(a.sum()) for a in (self._all_s, self._known_s, self._lost_s))
        has_known = known_s > lost_s
        # ours: a clock used for a moment is not "the worst"
        in_use = (self._known_s > self._lost_s) & (self._known_s > 0.1 * self._known_s.max(initial=0.0))
        slowdowns = self._lost_s[in_use] / (self._known_s[in_use] - self._lost_s[in_use])
        return Estimate(
            slowdown=lost_s / (known_s - lost_s) if has_known else None,
            worst_slowdown=float(slowdowns.max()) if in_use.any() else None,
            saved_j=self._saved_j if self._is_saving_known else None,
            coverage=known_s / all_s if all_s > 0 else 0.0,
        )
