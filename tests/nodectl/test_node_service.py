"""The node's units under a real systemd, with the product's wheel: a node of plain files, and its cluster agent.

The node has two CPUs of which nothing is read, and a package whose RAPL limit holds the cap. A grant is seen where it
counts: in ``constraint_0_power_limit_uw``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster_agent.cli import main
from tests.installed_wheel import tree_before, wheel
from tests.sealed_systemd import ROOT, SealedSystemd, install, sealed_systemd

pytestmark = pytest.mark.timeout(3600)  # wheels are built, once, which is long on a busy machine

UNITS = ROOT / "systemd"
USER, UID = "clusterctl", 64990
AGENT, AGENT_UID = "nodectl", 64991
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

NODE = f"""
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

QUIET = "[Service]\nEnvironment=PYTHONDONTWRITEBYTECODE=1\n"
SOCKET, WRITER = UNITS / "nodectl-writer.socket", UNITS / "nodectl-writer.service"
IN_A_CLUSTER = (
    "WatchdogSec=10s\nPrivateNetwork=no\nRestrictAddressFamilies=AF_UNIX AF_INET AF_INET6\nIPAddressAllow=127.0.0.1\n"
)
"""The drop-in of docs/operations.md for a node that runs no jobs. Its watchdog waits for longer than the writer's."""

IMPATIENT = QUIET + "WatchdogSec=2s\nRestartSec=200ms\n"


class Site(SealedSystemd):
    """A node, and the head node, on one machine."""

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
        done = self.run(CLUSTERCTL, "nodes", "--json")
        rows = json.loads(done.stdout) if done.returncode == 0 else []
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
    install(tmp_path, version)
    hardware(tmp_path)
    add_meter(site)
    etc = tmp_path / "etc"
    users = ((USER, UID), (AGENT, AGENT_UID))
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
    fetch = f"import urllib.request as r; print(r.urlopen('http://127.0.0.1:{port}/metrics').read().decode())"
    return site.run("/opt/nodectl/bin/python", "-c", fetch).stdout


def rights(pid: int) -> tuple[int, int]:
    """The user of a process, and its capabilities as a mask (linux/capability.h)."""
    status = Path(f"/proc/{pid}/status").read_text()
    user, mask = re.search(r"Uid:\s+(\d+)", status), re.search(r"CapEff:\s+([0-9a-f]+)", status)
    assert user and mask
    return int(user[1]), int(mask[1], 16)


def test_the_node_units_keep_a_granted_cap_through_hang_kill_restart_and_stop_with_an_agent_that_is_no_root(
    tmp_path: Path,
) -> None:
    settings = NODE.replace("jobs = true\n", "").partition("[metrics]")[0]
    with boot(tmp_path, settings, jobs=False) as site:
        site.assert_unit("nodectl-agent", ActiveState="active", SubState="running")  # Type=notify: it has said READY
        site.assert_unit("nodectl-writer", ActiveState="active", SubState="running")
        comes(site, lambda: site.is_capped_to(500.0), "the first grant")
        assert rights(site.agent()) == (AGENT_UID, 1 << 38)  # CAP_PERFMON
        assert rights(site.writer()) == (0, 1 << 21)  # CAP_SYS_ADMIN, for GPUs
        assert site.run(CLUSTERCTL, "budget", "set", "300").returncode == 0
        comes(site, lambda: site.is_capped_to(300.0), "a cap within the budget")
        status = f"cap 300 W by the cluster, power {DRAWS_W + REST_W:.0f} W, healthy"
        comes(site, lambda: status in site.run("systemctl", "status", "nodectl-agent").stdout, status)
        status = "budget 300 W, granted 300 W to 1 nodes; no alarm"
        comes(site, lambda: status in site.run("systemctl", "status", "clusterctl").stdout, status)
        status = f"writes for an agent of uid {AGENT_UID}"
        assert status in site.run("systemctl", "status", "nodectl-writer").stdout

        agent, granted_w = site.agent(), site.limit_w
        assert granted_w > SAFE_W - REST_W
        for number, what in ((signal.SIGKILL, "a killed writer"), (signal.SIGSTOP, "a hung writer")):
            before = site.writer()
            os.kill(before, number)
            comes(site, lambda before=before: site.writer() != before, f"another one after {what}")  # type: ignore[misc]
            comes(site, lambda: site.limit_w == granted_w, f"the cap after {what}, not only the safe one")
        assert site.agent() == agent, f"it has waited for the writer: {site.log}"
        restarts = [site.shown(unit, "NRestarts")["NRestarts"] for unit in ("nodectl-agent", "nodectl-writer")]
        assert restarts == ["0", "2"], site.log

        os.kill(agent, signal.SIGSTOP)
        comes(site, lambda: agent not in site.pids(f"{NODECTL}\0run"), "the watchdog")
        comes(site, lambda: site.is_capped_to(300.0), "the cap after a hang")
        os.kill(site.agent(), signal.SIGKILL)
        comes(site, lambda: site.shown("nodectl-agent", "NRestarts") == {"NRestarts": "2"}, "the second restart")
        comes(site, lambda: site.is_capped_to(300.0), "the cap after a kill")
        assert site.run("systemctl", "restart", "nodectl-agent").returncode == 0
        comes(site, lambda: site.is_capped_to(300.0), "the cap after a restart")
        assert site.run(CLUSTERCTL, "budget", "set", "1000").returncode == 0
        comes(site, lambda: (site.node() or {}).get("in_force_w", 0) > 300.0, "a raise")
        assert site.run("systemctl", "stop", "nodectl-agent").returncode == 0
        for unit in ("nodectl-agent", "nodectl-writer"):
            site.assert_unit(unit, ActiveState="inactive", Result="success")
        assert site.limit_w == FOUND_UW / 1e6, "its cluster has let it go: the register is as it was found"


def test_a_job_goes_on_while_the_agent_that_started_it_is_killed_and_restarted(tmp_path: Path) -> None:
    def job() -> Any:
        done = site.run(CLUSTERCTL, "jobs", "1", "--json")
        return json.loads(done.stdout) if done.returncode == 0 else {}

    with boot(tmp_path) as site:
        comes(site, lambda: (site.node() or {}).get("jobs") == "idle", "a node for jobs")
        script = "echo begun; while [ ! -e /srv/go ]; do sleep 0.1; done; echo ended"
        submit = ["submit", "--workdir", "/srv", "-t", "00:10:00", "--", "/bin/sh", "-c", script]
        assert site.run(CLUSTERCTL, *submit).returncode == 0
        comes(site, lambda: site.pids("/srv/go"), "the job")
        before = site.job("/srv/go")
        os.kill(site.agent(), signal.SIGKILL)
        comes(site, lambda: site.shown("nodectl-agent", "NRestarts") == {"NRestarts": "1"}, "the restart")
        assert site.run("systemctl", "restart", "nodectl-agent").returncode == 0
        assert site.job("/srv/go") == before
        (tmp_path / "go").touch()
        comes(site, lambda: job().get("row", {}).get("state") == "done", "its end")
        assert (tmp_path / "job-1.out").read_text() == "begun\nended\n"


def test_an_upgrade_from_the_version_before_keeps_cap_and_job(tmp_path: Path) -> None:
    before = tree_before(tmp_path / "before")
    old = wheel(before)
    assert old != wheel(ROOT)
    site = boot(tmp_path, NODE, before / "systemd", old)
    metrics = {"nodectl-metrics": (9742, "nodectl_up 1.0"), "clusterctl-metrics": (9741, "clusterctl_up 1.0")}
    for name in metrics:
        site.add(before / "systemd" / f"{name}.service", QUIET + "RestartSec=200ms\n")
    install(tmp_path, place="new")
    for file in [*UNITS.glob("*.service"), *UNITS.glob("*.socket"), UNITS / "jobs.conf"]:
        shutil.copy(file, tmp_path / "new" / file.name)
    (tmp_path / "etc/systemd/system/nodectl-agent.service.d/jobs.conf").write_text(
        (before / "systemd/jobs.conf").read_text()
    )
    with site:
        comes(site, lambda: site.is_capped_to(500.0), "the first grant by the version before")
        assert site.run(CLUSTERCTL, "budget", "set", "300").returncode == 0
        comes(site, lambda: site.is_capped_to(300.0), "a cap within the budget")
        submit = ["submit", "--workdir", "/srv", "-t", "00:10:00", "--", "/bin/sleep", "3600"]
        assert site.run(CLUSTERCTL, *submit).returncode == 0
        comes(site, lambda: site.pids("/bin/sleep\x003600"), "the job")
        (job,) = site.pids("/bin/sleep\x003600")
        for unit in ("nodectl-agent", "clusterctl", *metrics):
            assert site.run("systemctl", "stop", unit).returncode == 0
        site.upgrade()
        for unit in ("clusterctl", "nodectl-agent", *metrics):
            assert site.run("systemctl", "start", unit).returncode == 0, site.log
        comes(site, lambda: site.is_capped_to(300.0), "the cap under the new version")
        assert site.run(NODECTL, "writer", "--help").returncode == 0, "a command that the version before has not"
        assert site.pids("/bin/sleep\x003600") == [job]
        comes(site, lambda: (site.node() or {}).get("jobs") == "allocated", "its job")
        for unit, (port, line) in metrics.items():
            comes(site, lambda port=port, line=line: line in scrape(site, port), unit)  # type: ignore[misc]
        assert max(int(found) for found in re.findall(r"epoch (\d+)", site.log)) == 2


def test_an_upgrade_of_a_node_whose_agent_was_root_keeps_the_cap_with_an_agent_that_is_none(tmp_path: Path) -> None:
    before = tree_before(tmp_path / "before")
    settings = NODE.replace("jobs = true\n", "").partition("[metrics]")[0]
    site = boot(tmp_path, settings, before / "systemd", wheel(before), jobs=False)
    key = tmp_path / "etc/nodectl/node"
    for path in (key, key / "n0.key"):
        os.chown(path, 0, 0)
    install(tmp_path, place="new")
    for unit in [*UNITS.glob("*.service"), *UNITS.glob("*.socket"), UNITS / "jobs.conf"]:
        shutil.copy(unit, tmp_path / "new" / unit.name)
    with site:
        comes(site, lambda: site.is_capped_to(500.0), "the first grant by the version before")
        assert rights(site.agent())[0] == 0
        assert site.run("systemctl", "stop", "nodectl-agent").returncode == 0
        site.upgrade()
        site.run("rm", "/etc/systemd/system/nodectl-agent.service.d/jobs.conf")
        assert site.run("systemctl", "daemon-reload").returncode == 0
        checked = site.run(NODECTL, "config", "check")
        assert (checked.returncode, "chown nodectl:" in checked.stderr) == (2, True), checked.stderr
        assert site.run("chown", "-R", "nodectl:", "/etc/nodectl/node").returncode == 0
        assert site.run(NODECTL, "config", "check").returncode == 0
        assert site.run("systemctl", "start", "nodectl-agent").returncode == 0, site.log
        comes(site, lambda: site.is_capped_to(500.0), "a grant under the new version")
        assert rights(site.agent())[0] == AGENT_UID
        assert "nodectl-writer moves knobs for it, and opens 1 sensor file" in site.run(NODECTL, "doctor").stdout


def test_the_metrics_unit_answers_through_kill_and_stop_of_an_agent_without_network_and_the_boot_unit_restores(
    tmp_path: Path,
) -> None:
    alone = 'mode = "optimize"\n[caps]\nnode_w = 200.0\nrest_w = 60.0\n[metrics]\nlisten = "127.0.0.1:9742"\n'
    alone += '[cpu_policy]\nname = "none"\n[gpu_policy]\nname = "none"\n'
    site = boot(tmp_path, alone, jobs=False)
    shipped = tmp_path / "etc/systemd/system/nodectl-agent.service.d/test.conf"
    shipped.write_text(shipped.read_text().replace(IN_A_CLUSTER, ""))
    site.add(UNITS / "nodectl-metrics.service", QUIET + "RestartSec=200ms\n")

    by_hand = tmp_path / "by-hand.service"
    by_hand.write_text(f"[Service]\nExecStart={NODECTL} run\n")
    site.add(by_hand, QUIET, is_wanted=False)
    site.add(UNITS / "nodectl-restore.service", is_wanted=False)

    def scraped() -> str:
        return scrape(site, 9742)

    with site:
        comes(site, lambda: "nodectl_cap_watts 200.0" in scraped(), "the cap as Prometheus reads it")
        assert "nodectl_up 1.0" in scraped() and "nodectl_energy" in scraped()
        (killed,) = site.pids(f"{NODECTL}\0metrics")
        os.kill(killed, signal.SIGKILL)
        comes(site, lambda: "nodectl_up 1.0" in scraped(), "the metrics after a kill")
        assert site.run("systemctl", "restart", "nodectl-metrics").returncode == 0
        comes(site, lambda: "nodectl_up 1.0" in scraped(), "the metrics after a restart")
        monitor = "sed -i 's/optimize/monitor/; /_w =/d' /etc/nodectl/nodectl.toml && systemctl restart nodectl-agent"
        assert site.run("sh", "-ec", monitor).returncode == 0
        read = re.compile(r'joules_total{instrument="package-0",quality="measured",side="cpu"} [1-9]')
        comes(site, lambda: 'mode="monitor"' in scraped() and read.search(scraped()), "joules that only root may read")
        assert site.run("sh", "-ec", f"cat > /etc/nodectl/nodectl.toml <<'TOML'\n{alone}TOML").returncode == 0
        assert site.run("systemctl", "restart", "nodectl-agent").returncode == 0

        assert site.run("systemctl", "stop", "nodectl-agent").returncode == 0
        assert "nodectl_up 0.0" in scraped() and "nodectl_cap_watts" not in scraped()

        assert site.run("systemctl", "start", "by-hand").returncode == 0
        comes(site, lambda: site.limit_w == 200.0 - REST_W, "the cap of a run by hand")
        assert site.run("systemctl", "kill", "--signal=KILL", "by-hand").returncode == 0  # all its processes at once
        site.assert_unit("by-hand", ActiveState="failed")
        assert site.limit_w == 200.0 - REST_W, "nobody is left to put it back"
        assert site.run("systemctl", "start", "nodectl-restore").returncode == 0, site.log
        assert site.limit_w == FOUND_UW / 1e6
        assert site.run("systemctl", "start", "nodectl-restore").returncode == 0, "with nothing to do"

        assert site.run("systemctl", "stop", "nodectl-metrics").returncode == 0
        assert site.shown("nodectl-metrics", "ActiveState", "Result") == {
            "ActiveState": "inactive",
            "Result": "success",
        }


FAILS = """
import msgspec
from nodectl.policies.api import Policy
class Params(msgspec.Struct, frozen=True):
    pass
def initial(params, layout):
    return layout.nothing
def decide(params, layout, state, sample):
    return state, None
POLICY = Policy("site-epp", "epp", Params, initial, decide, ("set",))
"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('mode = "optimize"', 'mode = "optimise"', "nodectl.toml:2: no mode is called 'optimise' (nearest: optimize)"),
        ("node/n0.key", "node/gone.key", "/etc/nodectl/node/gone.key: cannot read the key"),
        ('cpu_policy = { name = "none" }', 'cpu_policy = { name = "/etc/nodectl/mine.py" }', "/etc/nodectl/mine.py"),
    ],
)
def test_settings_that_cannot_work_are_one_line_and_the_node_unit_is_not_started_again(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    assert old in NODE
    (tmp_path / "etc/nodectl").mkdir(parents=True)
    site = boot(tmp_path, NODE.replace(old, new))
    (tmp_path / "etc/nodectl/mine.py").write_text(FAILS)
    with site:
        site.assert_unit("nodectl-agent", ActiveState="failed", Result="exit-code", NRestarts="0", ExecMainStatus="2")
        assert sum(said in line for line in site.log.splitlines()) == 1, site.log
        assert site.limit_w == FOUND_UW / 1e6


def test_install_service_writes_units_that_run_and_remove_takes_back_just_these(tmp_path: Path) -> None:
    site = sealed_systemd(tmp_path, Site)
    install(tmp_path)
    target = tmp_path / "etc/systemd/system/nodectl-test.target"
    target.write_text("[Unit]\nDefaultDependencies=no\n")

    def units() -> set[str]:
        listed = site.run("sh", "-c", "cd /etc/systemd/system && find . -type f -o -type l").stdout.split()
        return {name for name in listed if re.search("nodectl-(agent|metrics|writer)", name)}

    with site:
        comes(site, lambda: site.run("systemctl", "list-units").returncode == 0, "systemd")
        before = units()
        for written in ("wrote", "unchanged"):
            done = site.run(NODECTL, "install-service", "--jobs")
            assert done.returncode == 0, done.stderr
            assert f"{written} /etc/systemd/system/nodectl-agent.service\n" in done.stdout
        assert site.run("systemctl", "enable", "nodectl-agent").returncode == 0
        new = {f"./nodectl-{name}" for name in ("agent.service", "agent.service.d/jobs.conf", "writer.socket")}
        assert units() - before >= new
        text = site.run("systemctl", "cat", "nodectl-agent").stdout
        assert "ExecStart=/opt/nodectl/bin/nodectl run" in text and "KillMode=process" in text
        done = site.run(NODECTL, "install-service", "--remove")
        assert done.returncode == 0, done.stderr
        assert units() == before
        assert "LoadState=not-found" in site.run("systemctl", "show", "nodectl-agent").stdout
        assert "nothing was installed" in site.run(NODECTL, "install-service", "--remove").stdout
        site.run("sh", "-c", "echo '# mine' > /etc/systemd/system/nodectl-agent.service")
        done = site.run(NODECTL, "install-service")
        assert done.returncode == 2 and "was not written by this command" in done.stderr
