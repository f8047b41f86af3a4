"""Everything that can go wrong, at random and at once, to a partition with jobs and with nodes that lie.

``clusterctl serve`` and 16 node agents run as processes with real CURVE links, leases (2 s) and job runners, half of
them at the far end of a cable. A file with a history stands for a node's hardware. Three more nodes have
allowed keys and lie in well-formed messages (``tests/fabric/hostile_node.py``). They get no jobs: a node can always
lie about its own. For as long as wanted, this happens:

- the cluster agent, its front process and node agents are killed, aborted, stopped and restarted, at any moment;
- the cable is pulled; the disk of the store is full; the wall clock of all processes jumps by up to years;
- bits of the store flip while nobody has it open. An agent that refuses it gets it back as it was.

Every fifth job is hostile (``job_kills``): it stops its supervisor, or leaves processes behind.

Measured: the highest sum of what the honest nodes could draw at any instant, how many accepted jobs were lost, run
twice or recorded as what they were not, and how many processes of jobs lived at the end. A node that was not scheduled
in time to end its lease counts as if it had been; ``latest_s`` is by how much it was late. Needs root, a C compiler,
util-linux and iproute2.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.experiment import save
from benchmarks.job_kills import HOSTILE_JOBS, left_behind
from benchmarks.network_cut import CutCluster, why_not
from tests.fabric.cluster import KILLED_WITH_US, ROOT, Cluster

HOUR_S, QUICK_S = 3600.0, 60.0
HOSTILE: Final = 3
STORE_MB: Final = 64
BETWEEN_S: Final = (0.1, 1.5)
RESTART_S: Final = 0.3
OPEN_JOBS: Final = 16
OVER_S: Final = 600.0
"""Ours: what is not over so long after everything was mended is stuck."""

SAFE_W, MOP_W = 200.0, 150.0
JUMPS_S: Final = (-10 * 365 * 86400, -86400, -3600, -61, -1, 0, 1, 61, 3600, 86400, 10 * 365 * 86400)
KINDS: Final = (
    "agent killed", "agent stopped", "agent ended", "front aborted", "front stopped", "node killed", "node stopped",
    "cable pulled", "disk full", "clock jumped", "store damaged",
)  # fmt: skip

EARLY_SHARE: Final = 0.02
"""Ours: how often more goes wrong before the agent listens. If always, it would never listen on a busy machine."""

LEAST_JOBS: Final = 5
"""Ours: things go wrong at least until so many have been accepted."""


class Chaos:
    """A partition, what is broken in it now, and what has been counted."""

    def __init__(self, cluster: CutCluster, store: Path, clock: Path, seed: int, kinds: tuple[str, ...]) -> None:
        self.cluster, self.counted = cluster, Counter[str]()
        self._store, self._clock, self._dice, self._kinds = store, clock, random.Random(seed), kinds
        self._mended: dict[str, tuple[float, Callable[[], None]]] = {}
        self._intact: dict[Path, bytes] = {}
        self._serve_again_s, self._log_at = 0.0, 0
        self._serve = cluster.serve()

    def step(self, is_calm: bool = False) -> None:
        """Mend what is due (all, if ``is_calm``), restart what has ended, and break something else."""
        now_s = time.monotonic()
        for kind, (at_s, mend) in list(self._mended.items()):
            if is_calm or now_s >= at_s:
                del self._mended[kind]
                mend()
        if self._serve.poll() is not None and now_s >= self._serve_again_s:
            self._serve_again()
        if not is_calm:
            kind = self._dice.choice(self._kinds)
            is_early = not self._has_listened() and self._dice.random() > EARLY_SHARE
            if kind not in self._mended and not is_early:
                self.counted[kind] += 1
                getattr(self, "_" + kind.replace(" ", "_"))()
        elif self._clock_s():
            self._set_clock(0)

    def _serve_again(self) -> None:
        """As systemd does it. An agent that refused a damaged store finds it whole; one that listened has taken it."""
        self.counted[f"agent's exit {self._serve.returncode}"] += 1
        if self._intact and self._has_listened():
            self.counted["damage not seen, or none"] += 1
            self._intact = {}
        elif self._intact and self._serve.returncode > 0:
            self.counted["damage refused"] += 1
            self._whole_store()
        self._begin_serve()

    def _has_listened(self) -> bool:
        return "listening at" in self.cluster.said()[self._log_at :]

    def _begin_serve(self) -> None:
        self._serve_again_s, self._log_at = time.monotonic() + RESTART_S, len(self.cluster.said())
        self._serve = self.cluster.serve()

    def _later(self, kind: str, longest_s: float, mend: Callable[[], None]) -> None:
        self._mended[kind] = (time.monotonic() + self._dice.uniform(0.1, longest_s), mend)

    def _stop(self, kind: str, one: psutil.Process, longest_s: float) -> None:
        """Not by its number: another process may have it by then."""

        def go_on() -> None:
            with contextlib.suppress(psutil.Error):
                one.resume()

        with contextlib.suppress(psutil.Error):
            one.suspend()
        self._later(kind, longest_s, go_on)

    def _agent_killed(self) -> None:
        self._serve.kill()

    def _agent_stopped(self) -> None:
        if self._serve.poll() is None:
            self._stop("agent stopped", psutil.Process(self._serve.pid), 4.0)

    def _agent_ended(self) -> None:
        self._serve.terminate()

    def _fronts(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.Error):
            return psutil.Process(self._serve.pid).children()
        return []

    def _front_aborted(self) -> None:
        for one in self._dice.sample(fronts := self._fronts(), min(len(fronts), self._dice.choice((1, 1, 2)))):
            with contextlib.suppress(psutil.Error):
                one.send_signal(signal.SIGABRT)

    def _front_stopped(self) -> None:
        if fronts := self._fronts():
            self._stop("front stopped", self._dice.choice(fronts), 3.0)

    def _node_killed(self) -> None:
        """Its cap falls, as ``ExecStopPost`` has it, and it is started again."""
        name = self._dice.choice(self.cluster.nodes)
        self.cluster.started[name].kill()
        self.cluster.started[name].wait()
        self.cluster.fall(name, min(self.cluster.cap_w(name), SAFE_W))

        def again() -> None:
            self.cluster.node(name)

        self._later("node killed", 2.0, again)

    def _node_stopped(self) -> None:
        process = self.cluster.started[self._dice.choice(self.cluster.nodes)]
        if process.poll() is None:
            self._stop("node stopped", psutil.Process(process.pid), 3.0)

    def _cable_pulled(self) -> None:
        self.cluster.cable.pull()
        self._later("cable pulled", 8.0, self.cluster.cable.plug)

    def _disk_full(self) -> None:
        fill = self._store / "fill"
        with contextlib.suppress(OSError), open(fill, "wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        self._later("disk full", 5.0, lambda: fill.unlink(missing_ok=True))

    def _clock_s(self) -> int:
        return int(struct.unpack("q", self._clock.read_bytes())[0])

    def _set_clock(self, seconds: int) -> None:
        with open(self._clock, "r+b") as file:
            file.write(struct.pack("q", seconds))

    def _clock_jumped(self) -> None:
        self._set_clock(self._dice.choice(JUMPS_S))

    def _store_damaged(self) -> None:
        """While nobody has it open: a store that is changed under an agent is another matter."""
        if "disk full" in self._mended or self._intact:
            return
        self._serve.kill()
        self._serve.wait()
        self._intact = {path: path.read_bytes() for path in self._store.iterdir() if path.stat().st_size}
        for path in self._dice.sample(sorted(self._intact), min(len(self._intact), 1)):
            damaged = bytearray(self._intact[path])
            for _ in range(self._dice.choice((1, 8, 64))):
                damaged[self._dice.randrange(len(damaged))] ^= 1 << self._dice.randrange(8)
            path.write_bytes(damaged)
        self._begin_serve()

    def _whole_store(self) -> None:
        for path in self._store.iterdir():
            path.unlink()
        for path, content in self._intact.items():
            path.write_bytes(content)
        self._intact = {}


class Submitter(threading.Thread):
    """Submits jobs as long as the chaos lasts. ``accepted``: how many nodes each answered submission has."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        super().__init__(daemon=True)
        self.accepted: dict[int, int] = {}
        self.unanswered = 0
        self.is_over = threading.Event()
        self._cluster, self._dice = cluster, random.Random(seed)

    def run(self) -> None:
        while not self.is_over.wait(0.2):
            if len(self._cluster.ask("jobs") or ()) >= OPEN_JOBS:
                continue
            nodes = self._dice.choice((1, 1, 1, 2, 3))
            does = f"{self._dice.choice(HOSTILE_JOBS)}\n" if self._dice.random() < 0.2 else ""
            text = f"echo $NODECTL_JOB_ID $NODECTL_NODE >>ran\n{does}sleep {self._dice.choice((0, 0.2, 1, 3))}"
            words = ["-N", str(nodes), "-D", str(self._cluster.at), "-o", "/dev/null", "--", "/bin/sh", "-c", text]
            tag = self._dice.choice(("compute", "memory", "mixed"))
            done = self._cluster.ctl("submit", "--tag", tag, *words)
            if done.returncode == 0:
                self.accepted[int(done.stdout.removeprefix("job "))] = nodes
            else:
                self.unanswered += 1


def run(at: Path, seconds: float, n: int, seed: int, kinds: tuple[str, ...]) -> dict[str, Any]:
    """In a mount namespace of its own; ``at`` is an empty folder."""
    store, clock, library = at / "store", at / "wall-clock", at / "chaos.so"
    store.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={STORE_MB}m", "none", str(store)], check=True)
    clock.write_bytes(struct.pack("q", 0))
    subprocess.run(["cc", "-std=c11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o",
                    str(library), str(ROOT / "benchmarks" / "chaos.c")], check=True)  # fmt: skip
    os.environ |= {"CHAOS_WALL_CLOCK": str(clock), "LD_PRELOAD": str(library)}
    settings = {"store": str(store / "cluster.db"), "sharer": "aapc", "jobs": {}}
    with CutCluster(at, n, HOSTILE * 500.0, **settings) as cluster:
        hostile = [f"x{number}" for number in range(HOSTILE)]
        for name in (*cluster.nodes, *hostile):
            cluster.allow(name)
        chaos = Chaos(cluster, store, clock, seed, kinds)
        for name in cluster.nodes:
            cluster.node(name, cap_w=MOP_W)
        cluster.until(
            lambda: all(cluster.ctl("drain", name, "--reason", "it lies").returncode == 0 for name in hostile),
            is_kept=False,
            patience_s=OVER_S,
        )
        cluster.until(lambda: sum(row["jobs"] == "idle" for row in cluster.ask("nodes") or []) == n, False, OVER_S)
        submitter = Submitter(cluster, seed)
        submitter.start()
        script = str(ROOT / "tests" / "fabric" / "hostile_node.py")
        for number, name in enumerate(hostile):
            words = (script, name, cluster.url, str(cluster.keys), str(seed + number))
            cluster.start(*words, log=f"{name}.log")
        began_s, dice = time.monotonic(), random.Random(seed + 1)
        over_s = time.monotonic() + OVER_S
        while (now_s := time.monotonic()) < began_s + seconds or (
            len(submitter.accepted) < LEAST_JOBS and now_s < over_s
        ):
            chaos.step()
            time.sleep(dice.uniform(*BETWEEN_S))
        submitter.is_over.set()
        over_s = time.monotonic() + OVER_S
        while (submitter.is_alive() or cluster.ask("jobs") != []) and time.monotonic() < over_s:
            chaos.step(is_calm=True)
            time.sleep(0.2)
        rows = {row["job"]: row for row in cluster.ask("jobs", "--all") or []}
        found = {
            "seconds": round(time.monotonic() - began_s, 1), "nodes": n, "hostile": HOSTILE, "seed": seed,
            "budget_w": cluster.budget_w, "worst_w": cluster.highest_w(is_excused=True),
            "worst_with_late_nodes_w": cluster.highest_w(), "latest_s": round(cluster.latest_s(), 3),
            "cap_changes": sum(len(cluster.history(name)) // 2 for name in cluster.names),
        }  # fmt: skip
    return found | judged(at, submitter, rows) | {"counted": dict(sorted(chaos.counted.items()))}


def judged(at: Path, submitter: Submitter, rows: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """What became of the jobs, and what must not be in any log."""
    (at / "ran").touch()
    ran = Counter(tuple(line.split()) for line in (at / "ran").read_text().splitlines())
    parts = Counter(int(job) for job, _ in ran)
    accepted = submitter.accepted
    states = {job: (rows[job]["state"], rows[job]["attempts"], rows[job]["reason"]) if job in rows else ("gone", 0, "")
              for job in accepted}  # fmt: skip
    strange = {job: state for job, state in states.items() if state[:2] != ("done", 1)}
    return {
        "jobs": len(accepted), "unanswered": submitter.unanswered,
        "lost": sum(parts[job] < nodes for job, nodes in accepted.items()),
        "twice": sum(count > 1 for count in ran.values()),
        "left": left_behind(), "wrong": len(strange), "wrong_ones": dict(list(strange.items())[:10]),
        "tracebacks": len(raised := tracebacks(at)), "first_traceback": "".join(raised[:1]),
        "load": round(psutil.getloadavg()[0], 1),
    }  # fmt: skip


def tracebacks(at: Path) -> list[str]:
    """All of the logs here, each with the name of its log, up to the line that names the error."""
    found = []
    for log in sorted(at.glob("*.log")):
        _, *rest = log.read_text(errors="replace").split("Traceback (most recent call last)")
        for text in rest:
            lines = text.splitlines()
            end = next((at for at, line in enumerate(lines) if at and not line.startswith(" ")), len(lines) - 1)
            found.append(log.name + "\n".join(lines[: end + 1]))
    return found


def is_sound(found: dict[str, Any]) -> bool:
    """Whether nothing was found."""
    is_within = found["worst_w"] <= found["budget_w"] and found["jobs"] > 0
    has_given_up = found["counted"].get("agent's exit 2", 0) > 0  # systemd would not start it again
    return (
        is_within
        and not has_given_up
        and not any(found[name] for name in ("lost", "twice", "left", "wrong", "tracebacks"))
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos", description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_S:g} s instead of an hour")
    parser.add_argument("--seconds", type=float, help="how long things go wrong; ten minutes are 600")
    parser.add_argument("--nodes", type=int, default=16, help="honest ones")
    parser.add_argument("--seed", type=int, default=1, help="of what happens; when it meets whom is not drawn")
    parser.add_argument("--without", action="append", default=[], choices=KINDS, help="what is left out")
    parser.add_argument("--keep", type=Path, help="an empty folder for logs, histories and the store")
    options = parser.parse_args(arguments)
    why = why_not() or ("" if shutil.which("cc") else "not installed: cc (gcc)")
    if why:
        print(f"not measured: {why}")
        return 0
    if os.environ.get("CHAOS") != "1":  # mounts end with the processes in there
        command = [*KILLED_WITH_US, "unshare", "-m", sys.executable, "-m", "benchmarks.chaos"]
        words = sys.argv[1:] if arguments is None else arguments
        return subprocess.run([*command, *words], env={**os.environ, "CHAOS": "1"}, cwd=ROOT).returncode
    seconds = options.seconds or (QUICK_S if options.quick else HOUR_S)
    kinds = tuple(kind for kind in KINDS if kind not in options.without)
    with contextlib.ExitStack() as stack:
        at = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.callback(subprocess.run, ["umount", "-l", str(at / "store")])
        with contextlib.redirect_stdout(io.StringIO()):  # keys are printed there
            found = run(at, seconds, options.nodes, options.seed, kinds)
        save("chaos", found)
        print(json.dumps(found, indent=1))
    return 0 if is_sound(found) else 1


if __name__ == "__main__":
    raise SystemExit(main())
