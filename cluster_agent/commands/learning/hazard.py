"""``clusterctl hazard``: would thermal hazard have been predicted in this room?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click
import numpy as np

from cluster_agent.commands.nodes import json_option
from cluster_agent.errors import WrongUseError
from cluster_agent.thermal_hazard.hazard_features import Readings, features, labels
from cluster_agent.thermal_hazard.hazard_label import SHARE, thresholds
from cluster_agent.thermal_hazard.hazard_model import train
from cluster_agent.thermal_hazard.hazard_scores import Scores, scores
from cluster_agent.thermal_hazard.inlet_tables import read_inlets
from foundation.shell.plain_text import echo, echo_block, json_text
from foundation.shell.text_table import render

LEAST_DAYS: Final = 28
"""Ours: of all parts together."""


@click.group()
def hazard() -> None:
    """Thermal hazard of the machine room, six hours ahead, from inlet temperatures (docs/hazard.md)."""


@hazard.command()
@click.argument("path", metavar="PATH", type=click.Path(path_type=Path))
@click.option("--share", type=float, default=SHARE, show_default=True, help="Of readings above their thresholds.")
@json_option
def judge(path: Path, share: float, as_json: bool) -> None:
    """Train on the first half of the readings in PATH, choose on the next quarter, and judge on the last.

    PATH is a Parquet file, or a folder of them, with the columns timestamp, value and node, as Marconi100's
    plugin=ipmi_pub/metric=ambient. The last value is judged next to the model: it predicts that nothing changes.
    """
    if not 0 < share < 1:
        raise WrongUseError(f"--share {share:g}: give a share of the readings, above 0 and below 1, e.g. 0.05")
    readings, nodes, left_out = read_inlets(path)
    days = len(readings.inlet_c) * readings.step_s / 86_400
    if days < LEAST_DAYS:
        raise WrongUseError(f"{path}: {days:.0f} days of readings: to train and to judge takes {LEAST_DAYS}")
    found = judged(readings, share)
    missing = float(np.isnan(readings.inlet_c).mean())
    if as_json:
        about = {"nodes": len(nodes), "days": days, "missing": missing, "left_out": left_out, "share": share}
        echo(json_text(about | {name: _plain(one) for name, one in found.items()}))
        return
    echo_block(render(("prediction", "F1", "PR-AUC", "lead h", "events", "foreseen", "false alarms a month"),
                      [_line(name, one) for name, one in found.items()]))  # fmt: skip
    rate = next(iter(found.values())).rate
    echo(f"{len(nodes)} nodes, {days:.0f} days, {100 * missing:.1f} % missing, {left_out} values left out;"
         f" judged on the last quarter, {100 * rate:.1f} % of it in hazard")  # fmt: skip


def judged(readings: Readings, share: float) -> dict[str, Scores]:
    """Scores of the last value and of the model on the last quarter. Thresholds and weights are of the first half."""
    threshold_c = thresholds(readings.inlet_c[: len(readings.inlet_c) // 2])
    now, later = labels(readings, threshold_c)
    given = features(readings, threshold_c)
    at = readings.hours() / len(readings.inlet_c)
    known = ~np.isnan(now) & ~np.isnan(later)
    ahead = 6 * 3600 / readings.step_s / len(readings.inlet_c)  # a label looks so far into the next part
    train_on, choose_on = known & (at < 0.5 - ahead), known & (at >= 0.5) & (at < 0.75 - ahead)
    judge_on = known & (at >= 0.75)
    label = later >= share
    model = train(given[train_on], label[train_on], given[choose_on], label[choose_on])
    return {
        "last value": scores((now[judge_on] >= share).astype(float), 0.5, label[judge_on]),
        "logistic regression": scores(model.chance(given[judge_on]), model.threshold, label[judge_on]),
    }


def _line(name: str, one: Scores) -> tuple[str, ...]:
    return (
        name, f"{one.f1:.2f}", f"{one.pr_auc:.2f}", f"{one.lead_h:.1f}", str(one.events),
        str(one.events - one.missed), f"{one.false_alarms_per_month:.1f}",
    )  # fmt: skip


def _plain(one: Scores) -> Mapping[str, Any]:
    """Without NaN, which JSON lacks."""
    named = {name: getattr(one, name) for name in Scores.__dataclass_fields__}
    return {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in named.items()}
