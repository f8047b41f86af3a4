"""Schedulers of Batsim's in processes of their own: pybatsim's as they ship, and peers that hang, leave or are none."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import zmq

from cluster_agent import library
from cluster_agent.cli import main
from cluster_agent.errors import SchedulerError, WrongUseError
from cluster_agent.library import World
from cluster_agent.stepping import batsim_link
from cluster_agent.stepping.batsim import foreign, replay
from tests.cluster_agent.foreign_schedulers import Event, InTurn
from tests.waiting import PATIENCE_S, within

ROOT = Path(__file__).parents[2]
FOREIGN = ROOT / "build" / "foreign-python"
SAMPLE = ROOT / "cluster_agent" / "samples" / "generated-500.swf"

with_pybatsim = pytest.mark.skipif(
    not (FOREIGN / "lib" / f"python3.{sys.version_info.minor}" / "site-packages" / "batsim").exists(),
    reason="pybatsim is missing: install it with scripts/foreign_python.sh",
)


@pytest.fixture
def address() -> Iterator[str]:
    """A place to listen, whose path is short enough for a socket's."""
    with tempfile.TemporaryDirectory(prefix="batsim-") as folder:
        yield f"ipc://{folder}/s"


@pytest.fixture
def log(tmp_path: Path) -> str:
    """120 jobs of the sample."""
    lines = SAMPLE.read_text().splitlines()
    path = tmp_path / "few.swf"
    path.write_text(
        "\n".join([*(line for line in lines if line.startswith(";")), *[one for one in lines if one[:1] != ";"][:120]])
        + "\n"
    )
    return str(path)


@contextmanager
def pybatsim(scheduler: str, address: str) -> Iterator[subprocess.Popen[str]]:
    """One of its schedulers, by name or file, as its own launcher starts it."""
    with tempfile.TemporaryDirectory() as folder:  # it writes there
        command = [f"{FOREIGN}/bin/python", "-m", "batsim.cmds.launcher", scheduler, "-v", "critical", "-s", address]
        quiet = {"text": True, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "cwd": folder}
        with subprocess.Popen(command, **quiet) as running:  # type: ignore[call-overload]
            try:
                yield running
            finally:
                running.kill()


@contextmanager
def served(address: str, serve: Callable[[zmq.Socket[bytes]], None]) -> Iterator[str]:
    """A scheduler in a thread; where it listens."""
    with zmq.Context() as context, context.socket(zmq.REP) as server:
        server.linger = 0
        server.bind(address)
        bound = server.getsockopt_string(zmq.LAST_ENDPOINT)
        thread = threading.Thread(target=serve, args=(server,))
        thread.start()
        try:
            yield bound
        finally:
            thread.join(PATIENCE_S)


def answering(scheduler: InTurn, messages: int | None = None) -> Callable[[zmq.Socket[bytes]], None]:
    """Until the end, or for so many messages."""

    def serve(server: zmq.Socket[bytes]) -> None:
        count = 0
        while not any(one["type"] == "SIMULATION_ENDS" for one in scheduler.told[-1:]) and count != messages:
            server.send(scheduler.ask(server.recv()))
            count += 1

    return serve


def rows(folder: Path, *columns: str) -> list[tuple[str, ...]]:
    head, *lines = (folder / "jobs.csv").read_text().splitlines()
    places = [head.split(",").index(name) for name in columns]
    return [tuple(line.split(",")[place] for place in places) for line in lines]


# --- pybatsim's own


@with_pybatsim
def test_pybatsims_schedfcfs_is_our_fcfs_job_for_job_where_jobs_are_of_one_width(address: str, tmp_path: Path) -> None:
    """It gives consecutive processors only. Where all jobs are of one width, they always find such."""
    random = np.random.default_rng(4)
    given = {
        "submit_s": np.sort(random.integers(0, 8_000, 100)),
        "run_s": random.integers(1, 2000, 100),
        "request_s": np.full(100, 3000),
        "width": np.full(100, 4),
    }
    world = World(given, machine=32)
    with pybatsim("schedFcfs", address):
        result = replay(world, f"batsim:address={address},timeout_s={PATIENCE_S}")
    ours = library.replay(world, "fcfs")
    assert (ours.wait_s > 0).sum() > 50
    assert result.start_s.tolist() == ours.start_s.tolist()
    assert result.end_s.tolist() == ours.end_s.tolist()


@with_pybatsim
def test_pybatsims_schedfcfs_is_a_plain_loop_with_consecutive_processors(
    address: str, log: str, tmp_path: Path
) -> None:
    world = World(log, machine=32)
    with pybatsim("schedFcfs", address):
        result = replay(world, f"batsim:address={address},timeout_s={PATIENCE_S}")
    result.write(str(tmp_path / "theirs"))
    with served(f"{address}2", answering(InTurn(consecutive=True))) as where:
        replay(world, f"batsim:address={where}").write(str(tmp_path / "plain"))
    columns = "starting_time", "finish_time", "allocated_resources"
    assert rows(tmp_path / "theirs", *columns) == rows(tmp_path / "plain", *columns)
    assert result.start_s.tolist() != library.replay(world, "fcfs").start_s.tolist()


PAGE = (ROOT / "docs" / "batsim.md").read_text()


@with_pybatsim
def test_what_schedfcfs_is_made_of_without_its_filter_is_our_fcfs_job_for_job(
    address: str, log: str, tmp_path: Path
) -> None:
    file = tmp_path / "anywhere.py"
    found = re.search(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    file.write_text(found[1])
    world = World(log, machine=32)
    with pybatsim(str(file), address):
        result = replay(world, f"batsim:address={address},timeout_s={PATIENCE_S}")
    ours = library.replay(world, "fcfs")
    assert result.start_s.tolist() == ours.start_s.tolist()
    assert result.end_s.tolist() == ours.end_s.tolist()


@with_pybatsim
def test_pybatsims_easybackfill_decides_as_the_same_class_driven_by_a_plain_loop(
    address: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out, arguments = tmp_path / "out", ["replay", str(SAMPLE), "--machine", "32"]
    with pybatsim("easyBackfill", address) as running:
        told = f"batsim:address={address},timeout_s={PATIENCE_S},name=easyBackfill"
        assert main([*arguments, "--scheduler", told, "--out", str(out)]) == 0
        printed = running.communicate(timeout=PATIENCE_S)[0]
    assert "Job submitted: 500 , scheduled: 500" in printed and running.returncode == 0
    jobs = World(str(SAMPLE), machine=32).log
    assert jobs is not None
    ours = library.replay(World(str(SAMPLE), machine=32), "fcfs").jobs
    given = [
        {
            "id": f"w0!{number}",
            "subtime": submit_s,
            "walltime": request_s,
            "res": width,
            "profile": "log",
            "run_s": run_s,
        }
        for number, submit_s, request_s, width, run_s in zip(
            *(column.tolist() for column in (ours.number, ours.submit_s, ours.request_s, ours.width, ours.run_s)),
            strict=True,
        )
    ]
    plain_loop = str(ROOT / "tests" / "cluster_agent" / "foreign_schedulers.py")
    loop = subprocess.run(
        [f"{FOREIGN}/bin/python", plain_loop, "easyBackfill", "EasyBackfill"],
        input=json.dumps({"processors": 32, "jobs": given}), capture_output=True, text=True, check=True,
    )  # fmt: skip
    plain = {name.removeprefix("w0!"): (str(at_s), alloc) for name, at_s, alloc in json.loads(loop.stdout)}
    found = rows(out, "job_id", "starting_time", "allocated_resources")
    assert {number: (at_s, alloc) for number, at_s, alloc in found} == plain and len(plain) == 500
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["policy"]["name"] == "easyBackfill"
    assert "messages, for whose answers we waited" in capsys.readouterr().err


@with_pybatsim
def test_the_example_of_the_page_runs(address: str, tmp_path: Path) -> None:
    """But for the installation, and with an address of its own."""
    first = re.search(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert first is not None
    lines = [line for line in first[1].splitlines() if "venv" not in line and "install" not in line]
    text = "\n".join(lines).replace("out/pybatsim/bin/pybatsim", f"{FOREIGN}/bin/python -m batsim.cmds.launcher")
    text = text.replace("tcp://127.0.0.1:28000", address).replace("batsim:", f"batsim:address={address},")
    text = text.replace("cluster_agent/samples", str(SAMPLE.parent))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ran = subprocess.run(
        ["sh", "-e", "-c", f"{text}\nwait"],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    assert len(lines) == 5 and "easyBackfill" in ran.stdout.split("# ")[-1]


@with_pybatsim
def test_a_scheduler_that_dies_in_mid_run_is_named(address: str, log: str) -> None:
    with pybatsim("easyBackfill", address) as running:

        def kill(ended: int, jobs: int) -> None:
            if ended > 10:
                running.kill()

        with pytest.raises(SchedulerError, match=r"has left without an answer \(what it has printed says why\)"):
            replay(World(log, machine=32), f"batsim:address={address},timeout_s={PATIENCE_S}", progress=kill)


# --- peers that are none


def test_a_scheduler_that_hangs_is_waited_for_as_long_as_said(address: str, log: str) -> None:
    with served(address, answering(InTurn(), messages=5)):
        begun_s = time.monotonic()
        with pytest.raises(SchedulerError, match=r"has not answered for 0.3 s; if it needs longer, give timeout_s"):
            replay(World(log, machine=32), f"batsim:address={address},timeout_s=0.3")
        assert time.monotonic() - begun_s >= 0.3


def test_an_answer_in_several_parts_is_refused(address: str, log: str) -> None:
    def serve(server: zmq.Socket[bytes]) -> None:
        server.send_multipart([InTurn().ask(server.recv()), b"more"])

    with served(address, serve), pytest.raises(SchedulerError, match="answers in several parts"):
        replay(World(log, machine=32), f"batsim:address={address}")


def test_where_nobody_listens_one_is_told_what_to_start(address: str, log: str) -> None:
    with pytest.raises(
        SchedulerError, match=r"no scheduler has answered at ipc://.* start it, such as `pybatsim sched"
    ):
        replay(World(log, machine=32), f"batsim:address={address},timeout_s=0.2")


def test_a_scheduler_may_start_after_its_replay(address: str, log: str) -> None:
    scheduler, found = InTurn(), []

    def run() -> None:
        found.append(replay(World(log, machine=32), f"batsim:address={address},timeout_s={PATIENCE_S}"))

    thread = threading.Thread(target=run)
    thread.start()
    time.sleep(0.3)
    with served(address, answering(scheduler)):
        thread.join(PATIENCE_S)
    assert found[0].unstarted == 0


def test_another_program_on_that_port_is_no_scheduler(log: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n" + b" " * 64)
                connection.recv(1000)

        thread = threading.Thread(target=greet)
        thread.start()
        port = server.getsockname()[1]
        with pytest.raises(
            SchedulerError, match=rf"what listens at tcp://127.0.0.1:{port} is no scheduler of Batsim's"
        ):
            replay(World(log, machine=32), f"batsim:address=tcp://127.0.0.1:{port},timeout_s={PATIENCE_S}")
        thread.join(PATIENCE_S)


def test_an_answer_that_is_too_large_is_not_read(address: str, log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batsim_link, "LARGEST_ANSWER", 1 << 20)

    def serve(server: zmq.Socket[bytes]) -> None:
        server.recv()
        server.send(b" " * (2 << 20))
        server.poll(500)

    with served(address, serve), pytest.raises(SchedulerError, match="or its answer was larger than 1 MiB"):
        replay(World(log, machine=32), f"batsim:address={address},timeout_s={PATIENCE_S}")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("slurm", "no kind of scheduler is called 'slurm': give batsim"),
        ("batsim:port=28000", "batsim has no parameter 'port'"),
        ("batsim:timeout_s=0", "timeout_s=0: give seconds, more than 0"),
        ("batsim:timeout_s=long", "timeout_s cannot be 'long': a number is needed"),
        ("batsim:address=tcp://node7:28000", "tcp://node7:28000 may be another machine, and Batsim's protocol neither"),
        ("batsim:address=tcp://192.0.2.1:28000", "if that is meant, add remote=true"),
        ("batsim:address=udp://127.0.0.1:28000", "give tcp://HOST:PORT"),
        ("batsim:address=tcp://127.0.0.1:99999", "give tcp://HOST:PORT"),
        ("batsim:address=tcp://no.such.host.invalid:28000,remote=true", "give tcp://HOST:PORT"),
    ],
)
def test_what_is_wrong_with_the_option_is_said_before_anything_starts(text: str, why: str, log: str) -> None:
    with pytest.raises(WrongUseError) as error:
        replay(World(log, machine=32), text)
    assert why in str(error.value) and str(error.value).startswith("--scheduler")


def test_remote_and_timeout_are_read() -> None:
    assert foreign("batsim").address == "tcp://127.0.0.1:28000"
    found = foreign("batsim:address=tcp://node7:1,remote=true,timeout_s=2.5,name=mine")
    assert (found.address, found.remote, found.timeout_s, found.name) == ("tcp://node7:1", True, 2.5, "mine")


# --- the command


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["--policy", "easy"], "--policy easy: not with --scheduler"),
        (["--log", "x.log"], "--log x.log: not with --scheduler"),
        (["--closed-loop", "think=log"], "--closed-loop think=log: not with --scheduler"),
        (["--plan-from", "plan.jsonl"], "--plan-from plan.jsonl: not with --scheduler"),
        (["--state-out", "x", "--state-at", "5"], "--state-out x: not with --scheduler"),
    ],
)
def test_options_that_do_not_go_with_a_scheduler_are_refused(
    more: list[str], why: str, log: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", log, "--machine", "32", "--scheduler", "batsim", *more]) == 2
    assert why in capsys.readouterr().err


def test_files_are_the_same_each_time(
    address: str, log: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(2):
        with served(f"{address}{number}", answering(InTurn())) as where:
            to = ["--out", str(tmp_path / f"out{number}"), "--swf", str(tmp_path / f"{number}.swf")]
            assert main(["replay", log, "--machine", "32", "--scheduler", f"batsim:address={where}", *to]) == 0
    assert "120 of 120 jobs ended" in capsys.readouterr().out
    for name in ("jobs.csv", "jobs.parquet", "metrics.json"):
        assert (tmp_path / "out0" / name).read_bytes() == (tmp_path / "out1" / name).read_bytes()
    assert (tmp_path / "0.swf").read_bytes() == (tmp_path / "1.swf").read_bytes()
    first, second = (json.loads((tmp_path / f"out{one}" / "manifest.json").read_text()) for one in range(2))
    assert first == second


def test_a_report_compares_it_with_a_policy(
    address: str, log: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with served(address, answering(InTurn())) as where:
        told = f"batsim:address={where},name=in-turn"
        assert main(["replay", log, "--machine", "32", "--scheduler", told, "--out", str(tmp_path / "r/theirs")]) == 0
    assert main(["replay", log, "--machine", "32", "--policy", "fcfs", "--out", str(tmp_path / "r/ours")]) == 0
    capsys.readouterr()
    assert main(["report", str(tmp_path / "r"), "--baseline", "fcfs"]) == 0
    assert "in-turn" in capsys.readouterr().out


class Wrong(InTurn):
    """After five starts, it starts a job on all processors."""

    def _starts(self, now: float) -> list[Event]:
        starts = super()._starts(now)
        if len(self._busy) > 5:
            starts[-1]["data"]["alloc"] = "0-31"
        return starts


def test_a_decision_that_is_refused_leaves_no_file(
    address: str, log: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, swf = tmp_path / "out", tmp_path / "out.swf"
    told = ["--scheduler", f"batsim:address={address}", "--out", str(out), "--swf", str(swf)]
    scheduler = Wrong()

    def serve(server: zmq.Socket[bytes]) -> None:
        while server.poll(500):
            server.send(scheduler.ask(server.recv()))

    with served(address, serve):
        assert main(["replay", log, "--machine", "32", *told]) == 1
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and "EXECUTE_JOB cannot be carried out: processor " in said[0]
    assert not out.exists() and not swf.exists()


def test_ctrl_c_while_a_scheduler_thinks_is_one_line_and_leaves_no_file(address: str, log: str, tmp_path: Path) -> None:
    out, got = tmp_path / "out", threading.Event()

    def serve(server: zmq.Socket[bytes]) -> None:
        scheduler = InTurn()
        for _ in range(5):
            server.send(scheduler.ask(server.recv()))
        server.recv()
        got.set()

    told = ["--scheduler", f"batsim:address={address}", "--out", str(out), "--swf", str(tmp_path / "o.swf")]
    command = [sys.executable, "-m", "cluster_agent.cli", "replay", log, "--machine", "32", *told]
    with served(address, serve), subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT) as running:
        assert got.wait(PATIENCE_S)
        os.kill(running.pid, signal.SIGINT)
        assert within(10, lambda: running.poll() is not None)
        assert running.stderr is not None
        assert running.stderr.read().split("\n") == [
            "",
            "clusterctl replay: stopped",
            "",
        ]  # the first is the terminal's
    assert running.returncode == 130
    assert not out.exists() and sorted(path.name for path in tmp_path.iterdir()) == ["few.swf"]
