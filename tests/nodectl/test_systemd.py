"""The unit file: accepted without a word, well sealed, and good for what it says, under a real systemd."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pmu.system import LOCK_DIRECTORY

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "systemd" / "nodectl-agent.service"
JOBS = ROOT / "systemd" / "jobs.conf"
UNITS = [UNIT, ROOT / "systemd" / "clusterctl.service", ROOT / "systemd" / "clusterctl-metrics.service"]
SEALED_TO = 2.0
"""Exposure on systemd's scale of 0 to 10; an ordinary service without any protection is at 9.6."""

needs_analyze = pytest.mark.skipif(
    not shutil.which("systemd-analyze"), reason="systemd-analyze is missing: install systemd"
)


def settings():
    """All settings of the unit, in order."""
    lines = [line for line in UNIT.read_text().splitlines() if "=" in line and not line.startswith("#")]
    return [tuple(line.split("=", 1)) for line in lines]


def installed(directory, program, unit=UNIT):
    """The unit with another program in place of the installed one."""
    path = directory / unit.name
    path.write_text(re.sub(r"/opt/nodectl/bin/(nodectl|clusterctl)", program, unit.read_text()))
    return path


@needs_analyze
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_finds_nothing_to_say_about_the_unit(unit, tmp_path):
    path = installed(tmp_path, "/bin/true", unit)
    done = subprocess.run(["systemd-analyze", "verify", str(path)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")  # an unknown key is rc 0 and a line on stderr


@needs_analyze
def test_systemd_finds_nothing_to_say_about_a_node_that_runs_jobs(tmp_path):
    unit = installed(tmp_path, "/bin/true")
    drop_in = tmp_path / f"{UNIT.name}.d" / JOBS.name
    drop_in.parent.mkdir()
    shutil.copy(JOBS, drop_in)
    verify = ["systemd-analyze", "verify", str(unit)]
    done = subprocess.run(verify, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    drop_in.write_text(JOBS.read_text().replace("KillMode=", "KilMode="))
    assert "KilMode" in subprocess.run(verify, capture_output=True, text=True, timeout=60).stderr, "it was read"


def test_jobs_outlive_the_agent_and_their_memory_is_their_own_matter():
    lines = JOBS.read_text().splitlines()
    assert {"KillMode=process", "OOMPolicy=continue", "PrivateTmp=no"} <= set(lines)


@needs_analyze
def test_a_misspelt_key_would_be_noticed(tmp_path):
    path = installed(tmp_path, "/bin/true")
    path.write_text(path.read_text().replace("WatchdogSec=", "WatchDog="))
    done = subprocess.run(["systemd-analyze", "verify", str(path)], capture_output=True, text=True, timeout=60)
    assert "WatchDog" in done.stderr


@needs_analyze
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_the_unit_is_sealed_as_far_as_its_work_allows(unit, tmp_path):
    command = ["systemd-analyze", "security", "--offline=true", "--json=short", f"--threshold={SEALED_TO * 10:.0f}"]
    path = installed(tmp_path, "/bin/true", unit)
    done = subprocess.run([*command, str(path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)) > 50


@pytest.mark.parametrize("unit", UNITS[1:], ids=lambda unit: unit.stem)
def test_what_serves_the_cluster_is_nobody_special(unit):
    lines = unit.read_text().splitlines()
    assert "CapabilityBoundingSet=" in lines
    assert "User=clusterctl" in lines or "DynamicUser=yes" in lines


def test_every_right_that_is_kept_is_explained_in_the_unit():
    kept = dict(settings())["CapabilityBoundingSet"].split()
    text = UNIT.read_text()
    assert kept == ["CAP_PERFMON", "CAP_SYS_ADMIN"]
    for right in kept:
        assert re.search(rf"^#\s+{right}\s+\w+", text, re.MULTILINE)
    for key in ("ReadWritePaths", "DeviceAllow", "SystemCallFilter", "RestrictAddressFamilies"):
        block = text[: text.index(f"\n{key}=")].rsplit("\n\n", 1)[-1]
        assert block.lstrip().startswith("#"), f"{key} stands without an explanation"


def test_a_stopped_or_killed_agent_is_followed_by_a_restore():
    unit = dict(settings())
    assert unit["Type"] == "notify" and "WatchdogSec" in unit and unit["Restart"] == "on-failure"
    assert unit["ExecStopPost"].endswith("nodectl restore")
    assert unit["StateDirectory"] == "nodectl"  # where `nodectl restore` looks


def test_the_nodes_lock_is_where_the_unit_may_write_and_outlives_the_service():
    unit = dict(settings())
    assert f"/run/{unit['RuntimeDirectory']}" == LOCK_DIRECTORY
    assert unit["RuntimeDirectoryPreserve"] == "yes"


# ---- a real systemd, sealed off from this machine ------------------------------------------------------------------

AGENT = """
import os, time
from nodectl.knobs import open_knob
from nodectl.shell.notify import Notifier
from nodectl.write.restore import save_path
from nodectl.write.saves import node_id
from nodectl.write.writer import Writer
from pmu.system import system_ports

ports = system_ports()
node = node_id(ports.lock_path)
writer = Writer([open_knob(ports, "cpu/policy0/max_khz")], save_path("/var/lib/nodectl"), node, ports.clock)
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

SEALED_INIT = """
set -eu
stage=$1 cgroup=$2
mount --make-rprivate /
mount --bind "$stage" /srv
for place in $(awk '{print $2}' /proc/mounts | sort -u); do
    [ "$place" = /srv ] || [ "$place" = /proc ] || mount -o remount,bind,ro "$place" 2>/dev/null || true
done
for place in sys irq bus sysrq-trigger; do  # the rest of /proc is about processes, and is this namespace's own
    [ ! -e /proc/$place ] || { mount --bind /proc/$place /proc/$place; mount -o remount,bind,ro /proc/$place; }
done
for place in / /dev /proc/sys; do  # a mistake here must never reach the machine this runs on
    how=$(awk -v at="$place" '$2 == at {how = $4} END {print how}' /proc/mounts)
    case $how in ro*) ;; *) echo "not sealed: $place"; exit 97 ;; esac
done
for place in /run /var /tmp; do mount -t tmpfs tmpfs "$place"; done
mkdir -p /var/lib /run/systemd /tmp/dev/pts /tmp/dev/shm
for node in null zero full random urandom tty; do touch /tmp/dev/$node; mount --bind /dev/$node /tmp/dev/$node; done
touch /tmp/dev/console
mount --bind /srv/console /tmp/dev/console
mount --rbind /tmp/dev /dev
mount -t overlay -o lowerdir=/etc,upperdir=/srv/etc,workdir=/srv/etc-work overlay /etc
mount -t overlay -o lowerdir=/sys,upperdir=/srv/sys,workdir=/srv/sys-work overlay /sys
mount -t cgroup2 cgroup2 /sys/fs/cgroup
export container=nodectl-test
exec /lib/systemd/systemd --unit=nodectl-test.target --log-target=console --show-status=0
"""
"""An init for the new PID namespace: all that exists is read-only, what an init writes to is private, and none of the
distribution's own units is started. A plain systemd here would clean this machine's /tmp and set its sysctls."""

LIMIT = "devices/system/cpu/cpufreq/policy0/scaling_max_freq"


class SealedSystemd:
    """systemd as PID 1 of its own namespaces, with the agent's unit on a cpufreq tree of plain files."""

    def __init__(self, stage, cgroup_root):
        self.stage = stage
        self.cgroup = Path(cgroup_root) / f"nodectl-test-{os.getpid()}"
        for name in ("etc/systemd/system/nodectl-agent.service.d", "etc-work", "sys-work", f"sys/{LIMIT}"):
            (stage / name).mkdir(parents=True)
        (stage / "sys" / LIMIT).rmdir()
        (stage / "sys" / LIMIT).write_text("3200000\n")
        (stage / "agent.py").write_text(AGENT)
        units = stage / "etc/systemd/system"
        text = UNIT.read_text().replace("/opt/nodectl/bin/nodectl run", f"{sys.executable} /srv/agent.py")
        text = text.replace("/opt/nodectl/bin/nodectl", f"{sys.executable} -m nodectl.cli")
        (units / UNIT.name).write_text(text)
        (units / "nodectl-agent.service.d/test.conf").write_text(
            "[Unit]\nDefaultDependencies=no\n[Service]\n"
            f"Environment=PYTHONPATH={ROOT} PYTHONDONTWRITEBYTECODE=1\n"
            "ProtectHome=no\n"  # the checkout may be in one
            "WatchdogSec=1s\nRestartSec=500ms\nStandardOutput=append:/srv/log\nStandardError=append:/srv/log\nReadWritePaths=/srv\n"
        )
        (units / "nodectl-test.target").write_text("[Unit]\nDefaultDependencies=no\nWants=nodectl-agent.service\n")
        (stage / "init.sh").write_text(SEALED_INIT)

    def __enter__(self):
        self.cgroup.mkdir()
        namespaces = [
            "--pid",
            "--mount",
            "--uts",
            "--ipc",
            "--cgroup",
            "--net",
            "--fork",
            "--mount-proc",
            "--kill-child",
        ]
        enter = f'echo $$ > "{self.cgroup}/cgroup.procs"; exec unshare {" ".join(namespaces)} sh "$@"'
        with (self.stage / "console").open("w") as console:
            self.process = subprocess.Popen(
                ["sh", "-c", enter, "sh", str(self.stage / "init.sh"), str(self.stage), str(self.cgroup)],
                stdout=console,
                stderr=console,
                stdin=subprocess.DEVNULL,
            )
        return self

    def __exit__(self, *_):
        self.process.kill()  # the kernel ends a PID namespace with its init
        self.process.wait()
        for attempt in range(50):
            leftovers = sorted((path for path in self.cgroup.rglob("*") if path.is_dir()), reverse=True)
            try:
                for path in (*leftovers, self.cgroup):
                    path.rmdir()
                return
            except OSError:  # its processes are still being taken down
                time.sleep(0.02 * (attempt + 1))

    @property
    def limit(self):
        return int((self.stage / "sys" / LIMIT).read_text() or 0)

    @property
    def log(self):
        log = self.stage / "log"
        return (log.read_text() if log.exists() else "") + (self.stage / "console").read_text()

    def assert_comes(self, condition, what, seconds=60.0):
        """Poll: there is no bus in there to ask."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline and self.process.poll() is None, f"{what} did not come:\n{self.log}"
            time.sleep(0.02)

    def agents(self):
        """Process ids of the agent, as this machine sees them."""
        found = []
        for entry in self.cgroup.rglob("cgroup.procs"):
            for pid in entry.read_text().split():
                command = Path(f"/proc/{pid}/cmdline")
                if command.exists() and b"/srv/agent.py" in command.read_bytes():
                    found.append(int(pid))
        return found


def cgroup_root():
    """Where cgroup v2 is mounted, or None."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    return next((fields[1] for fields in mounts if fields[2] == "cgroup2"), None)


@pytest.fixture
def systemd(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("a systemd of one's own needs root")
    if not Path("/lib/systemd/systemd").exists():
        pytest.skip("systemd is missing: install systemd")
    if cgroup_root() is None or not Path("/srv").is_dir():
        pytest.skip("a systemd of one's own needs a cgroup v2 hierarchy and an empty /srv to stand on")
    hidden = ("/tmp/", "/var/", "/run/", "/dev/", "/srv/")
    if str(ROOT).startswith(hidden) or sys.executable.startswith(hidden):
        pytest.skip(f"{ROOT} is where that systemd has its private files; check the project out elsewhere")
    return SealedSystemd(tmp_path, cgroup_root())


def test_the_sealed_agent_can_do_its_work_and_nothing_else(systemd):
    with systemd:
        systemd.assert_comes(lambda: "status='written'" in systemd.log, "the writer's outcome")
    assert systemd.limit == 1_200_000
    assert "elsewhere: Read-only file system" in systemd.log
    mask = int(re.search(r"CapEff:\s*([0-9a-f]+)", systemd.log)[1], 16)
    assert mask == 1 << 38 | 1 << 21  # CAP_PERFMON, CAP_SYS_ADMIN: linux/capability.h


def test_after_a_kill_systemd_puts_the_knobs_back(systemd):
    with systemd:
        systemd.assert_comes(lambda: systemd.limit == 1_200_000 and systemd.agents(), "a lowered clock limit")
        os.kill(systemd.agents()[0], signal.SIGKILL)
        systemd.assert_comes(lambda: systemd.limit == 3_200_000, "the captured limit")
        systemd.assert_comes(lambda: systemd.limit == 1_200_000, "the restarted agent")


def test_an_agent_that_hangs_is_ended_by_the_watchdog_and_its_knobs_are_put_back(systemd):
    (systemd.stage / "hang").touch()
    with systemd:
        systemd.assert_comes(lambda: systemd.limit == 1_200_000, "a lowered clock limit")
        systemd.assert_comes(lambda: systemd.limit == 3_200_000, "the captured limit")
        systemd.assert_comes(lambda: "1200000 to 3200000" in systemd.log, "what nodectl restore says")
