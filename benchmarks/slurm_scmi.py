"""The whole chain once: a job of a real Slurm, its notice, the grant, SCMI, and the controller that enforces the cap.

A real Slurm 22.05 with four nodes, its hooks and the cluster agent. Two of the nodes are chips of 36 cores whose cap
only the ControlPULP firmware enforces (``lab.emulated.chip_node``: the firmware as a process, then its rv32 image in
QEMU, both in real time); the other two are emulated `curie` nodes with RAPL. Jobs come one after the other on the two
chips, which are always loaded with the heaviest instructions, and whose caps are low while they have no job.

Measured: the delay inside the hook; whether the raised cap was in the controller, by another SCMI agent of it, before
the job's first line ran; how long before; what the chips drew above the cap in force, and all nodes above the budget,
by the truth of the chips and of the other nodes. A chip's joules belong to its own time: on a busy machine nothing
moves it for tens of milliseconds, and by any other clock it would then draw them all at once. All watts are EMULATED.
Needs root.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from benchmarks.experiment import save
from benchmarks.slurm import DELAY, SLURM_USER, options
from cluster_agent.hook.build_hook import build
from firmware_bridge.controlpulp import qemu
from foundation.shell.text_table import render
from lab.emulated.chip_node import MOP_W, REST_W, ChipTruth
from lab.emulated.emulated_node import Truth
from lab.emulated.watts import watts_of
from tests.fabric.cluster import ROOT, Cluster
from tests.slurm.site import Site

CHIPS: Final = ("n01", "n02")
OTHERS: Final = ("n03", "n04")
MACHINE: Final = "curie"
BUDGET_W: Final = 900.0
"""Ours: enough for both chips at their highest cap while the other two have no job, and for no more."""

GRID_S: Final = 0.05
type_f64 = npt.NDArray[np.float64]


class Seen:
    """The truth of all nodes, by their traces."""

    def __init__(self, folder: Path) -> None:
        self.chips = {name: _lines(folder / f"{name}.jsonl", ChipTruth) for name in CHIPS}
        self.others = {name: _lines(folder / f"{name}.jsonl", Truth) for name in OTHERS}
        first = max(rows[0].at_s for rows in (*self.chips.values(), *self.others.values()))
        last = min(rows[-1].at_s for rows in (*self.chips.values(), *self.others.values()))
        self.at_s: type_f64 = np.arange(first, last, GRID_S)

    def chip_w(self, name: str) -> type_f64:
        """Watts of a chip in each interval."""
        rows = self.chips[name]
        ahead_s = min(row.at_s - row.chip_s for row in rows)
        return self._watts([row.chip_s + ahead_s for row in rows], [row.chip_j for row in rows])

    def all_w(self) -> type_f64:
        """Watts of all nodes in each interval, with what is around the chips."""
        others = [
            self._watts([row.at_s for row in rows], [row.node_j for row in rows]) for rows in self.others.values()
        ]
        return np.asarray(np.sum([*others, *(self.chip_w(name) + REST_W for name in CHIPS)], axis=0))

    def over_cap_ws(self, name: str) -> float:
        """Joules that the chip drew above the caps in its controller. Each time of one cap counts as a whole, without
        the looks at its ends: the firmware takes two slots to follow, and looks of a loaded machine are late by up to
        tens of milliseconds. No cap is none to exceed."""
        over_j = 0.0
        for cap_mw, group in itertools.groupby(self.chips[name], lambda row: row.cap_mw):
            rows = list(group)[2:-1]
            if cap_mw > 0 and len(rows) > 1:
                allowed_j = cap_mw / 1000 * (rows[-1].chip_s - rows[0].chip_s)
                over_j += max(rows[-1].chip_j - rows[0].chip_j - allowed_j, 0.0)
        return over_j

    def raised_s(self, name: str, after_s: float, before_s: float) -> float:
        """When the controller's cap was first higher than at ``after_s``; NaN: it was not until ``before_s``."""
        rows = [row for row in self.chips[name] if after_s <= row.at_s <= before_s and row.cap_mw > 0]
        return next((row.at_s for row in rows if row.cap_mw > rows[0].cap_mw), float("nan"))

    def behind_ms(self, name: str) -> float:
        """How late the chip was, at the latest of 99 in 100 looks."""
        late_s = [row.at_s - row.chip_s for row in self.chips[name]]
        return 1000 * float(np.percentile(late_s, 99) - min(late_s))

    def _watts(self, at_s: list[float], joules: list[float]) -> type_f64:
        return np.diff(np.interp(self.at_s, at_s, joules)) / GRID_S


def _lines(path: Path, kind: type[Any]) -> list[Any]:
    return [msgspec.json.decode(line, type=kind) for line in path.read_bytes().splitlines()[:-1]]


def measure(jobs: int, in_qemu: bool) -> dict[str, Any]:
    with Site(len(CHIPS) + len(OTHERS), accounting=False) as site, contextlib.ExitStack() as closing:
        for folder in ("head", "trace", "ran"):
            (site.at / folder).mkdir()
        (site.at / "ran").chmod(0o777)
        with contextlib.redirect_stdout(io.StringIO()):  # the keys
            head = Cluster(site.at / "head", BUDGET_W, sharer="aapc", notifiers=[SLURM_USER])
            for name in (*CHIPS, *OTHERS):
                head.allow(name)
        closing.enter_context(head)
        build(site.at / "nodectl-hook")
        head.serve()
        _start_nodes(site.at, head, in_qemu)
        clusterctl = ["env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "cluster_agent.cli"]
        site.run(*clusterctl, "slurm", "install", "--yes", "--socket", str(head.socket),
                 "--hook", str(site.at / "nodectl-hook"))  # fmt: skip
        site.shell("sed -i 's/ --quiet//' /etc/slurm/nodectl/*-slurmctld")
        site.restart_controller()
        runs = [_run(site, head, number) for number in range(jobs)]
        time.sleep(1.0)
        hook_ms = [int(ms) for _, outcome, ms in DELAY.findall((site.at / "log" / "nodectl-hook.log").read_text())
                   if outcome == "caps are in force"]  # fmt: skip
        seen = Seen(site.at / "trace")
    ahead_s = [
        began_s - max(seen.raised_s(name, submitted_s, began_s) for name in CHIPS) for submitted_s, began_s in runs
    ]
    over_w = np.maximum(seen.all_w() - BUDGET_W, 0.0)
    return {
        "jobs": jobs, "in_force": len(hook_ms), "p50_ms": median(hook_ms), "worst_ms": max(hook_ms),
        "in_controller": sum(one > 0 for one in ahead_s), "ahead_ms": 1000 * median(ahead_s),
        "least_ahead_ms": 1000 * min(ahead_s), "over_ws": float(over_w.sum() * GRID_S),
        "highest_w": float(seen.all_w().max()), "budget_w": BUDGET_W,
        "over_cap_ws": sum(seen.over_cap_ws(name) for name in CHIPS),
        "chips_w": [[float(np.percentile(seen.chip_w(name), part)) for part in (5, 95)] for name in CHIPS],
        "silent": [sum(row.cap_mw < 0 for row in seen.chips[name]) / len(seen.chips[name]) for name in CHIPS],
        "alarms": [seen.chips[name][-1].alarms for name in CHIPS],
        "behind_ms": [seen.behind_ms(name) for name in CHIPS],
        "seconds": float(seen.at_s[-1] - seen.at_s[0]), "load": os.getloadavg()[0],
    }  # fmt: skip


def _start_nodes(at: Path, head: Cluster, in_qemu: bool) -> None:
    for name in CHIPS:
        plan = f"ChipPlan({name!r}, {head.url!r}, Path({str(head.keys)!r}), Path({str(at / 'run')!r})"
        plan += f", Path({str(at / 'trace' / f'{name}.jsonl')!r}), in_qemu={in_qemu})"
        names = "from pathlib import Path; from lab.emulated.chip_node import ChipPlan, run_chip_node"
        head.start("-c", f"{names}; run_chip_node({plan})", log=f"{name}.log")
    words = ["--machine", MACHINE, "--keys", str(head.keys), "--cluster", head.url, "--trace", str(at / "trace")]
    head.start("-m", "nodectl.cli", "twin", "node", *words, "--run", str(at / "run"), *OTHERS, log="nodes.log")
    head.until(lambda: [row["state"] for row in head.ask("nodes") or []] == ["capped"] * 4, is_kept=False)


def _run(site: Site, head: Cluster, number: int) -> tuple[float, float]:
    """A job on both chips; when it was submitted, and when its first line ran, by CLOCK_MONOTONIC."""
    submitted_s, file = time.monotonic(), site.at / "ran" / str(number)
    script = f"cut -d' ' -f1 /proc/uptime >{file}; sleep 1"
    words = ["sbatch", "--parsable", "-w", ",".join(CHIPS), "-N2", "--comment", "nodectl=compute", "-o", "/dev/null"]
    site.run(*words, "--wrap", script, user="alice")
    site.until(lambda: file.exists() and file.read_text().strip())
    began_s = float(file.read_text()) - (float(Path("/proc/uptime").read_text().split()[0]) - time.monotonic())
    site.until(lambda: not site.run("squeue", "-h").strip())
    head.until(lambda: head.ask("notify", "list") == [], is_kept=False)
    head.until(lambda: _have_fallen(site.at / "trace"), is_kept=False)  # else the next job finds its caps in force
    return submitted_s, began_s


def _have_fallen(traces: Path) -> bool:
    """Whether both chips have the cap of a node without a job."""
    last = [_lines(traces / f"{name}.jsonl", ChipTruth)[-1] for name in CHIPS]
    return all(0 < row.cap_mw <= 1000 * (MOP_W - REST_W) for row in last)


def main(arguments: list[str] | None = None) -> int:
    is_quick = options(arguments, __doc__, "5 jobs instead of 30, in QEMU 3 instead of 10")
    if is_quick is None:
        return 0
    kinds = {"the firmware as a process": (5 if is_quick else 30, False)}
    if why := qemu.missing():
        print(f"not measured in QEMU: {why}")
    else:
        kinds["its rv32 image in QEMU"] = 3 if is_quick else 10, True
    watts, _ = watts_of(MACHINE)
    print(f"EMULATED: two chips behind the firmware and two {MACHINE} (TDP {watts.tdp_w:.0f} W) under {BUDGET_W:.0f} W")
    found = {kind: measure(*how) for kind, how in kinds.items()}
    for kind, one in found.items():
        print(kind)
        print(_table(one))
    save("slurm_scmi", found)
    is_kept = all(
        one["over_ws"] == 0.0 and one["in_controller"] == one["in_force"] == one["jobs"] for one in found.values()
    )
    return 0 if is_kept else 1


def _table(found: dict[str, Any]) -> str:
    return render(("", ""), [
        ("jobs whose caps were in force in time", "{in_force} of {jobs}".format(**found)),
        ("delay inside the hook, p50, worst", "{p50_ms:.0f}, {worst_ms} ms".format(**found)),
        ("raised in both controllers before the job's first line", "{in_controller} of {jobs}".format(**found)),
        ("how long before, p50, least", "{ahead_ms:.0f}, {least_ahead_ms:.0f} ms".format(**found)),
        ("watts of the chips, 5 and 95 %", "; ".join(f"{low:.0f} to {high:.0f}" for low, high in found["chips_w"])),
        ("above the caps in the controllers", "{over_cap_ws:.2f} W s in {seconds:.0f} s".format(**found)),
        ("above the budget; the most that all drew", "{over_ws:.2f} W s; {highest_w:.0f} W".format(**found)),
        ("times that the guard went to the safe level", ", ".join(map(str, found["alarms"]))),
        ("looks without an answer", ", ".join(f"{part:.1%}" for part in found["silent"])),
        ("the chip was late by, 99 %", ", ".join(f"{ms:.0f} ms" for ms in found["behind_ms"])),
        ("load", "{load:.0f}".format(**found)),
    ])  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
