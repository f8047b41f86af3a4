"""The picture of a plan, as SVG. Needs matplotlib."""

from __future__ import annotations

from io import StringIO
from typing import Any

import matplotlib

from cluster_agent.replay.plan_in_force import PlanInForce

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def plan_svg(plan: PlanInForce) -> str:
    """Nodes over hours from the instant on; what runs is full, what is planned hatched."""
    figure, axes = plt.subplots(figsize=(9, 4.5))
    colours = plt.get_cmap("tab20")
    for at, line in enumerate(plan.lines):
        hours = (line.start_s - plan.at_s) / 3600, (line.end_s - line.start_s) / 3600
        look = {"alpha": 0.6, "hatch": "///"} if line.state == "planned" else {}
        _bars(axes, line.nodes, hours, color=colours(at % 20), edgecolor="white", lw=0.3, **look)
    axes.axvline(0.0, color="black", lw=0.8)
    axes.set(xlabel=f"hours from {plan.at_s} s on", ylabel="nodes")
    figure.tight_layout()
    out = StringIO()
    figure.savefig(out, format="svg")
    plt.close(figure)
    return out.getvalue()


def _bars(axes: Any, places: str, hours: tuple[float, float], **look: Any) -> None:
    """A job: from when on for how long, on intervals of processors or nodes."""
    for interval in places.split():
        low, _, high = interval.partition("-")
        lowest, highest = int(low), int(high or low)
        axes.broken_barh([hours], (lowest, highest - lowest + 1), **look)
