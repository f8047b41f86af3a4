"""The agent as a user of its own with CAP_PERFMON and nothing else, at perf_event_paranoid 2 and with 0400 files."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodectl.writer_process.root_files import AgentFiles, find_root_files
from tests.waiting import PATIENCE_S, within
from tests.writer_process.tree_writer import ROOT, limit_path, limits, make_tree, put, start, writer_on

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")

PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")
PERF_TYPE_SOFTWARE = 1

AS_NOBODY = """
import ctypes, json, os, socket, sys
from pathlib import Path
import numpy
from nodectl.config import NO_POLICY, Caps, Config, JournalSettings
from nodectl.loop.agent import Agent
from nodectl.writer_process.channel import Channel
from nodectl.writer_process.remote_writer import RemoteWriter
from nodectl.writer_process.writer_link import Link
from nodectl.writer_process.root_files import AgentFiles
from pmu._native import lib
from pmu.instruments.counters import PerfCounters
from pmu.ports import Ports
from pmu.system import MonotonicClock

root, state, descriptor = sys.argv[1], sys.argv[2], int(sys.argv[3])
PERFMON, NOBODY = 38, 65534
libc = ctypes.CDLL(None, use_errno=True)

def keep_only_perfmon():
    libc.prctl(8, 1, 0, 0, 0)  # PR_SET_KEEPCAPS
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    bit = 1 << (PERFMON - 32)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    data = (ctypes.c_uint32 * 6)(0, 0, 0, bit, bit, 0)
    assert libc.capset(header, data) == 0, os.strerror(ctypes.get_errno())

def refused(path, flags):
    try:
        os.close(os.open(path, flags))
        return False
    except PermissionError:
        return True

writer = RemoteWriter(lambda: Link(Channel(socket.socket(fileno=descriptor))))
keep_only_perfmon()
files = AgentFiles(writer.opened, writer.movable, root)
energy, limit = next(iter(writer.opened)), next(path for path in writer.movable if "powercap" in path)
config = Config(
    mode="optimize", cpu_policy=NO_POLICY, gpu_policy=NO_POLICY, caps=Caps(node_w=100.0), period_ms=20.0,
    state_dir=state, journal=JournalSettings(max_bytes=0),
)
clock = MonotonicClock()
limits = []
with Agent.open(Ports(files, PerfCounters(files), None, "none here", clock), config, writer=writer) as agent:
    agent.run(clock.now_ns() + 300_000_000, each_tick=lambda: limits.append(files.read(limit).strip()))
    zones, energy_uj = [zone.name for zone in agent.layout.zones], files.read(energy).strip()
counter = lib.perf_open(1, 0, 0, -1)
print(json.dumps({
    "uid": os.getuid(), "energy refused": refused(root + energy, os.O_RDONLY),
    "limit refused": refused(root + limit, os.O_WRONLY), "energy": energy_uj,
    "zones": zones, "limits": sorted(set(limits)), "counter": counter,
}))
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """One that other users may enter."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@needs_root
def test_an_agent_without_rights_reads_energy_and_caps_power_through_its_writer(open_folder: Path) -> None:
    tree = make_tree(open_folder / "node")
    found = limits(tree)
    link = start(tree, open_folder / "state")
    connection = link.channel._socket
    done = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, str(tree), str(open_folder / "own"), str(connection.fileno())],
        pass_fds=[connection.fileno()], capture_output=True, text=True, timeout=PATIENCE_S,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    link.close()
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["uid"] == 65534 and told["energy refused"] and told["limit refused"]
    assert told["zones"] == ["package-0"] and told["energy"] == "123456"
    assert told["limits"][0] < "150000000" and len(told["limits"][0]) == 9, "the cap was written"
    assert within(PATIENCE_S, lambda: limits(tree) == found)
    if int(PARANOID.read_text()) >= 2:
        assert told["counter"] >= 0, "CAP_PERFMON counts on whole CPUs"


@needs_root
def test_descriptors_are_read_only_and_only_of_files_that_others_may_not_read(open_folder: Path) -> None:
    tree = make_tree(open_folder / "node")
    put(tree / "sys/class/hwmon/hwmon0/energy1_input", 5)
    put(tree / "sys/class/hwmon/hwmon0/power1_input", 7)
    (tree / "sys/class/hwmon/hwmon0/energy1_input").chmod(0o440)
    found = find_root_files(str(tree))
    assert found == ["/sys/class/powercap/intel-rapl:0/energy_uj", "/sys/class/hwmon/hwmon0/energy1_input"]


def test_the_agent_writes_no_file_even_as_root(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "node")
    writer = writer_on(tree, tmp_path / "state")
    path = "/" + str(limit_path(tree).relative_to(tree))
    files = AgentFiles(writer.opened, writer.movable, str(tree))
    assert files.writable(path) and not files.writable(path.replace("power_limit", "time_window"))
    with pytest.raises(PermissionError, match="its writer process does"):
        files.write(path, "1")
    assert len(writer.opened) == 1
    for descriptor in writer.opened.values():
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.write(descriptor, b"1")
    writer.close()
    assert limit_path(tree).read_text() == "150000000\n"


@needs_root
def test_a_stranger_is_refused_and_the_agents_user_is_served(open_folder: Path) -> None:
    path = open_folder / "socket"
    command = [sys.executable, "-m", "nodectl.cli", "writer", "--socket", str(path), "--user", "nobody"]
    writer = subprocess.Popen([*command, "--state-dir", str(open_folder / "state")], stderr=subprocess.PIPE, cwd=ROOT)
    try:
        assert within(PATIENCE_S, lambda: path.exists() and path.stat().st_uid == 65534)
        assert path.stat().st_mode & 0o777 == 0o600
        path.chmod(0o666)  # as if somebody had: the kernel's word counts, not the file's mode
        assert says_hello(path, 12345) == "refused"
        assert says_hello(path, 65534) == says_hello(path, 0) == "welcome"
    finally:
        writer.terminate()
        _, log = writer.communicate(timeout=PATIENCE_S)
    assert b"refused a connection of uid 12345" in log and writer.returncode == 0


def says_hello(path: Path, uid: int) -> str:
    code = f"""
import os
from nodectl.writer_process.channel import ChannelError
from nodectl.writer_process.remote_writer import RemoteWriter
from nodectl.writer_process.writer_link import connect_writer
os.setresuid({uid}, {uid}, {uid})
try:
    RemoteWriter(lambda: connect_writer({str(path)!r})).close()
    print("welcome")
except ChannelError:
    print("refused")
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=PATIENCE_S
    )
    return done.stdout.strip() or done.stderr


def hear_until(systemd: socket.socket, wanted: bytes, heard: list[bytes]) -> None:
    while wanted not in (found := systemd.recv(200)):
        continue
    heard.append(found)


@needs_root
def test_a_writer_service_reports_to_systemd_and_takes_only_its_own_settings(open_folder: Path) -> None:
    notify, settings = open_folder / "notify", open_folder / "nodectl.toml"
    settings.write_text('mode = "no such mode"\n[cpu_policy]\nname = "/etc/passwd"\n')  # the agent's matter
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(open_folder / "socket"))
    listener.listen()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd, listener:
        systemd.bind(str(notify))
        systemd.settimeout(PATIENCE_S)
        writer = subprocess.Popen(
            [
                *(sys.executable, "-m", "nodectl.cli", "writer", "--config", str(settings)),
                *("--descriptor", str(listener.fileno()), "--state-dir", str(open_folder / "state")),
            ],
            pass_fds=[listener.fileno()], cwd=ROOT,
            env={**os.environ, "NOTIFY_SOCKET": str(notify), "WATCHDOG_USEC": "400000"},
        )  # fmt: skip
        try:
            assert systemd.recv(200) == b"READY=1\nSTATUS=no agent is connected"
            assert [systemd.recv(200) for _ in range(3)] == [b"WATCHDOG=1"] * 3, "fed while nobody is connected"
            heard: list[bytes] = []
            reading = threading.Thread(target=lambda: hear_until(systemd, b"writes for an agent of uid 0", heard))
            reading.start()  # systemd reads all the time
            assert says_hello(open_folder / "socket", 0) == "welcome"
            reading.join(PATIENCE_S)
            assert heard, "the status"
        finally:
            writer.terminate()
            assert writer.wait(PATIENCE_S) == 0
    settings.write_text("may_raise = ['nothing/of/that/name']\n")
    command = [sys.executable, "-m", "nodectl.cli", "writer", "--config", str(settings), "--socket", "/nowhere/at/all"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE_S)
    assert done.returncode == 2 and "nodectl.toml:1: may_raise" in done.stderr
