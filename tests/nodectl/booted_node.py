"""A node of plain files under a real systemd, with the product's wheel, the node's units, and its cluster agent.

The node has two CPUs of which nothing is read, and a package whose RAPL limit holds the cap. A grant is seen where it
counts: in ``constraint_0_power_limit_uw``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cluster_agent.cli import main
from tests.sealed_systemd import ROOT, SealedSystemd, install, sealed_systemd

UNITS = ROOT / "systemd"
USER, UID = "clusterctl", 64990
AGENT, AGENT_UID = "nodectl", 64991
JOBS, JOBS_UID = "jobs", 64992
ZONE = "devices/virtual/powercap/intel-rapl/intel-rapl:0"
LIMIT = f"{ZONE}/constraint_0_power_limit_uw"
FOUND_UW = 500_000_000
DRAWS_W = 80
REST_W, SAFE_W = 60.0, 200.0
NODECTL, CLUSTERCTL = "/opt/nodectl/bin/nodectl", "/opt/nodectl/bin/clusterctl"

CLUSTER = """
mode = "cap"
listen = "tcp://127.0.0.1:7410"
keys = "/etc/nodectl/keys"
[budget]
w = 1000.0
[nodes]
tdp_w = 500.0
lease_s = 2.0
failing_together = 0
[jobs]
"""

OLD_NODE = f"""
mode = "optimize"
cpu_policy = {{ name = "none" }}
gpu_policy = {{ name = "none" }}
[caps]
rest_w = {REST_W}
[cluster]
url = "tcp://127.0.0.1:7410"
key = "/etc/nodectl/node/n0.key"
server_key = "/etc/nodectl/node/cluster.pub"
name = "n0"
tdp_w = 500.0
mop_w = 150.0
safe_w = {SAFE_W}
boot_w = 300.0
settle_s = 0.5
watchdog_s = 4.0
jobs = true
[metrics]
listen = "127.0.0.1:9742"
"""
"""Of a version before ``[jobs] user``: later ones start no job by it."""

NODE = f"""{OLD_NODE}
[jobs]
user = "{JOBS}"
"""

QUIET = "[Service]\nEnvironment=PYTHONDONTWRITEBYTECODE=1\n"
SOCKET, WRITER = UNITS / "nodectl-writer.socket", UNITS / "nodectl-writer.service"
IN_A_CLUSTER = (
    "WatchdogSec=10s\nPrivateNetwork=no\nRestrictAddressFamilies=AF_UNIX AF_INET AF_INET6\nIPAddressAllow=127.0.0.1\n"
)
"""The drop-in of docs/operations.md for a node that runs no jobs. Its watchdog waits for longer than the writer's."""

IMPATIENT = QUIET + "WatchdogSec=2s\nRestartSec=200ms\n"


class Site(SealedSystemd):
    """A node, and the head node, on one machine."""

    is_of_version_before = False
    """Then its own ``clusterctl`` is asked, not this tree's."""

    @property
    def limit_w(self) -> float:
        return int((self.stage / "sys" / LIMIT).read_text() or 0) / 1e6

    def agent(self) -> int:
        """The agent's process; systemd may be about to start it."""
        return self._process("run", "an agent")

    def writer(self) -> int:
        """The writer's process; systemd may be about to start it."""
        return self._process("writer", "a writer")

    def _process(self, command: str, what: str) -> int:
        found: list[int] = []

        def is_there() -> bool:
            found[:] = self.pids(f"{NODECTL}\0{command}")
            return len(found) == 1

        comes(self, is_there, what)
        return found[0]

    def job(self, text: str) -> int:
        """The job's first process: the shell may be starting another one, which still has its name."""
        return min(self.pids(text))

    def node(self) -> Any:
        """The node as ``clusterctl nodes`` shows it; None while nobody answers or it is not there yet."""
        if self.is_of_version_before:
            done = self.run(CLUSTERCTL, "nodes", "--json")
            rows = json.loads(done.stdout) if done.returncode == 0 else []
        else:
            rows = self.asked("nodes") or []
        return next((row for row in rows if row["name"] == "n0"), None)

    def is_capped_to(self, budget_w: float) -> bool:
        """Granted, in force by the node's own report, and in the register."""
        row = self.node()
        return (
            row is not None
            and row["state"] == "capped"
            and row["in_force_w"] <= budget_w
            and self.limit_w <= budget_w - REST_W
        )

    def shown(self, unit: str, *names: str) -> dict[str, str]:
        done = self.run("systemctl", "show", unit, f"--property={','.join(names)}")
        return dict(line.split("=", 1) for line in done.stdout.splitlines())

    def assert_unit(self, unit: str, **expected: str) -> None:
        self.assert_comes(lambda: self.shown(unit, *expected) == expected, f"{unit}: {expected}")

    def upgrade(self) -> None:
        """Move the environment and the units that wait in /srv to their places, as a package does: with units stopped
        or not, files are replaced by others of the same name."""
        move = (
            "rm -rf /opt/nodectl && cp -a /srv/new/nodectl /opt/nodectl &&"
            " cp /srv/new/*.service /srv/new/*.socket /etc/systemd/system/ && cp /srv/new/jobs.conf"
            " /etc/systemd/system/nodectl-agent.service.d/jobs.conf && systemctl daemon-reload"
        )
        done = self.run("sh", "-ec", move)
        assert done.returncode == 0, done.stderr
        self.is_of_version_before = False


METER = f"""
import os, time
file = os.open("/sys/{ZONE}/energy_uj", os.O_WRONLY)
while True:
    os.pwrite(file, b"%012d" % (100_000_000_000 + {DRAWS_W} * time.monotonic_ns() // 1000 % 100_000_000_000), 0)
    time.sleep(0.01)
"""
"""The package's energy meter: it draws the same whatever its limit, and never as much."""


def put(stage: Path, path: str, text: object) -> None:
    file = stage / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{text}\n")


def hardware(stage: Path) -> None:
    """A package with a limit, in the places where the kernel has it."""
    put(stage, f"sys/{ZONE}/name", "package-0")
    put(stage, f"sys/{ZONE}/enabled", 1)
    put(stage, f"sys/{ZONE}/energy_uj", 100_000_000_000)
    (stage / f"sys/{ZONE}/energy_uj").chmod(0o400)
    put(stage, f"sys/{ZONE}/max_energy_range_uj", 262_143_328_850)
    for number, (term, limit_uw, window_us) in enumerate(
        (("long_term", FOUND_UW, 99_942), ("short_term", 600_000_000, 2_440))
    ):
        put(stage, f"sys/{ZONE}/constraint_{number}_name", term)
        put(stage, f"sys/{ZONE}/constraint_{number}_power_limit_uw", limit_uw)
        put(stage, f"sys/{ZONE}/constraint_{number}_time_window_us", window_us)
        put(stage, f"sys/{ZONE}/constraint_{number}_max_power_uw", 600_000_000)
    (stage / "meter.py").write_text(METER)
    by_class = stage / "sys/class/powercap"
    by_class.mkdir(parents=True)
    (by_class / "intel-rapl:0").symlink_to("../../devices/virtual/powercap/intel-rapl/intel-rapl:0")


def add_meter(site: Site) -> None:
    unit = site.stage / "meter.service"
    unit.write_text("[Service]\nExecStart=/usr/bin/python3 /srv/meter.py\n")
    site.add(unit)


def boot(
    tmp_path: Path, settings: str = NODE, units: Path = UNITS, version: Path | None = None, jobs: bool = True
) -> Site:
    """A node that runs jobs, or one that runs none and whose agent is no root."""
    site = sealed_systemd(tmp_path, Site)
    site.is_of_version_before = version is not None
    install(tmp_path, version)
    hardware(tmp_path)
    add_meter(site)
    etc = tmp_path / "etc"
    users = ((USER, UID), (AGENT, AGENT_UID), (JOBS, JOBS_UID))
    for name, line in (("passwd", "{0}:x:{1}:{1}::/:/usr/sbin/nologin\n"), ("group", "{0}:x:{1}:\n")):
        (etc / name).write_text(Path("/etc", name).read_text() + "".join(line.format(*user) for user in users))
    keys, node = etc / "nodectl" / "keys", etc / "nodectl" / "node"
    assert main(["keys", "new", "cluster", "--dir", str(keys)]) == 0
    assert main(["keys", "new", "n0", "--role", "node", "--dir", str(keys)]) == 0
    shutil.copytree(keys, node)
    (node / "cluster.pub").write_text((keys / "cluster.key").read_text().splitlines()[0] + "\n")
    for path in (keys, *keys.rglob("*")):
        os.chown(path, UID, UID)
    (etc / "nodectl" / "cluster.toml").write_text(CLUSTER)
    (etc / "nodectl" / "nodectl.toml").write_text(settings)
    site.add(units / "clusterctl.service", QUIET)
    site.add(units / "nodectl-agent.service", IMPATIENT + ("" if jobs else IN_A_CLUSTER))
    if jobs:
        shutil.copy(units / "jobs.conf", etc / "systemd/system/nodectl-agent.service.d/jobs.conf")
    else:
        for path in (node, node / "n0.key"):
            os.chown(path, AGENT_UID, AGENT_UID)
    for unit, drop_in in ((SOCKET, ""), (WRITER, QUIET + "WatchdogSec=2s\n")):
        site.add(unit, drop_in)
        if not (units / unit.name).exists():  # the version before had none: an upgrade brings it
            (etc / "systemd/system" / unit.name).unlink()
    return site


def comes(site: Site, condition: Callable[[], object], what: str) -> None:
    site.assert_comes(condition, what)


def scrape(site: Site, port: int) -> str:
    """What Prometheus gets there; empty while nobody answers."""
    return site.fetched(port)


def rights(pid: int) -> tuple[int, int]:
    """The user of a process, and its capabilities as a mask (linux/capability.h)."""
    status = Path(f"/proc/{pid}/status").read_text()
    user, mask = re.search(r"Uid:\s+(\d+)", status), re.search(r"CapEff:\s+([0-9a-f]+)", status)
    assert user and mask
    return int(user[1]), int(mask[1], 16)
