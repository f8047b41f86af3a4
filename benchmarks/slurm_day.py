"""A day of 10,000 jobs in minutes, by the hooks alone: are notices lost, do store and memory of the cluster agent grow?

The real ``nodectl-hook``, started for each start and end as slurmctld does, the real cluster agent, and scripted node
agents with real leases and CURVE links, whose hardware is emulated. Each node runs jobs one after the other, whose
lengths are those of a day divided by the factor that is printed: 10,000 jobs of a mean of 69 s on eight nodes fill it.
There is no slurmctld, and no ``follow`` that would make up for a notice that is lost: each job must have exactly one
row of joules, and nothing may be known at the end. The cluster agent has its ``KEPT`` rows of earlier jobs when it
begins, since those of the first days only fill its memory.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import random
import re
import subprocess
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

import msgspec
import psutil

from benchmarks.experiment import save
from cluster_agent.history.job_history import HistoryRow
from cluster_agent.history.kept_rows import KEPT
from cluster_agent.hook.build_hook import build
from cluster_agent.serve.people_protocol import JoulesRow
from foundation.shell.text_table import render
from tests.fabric.cluster import Cluster

NODES: Final = 8
DAY_S: Final = 86_400.0
USERS: Final = ("alice", "bob", "carol", "dave", "erin")
TAGS: Final = ("nodectl=compute", "nodectl=memory", "nodectl=mixed", "", 'project "a" 計')
WAIT_S: Final = 5.0
_DELAY: Final = re.compile(r"after (\d+) ms")


class Node(threading.Thread):
    """Runs its jobs one after the other. ``outcomes``: what hooks said of each start; ``delays_ms``: how late."""

    def __init__(self, number: int, jobs: int, hook: Path, place: Path, factor: float, done: list[int]) -> None:
        super().__init__()
        self._number, self._jobs, self._hook, self._place = number, jobs, hook, place
        self._factor, self._done, self._drawn = factor, done, random.Random(number)
        self.outcomes: Counter[str] = Counter()
        self.delays_ms: list[int] = []
        self.refused = 0

    def run(self) -> None:
        for one in range(self._jobs):
            job = {
                "SLURM_JOB_ID": str(1 + self._number + one * NODES), "SLURM_JOB_NODELIST": f"n{self._number + 1:02d}",
                "SLURM_CLUSTER_NAME": "hpc", "SLURM_JOB_USER": USERS[one % len(USERS)], "SLURM_JOB_NAME": "solve",
                "SLURM_JOB_COMMENT": TAGS[one % len(TAGS)],
            }  # fmt: skip
            _, said = self._notice("start", job)
            outcome = re.search(r"job \d+: ([a-z ]+?) after", said)
            self.outcomes[outcome[1] if outcome else said.strip()] += 1
            self.delays_ms += [int(ms) for ms in _DELAY.findall(said)]
            time.sleep(self._drawn.expovariate(self._jobs / DAY_S) / self._factor)
            self.refused += self._notice("end", job)[0] != 0
            self._done[self._number] = one + 1

    def _notice(self, what: str, job: dict[str, str]) -> tuple[int, str]:
        words = [str(self._hook), what, "--socket", str(self._place), "--wait", str(WAIT_S)]
        done = subprocess.run(words, env={"PATH": os.environ["PATH"], **job}, capture_output=True, check=False)
        return done.returncode, done.stderr.decode(errors="replace")


def measure(jobs: int, factor: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as closing:
        at = Path(folder)
        with contextlib.redirect_stdout(io.StringIO()):  # the keys
            head = closing.enter_context(Cluster(at, 400.0 * NODES, sharer="aapc"))
            _fill(at)
            serving = psutil.Process(head.serve().pid)
            for number in range(NODES):
                head.node(f"n{number + 1:02d}", "boot-1", 150.0)
        head.until(lambda: [row["state"] for row in head.ask("nodes") or []] == ["capped"] * NODES)
        hook, done = build(at / "nodectl-hook"), [0] * NODES
        nodes = [Node(number, jobs // NODES, hook, head.socket, factor, done) for number in range(NODES)]
        began_s, cpu_s = time.monotonic(), sum(serving.cpu_times()[:2])
        for node in nodes:
            node.start()
        looks = []
        for tenth in range(1, 11):
            while sum(done) < tenth * jobs // 10 and any(node.is_alive() for node in nodes):
                time.sleep(0.2)
            looks.append((sum(done), serving.memory_info().rss, sum(path.stat().st_size for path in _store(at))))
        for node in nodes:
            node.join()
        took_s = time.monotonic() - began_s
        cpu_s = sum(serving.cpu_times()[:2]) - cpu_s
        known = head.ask("notify", "list")
        rows = _rows(at)
    expected = {str(1 + number + one * NODES) for number in range(NODES) for one in range(jobs // NODES)}
    delays_ms = sorted(ms for node in nodes for ms in node.delays_ms)
    return {
        "jobs": len(expected), "took_s": took_s, "factor": DAY_S / took_s, "known": len(known),
        "lost": len(expected - rows.keys()), "twice": sum(count > 1 for count in rows.values()),
        "strange": len(rows.keys() - expected), "outcomes": dict(sum((node.outcomes for node in nodes), Counter())),
        "ends_refused": sum(node.refused for node in nodes), "p50_ms": delays_ms[len(delays_ms) // 2],
        "p99_ms": delays_ms[int(0.99 * len(delays_ms))], "worst_ms": delays_ms[-1], "looks": looks,
        "cpu_ms": 1000 * cpu_s / (2 * len(expected)), "load": os.getloadavg()[0],
    }  # fmt: skip


def _fill(at: Path) -> None:
    """Rows of earlier jobs, as many as the cluster agent keeps in memory."""
    now_s = time.time()
    joules = JoulesRow("e", "earlier", 0, 0, "alice", "solve", "memory", 1, now_s - 60.0, now_s, 6000.0, False)
    row = HistoryRow("e", "alice", "solve", 1, now_s - 90.0, now_s - 60.0, now_s, 60.0, "hpc", energy_j=6000.0)
    for name, one in (("joules", joules), ("history", row)):
        (at / f"cluster.db.{name}").write_bytes((msgspec.json.encode(one) + b"\n") * KEPT)


def _store(at: Path) -> list[Path]:
    return [path for path in at.glob("cluster.db*") if path.is_file()]


def _rows(at: Path) -> Counter[str]:
    """How often each job stands in the rows of joules."""
    found = re.compile(rb'"job":"(\d+)"')
    return Counter(
        number.decode() for path in at.glob("cluster.db.joules*") for number in found.findall(path.read_bytes())
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="1,000 jobs instead of 10,000")
    is_quick = bool(parser.parse_args(arguments).quick)
    found = measure(1_000 if is_quick else 10_000, 4000.0 if is_quick else 400.0)
    print("{jobs} jobs on {nodes} nodes in {took_s:.0f} s: a day {factor:.0f} times as fast (load {load:.0f}); lost "
          "{lost}, twice {twice}, strange {strange}, known at the end {known}, ends refused {ends_refused}"
          .format(nodes=NODES, **found))  # fmt: skip
    print("starts: {outcomes}; delay in the hook p50 {p50_ms}, p99 {p99_ms}, worst {worst_ms} ms; {cpu_ms:.1f} ms of "
          "the cluster agent's processor time a notice".format(**found))  # fmt: skip
    print(render(("jobs ended", "memory of the cluster agent, MiB", "its store, KiB"), [
        (str(jobs), f"{memory / 2**20:.1f}", f"{store / 1024:.0f}") for jobs, memory, store in found["looks"]
    ]))  # fmt: skip
    save("slurm_day", found)
    is_whole = not (found["lost"] or found["twice"] or found["strange"] or found["known"] or found["ends_refused"])
    return 0 if is_whole else 1


if __name__ == "__main__":
    raise SystemExit(main())
