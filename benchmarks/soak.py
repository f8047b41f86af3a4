"""A day of one node agent and of one cluster agent, in virtual time, in this process: does anything grow?

*Node*: the real agent with its writer on an emulated node with GPUs, one second a tick. Workloads of minutes follow
each other; the cap changes; instruments fail and come back, a knob is refused or moved by somebody else; some times an
hour the agent is stopped and opened again with other settings.

*Cluster*: the real server with its store, its front process and its socket, 16 nodes with the product's own leases that
report once a second; nodes are cut off and come back; the budget changes; the store is backed up, and the server opened
again. Next to it a partition of 16 made-up nodes that run some 100 jobs an hour, with kills of the agent and of nodes.

Each virtual hour: memory (RSS after a full collection), objects that Python knows, descriptors, threads, files and
bytes in the state and run directories. The first four hours are not judged, since buffers fill and code is loaded.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import zmq

from benchmarks.experiment import save
from cluster_agent.fabric.allowed import Allowed, Entry
from cluster_agent.fabric.people import Caller
from cluster_agent.serve.config import BudgetSettings, NodeSettings, Settings
from cluster_agent.serve.people_protocol import SetBudget
from cluster_agent.serve.server import Server
from cluster_agent.store.mending import backup
from foundation.wire.keys import KeyPair, write_pair
from foundation.wire.power_messages import Declaration
from lab.cluster_demo.emulated_partition import free_port
from nodectl.config import Config, GpuSettings, JournalSettings, PolicyChoice
from nodectl.decide.node_cap import CapRequest
from nodectl.loop.agent import Agent
from nodectl.member.lease import NodeLease
from tests.live.fakes import Fake
from twin.faults.active import Fault
from twin.in_process_node import InProcess
from twin.machine import load_machine
from twin.physics.model import Twin
from twin.programs.workload import load_workload

HOURS, WARM_UP = 24, 4
NODES: Final = 16
JOBS_AN_HOUR: Final = 100
S_NS: Final = 1_000_000_000
JOURNAL_BYTES: Final = 4_000_000

MOST_MB_A_DAY: Final = 4.0
"""Ours: what memory may grow by, by a straight line through the hours; an agent runs for months."""
MOST_OBJECTS_A_DAY: Final = 2_000
"""Ours, of some 200,000."""


@dataclass(frozen=True, slots=True)
class Row:
    """What there was at the end of an hour. ``files`` and ``mb`` (on disk): in the directories of the half."""

    hour: float
    rss_mb: float
    objects: int
    descriptors: int
    threads: int
    files: int
    mb: float


def look(hour: float, *directories: Path) -> Row:
    """Now."""
    gc.collect()
    status = Path("/proc/self/status").read_text()
    (rss_kb,) = (int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))
    found = [path for directory in directories for path in directory.rglob("*") if path.is_file()]
    return Row(
        hour, rss_kb / 1024, len(gc.get_objects()), len(os.listdir("/proc/self/fd")),
        len(os.listdir("/proc/self/task")), len(found), sum(path.stat().st_size for path in found) / 1e6,
    )  # fmt: skip


def problems(rows: Sequence[Row], most_mb: float) -> list[str]:
    """What is not flat; ``rows`` without those of the warm-up. ``most_mb``: what may be on the disk."""
    hours = np.array([row.hour for row in rows])

    def a_day(values: Sequence[float]) -> float:
        return float(np.polyfit(hours, np.array(values), 1)[0]) * 24

    wrong = []
    if (grown := a_day([row.rss_mb for row in rows])) > MOST_MB_A_DAY:
        wrong.append(f"memory grows by {grown:.1f} MB a day (at most {MOST_MB_A_DAY:g})")
    if (grown := a_day([row.objects for row in rows])) > MOST_OBJECTS_A_DAY:
        wrong.append(f"{grown:.0f} more objects a day (at most {MOST_OBJECTS_A_DAY})")
    early, late = rows[: len(rows) // 2], rows[len(rows) // 2 :]
    for name in ("descriptors", "threads", "files"):  # they come and go, but never more of them
        before, after = (max(getattr(row, name) for row in part) for part in (early, late))
        if after > before:
            wrong.append(f"{name}: {before} at most, later {after}")
    if (largest := max(row.mb for row in rows)) > most_mb:
        wrong.append(f"{largest:.1f} MB of files (at most {most_mb:g})")
    return wrong


# --- the node


@dataclass
class Caps:
    """A ``CapSource`` whose cap is set from outside."""

    node_w: float = 0.0

    def request(self, now_ns: int) -> CapRequest | None:
        """See there."""
        return CapRequest(self.node_w, "the soak") if self.node_w else None


FAULTS: Final = (
    Fault("missing", "/sys/class/powercap/intel-rapl:0/energy_uj", for_s=90.0),
    Fault("missing", "/sys/devices/system/cpu/cpufreq/policy0/scaling_max_freq", for_s=60.0),
    Fault("missing", "gpu:0:power", for_s=120.0),
    Fault("gpu-lost", "gpu:1", for_s=45.0),
    Fault("refused", "gpu:2", for_s=30.0),
    Fault("foreign-writer", "/sys/devices/system/cpu/cpufreq/policy0/scaling_max_freq", for_s=20.0, value=2_000_000,
          every_s=5.0),
)  # fmt: skip


def node(hours: float, each_s: float, seed: int = 1) -> Iterator[Row]:
    """A row after each ``each_s`` of virtual time."""
    rng = random.Random(seed)
    machine = load_machine("xh2415")
    with tempfile.TemporaryDirectory(dir=_memory()) as folder:
        state, caps = Path(folder), Caps()
        workload = load_workload("mixed-gpu:3", machine, seed=seed, duration_s=hours * 3600 + 7200)
        with InProcess(Twin(machine, workload, seed=seed)) as inside:
            began_ns, at_s = inside.twin.time_ns, 0.0
            while at_s < hours * 3600:
                policies = rng.choice((("bdpo-cpu", "bdpo-gpu"), ("bdpo-cpu-bounded", "gpu-ladder"), ("none", "none")))
                config = Config(
                    mode="monitor" if policies[0] == "none" else "optimize", period_ms=1000.0, state_dir=str(state),
                    cpu_policy=PolicyChoice(policies[0]), gpu_policy=PolicyChoice(policies[1]),
                    gpu=GpuSettings(locked_clock_mhz=0), journal=JournalSettings(max_bytes=JOURNAL_BYTES),
                )  # fmt: skip
                agent = Agent.open(inside.ports, config, log=lambda line: None, caps=caps)
                for _ in range(rng.randrange(2, 7)):  # settings change after 20 to 60 minutes
                    caps.node_w = rng.choice((0.0, rng.uniform(300.0, 2000.0)))
                    fault = rng.choice(FAULTS)
                    begins_s = inside.faults.now_s + rng.uniform(0.0, 300.0)
                    inside.faults.add(msgspec.structs.replace(fault, at_s=begins_s))
                    for _ in range(round(600 / min(600.0, each_s))):
                        at_s += min(600.0, each_s)
                        agent.run(until_ns=began_ns + round(at_s * S_NS))
                        if at_s % each_s == 0:
                            yield look(at_s / 3600, state)
                    if at_s >= hours * 3600:
                        break
                agent.stop()


# --- the cluster


DECLARED: Final = Declaration(
    tdp_mw=500_000, mop_mw=150_000, safe_mw=200_000, boot_mw=300_000, lease_class="os", watchdog_ms=2000
)
ADMIN: Final = Caller(0, "root", "admin")


class Head:
    """The server with its nodes, and a clock that only moves by hand."""

    def __init__(self, at: Path) -> None:
        self.at, self.now_s = at, 100.0
        self.settings = Settings(
            listen=f"tcp://127.0.0.1:{free_port()}", keys=str(at / "keys"), store=str(at / "store" / "cluster.db"),
            socket=str(at / "ctl.sock"), mode="cap", budget=BudgetSettings(w=5000.0),
            nodes=NodeSettings(tdp_w=500.0, lease_s=10.0, failing_together=0),
        )  # fmt: skip
        (at / "keys").mkdir()
        allowed = Allowed(at / "keys")
        write_pair(at / "keys" / "cluster.key", pair())
        for name in (f"n{n:02}" for n in range(NODES)):
            allowed.allow(Entry("node", name, pair().public))
        self.boots = dict.fromkeys((entry.name for entry in allowed.entries()), 0)
        self.leases: dict[str, NodeLease] = {}
        for name in self.boots:
            self.reboot(name)
        self.cut: set[str] = set()
        self.server = self._open()

    def _open(self) -> Server:
        server = Server(self.settings, lambda line: None, lambda: self.now_s, lambda: 1e9 + self.now_s)
        server.step(0)
        return server

    def reboot(self, name: str) -> None:
        """The node forgets everything."""
        self.boots[name] += 1
        self.leases[name] = NodeLease(name, f"boot-{self.boots[name]}", DECLARED, 500_000, 0)

    def restart(self) -> None:
        """The agent ends and begins again."""
        self.server.close()
        self.server = self._open()

    def second(self, rng: random.Random) -> None:
        """Everybody reports, and takes what is granted."""
        self.now_s += 1.0
        now_ns = round(self.now_s * S_NS)
        reports = [
            lease.report(now_ns, rng.randrange(120_000, 480_000))
            for name, lease in self.leases.items() if name not in self.cut
        ]  # fmt: skip
        for grant in self.server.partition.hear(self.now_s, reports):
            if grant.node not in self.cut and not self.leases[grant.node].take(now_ns, grant):
                self.leases[grant.node].confirm("seen")


def cluster(hours: float, each_s: float, seed: int = 1) -> Iterator[Row]:
    """A row after each ``each_s`` of virtual time."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory(dir=_memory()) as folder:
        at = Path(folder)
        head, jobs = Head(at), Fake(NODES)
        for second in range(1, round(hours * 3600) + 1):
            head.second(rng)
            if second % 10 == 0:
                jobs.step(10.0)
                if rng.random() < JOBS_AN_HOUR / 360:
                    jobs.submit(rng.randrange(10, 300), nodes=rng.randrange(1, 4), walltime_s=400)
            if second % 60 == 0:
                head.server.step(0)
                _something_happens(head, jobs, rng)
            if second % each_s == 0:
                yield look(second / 3600, at, Path(jobs.database.path).parent)
        head.server.close()
        jobs.database.close()


def pair() -> KeyPair:
    """A key pair of its own."""
    public, secret = zmq.curve_keypair()
    return KeyPair(public.decode(), secret.decode())


def _something_happens(head: Head, jobs: Fake, rng: random.Random) -> None:
    """Once a minute. Who was cut off comes back soon."""
    head.cut.clear()
    for made_up in jobs.nodes.values():
        made_up.is_cut = made_up.is_cut and rng.random() < 0.5
    kind = rng.randrange(20)
    name = rng.choice(list(head.leases))
    if kind < 4:
        head.cut = set(rng.sample(list(head.leases), rng.randrange(1, NODES)))
    elif kind < 6:
        head.reboot(name)
    elif kind < 10:
        head.server.handlers[SetBudget](ADMIN, SetBudget(rng.uniform(4000.0, 8000.0)))
    elif kind == 10:
        head.restart()
    elif kind == 11:
        kept = head.at / "kept.db"
        kept.unlink(missing_ok=True)
        backup(Path(head.settings.store), kept)
    elif kind == 12:
        jobs.kill_and_restart()
    elif kind < 15:
        rng.choice(list(jobs.nodes.values())).reboot()
    elif kind < 17:
        rng.choice(list(jobs.nodes.values())).is_cut = True


def _memory() -> str | None:
    return "/dev/shm" if os.path.isdir("/dev/shm") else None  # the disk's own time is not what is measured


HALVES: Final[dict[str, tuple[Callable[[float, float], Iterator[Row]], float]]] = {
    "node": (node, 3 * JOURNAL_BYTES / 1e6), "cluster": (cluster, 100.0),
}  # fmt: skip
"""Each with what it may have on the disk, in MB."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one hour, looked at each five minutes, not judged")
    parser.add_argument("half", nargs="*", choices=[*HALVES, []], help="node, cluster (default: both)")
    options = parser.parse_args(arguments)
    hours, each_s = (1.0, 300.0) if options.quick else (float(HOURS), 3600.0)
    content: dict[str, Any] = {}
    wrong: list[str] = []
    for name in options.half or HALVES:
        run, most_mb = HALVES[name]
        print(f"{name}, EMULATED\n{'hour':>6}{'MB':>8}{'objects':>9}{'fds':>5}{'threads':>8}{'files':>6}{'MB':>7}")
        began_s, rows = time.process_time(), list[Row]()
        for row in run(hours, each_s):
            rows.append(row)
            print(
                f"{row.hour:6.2f}{row.rss_mb:8.1f}{row.objects:9}{row.descriptors:5}{row.threads:8}{row.files:6}"
                f"{row.mb:7.1f}",
                flush=True,
            )
        took_s = time.process_time() - began_s
        found = [] if options.quick else problems([row for row in rows if row.hour > WARM_UP], most_mb)
        wrong += [f"{name}: {line}" for line in found]
        print(f"{hours * 3600 / took_s:.0f} times as fast as time (processor time {took_s:.0f} s)")
        content[name] = {"rows": [asdict(row) for row in rows], "processor_s": took_s, "wrong": found}
    print(*wrong, sep="\n", end="\n" if wrong else "")
    print("JSON:", save("soak", content))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
