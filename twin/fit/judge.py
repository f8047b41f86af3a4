"""How well the fitted law predicts: residuals, and the watts of workloads that the fit has not seen.

*Left out*: volts, ready watts and the population's shares are fitted to the other workloads, from a cold start. Then
some watts of the one that was left out are given (at its highest and lowest clock, or at the highest alone), and the
watts at the clocks between or below are compared with the measured ones. Speeds are given throughout: predicting these
is another matter. Errors are relative to the measured watts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

from twin.fit.law import Bench, Card, Rate, estimate, fit_card, knots_of, learn_prior, type_f64
from twin.fit.sweep import Curve


class Errors(msgspec.Struct, frozen=True):
    """Sizes of relative errors over so many points, per cent."""

    points: int
    median_pct: float
    p95_pct: float
    worst_pct: float


class WorkloadErrors(Errors, frozen=True):
    """Errors of several workloads, with the workload of the worst."""

    worst: str


class Verdict(msgspec.Struct, frozen=True):
    """``residual``: all watts given. ``two_clocks``, ``top_clock``: the workload left out of the fit, and its watts at
    these clocks given; None with fewer than two workloads."""

    residual: WorkloadErrors
    two_clocks: WorkloadErrors | None
    top_clock: WorkloadErrors | None
    worst_of: dict[str, tuple[float, ...]]  # per workload the worst of the three, per cent


class Fitted(msgspec.Struct, frozen=True):
    """A card, the shares in watts of each of its workloads by kind (``Bench.kinds``), and the verdict."""

    card: Card
    shares_w: dict[str, dict[str, float]]
    verdict: Verdict


def fit_and_judge(curves: Sequence[Curve], rate: Rate, idle_w: float) -> Fitted:
    """Fit the law to the curves, then to all but each of them."""
    knots = knots_of(curves)
    card = fit_card(curves, rate, idle_w, knots)
    bench = Bench(curves, rate)
    shares, law_w = estimate(bench, card, bench.known("all"))
    residual = _relative(bench, law_w, "all")
    two, top = _left_out(curves, rate, idle_w, knots)
    worst_of = {
        curve.workload: tuple(_worst(errors.get(curve.workload)) for errors in (residual, two, top)) for curve in curves
    }
    return Fitted(
        card=card,
        shares_w={
            curve.workload: dict(zip(bench.kinds, map(float, row), strict=True))
            for curve, row in zip(curves, shares, strict=True)
        },
        verdict=Verdict(errors_of(residual), _errors_or_none(two), _errors_or_none(top), worst_of),
    )


def _left_out(
    curves: Sequence[Curve], rate: Rate, idle_w: float, knots: tuple[float, ...]
) -> tuple[dict[str, type_f64], dict[str, type_f64]]:
    """Per workload the errors with it left out of the fit: given its watts at two clocks, and at the top clock."""
    both: dict[str, type_f64] = {}
    top: dict[str, type_f64] = {}
    for out in curves if len(curves) > 1 else ():
        others = [curve for curve in curves if curve is not out]
        card = fit_card(others, rate, idle_w, knots)
        prior = learn_prior(Bench(others, rate, knots[-1]), card)
        bench = Bench([out], rate, knots[-1])
        both |= _relative(bench, estimate(bench, card, bench.known("both"), prior)[1], "both")
        top |= _relative(bench, estimate(bench, card, bench.known("top"), prior)[1], "top")
    return both, top


def _relative(bench: Bench, law_w: type_f64, given: Literal["all", "both", "top"]) -> dict[str, type_f64]:
    """Per workload the errors at the points that were not given (at all points if all were)."""
    known = bench.known(given) > 0
    errors: dict[str, type_f64] = {}
    for row, curve in enumerate(bench.curves):
        n = len(curve.clock_mhz)
        seen = np.ones(n, bool) if given == "all" else ~known[row, :n]
        errors[curve.workload] = (law_w[row, :n] / bench.watts[row, :n] - 1.0)[seen]
    return errors


def _worst(errors: type_f64 | None) -> float:
    return float("nan") if errors is None or not len(errors) else float(100 * np.abs(errors).max())


def _errors_or_none(errors: dict[str, type_f64]) -> WorkloadErrors | None:
    return errors_of(errors) if errors else None


def errors_of(errors: dict[str, type_f64]) -> WorkloadErrors:
    """The errors of all workloads in one."""
    every = summary(np.concatenate(list(errors.values())))
    worst = max(errors, key=lambda name: _worst(errors[name]))
    return WorkloadErrors(**msgspec.structs.asdict(every), worst=worst)


def summary(errors: type_f64) -> Errors:
    """Of relative errors: predicted / measured - 1, as shares."""
    size = 100 * np.abs(errors)
    return Errors(
        points=len(size),
        median_pct=float(np.median(size)),
        p95_pct=float(np.percentile(size, 95)),
        worst_pct=float(size.max()),
    )
