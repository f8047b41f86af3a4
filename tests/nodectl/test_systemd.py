"""The node's unit files: accepted without a word, well sealed, and good for what it says, under a real systemd."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nodectl.build_restorer import build
from pmu.system import LOCK_DIRECTORY
from tests.sealed_systemd import SealedSystemd, sealed_systemd
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "systemd" / "nodectl-agent.service"
WRITER = ROOT / "systemd" / "nodectl-writer.service"
SOCKET = ROOT / "systemd" / "nodectl-writer.socket"
JOBS = ROOT / "systemd" / "jobs.conf"
CONTROLLER = ROOT / "systemd" / "controller.conf"
RESTORE = ROOT / "systemd" / "nodectl-restore.service"
OTHERS = (
    "clusterctl",
    "clusterctl-metrics",
    "clusterctl-models",
    "clusterctl-mqtt",
    "clusterctl-page",
    "clusterctl-slurm",
    "clusterctl-slurm-schedule",
    "nodectl-metrics",
    "nodectl-mqtt",
    "nodectl-calibrate",
)
UNITS = [UNIT, WRITER, *(ROOT / "systemd" / f"{name}.service" for name in OTHERS), RESTORE]
MODELS = ROOT / "systemd" / "clusterctl-models.service"
CALIBRATE = ROOT / "systemd" / "nodectl-calibrate.service"
RESTORER = "/usr/lib/nodectl/nodectl-restorer"
SEALED_TO = 1.6
"""Exposure on systemd's scale of 0 to 10; an ordinary service without any protection is at 9.6."""

needs_analyze = pytest.mark.skipif(
    not shutil.which("systemd-analyze"), reason="systemd-analyze is missing: install systemd"
)


def settings(unit=UNIT):
    """All settings of the unit, in order."""
    lines = [line for line in unit.read_text().splitlines() if "=" in line and not line.startswith("#")]
    return [tuple(line.split("=", 1)) for line in lines]


def installed(directory, program, unit=UNIT):
    """The unit with another program in place of the installed one."""
    path = directory / unit.name
    path.write_text(re.sub(rf"/opt/nodectl/bin/(nodectl|clusterctl)|{RESTORER}", program, unit.read_text()))
    if unit in (UNIT, WRITER):
        (directory / SOCKET.name).write_text(SOCKET.read_text())
    return path


@pytest.mark.parametrize("unit", [UNIT, WRITER, CALIBRATE, RESTORE], ids=lambda unit: unit.stem)
def test_a_driver_that_is_loaded_after_a_unit_has_started_may_be_used_by_it(unit):
    """systemd looks a driver's name up in /proc/devices when the service starts, and never again."""
    allowed = [value for key, value in settings(unit) if key == "DeviceAllow"]
    assert allowed == ["char-nvidia* rw", "char-195 rw"]


def test_the_nodes_units_make_the_drivers_devices_where_no_persistence_daemon_does(tmp_path):
    (command,) = [value for key, value in settings(WRITER) if key == "ExecStartPre"]
    prefix, _, script = command.partition("/bin/sh -c ")
    assert prefix == "-+", "a node without the driver starts too, and only this command is unsealed"
    program, made = tmp_path / "nvidia-smi", tmp_path / "made"
    program.write_text(f"#!/bin/sh\necho $* > {made}\n")
    program.chmod(0o755)
    script = script.strip("'").replace("/dev/nvidiactl", str(tmp_path / "nvidiactl"))

    def run(path: str) -> int:
        return subprocess.run(["/bin/sh", "-c", script], env={"PATH": path}, timeout=PATIENCE_S).returncode

    assert run("/usr/bin:/bin") == 0 and not made.exists()
    assert run(f"{tmp_path}:/usr/bin:/bin") == 0 and made.read_text() == "-L\n"
    made.unlink()
    (tmp_path / "nvidiactl").touch()
    assert run(f"{tmp_path}:/usr/bin:/bin") == 0 and not made.exists(), "they are there"


def test_units_that_show_the_time_of_day_come_after_it_has_been_set():
    for unit in (UNIT, CALIBRATE, ROOT / "systemd/clusterctl.service"):
        after = " ".join(value for key, value in settings(unit) if key == "After").split()
        assert "time-sync.target" in after
        wanted = " ".join(value for key, value in settings(unit) if key in ("Wants", "Requires"))
        assert "time-sync" not in wanted, "a node whose clock is wrong is capped all the same"


@needs_analyze
def test_the_timer_of_models_starts_the_run_that_ends(tmp_path):
    installed(tmp_path, "/bin/true", MODELS)
    timer = installed(tmp_path, "/bin/true", MODELS.with_suffix(".timer"))
    done = subprocess.run(["systemd-analyze", "verify", str(timer)], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert dict(settings(MODELS))["Type"] == "oneshot" and "[Install]" not in MODELS.read_text()
    assert dict(settings(MODELS.with_suffix(".timer")))["WantedBy"] == "timers.target"


@needs_analyze
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_finds_nothing_to_say_about_the_unit(unit, tmp_path):
    path = installed(tmp_path, "/bin/true", unit)
    done = subprocess.run(["systemd-analyze", "verify", str(path)], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")  # an unknown key is rc 0 and a line on stderr


def drop_in_of(directory, drop_in):
    """The agent's unit with a drop-in, and another program in place of the installed one."""
    folder = directory / f"{UNIT.name}.d"
    folder.mkdir(exist_ok=True)
    installed(folder, "/bin/true", drop_in)
    return folder / drop_in.name


@needs_analyze
def test_systemd_finds_nothing_to_say_about_a_node_with_a_controller(tmp_path):
    unit = installed(tmp_path, "/bin/true")
    drop_in_of(tmp_path, CONTROLLER)
    verify = ["systemd-analyze", "verify", str(unit)]
    done = subprocess.run(verify, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    security = ["systemd-analyze", "security", "--offline=true", f"--threshold={SEALED_TO * 10:.0f}", str(unit)]
    assert subprocess.run(security, capture_output=True, timeout=PATIENCE_S).returncode == 0, "as sealed as without"


@needs_analyze
def test_systemd_finds_nothing_to_say_about_a_node_that_runs_jobs(tmp_path):
    unit = installed(tmp_path, "/bin/true")
    drop_in = drop_in_of(tmp_path, JOBS)
    verify = ["systemd-analyze", "verify", str(unit)]
    done = subprocess.run(verify, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    drop_in.write_text(drop_in.read_text().replace("KillMode=", "KilMode="))
    assert "KilMode" in subprocess.run(verify, capture_output=True, text=True, timeout=PATIENCE_S).stderr, "it was read"


def test_jobs_outlive_the_agent_and_their_memory_is_their_own_matter():
    lines = JOBS.read_text().splitlines()
    assert {"KillMode=process", "OOMPolicy=continue", "PrivateTmp=no"} <= set(lines)


@needs_analyze
def test_a_misspelt_key_would_be_noticed(tmp_path):
    path = installed(tmp_path, "/bin/true")
    path.write_text(path.read_text().replace("WatchdogSec=", "WatchDog="))
    done = subprocess.run(["systemd-analyze", "verify", str(path)], capture_output=True, text=True, timeout=PATIENCE_S)
    assert "WatchDog" in done.stderr


@needs_analyze
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_the_unit_is_sealed_as_far_as_its_work_allows(unit, tmp_path):
    command = ["systemd-analyze", "security", "--offline=true", f"--threshold={SEALED_TO * 10:.0f}"]
    path = installed(tmp_path, "/bin/true", unit)
    done = subprocess.run([*command, str(path)], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) > 50
    (exposure,) = re.findall(r"Overall exposure level for .*: (\S+)", done.stdout)
    page = (ROOT / "systemd" / "README.md").read_text()
    assert re.search(rf"^\| `{unit.name}` \|.*\| {exposure} \|$", page, re.MULTILINE), f"it has {exposure}"


@pytest.mark.parametrize(
    "unit", [unit for unit in UNITS if unit.stem.startswith("clusterctl")], ids=lambda unit: unit.stem
)
def test_what_serves_the_cluster_is_nobody_special(unit):
    lines = unit.read_text().splitlines()
    assert "CapabilityBoundingSet=" in lines
    assert {"User=clusterctl", "User=slurm", "DynamicUser=yes"} & set(lines)


@pytest.mark.parametrize(
    ("unit", "rights"),
    [(UNIT, ["CAP_PERFMON"]), (WRITER, ["CAP_SYS_ADMIN"]), (CALIBRATE, ["CAP_PERFMON"])],
)
def test_every_right_that_is_kept_is_explained_in_the_unit(unit, rights):
    kept = dict(settings(unit))["CapabilityBoundingSet"].split()
    text = unit.read_text()
    assert kept == rights
    for right in kept:
        assert re.search(rf"^#\s+{right}\s+\w+", text, re.MULTILINE)
    keys = {"ReadWritePaths", "DeviceAllow", "SystemCallFilter", "RestrictAddressFamilies"} & dict(
        settings(unit)
    ).keys()
    for key in keys:
        block = text[: text.index(f"\n{key}=")].rsplit("\n\n", 1)[-1]
        assert block.lstrip().startswith("#"), f"{key} stands without an explanation"


def test_only_the_writer_is_root_and_only_it_may_write_knobs():
    agent, writer = dict(settings()), dict(settings(WRITER))
    assert (agent["User"], agent["Group"], writer["User"]) == ("nodectl", "nodectl", "root")
    assert "ReadWritePaths" not in agent and "/sys/devices/virtual/powercap" in writer["ReadWritePaths"]
    socket = dict(settings(SOCKET))
    assert (socket["SocketUser"], socket["SocketMode"]) == ("nodectl", "0600")
    assert agent["ExecStart"].endswith(f" --writer {socket['ListenSequentialPacket']}")


@needs_analyze
def test_every_point_of_exposure_of_agent_and_writer_and_those_that_jobs_add_are_explained(tmp_path):
    """systemd/README.md has a row for each of them."""

    def points(*drop_ins, unit=UNIT):
        unit = installed(tmp_path, "/bin/true", unit)
        for drop_in in drop_ins:
            drop_in_of(tmp_path, drop_in)
        command = ["systemd-analyze", "security", "--offline=true", "--json=short", str(unit)]
        rows = json.loads(subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S).stdout)
        return {row["json_field"]: row["name"] for row in rows if float(row["exposure"] or 0) > 0}

    sealed = points()
    added = points(JOBS)
    explained = (ROOT / "systemd" / "README.md").read_text()
    writers = points(unit=WRITER)
    for name in {*added.values(), *sealed.values(), *writers.values()}:
        escaped = name.replace("|", "\\|")  # in a table of Markdown
        assert f"| `{escaped}` |" in explained, f"{name} is not explained"


@needs_analyze
@pytest.mark.parametrize(("devices", "said"), [("", "then has 1.7, without GPUs"), ("no", "(below) 1.5.")])
def test_a_node_of_a_cluster_is_as_sealed_as_the_page_says(devices, said, tmp_path):
    unit = installed(tmp_path, "/bin/true")
    page = (ROOT / "docs" / "operations.md").read_text()
    block = page[page.index("systemctl edit nodectl-agent\n") :].partition("```")[0]
    lines = [line.strip() for line in block.splitlines()[1:]]
    assert lines[0] == "[Service]" and len(lines) == 4
    (tmp_path / f"{UNIT.name}.d").mkdir()
    more = ["PrivateDevices=yes", "DeviceAllow="] if devices else []
    (tmp_path / f"{UNIT.name}.d" / "site.conf").write_text("\n".join([*lines, *more]))
    command = ["systemd-analyze", "security", "--offline=true", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    (exposure,) = re.findall(r"Overall exposure level for .*: (\S+)", done.stdout)
    assert exposure in said and said in (ROOT / "systemd" / "README.md").read_text()


def test_wrong_settings_and_a_failing_policy_start_no_unit_again():
    for unit in UNITS:
        assert "RestartPreventExitStatus=2" in unit.read_text().splitlines(), unit.name


@pytest.mark.parametrize("unit", [WRITER, JOBS, CONTROLLER, CALIBRATE], ids=lambda unit: unit.name)
def test_whatever_moves_knobs_is_followed_by_a_restore_when_it_ends(unit):
    found = dict(settings(unit))
    assert found["ExecStopPost"] == f"{RESTORER} restore --rest-by /opt/nodectl/bin/nodectl"
    assert found["StateDirectory"] == "nodectl"  # where the save of a controller's knobs is
    assert found["OnFailure"] == "nodectl-restore.service"


@pytest.mark.parametrize("unit", [UNIT, WRITER], ids=lambda unit: unit.stem)
def test_what_hangs_or_fails_is_started_again(unit):
    found = dict(settings(unit))
    assert found["Type"] == "notify" and "WatchdogSec" in found and found["Restart"] == "on-failure"


def test_the_writers_watchdog_comes_before_the_agents_which_waits_for_the_writer():
    def seconds(unit):
        return int(dict(settings(unit))["WatchdogSec"].removesuffix("s"))

    assert seconds(WRITER) * 2 < seconds(UNIT)


def test_the_nodes_lock_is_where_the_unit_may_write_and_outlives_the_service():
    unit = dict(settings(WRITER))
    assert f"/run/{unit['RuntimeDirectory']}" == LOCK_DIRECTORY
    assert unit["RuntimeDirectoryPreserve"] == "yes"


# ---- a real systemd, sealed off from this machine ------------------------------------------------------------------

AGENT = """
import os, time
from nodectl.knobs import open_knob
from foundation.shell.notify import Notifier
from nodectl.write.lock import NodeLock
from nodectl.write.places import save_places
from nodectl.write.saves import node_id
from nodectl.write.writer import Writer
from pmu.system import system_ports

ports = system_ports()
node = node_id(ports.lock_path)
NodeLock("/var/lib/nodectl", ports.lock_path).acquire()
places = save_places("/var/lib/nodectl", ports.lock_path)
writer = Writer([open_knob(ports, "cpu/policy0/max_khz")], places, node, ports.clock)
writer.start()
try:
    open("/etc/forbidden", "w")
except OSError as error:
    print("elsewhere:", error.strerror, flush=True)
capabilities = next(line for line in open("/proc/self/status") if line.startswith("CapEff"))
print(capabilities, *writer.apply({"cpu/policy0/max_khz": 1_200_000}), flush=True)
notifier = Notifier(os.environ)
notifier.send("READY=1")
silent = os.path.exists("/srv/hang")
while True:
    if not silent:
        notifier.alive(time.monotonic_ns())
    time.sleep(0.05)
"""

LIMIT = "devices/system/cpu/cpufreq/policy0/scaling_max_freq"


SETTINGS = (
    "[Service]\n"
    f"Environment=PYTHONPATH={ROOT} PYTHONDONTWRITEBYTECODE=1\n"
    "ProtectHome=no\nReadWritePaths=/srv\n"  # the checkout may be in one
)


class Node(SealedSystemd):
    """The writer's unit, with a program of ours, on a cpufreq tree of plain files."""

    @property
    def limit(self):
        return int((self.stage / "sys" / LIMIT).read_text() or 0)

    def agents(self):
        """Process ids of the agent, as this machine sees them."""
        return self.pids("/srv/agent.py")


@pytest.fixture
def systemd(tmp_path):
    node = sealed_systemd(tmp_path, Node)
    (tmp_path / "sys" / LIMIT).parent.mkdir(parents=True)
    (tmp_path / "sys" / LIMIT).write_text("3200000\n")
    (tmp_path / "agent.py").write_text(AGENT)
    build(tmp_path / "nodectl-restorer")
    program = tmp_path / "opt/nodectl/bin/nodectl"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\nexec {sys.executable} /srv/agent.py\n")
    program.chmod(0o755)
    for name, line in (("passwd", "nodectl:x:64991:64991::/:/usr/sbin/nologin\n"), ("group", "nodectl:x:64991:\n")):
        (tmp_path / "etc" / name).write_text(Path("/etc", name).read_text() + line)
    node.add(SOCKET)
    node.add(WRITER, SETTINGS + "WatchdogSec=1s\nRestartSec=500ms\n", {RESTORER: "/srv/nodectl-restorer"})
    return node


def test_the_sealed_writer_can_do_its_work_and_nothing_else(systemd):
    with systemd:
        systemd.assert_comes(lambda: "status='written'" in systemd.log, "the writer's outcome")
    assert systemd.limit == 1_200_000
    assert "elsewhere: Read-only file system" in systemd.log
    mask = int(re.search(r"CapEff:\s*([0-9a-f]+)", systemd.log)[1], 16)
    assert mask == 1 << 21  # CAP_SYS_ADMIN: linux/capability.h


def test_after_a_kill_systemd_puts_the_knobs_back(systemd):
    with systemd:
        systemd.assert_comes(lambda: systemd.limit == 1_200_000 and systemd.agents(), "a lowered clock limit")
        os.kill(systemd.agents()[0], signal.SIGKILL)
        systemd.assert_comes(lambda: systemd.limit == 3_200_000, "the captured limit")
        systemd.assert_comes(lambda: systemd.limit == 1_200_000, "the restarted writer")


def test_a_writer_that_hangs_is_ended_by_the_watchdog_and_its_knobs_are_put_back(systemd):
    (systemd.stage / "hang").touch()
    with systemd:
        systemd.assert_comes(lambda: systemd.limit == 1_200_000, "a lowered clock limit")
        systemd.assert_comes(lambda: systemd.limit == 3_200_000, "the captured limit")
        systemd.assert_comes(lambda: "1200000 to 3200000" in systemd.log, "what the restorer says")


def test_the_knobs_are_put_back_while_the_virtual_environment_is_away(systemd):
    with systemd:
        systemd.assert_comes(lambda: systemd.limit == 1_200_000 and systemd.agents(), "a lowered clock limit")
        assert systemd.run("mv", "/opt/nodectl", "/opt/away").returncode == 0
        os.kill(systemd.agents()[0], signal.SIGKILL)
        systemd.assert_comes(lambda: systemd.limit == 3_200_000, "the captured limit")
        systemd.assert_comes(lambda: "1200000 to 3200000" in systemd.log, "what the restorer says")


def test_what_could_not_be_put_back_at_once_is_put_back_by_the_unit_that_tries_again(systemd):
    systemd.add(RESTORE, SETTINGS + "RestartSec=300ms\n", {RESTORER: "/srv/nodectl-restorer"})
    with systemd:
        systemd.assert_comes(lambda: systemd.limit == 1_200_000 and systemd.agents(), "a lowered clock limit")
        for what in ("mv /opt/nodectl /opt/away", "mv /srv/nodectl-restorer /srv/away"):
            assert systemd.run(*f"{what}".split()).returncode == 0
        os.kill(systemd.agents()[0], signal.SIGKILL)
        systemd.assert_comes(lambda: not systemd.agents(), "the end of the agent")
        assert systemd.limit == 1_200_000, "neither the agent nor the restorer can start"
        assert systemd.run("mv", "/srv/away", "/srv/nodectl-restorer").returncode == 0
        done = systemd.run("systemctl", "start", "nodectl-restore")
        systemd.assert_comes(lambda: systemd.limit == 3_200_000, f"the captured limit {done}")


def test_what_a_stop_could_not_put_back_is_tried_again_by_the_unit_without_anybody_starting_it(systemd):
    systemd.add(RESTORE, SETTINGS + "RestartSec=300ms\n", {RESTORER: "/srv/nodectl-restorer"}, is_wanted=False)
    with systemd:
        systemd.assert_comes(lambda: systemd.limit == 1_200_000 and systemd.agents(), "a lowered clock limit")
        assert systemd.run("mv", "/srv/nodectl-restorer", "/srv/away").returncode == 0
        systemd.run("systemctl", "stop", "nodectl-writer")  # this program ends at SIGTERM and puts nothing back
        systemd.assert_comes(lambda: not systemd.agents(), "the end of the agent")
        assert systemd.limit == 1_200_000, "the restorer cannot start"
        assert systemd.run("mv", "/srv/away", "/srv/nodectl-restorer").returncode == 0
        systemd.assert_comes(lambda: systemd.limit == 3_200_000, "the captured limit")
