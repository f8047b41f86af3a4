"""A writer process on a tree of plain files, and the agent's end of the connection to it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from nodectl.writer_process.channel import Channel, pair
from nodectl.writer_process.remote_writer import RemoteWriter
from nodectl.writer_process.writer_link import Link, below_restorer

ROOT = Path(__file__).parents[2]
CPU = "sys/devices/system/cpu"
POWERCAP = "sys/class/powercap"
MIN_KHZ, MAX_KHZ = 800_000, 3_200_000

SERVE = """
import dataclasses, sys
from nodectl.loop.interruptions import Interruptions
from nodectl.writer_process.channel import Channel
from nodectl.writer_process.writer_server import Served, Session
from pmu.system import system_ports
import socket
ports = dataclasses.replace(system_ports(sys.argv[1]), lock_path=sys.argv[4])
with Interruptions(ports.clock) as stop:
    served = Served(ports, sys.argv[2], sys.argv[1])
    Session(served, lambda line: print(line, file=sys.stderr, flush=True)).serve(
        Channel(socket.socket(fileno=int(sys.argv[3]))), stop
    )
"""


def make_tree(root: Path, policies: int = 4) -> Path:
    """A node of one CPU per frequency domain, with one package whose limit is 150 W, below 200 W that it can take."""
    put(root / CPU / "online", f"0-{policies - 1}")
    for policy in range(policies):
        folder = root / CPU / f"cpufreq/policy{policy}"
        put(folder / "related_cpus", policy)
        put(folder / "cpuinfo_min_freq", MIN_KHZ)
        put(folder / "cpuinfo_max_freq", MAX_KHZ)
        put(folder / "scaling_max_freq", MAX_KHZ)
        put(folder / "scaling_driver", "acpi-cpufreq")
        put(folder / "cpuinfo_transition_latency", 10_000)
    zone = root / POWERCAP / "intel-rapl:0"
    for name, value in (
        ("name", "package-0"), ("enabled", 1), ("energy_uj", 123_456), ("max_energy_range_uj", 1 << 32),
        ("constraint_0_name", "long_term"), ("constraint_0_power_limit_uw", 150_000_000),
        ("constraint_0_max_power_uw", 200_000_000), ("constraint_0_time_window_us", 999_424),
    ):  # fmt: skip
        put(zone / name, value)
    (zone / "energy_uj").chmod(0o400)
    return root


def put(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{value}\n")


def clock_path(root: Path, policy: int) -> Path:
    return root / CPU / f"cpufreq/policy{policy}/scaling_max_freq"


def limit_path(root: Path) -> Path:
    return root / POWERCAP / "intel-rapl:0/constraint_0_power_limit_uw"


def limits(root: Path) -> dict[str, str]:
    """What a restore must leave as it was."""
    paths = [*sorted((root / CPU / "cpufreq").glob("*/scaling_max_freq")), limit_path(root)]
    return {str(path.relative_to(root)): path.read_text().strip() for path in paths}


def start(root: Path, state_dir: Path, log: int = subprocess.DEVNULL, lock: Path | None = None) -> Link:
    """Start a writer process on this tree. ``lock``: the node's, which a restorer takes; without it there is none."""
    ours, theirs = pair()
    refusal, said = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    with theirs:
        command = [sys.executable, "-c", SERVE, str(root), str(state_dir), str(theirs.fileno()), str(lock or "")]
        if lock:
            command = below_restorer(command, said, ["--lock", str(lock), "--root", str(root)])
        process = subprocess.Popen(
            command,
            pass_fds=[theirs.fileno(), said],
            stderr=log,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
    os.close(said)
    return Link(Channel(ours), process, refusal)


def writer_on(root: Path, state_dir: Path, started: list[Link] | None = None, lock: Path | None = None) -> RemoteWriter:
    """A remote writer; ``started`` gets the link of each process that it starts. ``lock``: as ``start`` takes it."""

    def connect() -> Link:
        link = start(root, state_dir, lock=lock)
        if started is not None:
            started.append(link)
        return link

    return RemoteWriter(connect)
