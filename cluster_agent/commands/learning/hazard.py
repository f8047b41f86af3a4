"""``clusterctl hazard``: would thermal hazard have been predicted in this room?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np

from cluster_agent.commands.nodes import json_option
from cluster_agent.errors import WrongUseError
from cluster_agent.thermal_hazard.hazard_features import DAY_S
from cluster_agent.thermal_hazard.hazard_label import SHARE
from cluster_agent.thermal_hazard.hazard_parts import Judged, judged
from cluster_agent.thermal_hazard.hazard_scores import Scores, scores
from cluster_agent.thermal_hazard.inlet_tables import read_inlets
from foundation.shell.plain_text import echo, echo_block, json_text
from foundation.shell.text_table import render


@click.group()
def hazard() -> None:
    """Thermal hazard of the machine room, six hours ahead, from inlet temperatures (docs/hazard.md)."""


@hazard.command("judge")
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
    found = scored(judged(readings, share))
    days = len(readings.inlet_c) * readings.step_s / DAY_S
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


def scored(one: Judged) -> dict[str, Scores]:
    """Of the last value and of the model, on the last quarter."""
    return {
        "last value": scores(one.now.astype(float), 0.5, one.label),
        "logistic regression": scores(one.chance, one.model.threshold, one.label),
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
