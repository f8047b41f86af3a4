"""Delegation in real time: the agent and the controller are processes, and either is killed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from firmware_bridge.controlpulp.posix import PROGRAM, PosixController
from firmware_bridge.scmi.protocols.power_capping import CapGet
from nodectl.commands.run import configure
from nodectl.config import Scmi
from nodectl.controller.delegation import findings
from tests.nodectl.file_tree import MAX_KHZ, RootedFiles, file_node, limit_path
from tests.scmi.patient import patient_client
from tests.waiting import PATIENCE_S
from twin.pulp.shared_plant import LIBRARY, SharedPlant

if not PROGRAM.exists():
    pytest.skip(f"{PROGRAM} is not built", allow_module_level=True)

ROOT = Path(__file__).parents[2]
LONG_TERM = "/sys/class/powercap/intel-rapl:0/constraint_0_power_limit_uw"

NODECTL = """
import sys
from nodectl.cli import main
from nodectl.commands import doctor, restore, run
from pmu.ports import Ports
from pmu.instruments.counters import PerfCounters
from pmu.system import MonotonicClock, OsFiles
files = OsFiles(sys.argv[1])
ports = lambda: Ports(files, PerfCounters(files), None, "no GPU in this node", MonotonicClock())
doctor.system_ports = restore.system_ports = run.system_ports = ports
sys.exit(main(sys.argv[2:]))
"""
"""The command line on a node of files: its own knobs are below a directory, whoever runs the tests."""


class Scene:
    """A node of files, a controller with its plant, and the settings that join them."""

    def __init__(self, folder: Path) -> None:
        self.tree, self.state = folder / "tree", folder / "state"
        self.files: RootedFiles = file_node(self.tree, policies=1).files
        self.files.put("/sys/devices/system/cpu/online", "0")
        base = "/sys/devices/system/cpu/cpufreq/policy0"
        for name, value in (("related_cpus", 0), ("cpuinfo_min_freq", 1_200_000), ("cpuinfo_max_freq", MAX_KHZ)):
            self.files.put(f"{base}/{name}", value)
        self.files.put("/sys/class/powercap/intel-rapl:0/energy_uj", 1)
        self.files.put("/sys/class/powercap/intel-rapl:0/max_energy_range_uj", 1 << 40)
        self._plant = SharedPlant(folder / "plant")
        self._folder = folder / "scmi"
        self.start_controller()
        self.url = self.controller.url(2)
        self.config = folder / "nodectl.toml"
        self.config.write_text(
            'cpu_policy = {name = "none"}\ngpu_policy = {name = "none"}\n[caps]\nrest_w = 40.0\n'
            f'[scmi]\nurl = "{self.url}"\nknobs = {{"node/cap_mw" = "package"}}\n'
        )

    def start_controller(self) -> None:
        self.controller = PosixController(self._folder, "--fifo", "try", plant=(LIBRARY, self._plant.path))

    def cap_mw(self) -> int:
        client = patient_client(self.controller.url(3))
        try:
            return client.request(CapGet(0)).cap
        finally:
            client.close()

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-c", NODECTL, str(self.tree), *arguments]

    def nodectl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments), capture_output=True, text=True, timeout=PATIENCE_S, env=environment()
        )

    @contextmanager
    def agent(self, cap_w: float) -> Iterator[subprocess.Popen[str]]:
        arguments = ("run", "--mode", "optimize", "--config", str(self.config), "--state-dir", str(self.state))
        process = subprocess.Popen(
            self.command(*arguments, "--cap-w", str(cap_w), "--json"),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(),
        )  # fmt: skip
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def long_term_uw(self) -> int:
        return self._number(LONG_TERM)

    def limit_khz(self) -> int:
        return self._number(limit_path(0))

    def _number(self, path: str) -> int:
        return int(self.files.read(path) or -1)  # a file of ours is empty in the instant of a write, sysfs never


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def soon(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline_s, "waited in vain"
        time.sleep(0.02)


@pytest.fixture
def scene(tmp_path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.controller.stop()


def test_the_cap_of_a_killed_agent_is_withdrawn_from_disk(scene):
    with scene.agent(160) as agent:
        soon(lambda: scene.cap_mw() == 120_000)
        agent.send_signal(signal.SIGKILL)
        agent.wait()
    assert scene.cap_mw() == 120_000, "SCMI has no lease: the cap outlives its agent"
    dry = json.loads(scene.nodectl("restore", "--state-dir", str(scene.state), "--dry-run", "--json").stdout)
    assert [outcome["knob"] for outcome in dry["outcomes"]] == [f"{scene.url}#package/cap_mw"]
    assert scene.cap_mw() == 120_000
    done = scene.nodectl("restore", "--state-dir", str(scene.state), "--json")
    assert done.returncode == 0, done.stderr
    assert [outcome["status"] for outcome in json.loads(done.stdout)["outcomes"]] == ["restored"]
    assert scene.cap_mw() == 0
    assert "nothing to restore" in scene.nodectl("restore", "--state-dir", str(scene.state)).stdout


def test_what_cannot_be_restored_while_the_controller_is_away_is_restored_later(scene):
    with scene.agent(160) as agent:
        soon(lambda: scene.cap_mw() == 120_000)
        agent.send_signal(signal.SIGKILL)
        agent.wait()
    scene.controller.kill()
    away = scene.nodectl("restore", "--state-dir", str(scene.state))
    assert away.returncode == 1
    assert "vanished" in away.stdout
    scene.start_controller()
    done = scene.nodectl("restore", "--state-dir", str(scene.state))
    assert (done.returncode, "disabled" in done.stdout) == (0, True), done.stdout


def test_a_killed_controller_is_replaced_by_the_nodes_own_limits_until_it_returns(scene):
    with scene.agent(160) as agent:
        soon(lambda: scene.cap_mw() == 120_000)
        assert scene.long_term_uw() == 150_000_000, "the controller has the cap, this node's limits are free"
        scene.controller.kill()
        soon(lambda: scene.long_term_uw() == 120_000_000)
        soon(lambda: scene.limit_khz() == 1_200_000)  # the node's meter never changes, so it cannot know what it draws
        time.sleep(1.5)  # long enough for the link to have been opened again, in vain
        scene.start_controller()
        soon(lambda: scene.cap_mw() == 120_000)
        soon(lambda: (scene.long_term_uw(), scene.limit_khz()) == (150_000_000, MAX_KHZ))
        agent.send_signal(signal.SIGTERM)
        said, complaints = agent.communicate(timeout=PATIENCE_S)
    assert agent.returncode == 0
    assert scene.cap_mw() == 0
    alarms, returns = complaints.count("ALARM"), complaints.count("handed back")
    assert returns >= 1, "once per silence; a loaded machine may cause another, and the last may outlast the agent"
    assert alarms in (returns, returns + 1)
    assert json.loads(said)["ticks"] > 0


def test_a_stopped_controller_keeps_its_cap_and_is_taken_back(scene):
    with scene.agent(160) as agent:
        soon(lambda: scene.cap_mw() == 120_000)
        scene.controller.process.send_signal(signal.SIGSTOP)
        try:
            soon(lambda: scene.long_term_uw() == 120_000_000)
        finally:
            scene.controller.process.send_signal(signal.SIGCONT)
        soon(lambda: scene.long_term_uw() == 150_000_000)
        assert scene.cap_mw() == 120_000
        agent.send_signal(signal.SIGTERM)
        _, complaints = agent.communicate(timeout=PATIENCE_S)
    assert "ALARM" in complaints
    assert scene.cap_mw() == 0


def test_doctor_lists_the_controllers_domains_and_says_why_they_cannot_be_used(scene):
    rows = json.loads(scene.nodectl("doctor", "--config", str(scene.config), "--json").stdout)["knobs"]
    found = {row["name"].partition("#")[2]: row for row in rows if row["kind"] == "scmi"}
    assert found["package/cap_mw"]["writable"]
    assert "taken for node/cap_mw" in found["package/cap_mw"]["why"]
    assert sum("not taken" in row["why"] for row in found.values()) == 8, "four power and four performance domains"
    scene.controller.kill()
    (row,) = findings(configure(scene.config, {}).scmi)
    assert not row.present
    assert "cannot connect" in row.why
    scene.start_controller()
    wrong = findings(Scmi(scene.url, {"node/cap_mw": "packge"}))
    assert any(row.why.startswith("wanted for node/cap_mw; there are package,") for row in wrong if not row.present)
