"""The watts of each rack over time: of a replay, or generated."""

from __future__ import annotations

import numpy as np

from twin.errors import TwinError
from twin.room.room_failures import Floats
from twin.room.room_spec import RoomSpec, Weather


def generated(spec: RoomSpec, steps: int, seed: int) -> Floats:
    """Watts ``[steps, racks]``: one utilisation of the room, and steps of each rack's own jobs."""
    random, load = np.random.default_rng(seed), spec.load
    hours = np.arange(steps) * spec.step_s / 3600.0
    room = load.mean + wandering(random, steps, load.room, load.room_h * 3600.0 / spec.step_s)
    room += load.day * np.sin((hours / 24.0 - 0.35) * 2 * np.pi)
    room -= load.week * ((hours / 24.0 % 7.0) >= 5.0)
    use = np.clip(room[:, None] + own_jobs(spec, steps, random), 0.0, 1.0)
    return np.asarray(load.idle_w + use * (load.most_w - load.idle_w))


def replayed(spec: RoomSpec, time_s: Floats, watts: Floats, steps: int, seed: int) -> Floats:
    """Watts ``[steps, racks]`` whose sum follows a replay's, the steps of its ``power.csv``, scaled so that the highest
    is a full room. Which rack draws how much is drawn; a replay that is shorter begins again."""
    if len(time_s) < 2 or len(time_s) != len(watts) or not np.isfinite([time_s, watts]).all():
        raise TwinError("a replay's power is at least two steps of finite times and watts")
    if not (np.diff(time_s) > 0).all() or watts.min() < 0 or watts.max() == 0:
        raise TwinError("a replay's power has ascending times and watts from 0 on")
    at = np.arange(steps) * spec.step_s % (time_s[-1] - time_s[0]) + time_s[0]
    share = watts[np.searchsorted(time_s, at, side="right") - 1] / watts.max()
    load = spec.load
    wanted = np.maximum(share * load.most_w, load.idle_w)  # of an average rack
    use = (wanted - load.idle_w) / (load.most_w - load.idle_w)
    use = use[:, None] + own_jobs(spec, steps, np.random.default_rng(seed)) * np.minimum(use, 1.0 - use)[:, None] * 2
    use -= (use.mean(1) - (wanted - load.idle_w) / (load.most_w - load.idle_w))[:, None]
    return np.asarray(load.idle_w + np.clip(use, 0.0, 1.0) * (load.most_w - load.idle_w))


def own_jobs(spec: RoomSpec, steps: int, random: np.random.Generator) -> Floats:
    """What each rack's jobs add to its utilisation ``[steps, racks]``: steps with a mean of 0."""
    begins = random.random((steps, spec.n_racks)) < spec.step_s / 3600.0 / spec.load.job_h
    levels = random.normal(0.0, spec.load.rack, (steps, spec.n_racks))
    last = np.maximum.accumulate(np.where(begins, np.arange(steps)[:, None], 0), axis=0)
    return np.asarray(np.take_along_axis(levels, last, axis=0))


def outdoor(weather: Weather, steps: int, step_s: float, seed: int) -> Floats:
    """Degrees outdoors over years that begin on the first of January."""
    hours = np.arange(steps) * step_s / 3600.0
    year = -weather.year_c * np.cos((hours / 8760.0 - 0.05) * 2 * np.pi)
    day = weather.day_c * np.sin((hours / 24.0 - 0.40) * 2 * np.pi)
    random = np.random.default_rng(seed)
    return np.asarray(
        weather.mean_c + year + day + wandering(random, steps, weather.weather_c, weather.lasts_h * 3600 / step_s)
    )


def wandering(
    random: np.random.Generator, steps: int, spread: float, lasts: float, shape: tuple[int, ...] = ()
) -> Floats:
    """Processes ``[steps, *shape]`` that return to 0, with standard deviation ``spread``, correlated over ``lasts``
    steps."""
    keeps = float(np.exp(-1.0 / lasts))
    found = random.normal(0.0, spread * np.sqrt(1.0 - keeps**2), (steps, *shape))
    value = random.normal(0.0, spread, shape)
    for step in range(steps):
        value = found[step] = value * keeps + found[step]
    return found
