"""The demo's figures: one run over time, and energy against time for every policy with the oracle's front."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lab.node_demo.comparison import BOUND, Comparison
from nodectl.journal import open_journal
from pmu.decode import decode
from pmu.readings import Sample

LABEL = "emulated"
MARKS = {"fixed": "s", "firmware": "D", "bdpo-gpu": "v", "bdpo-cpu": "v", "gpu-ladder": "o", "bdpo-cpu-bounded": "o"}
COLOURS = {
    "fixed": "0.45", "firmware": "tab:brown", "bdpo-gpu": "tab:orange", "bdpo-cpu": "tab:orange",
    "gpu-ladder": "tab:blue", "bdpo-cpu-bounded": "tab:blue",
}  # fmt: skip

ROLES = {
    "bdpo-gpu": "bdpo-gpu, bdpo-cpu", "bdpo-cpu": "bdpo-gpu, bdpo-cpu",
    "gpu-ladder": "gpu-ladder, bdpo-cpu-bounded", "bdpo-cpu-bounded": "gpu-ladder, bdpo-cpu-bounded",
}  # fmt: skip


def over_time(journal: Path, title: str, out: Path) -> None:
    """Clock, power and IPC/occupancy of a recorded run, from its journal; GPUs as mean and range."""
    samples = _samples(journal)[:-1]  # the last interval is cut short by the end of the run
    if not samples:
        return
    plot, start = pyplot(), samples[0].time_ns
    seconds = np.array([(sample.time_ns - start) / 1e9 for sample in samples])
    figure, axes = plot.subplots(4, 1, figsize=(10, 9), sharex=True, constrained_layout=True)
    gpu_clock, cpu_clock, power, activity = axes

    def gpus(axis: Any, values: list[Any], label: str, colour: str) -> None:
        table = np.array(values)
        if table.size and np.isfinite(table).any(axis=1).all():
            axis.plot(seconds, np.nanmean(table, axis=1), lw=1.2, color=colour, label=f"{label} (mean)")
            axis.fill_between(seconds, np.nanmin(table, axis=1), np.nanmax(table, axis=1), color=colour, alpha=0.25)

    gpus(gpu_clock, [s.gpu.sm_clock_mhz for s in samples], "GPUs", "tab:blue")
    gpus(power, [s.gpu.power_w for s in samples], "one GPU", "tab:blue")
    gpus(activity, [s.gpu.sm_occupancy for s in samples], "GPU occupancy or utilisation", "tab:blue")
    gpus(activity, [s.gpu.memory_utilization for s in samples], "GPU memory utilisation", "tab:green")
    busy = [s.cpu.busy > 0.05 for s in samples]
    cpu_clock.plot(
        seconds, [_mean(s.cpu.frequency_khz[mask]) / 1e3 for s, mask in zip(samples, busy, strict=True)],
        lw=1, color="black", label="busy cores (mean)",
    )  # fmt: skip
    ipc = [_mean(s.cpu.ipc[mask]) for s, mask in zip(samples, busy, strict=True)]
    activity.plot(seconds, ipc, lw=1, color="black", label="IPC of busy cores (mean)")
    if samples[0].energy_j.size:
        watts = np.array([float(np.nansum(s.energy_j)) / s.elapsed_s for s in samples])
        width = min(5, len(watts))
        smooth = np.convolve(watts, np.ones(width) / width, mode="valid")
        power.plot(seconds[width - 1 :], smooth, lw=1, color="black", label=f"RAPL zones (sum, {width} intervals)")
    for axis, label in ((gpu_clock, "GPU clock, MHz"), (cpu_clock, "core clock, MHz"), (power, "power, W")):
        axis.set_ylabel(label)
    activity.set_ylabel("share, IPC")
    activity.set_xlabel("time, s")
    for axis in axes:
        axis.grid(alpha=0.3)
        if axis.get_legend_handles_labels()[0]:
            axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8, frameon=False)
    figure.suptitle(f"{title} ({LABEL})")
    figure.savefig(out, dpi=110)
    plot.close(figure)


def energy_against_time(comparisons: Sequence[Comparison], out: Path) -> None:
    """One panel per case: saving against slowdown, each policy a mark, the oracle's front a line."""
    plot = pyplot()
    columns = min(4, len(comparisons))
    rows = -(-len(comparisons) // columns)
    figure, axes = plot.subplots(
        rows, columns, figsize=(4 * columns, 3.3 * rows), squeeze=False, constrained_layout=True
    )
    for axis, each in zip(axes.flat, comparisons, strict=False):
        front = sorted([(0.0, 0.0), *each.front])
        axis.plot([100 * s for s, _ in front], [100 - 100 * e for _, e in front], color="0.7", label="oracle front")
        for cell in each.cells:
            half = {name: 100 * half for name, half in cell.half_interval.items()}
            axis.errorbar(
                100 * cell.slowdown, 100 - 100 * cell.saving, half.get("saving"), half.get("slowdown"),
                MARKS[cell.policy], color=COLOURS[cell.policy], ms=8, alpha=0.8, elinewidth=1,
                label=ROLES.get(cell.policy, cell.policy),
            )  # fmt: skip
        axis.set_title(f"{each.case.workload} on {each.case.machine}", fontsize=10)
        axis.axvline(100 * BOUND, color="tab:red", lw=0.8, ls="--")
        axis.set_xlim(-1, max(8.0, *(100 * cell.slowdown + 1 for cell in each.cells)))
        low, high = axis.get_ylim()
        axis.set_ylim(min(low, high - 5.0), high)  # a difference of less than 5 % must look small
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
    whose = "GPU jobs: boards, CPU jobs: whole node"
    figure.suptitle(f"Energy ({whose}) against time; dashed: the bound, {BOUND:.0%} ({LABEL})")
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


def pyplot() -> Any:
    """matplotlib without a screen, imported when it is needed."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plot

    return plot
