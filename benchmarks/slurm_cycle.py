"""Whether hooks make slurmctld's own scheduling slower: its cycle with 64 nodes and 1,000 queued jobs.

A real Slurm 22.05 with 64 slurmd on this machine; an array of 1,000 jobs of one node and two seconds, in turn

- without hooks;
- with `/bin/true` as PrologSlurmctld, as EpilogSlurmctld, and as both: what Slurm itself takes to run any hook;
- with the hooks of `clusterctl slurm install`, and `clusterctl slurm follow`, which asks for the queue every 10 s.

The cluster agent has the first four nodes, scripted agents with real leases: their jobs wait for caps, the hooks of the
others are answered at once. The cycle is that of `sdiag`, from the submission to the end of the last job. Longer cycles
may just be fewer, since a cycle starts all jobs for which nodes are free by then: `starts` is how many, and `of a job`
is what scheduling took in all, by job. Needs root.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import time
from collections.abc import Sequence
from statistics import mean
from typing import Any, Final

from benchmarks.experiment import save
from benchmarks.slurm import NODES, SLURM_USER, Hooked, options
from cluster_agent.slurm.site_files import SCRIPTS
from foundation.shell.text_table import render
from tests.fabric.cluster import Cluster
from tests.slurm.site import Site

ALL_NODES: Final = 64
PROLOG, EPILOG = SCRIPTS
TRUE: Final = {"true, prolog": [PROLOG], "true, epilog": [EPILOG], "true, both": [PROLOG, EPILOG]}
KINDS: Final = ("none", *TRUE, "ours")
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


def run_true(site: Site, names: Sequence[str], is_on: bool) -> None:
    """Hooks of slurmctld that do nothing."""
    for name in names:
        line = f"{name}=/bin/true"
        site.shell(f"echo {line} >>/etc/slurm/slurm.conf" if is_on else f"sed -i '\\,^{line}$,d' /etc/slurm/slurm.conf")
    site.restart_controller()


def measure(jobs: int, times: int) -> dict[str, Any]:
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    with Site(ALL_NODES, accounting=False) as site, contextlib.ExitStack() as closing:
        (site.at / "head").mkdir()
        with contextlib.redirect_stdout(io.StringIO()):  # the keys
            head = closing.enter_context(
                Cluster(site.at / "head", 500.0 * NODES, sharer="aapc", notifiers=[SLURM_USER])
            )
        hooked = Hooked(site, head)
        follow = ["slurm", "follow", "--cluster", "emulated", "--socket", str(head.socket)]
        for _ in range(times):
            site.restart_controller()
            found["none"].append(cycle(hooked, jobs))
            for kind, names in TRUE.items():
                run_true(site, names, is_on=True)
                found[kind].append(cycle(hooked, jobs))
                run_true(site, names, is_on=False)
            hooked.install()
            following = head.start("-m", "cluster_agent.cli", *follow, log="follow.log", within=site.within)
            found["ours"].append(cycle(hooked, jobs))
            following.kill()
            hooked.remove()
    return {"jobs": jobs, "nodes": ALL_NODES, **found, "load": os.getloadavg()[0]}


def main(arguments: list[str] | None = None) -> int:
    is_quick = options(arguments, __doc__, "once each instead of three times")
    if is_quick is None:
        return 0
    found = measure(1000, 1 if is_quick else 3)
    print("{nodes} nodes, {jobs} jobs of one node (load {load:.0f}); mean of {times} runs (least to most)"
          .format(**found, times=len(found["none"])))  # fmt: skip
    heads = "hooks", "mean cycle, ms", "longest, ms", "cycles", "starts in a cycle", "of a job, ms", "all jobs took, s"
    print(render(heads, [(hooks, *_columns(found[hooks], found["jobs"])) for hooks in KINDS]))
    save("slurm_cycle", found)
    return 0


def _columns(runs: Sequence[dict[str, float]], jobs: int) -> list[str]:
    """Of one kind of hooks."""
    return [
        _spread([1e-3 * one["mean_us"] for one in runs]),
        f"{1e-3 * max(one['max_us'] for one in runs):.0f}",
        _spread([one["cycles"] for one in runs]),
        _spread([jobs / one["cycles"] for one in runs]),
        _spread([1e-3 * one["mean_us"] * one["cycles"] / jobs for one in runs]),
        _spread([one["took_s"] for one in runs]),
    ]


def _spread(values: Sequence[float]) -> str:
    return f"{mean(values):.1f} ({min(values):.1f} to {max(values):.1f})"


if __name__ == "__main__":
    raise SystemExit(main())
