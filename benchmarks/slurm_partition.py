"""A partition of 64 nodes on a real Slurm: joules of each job next to the truth, and a budget that falls meanwhile.

A real Slurm 22.05 with 64 slurmd (scripts/slurm.sh). Two nodes are served twins, in which slurmd, its jobs and `nodectl
run` run as on a machine of their own; the agents of the other 62 are in process (``nodectl twin node``). All of them
are `curie`, under 75 % of their TDP. Jobs of one to four nodes of three users put their workload on their nodes for as
long as they run. In the middle the budget falls by a fifth, and rises again.

The truth is the emulated nodes' own energy, by traces that no agent sees: of each job from prolog to epilog on each of
its nodes, of all nodes together from page to page, and at each instant of the power of all nodes next to the budget.
While the budget is being lowered the old one counts, until the cluster agent says that all of it is confirmed; how long
that took is printed. All watts are EMULATED. Needs root.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from benchmarks.experiment import save
from benchmarks.slurm import options
from benchmarks.slurm_joules import EXACT, JOB, KINDS, MACHINE, SHARE, USERS, Truths, booked, hooked, page_of, whole_of
from foundation.shell.text_table import render
from lab.emulated.emulated_node import SETTLE_S, Truth
from lab.emulated.watts import watts_of
from tests.fabric.cluster import Cluster
from tests.slurm.site import Site
from twin.serve.control import send_request
from twin.serve.namespace import CONTROL, RUN_DIRECTORY, WORKLOAD

ALL: Final = 64
SERVED: Final = ("n01", "n02")
STEP: Final = 0.8
PERIOD_MS: Final = 500
"""Of the agents: 64 of them share the two processors of this machine with all of Slurm."""

LOOK_S: Final = 0.1
GRID_S: Final = 0.5
SUM_EXACT: Final = 0.01

INSIDE: Final = """
mkdir -p /run/nodectl /run/slurm
mount --bind {run} /run/nodectl
{python} -m nodectl.cli run --config {at}/{name}.toml >>{at}/head/{name}.log 2>&1 &
exec slurmd -D -N {name}
"""
"""What runs in a served twin."""

SETTINGS: Final = """mode = "optimize"
period_ms = {period_ms}
state_dir = "{at}/state-{name}"
[caps]
rest_w = {rest_w}
[journal]
max_bytes = 0
[gpu_policy]
name = "none"
[cluster]
url = "{url}"
key = "{keys}/{name}.key"
server_key = "{server_key}"
name = "{name}"
tdp_w = {tdp_w}
mop_w = {mop_w}
safe_w = {safe_w}
boot_w = {tdp_w}
settle_s = {settle_s}
"""


def serve(site: Site, head: Cluster, sockets: Path, trace: Path) -> Sequence[str]:
    """The two served twins, with a slurmd and an agent in each, in place of the slurmd that run."""
    watts, _ = watts_of(MACHINE)
    server_key = head.keys / "cluster.pub"
    for name in SERVED:
        end = "kill $pid; while kill -0 $pid 2>/dev/null; do sleep 0.1; done"
        site.shell(f"pid=$(cat /run/slurm/slurmd.{name}.pid); {end}")
        run = site.at / "run" / name
        run.mkdir(mode=0o755, parents=True)
        (site.at / f"{name}.toml").write_text(SETTINGS.format(
            period_ms=PERIOD_MS, at=site.at, name=name, rest_w=watts.rest_w, url=head.url, keys=head.keys,
            server_key=server_key if server_key.exists() else head.keys / "cluster.key", tdp_w=watts.tdp_w,
            mop_w=watts.mop_w, safe_w=watts.safe_w, settle_s=SETTLE_S,
        ))  # fmt: skip
        inside = INSIDE.format(run=run, at=site.at, name=name, python=sys.executable)
        head.start("-m", "twin.cli", "run", "--machine", MACHINE, "--keep", "--", "sh", "-euc", inside,
                   log=f"{name}-twin.log", within=site.within)  # fmt: skip
        (sockets / name).symlink_to(f"{RUN_DIRECTORY}/{WORKLOAD}")  # inside the twin it is the twin's own
        watch = f"from benchmarks.slurm_partition import watch; watch({name!r}, {str(trace)!r})"
        head.start("-c", watch, log=f"{name}-truth.log")
    return SERVED


def watch(name: str, folder: str) -> None:
    """Write the truth of a served twin, until this process is killed."""
    control = ""
    while not control:
        time.sleep(LOOK_S)
        control = _control_of(name)
    with open(f"{folder}/{name}.jsonl", "wb", buffering=0) as file:
        while True:
            drawn = send_request(control, "drawn")
            parts = drawn["parts_j"]
            packages_j, dram_j = (
                sum(joules for part, joules in parts.items() if part.startswith(of)) for of in ("package-", "dram-")
            )
            truth = Truth(drawn["at_s"], parts["node"], None, None, {}, packages_j, dram_j)
            file.write(msgspec.json.encode(truth) + b"\n")
            time.sleep(LOOK_S)


def _control_of(name: str) -> str:
    """The control socket of the twin in which slurmd is this node; empty: there is none yet."""
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes().split(b"\0") if process.name.isdigit() else []
            if words[-3:-1] == [b"-N", name.encode()] and (process / f"root{CONTROL}").exists():
                return f"{process}/root{CONTROL}"
    return ""


def measure(jobs: int, seconds: float, seed: int = 1) -> dict[str, Any]:
    names = [f"n{number:02d}" for number in range(1, ALL + 1)]
    watts, _ = watts_of(MACHINE)
    budget_w, drawn = SHARE * watts.tdp_w * ALL, random.Random(seed)
    with Site(ALL) as site:
        settings = site.at / "nodes.toml"
        settings.write_text(f"period_ms = {PERIOD_MS}\n")
        with hooked(site, budget_w, names, "--config", str(settings), serve=serve) as (head, sockets, trace):
            (site.at / "job.py").write_text(JOB)
            site.until(lambda: site.run("sinfo", "-h", "-o", "%D %T").strip() == f"{ALL} idle")
            site.run("srun", f"-N{ALL}", "true", timeout_s=300.0)  # a node's page begins with its first prolog
            time.sleep(2.0)
            before = _pages(site, names)
            submitted: dict[str, tuple[str, str]] = {}
            for number, ((workload, tag), user) in zip(
                range(jobs), itertools.cycle(zip(KINDS, USERS, strict=True)), strict=False
            ):
                where = ["-w", SERVED[number // 8 % 2]] if number % 8 == 0 else []
                wide = 1 if where else drawn.randint(1, 4)
                words = ["sbatch", "--parsable", f"-N{wide}", *where, "-o", "/dev/null", "--comment", f"nodectl={tag}"]
                took_s = seconds * drawn.uniform(0.7, 1.3)
                run = f"srun python3 {site.at}/job.py {sockets} {workload} {took_s:.1f}"
                submitted[site.run(*words, "-J", workload, "--wrap", run, user=user).strip()] = (user, workload)
            site.until(lambda: site.run("squeue", "-h", "-t", "R").strip())
            time.sleep(seconds / 3)
            steps = [(0.0, budget_w)]
            lowered_s = _set(head, STEP * budget_w, steps)
            time.sleep(seconds / 2)
            _set(head, budget_w, steps)
            sacct = ["sacct", "-nPX", "-j", ",".join(submitted), "-o", "jobid,state,nodelist%100,admincomment%100"]

            def accounted() -> list[list[str]]:
                return [line.split("|") for line in site.run(*sacct).splitlines()]

            site.until(lambda: [row[1] for row in accounted()] == ["COMPLETED"] * jobs, patience_s=1800)
            site.until(lambda: not head.ask("notify", "list"))
            time.sleep(3.0)  # for the traces
            truths, after = Truths(trace, names), _pages(site, names)
            rows = booked(site, head, accounted(), truths, after)
            for row in rows:
                row["user"], row["workload"] = submitted[row["job"]]
            whole = whole_of(truths, before, after, list(submitted))
            over_ws, highest_w, seconds_of_it = _over(truths, names, steps)
            alarms = head.ask("budget", "show")["alarms"]
    return {"rows": rows, "whole": whole, "budget_w": budget_w, "lowered_s": lowered_s, "over_ws": over_ws,
            "highest_w": highest_w, "seconds": seconds_of_it, "alarms": alarms, "load": os.getloadavg()[0]}  # fmt: skip


def _pages(site: Site, names: Sequence[str]) -> dict[str, Any]:
    return {name: page_of(site.at / "run" / name / "job-joules") for name in names}


def _set(head: Cluster, budget_w: float, steps: list[tuple[float, float]]) -> float:
    """Set the budget and wait until all of it is confirmed; how long that took. ``steps``: (CLOCK_MONOTONIC, watts) of
    what counts; a raise counts from its request on."""
    began_s = time.monotonic()
    if budget_w > steps[-1][1]:
        steps.append((began_s, budget_w))
    assert head.ctl("budget", "set", str(round(budget_w))).returncode == 0
    head.until(lambda: head.ask("budget", "show")["lowering_s"] is None, is_kept=False)
    if budget_w < steps[-1][1]:
        steps.append((time.monotonic(), budget_w))
    return time.monotonic() - began_s


def _over(truths: Truths, names: Sequence[str], steps: list[tuple[float, float]]) -> tuple[float, float, float]:
    """Watt seconds above the budget, the most that all nodes drew, and how long that was looked at."""
    first = max(truths.lines[name][0].at_s for name in names)
    last = min(truths.lines[name][-1].at_s for name in names)
    at_s = np.arange(first, last, GRID_S)
    watts = np.zeros(len(at_s) - 1)
    for name in names:
        lines = truths.lines[name]
        watts += np.diff(np.interp(at_s, [one.at_s for one in lines], [one.node_j for one in lines])) / GRID_S
    budget_w = np.zeros(len(watts))
    for from_s, step_w in steps:
        budget_w[at_s[:-1] >= from_s] = step_w
    return float(np.maximum(watts - budget_w, 0.0).sum() * GRID_S), float(watts.max()), float(last - first)


def main(arguments: list[str] | None = None) -> int:
    is_quick = options(arguments, __doc__, "12 jobs of about 10 s instead of 40 of 30 s")
    if is_quick is None:
        return 0
    found = measure(*((12, 10.0) if is_quick else (40, 30.0)))
    lines = [(row["job"], row["user"], row["workload"], str(row["nodes"]),
              "served" if set(row["names"]) & set(SERVED) else "in process", f"{row['took_s']:.1f}",
              f"{row['meters_j']:.0f}", f"{row['truth_meters_j']:.0f}",
              f"{row['meters_j'] / row['truth_meters_j'] - 1:+.2%}",
              f"{(row['all_j'] - row['truth_all_j'] - row['meters_j'] + row['truth_meters_j']) / row['node_s']:+.1f}")
             for row in found["rows"]]  # fmt: skip
    print(f"EMULATED: {ALL} nodes of {MACHINE}, two of them served, under {found['budget_w']:.0f} W, a real Slurm")
    print(render(("job", "user", "workload", "nodes", "on", "s", "J meters", "truth", "off", "rest W"), lines))
    whole = found["whole"]
    off = (whole["jobs_j"] + whole["idle_j"]) / whole["truth_j"] - 1
    print("all nodes, by meters: jobs {jobs_j:.0f} J and idle {idle_j:.0f} J, truth of both {truth_j:.0f} J"
          .format(**whole) + f": {off:+.2%}")  # fmt: skip
    known = sum(row["energy_j"] is not None for row in found["rows"])
    print(f"joules by notice: {known} of {len(lines)} jobs")
    print("the budget fell by a fifth, confirmed after {lowered_s:.1f} s; above the budget {over_ws:.2f} W s in "
          "{seconds:.0f} s, at most {highest_w:.0f} W drawn; alarms: {alarms} (load {load:.0f})"
          .format(**found))  # fmt: skip
    save("slurm_partition", found)
    ended = all(row["state"] == "COMPLETED" for row in found["rows"])
    is_exact = all(abs(row["meters_j"] / row["truth_meters_j"] - 1) <= EXACT for row in found["rows"])
    return 0 if ended and is_exact and abs(off) <= SUM_EXACT and found["over_ws"] == 0.0 else 1


if __name__ == "__main__":
    raise SystemExit(main())
