"""Prediction of thermal hazard: labels, features, the model and its scores. Rooms are EMULATED."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from cluster_agent.errors import ClusterError
from cluster_agent.thermal_hazard.hazard_features import NAMES, Readings, features, labels
from cluster_agent.thermal_hazard.hazard_label import SHARE, shares, thresholds
from cluster_agent.thermal_hazard.hazard_model import HazardModel, best_threshold, train
from cluster_agent.thermal_hazard.hazard_scores import f1_of, pr_auc, scores
from twin.room.room_failures import drawn
from twin.room.room_spec import read_room
from twin.room.room_year import year

STEP_S = 900.0
DAYS = 60


@cache
def room(name: str) -> Readings:
    """Sixty days with fouling and trips, or with decaying fans ("unseen")."""
    kinds = (("decay", 40.0),) if name == "unseen" else (("fouling", 14.0), ("trip", 10.0))
    failures = [
        one for place, (kind, rate) in enumerate(kinds) for one in drawn(kind, DAYS * 24.0, rate, 4, place + len(name))
    ]
    found = year(read_room(), name, failures, DAYS * 86_400.0)
    return Readings(0.0, STEP_S, found.inlet_c, found.rack_w.sum(1), found.outdoor_c)


def known(readings: Readings, threshold_c: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, the label of the window that begins and of the one that ends, where both are known."""
    now, later = labels(readings, threshold_c)
    is_known = ~np.isnan(now) & ~np.isnan(later)
    return features(readings, threshold_c)[is_known], later[is_known] >= SHARE, now[is_known] >= SHARE


@cache
def trained() -> tuple[HazardModel, np.ndarray]:
    threshold_c = thresholds(room("first").inlet_c)
    given, label, _ = known(room("first"), threshold_c)
    return train(given, label, *known(room("second"), threshold_c)[:2]), threshold_c


def test_a_threshold_is_a_nodes_own_quantile_and_a_window_is_the_share_above_it() -> None:
    inlet_c = np.arange(1000.0)[:, None] + np.array([0.0, 100.0, 200.0])
    threshold_c = thresholds(inlet_c)
    assert threshold_c == pytest.approx([949.05, 1049.05, 1149.05])
    found = shares(inlet_c, threshold_c, STEP_S)
    assert np.isnan(found[:23]).all() and found[23] == 0.0
    assert found[949] == 0.0 and found[950] == pytest.approx(1 / 24) and found[999] == 1.0


def test_a_missing_reading_counts_neither_way_and_a_window_of_which_most_is_missing_has_no_label() -> None:
    inlet_c = np.full((48, 4), 20.0)
    inlet_c[:, 0] = 30.0
    threshold_c = np.full(4, 25.0)
    inlet_c[:, 3] = np.nan
    assert shares(inlet_c, threshold_c, STEP_S)[-1] == pytest.approx(1 / 3)
    inlet_c[:, 2] = np.nan
    assert np.isnan(shares(inlet_c, threshold_c, STEP_S)[-1])
    with pytest.raises(ClusterError, match="no sensor has 500 readings"):
        thresholds(inlet_c)


def test_nothing_is_used_at_an_hour_that_was_not_known_then() -> None:
    """Neither what comes after it nor, in the label of the window that ends, either."""
    sixty = room("unseen")
    threshold_c, cut, days = thresholds(sixty.inlet_c), 24 * 4 * 4, slice(24 * 4 * 6)
    assert sixty.power_w is not None and sixty.outdoor_c is not None
    whole = Readings(0.0, STEP_S, sixty.inlet_c[days], sixty.power_w[days], sixty.outdoor_c[days])

    def until(end: int, later: float) -> Readings:
        parts = (whole.inlet_c, whole.power_w, whole.outdoor_c)
        changed = [np.concatenate([one[:end], np.full_like(one[end:], later)]) for one in parts if one is not None]
        return Readings(0.0, STEP_S, *changed)

    hours = int((whole.hours() < cut).sum())
    expected = features(whole, threshold_c)[:hours]
    for later in (0.0, 80.0, np.nan):
        other = until(cut, later)
        assert features(other, threshold_c)[:hours] == pytest.approx(expected, nan_ok=True)
        assert labels(other, threshold_c)[0][:hours] == pytest.approx(
            labels(whole, threshold_c)[0][:hours], nan_ok=True
        )
    assert expected.shape[1] == len(NAMES)


def test_a_label_is_that_of_the_window_that_begins() -> None:
    threshold_c = thresholds(room("first").inlet_c)
    now, later = labels(room("first"), threshold_c)
    assert later[:-6] == pytest.approx(now[6:])
    assert np.isnan(later[-6:]).all()


def test_the_model_beats_the_last_value_on_a_kind_of_failure_that_it_has_not_seen() -> None:
    """On sixty days; on whole years the table is in docs/hazard.md."""
    model, threshold_c = trained()
    given, label, now = known(room("unseen"), threshold_c)
    found = scores(model.chance(given), model.threshold, label)
    assert found.f1 > f1_of(now, label) + 0.03
    assert found.pr_auc > pr_auc(now.astype(float), label) + 0.1


def test_the_reasons_of_a_chance_are_the_largest_parts_of_it() -> None:
    model, threshold_c = trained()
    given, _, _ = known(room("unseen"), threshold_c)
    hour = given[int(np.argmax(model.chance(given)))]
    reasons = model.reasons(hour)
    parts = [part for _, part in reasons]
    assert len(reasons) == 3 and parts == sorted(parts, reverse=True) and parts[-1] > 0
    assert {name for name, _ in reasons} <= set(NAMES)


@pytest.mark.parametrize("silent", ["half of the racks", "all", "power and outdoors"])
def test_what_is_silent_leaves_a_chance_that_is_a_chance(silent: str) -> None:
    model, threshold_c = trained()
    of = room("unseen")
    inlet_c = of.inlet_c.copy()
    if silent != "power and outdoors":
        inlet_c[:, : 72 if silent == "half of the racks" else None] = np.nan
    is_measured = silent == "half of the racks"
    gone = Readings(0.0, STEP_S, inlet_c, of.power_w if is_measured else None, of.outdoor_c if is_measured else None)
    chance = model.chance(features(gone, threshold_c))
    assert np.isfinite(chance).all() and (chance >= 0).all() and (chance <= 1).all()


def test_a_sensor_that_is_stuck_at_80_degrees_is_one_sensor() -> None:
    """One of 144: its share is 0.7 %, so it makes no hazard, and hardly moves the prediction."""
    model, threshold_c = trained()
    of = room("unseen")
    stuck = of.inlet_c.copy()
    stuck[:, 5] = 80.0
    before, after = (
        model.chance(features(Readings(0.0, STEP_S, one, of.power_w, of.outdoor_c), threshold_c))
        for one in (of.inlet_c, stuck)
    )
    changed = ((before >= model.threshold) != (after >= model.threshold)).mean()
    assert changed < 0.1
    assert shares(np.where(np.arange(144) == 5, 80.0, 10.0)[None].repeat(48, 0), threshold_c, STEP_S)[-1] < SHARE


def test_too_little_of_either_label_trains_nothing() -> None:
    given = np.random.default_rng(0).normal(size=(100, len(NAMES)))
    for label in (np.zeros(100, bool), np.ones(100, bool), np.arange(100) < 19):
        with pytest.raises(ClusterError, match="of 100 hours are in hazard"):
            train(given, label, given, label)


def test_scores_are_those_of_the_rows_of_hours() -> None:
    label = np.zeros(730, bool)
    label[10:20] = label[100:110] = True
    predicted = np.zeros(730)
    predicted[12:25] = predicted[300:302] = predicted[400:401] = 1.0  # one event is foreseen, one is missed
    found = scores(predicted, 0.5, label)
    assert (found.events, found.missed, found.false_alarms_per_month) == (2, 1, 2.0)
    assert found.lead_h == 4.0
    assert found.f1 == pytest.approx(2 * 8 / (16 + 20))


def test_the_area_under_precision_over_recall_counts_ties_together() -> None:
    label = np.array([True, False, True, False])
    assert pr_auc(np.array([0.9, 0.8, 0.7, 0.1]), label) == pytest.approx(0.5 * 1.0 + 0.5 * 2 / 3)
    assert pr_auc(np.zeros(4), label) == 0.5
    assert np.isnan(pr_auc(np.zeros(4), np.zeros(4, bool)))
    assert best_threshold(np.array([0.9, 0.2, 0.7, 0.1]), label)[1] == 1.0
