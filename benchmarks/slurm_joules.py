"""A mixed batch of three users on a real Slurm under a budget: each job's joules by nodectl, by sacct, and in truth.

`make demo-slurm`. A real Slurm 22.05 with four nodes (scripts/slurm.sh); the cluster agent; four emulated nodes with
the real agent (``nodectl twin node``), on which a job puts its workload through a socket for as long as it runs
(``lab.emulated.workload_socket``). The truth is the emulated nodes' own energy between the same two instants, from a
trace that no agent sees. All watts are EMULATED. Needs root, and some three minutes.

Jobs ask by their comment that policies decide, or rest (``nodectl=monitor``); the node's agent says which mode it took.
``J on nodes`` is from the page of each node, from its prolog to its epilog; ``J nodectl`` from notice to notice.

At last the third grade: the jobs of the partition are deferred, and `clusterctl slurm schedule` releases them.

Joules by nodectl count the node's constant ``rest_w``, the most that what no meter reaches may draw, so they are above
the truth by what that draws less: the last column has the difference in watts of a node. It is that of the model's
memory, board and fans, which no counter of the node shows, and the same with any job manager.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.experiment import save
from benchmarks.slurm import SLURM_USER, options
from benchmarks.slurm_schedule import act
from cluster_agent.hook.build_hook import build
from foundation.shell.text_table import render
from lab.emulated.watts import watts_of
from tests.fabric.cluster import ROOT, Cluster
from tests.slurm.site import Site

NODES = ("n01", "n02", "n03", "n04")
MACHINE = "curie"
SHARE = 0.75
JOB = """import os, socket, sys, time
node = socket.socket(socket.AF_UNIX)
node.connect(os.path.join(sys.argv[1], os.environ["SLURMD_NODENAME"]))
node.sendall((sys.argv[2] + "\\n").encode())
assert node.recv(200) == b"ok\\n"
time.sleep(float(sys.argv[3]))
"""
KINDS = (("hpl", "compute"), ("stream", "memory"), ("gromacs", "compute"))
MODES = ("optimize", "monitor")
USERS = ("alice", "bob", "carol")


class Truths:
    """The energy of each node by its trace, at any time of the wall clock."""

    def __init__(self, folder: Path) -> None:
        ahead_s = time.time() - time.monotonic()
        self._at: dict[str, tuple[Any, Any]] = {}
        for name in NODES:
            lines = [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()[:-1]]
            self._at[name] = (
                np.array([one["at_s"] + ahead_s for one in lines]),
                np.array([one["node_j"] for one in lines]),
            )

    def joules(self, nodes: list[str], began_s: float, ended_s: float) -> float:
        """Drawn by these nodes between two times."""
        found = 0.0
        for name in nodes:
            at_s, node_j = self._at[name]
            found += float(np.interp(ended_s, at_s, node_j) - np.interp(began_s, at_s, node_j))
        return found


@contextlib.contextmanager
def hooked(site: Site, budget_w: float) -> Iterator[tuple[Cluster, Path, Path]]:
    """The cluster agent, four emulated nodes, hooks and `follow`, with the folders of sockets and of traces."""
    (site.at / "head").mkdir()
    sockets, trace = site.at / "sockets", site.at / "trace"
    with contextlib.redirect_stdout(io.StringIO()):  # the keys
        cluster = Cluster(site.at / "head", budget_w, sharer="aapc", notifiers=[SLURM_USER])
        for name in NODES:
            cluster.allow(name)
    with cluster as head:
        build(site.at / "nodectl-hook")
        head.serve()
        words = ["--machine", MACHINE, "--keys", str(head.keys), "--cluster", head.url]
        words += ["--workload-sockets", str(sockets), "--run", str(site.at / "run")]
        head.start("-m", "nodectl.cli", "twin", "node", *words, "--trace", str(trace), *NODES, log="nodes.log")
        head.until(lambda: [row["state"] for row in head.ask("nodes") or []] == ["capped"] * len(NODES), is_kept=False)
        clusterctl = ["env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "cluster_agent.cli"]
        place = ["--socket", str(head.socket)]
        hook = ["--hook", str(site.at / "nodectl-hook")]
        site.run(*clusterctl, "slurm", "install", "--yes", "--nodes", *place, *hook)
        site.shell(f"sed -i 's,^folder=.*,folder={site.at}/run/$SLURMD_NODENAME,' /etc/slurm/nodectl/*-node")
        site.restart_controller()
        site.run("scontrol", "reconfigure")
        head.start("-m", "cluster_agent.cli", "slurm", "follow", "--cluster", "emulated", "--every", "2",
                   "--admin-comment", *place, log="follow.log", within=site.within)  # fmt: skip
        head.until(lambda: "follows the queue" in (head.at / "follow.log").read_text(), is_kept=False)
        yield head, sockets, trace


def page_joules(path: Path) -> dict[str, float]:
    """Of each job, by the page of one node (nodectl/site_jobs/joules_page.py)."""
    return {words[0]: float(words[2]) for words in map(str.split, path.read_text().splitlines()[1:])}


def seen_modes(said: str, names: list[str], job: str) -> list[str]:
    """The mode that each node's agent noted at the start of the job."""
    return re.findall(rf"job {job} of \w+: start, mode (\w+)", said)[: len(names)]


def measure(jobs: int, seconds: float) -> dict[str, Any]:
    watts, _ = watts_of(MACHINE)
    budget_w = SHARE * watts.tdp_w * len(NODES)
    with Site(len(NODES)) as site, hooked(site, budget_w) as (head, sockets, trace):
        (site.at / "job.py").write_text(JOB)
        submitted: dict[str, tuple[str, str, str]] = {}
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
            return [line.split("|") for line in site.run(*sacct).splitlines()]

        site.until(lambda: all(row[3] for row in accounted()) and len(accounted()) == jobs, patience_s=1200)
        time.sleep(2.0)  # for the traces
        rows = {row["job"]: row for row in head.ask("energy")}
        truths = Truths(trace)
        said = (head.at / "nodes.log").read_text()
        on_nodes = {name: page_joules(site.at / "run" / name / "job-joules") for name in NODES}
        found = []
        for job, state, node_list, comment in accounted():
            names = site.run("scontrol", "show", "hostnames", node_list).split()
            row = rows[job]
            found.append({
                "job": job, "user": submitted[job][0], "workload": submitted[job][1], "state": state,
                "mode": submitted[job][2], "seen": seen_modes(said, names, job), "on_nodes_j": sum(
                    on_nodes[name][job] for name in names),
                "nodes": len(names), "took_s": row["ended_s"] - row["began_s"], "energy_j": row["energy_j"],
                "sacct": comment, "truth_j": truths.joules(names, row["began_s"], row["ended_s"]),
            })  # fmt: skip
        in_order = act(site, "--socket", str(head.socket), "--hook", str(site.at / "nodectl-hook"))
        alarms = head.ask("budget", "show")["alarms"]
    return {"in_order": in_order, "rows": found, "budget_w": budget_w, "rest_w": watts.rest_w, "alarms": alarms}


def main(arguments: list[str] | None = None) -> int:
    is_quick = options(arguments, __doc__, "6 jobs of 8 s instead of 12 of 20 s")
    if is_quick is None:
        return 0
    found = measure(*((6, 8.0) if is_quick else (12, 20.0)))
    print(f"EMULATED: {len(NODES)} nodes of {MACHINE} under {found['budget_w']:.0f} W, a real Slurm, three users")
    lines = []
    for row in found["rows"]:
        off = row["energy_j"] / row["truth_j"] - 1
        per_node_w = (row["energy_j"] - row["truth_j"]) / row["took_s"] / row["nodes"]
        of_sacct = row["sacct"].split()[1].removeprefix("joules=")
        modes = "/".join(sorted(set(row["seen"])))
        lines.append((row["job"], row["user"], row["workload"], modes, str(row["nodes"]), f"{row['took_s']:.1f}",
                      f"{row['energy_j']:.0f}", of_sacct, f"{row['on_nodes_j']:.0f}", f"{row['truth_j']:.0f}",
                      f"{off:+.1%}", f"{per_node_w:+.1f}"))  # fmt: skip
    heads = "job", "user", "workload", "mode", "nodes", "s", "J nodectl", "J sacct", "J on nodes", "J truth", "off"
    print(render((*heads, "W a node"), lines))
    print("then our policy `easy` orders the queue: the same Slurm, hooks and caps; in the order of their starts")
    print(render(("job", "user", "nodes", "limit", "started after, s", "on"), found["in_order"]))
    save("slurm_joules", found)
    ended = all(row["state"] == "COMPLETED" and row["energy_j"] is not None for row in found["rows"])
    moved = all(row["seen"] == [row["mode"]] * row["nodes"] for row in found["rows"])
    return 0 if ended and moved else 1


if __name__ == "__main__":
    raise SystemExit(main())
