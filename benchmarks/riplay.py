"""A real Slurm replays five hours of SDSC-SP2 and of CEA-Curie under a cap: idle, off or slow nodes (Glesser 2016).

128 emulated nodes (EMULATED Curie), ten times as fast, our engine deciding each cell: the hour in the middle has 80, 60
or 40 % of all nodes' watts, known from the start. Which hours: of all starts at a full hour whose queue under EASY
never has less than an hour of the whole machine in the next five, the one with the most starts. Slurm's delays are
those of half an hour of other hours, by the same rule without those. A cell takes half an hour, and what is measured
is kept in out/bench/riplay.json: a run that was ended goes on. Wait and energy next to `clusterctl replay` of the same
hours, as late as the other hours were: within 5 and 3 %. SDSC-SP2 is as it was, a node a processor. Curie is scaled
from 80,640 processors: a job of at least one of 128 nodes has so many of them, rounded; of the others as many as they
take of a node are kept, drawn (89 % of its jobs are below one node). Needs root.

--quick: 75 minutes of SDSC-SP2 with the hour in the middle at 60 %, off against slow nodes; a quarter of an hour of
others for the delays.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from benchmarks.experiment import OUT, save
from benchmarks.powercap_curie import HOUR_S, fullest_hours, starts_under_easy
from benchmarks.slurm import options
from cluster_agent.cap_steps import Cap
from cluster_agent.cluster import load_machine
from cluster_agent.scheduler.power_cap import PowerCap
from cluster_agent.workloads.job_log import prepare
from cluster_agent.workloads.swf import read_swf
from foundation.shell.text_table import render
from lab.riplay.log_part import Delays, Hours
from lab.riplay.riplay_result import KWH_J
from lab.riplay.riplay_run import riplay

ROOT = Path(__file__).parents[1]
LOGS = ROOT.parent / "shared" / "data" / "sc15-backfilling"
NAME: Final = "riplay"
NODES: Final = 128
SPEED: Final = 10.0
SEED: Final = 1
MODES: Final = ("idle", "shut", "dvfs")
SHARES: Final = (0.8, 0.6, 0.4)
PUBLISHED: Final = {0.8: "idle < shut < dvfs", 0.6: "idle < shut < dvfs", 0.4: "idle < dvfs < shut"}
"""Of work, normalised by speed."""

WITHIN: Final = {"mean_wait_s": 0.05, "energy_j": 0.03}
HEADINGS: Final = (
    "cell", "started", "wait s", "off replay", "off late replay", "energy kWh", "off replay", "off late replay",
    "work node-h, late replay's", "of no cap", "energy of no cap", "kWh above cap, late replay's", "delay s", "load",
)  # fmt: skip


def curie(folder: Path) -> Path:
    """Curie's log for 128 nodes."""
    path = folder / "curie-128.swf"
    if not path.exists():
        jobs = prepare(read_swf(str(LOGS / "CEA-Curie.swf.gz")), 80_640).jobs
        share, drawn = jobs.width * NODES / 80_640, np.random.default_rng(SEED)
        kept = np.flatnonzero((share >= 1) | (drawn.random(len(share)) < share))
        width = np.maximum(np.rint(share[kept]), 1).astype(int)
        rows = zip(kept.tolist(), width.tolist(), strict=True)
        lines = [f"; MaxProcs: {NODES}", f"; Note: of CEA-Curie, scaled by benchmarks/riplay.py with seed {SEED}"]
        for row, nodes in rows:
            run_s, request_s = jobs.run_s[row], jobs.request_s[row]
            words = jobs.number[row], jobs.submit_s[row], -1, run_s, nodes, -1, -1, nodes, request_s, -1, 1
            lines.append(" ".join(map(str, (*words, jobs.user[row] + 1, *[-1] * 6))))
        path.write_text("\n".join(lines) + "\n")
    return path


def busiest(log: Path, hours: int) -> tuple[int, int]:
    """When the hours begin that are judged, and those whose delays are measured."""
    workload = prepare(read_swf(str(log)), NODES)
    starts_s = starts_under_easy(workload)
    some = fullest_hours(workload, starts_s, hours)
    some = some[some < (workload.jobs.submit_s[-1] // HOUR_S - 2 * hours) * HOUR_S]  # jobs come for as long again
    counts = np.searchsorted(np.sort(starts_s), some + hours * HOUR_S) - np.searchsorted(np.sort(starts_s), some)
    ordered = some[np.argsort(-counts, kind="stable")]
    return int(ordered[0]), int(ordered[np.abs(ordered - ordered[0]) >= hours * HOUR_S][0])


def cells(is_quick: bool) -> Iterator[tuple[float | None, str]]:
    """(share of the watts, policy), the published extremes first."""
    if is_quick:
        yield from ((0.6, f"powercap:mode={mode}") for mode in ("shut", "dvfs"))
        return
    yield None, "easy"
    yield from ((share, f"powercap:mode={mode}") for share in (0.6, 0.4, 0.8) for mode in MODES)


def cap_of(from_s: int, hours: float, share: float | None) -> PowerCap | None:
    """The hour in the middle; None: no cap."""
    if share is None:
        return None
    middle_s = from_s + round(hours * HOUR_S / 2)
    full_w = share * NODES * load_machine("curie").node.busy_w[0]
    return PowerCap.of([Cap(middle_s - HOUR_S // 2, middle_s + HOUR_S // 2, full_w)])


def cell(hours: Hours, late: Delays) -> dict[str, Any]:
    """One riplay, and replays of its hours."""
    found = riplay(hours, SPEED, lambda line: print(f"  {line}", file=sys.stderr, flush=True))
    replays = {
        name: found.part.measures(found.whole.replayed(delays))
        for name, delays in (("plain", Delays()), ("late", late))
    }
    return {"riplay": msgspec.structs.asdict(found.metrics), **replays}


def measure(name: str, log: Path, hours: float, is_quick: bool, kept: dict[str, Any]) -> None:
    """All cells of a log, the table after each; ``kept``: what is measured already."""
    judged_s, other_s = busiest(log, 5)
    if f"{name} delays" not in kept:
        other = Hours(str(log), other_s, 0.25 if is_quick else 0.5, NODES, "easy")
        kept[f"{name} delays"] = msgspec.structs.asdict(riplay(other, SPEED, print).metrics)
        save(f"{NAME}_quick" if is_quick else NAME, kept)
    delays = kept[f"{name} delays"]
    late = Delays(delays["start_delay_s"], delays["end_delay_s"])
    for share, policy in cells(is_quick):
        what = f"{name} {hours:g} h {'no cap' if share is None else f'{share:.0%}'} {policy.rpartition('=')[2]}"
        if what not in kept:
            cap = cap_of(judged_s, hours, share)
            kept[what] = cell(Hours(str(log), judged_s, hours, NODES, policy, cap), late)
            save(f"{NAME}_quick" if is_quick else NAME, kept)
        print(f"\n{name} from {judged_s} s; delays from {other_s} s: starts {late.start_s:.1f} s late, ends "
              f"{late.end_s:.1f} s (of the log)\n{table(f'{name} {hours:g} h ', kept)}", flush=True)  # fmt: skip


def table(begins: str, kept: dict[str, Any]) -> str:
    """A row for each cell; work and energy over those without a cap, where that is measured."""
    rows, base = [], kept.get(f"{begins}no cap easy", {}).get("riplay")
    for what, one in kept.items():
        if not what.startswith(begins):
            continue
        own, plain, late = one["riplay"], one["plain"], one["late"]
        off = {key: [f"{100 * (own[key] / other[key] - 1):+.1f} %" if other[key] else "" for other in (plain, late)]
               for key in WITHIN}  # fmt: skip
        work = f"{own['work_node_h']:.1f}, {late['work_node_h']:.1f}"
        shares = [f"{100 * own[key] / base[key]:.1f} %" if base else "" for key in ("work_node_h", "energy_j")]
        above = f"{own['over_cap_ws'] / KWH_J:.1f}, {late['over_cap_ws'] / KWH_J:.1f}"
        rows.append((
            what.removeprefix(begins), f"{own['started']} of {own['jobs']}", f"{own['mean_wait_s']:.0f}",
            *off["mean_wait_s"], f"{own['energy_j'] / KWH_J:.1f}", *off["energy_j"], work, *shares, above,
            f"{own['start_delay_s']:.1f}", f"{own['load'][0]:.0f}",
        ))  # fmt: skip
    return render(HEADINGS, rows) + "".join(f"\n{line}" for line in orders(begins, kept))


def orders(begins: str, kept: dict[str, Any]) -> Iterator[str]:
    """By work next to the published order, where all three are measured."""
    for share in SHARES:
        work = {
            mode: kept.get(f"{begins}{share:.0%} {mode}", {}).get("riplay", {}).get("work_node_h") for mode in MODES
        }
        if all(work.values()):
            ours = " < ".join(sorted(MODES, key=work.__getitem__))
            yield f"{share:.0%}: work {ours}; published {PUBLISHED[share]}"


def is_within(kept: dict[str, Any]) -> bool:
    """Whether each cell is as near the late replay as stated."""
    found = [one for one in kept.values() if "late" in one]
    return all(abs(one["riplay"][key] / one["late"][key] - 1) <= most for one in found for key, most in WITHIN.items())


def main(arguments: list[str] | None = None) -> int:
    is_quick = options(arguments, __doc__, "75 minutes of SDSC-SP2 at 60 %: off against slow nodes")
    if is_quick is None:
        return 0
    if not LOGS.exists():
        print(f"skipped: {LOGS} is not there")
        return 0
    kept: dict[str, Any] = {}
    if not is_quick and (OUT / f"{NAME}.json").exists():
        kept = msgspec.json.decode((OUT / f"{NAME}.json").read_bytes())
        del kept["emulated"]
    OUT.mkdir(parents=True, exist_ok=True)
    measure("SDSC-SP2", LOGS / "SDSC-SP2.swf.gz", 1.25 if is_quick else 5.0, is_quick, kept)
    if not is_quick:
        measure("Curie scaled", curie(OUT), 5.0, is_quick, kept)
    return 0 if is_within(kept) else 1


if __name__ == "__main__":
    raise SystemExit(main())
