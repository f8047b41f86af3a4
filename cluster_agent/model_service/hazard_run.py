"""A version of a room's hazard: trained, judged hour by hour on what came after it, and predicting now.

It is what ``model_run`` is for watts, with hours in place of jobs, and days in place of a user's days. The *error* is
the share of hours whose next six were predicted wrongly, and a first model has to beat the last value. A champion whose
error has risen above what it had on unseen hours of its training is rolled back to none: nobody predicts then, and
nothing is lowered. A model that says 1 for ever ends so.
"""

from __future__ import annotations

import time
from typing import Final, NamedTuple

import numpy as np
from msgspec.structs import replace

from cluster_agent.model_service.model_registry import HAZARD, Card, Change, Metrics, Registry, Version
from cluster_agent.model_service.model_run import Hazard, ModelState, RunState, candidate_of, write_state
from cluster_agent.model_service.on_line_errors import ALARM_STEP, DAY_S, WINDOW, Drift, Pairs
from cluster_agent.model_service.room_model import RoomModel
from cluster_agent.thermal_hazard.hazard_features import Places, Readings, features, labels
from cluster_agent.thermal_hazard.hazard_label import Bools, Floats, shares, stuck, window_steps
from cluster_agent.thermal_hazard.hazard_parts import CHOSEN, judged
from foundation.shell.names import first_of

SEEN_H: Final = 32
"""Hours of readings from which all features of the last one are known."""

NAMED: Final = 3
"""Ours: how many stuck sensors a line names."""


class Hours(NamedTuple):
    """Hours of which it is known whether a version was right. ``when_s``: Unix seconds."""

    when_s: Floats
    is_wrong: Bools


def train_hazard(registry: Registry, readings: Readings, nodes: list[str], share: float) -> Version:
    """A new version; ``share``: of readings above their thresholds that is a hazard. ``ClusterError`` for too few
    readings. The caller has ``locked``."""
    of = judged(readings, share)
    wrong, last_wrong = (of.chance >= of.model.threshold) != of.label, of.now != of.label
    metrics = Metrics(len(of.at), _mean(wrong), _mean(last_wrong))
    if gain := _pairs(_times(readings)[np.searchsorted(readings.hours(), of.at)], last_wrong, wrong).gain():
        metrics = replace(metrics, gain=gain.mean, gain_low=gain.low, gain_high=gain.high)
    card = Card(
        kind=HAZARD, name=registry.name, version=0, jobs=int(len(readings.hours()) * CHOSEN),
        known_s=readings.start_s + len(readings.inlet_c) * CHOSEN * readings.step_s, error=metrics.error,
        model_sha256="", metrics_sha256="", shares={},
    )  # fmt: skip
    return registry.add(card, metrics, RoomModel(nodes, of.threshold_c, of.model, share))


def run_hazard(registry: Registry, readings: Readings, nodes: list[str]) -> ModelState:
    """A run: judge champion and candidate on the hours since their training, look for drift, predict. The caller has
    ``locked``."""
    registry.sweep()
    number, shadow = registry.champion().version, candidate_of(registry)
    champion = registry.version(number) if number else None
    candidate = registry.version(shadow) if shadow else None
    state, lines, hazard = RunState(champion=number, candidate=shadow), list[str](), None
    if champion is not None:
        own = _sound(champion.room, readings, nodes, lines)
        first = _hours(champion, own)
        state.drift = _drift(champion, first)
        if candidate is not None and candidate.room.share == champion.room.share:  # else their hours are others
            second = _hours(candidate, _sound(candidate.room, readings, nodes, []))
            when_s, one, other = np.intersect1d(first.when_s, second.when_s, return_indices=True)
            if len(when_s):
                state.pairs = _pairs(when_s, first.is_wrong[one], second.is_wrong[other])
        if problem := state.drift.problem:
            why = f"version {number} was rolled back: {problem}"
            registry.change(
                Change(0, number, time.time(), "clusterctl models run", why, is_rollback=True, is_alarm=True)
            )  # fmt: skip
            lines.append(f"ALARM: {why}; nobody predicts")
        else:
            hazard = _now(champion.room, own, lines)
    state.ended_s = time.time()
    write_state(registry, state)
    after = registry.champion()
    return ModelState(
        registry.name, after.version, candidate_of(registry), after.alarm, state, None, lines, hazard, HAZARD
    )  # fmt: skip


def _sound(room: RoomModel, readings: Readings, nodes: list[str], lines: list[str]) -> Readings:
    """The readings of the model's nodes, without those of stuck sensors, which are named."""
    own = room.of(readings, nodes)
    is_stuck = stuck(own.inlet_c, room.threshold_c, own.step_s)
    if now := [room.nodes[place] for place in np.flatnonzero(is_stuck[-1])]:
        lines.append(f"the inlets of {first_of(now, NAMED)} have been the same for a day and are left out")
    own.inlet_c[is_stuck] = np.nan
    return own


def _hours(version: Version, own: Readings) -> Hours:
    room = version.room
    now, later = labels(own, room.threshold_c)
    when_s = _times(own)
    known: Places = np.flatnonzero(~np.isnan(now) & ~np.isnan(later) & (when_s > version.card.known_s))
    if not len(known):
        return Hours(np.empty(0), np.empty(0, bool))
    chance = room.model.chance(features(own, room.threshold_c)[known])
    return Hours(when_s[known], (chance >= room.model.threshold) != (later[known] >= room.share))


def _drift(version: Version, hours: Hours) -> Drift:
    newest = hours.is_wrong[-WINDOW:]
    error, was = (_mean(newest) if len(newest) else None), version.card.error
    return Drift(len(newest), {}, error, None if was is None else was + ALARM_STEP, noun="hours")


def _pairs(when_s: Floats, first: Bools, second: Bools) -> Pairs:
    """By day the hours, and how many of them each has predicted wrongly."""
    pairs = Pairs()
    for day, one, other in zip((when_s // DAY_S).astype(int).tolist(), first.tolist(), second.tolist(), strict=True):
        row = pairs.clusters.setdefault(f"{day}/0", [0.0] * 3)
        for column, value in enumerate((1.0, one, other)):
            row[column] += value
    return pairs


def _now(room: RoomModel, own: Readings, lines: list[str]) -> Hazard | None:
    """The chance at the last reading; None where too much is missing."""
    hourly, window = round(3600.0 / own.step_s), window_steps(own.step_s)
    length = min(len(own.inlet_c), SEEN_H * hourly)
    last = slice(len(own.inlet_c) - (length - (length - window) % hourly), None)
    power_w = None if own.power_w is None else own.power_w[last]
    start_s = own.start_s + (last.start or 0) * own.step_s
    seen = Readings(start_s, own.step_s, own.inlet_c[last], power_w)
    if length < window or np.isnan(shares(seen.inlet_c, room.threshold_c, own.step_s)[-1]):
        lines.append("most inlet temperatures of the last six hours are missing: nothing is predicted")
        return None
    given = features(seen, room.threshold_c)[-1:]
    reasons = [name for name, _ in room.model.reasons(given[0])]
    return Hazard(float(room.model.chance(given)[0]), room.model.threshold, reasons)


def _times(readings: Readings) -> Floats:
    """Unix seconds of ``readings.hours()``."""
    return np.asarray(readings.start_s + readings.hours() * readings.step_s, np.float64)


def _mean(values: Bools) -> float:
    return float(values.mean())
