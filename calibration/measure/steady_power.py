"""Watts at the temperature that a package would settle at, from a measurement that was too short for it to settle.

A heat sink takes minutes to settle, and leakage grows with temperature: a cold package draws some per cent less. Two
things are fitted to all windows of a session:

- temperature from watts: ``T(t) = T_air + sum of R_i (P filtered by exp(-t / tau_i)) + R_core P_core``, for a fast part
  (die) and a slow one (sink). A package shows its hottest core, which is above the die by what it draws itself:
  ``P_core = (P - P_idle) / w``. For given time constants this is linear in the rest, so these are fitted and the time
  constants searched;
- watts from temperature: within a stay at one setting, watts change by ``s`` per kelvin. Leakage depends on voltage,
  temperature and the cores that are awake, not on what they compute: ``s = w a V(u) + (1 - w) c``, with ``u`` the
  relative clock, ``V(u) = 0.5 + 0.5 u`` about its voltage, and ``w`` the share of a package's cores that are awake.

Three long stays at the start (``PROBE``) give temperature room to move: hot, cooling at the lowest clock, and idle.

A point then settles at ``P + s dT / (1 - s R)``: ``dT`` is what it will still warm up by, by the filters' states, and R
the sum of ``R_i``. Its correction is a model: all of it is
the half of its 95 % interval. Where power is limited (RAPL), watts stay at the limit and the clock falls instead.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from calibration.measure.node_session import Dwell, Window
from pmu.readings import type_f64

FAST_S: Final = (2.0, 4.0, 8.0, 16.0)
SLOW_S: Final = (30.0, 45.0, 60.0, 80.0, 100.0, 140.0, 200.0)
"""Ours: time constants that are tried, of die and sink."""

MOST_PER_K: Final = 0.02
"""Ours: watts never change by more than this share per kelvin; leakage alone does (an e-fold in some 70 K)."""

UNCERTAIN: Final = 1.0
"""Ours: share of a correction that its interval has."""

PROBE: Final = (("idle", 2.0), ("top", 40.0), ("bottom", 20.0), ("idle", 12.0))
"""Ours: seconds of the long stays at the start."""

STEADY_CLOCK: Final = 0.004
"""Ours: a clock that changes by more within a stay is being limited."""

RIDGE: Final = 1e-3
"""Ours, square kelvin: what temperature must move by before a slope is believed."""

LOWEST_V: Final = 0.5
"""Ours: the voltage at clock 0 over that at the top, on a line through what P-states of servers have."""

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
    constants, and what the fit leaves over."""

    air_c: tuple[float, ...]
    k_per_w: tuple[float, float]
    tau_s: tuple[float, float]
    error_c: float


@dataclass(frozen=True, slots=True)
class Steady:
    """Corrections of a session. ``per_k``: ``a`` and ``c``, watts per kelvin of a package; ``top_khz``: the
    clock that ``u`` is relative to; ``awake``: by level, the share of each package's cores; ``missing_k``: by the begin
    of each window, what each package will still warm up by."""

    heat: Heat
    per_k: tuple[float, float]
    top_khz: float
    awake: Mapping[str, tuple[float, ...]]
    missing_k: Mapping[float, type_f64]

    def corrections_w(self, level: str, windows: Sequence[Window]) -> type_f64:
        """What to add to the watts of each package of these windows of one stay, ``[n_packages]``."""
        watts = np.mean([window.package_w for window in windows], 0)
        missing_k = np.mean([self.missing_k[window.begin_s] for window in windows], 0)
        u = _relative_clock(windows, self.top_khz)
        slopes = np.array([_regressors(share, u) @ np.array(self.per_k) for share in self.awake[level]])
        slopes = np.clip(slopes, 0.0, MOST_PER_K * watts)
        found: type_f64 = slopes * missing_k / np.maximum(1.0 - slopes * sum(self.heat.k_per_w), 0.5)
        return found


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
    none = (0.0,) * len(windows[0].package_w)
    stays = [(none, tuple(idle)), *((awake[dwell.setting.level], dwell.windows) for dwell in dwells)]
    rows = _rows(stays, idle)
    heat, missing_k = _heat(rows)
    top_khz = max((window.khz or 0.0 for window in windows), default=0.0)
    by_begin = dict(zip(rows.begin.tolist(), missing_k, strict=True))
    return Steady(heat, _slopes(stays, top_khz), top_khz, awake, by_begin)


def _rows(stays: Sequence[tuple[Sequence[float], Sequence[Window]]], idle: Sequence[Window]) -> _Rows:
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


def _heat(rows: _Rows) -> tuple[Heat, type_f64]:
    """Least squares over the time constants, and what each package will still warm up by in each window. What the
    packages had not settled before the first window decays."""
    n, packages = rows.watts.shape
    core_w = np.where(rows.awake > 0, (rows.watts - rows.idle_w) / np.maximum(rows.awake, 1e-9), 0.0)
    filtered = {tau: _filtered(rows, tau) for tau in (*FAST_S, *SLOW_S)}
    is_used = ((rows.awake == 0) | (rows.awake >= FEW_AWAKE)).T.ravel()
    own = np.kron(np.eye(packages), np.ones((n, 1)))  # a column for each package
    best: tuple[Heat, type_f64] | None = None
    for fast, slow in itertools.product(FAST_S, SLOW_S):
        cold = [np.tile(np.exp((rows.begin[0] - rows.end) / tau), packages)[:, None] * own for tau in (fast, slow)]
        shared = np.stack([one.T.ravel() for one in (filtered[fast], filtered[slow], core_w)], 1)
        columns = np.hstack([shared, own, *cold])
        target = rows.celsius.T.ravel()
        used = columns[is_used]
        square = used.T @ used
        solution = np.linalg.solve(square + TINY * np.diag(np.diag(square) + TINY), used.T @ target[is_used])
        error = float(np.sqrt(np.mean(np.square(columns[is_used] @ solution - target[is_used]))))
        if min(solution[:3]) < 0 or (best and error >= best[0].error_c):
            continue
        k_per_w = (float(solution[0]), float(solution[1]))
        decays = sum(
            part @ solution[first : first + packages]
            for part, first in zip(cold, (3 + packages, 3 + 2 * packages), strict=True)
        )
        missing = sum(k * (rows.watts - filtered[tau]) for k, tau in zip(k_per_w, (fast, slow), strict=True))
        missing = missing - np.reshape(decays, (packages, n)).T
        best = Heat(tuple(solution[3 : 3 + packages].tolist()), k_per_w, (fast, slow), error), missing
    # where temperature does not follow watts, what is measured is what it is
    air = tuple(rows.celsius.mean(0).tolist())
    return best or (Heat(air, (0.0, 0.0), (FAST_S[0], SLOW_S[0]), float(rows.celsius.std())), np.zeros((n, packages)))


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


def _slopes(stays: Sequence[tuple[Sequence[float], Sequence[Window]]], top_khz: float) -> tuple[float, float]:
    """``a`` and ``c`` from how watts change with temperature within each stay."""
    rows: list[type_f64] = []
    changes: list[float] = []
    for awake, windows in stays:
        clocks = [one.khz for one in windows if one.khz]
        if clocks and max(clocks) > (1 + STEADY_CLOCK) * min(clocks):
            continue  # power was limited: warmer meant slower, not more watts
        u = _relative_clock(windows, top_khz)
        celsius = np.array([one.celsius for one in windows])
        watts = np.array([one.package_w for one in windows])
        for package, share in enumerate(awake):
            away = celsius[:, package] - celsius[:, package].mean()
            rows += list(away[:, None] * _regressors(share, u))
            changes += list(watts[:, package] - watts[:, package].mean())
    if not rows:
        return 0.0, 0.0
    matrix, target = np.array(rows), np.array(changes)
    a, c = np.linalg.solve(matrix.T @ matrix + RIDGE * len(rows) * np.eye(2), matrix.T @ target)
    return float(a), float(c)


def _regressors(awake: float, u: float) -> type_f64:
    return np.array([awake * (LOWEST_V + (1 - LOWEST_V) * u), 1.0 - awake])


def _relative_clock(windows: Sequence[Window], top_khz: float) -> float:
    clocks = [one.khz for one in windows if one.khz]  # an idle CPU has none
    return float(np.mean(clocks)) / top_khz if clocks and top_khz else 0.0
