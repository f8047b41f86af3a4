"""A program outside puts a workload on an emulated node, for as long as it stays connected."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.emulated.emulated_cgroups import EmulatedCgroups
from nodectl.site_jobs.job_cgroups import JobCgroups
from tests.twin.served_node import ServedNode, why_not_served
from tests.waiting import within
from twin.in_process_node import InProcess
from twin.machine import load_machine
from twin.physics.model import Twin
from twin.programs.workload_socket import MOST_WAITING, WorkloadSocket


@pytest.fixture
def twin() -> Twin:
    return Twin(load_machine("curie"))


@pytest.fixture
def door(tmp_path: Path, twin: Twin) -> Iterator[WorkloadSocket]:
    made = WorkloadSocket(tmp_path, "n01", twin)
    yield made
    made.close()
    assert list(tmp_path.iterdir()) == []


def come(at: Path, line: bytes) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.settimeout(10)
    made.connect(str(at / "n01"))
    made.sendall(line)
    return made


def watts(twin: Twin) -> float:
    before_j = twin.node_j
    twin.advance(10.0)
    return (twin.node_j - before_j) / 10.0


def test_a_workload_runs_as_long_as_who_has_brought_it_is_there(
    tmp_path: Path, twin: Twin, door: WorkloadSocket
) -> None:
    idle_w = watts(twin)
    with come(tmp_path, b"hpl\n") as first:
        door.look()
        assert first.recv(100) == b"ok\n"
        busy_w = watts(twin)
        with come(tmp_path, b"stream\n") as second:
            door.look()
            assert second.recv(100) == b"the node has a workload already\n"
        door.look()
        assert twin.workload is not None and twin.workload.name == "hpl"
    door.look()
    assert twin.workload is None
    assert busy_w > idle_w + 50 and watts(twin) < busy_w - 50


def test_a_job_that_is_killed_takes_its_workload_along(tmp_path: Path, twin: Twin, door: WorkloadSocket) -> None:
    script = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.send(b'hpl\\n');"
        " s.recv(9); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", script, tmp_path / "n01"], stdin=subprocess.PIPE) as job:
        assert within(30, lambda: door.look() or twin.workload)  # type: ignore[func-returns-value]
        job.kill()
    assert within(30, lambda: door.look() or twin.workload is None)  # type: ignore[func-returns-value]


ODD = [b"nothing\n", b"\n", b"\xff\xfe\n", b"../../etc/passwd\n", b"x" * 5000, b"",
       b"inlet\n", b"inlet warm\n", b"inlet nan\n", b"inlet 500\n", b"inlets 30\n"]  # fmt: skip


@pytest.mark.parametrize("line", ODD)
def test_what_is_neither_workload_nor_air_is_refused_in_a_line(
    tmp_path: Path, twin: Twin, door: WorkloadSocket, line: bytes
) -> None:
    with come(tmp_path, line) as asking:
        if not line:
            asking.shutdown(socket.SHUT_WR)
        door.look()
        answer = asking.recv(1000)
    assert answer.endswith(b"\n") and answer.count(b"\n") == 1 and answer != b"ok\n"
    assert twin.workload is None and twin.inlet_c == 28.0


def test_jobs_with_cpus_of_their_own_share_the_node(tmp_path: Path, twin: Twin) -> None:
    cgroups = EmulatedCgroups(InProcess(twin).ports.files, twin)
    door, times = WorkloadSocket(tmp_path, "n01", twin, cgroups), JobCgroups(cgroups)
    with come(tmp_path, b"hpl cpus=0-7 job=17\n") as first:
        door.look()
        twin.advance(1.0)
        with come(tmp_path, b"stream cpus=8-15 job=18\n") as second:
            door.look()
            twin.advance(2.0)
            assert (first.recv(100), second.recv(100)) == (b"ok\n", b"ok\n")
            assert times.seconds("17") == pytest.approx(8 * 3.0, rel=0.01)
            assert times.seconds("18") == pytest.approx(8 * 2.0, rel=0.01)
            assert (times.cpus("17"), times.cpus("18")) == (set(range(8)), set(range(8, 16)))
            hpl, stream = (cgroups.truth()[job] for job in ("17", "18"))
            assert hpl.cores_j / hpl.processor_s > stream.cores_j / stream.processor_s and stream.dram_j > hpl.dram_j
            parts_j = twin.parts_j()
            assert parts_j["node"] == pytest.approx(twin.node_j)
            assert hpl.cores_j + stream.cores_j < parts_j["package-0"] + parts_j["package-1"]
            stat = InProcess(twin).ports.files.read("/proc/stat").split()
            assert int(stat[stat.index("cpu15") + 1]) == pytest.approx(200, abs=10), "ticks of 10 ms"
        door.look()
        twin.advance(1.0)
        assert times.seconds("18") is None and times.seconds("17") == pytest.approx(8 * 4.0, rel=0.01)
        assert twin.workload is not None and [len(group.units) for group in twin.workload.groups] == [8]
    door.close()


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"stream cpus=7-8\n", b"two workloads on one CPU\n"),
        (b"stream\n", b"the node is shared: say which CPUs, for example cpus=0-7\n"),
        (b"stream cpus=8-99\n", b'CPUs 8 to 99: machine "curie" has CPUs 0 to 15\n'),
        (b"stream cpus=\n", b"no CPUs\n"),
        (b"stream cpus=8-7\n", b"8-7 is no range of CPUs\n"),
        (b"stream cpus=a\n", b"cpus=a: no list of CPUs\n"),
    ],
)
def test_a_job_that_does_not_fit_next_to_another_is_refused(
    tmp_path: Path, twin: Twin, door: WorkloadSocket, line: bytes, why: bytes
) -> None:
    with come(tmp_path, b"hpl cpus=0-7\n") as first, come(tmp_path, line) as second:
        door.look()
        assert (first.recv(100), second.recv(200)) == (b"ok\n", why)
        assert twin.workload is not None and twin.workload.name == "hpl"


def test_whoever_warms_the_air_does_not_have_the_node(tmp_path: Path, twin: Twin, door: WorkloadSocket) -> None:
    with come(tmp_path, b"hpl\n") as job, come(tmp_path, b"inlet 33.5\n") as warming:
        door.look()
        assert (job.recv(100), warming.recv(100), warming.recv(100)) == (b"ok\n", b"ok\n", b"")
        assert twin.inlet_c == 33.5 and twin.workload is not None


def test_a_line_may_come_in_parts_and_nobody_waits_for_it(tmp_path: Path, twin: Twin, door: WorkloadSocket) -> None:
    with come(tmp_path, b"st") as slow, come(tmp_path, b"hpl\n") as quick:
        door.look()
        assert quick.recv(100) == b"ok\n"
        quick.close()
        door.look()
        slow.sendall(b"ream\n")
        door.look()
        assert slow.recv(100) == b"ok\n"


@pytest.mark.parametrize("name", [b"\xff" * 190, b"trace:/etc/passwd", b"/tmp/x.toml", b"../x", b"x.toml", b"\0"])
def test_whoever_comes_names_a_workload_and_no_file(
    tmp_path: Path, twin: Twin, door: WorkloadSocket, name: bytes
) -> None:
    with come(tmp_path, name + b"\n") as job:
        door.look()
        assert job.recv(300).endswith(b"give the name of a workload, no file\n")
    assert twin.workload is None


def test_who_says_nothing_keeps_nobody_out(tmp_path: Path, door: WorkloadSocket) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with contextlib.ExitStack() as opened:
        for _ in range(3):
            silent = [opened.enter_context(come(tmp_path, b"")) for _ in range(50)]
            door.look()
        job = opened.enter_context(come(tmp_path, b"hpl\n"))
        door.look()
        assert job.recv(100) == b"ok\n"
        silent[0].sendall(b"inlet 20\n")
        door.look()
        assert silent[0].recv(100) == b"ok\n", "the last ones are still heard"
        assert len(os.listdir("/proc/self/fd")) <= before + 151 + MOST_WAITING + 1


BRINGS = """
import socket, sys, time
def busy_j():
    before_j = read()
    time.sleep(1.0)
    return read() - before_j
def read():
    return sum(int(open(f"/sys/class/powercap/intel-rapl:{one}/energy_uj").read()) for one in (0, 1)) / 1e6
idle_j = busy_j()
with socket.socket(socket.AF_UNIX) as door:
    door.connect("/run/nodectl-twin/workload")
    door.sendall(b"hpl\\n")
    said = door.recv(100).decode().strip()
    hpl_j = busy_j()
time.sleep(0.2)
print(said, idle_j, hpl_j, busy_j())
"""


@pytest.mark.skipif(bool(why_not_served()), reason=why_not_served())
def test_a_program_on_a_served_twin_brings_a_workload_by_the_same_line() -> None:
    with ServedNode("curie") as node:
        said, *joules = node.python(BRINGS).split()
        idle_j, hpl_j, after_j = map(float, joules)
        assert said == "ok" and hpl_j > 2 * idle_j and after_j < 0.6 * hpl_j, joules
        is_there = json.loads(node.twin("status", "--json"))[0]["has_workload"]
        assert not is_there
