"""Slurm's hooks on a real Slurm: how long a job's start waits for its caps, what jobs notice, and a head that hangs.

A real Slurm 22.05 with four nodes (scripts/slurm.sh), the cluster agent, and scripted node agents with real leases and
CURVE links, whose hardware is emulated: a file with the cap. The delay is measured inside ``nodectl-hook``, from its
first instruction to the answer, and written to its log. Jobs of one node each, in an array, with watts free for all.
Then the same ``srun true`` with and without hooks, in one Slurm, and starts while the head is stopped. Needs root.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import signal
import sys
import time
from statistics import median
from typing import Any

from benchmarks.experiment import save
from cluster_agent.hook.build_hook import build
from tests.fabric.cluster import ROOT, Cluster
from tests.slurm.site import Site, why_no_slurm

NODES = 4
WAIT_S = 5.0
SLURM_USER = "64032"  # by its number: this machine does not know Slurm's users
DELAY = re.compile(r"job (\d+): (caps are in force|no cluster agent|[a-z ]+) after (\d+) ms")


class Hooked:
    """A Slurm with hooks that print every delay, next to a cluster agent that is serving."""

    def __init__(self, site: Site, head: Cluster, nodes: int = NODES) -> None:
        self.site, self.head = site, head
        build(site.at / "nodectl-hook")
        self.serving = head.serve()
        for number in range(1, nodes + 1):
            head.node(f"n{number:02d}", cap_w=150.0)
        head.until(lambda: [row["state"] for row in head.ask("nodes") or []] == ["capped"] * nodes)

    def clusterctl(self, *words: str) -> None:
        self.site.run("env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "cluster_agent.cli", *words)

    def install(self) -> None:
        self.clusterctl("slurm", "install", "--yes", "--wait", str(WAIT_S), "--socket", str(self.head.socket),
                        "--hook", str(self.site.at / "nodectl-hook"))  # fmt: skip
        self.site.shell("sed -i 's/ --quiet//' /etc/slurm/nodectl/*-slurmctld")
        self.site.restart_controller()

    def remove(self) -> None:
        self.clusterctl("slurm", "remove", "--yes")
        self.site.restart_controller()

    def delays_ms(self, what: str) -> list[int]:
        """Of the starts that ended so, by the hooks' log, which is emptied."""
        log = self.site.at / "log" / "nodectl-hook.log"
        found = [int(ms) for _, outcome, ms in DELAY.findall(log.read_text()) if outcome == what]
        log.write_text("")
        return found

    def array(self, jobs: int, script: str = "true") -> None:
        """So many jobs of one node; waits until all have ended."""
        words = ["sbatch", "--parsable", f"--array=1-{jobs}", "--comment", "nodectl=compute", "-o", "/dev/null"]
        self.site.run(*words, "--wrap", script, user="alice")
        self.site.until(lambda: not self.site.run("squeue", "-h").strip(), patience_s=1800)

    def sruns_s(self, times: int) -> list[float]:
        found = []
        for _ in range(times):
            began_s = time.monotonic()
            self.site.run("srun", "--comment", "nodectl=compute", "true", user="alice")
            found.append(time.monotonic() - began_s)
        return found


def measure(jobs: int, times: int, hanging: int) -> dict[str, Any]:
    """``times``: of ``srun true`` with hooks, and as many without; ``hanging``: jobs while the head is stopped."""
    with (
        Site(NODES, accounting=False) as site,
        contextlib.ExitStack() as closing,
    ):
        (site.at / "head").mkdir()
        with contextlib.redirect_stdout(io.StringIO()):  # the keys
            head = closing.enter_context(
                Cluster(site.at / "head", 500.0 * NODES, sharer="aapc", notifiers=[SLURM_USER])
            )
        hooked = Hooked(site, head)
        without_s, with_s = [], []
        for _ in range(2):  # alternating: the machine's load changes
            without_s += hooked.sruns_s(times // 2)
            hooked.install()
            with_s += hooked.sruns_s(times // 2)
            hooked.remove()
        hooked.install()
        hooked.delays_ms("")
        hooked.array(jobs)
        in_force_ms = hooked.delays_ms("caps are in force")
        highest_w = head.highest_w()
        os.kill(hooked.serving.pid, signal.SIGSTOP)
        try:
            hooked.array(hanging)
        finally:
            os.kill(hooked.serving.pid, signal.SIGCONT)
        gone_ms = hooked.delays_ms("no cluster agent")
    ordered = sorted(in_force_ms)
    return {
        "jobs": jobs, "in_force": len(ordered), "p50_ms": median(ordered),
        "p99_ms": ordered[min(len(ordered) - 1, round(0.99 * len(ordered)))], "worst_ms": ordered[-1],
        "srun_with_s": median(with_s), "srun_without_s": median(without_s), "sruns": len(with_s),
        "hanging": hanging, "hanging_worst_ms": max(gone_ms), "wait_ms": 1000 * WAIT_S,
        "highest_w": highest_w, "budget_w": 500.0 * NODES, "load": os.getloadavg()[0],
    }  # fmt: skip


def options(arguments: list[str] | None, about: str | None, quick: str) -> bool | None:
    """The command line of a benchmark on a real Slurm: whether it is to be quick; None, and why, if none runs here."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--quick", action="store_true", help=quick)
    is_quick = bool(parser.parse_args(arguments).quick)
    if why := why_no_slurm():
        print(f"not measured: {why}")
        return None
    return is_quick


def main(arguments: list[str] | None = None) -> int:
    is_quick = options(arguments, __doc__, "40 jobs instead of 300")
    if is_quick is None:
        return 0
    found = measure(*((40, 10, 4) if is_quick else (300, 40, 8)))
    print("{in_force} of {jobs} jobs started with their caps in force, after p50 {p50_ms:.0f} ms, p99 {p99_ms} ms, "
          "at worst {worst_ms} ms (load {load:.0f})".format(**found))  # fmt: skip
    print("srun true, median of {sruns} each: {srun_with_s:.2f} s with hooks, {srun_without_s:.2f} s without"
          .format(**found))  # fmt: skip
    print("head stopped: {hanging} jobs started after {hanging_worst_ms} ms at worst, of {wait_ms:.0f} ms stated; "
          "most that could be drawn {highest_w:.0f} W of {budget_w:.0f} W".format(**found))  # fmt: skip
    save("slurm", found)
    is_kept = found["highest_w"] <= found["budget_w"] and found["hanging_worst_ms"] < found["wait_ms"] + 1000
    return 0 if is_kept and found["in_force"] == found["jobs"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
