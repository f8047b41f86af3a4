"""Campaigns: what a cell costs, and what kills and stalls of its workers do to one.

*cost*: 200 cells of 500 jobs with all files, by the processor time of the command and its children. *overhead*: cells
of a second, most of which they sleep, by four workers, against the same replays and files in a loop of one process.
*list*: placing, claiming and recording one of 1,000 and of 10,000 cells that do nothing. *kills*: four workers on one
folder; whoever has claimed a cell is killed, or stopped until another has taken its cell, and then goes on. Then every
cell has to be recorded once, with the bytes of a serial run but for the path in its manifest's command.

    python -m benchmarks campaigns [--quick]     quick: 8 kills and 2 stalls of 24 cells, 40 cells of a second
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.experiment import save
from cluster_agent.campaigns.campaign_folder import STATE, CampaignFolder, Part
from cluster_agent.campaigns.campaign_grid import Cell
from cluster_agent.library import World, replay

ROOT: Final = Path(__file__).parents[1]
SAMPLE: Final = ROOT / "cluster_agent" / "samples" / "generated-500.swf"
POLICIES: Final = ("easy", "easy-sjbf", "fcfs", "easy:estimate=mean2,correct=incremental")
WORKERS: Final = 4
LEASE_S: Final = 2.0
MOST_S, MOST_SHARE, MOST_RATIO = 5.0, 0.05, 2.0

SLOW: Final = '''\
"""FCFS in Python that sleeps once in each replay, so that a worker can be met in the middle of a cell."""

import time

import msgspec

from cluster_agent.scheduler.policies.api import Policy
from cluster_agent.scheduler.policy_phases import Composition


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    ms: int = 200


def compose(params):
    left = [params.ms / 1000]

    def order(queue, now_s):
        time.sleep(left.pop() if left else 0.0)
        return queue.submit_s * 1.0

    return Composition(order=order, backfill="none")


POLICY = Policy(name="slow", summary="FCFS that sleeps.", source="this benchmark", params=Params, compose=compose)
'''


def written(folder: Path, policies: Sequence[str], sizes: Iterable[int], trace: Path = SAMPLE) -> Path:
    """A campaign's file of these policies on machines of so many processors."""
    folder.mkdir(parents=True, exist_ok=True)
    lists = {"policies": list(policies), "traces": [str(trace)], "machines": [str(size) for size in sizes]}
    path = folder / "c.toml"
    path.write_text("".join(f"{name} = {json.dumps(values)}\n" for name, values in lists.items()))
    return path


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "cluster_agent.cli", "campaign", *words]


def processor_s(*words: str) -> tuple[float, float]:
    """Of a campaign and its children, and by the wall clock."""
    before, begun_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(command(*words), check=True, cwd=ROOT, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return used_s, time.monotonic() - begun_s


def cost(at: Path) -> dict[str, Any]:
    """200 cells, by one worker and by four."""
    found: dict[str, Any] = {}
    for workers in (1, WORKERS):
        out = at / f"cost-{workers}"
        file = written(at, POLICIES, range(32, 132, 2))
        used_s, wall_s = processor_s(str(file), "--out", str(out), "-j", str(workers))
        found[f"workers_{workers}"] = {"processor_s": used_s, "wall_s": wall_s, "cells": cells_of(out)}
    return found


def overhead(at: Path, cells: int = 200, alone: int = 8) -> dict[str, Any]:
    """What a campaign of cells of a second takes above these cells, which one process repeats ``alone`` times."""
    at.mkdir()
    slow = at / "slow.py"
    slow.write_text(SLOW)
    policy = f"{slow}:ms=1000"
    world = World(str(SAMPLE))
    replay(world, "fcfs").write(str(at / "first"))  # reads the log, and imports what writes files
    begun_s, used_s = time.monotonic(), time.process_time()
    for size in range(32, 32 + alone):
        one = World(str(SAMPLE), machine=size)
        one.take_jobs_of(world)
        replay(one, policy, say=lambda _: None).write(str(at / f"alone-{size}"))
    cell_s, cell_used_s = (time.monotonic() - begun_s) / alone, (time.process_time() - used_s) / alone
    file = written(at, (policy,), range(32, 32 + cells))
    campaign_used_s, wall_s = processor_s(str(file), "--out", str(at / "out"), "-j", str(WORKERS))
    return {
        "cells": cells, "cell_s": cell_s, "wall_s": wall_s, "of_wall": wall_s * WORKERS / cells / cell_s - 1,
        "processor_s_each": campaign_used_s / cells - cell_used_s,
    }  # fmt: skip


def listing(at: Path, cells: int) -> float:
    """Seconds for a cell that does nothing."""
    folder = CampaignFolder(at / f"list-{cells}")
    names = {f"cell-{number}": Cell(["replay", "x"], {}, "", "") for number in range(cells)}
    begun_s = time.process_time()
    folder.add(Part("list.toml", "", str(at), LEASE_S, names))
    folder.issue(names)
    others = [CampaignFolder(folder.root) for _ in range(WORKERS)]
    for one in others:
        one.read_plan()
    for number in range(cells):
        one = others[number % WORKERS]
        claim = one.claim(f"worker{number % WORKERS}", number)
        assert claim is not None
        (claim.path / "campaign.json").write_bytes(b"{}")
        assert one.record(claim)
    assert folder.unfinished() == 0 and folder.issue(names) == 0
    took_s = time.process_time() - begun_s
    shutil.rmtree(folder.root)
    return took_s / cells


# --- kills and stalls


def cells_of(out: Path) -> int:
    return sum(1 for one in out.iterdir() if (one / "campaign.json").exists())


def content(out: Path) -> dict[str, bytes]:
    """Every file of the results, the path of the folder replaced."""
    files = [path for path in out.rglob("*") if path.is_file() and STATE not in path.relative_to(out).parts]
    return {str(path.relative_to(out)): path.read_bytes().replace(str(out).encode(), b"OUT") for path in files}


class Disturbed:
    """A campaign whose workers are killed and stopped in the middle of their cells."""

    def __init__(self, out: Path, seed: int, workers: int) -> None:
        self.folder = CampaignFolder(out)
        self.folder.read_plan()
        self.dice = random.Random(seed)
        self.workers: dict[int, subprocess.Popen[bytes]] = {}
        self.stopped: list[tuple[int, str]] = []
        for _ in range(workers):
            self.start()

    def start(self) -> None:
        one = subprocess.Popen(
            command("--join", str(self.folder.root)), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self.workers[one.pid] = one

    def victim(self) -> tuple[int, str] | None:
        """A worker that runs and has claimed a cell, and its claim."""
        away = {pid for pid, _ in self.stopped}
        claims = [(int(worker.split("-")[-2]), claim) for claim, worker in self.folder.claims()]
        found = [(pid, claim) for pid, claim in claims if pid in self.workers and pid not in away]
        return self.dice.choice(found) if found else None

    def wake(self) -> int:
        """Lets those go on whose cell has been taken; returns how many are still stopped."""
        running = {claim for claim, _ in self.folder.claims()}
        for one in [one for one in self.stopped if one[1] not in running]:
            os.kill(one[0], signal.SIGCONT)
            self.stopped.remove(one)
        return len(self.stopped)

    def run(self, kills: int, stalls: int) -> dict[str, int]:
        todo = ["kill"] * kills + ["stall"] * stalls
        self.dice.shuffle(todo)
        done = {"kills": 0, "stalls": 0}
        while self.folder.unfinished() or self.stopped:
            time.sleep(self.dice.uniform(0.02, 0.15))
            self.wake()
            found = self.victim() if todo else None
            if found is None:
                if not any(one.poll() is None for one in self.workers.values()):
                    self.start()  # all were killed
                continue
            pid, claim = found
            if todo.pop() == "kill":
                self.workers.pop(pid).kill()
                done["kills"] += 1
            else:
                os.kill(pid, signal.SIGSTOP)
                self.stopped.append((pid, claim))
                done["stalls"] += 1
            self.start()
        for one in self.workers.values():
            one.wait()
        return done | {"taken": len(os.listdir(self.folder.state / "lost")), "failed": len(self.folder.failures())}


def kills(at: Path, cells: int, kill: int, stall: int, ms: int = 250, workers: int = WORKERS) -> dict[str, Any]:
    """Disturbs one campaign, and compares it with a serial run of the same."""
    at.mkdir(exist_ok=True)
    slow = at / "slow.py"
    slow.write_text(SLOW)
    file = written(at, (f"{slow}:ms={ms}",), range(32, 32 + cells))
    out, serial = at / "disturbed", at / "serial"
    subprocess.run(
        command(str(file), "--out", str(out), "-j", "0", "--lease", str(LEASE_S)),
        check=True,
        cwd=ROOT,
        capture_output=True,
    )
    begun_s = time.monotonic()
    found: dict[str, Any] = dict(Disturbed(out, 1, workers).run(kill, stall))
    wall_s = time.monotonic() - begun_s
    subprocess.run(command("--join", str(out)), check=True, cwd=ROOT, capture_output=True)
    subprocess.run(command(str(file), "--out", str(serial), "-j", "1"), check=True, cwd=ROOT, capture_output=True)
    ours, theirs = content(out), content(serial)
    odd = sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))
    return found | {
        "cells": cells,
        "recorded": cells_of(out),
        "odd_files": len(odd),
        "first_odd": odd[:3],
        "wall_s": wall_s,
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks campaigns", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="24 cells with 8 kills and 2 stalls, 40 cells of a second")
    quick = parser.parse_args(arguments).quick
    with tempfile.TemporaryDirectory(prefix="campaigns-") as folder:
        at = Path(folder)
        found: dict[str, Any] = {"cost": cost(at)}
        for name, one in found["cost"].items():
            print(f"200 cells of 500 jobs, {name}: {one['processor_s']:.1f} s of processor time, bound {MOST_S}")
        small_s, large_s = listing(at, 1_000), listing(at, 10_000)
        found["list"] = {"cell_of_1000_s": small_s, "cell_of_10000_s": large_s}
        print(f"a cell that does nothing: {1e6 * small_s:.0f} us of 1,000 cells, {1e6 * large_s:.0f} us of 10,000")
        good = all(one["processor_s"] <= MOST_S for one in found["cost"].values()) and large_s <= MOST_RATIO * small_s
        found["overhead"] = one = overhead(at / "overhead", *((40, 2) if quick else ()))
        print(
            "{cells} cells of a second by four workers: {processor_s_each:.3f} s of processor time for each above its"
            " replay; by the wall clock {of_wall:+.1%} (alone it took {cell_s:.2f} s)".format(**one)
        )
        good &= one["processor_s_each"] <= MOST_SHARE
        found["kills"] = one = kills(at / "kills", *((24, 8, 2) if quick else (200, 50, 10)))
        print("{kills} kills and {stalls} stalls: {recorded} of {cells} cells recorded, {taken} taken from a worker,"
              " {odd_files} files unlike those of a run by one command {first_odd}".format(**one))  # fmt: skip
        good &= one["recorded"] == one["cells"] and not one["odd_files"] and not one["failed"]
    found["load"] = os.getloadavg()[0]
    print(f"load {found['load']:.1f}")
    save("campaigns", found)
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
