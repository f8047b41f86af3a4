"""What it is worth to lower the budget ahead of a predicted thermal hazard. EMULATED: no room was measured.

Each judged year of ``thermal_hazard`` runs four times in the same weather, load, failures and noise: *without* any
action; lowered whenever the *last value* is in hazard; whenever the *model* of the training years predicts one; and
whenever an *oracle* does, which knows the labels of the run without action. Each hour a prediction may request the
next hour, within the bounds of the cluster agent: at most so many hours of any 24 (``budget_lowering``). The budget is
the full power of all racks. While it is lowered, all racks that draw more than their idle power are slowed alike.

*Above*: hours in which an inlet is above 27 degrees (the end of what ASHRAE recommends) and 32 (of what it allows for
class A1), without the noise of the sensors. *Work lost*: of the joules above idle, those that were not drawn. In truth
a slower processor loses less, and what waits is not lost. How far and how long the budget is lowered, and for a hazard
of which share of the readings, is chosen on ``choose-1``: the least hours above 27 degrees of those that lose at most
1 % of the work.

*Compared*: by year, two actions in the same year; the mean difference over the judged years, with its 95 % interval by
Student's t. A year is what was drawn independently of all others: load, weather, failures and noise. Months of one year
are not, since they share its weather and a failure lasts for weeks. Years with trips are counted apart, since nothing
announces those.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from benchmarks.experiment import save
from benchmarks.thermal_hazard import Year, part, trained, years
from cluster_agent.errors import WrongUseError
from cluster_agent.thermal_hazard.budget_lowering import HOUR_S, Lowering
from cluster_agent.thermal_hazard.hazard_features import Readings, features, labels
from cluster_agent.thermal_hazard.hazard_label import Floats, shares, thresholds
from cluster_agent.thermal_hazard.hazard_model import HazardModel
from foundation.shell.text_table import render
from foundation.student import mean_interval
from twin.room.room_air import RoomAir
from twin.room.room_failures import conditions, read_failures
from twin.room.room_spec import read_room
from twin.room.room_year import YEAR_S, noise_seed

LOWER_TO: Final = (0.8, 0.7, 0.6)
HOURS: Final = (6.0, 12.0, 24.0)
SHARES: Final = (0.05, 0.15)
"""Of readings above their thresholds: HazardNet's hazard, and its most severe one."""

MOST_LOST: Final = 0.01
LIMITS_C: Final = (27.0, 32.0)
SEEN_H: Final = 32
"""Hours of readings from which the features of the last one are known."""

Predicts = Callable[[int, Floats, Floats], bool]
"""From a step, the readings up to it and the watts of the room: whether the next six hours are in hazard."""


@dataclass(frozen=True)
class Run:
    """Of one year. ``inlet_c``: what sensors show; ``above_h``: by limit."""

    inlet_c: Floats
    rack_w: Floats
    above_h: tuple[float, ...]
    lowered_h: float
    lost: float


def run(one: Year, predicts: Predicts, lower_to: float, hours: float) -> Run:
    """The year, with this action."""
    spec, wanted_w = read_room(), one.record.rack_w
    air, hourly, steps = RoomAir(spec), round(HOUR_S / spec.step_s), len(wanted_w)
    found = conditions(read_failures()[one.name], steps, spec.step_s, spec.cooling.units)
    noise_c = air.sensed(np.zeros_like(one.record.inlet_c), np.random.default_rng(noise_seed(one.name)))
    idle_w, cap_w = spec.load.idle_w, lower_to * spec.load.most_w * spec.n_racks
    capacity, drift_c = found.capacity * found.air, found.drift_c
    inlet_c, rack_w = np.empty_like(noise_c), wanted_w.copy()
    lowering, lowered, above = Lowering(), 0, np.zeros(len(LIMITS_C))
    for begin in range(0, steps, hourly):
        of = slice(begin, begin + hourly)
        if begin and predicts(begin, inlet_c, rack_w):
            with contextlib.suppress(WrongUseError):
                lowering = lowering.requested(begin * spec.step_s, 1.0, "", hours)
        if lowering.is_on(begin * spec.step_s):
            lowered += 1
            own_w = wanted_w[of] - idle_w
            left = (cap_w - idle_w * spec.n_racks) / own_w.sum(1, keepdims=True)
            rack_w[of] = idle_w + own_w * np.minimum(left, 1.0)
        supply_c = np.array([
            air.step(rack_w[step], float(one.record.outdoor_c[step]), capacity[step], float(drift_c[step])).copy()
            for step in range(begin, begin + hourly)
        ])  # fmt: skip
        true_c = air.inlets(supply_c, rack_w[of], found.air[of])
        above += [(true_c > limit_c).any(1).mean() for limit_c in LIMITS_C]
        inlet_c[of] = np.round(true_c + noise_c[of], 1)
    lost = float((wanted_w - rack_w).sum() / (wanted_w - idle_w).sum())
    return Run(inlet_c, rack_w, tuple(above.tolist()), lowered, lost)


def never(step: int, inlet_c: Floats, rack_w: Floats) -> bool:
    """Without."""
    return False


@dataclass(frozen=True)
class Predictor:
    """What predicts a hazard of this share of readings. ``model`` is of the training years."""

    share: float
    threshold_c: Floats
    model: HazardModel
    step_s: float

    def last_value(self, step: int, inlet_c: Floats, rack_w: Floats) -> bool:
        """The window that ends is in hazard."""
        window = round(6 * HOUR_S / self.step_s)
        of = inlet_c[step - window : step]
        return step >= window and bool(shares(of, self.threshold_c, self.step_s)[-1] >= self.share)

    def by_model(self, outdoor_c: Floats) -> Predicts:
        """The chance is above the model's threshold."""
        seen = round(SEEN_H * HOUR_S / self.step_s)

        def predicts(step: int, inlet_c: Floats, rack_w: Floats) -> bool:
            if step < seen:
                return False
            of = slice(step - seen, step)
            seen_now = Readings(of.start * self.step_s, self.step_s, inlet_c[of], rack_w[of].sum(1), outdoor_c[of])
            return bool(self.model.chance(features(seen_now, self.threshold_c)[-1:])[0] >= self.model.threshold)

        return predicts

    def oracle(self, without: Run) -> Predicts:
        """The label of the run without action."""
        readings = Readings(0.0, self.step_s, without.inlet_c)
        _, later = labels(readings, self.threshold_c)
        is_hazard = dict(zip((readings.hours() + 1).tolist(), (later >= self.share).tolist(), strict=True))
        return lambda step, inlet_c, rack_w: is_hazard.get(step, False)


Figures = Mapping[str, Any]
"""Of one run: its year, its action and what came of them."""

FIGURES: Final = ("above_27_h", "above_32_h", "lost")
PAIRS: Final = (
    ("last value", "without"), ("model", "without"), ("oracle", "without"), ("model", "last value"), ("oracle", "model")
)  # fmt: skip
"""Which action is compared with which."""


class Way(NamedTuple):
    """How far and how long the budget is lowered, and for a hazard of which share."""

    share: float
    lower_to: float
    hours: float


def chosen(one: Year, predictors: Mapping[float, Predictor]) -> tuple[list[dict[str, float]], Way]:
    """What each way comes to on this year, and the one to judge."""
    rows = []
    for way in map(Way._make, itertools.product(SHARES, LOWER_TO, HOURS)):
        predicts = predictors[way.share].by_model(one.record.outdoor_c)
        found = run(one, predicts, way.lower_to, way.hours)
        rows.append({**way._asdict(), "above_27_h": found.above_h[0], "lost": found.lost})
    best = min((row for row in rows if row["lost"] <= MOST_LOST), key=lambda row: row["above_27_h"])
    return rows, Way(best["share"], best["lower_to"], best["hours"])


def judged(one: Year, predictor: Predictor, way: Way) -> dict[str, Run]:
    """The four runs of a year."""
    bounds = way.lower_to, way.hours
    without = run(one, never, *bounds)
    return {
        "without": without,
        "last value": run(one, predictor.last_value, *bounds),
        "model": run(one, predictor.by_model(one.record.outdoor_c), *bounds),
        "oracle": run(one, predictor.oracle(without), *bounds),
    }


def is_announced(year: str) -> bool:
    """Whether the failures of a judged year announce themselves."""
    return not year.startswith("trip")


def compared(rows: Sequence[Figures]) -> list[dict[str, Any]]:
    """Of each pair the mean difference in ``FIGURES`` over the years with failures that announce themselves, and under
    ``half_...`` half of its 95 % interval."""
    run_of = {(str(row["year"]), str(row["action"])): row for row in rows}
    names = list(dict.fromkeys(name for name, _ in run_of if is_announced(name)))
    found: list[dict[str, Any]] = []
    for action, against in PAIRS:
        line: dict[str, Any] = {"years": len(names), "action": action, "against": against}
        for figure in FIGURES:
            more = [float(run_of[name, action][figure]) - float(run_of[name, against][figure]) for name in names]
            line[figure], line[f"half_{figure}"] = mean_interval(more)
        found.append(line)
    return found


def predictors_of(found: Sequence[Year]) -> dict[float, Predictor]:
    """By share, trained on the training years and chosen on the choosing one, as in ``thermal_hazard``."""
    training = [one for one in found if one.name.startswith("train")]
    choosing = next(one for one in found if one.name.startswith("choose"))
    threshold_c = thresholds(np.concatenate([one.record.inlet_c for one in training]))
    return {
        share: Predictor(
            share,
            threshold_c,
            trained([part(one, threshold_c, share) for one in training], part(choosing, threshold_c, share)),
            choosing.step_s,
        )
        for share in SHARES
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks hazard_action", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a quarter of each year")
    found = years(YEAR_S / 4 if parser.parse_args(arguments).quick else YEAR_S)
    predictors = predictors_of(found)
    choosing = next(one for one in found if one.name.startswith("choose"))
    without = run(choosing, never, 1.0, 0.0)
    tried, way = chosen(choosing, predictors)
    print(f"{choosing.name}, on which is chosen: {without.above_h[0]:.0f} hours above 27 degrees without action")
    print(render(
        ("hazard at %", "lowered to %", "hours of 24", "hours above 27", "work lost %"),
        [(f"{100 * row['share']:g}", f"{100 * row['lower_to']:g}", f"{row['hours']:g}", f"{row['above_27_h']:.0f}",
          f"{100 * row['lost']:.2f}") for row in tried],
    ))  # fmt: skip
    rows: list[dict[str, Any]] = [
        {"year": one.name, "action": name, **way._asdict(), "above_27_h": of.above_h[0], "above_32_h": of.above_h[1],
         "lowered_h": of.lowered_h, "lost": of.lost}
        for one in found if not one.name.startswith(("train", "choose"))
        for name, of in judged(one, predictors[way.share], way).items()
    ]  # fmt: skip
    print(
        f"chosen: lowered to {100 * way.lower_to:g} % for at most {way.hours:g} of 24 hours, for a hazard at"
        f" {100 * way.share:g} % of readings"
    )
    print(render(
        ("judged year", "action", "hours above 27", "above 32", "hours lowered", "work lost %"),
        [(row["year"], row["action"], f"{row['above_27_h']:.0f}", f"{row['above_32_h']:.0f}",
          f"{row['lowered_h']:.0f}", f"{100 * row['lost']:.2f}") for row in rows],
    ))  # fmt: skip
    pairs = compared(rows)
    print(f"means over {pairs[0]['years']} judged years without trips, with 95 % intervals over years (Student's t)")
    print(render(
        ("action", "against", "hours above 27", "above 32", "work lost, points"),
        [(of["action"], of["against"], *(f"{of[name]:+.1f} ± {of[f'half_{name}']:.1f}" for name in FIGURES[:2]),
          f"{100 * of['lost']:+.2f} ± {100 * of['half_lost']:.2f}") for of in pairs],
    ))  # fmt: skip
    content = {"without_27_h": without.above_h[0], "tried": tried, "chosen": way._asdict(), "judged": rows}
    save("hazard_action", {**content, "compared": pairs})
    return 0


if __name__ == "__main__":
    sys.exit(main())
