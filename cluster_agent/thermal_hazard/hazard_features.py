"""What is known at an hour that may say whether the next six hours are in hazard.

From the inlet temperatures: the share of readings above their thresholds now and over the last hours, and how far the
sensors are from their thresholds, as quantiles over the room, with the change of these over 1, 3, 6 and 24 hours. A
failure in one part of a room moves the upper quantiles alone. From the site, where it is measured: the power of the
room, and the air outdoors, with what a day ago followed on this hour. And the hour of the day. Nothing is used at an
hour that was not known then. A missing reading counts as none, and a feature that is missing as its mean in training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from cluster_agent.thermal_hazard.hazard_label import Floats, shares, window_steps

Places = npt.NDArray[np.intp]

DAY_S: Final = 86_400.0
QUANTILES: Final = (0.25, 0.5, 0.75, 0.9, 0.97)
CHANGES_H: Final = (1, 3, 6, 24)
NAMES: Final = (
    *(f"share above, {hours} h" for hours in (1, 3, 6, 24)),
    "log share, 1 h",
    "log share, 6 h",
    *(f"margin {100 * quantile:g} %" for quantile in QUANTILES),
    *(f"margin {100 * q:g} %, change over {hours} h" for q in QUANTILES for hours in CHANGES_H),
    "warming sensors, 6 h",
    "warming sensors, 24 h",
    "power",
    "power, change over 6 h",
    "power, change over 24 h",
    "outdoors",
    "outdoors, change over 6 h",
    "outdoors, change of the last day",
    "outdoors, what a day ago followed",
    "hour, sine",
    "hour, cosine",
)


@dataclass(frozen=True)
class Readings:
    """A room as its site measures it: degrees ``[steps, sensors]``, one every ``step_s`` from ``start_s`` (Unix) on;
    the watts of the room and degrees outdoors ``[steps]`` where they are measured. NaN: missing."""

    start_s: float
    step_s: float
    inlet_c: Floats
    power_w: Floats | None = None
    outdoor_c: Floats | None = None

    def hours(self) -> Places:
        """The steps that end an hour, as indices: from the first full window on."""
        every = max(round(3600.0 / self.step_s), 1)
        return np.arange(window_steps(self.step_s) - 1, len(self.inlet_c), every, dtype=np.intp)


def features(readings: Readings, threshold_c: Floats) -> Floats:
    """``[hours, len(NAMES)]``: of each of ``readings.hours()``; NaN where something is missing."""
    hourly = round(3600.0 / readings.step_s)
    at = readings.hours()
    margin_c = _means(readings.inlet_c - threshold_c, at, hourly)
    above = _above(readings, threshold_c)
    parts = [_means(above, at, hours * hourly) for hours in (1, 3, 6, 24)]
    parts += [np.log(parts[0] + 0.01), np.log(parts[2] + 0.01)]
    levels = _quantiles(margin_c)
    parts += list(levels)
    parts += [_change(level, hours) for level in levels for hours in CHANGES_H]
    parts += [_warming(margin_c, hours) for hours in (6, 24)]
    power = _site(readings.power_w, at, hourly)
    parts += [power, _change(power, 6), _change(power, 24)]
    outdoor = _site(readings.outdoor_c, at, hourly)
    followed = _before(outdoor, 18) - _before(outdoor, 24)
    parts += [outdoor, _change(outdoor, 6), _change(outdoor, 24), followed]
    hour = (readings.start_s + at * readings.step_s) / DAY_S * 2 * np.pi
    parts += [np.sin(hour), np.cos(hour)]
    return np.stack(parts, axis=1)


def labels(readings: Readings, threshold_c: Floats) -> tuple[Floats, Floats]:
    """Of each of ``readings.hours()``: the share above in the window that ends, and in the one that begins (NaN while
    it is not over)."""
    values, at = shares(readings.inlet_c, threshold_c, readings.step_s), readings.hours()
    later = np.concatenate([values, np.full(window_steps(readings.step_s), np.nan)])
    return values[at], later[at + window_steps(readings.step_s)]


def _above(readings: Readings, threshold_c: Floats) -> Floats:
    """The share of present readings above their thresholds at each step."""
    counts = (~np.isnan(readings.inlet_c) & ~np.isnan(threshold_c)).sum(1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((readings.inlet_c > threshold_c).sum(1) / np.where(counts == 0, np.nan, counts))


def _means(values: Floats, at: Places, length: int) -> Floats:
    """Of the last ``length`` values up to each index, without the missing ones; fewer at the beginning."""
    total, count = (
        np.concatenate([np.zeros((1, *values.shape[1:])), np.cumsum(one, axis=0)])
        for one in (np.nan_to_num(values), ~np.isnan(values))
    )
    first = np.maximum(at + 1 - length, 0)
    present = count[at + 1] - count[first]
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((total[at + 1] - total[first]) / np.where(present == 0, np.nan, present))


def _quantiles(margin_c: Floats) -> Floats:
    """``[len(QUANTILES), hours]`` over the sensors that are there."""
    ordered = np.sort(margin_c, axis=1)  # NaN last
    present = (~np.isnan(margin_c)).sum(1)
    found = np.full((len(QUANTILES), len(margin_c)), np.nan)
    rows = np.flatnonzero(present)
    for place, quantile in enumerate(QUANTILES):
        found[place, rows] = ordered[rows, np.round(quantile * (present[rows] - 1)).astype(int)]
    return found


def _before(values: Floats, hours: int) -> Floats:
    """What was so many hours ago; NaN at the beginning."""
    return np.concatenate([np.full((min(hours, len(values)), *values.shape[1:]), np.nan), values[:-hours]])


def _change(values: Floats, hours: int) -> Floats:
    return np.asarray(values - _before(values, hours))


def _warming(margin_c: Floats, hours: int) -> Floats:
    """The share of sensors that are warmer by half a degree than so many hours ago; NaN if none was there then."""
    change_c = _change(margin_c, hours)
    known = (~np.isnan(change_c)).sum(1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((change_c > 0.5).sum(1) / np.where(known == 0, np.nan, known))


def _site(values: Floats | None, at: Places, hourly: int) -> Floats:
    return np.full(len(at), np.nan) if values is None else _means(values, at, hourly)
