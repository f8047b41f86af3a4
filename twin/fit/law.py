"""The power law that is fitted: volts over clocks for the card, some shares of its watts for each workload.

    watts(f) = idle + (ready - idle) V^2 f + core V^2 r + memory s + awake            (V, f relative to the top clock)

``s`` is the workload's speed, relative to that at the top clock, and ``r`` the rate that the cores switch at: the
speed (*work*), or the clock whatever they wait for (*clock*). Energy per piece of work goes with V^2, so a stalled core
that is clock-gated draws no *core* watts. *memory* goes with the traffic, at a voltage of its own. *awake* follows
neither: memory and links that are out of their idle states. For packages with a recorded uncore clock there is a fourth
share, which goes with that clock.

Given the volts, the law is linear in the shares. So the fit has two floors: the shares of each workload by least
squares (no share is negative), below volts and ready watts, which all workloads have in common, by Gauss-Newton steps
with damping. All residuals are relative to the measured watts.

Shares of a workload of which few watts are known follow from those and from the population: a Gaussian prior whose mean
depends on what is known of the workload without its watts at other clocks (the speed it loses, and its watts at the
top clock).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from twin.fit.sweep import Curve

type_f64 = npt.NDArray[np.float64]
Rate = Literal["work", "clock"]

KNOTS: Final = 7
"""Ours: points of the volts curve at most; straight lines between them."""

LOWEST_VOLTS: Final = 0.65
"""Ours: the lowest voltage over that at the top clock, which a fit goes below only for much better residuals. Volts and
shares explain the same fall of power; parts of these generations run from some 0.7 V to 1.05 V."""

POINT_ERROR: Final = 0.012
"""Ours: relative standard deviation of a measured point from the law; about that of the residuals."""

_LOWEST_PRICE: Final = 30.0
_BEND_PRICE: Final = 0.3
_STEP: Final = 1e-4
_ROUNDS: Final = 40
_PRIOR_DEVIATION: Final = 0.5
_RIDGE: Final = 0.3
_EXTRA_DEVIATION: Final = 0.03
_FEW: Final = 6


class Card(msgspec.Struct, frozen=True):
    """What the workloads of a card have in common. ``volts``: (MHz, volts relative to the top clock), ascending."""

    volts: tuple[tuple[float, float], ...]
    idle_w: float
    ready_w: float
    rate: Rate

    @property
    def top_mhz(self) -> float:
        """The highest clock."""
        return self.volts[-1][0]


class Bench:
    """The curves of a sweep as arrays [workloads, points], padded; ``weight`` is 1 / watts, 0 where there is none."""

    def __init__(self, curves: Sequence[Curve], rate: Rate, top_mhz: float | None = None) -> None:
        self.curves = tuple(curves)
        self.rate: Rate = rate
        most = max(len(curve.clock_mhz) for curve in curves)
        self.top_mhz = top_mhz or max(curve.clock_mhz[-1] for curve in curves)
        self.clock, self.speed, self.watts = (np.ones((len(curves), most)) for _ in range(3))
        self.uncore = np.ones((len(curves), most)) if all(curve.uncore for curve in curves) else None
        self.weight = np.zeros((len(curves), most))
        for row, curve in enumerate(curves):
            n = len(curve.clock_mhz)
            self.clock[row, :n] = curve.clock_mhz
            self.clock[row, n:] = curve.clock_mhz[-1]
            self.speed[row, :n] = curve.speed
            self.watts[row, :n] = curve.power_w
            self.weight[row, :n] = 1.0 / np.asarray(curve.power_w)
            if self.uncore is not None:
                self.uncore[row, :n] = curve.uncore
        self.top_w = np.array([curve.power_w[-1] for curve in curves])
        self.lost = np.array([1.0 - curve.speed[0] if curve.has_speed else 0.0 for curve in curves])
        self.has_speed = all(curve.has_speed for curve in curves)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The names of the shares, in the order of ``shapes``."""
        memory = ("memory_w",) if self.has_speed else ()
        uncore = ("uncore_w",) if self.uncore is not None else ()
        return ("core_w", *memory, "awake_w", *uncore)

    def known(self, which: Literal["all", "both", "top"]) -> type_f64:
        """The weights of the points that an estimate may use: all, the lowest and highest clock, the highest."""
        weight = np.zeros_like(self.weight)
        for row, curve in enumerate(self.curves):
            last = len(curve.clock_mhz) - 1
            places = {"all": list(range(last + 1)), "both": [0, last], "top": [last]}[which]
            weight[row, places] = self.weight[row, places]
        return weight

    def shapes(self, card: Card) -> tuple[type_f64, type_f64]:
        """Watts without work [workloads, points], and the shape of each share [workloads, points, shares]."""
        volt = np.interp(self.clock, *np.array(card.volts).T)
        clock = self.clock / self.top_mhz
        base = card.idle_w + (card.ready_w - card.idle_w) * volt**2 * clock
        columns = [volt**2 * (self.speed if self.rate == "work" else clock)]
        if self.has_speed:
            columns.append(self.speed)
        columns.append(np.ones_like(clock))
        if self.uncore is not None:
            columns.append(self.uncore)
        return base, np.stack(columns, axis=-1)


class Prior(msgspec.Struct, frozen=True):
    """What is expected of shares, in parts of a workload's watts above ready at the top clock: for the workload with
    these features the mean ``features @ slopes``, and about it a covariance."""

    slopes: type_f64
    covariance: type_f64

    def mean(self, bench: Bench) -> type_f64:
        """Expected shares of each workload."""
        return np.asarray(_features(bench) @ self.slopes)


def knots_of(curves: Sequence[Curve]) -> tuple[float, ...]:
    """Clocks of the points of the volts curve: those measured if they are few, else some of them, evenly spread."""
    clocks = np.unique([clock for curve in curves for clock in curve.clock_mhz])
    if len(clocks) <= KNOTS:
        return tuple(float(clock) for clock in clocks)
    return tuple(float(clock) for clock in np.quantile(clocks, np.linspace(0.0, 1.0, KNOTS), method="nearest"))


def broad(shares: int) -> Prior:
    """A prior that says almost nothing."""
    return Prior(np.concatenate([np.full((1, shares), 1.0 / shares), np.zeros((2, shares))]),
                 np.eye(shares) * _PRIOR_DEVIATION**2)  # fmt: skip


def estimate(bench: Bench, card: Card, weight: type_f64, prior: Prior | None = None) -> tuple[type_f64, type_f64]:
    """Shares of each workload in watts [workloads, shares], from the points that ``weight`` is not 0 at, and the watts
    that the law then gives [workloads, points]."""
    base, shapes = bench.shapes(card)
    prior = prior or broad(shapes.shape[-1])
    scale = np.maximum(bench.top_w - card.ready_w, 0.02 * bench.top_w)  # no workload is quite without work
    exact = np.linalg.inv(prior.covariance)
    design = shapes * (weight * scale[:, None] / POINT_ERROR)[..., None]
    goal = (bench.watts - base) * weight / POINT_ERROR
    normal = np.einsum("wpi,wpj->wij", design, design) + exact
    right = np.einsum("wpi,wp->wi", design, goal) + prior.mean(bench) @ exact
    shares = _not_negative(normal, right) * scale[:, None]
    return shares, base + np.einsum("wpi,wi->wp", shapes, shares)


def _not_negative(normal: type_f64, right: type_f64) -> type_f64:
    """Minimum of x N x / 2 - r x over x >= 0 for each row: the best of all choices of which x are 0 (few shares)."""
    count, k = right.shape
    best, best_cost = np.zeros((count, k)), np.zeros(count)
    for size in range(1, k + 1):
        for chosen in itertools.combinations(range(k), size):
            part = np.ix_(range(count), chosen, chosen)
            x = np.linalg.solve(normal[part], right[:, chosen][..., None])[..., 0]
            cost = -0.5 * np.einsum("wi,wi->w", x, right[:, chosen])
            better = (x >= 0).all(axis=1) & (cost < best_cost)
            best_cost = np.where(better, cost, best_cost)
            full = np.zeros((count, k))
            full[:, chosen] = x
            best = np.where(better[:, None], full, best)
    return best


def _features(bench: Bench) -> type_f64:
    """What is known of a workload: 1, the speed it loses at its lowest clock, the logarithm of its watts."""
    return np.stack([np.ones(len(bench.top_w)), bench.lost, np.log(bench.top_w / 100.0)], axis=1)


def learn_prior(bench: Bench, card: Card) -> Prior:
    """What the shares of these workloads say about those of others. Of few workloads only the mean is taken."""
    shares, _ = estimate(bench, card, bench.known("all"))
    parts = shares / np.maximum(bench.top_w - card.ready_w, 0.02 * bench.top_w)[:, None]
    features = _features(bench)
    if len(parts) < _FEW:
        features = features * np.array([1.0, 0.0, 0.0])
    shrunk = features.T @ features + np.diag([1e-6, _RIDGE, _RIDGE])
    slopes = np.linalg.solve(shrunk, features.T @ parts)
    errors = parts - features @ slopes
    freedom = max(len(parts) - features.shape[1], 1)
    spread = _EXTRA_DEVIATION if len(parts) >= _FEW else 0.2
    covariance = errors.T @ errors / freedom + spread**2 * np.eye(parts.shape[1])
    return Prior(np.asarray(slopes, np.float64), np.asarray(covariance, np.float64))


# --- volts and ready watts ---


def fit_card(curves: Sequence[Curve], rate: Rate, idle_w: float, knots: tuple[float, ...] | None = None) -> Card:
    """The card that the law with free shares follows the measured watts best for."""
    bench, places = Bench(curves, rate), knots or knots_of(curves)
    start = np.concatenate([np.full(len(places) - 1, np.log(0.35 / (len(places) - 1))), [np.log(max(idle_w, 10.0))]])
    weight = bench.known("all")

    def residuals(theta: type_f64) -> type_f64:
        card = _card(theta, places, idle_w, rate)
        _, law_w = estimate(bench, card, weight)
        errors = ((law_w - bench.watts) * weight)[weight > 0]
        return np.concatenate([errors, 2e-3 * (theta - start), _odd_volts(card)])

    return _card(_least_squares(residuals, start), places, idle_w, rate)


def _odd_volts(card: Card) -> type_f64:
    """What a volts curve has against it: that it begins below ``LOWEST_VOLTS``, and where it bends down (volts per
    megahertz rise with the clock on all parts that were looked at)."""
    mhz, volt = np.array(card.volts).T
    slopes = np.diff(volt) / np.diff(mhz) * card.top_mhz
    return np.append(_BEND_PRICE * np.minimum(np.diff(slopes), 0.0), _LOWEST_PRICE * min(0.0, volt[0] - LOWEST_VOLTS))


def _card(theta: type_f64, places: tuple[float, ...], idle_w: float, rate: Rate) -> Card:
    """Logarithms of the falls of the volts between the points, from the lowest up, and of ready above idle."""
    falls = np.exp(theta[:-1])
    volt = np.append(np.maximum(1.0 - np.cumsum(falls[::-1])[::-1], 0.05), 1.0)
    pairs = tuple((float(mhz), float(v)) for mhz, v in zip(places, volt, strict=True))
    return Card(pairs, idle_w, idle_w + float(np.exp(theta[-1])), rate)


def _least_squares(residuals: Callable[[type_f64], type_f64], start: type_f64) -> type_f64:
    """Levenberg-Marquardt with numeric slopes."""
    theta, damping = start.copy(), 1e-2
    errors = residuals(theta)
    cost = float(errors @ errors)
    for _ in range(_ROUNDS):
        slopes = np.stack([(residuals(theta + _STEP * unit) - errors) / _STEP for unit in np.eye(len(theta))], axis=1)
        normal, down = slopes.T @ slopes, -slopes.T @ errors
        while damping < 1e6:
            tried = theta + np.clip(np.linalg.solve(normal + damping * np.eye(len(theta)), down), -1.0, 1.0)
            tried_errors = residuals(tried)
            gain = cost - float(tried_errors @ tried_errors)
            if gain > 0:
                break
            damping *= 4.0
        else:
            break
        theta, errors, cost, damping = tried, tried_errors, cost - gain, max(damping / 4.0, 1e-8)
        if gain < 1e-7 * cost:
            break
    return np.asarray(theta)
