"""Schedulers of Batsim's in a process of their own: whether they decide as elsewhere, and what a message costs us.

*agreement*: pybatsim's schedulers over the protocol, against the same decisions made without it, job for job:
``schedFcfs`` against a plain loop that gives consecutive processors, as it does; what it is made of without that filter
against our ``fcfs``; ``easyBackfill`` against the same class that a plain loop calls. Starts, ends and processors have
to be equal (of our ``fcfs`` the starts and ends).

*cost* of a message: *in all*; *client*, from its arrival to its answer, as the client measures it; *beyond*, the rest,
with the transport and the changes of processes; *ours*, the processor time of our process; *libzmq*, what of it is
libzmq's own thread; *simulator*, our thread's time when the answers come from a list in place of a socket, with caches
that no other process has used meanwhile. The time beyond the client depends on what else the machine
does, so processor time is what is judged. A replay sends a message at each end and each submission.

    python -m benchmarks batsim [--quick]     quick: 300 jobs of each log in place of 500 and 2,000
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks.experiment import save
from benchmarks.scheduler_speed import generate
from cluster_agent import library
from cluster_agent.library import Result, World
from cluster_agent.replay.output_columns import Shown
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.stepping.batsim import Simulation, replay
from cluster_agent.stepping.batsim_link import Link
from cluster_agent.stepping.steps import Steps
from tests.cluster_agent.foreign_schedulers import InTurn
from tests.recorded import RECORDED

ROOT: Final = Path(__file__).parents[1]
PYTHON: Final = ROOT / "build" / "foreign-python" / "bin" / "python"
LOOP: Final = ROOT / "tests" / "cluster_agent" / "foreign_schedulers.py"
KTH: Final = RECORDED / "swf" / "KTH-SP2-1996-2.1-cln.swf.gz"
MOST_US: Final = 50.0
REPEATS: Final = 5

TIMED: Final = """\
import sys, time
from batsim.network import NetworkHandler

arrived_s, client_s = [0.0], [0.0]
receive, send = NetworkHandler.recv_string, NetworkHandler.send_string


def received(self, blocking=False):
    message = receive(self, blocking)
    arrived_s[0] = time.perf_counter()
    return message


def sent(self, message):
    send(self, message)
    client_s[0] += time.perf_counter() - arrived_s[0]


NetworkHandler.recv_string, NetworkHandler.send_string = received, sent
from batsim.cmds.launcher import main

main()
print("client_s", client_s[0])
"""
"""pybatsim's launcher with a clock."""

ANYWHERE: Final = """\
from batsim.sched.algorithms.filling import filler_sched


def Anywhere(scheduler):
    return filler_sched(scheduler, abort_on_first_nonfitting=True)
"""
"""``schedFcfs`` without its filter."""


@contextmanager
def scheduler(name: str) -> Iterator[tuple[str, Callable[[], float]]]:
    """One of pybatsim's: where it listens, and, once it has ended, how many seconds it took for its answers."""
    with tempfile.TemporaryDirectory(prefix="batsim-") as folder:
        (Path(folder) / "anywhere.py").write_text(ANYWHERE)
        (Path(folder) / "timed.py").write_text(TIMED)
        address = f"ipc://{folder}/s"
        chosen = f"{folder}/anywhere.py" if name == "anywhere" else name
        command = [str(PYTHON), "timed.py", chosen, "-v", "critical", "-t", "0", "-s", address]
        quiet: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True, "cwd": folder}
        with subprocess.Popen(command, **quiet) as running:
            try:
                yield address, lambda: float(running.communicate(timeout=60)[0].split("client_s")[1])
            finally:
                running.kill()


def by(name: str, world: World) -> Result:
    with scheduler(name) as (address, _):
        return replay(world, f"batsim:address={address},timeout_s=600", say=lambda _: None)


def decisions(result: Result) -> dict[str, tuple[int, int, str]]:
    """Start, end and processors of each job, by its name there."""
    columns = result.start_s.tolist(), result.end_s.tolist(), Shown(result).allocated.cells()
    names = (f"w0!{number}" for number in result.jobs.number.tolist())
    return dict(zip(names, zip(*columns, strict=True), strict=True))


def by_the_class_alone(world: World, processors: int) -> dict[str, tuple[int, int, str]]:
    """The same of ``easyBackfill`` when a plain loop in its Python calls it."""
    jobs = library.replay(world, "fcfs", say=lambda _: None).jobs
    columns = (column.tolist() for column in (jobs.number, jobs.submit_s, jobs.request_s, jobs.width, jobs.run_s))
    given = [
        {"id": f"w0!{number}", "subtime": at_s, "walltime": request_s, "res": width, "profile": "log", "run_s": run_s}
        for number, at_s, request_s, width, run_s in zip(*columns, strict=True)
    ]
    content = json.dumps({"processors": processors, "jobs": given})
    command = [str(PYTHON), str(LOOP), "easyBackfill", "EasyBackfill"]
    done = subprocess.run(command, input=content, capture_output=True, text=True, check=True)
    run_s = {one["id"]: one["run_s"] for one in given}
    return {name: (at_s, at_s + run_s[name], alloc) for name, at_s, alloc in json.loads(done.stdout)}


def by_a_plain_loop(world: World) -> dict[str, tuple[int, int, str]]:
    """First come, first served on consecutive processors, written out (``foreign_schedulers.InTurn``)."""
    steps = Steps.of(world, "fcfs", "instants")
    simulation = Simulation(steps, InTurn(consecutive=True).ask)
    simulation.run()
    ours = library.replay(world, "fcfs", say=lambda _: None)
    fields = {name: getattr(ours, name) for name in Result.__struct_fields__}
    return decisions(Result(**fields | {"schedule": steps.schedule, "decided": simulation.decided()}))


def agreement(name: str, world: World, processors: int) -> list[dict[str, Any]]:
    """Rows: the scheduler, with what it is compared, jobs, jobs that differ."""
    ours = library.replay(world, "fcfs", say=lambda _: None)
    plain = {key: value[:2] for key, value in decisions(ours).items()}
    in_turn, anywhere, backfill = (decisions(by(one, world)) for one in ("schedFcfs", "anywhere", "easyBackfill"))
    compared: list[tuple[str, str, Mapping[str, object], Mapping[str, object]]] = [
        ("schedFcfs", "a plain loop, consecutive", in_turn, by_a_plain_loop(world)),
        ("schedFcfs", "our fcfs", {key: value[:2] for key, value in in_turn.items()}, plain),
        ("without its filter", "our fcfs", {key: value[:2] for key, value in anywhere.items()}, plain),
        ("easyBackfill", "its class in a plain loop", backfill, by_the_class_alone(world, processors)),
    ]
    return [
        {
            "log": name,
            "scheduler": what,
            "against": against,
            "jobs": len(found),
            "differ": len(found.keys() ^ other.keys())
            + sum(found[key] != other[key] for key in found.keys() & other.keys()),
        }
        for what, against, found, other in compared
    ]


def cost(name: str, world: World) -> dict[str, Any]:
    """Microseconds of a message, each the median of the repeats."""
    rows = []
    for _ in range(REPEATS):
        with scheduler(name) as (address, client_s):
            steps, answers = Steps.of(world, Composition(), "instants"), list[bytes]()
            with Link(address, 600) as link:
                while not Path(address.removeprefix("ipc://")).exists():
                    time.sleep(0.01)
                time.sleep(0.2)

                def ask(message: bytes, ask: Callable[[bytes], bytes] = link.ask, keep: list[bytes] = answers) -> bytes:
                    keep.append(ask(message))
                    return keep[-1]

                simulation = Simulation(steps, ask)
                wall_s, own_s, thread_s = -time.perf_counter(), -time.process_time(), -time.thread_time()
                simulation.run()
                wall_s, own_s = wall_s + time.perf_counter(), own_s + time.process_time()
                libzmq_s = own_s - thread_s - time.thread_time()
            of_client_s = client_s()
        again = Simulation(Steps.of(world, Composition(), "instants"), one_by_one(answers))
        alone_s = -time.thread_time()
        again.run()
        alone_s += time.thread_time()
        found_s = wall_s, of_client_s, wall_s - of_client_s, own_s, libzmq_s, alone_s
        rows.append([1e6 * one / len(answers) for one in found_s])
    medians = [statistics.median(column) for column in zip(*rows, strict=True)]
    return {"scheduler": name, "messages": len(answers), **dict(zip(COSTS, medians, strict=True))}


def one_by_one(answers: Sequence[bytes]) -> Callable[[bytes], bytes]:
    """These, one after the other, whatever the message."""
    left = iter(answers)
    return lambda _: next(left)


COSTS: Final = ("in_all_us", "client_us", "beyond_us", "ours_us", "libzmq_us", "simulator_us")


def logs(folder: Path, is_quick: bool) -> list[tuple[str, World, int]]:
    """Generated jobs, and the first ones of KTH-SP2: name, world, processors."""
    drawn, first = folder / "generated.swf", folder / "first.swf"
    generate(drawn, 300 if is_quick else 500, 256, 0.3, seed=7)
    found = [("generated", World(str(drawn), machine=64), 64)]
    if KTH.exists():
        lines = gzip.decompress(KTH.read_bytes()).decode().splitlines(keepends=True)
        header = [line for line in lines if line.startswith(";")]
        jobs = [line for line in lines if not line.startswith(";")]
        first.write_text("".join(header + jobs[: 300 if is_quick else 2000]))
        found.append(("KTH-SP2", World(str(first), machine=100), 100))
    else:
        print(f"KTH-SP2 is left out: {KTH} is missing")
    return found


def main(arguments: Sequence[str] = ()) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.batsim", description=__doc__)
    parser.add_argument("--quick", action="store_true")
    is_quick = parser.parse_args(arguments).quick
    if not PYTHON.exists():
        print("pybatsim is missing: install it with scripts/foreign_python.sh")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        return measured(logs(Path(folder), is_quick))


def measured(given: Sequence[tuple[str, World, int]]) -> int:
    print(f"{'log':<10} {'scheduler':<19} {'against':<26} {'jobs':>5} {'differ':>7}")
    agreed = []
    for name, world, processors in given:
        for row in agreement(name, world, processors):
            agreed.append(row)
            print(f"{row['log']:<10} {row['scheduler']:<19} {row['against']:<26} {row['jobs']:>5} {row['differ']:>7}")
    columns = f"{'in all':>8} {'client':>8} {'share':>6} {'beyond':>8} {'ours':>6} {'libzmq':>7} {'simulator':>10}"
    print(f"\na message, us: {columns}")
    costs = [cost(name, given[0][1]) for name in ("easyBackfill", "schedFcfs")]
    for row in costs:
        share = row["client_us"] / row["in_all_us"]
        print(
            f"{row['scheduler']:<14} {row['in_all_us']:>8.0f} {row['client_us']:>8.0f} {share:>6.0%}"
            f" {row['beyond_us']:>8.0f} {row['ours_us']:>6.1f} {row['libzmq_us']:>7.1f} {row['simulator_us']:>10.1f}"
        )
    load, cores = os.getloadavg()[0], os.cpu_count()
    print(f"load {load:.1f} on {cores} processors, medians of {REPEATS}; ours at most {MOST_US:g} us")
    save("batsim", {"agreement": agreed, "cost_us": costs, "load": load})
    must = [row for row in agreed if (row["scheduler"], row["against"]) != ("schedFcfs", "our fcfs")]
    return int(any(row["differ"] for row in must) or max(row["ours_us"] for row in costs) > MOST_US)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
