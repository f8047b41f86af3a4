"""Watts at the temperature that a package would settle at, from a measurement that was too short for it to settle.

A heat sink takes minutes to settle, and leakage grows with temperature: a cold package draws some per cent less. Two
things are fitted to all windows of a session:

- temperature from watts: ``T(t) = T_air + sum of R_i (P filtered by exp(-t / tau_i)) + R_core P_core``, for a fast part
  (die) and a slow one (sink). A package shows its hottest core, which is above the die by what it draws itself:
  ``P_core = (P - P_idle) / w``. For given time constants this is linear in the rest. A session shows the sink's heat
  capacity, and hardly how long it takes to settle, so no single pair of time constants is chosen: each counts by how
  well it explains the session's temperatures and by what is known of heat sinks (``SINK_S``);
- leakage from temperature: it grows as ``exp(T / e)`` and depends on voltage and on the cores that are awake, not on
  what they compute. ``e`` is the silicon's, 33 to 100 K: a session's stays span too few kelvin to say it well, so each
  of ``E_FOLDS_K`` counts by how well it explains how watts change, and by what is known (``E_FOLD_K``). Per kelvin at
  ``AT_C`` it is ``w a V(u) + (1 - w) c``, with ``u`` the relative clock, ``V(u) = 0.5 + 0.5 u`` about its voltage, and
  ``w`` the share of a package's cores that are awake. ``a`` and ``c`` are what watts change by within stays, next to
  what is known of processors (``LEAKAGE``, ``ASLEEP``).

Three long stays at the start (``PROBE``) give temperature room to move: hot, cooling at the lowest clock, and idle.

What a window will still warm up by then is ``m + R x``: ``m`` by the filters' states, and ``R x`` by the leakage ``x``
that this adds, up to the power limit, where watts stay and the clock falls instead. The standard deviation of ``x``
has what time constants and coefficients leave open, and the form itself (``FORM``).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from calibration.measure.node_session import Dwell, Window
from pmu.readings import type_f64

FAST_S: Final = (4.0, 6.0, 8.0, 11.0, 16.0)
SLOW_S: Final = (30.0, 40.0, 52.0, 66.0, 84.0, 110.0, 145.0, 200.0)
"""Ours: time constants that are tried, of die and sink."""

SINK_S: Final = 77.0
SINK_FACTOR: Final = 1.35
"""Ours: sinks with their fans take this time, most of them within this factor (one standard deviation): what is known
before anything is measured. The middle of ``SLOW_S`` on a scale of factors."""

TOGETHER: Final = 64
STAY: Final = 8
"""Ours: what the form of the heat leaves over lasts some 16 s, so temperatures of so many neighbouring windows say no
more than one; watts of so many, those of a stay, err together."""

E_FOLDS_K: Final = (28.0, 36.0, 46.0, 58.0, 72.0, 90.0, 115.0)
"""Leakage grows by a factor of e in so many kelvin: those that are tried."""

E_FOLD_K: Final = 55.0
E_FOLD_FACTOR: Final = 1.4
"""Ours: what is known of it before anything is measured, one standard deviation either side: server processors double
their leakage in some 50 K (72 K for a factor of e), ControlPULP's published silicon in 23 K (33 K)."""

AT_C: Final = 60.0
"""Where leakage per kelvin is stated."""

LEAKAGE: Final = 0.25
ASLEEP: Final = 0.25
ASLEEP_APART: Final = 0.15
"""Ours: a loaded package's leakage is about so much of its watts, to the same either side; that of a core asleep so
much of one that is awake, and how far from it (one standard deviation)."""

FORM: Final = 0.1
"""Ours: one standard deviation of a correction, as a share of it, for what the form leaves out."""

MOST_PER_K: Final = 0.02
"""Ours: watts never change by more than this share per kelvin; leakage alone does (an e-fold in 50 K)."""

PROBE: Final = (("idle", 2.0), ("top", 40.0), ("bottom", 20.0), ("idle", 12.0))
"""Ours: seconds of the long stays at the start."""

STEADY_CLOCK: Final = 0.004
"""Ours: a clock that changes by more within a stay is being limited."""

LOWEST_V: Final = 0.5
"""Ours: the voltage at clock 0 over that at the top, on a line through what P-states of servers have."""

ROUNDS: Final = 12
"""More watts make more heat; a round leaves a tenth of the difference or less."""

TINY: Final = 1e-9
"""Keeps a square matrix solvable where two columns are alike."""

GAP_S: Final = 3.0
"""Ours: longer than any settling."""

SHORTEST_S: Final = 20.0
"""Ours: no correction from a shorter session."""

FEW_AWAKE: Final = 0.25
"""Ours: with fewer cores awake the hottest one says little about its die."""


@dataclass(frozen=True, slots=True)
class Heat:
    """The packages, which are alike: air temperature of each, kelvin per watt when settled, fast and slow part, time
    constants, all as the mean over what was tried, and what the best one leaves over."""

    air_c: tuple[float, ...]
    k_per_w: tuple[float, float]
    tau_s: tuple[float, float]
    error_c: float


@dataclass(frozen=True, slots=True)
class Leakage:
    """``a`` and ``c``, watts per kelvin of a package at ``AT_C``, and their covariance, if leakage grows by a factor of
    e in ``e_fold_k``. ``weight``: how much this counts among those that were tried."""

    e_fold_k: float
    per_k: type_f64
    covariance: type_f64
    weight: float


@dataclass(frozen=True, slots=True)
class Steady:
    """Corrections of a session. ``weights``: of the time constants that were tried, ``[n]``; ``settled_k_per_w``:
    kelvin per watt by each; ``missing_k``: by the begin of each window, what each package will still warm up by without
    more watts, ``[n, n_packages]``. ``top_khz``: the clock that ``u`` is relative to; ``awake``: by level, the share of
    each package's cores."""

    heat: Heat
    leakages: tuple[Leakage, ...]
    top_khz: float
    awake: Mapping[str, tuple[float, ...]]
    weights: type_f64
    settled_k_per_w: type_f64
    missing_k: Mapping[float, type_f64]

    def corrections_w(
        self, level: str, windows: Sequence[Window], limits_w: Sequence[float] = ()
    ) -> tuple[type_f64, type_f64]:
        """What to add to the watts of each package of one stay, in each of its windows ``[n_windows, n_packages]``, and
        the standard deviation of its mean over the stay, ``[n_packages]``."""
        watts = np.array([window.package_w for window in windows])
        celsius = np.array([window.celsius for window in windows])
        missing = np.stack([self.missing_k[window.begin_s] for window in windows], 1)  # [n, n_windows, n_packages]
        room = np.asarray(limits_w) - watts if len(limits_w) == watts.shape[1] else np.full(watts.shape, np.inf)
        forms = np.array([_regressors(share, _relative_clock(windows, self.top_khz)) for share in self.awake[level]])

        def more_w(per_k: type_f64, e_fold_k: float) -> type_f64:
            growth = np.exp((celsius - AT_C) / e_fold_k)
            now = np.clip(per_k * growth, 0.0, MOST_PER_K * watts) * e_fold_k
            more = np.zeros(missing.shape)
            for _ in range(ROUNDS):
                warmer = missing + self.settled_k_per_w[:, None, None] * np.minimum(more, np.maximum(room, 0.0))
                more = now * np.expm1(np.minimum(warmer / e_fold_k, 1.0))
            return more

        found, means, variances = np.zeros(watts.shape), [], []
        for one in self.leakages:
            slope = forms @ one.per_k
            apart = np.sqrt(np.einsum("pi,ij,pj->p", forms, one.covariance, forms))
            each = more_w(slope, one.e_fold_k)
            own: type_f64 = np.tensordot(self.weights, each, 1)
            mean = own.mean(0)
            by_heat = self.weights @ np.square(each.mean(1) - mean)
            by_leakage = np.tensordot(self.weights, more_w(slope + apart, one.e_fold_k), 1).mean(0) - mean
            found += one.weight * own
            means.append(mean)
            variances.append(by_heat + by_leakage**2 + (FORM * mean) ** 2)
        shares = np.array([one.weight for one in self.leakages])
        between = shares @ np.square(np.array(means) - found.mean(0))
        return found, np.sqrt(shares @ np.array(variances) + between)


@dataclass(frozen=True, slots=True)
class _Rows:
    """All windows of a session in order of time, ``[n]`` or ``[n, n_packages]``."""

    begin: type_f64
    end: type_f64
    watts: type_f64
    celsius: type_f64
    awake: type_f64
    idle_w: type_f64


def fit(idle: Sequence[Window], dwells: Sequence[Dwell], awake: Mapping[str, tuple[float, ...]]) -> Steady | None:
    """The corrections of a session, None where temperatures are missing or it was too short. ``awake``: by level, the
    share of each package's cores that run the kernel."""
    windows = [*idle, *(window for dwell in dwells for window in dwell.windows)]
    if not idle or not dwells or any(not one.celsius or len(one.celsius) != len(one.package_w) for one in windows):
        return None
    begins = [window.begin_s for window in windows]
    if max(begins) - min(begins) < SHORTEST_S:
        return None
    stays: list[type_stay] = [((0.0,) * len(windows[0].package_w), own) for own in _apart(idle)]
    stays += _loaded(dwells, awake)
    rows = _rows(stays, idle)
    tried = _tried(rows)
    weights = _weights(tried)
    top_khz = max((window.khz or 0.0 for window in windows), default=0.0)
    missing_k = np.stack([one.missing_k for one in tried], 1)
    by_begin = dict(zip(rows.begin.tolist(), missing_k, strict=True))
    settled = np.array([sum(one.heat.k_per_w) for one in tried])
    return Steady(_mean_heat(tried, weights), _leakages(stays, top_khz), top_khz, awake, weights, settled, by_begin)


type_stay = tuple[Sequence[float], Sequence[Window]]
"""The share of each package's cores that are awake, and the windows."""


def _loaded(dwells: Sequence[Dwell], awake: Mapping[str, tuple[float, ...]]) -> list[type_stay]:
    return [(awake[dwell.setting.level], dwell.windows) for dwell in dwells]


def _apart(windows: Sequence[Window]) -> list[tuple[Window, ...]]:
    """Idle windows by the times that they are of: the clock limit in force, and so the watts, may differ."""
    found: list[list[Window]] = []
    for one in sorted(windows, key=lambda window: window.begin_s):
        if not found or one.begin_s > found[-1][-1].begin_s + found[-1][-1].seconds + one.seconds:
            found.append([])
        found[-1].append(one)
    return [tuple(own) for own in found]


def _rows(stays: Sequence[type_stay], idle: Sequence[Window]) -> _Rows:
    rows = sorted(((one.begin_s, one, awake) for awake, windows in stays for one in windows), key=lambda row: row[0])
    begin = np.array([first for first, _, _ in rows])
    return _Rows(
        begin,
        begin + np.array([one.seconds for _, one, _ in rows]),
        np.array([one.package_w for _, one, _ in rows]),
        np.array([one.celsius for _, one, _ in rows]),
        np.array([awake for _, _, awake in rows]),
        np.mean([one.package_w for one in idle], 0),
    )


@dataclass(frozen=True, slots=True)
class _Tried:
    """One pair of time constants: the fit, and what each package will still warm up by, ``[n, n_packages]``."""

    heat: Heat
    missing_k: type_f64
    independent: float


def _tried(rows: _Rows) -> list[_Tried]:
    """Least squares for each pair of time constants. What the packages had not settled before the first window
    decays."""
    n, packages = rows.watts.shape
    core_w = np.where(rows.awake > 0, (rows.watts - rows.idle_w) / np.maximum(rows.awake, 1e-9), 0.0)
    filtered = {tau: _filtered(rows, tau) for tau in (*FAST_S, *SLOW_S)}
    is_used = ((rows.awake == 0) | (rows.awake >= FEW_AWAKE)).T.ravel()
    own = np.kron(np.eye(packages), np.ones((n, 1)))  # a column for each package
    target = rows.celsius.T.ravel()
    found: list[_Tried] = []
    for fast, slow in itertools.product(FAST_S, SLOW_S):
        cold = [np.tile(np.exp((rows.begin[0] - rows.end) / tau), packages)[:, None] * own for tau in (fast, slow)]
        shared = np.stack([one.T.ravel() for one in (filtered[fast], filtered[slow], core_w)], 1)
        columns = np.hstack([shared, own, *cold])
        used = columns[is_used]
        square = used.T @ used
        solution = np.linalg.solve(square + TINY * np.diag(np.diag(square) + TINY), used.T @ target[is_used])
        if min(solution[:3]) < 0:
            continue
        error = float(np.sqrt(np.mean(np.square(used @ solution - target[is_used]))))
        k_per_w = (float(solution[0]), float(solution[1]))
        decays = sum(
            part @ solution[first : first + packages]
            for part, first in zip(cold, (3 + packages, 3 + 2 * packages), strict=True)
        )
        missing = sum(k * (rows.watts - filtered[tau]) for k, tau in zip(k_per_w, (fast, slow), strict=True))
        missing = missing - np.reshape(decays, (packages, n)).T
        heat = Heat(tuple(solution[3 : 3 + packages].tolist()), k_per_w, (fast, slow), error)
        found.append(_Tried(heat, missing, len(used) / TOGETHER))
    if not found:  # where temperature does not follow watts, what is measured is what it is
        air = tuple(rows.celsius.mean(0).tolist())
        heat = Heat(air, (0.0, 0.0), (FAST_S[0], SLOW_S[0]), float(rows.celsius.std()))
        found = [_Tried(heat, np.zeros((n, packages)), 1.0)]
    return found


def _weights(tried: Sequence[_Tried]) -> type_f64:
    """How much each counts: its likelihood, by independent temperatures with the error that the best one leaves, times
    what is known of sinks."""
    error = np.array([max(one.heat.error_c, TINY) for one in tried])
    slow = np.array([one.heat.tau_s[1] for one in tried])
    far = np.log(slow / SINK_S) / np.log(SINK_FACTOR)
    logarithm = (
        -tried[0].independent * np.log(error)
        - far**2 / 2
        + np.log(np.gradient(np.log(SLOW_S)))[np.searchsorted(SLOW_S, slow)]
    )
    weights = np.exp(logarithm - logarithm.max())
    return np.asarray(weights / weights.sum())


def _mean_heat(tried: Sequence[_Tried], weights: type_f64) -> Heat:
    def mean(values: Sequence[Sequence[float]]) -> tuple[float, ...]:
        return tuple((weights @ np.array(values)).tolist())

    (k_fast, k_slow), (fast, slow) = (
        mean([one.heat.k_per_w for one in tried]),
        mean([one.heat.tau_s for one in tried]),
    )
    least = min(one.heat.error_c for one in tried)
    return Heat(mean([one.heat.air_c for one in tried]), (k_fast, k_slow), (fast, slow), least)


def _filtered(rows: _Rows, tau: float) -> type_f64:
    """Watts through a first-order low pass, at the end of each window. A short time between windows is the later one's
    settling; in a long one, as of a run that was stopped, the node was idle."""
    out = np.empty(rows.watts.shape)
    state, last = rows.idle_w.copy(), float(rows.begin[0])
    for row, (first, now, power) in enumerate(zip(rows.begin, rows.end, rows.watts, strict=True)):
        if first - last > GAP_S:
            state += (1 - float(np.exp(-(first - last) / tau))) * (rows.idle_w - state)
            last = float(first)
        state += (1 - float(np.exp(-(now - last) / tau))) * (power - state)
        out[row], last = state, float(now)
    return out


def _leakages(stays: Sequence[type_stay], top_khz: float) -> tuple[Leakage, ...]:
    """From how watts change with temperature within each stay, and what is known before; for each e-fold."""
    tried = [_leakage(stays, top_khz, e_fold_k) for e_fold_k in E_FOLDS_K]
    known = -np.square(np.log(np.array(E_FOLDS_K) / E_FOLD_K) / np.log(E_FOLD_FACTOR)) / 2
    logarithm = np.array([evidence for _, _, evidence in tried]) + known
    weights = np.exp(logarithm - logarithm.max())
    weights /= weights.sum()
    return tuple(
        Leakage(e_fold_k, per_k, covariance, float(weight))
        for e_fold_k, (per_k, covariance, _), weight in zip(E_FOLDS_K, tried, weights, strict=True)
    )


def _leakage(stays: Sequence[type_stay], top_khz: float, e_fold_k: float) -> tuple[type_f64, type_f64, float]:
    """``a`` and ``c``, their covariance, and the logarithm of how likely the changes of watts are with this e-fold."""
    rows: list[type_f64] = []
    changes: list[float] = []
    most_w = 0.0
    for awake, windows in stays:
        watts = np.array([one.package_w for one in windows])
        most_w = max(most_w, float(watts.mean(0).max()))
        if is_limited(windows):
            continue  # power was limited: warmer meant slower, not more watts
        u = _relative_clock(windows, top_khz)
        grown = e_fold_k * np.exp((np.array([one.celsius for one in windows]) - AT_C) / e_fold_k)
        for package, share in enumerate(awake):
            away = grown[:, package] - grown[:, package].mean()
            rows += list(away[:, None] * _regressors(share, u))
            changes += list(watts[:, package] - watts[:, package].mean())
    usual = LEAKAGE * most_w / e_fold_k
    prior = np.array([[1.0, 0.0], [-ASLEEP, 1.0]]) / np.array([[usual], [ASLEEP_APART * usual]])
    known = prior @ np.array([usual, ASLEEP * usual])
    matrix, target = np.reshape(rows, (-1, 2)), np.array(changes)
    precision = prior.T @ prior
    per_k, noise = np.array([usual, ASLEEP * usual]), 1.0
    for _ in range(ROUNDS):  # what is left over depends on the fit, and how much the fit counts on what is left over
        left = target - matrix @ per_k
        noise = max(float(np.mean(left**2)) if len(left) else 0.0, TINY) * STAY
        precision = matrix.T @ matrix / noise + prior.T @ prior
        per_k = np.linalg.solve(precision, matrix.T @ target / noise + prior.T @ known)
    far = prior @ per_k - known
    narrowed = np.linalg.slogdet(precision)[1] - np.linalg.slogdet(prior.T @ prior)[1]
    evidence = -(len(target) / STAY * np.log(noise) + float(far @ far) + float(narrowed)) / 2
    return np.maximum(per_k, 0.0), np.linalg.inv(precision), float(evidence)


def is_limited(windows: Sequence[Window]) -> bool:
    """Whether a power limit moved the clock."""
    clocks = [one.khz for one in windows if one.khz]
    return bool(clocks) and max(clocks) > (1 + STEADY_CLOCK) * min(clocks)


def _regressors(awake: float, u: float) -> type_f64:
    return np.array([awake * (LOWEST_V + (1 - LOWEST_V) * u), 1.0 - awake])


def _relative_clock(windows: Sequence[Window], top_khz: float) -> float:
    clocks = [one.khz for one in windows if one.khz]  # an idle CPU has none
    return float(np.mean(clocks)) / top_khz if clocks and top_khz else 0.0
