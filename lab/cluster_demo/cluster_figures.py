"""The figure of the demo: per sharer true power and the budget, and below it the cap of every node."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np

from lab.cluster_demo.course import Course, Scene

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def draw(scene: Scene, courses: Sequence[Course], out: Path) -> None:
    """One column for each course."""
    figure, axes = plt.subplots(
        2, len(courses), figsize=(1 + 4.6 * len(courses), 7), squeeze=False, sharex=True, constrained_layout=True
    )
    image = None
    for column, course in enumerate(courses):
        power, caps = axes[0][column], axes[1][column]
        seconds = [line.s for line in course.lines]
        power.plot(seconds, [line.budget_w for line in course.lines], color="tab:red", label="budget")
        power.plot(
            seconds, [sum(line.caps_w) for line in course.lines], color="0.5", lw=1, ls="--", label="sum of caps"
        )
        power.plot(seconds, [line.power_w for line in course.lines], color="tab:blue", lw=1, label="true power, 1 s")
        power.set_ylim(0, 1.05 * scene.nodes * scene.tdp_w)
        power.set_title(course.sharer, fontsize=10)
        power.grid(alpha=0.3)
        image = caps.imshow(
            np.array([line.caps_w for line in course.lines]).T, aspect="auto", interpolation="nearest", origin="lower",
            extent=(seconds[0], seconds[-1], 0.5, scene.nodes + 0.5), vmin=scene.mop_w, vmax=scene.tdp_w,
        )  # fmt: skip
        caps.set_xlabel("s")
    axes[0][0].set_ylabel("W, all nodes")
    axes[1][0].set_ylabel("node")
    axes[0][0].legend(loc="lower left", fontsize=8)
    if image is not None:
        figure.colorbar(image, ax=list(axes[1]), label="cap, W")
    figure.suptitle(f"{scene.nodes} nodes {scene.machine} under a budget, emulated")
    figure.savefig(out, dpi=110)
    plt.close(figure)
