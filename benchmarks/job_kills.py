"""A cluster agent that is killed again and again while jobs run: none is lost or run twice, and the budget is kept.

`clusterctl serve` and four nodes as processes, with their real links, leases and job runners; what a node's hardware
would store is a file. 500 jobs are submitted while the agent gets SIGKILL 100 times, at any moment of its life, starts
included. A submission is *accepted* when it has been answered; each accepted job must have written its line exactly
once, any other at most once. The caps in force on the hardware are added up at every instant, by the histories of the
nodes. A node that is not scheduled in time to end its lease breaks what the budget rests on: it counts as if it had,
and the greatest delay is printed. Some jobs are hostile: they stop their supervisor, or leave processes behind, of
which none may live at the end.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Final

import psutil

from benchmarks.experiment import save
from tests.fabric.cluster import Cluster

NODES, BUDGET_W = 4, 1000.0
HOSTILE_JOBS: Final = (
    "(env -i setsid sleep 1000.77 &)",
    "kill -STOP $PPID",
    "setsid sh -c 'trap : TERM; sleep 1000.77' &",
)
"""What every fifth job does as well: it leaves something behind, or stops its supervisor."""

LONGEST_LIFE_S = 2.0
"""Of a cluster agent: every other one from the start of its process, when it may not even listen yet, the others from
their first answer."""

PATIENCE_S = 12.0
"""For each kill, and 200 s."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.job_kills", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="40 jobs and 8 kills")
    parser.add_argument("--kills", type=int, help="how many (default: 100), and five times as many jobs")
    options = parser.parse_args(arguments)
    n_kills = options.kills or (8 if options.quick else 100)
    n_jobs = 5 * n_kills
    with tempfile.TemporaryDirectory() as directory:
        found = run(Path(directory), n_jobs, n_kills)
    save("job_kills", found)
    print(json.dumps(found, indent=1))
    return int(
        found["left_behind"] != 0
        or found["lost"] != 0
        or found["twice"] != 0
        or found["over_budget"] != 0
        or found["strange"] != 0
    )


def run(at: Path, n_jobs: int, n_kills: int) -> dict[str, float]:
    dice = random.Random(1)
    accepted: set[int] = set()
    unanswered = looks = kills = 0
    began_s = time.monotonic()
    with Cluster(at, BUDGET_W, jobs={}, sharer="aapc") as cluster:
        for n in range(NODES):
            cluster.node(f"n{n}", cap_w=150.0)
        serve = cluster.serve()
        dies_s, is_young = float("inf"), True
        while True:
            now_s = time.monotonic()
            if now_s - began_s > 200.0 + PATIENCE_S * n_kills:
                raise SystemExit(f"not over after {now_s - began_s:.0f} s: {cluster.said()[-2000:]}")
            if kills < n_kills and now_s >= dies_s:
                serve.kill()
                serve.wait()
                kills += 1
                serve = cluster.serve()
                dies_s = now_s + dice.uniform(0.0, LONGEST_LIFE_S) if kills % 2 else float("inf")
                is_young = kills % 2 == 0
            if is_young and kills < n_kills and cluster.ask("jobs") is not None:
                dies_s, is_young = time.monotonic() + dice.uniform(0.0, LONGEST_LIFE_S), False
            if len(accepted) < n_jobs * min((kills + 1) / n_kills, 1.0):
                does = f"{dice.choice(HOSTILE_JOBS)}\n" if dice.random() < 0.2 else ""
                text = f"echo $NODECTL_JOB_ID >>ran; {does}sleep {dice.choice((0, 0, 0.2, 0.5))}"
                done = cluster.ctl("submit", "-D", str(at), "-o", "/dev/null", "--", "/bin/sh", "-c", text)
                if done.returncode == 0:
                    accepted.add(int(done.stdout.removeprefix("job ")))
                else:
                    unanswered += 1
            looks += 1
            if kills == n_kills and len(accepted) >= n_jobs and looks % 100 == 0 and cluster.ask("jobs") == []:
                break
            time.sleep(0.01)
        worst_w, latest_s = cluster.highest_w(is_excused=True), cluster.latest_s()
        with_late_w = cluster.highest_w()
        rows = {row["job"]: row for row in cluster.ask("jobs", "--all")}
    left = left_behind()
    ran = Counter(int(line) for line in (at / "ran").read_text().split())
    return {
        "jobs": len(accepted), "kills": kills, "submissions_unanswered": unanswered,
        "lost": sum(ran[job] == 0 for job in accepted), "twice": sum(count > 1 for count in ran.values()),
        "strange": sum((rows[job]["state"], rows[job]["attempts"]) != ("done", 1) for job in accepted),
        "left_behind": left,
        "over_budget": int(worst_w > BUDGET_W), "worst_w": worst_w, "budget_w": BUDGET_W,
        "latest_s": round(latest_s, 3), "worst_with_late_nodes_w": with_late_w,
        "wall_s": round(time.monotonic() - began_s, 1), "load": round(psutil.getloadavg()[0], 1),
    }  # fmt: skip


def left_behind() -> int:
    """How many processes of hostile jobs live, once their jobs have ended."""
    return sum("1000.77" in (one.info["cmdline"] or []) for one in psutil.process_iter(["cmdline"]))


if __name__ == "__main__":
    raise SystemExit(main())
