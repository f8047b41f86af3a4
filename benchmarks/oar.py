"""OAR's scripts on a real OAR: how long a job's start waits for its caps, and what the scripts themselves take.

A real OAR 2.5.9 with four nodes (scripts/oar.sh), the cluster agent, and scripted node agents with real leases and
CURVE links, whose hardware is emulated: a file with the cap. The delay is measured inside ``nodectl-hook`` and is in
OAR's log. Each script is also run by itself for a job that has ended, with modes on its nodes and without. Needs root.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import sys
import time
from statistics import median
from typing import Any

from benchmarks.experiment import save
from benchmarks.slurm import DELAY
from cluster_agent.hook.build_hook import build
from tests.fabric.cluster import ROOT, Cluster
from tests.slurm.site import Site, why_none

NODES = 4
OAR_USER = "64032"  # by its number: this machine does not know OAR's users


def measure(jobs: int, times: int) -> dict[str, Any]:
    """``jobs`` of one node each; ``times``: of each script by itself."""
    with Site(NODES, manager="oar") as site, contextlib.ExitStack() as closing:
        (site.at / "head").mkdir()
        with contextlib.redirect_stdout(io.StringIO()):  # the keys
            head = closing.enter_context(Cluster(site.at / "head", 500.0 * NODES, sharer="aapc", notifiers=[OAR_USER]))
            head.serve()
            for number in range(1, NODES + 1):
                head.node(f"n{number:02d}", cap_w=150.0)
        build(site.at / "nodectl-hook")
        head.until(lambda: [row["state"] for row in head.ask("nodes") or []] == ["capped"] * NODES)
        site.shell("mkdir -p /run/nodectl")

        def install(*more: str) -> None:
            words = ["oar", "install", "--yes", *more, "--socket", str(head.socket)]
            words += ["--hook", str(site.at / "nodectl-hook")]
            site.run("env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "cluster_agent.cli", *words)
            site.shell("sed -i \"s/ '--quiet',//\" /etc/oar/nodectl/server-*")

        install("--nodes")
        for _ in range(jobs):
            site.shell("cd /tmp; oarsub -t bdpo=monitor -t nodectl=compute -l walltime=0:10 true", user="alice")
        site.until(lambda: not site.run("oarstat").strip(), patience_s=1800)
        log = site.shell("cat /var/log/oar.log")
        delays_ms = sorted(int(ms) for _, what, ms in DELAY.findall(log) if what == "caps are in force")
        last = re.findall(r"job (\d+): caps", log)[-1]
        scripts_s = {}
        for title, more in (("modes", ("--nodes",)), ("plain", ())):
            install(*more)
            took = []
            for _ in range(times):
                began_s = time.monotonic()
                site.shell(f"/etc/oar/nodectl/server-epilogue {last} 2>/dev/null", user="oar")
                took.append(time.monotonic() - began_s)
            scripts_s[title] = median(took)
        highest_w = head.highest_w()
    return {
        "jobs": jobs, "in_force": len(delays_ms), "p50_ms": median(delays_ms), "worst_ms": delays_ms[-1],
        "epilogue_s": scripts_s["plain"], "epilogue_with_modes_s": scripts_s["modes"], "times": times,
        "highest_w": highest_w, "budget_w": 500.0 * NODES, "load": os.getloadavg()[0],
    }  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.oar", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="12 jobs instead of 60")
    is_quick = parser.parse_args(arguments).quick
    if why := why_none("oar"):
        print(f"not measured: {why}")
        return 0
    found = measure(*((12, 5) if is_quick else (60, 20)))
    print(
        "{in_force} of {jobs} jobs started with their caps in force, after p50 {p50_ms:.0f} ms, at worst {worst_ms} ms"
        " inside the hook (load {load:.0f})".format(**found)
    )
    print(
        "a script by itself, median of {times}: {epilogue_s:.2f} s, with modes on the nodes {epilogue_with_modes_s:.2f}"
        " s; most that could be drawn {highest_w:.0f} W of {budget_w:.0f} W".format(**found)
    )
    save("oar", found)
    return 0 if found["in_force"] == found["jobs"] and found["highest_w"] <= found["budget_w"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
