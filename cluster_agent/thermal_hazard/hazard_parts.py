"""A room's readings in three parts, by time: the first half trains, the next quarter chooses, the last one judges."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from cluster_agent.errors import WrongUseError
from cluster_agent.thermal_hazard.hazard_features import DAY_S, Places, Readings, features, labels
from cluster_agent.thermal_hazard.hazard_label import WINDOW_S, Bools, Floats, thresholds
from cluster_agent.thermal_hazard.hazard_model import HazardModel, train

LEAST_DAYS: Final = 28
"""Ours: of all parts together."""

TRAINED, CHOSEN = 0.5, 0.75
"""Where these parts end."""


class Judged(NamedTuple):
    """Thresholds and weights know nothing of the last part. ``at``: steps of the hours by which it is judged; of each
    ``chance``, ``label`` (of the window that begins) and ``now`` (of the one that ends)."""

    threshold_c: Floats
    model: HazardModel
    at: Places
    chance: Floats
    label: Bools
    now: Bools


def judged(readings: Readings, share: float) -> Judged:
    """``WrongUseError`` for too few days, ``ClusterError`` for too few hours in hazard, or without."""
    days = len(readings.inlet_c) * readings.step_s / DAY_S
    if days < LEAST_DAYS:
        raise WrongUseError(f"{days:.0f} days of readings: to train and to judge takes {LEAST_DAYS}")
    steps = len(readings.inlet_c)
    threshold_c = thresholds(readings.inlet_c[: int(steps * TRAINED)])
    now, later = labels(readings, threshold_c)
    given, at = features(readings, threshold_c), readings.hours()
    known = ~np.isnan(now) & ~np.isnan(later)
    ahead = WINDOW_S / readings.step_s / steps  # a label looks so far into the next part
    place = at / steps
    train_on, choose_on = known & (place < TRAINED - ahead), known & (place >= TRAINED) & (place < CHOSEN - ahead)
    judge_on = known & (place >= CHOSEN)
    label = later >= share
    model = train(given[train_on], label[train_on], given[choose_on], label[choose_on])
    chance = model.chance(given[judge_on])
    return Judged(threshold_c, model, at[judge_on], chance, label[judge_on], now[judge_on] >= share)
