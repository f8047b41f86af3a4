"""Prediction of thermal hazard on the emulated room. EMULATED: no room was measured.

*Room*: how often windows are in hazard, and what the last value is worth as a prediction, for the years of
``twin/data/room-failures.csv``. ``train-*`` and ``choose-1`` have fouling, heat and trips; every other year has one
kind of failure. Thresholds are of the training years alone.

*Model*: logistic regression, trained on ``train-*``; penalty and threshold chosen on ``choose-1``; all others are
judged. *Causal*: node thresholds and weights of the training years. *Leaking*: both of the training years and the
judged year together, as a score over a whole period has it. Differences are of F1, with 95 % intervals over weeks
(bootstrap of 2,000). *Boosting*, where LightGBM is installed: the same features, years and choice of the threshold, on
one processor. *Latency*: from the readings of 49 hours to the chance, at 3,312 nodes and a reading a minute; processor
time, and elapsed.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from benchmarks.experiment import save
from cluster_agent.thermal_hazard.hazard_features import NAMES, Readings, features, labels
from cluster_agent.thermal_hazard.hazard_label import SHARE, Bools, Floats, shares, thresholds, window_steps
from cluster_agent.thermal_hazard.hazard_model import HazardModel, best_threshold, train
from cluster_agent.thermal_hazard.hazard_scores import Scores, f1_of, scores
from foundation.shell.text_table import render
from twin.room.room_air import RoomRecord
from twin.room.room_failures import read_failures
from twin.room.room_spec import read_room
from twin.room.room_year import YEAR_S, year

SHARES: Final = (SHARE, 0.10, 0.15)
WEEK_H: Final = 168
DRAWS: Final = 2000
UNSEEN: Final = ("decay", "drift")
SEEN: Final = ("fouling", "heat")
NODES, KEPT_H = 3312, 49
TREES: Final = (50, 100, 200, 400)


@dataclass(frozen=True)
class Year:
    name: str
    record: RoomRecord
    step_s: float


def years(length_s: float) -> list[Year]:
    spec = read_room()
    return [Year(name, year(spec, name, of, length_s), spec.step_s) for name, of in read_failures().items()]


def pairs(values: Floats, share: float, step_s: float) -> tuple[Bools, Bools]:
    """At each full hour: the label of the window that ends, and of the one that begins."""
    hour, ahead = round(3600 / step_s), window_steps(step_s)
    now = np.arange(ahead - 1, len(values) - ahead, hour)
    return values[now] >= share, values[now + ahead] >= share


def room(found: Sequence[Year]) -> list[dict[str, object]]:
    threshold_c = thresholds(np.concatenate([one.record.inlet_c for one in found if one.name.startswith("train")]))
    rows = []
    for one in found:
        values = shares(one.record.inlet_c, threshold_c, one.step_s)
        row: dict[str, object] = {"year": one.name}
        for share in SHARES:
            now, later = pairs(values, share, one.step_s)
            row[f"rate_{share:g}"], row[f"last_value_f1_{share:g}"] = float(later.mean()), f1_of(now, later)
        rows.append(row)
    return rows


@dataclass(frozen=True)
class Part:
    """Hours of which the features, the label of the window that begins and of the one that ends are known."""

    features: Floats
    label: Bools
    now: Bools


def part(one: Year, threshold_c: Floats, share: float = SHARE) -> Part:
    record = one.record
    readings = Readings(0.0, one.step_s, record.inlet_c, record.rack_w.sum(1), record.outdoor_c)
    now, later = labels(readings, threshold_c)
    known = ~np.isnan(now) & ~np.isnan(later)
    return Part(features(readings, threshold_c)[known], later[known] >= share, now[known] >= share)


def boosted(parts: Sequence[Part], choosing: Part) -> tuple[Callable[[Floats], Floats], float] | None:
    """What gives chances, and their threshold, both from the causal parts; None without LightGBM. The number of trees
    is that with the best F1 on the part to choose on."""
    try:
        lightgbm = importlib.import_module("lightgbm")
    except ModuleNotFoundError:
        return None
    given, label = np.concatenate([one.features for one in parts]), np.concatenate([one.label for one in parts])
    options = {"objective": "binary", "num_leaves": 15, "learning_rate": 0.05, "min_data_in_leaf": 100, "seed": 1,
               "num_threads": 1, "deterministic": True, "force_row_wise": True, "verbose": -1}  # fmt: skip
    booster = lightgbm.train(options, lightgbm.Dataset(given, label.astype(float)), max(TREES))
    found = []
    for trees in TREES:
        threshold, f1 = best_threshold(booster.predict(choosing.features, num_iteration=trees), choosing.label)
        found.append((f1, trees, threshold))
    _, trees, threshold = max(found)
    return lambda features: np.asarray(booster.predict(features, num_iteration=trees)), threshold


def trained(parts: Sequence[Part], choosing: Part) -> HazardModel:
    given, label = np.concatenate([one.features for one in parts]), np.concatenate([one.label for one in parts])
    return train(given, label, choosing.features, choosing.label)


def difference(parts: Sequence[tuple[Part, Bools]]) -> dict[str, float]:
    """F1 of predictions over all these years, of the last value, and the difference, with its interval over weeks."""
    weeks = []
    for of, predicted in parts:
        for at in range(0, len(of.label), WEEK_H):
            label, now, own = (each[at : at + WEEK_H] for each in (of.label, of.now, predicted))
            weeks.append([(own & label).sum(), own.sum(), (now & label).sum(), now.sum(), label.sum()])
    counts = np.array(weeks, float)
    picked = np.random.default_rng(5).integers(len(counts), size=(DRAWS, len(counts)))
    own_f1, last_f1 = _f1s(counts.sum(0)[None])
    low, high = np.quantile(np.subtract(*_f1s(counts[picked].sum(1))), [0.025, 0.975])
    found = {"f1": own_f1[0], "last_value": last_f1[0], "difference": own_f1[0] - last_f1[0], "low": low, "high": high}
    return {name: float(value) for name, value in found.items()}


def _f1s(counts: Floats) -> tuple[Floats, Floats]:
    both, own, last_both, last, label = counts.T
    return 2 * both / (own + label), 2 * last_both / (last + label)


def models(found: Sequence[Year]) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """Of each judged year, and of the kinds together."""
    training = [one for one in found if one.name.startswith("train")]
    choosing = next(one for one in found if one.name.startswith("choose"))
    threshold_c = thresholds(np.concatenate([one.record.inlet_c for one in training]))
    parts = [part(one, threshold_c) for one in training]
    model, boosting = trained(parts, part(choosing, threshold_c)), boosted(parts, part(choosing, threshold_c))
    rows, predictions, of_boosting = list[dict[str, object]](), {}, {}
    for one in found:
        if one.name.startswith(("train", "choose")):
            continue
        of = part(one, threshold_c)
        chance = model.chance(of.features)
        predictions[one.name] = (of, chance >= model.threshold)
        leaking_c = thresholds(np.concatenate([each.record.inlet_c for each in (*training, one)]))
        leaked = part(one, leaking_c)
        other = trained([*(part(each, leaking_c) for each in training), leaked], leaked)
        boosted_scores = None
        if boosting is not None:
            chances, threshold = boosting[0](of.features), boosting[1]
            of_boosting[one.name] = (of, chances >= threshold)
            boosted_scores = scores(chances, threshold, of.label)
        rows.append({
            "year": one.name,
            "boosting": boosted_scores,
            "last_value": scores(of.now.astype(float), 0.5, of.label),
            "causal": scores(chance, model.threshold, of.label),
            "leaking": scores(other.chance(leaked.features), other.threshold, leaked.label),
        })  # fmt: skip
    kinds = {"not seen": UNSEEN, "seen": SEEN, "without a precursor": ("trip",)}
    together: list[dict[str, object]] = []
    for by, of_model in (("logistic", predictions), ("boosting", of_boosting)):
        for name, of_kinds in kinds.items():
            if some := [each for year_name, each in of_model.items() if year_name.startswith(of_kinds)]:
                together.append({"by": by, "kinds": f"{', '.join(of_kinds)} ({name})", **difference(some)})
    return rows, together


def latency() -> tuple[float, float]:
    """Processor seconds and elapsed ones: the least of three."""
    random, steps = np.random.default_rng(1), KEPT_H * 60
    inlet_c = random.normal(22.0, 1.0, (steps, NODES))
    readings = Readings(0.0, 60.0, inlet_c, random.normal(1e6, 1e4, steps), random.normal(20.0, 1.0, steps))
    threshold_c = np.full(NODES, 24.0)
    model = HazardModel([0.0] * len(NAMES), [1.0] * len(NAMES), [0.1] * len(NAMES), 0.0, 0.5)
    took = []
    for _ in range(3):
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        model.chance(features(readings, threshold_c))
        took.append((time.process_time() - began_cpu_s, time.perf_counter() - began_s))
    return min(took)


def _cells(row: dict[str, object]) -> tuple[str, ...]:
    last, causal, leaking, boosting = (row[name] for name in ("last_value", "causal", "leaking", "boosting"))
    assert isinstance(last, Scores) and isinstance(causal, Scores) and isinstance(leaking, Scores)
    return (
        str(row["year"]), f"{100 * last.rate:.1f}", f"{last.f1:.2f}", f"{causal.f1:.2f}", f"{leaking.f1:.2f}",
        f"{boosting.f1:.2f}" if isinstance(boosting, Scores) else "-",
        f"{last.pr_auc:.2f}", f"{causal.pr_auc:.2f}", f"{causal.lead_h:.1f}",
        f"{causal.events - causal.missed} of {causal.events}", f"{last.events - last.missed}",
        f"{causal.false_alarms_per_month:.1f}", f"{last.false_alarms_per_month:.1f}",
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks thermal_hazard", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a quarter of each year")
    options = parser.parse_args(arguments)
    found = years(YEAR_S / 4 if options.quick else YEAR_S)
    rows = room(found)
    print("hours in hazard in % and F1 of the last value, at 5, 10 and 15 % of readings (published 19.5, 8.0, 3.8 %)")
    print(render(
        ("year", *(f"{100 * share:g} %: hours" for share in SHARES), *(f"{100 * share:g} %: F1" for share in SHARES)),
        [(str(row["year"]), *(f"{100 * row[f'rate_{s:g}']:.1f}" for s in SHARES),  # type: ignore[operator]
          *(f"{row[f'last_value_f1_{s:g}']:.2f}" for s in SHARES)) for row in rows],
    ))  # fmt: skip
    judged, together = models(found)
    print(render(
        ("judged year", "hours %", "F1: last value", "causal", "leaking", "boosting", "PR-AUC: last value", "causal",
         "lead h", "events foreseen", "last value", "false alarms a month", "last value"),
        [_cells(row) for row in judged],
    ))  # fmt: skip
    print(render(
        ("by", "kinds", "F1", "last value", "difference", "95 %"),
        [(str(row["by"]), str(row["kinds"]), *(f"{row[name]:.3f}" for name in ("f1", "last_value", "difference")),
          f"{row['low']:+.3f} to {row['high']:+.3f}") for row in together],
    ))  # fmt: skip
    cpu_s, took_s = latency()
    print(
        f"latency {cpu_s:.2f} s of a processor, {took_s:.2f} s elapsed, at {NODES} nodes (published 37 s, 34 of them"
        " extraction)"
    )
    save(
        "thermal_hazard",
        {"room": rows, "judged": judged, "together": together, "latency_cpu_s": cpu_s, "latency_s": took_s},
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
