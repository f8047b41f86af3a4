"""Whether hooks make slurmctld's own scheduling slower: its cycle with 64 nodes and 1,000 queued jobs.

A real Slurm 22.05 with 64 slurmd on this machine; an array of 1,000 jobs of one node and two seconds, in turn with the
hooks of `clusterctl slurm install` and without. The cluster agent has the first four nodes, scripted agents with real
leases: their jobs wait for caps, the hooks of the others are answered at once. The cycle is that of `sdiag`, from the
submission to the end of the last job. Longer cycles may just be fewer: `all cycles` is what scheduling took in all.
Needs root.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import time
from statistics import mean
from typing import Any, Final

from benchmarks.experiment import save
from benchmarks.slurm import NODES, SLURM_USER, Hooked, options
from foundation.shell.text_table import render
from tests.fabric.cluster import Cluster
from tests.slurm.site import Site

ALL_NODES: Final = 64
_STATISTIC: Final = re.compile(r"^\s*(Last cycle|Max cycle|Total cycles|Mean cycle):\s+(\d+)", re.MULTILINE)


def cycle(hooked: Hooked, jobs: int) -> dict[str, float]:
    """Microseconds of slurmctld's main scheduling while so many jobs come and end, and how long that took."""
    site = hooked.site
    site.run("sdiag", "--reset")
    began_s = time.monotonic()
    hooked.array(jobs, "sleep 2")
    took_s = time.monotonic() - began_s
    main = site.run("sdiag").partition("Backfilling stats")[0]
    found = {name: float(value) for name, value in _STATISTIC.findall(main)}
    return {"mean_us": found["Mean cycle"], "max_us": found["Max cycle"], "cycles": found["Total cycles"],
            "took_s": took_s}  # fmt: skip


def measure(jobs: int, times: int) -> dict[str, Any]:
    found: dict[str, list[dict[str, float]]] = {"without": [], "with": []}
    with Site(ALL_NODES, accounting=False) as site, contextlib.ExitStack() as closing:
        (site.at / "head").mkdir()
        with contextlib.redirect_stdout(io.StringIO()):  # the keys
            head = closing.enter_context(
                Cluster(site.at / "head", 500.0 * NODES, sharer="aapc", notifiers=[SLURM_USER])
            )
        hooked = Hooked(site, head)
        for _ in range(times):
            found["without"].append(cycle(hooked, jobs))
            hooked.install()
            found["with"].append(cycle(hooked, jobs))
            hooked.remove()
    return {"jobs": jobs, "nodes": ALL_NODES, **found, "load": os.getloadavg()[0]}


def main(arguments: list[str] | None = None) -> int:
    is_quick = options(arguments, __doc__, "twice each instead of five times")
    if is_quick is None:
        return 0
    found = measure(1000, 2 if is_quick else 5)
    rows = [
        (hooks, f"{1e-3 * mean(one['mean_us'] for one in found[hooks]):.1f}",
         f"{1e-3 * max(one['max_us'] for one in found[hooks]):.0f}",
         f"{mean(one['cycles'] for one in found[hooks]):.0f}",
         f"{1e-6 * mean(one['mean_us'] * one['cycles'] for one in found[hooks]):.2f}",
         f"{mean(one['took_s'] for one in found[hooks]):.0f}")
        for hooks in ("without", "with")
    ]  # fmt: skip
    print("{nodes} nodes, {jobs} jobs of one node (load {load:.0f})".format(**found))
    print(render(("hooks", "mean cycle, ms", "longest, ms", "cycles", "all cycles, s", "all jobs took, s"), rows))
    save("slurm_cycle", found)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
