"""A mixed batch of three users on a real Slurm under a budget: each job's joules by nodectl, by sacct, and in truth.

`make demo-slurm`. A real Slurm 22.05 with four nodes (scripts/slurm.sh); the cluster agent; four emulated nodes with
the real agent (``nodectl twin node``), on which a job puts its workload through a socket for as long as it runs
(``twin.programs.workload_socket``). The truth is the emulated nodes' own energy between the same two instants, from a
trace that no agent sees. All watts are EMULATED. Needs root, and some three minutes.

Jobs ask by their comment that policies decide, or rest (``nodectl=monitor``); the node's agent says which mode it took.
Three times the same job, each next to the truth of the same time:

- ``meters``: what its nodes' meters show (packages, memory, GPUs), by the page of each node, from prolog to epilog;
- ``all``: the same with the nodes' constant ``rest_w``, the most that what no meter reaches may draw (board, fans, and
  memory once more). ``rest W`` is by how much that is too high, in watts of a node: it is the same with any manager;
- ``nodectl`` and ``sacct``: by the cluster agent, from notice to notice.

``hook ms``: how long the start waited in the hook until the caps of its nodes were in force ("-": they were not, within
five seconds); ``caps W``: the lowest and the highest cap of its nodes while it ran.

Then the sum of jobs and idle nodes, by meters; then two jobs at a time on one node. At last the third grade: the jobs
of the partition are deferred, and `clusterctl slurm schedule` releases them.
"""

from __future__ import annotations

import contextlib
import datetime
import io
import itertools
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from benchmarks.experiment import save
from benchmarks.slurm import DELAY, SLURM_USER, options
from benchmarks.slurm_schedule import act
from cluster_agent.hook.build_hook import build
from foundation.shell.text_table import render
from lab.emulated.emulated_cgroups import OwnJoules
from lab.emulated.emulated_node import Truth
from lab.emulated.watts import watts_of
from tests.fabric.cluster import ROOT, Cluster
from tests.slurm.site import Site

NODES = ("n01", "n02", "n03", "n04")
MACHINE = "curie"
SHARE = 0.75
EXACT = 0.02
"""Of a job on nodes of its own, by meters: the most that is allowed."""

JOB = """import os, socket, sys, time
node = socket.socket(socket.AF_UNIX)
node.connect(os.path.join(sys.argv[1], os.environ["SLURMD_NODENAME"]))
node.sendall((" ".join([sys.argv[2], *sys.argv[4:]]) + "\\n").encode())
assert node.recv(200) == b"ok\\n"
time.sleep(float(sys.argv[3]))
"""
HALF = """#!/bin/sh
ids=$(scontrol -d show job $SLURM_JOB_ID | sed -n 's/.* CPU_IDs=\\([0-9]\\).*/\\1/p')
exec "$@" job=$SLURM_JOB_ID cpus=$((4 * ids))-$((4 * ids + 7))
"""
"""Slurm's nodes have four CPUs, each of which stands for four of the emulated node."""

KINDS = (("hpl", "compute"), ("stream", "memory"), ("gromacs", "compute"))
MODES = ("optimize", "monitor")
USERS = ("alice", "bob", "carol")

type_serve = Callable[[Site, Cluster, Path, Path], Sequence[str]]


class Drew(NamedTuple):
    """By the page of one node: Unix seconds and joules of a job, or of the node."""

    began_s: float
    ended_s: float
    joules: float
    of_meters_j: float


class Truths:
    """The energy of each node by its trace, at any time of the wall clock."""

    def __init__(self, folder: Path, names: Sequence[str] = NODES) -> None:
        ahead_s = time.time() - time.monotonic()
        self._at: dict[str, tuple[Any, Any, Any]] = {}
        self.lines: dict[str, list[Truth]] = {}
        for name in names:
            lines = (folder / f"{name}.jsonl").read_bytes().splitlines()[:-1]
            found = self.lines[name] = [msgspec.json.decode(line, type=Truth) for line in lines]
            self._at[name] = (
                np.array([one.at_s + ahead_s for one in found]),
                np.array([one.node_j for one in found]),
                np.array([one.packages_j + one.dram_j + one.gpus_j for one in found]),
            )

    def joules(self, name: str, began_s: float, ended_s: float) -> tuple[float, float]:
        """Drawn by this node between two times: by all of it, and by what has meters."""
        at_s, *columns = self._at[name]
        node, meters = (float(np.interp(ended_s, at_s, one) - np.interp(began_s, at_s, one)) for one in columns)
        return node, meters

    def shares(self, name: str, jobs: Sequence[str]) -> dict[str, float]:
        """Joules of meters of jobs that shared this node: what their cores and their traffic draw, and of all else a
        part by processor time, interval by interval."""
        found = dict.fromkeys(jobs, 0.0)
        for before, now in itertools.pairwise(self.lines[name]):
            own = {
                job: now.jobs[job].since(before.jobs.get(job, OwnJoules(0, 0, 0, 0))) for job in jobs if job in now.jobs
            }
            used_s = sum(one.processor_s for one in own.values())
            drawn_j = (now.packages_j + now.dram_j) - (before.packages_j + before.dram_j)
            others_j = drawn_j - sum(sum(one[:3]) for one in own.values())
            for job, one in own.items():
                found[job] += sum(one[:3]) + (others_j * one.processor_s / used_s if used_s else 0.0)
        return found


@contextlib.contextmanager
def hooked(
    site: Site, budget_w: float, names: Sequence[str] = NODES, *more: str, serve: type_serve | None = None
) -> Iterator[tuple[Cluster, Path, Path]]:
    """The cluster agent, emulated nodes, hooks and `follow`, with the folders of sockets and of traces. ``more``:
    options of the nodes; ``serve`` starts some of them in its own way, in Slurm's network, and says which."""
    (site.at / "head").mkdir()
    sockets, trace = site.at / "sockets", site.at / "trace"
    with contextlib.redirect_stdout(io.StringIO()):  # the keys
        cluster = Cluster(site.at / "head", budget_w, sharer="aapc", notifiers=[SLURM_USER])
        for name in names:
            cluster.allow(name)
    with cluster as head:
        build(site.at / "nodectl-hook")
        within = site.within if serve else None
        head.serve(within)
        words = ["--machine", MACHINE, "--keys", str(head.keys), "--cluster", head.url]
        words += ["--workload-sockets", str(sockets), "--run", str(site.at / "run"), *more]
        for folder in (sockets, trace):
            folder.mkdir()
        served = serve(site, head, sockets, trace) if serve else ()
        words += ["--trace", str(trace), *(name for name in names if name not in served)]
        head.start("-m", "nodectl.cli", "twin", "node", *words, log="nodes.log", within=within)
        head.until(lambda: [row["state"] for row in head.ask("nodes") or []] == ["capped"] * len(names), is_kept=False)
        clusterctl = ["env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "cluster_agent.cli"]
        place = ["--socket", str(head.socket)]
        hook = ["--hook", str(site.at / "nodectl-hook")]
        site.run(*clusterctl, "slurm", "install", "--yes", "--nodes", *place, *hook)
        site.shell("sed -i 's/ --quiet//' /etc/slurm/nodectl/*-slurmctld")  # each delay is in the hooks' log
        site.shell(f"sed -i 's,^folder=.*,folder={site.at}/run/$SLURMD_NODENAME,' /etc/slurm/nodectl/*-node")
        site.restart_controller()
        site.run("scontrol", "reconfigure")
        head.start("-m", "cluster_agent.cli", "slurm", "follow", "--cluster", "emulated", "--every", "2",
                   "--admin-comment", *place, log="follow.log", within=site.within)  # fmt: skip
        head.until(lambda: "follows the queue" in (head.at / "follow.log").read_text(), is_kept=False)
        yield head, sockets, trace


def page_of(path: Path) -> dict[str, Drew]:
    """Of the node and of each job that has ended, by the page of one node (nodectl/site_jobs/joules_page.py)."""
    written_s = path.stat().st_mtime
    found = {}
    for words in (line.split() for line in path.read_text().splitlines()[1:]):
        ended_s = datetime.datetime.fromisoformat(words[8]).timestamp() if "T" in words[8] else written_s
        began_s = ended_s - float(words[4]) - float(words[5])
        found[words[0]] = Drew(began_s, ended_s, float(words[2]), float(words[3]))
    return found


def seen_modes(said: str, names: list[str], job: str) -> list[str]:
    """The mode that each node's agent noted at the start of the job."""
    return re.findall(rf"job {job} of \w+: start, mode (\w+)", said)[: len(names)]


def measure(jobs: int, seconds: float) -> dict[str, Any]:
    watts, _ = watts_of(MACHINE)
    budget_w = SHARE * watts.tdp_w * len(NODES)
    with Site(len(NODES)) as site, hooked(site, budget_w) as (head, sockets, trace):
        (site.at / "job.py").write_text(JOB)
        site.run("srun", f"-N{len(NODES)}", "true")  # a node's page begins with its first prolog
        before = {name: page_of(site.at / "run" / name / "job-joules") for name in NODES}
        submitted: dict[str, tuple[str, str, str]] = {}
        caps_w: dict[str, list[float]] = {}
        for number, ((workload, tag), user) in zip(
            range(jobs), itertools.cycle(zip(KINDS, USERS, strict=True)), strict=False
        ):
            mode = MODES[number // len(KINDS) % 2]
            comment = f"nodectl={tag} nodectl={mode}"
            words = ["sbatch", "--parsable", f"-N{1 + number % 2}", "-o", "/dev/null", "--comment", comment]
            run = f"srun python3 {site.at}/job.py {sockets} {workload} {seconds}"
            submitted[site.run(*words, "-J", workload, "--wrap", run, user=user).strip()] = (user, workload, mode)
        sacct = ["sacct", "-nPX", "-j", ",".join(submitted), "-o", "jobid,state,nodelist%100,admincomment%100"]

        def accounted() -> list[list[str]]:
            for job, caps in caps_of(head).items():
                caps_w.setdefault(job, []).extend(caps)
            return [line.split("|") for line in site.run(*sacct).splitlines()]

        site.until(lambda: sum(bool(row[3]) for row in accounted()) == jobs, patience_s=1200)
        time.sleep(2.0)  # for the traces
        truths = Truths(trace)
        said = (head.at / "nodes.log").read_text()
        after = {name: page_of(site.at / "run" / name / "job-joules") for name in NODES}
        found = booked(site, head, accounted(), truths, after)
        waited = DELAY.findall((site.at / "log" / "nodectl-hook.log").read_text())
        hook_ms = {job: int(ms) for job, outcome, ms in waited if outcome == "caps are in force"}
        for row in found:
            user, workload, mode = submitted[row["job"]]
            row |= {
                "user": user,
                "workload": workload,
                "mode": mode,
                "seen": seen_modes(said, row["names"], row["job"]),
                "hook_ms": hook_ms.get(row["job"]),
                "caps_w": caps_w.get(row["job"], []),
            }
        whole = whole_of(truths, before, after, list(submitted))
        shared = shared_node(site, head, sockets, trace, seconds)
        in_order = act(site, "--socket", str(head.socket), "--hook", str(site.at / "nodectl-hook"))
        alarms = head.ask("budget", "show")["alarms"]
    return {"in_order": in_order, "rows": found, "whole": whole, "shared": shared, "budget_w": budget_w,
            "rest_w": watts.rest_w, "alarms": alarms}  # fmt: skip


def caps_of(head: Cluster) -> dict[str, list[float]]:
    """The caps in force on the nodes of each job that runs now."""
    in_force_w = {row["name"]: float(row["in_force_w"]) for row in head.ask("nodes") or []}
    jobs = head.ask("notify", "list") or []
    return {job["job"]: [in_force_w[node] for node in job["nodes"] if node in in_force_w] for job in jobs}


def booked(
    site: Site, head: Cluster, accounted: list[list[str]], truths: Truths, after: dict[str, dict[str, Drew]]
) -> list[dict[str, Any]]:
    """Each job (its number, state, nodes and AdminComment) by the pages of its nodes and by notice, with the truth of
    the same times. ``energy_j`` None: the cluster agent does not know."""
    rows = {row["job"]: row for row in head.ask("energy")}
    found = []
    for job, state, node_list, comment in accounted:
        names = site.run("scontrol", "show", "hostnames", node_list).split()
        drew = [after[name][job] for name in names]
        began_s, ended_s = min(one.began_s for one in drew), max(one.ended_s for one in drew)
        row = rows.get(job, {"began_s": began_s, "ended_s": ended_s, "energy_j": None})  # no notice has come
        truth = [truths.joules(name, one.began_s, one.ended_s) for name, one in zip(names, drew, strict=True)]
        found.append({
            "job": job, "state": state, "names": names, "nodes": len(names), "took_s": row["ended_s"] - row["began_s"],
            "energy_j": row["energy_j"], "sacct": comment,
            "all_j": sum(one.joules for one in drew), "meters_j": sum(one.of_meters_j for one in drew),
            "node_s": sum(one.ended_s - one.began_s for one in drew),
            "truth_all_j": sum(node_j for node_j, _ in truth),
            "truth_meters_j": sum(meters_j for _, meters_j in truth),
            "truth_notices_j": sum(truths.joules(name, row["began_s"], row["ended_s"])[0] for name in names),
        })  # fmt: skip
    return found


def whole_of(
    truths: Truths, before: dict[str, dict[str, Drew]], after: dict[str, dict[str, Drew]], jobs: Sequence[str]
) -> dict[str, float]:
    """Jobs and idle nodes between two pages of each node: joules of meters, and their truth."""
    pages_j, truth_j, jobs_j = 0.0, 0.0, 0.0
    for name in after:
        first, last = before[name]["node"], after[name]["node"]
        pages_j += last.of_meters_j - first.of_meters_j
        took_s = (last.ended_s - last.began_s) - (first.ended_s - first.began_s)  # a busy machine writes pages late
        truth_j += truths.joules(name, first.ended_s, first.ended_s + took_s)[1]
        jobs_j += sum(one.of_meters_j for job, one in after[name].items() if job in jobs)
    return {"jobs_j": jobs_j, "idle_j": pages_j - jobs_j, "truth_j": truth_j}


def shared_node(site: Site, head: Cluster, sockets: Path, trace: Path, seconds: float) -> list[dict[str, Any]]:
    """Two jobs at a time on one node, half of its CPUs each: joules of meters by the node's page, and their truth; and
    all joules, by the page and by the cluster agent."""
    site.run("scontrol", "update", "partitionname=all", "oversubscribe=no")
    (site.at / "half.sh").write_text(HALF)
    jobs: dict[str, str] = {}
    for workload, _ in (*KINDS[:2], KINDS[2], KINDS[2]):
        words = ["sbatch", "--parsable", "-n1", "-c2", "-w", NODES[0], "-o", "/dev/null", str(site.at / "half.sh")]
        place = ["python3", str(site.at / "job.py"), str(sockets), workload, str(seconds)]
        jobs[site.run(*words, *place, user="alice").strip()] = workload
    site.until(lambda: not site.run("squeue", "-h").strip(), patience_s=600)
    head.until(lambda: not head.ask("notify", "list"), is_kept=False)
    time.sleep(2.0)
    rows = {row["job"]: row["energy_j"] for row in head.ask("energy")}
    site.run("scontrol", "update", "partitionname=all", "oversubscribe=exclusive")
    page, truth = page_of(site.at / "run" / NODES[0] / "job-joules"), Truths(trace).shares(NODES[0], list(jobs))
    return [{"job": job, "workload": workload, "meters_j": page[job].of_meters_j, "truth_meters_j": truth[job],
             "all_j": page[job].joules, "energy_j": rows[job]}
            for job, workload in jobs.items()]  # fmt: skip


def _next_to(joules: float, truth_j: float) -> tuple[str, str, str]:
    return f"{joules:.0f}", f"{truth_j:.0f}", f"{joules / truth_j - 1:+.1%}"


def main(arguments: list[str] | None = None) -> int:
    is_quick = options(arguments, __doc__, "6 jobs of 8 s instead of 12 of 20 s")
    if is_quick is None:
        return 0
    found = measure(*((6, 8.0) if is_quick else (12, 20.0)))
    print(f"EMULATED: {len(NODES)} nodes of {MACHINE} under {found['budget_w']:.0f} W, a real Slurm, three users")
    lines = []
    for row in found["rows"]:
        of_sacct = row["sacct"].split()[1].removeprefix("joules=")
        rest_w = (row["all_j"] - row["truth_all_j"] - row["meters_j"] + row["truth_meters_j"]) / row["node_s"]
        lines.append((row["job"], row["user"], row["workload"], "/".join(sorted(set(row["seen"]))), str(row["nodes"]),
                      f"{row['took_s']:.1f}", "-" if row["hook_ms"] is None else str(row["hook_ms"]),
                      f"{min(row['caps_w']):.0f}-{max(row['caps_w']):.0f}" if row["caps_w"] else "-",
                      *_next_to(row["meters_j"], row["truth_meters_j"]),
                      *_next_to(row["all_j"], row["truth_all_j"]), f"{rest_w:+.1f}",
                      *_next_to(row["energy_j"], row["truth_notices_j"]), of_sacct))  # fmt: skip
    heads = "job", "user", "workload", "mode", "nodes", "s", "hook ms", "caps W"
    print(render((*heads, "J meters", "truth", "off", "J all", "truth", "off", "rest W", "J nodectl", "truth", "off",
                  "J sacct"), lines))  # fmt: skip
    whole = found["whole"]
    print("all nodes, by meters: jobs {jobs_j:.0f} J and idle {idle_j:.0f} J, truth of both {truth_j:.0f} J"
          .format(**whole) + f": {(whole['jobs_j'] + whole['idle_j']) / whole['truth_j'] - 1:+.2%}")  # fmt: skip
    print("two jobs at a time on one node, by meters")
    print(render(("job", "workload", "J meters", "truth", "off", "J all", "J nodectl"), [
        (row["job"], row["workload"], *_next_to(row["meters_j"], row["truth_meters_j"]), f"{row['all_j']:.0f}",
         "unknown" if row["energy_j"] is None else f"{row['energy_j']:.0f}") for row in found["shared"]
    ]))  # fmt: skip
    print("then our policy `easy` orders the queue: the same Slurm, hooks and caps; in the order of their starts")
    print(render(("job", "user", "nodes", "limit", "started after, s", "on"), found["in_order"]))
    save("slurm_joules", found)
    ended = all(row["state"] == "COMPLETED" and row["energy_j"] is not None for row in found["rows"])
    moved = all(row["seen"] == [row["mode"]] * row["nodes"] for row in found["rows"])
    is_exact = all(abs(row["meters_j"] / row["truth_meters_j"] - 1) <= EXACT for row in found["rows"])
    return 0 if ended and moved and is_exact else 1


if __name__ == "__main__":
    raise SystemExit(main())
