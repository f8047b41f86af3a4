"""The demo's figures: one run over time, and energy against time for every policy with the oracle's front."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nodectl.demo.comparison import Comparison
from nodectl.journal import open_journal
from pmu.decode import decode
from pmu.readings import Sample

LABEL = "emulated"
MARKS = {"fixed": "s", "firmware": "D", "bdpo-gpu": "v", "bdpo-cpu": "v", "gpu-ladder": "o", "bdpo-cpu-bounded": "o"}
COLOURS = {
    "fixed": "0.45", "firmware": "tab:brown", "bdpo-gpu": "tab:orange", "bdpo-cpu": "tab:orange",
    "gpu-ladder": "tab:blue", "bdpo-cpu-bounded": "tab:blue",
}  # fmt: skip


def over_time(journal: Path, title: str, out: Path) -> None:
    """Clock, power and IPC/occupancy of a recorded run, from its journal."""
    samples = _samples(journal)
    if not samples:
        return
    plot, start = _pyplot(), samples[0].time_ns
    seconds = np.array([(sample.time_ns - start) / 1e9 for sample in samples])
    figure, (clock, power, activity) = plot.subplots(3, 1, figsize=(10, 8), sharex=True, constrained_layout=True)
    gpus = len(samples[0].gpu.power_w)
    for gpu in range(gpus):
        clock.plot(seconds, [s.gpu.sm_clock_mhz[gpu] for s in samples], lw=1, label=f"GPU {gpu}")
        power.plot(seconds, [s.gpu.power_w[gpu] for s in samples], lw=1, label=f"GPU {gpu}")
    if gpus:
        occupancy = [
            float(np.nanmean(s.gpu.sm_occupancy)) if np.isfinite(s.gpu.sm_occupancy).any() else np.nan for s in samples
        ]
        activity.plot(seconds, occupancy, lw=1, color="tab:blue", label="GPU occupancy or utilisation (mean)")
        memory = [float(np.nanmean(s.gpu.memory_utilization)) for s in samples]
        activity.plot(seconds, memory, lw=1, color="tab:green", label="GPU memory utilisation (mean)")
    busy = [s.cpu.busy > 0.05 for s in samples]
    if any(mask.any() for mask in busy):
        mhz = [_mean(s.cpu.frequency_khz[mask]) / 1e3 for s, mask in zip(samples, busy, strict=True)]
        if not gpus or np.nanstd(mhz) > 1.0:  # a constant core clock would only squeeze the GPUs' range
            clock.plot(seconds, mhz, lw=1, color="black", ls=":", label="busy cores (mean)")
        ipc = [_mean(s.cpu.ipc[mask]) for s, mask in zip(samples, busy, strict=True)]
        activity.plot(seconds, ipc, lw=1, color="black", ls=":", label="IPC of busy cores (mean)")
    if samples[0].energy_j.size:
        packages = [float(np.nansum(s.energy_j)) / s.elapsed_s for s in samples]
        power.plot(seconds, packages, lw=1, color="black", ls=":", label="RAPL zones (sum)")
    clock.set_ylabel("clock, MHz")
    power.set_ylabel("power, W")
    activity.set_ylabel("share, IPC")
    activity.set_xlabel("time, s")
    for axis in (clock, power, activity):
        axis.grid(alpha=0.3)
        axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8, frameon=False)
    figure.suptitle(f"{title} ({LABEL})")
    figure.savefig(out, dpi=110)
    plot.close(figure)


def energy_against_time(comparisons: Sequence[Comparison], out: Path) -> None:
    """One panel per case: saving against slowdown, each policy a mark, the oracle's front a line."""
    plot = _pyplot()
    columns = min(4, len(comparisons))
    rows = -(-len(comparisons) // columns)
    figure, axes = plot.subplots(
        rows, columns, figsize=(4 * columns, 3.3 * rows), squeeze=False, constrained_layout=True
    )
    for axis, each in zip(axes.flat, comparisons, strict=False):
        front = sorted([(0.0, 0.0), *each.front])
        axis.plot([100 * s for s, _ in front], [100 - 100 * e for _, e in front], color="0.7", label="oracle front")
        for cell in each.cells:
            axis.plot(
                100 * cell.slowdown, 100 - 100 * cell.saving, MARKS[cell.policy], color=COLOURS[cell.policy],
                ms=8, label=cell.policy,
            )  # fmt: skip
        axis.set_title(f"{each.case.workload} on {each.case.machine}", fontsize=10)
        axis.axvline(3.0, color="tab:red", lw=0.8, ls="--")
        axis.set_xlim(-1, 8)
        axis.grid(alpha=0.3)
    for axis in list(axes.flat)[len(comparisons) :]:
        axis.axis("off")
    labels: dict[str, Any] = {}
    for axis in axes.flat:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            labels.setdefault(label, handle)
    figure.legend(labels.values(), labels.keys(), loc="outside lower center", ncols=len(labels), frameon=False)
    for axis in axes[-1]:
        axis.set_xlabel("time over the highest clock, %")
    for axis in axes[:, 0]:
        axis.set_ylabel("energy of highest clock, %")
    figure.suptitle(f"Energy (GPU jobs: boards, CPU jobs: whole node) against time; dashed: the 3 % bound ({LABEL})")
    figure.savefig(out, dpi=110)
    plot.close(figure)


def _samples(journal: Path) -> list[Sample]:
    return [
        decode(record.keyframe.layout, record.previous, record.raw)
        for record in open_journal(journal)
        if record.previous is not None
    ]


def _mean(values: Any) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else float("nan")


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plot

    return plot
