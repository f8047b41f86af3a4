"""A run starts only when nothing real can be reached, ends as its command ends, and leaves the host as it was."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.twin.served_node import ROOT, environment, twin_command, why_not_served
from tests.waiting import PATIENCE_S, within

if why_not_served():
    pytest.skip(why_not_served(), allow_module_level=True)

from twin.errors import TwinError
from twin.serve import host_needs, namespace, registered_runs

MACHINE = "taurus"
SLEEP = (sys.executable, "-c", "import sys, time; print('up', flush=True); time.sleep(30)")


def twin(*arguments: str, code: str = "") -> subprocess.CompletedProcess[str]:
    """``nodectl twin ...``; ``code`` is executed first in its process."""
    command = twin_command(*arguments)
    if code:
        command = [sys.executable, "-c", f"{code}\nfrom twin.cli import twin\ntwin()", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_S, env=environment(), cwd=ROOT, check=False
    )


def start(*command: str, options: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    """A run whose command has printed its first line."""
    run = subprocess.Popen(
        twin_command("run", "--machine", MACHINE, *options, "--", *command),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        cwd=ROOT,
    )
    assert run.stdout
    assert run.stdout.readline() == "up\n", run.stderr and run.stderr.read()
    return run


def server_of(run: subprocess.Popen[str]) -> int:
    return next(each.server.number for each in registered_runs.Register().runs() if each.launcher.number == run.pid)


def first_of(run: subprocess.Popen[str]) -> int:
    """The first process of the run's own PID namespace, which its launcher waits for."""
    return psutil.Process(run.pid).children()[0].pid


def mountinfo() -> str:
    return Path("/proc/self/mountinfo").read_text()


def test_what_an_agent_keeps_on_an_emulated_node_is_not_kept_on_the_host() -> None:
    state = Path("/var/lib/nodectl")
    name = f"of-an-emulated-node-{os.getpid()}"
    agent = f"{sys.executable} -m nodectl.cli run --duration 1s >/dev/null 2>&1; touch {state}/{name}; ls {state}"
    done = twin("run", "--machine", MACHINE, "--", "sh", "-c", agent)
    assert done.returncode == 0, done.stderr
    assert {"journal", name} <= set(done.stdout.split())
    assert not (state / name).exists()


# ---- ending --------------------------------------------------------------------------------------------------------


def test_the_exit_status_is_the_commands() -> None:
    assert twin("run", "--machine", MACHINE, "--", "sh", "-c", "exit 7").returncode == 7
    missing = twin("run", "--machine", MACHINE, "--", "no-such-program")
    assert (missing.returncode, missing.stderr) == (127, "nodectl twin: no-such-program: command not found\n")


def test_a_command_ended_by_a_signal_counts_as_128_and_its_number() -> None:
    assert twin("run", "--machine", MACHINE, "--", "sh", "-c", "kill -KILL $$").returncode == 128 + signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_run_reaches_the_command_and_everything_is_torn_down(number: signal.Signals) -> None:
    trap = f"import signal, sys, time; signal.signal({int(number)}, lambda *_: sys.exit(5)); print('up', flush=True)"
    run = start(sys.executable, "-c", f"{trap}; time.sleep(30)")
    server = server_of(run)
    run.send_signal(number)
    assert run.wait(timeout=PATIENCE_S) == 5
    assert not os.path.exists(f"/proc/{server}")
    assert all(each.launcher.number != run.pid for each in registered_runs.Register().runs())


def test_ctrl_c_on_the_terminal_reaches_the_command_once() -> None:
    count = (
        "import signal, sys, time; n = 0\n"
        "def seen(*_):\n global n; n += 1\n"
        "signal.signal(signal.SIGINT, seen); print('up', flush=True); time.sleep(0.5); print(n); sys.exit(n)"
    )
    master, slave = os.openpty()
    run = subprocess.Popen(
        ["setsid", "--ctty", "--wait", *twin_command("run", "--machine", MACHINE, "--", sys.executable, "-c", count)],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=environment(),
        cwd=ROOT,
    )
    os.close(slave)
    text = b""
    while b"up" not in text:
        text += os.read(master, 1024)
    os.write(master, b"\x03")
    assert run.wait(timeout=PATIENCE_S) == 1
    os.close(master)


def test_the_command_gets_standard_input_signals_and_limits_unchanged() -> None:
    look = "grep -E 'Sig(Blk|Ign)|NoNewPrivs' /proc/self/status; ulimit -n; cat"
    arguments = ["sh", "-c", look]
    plain = subprocess.run(arguments, input="in", capture_output=True, text=True, check=True)
    served = subprocess.run(
        twin_command("run", "--machine", MACHINE, "--", *arguments),
        input="in",
        capture_output=True,
        text=True,
        env=environment(),
        cwd=ROOT,
        check=True,
    )
    assert served.stdout == plain.stdout


def test_the_report_has_the_truth_about_the_workload(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    drawn = ["--workload", "hpl", "--seed", "7", "--bias", "0.4"]
    assert twin("run", "--machine", MACHINE, *drawn, "--report", str(path), "--", "sleep", "0.3").returncode == 0
    report = json.loads(path.read_text())
    assert (report["emulated"], report["workload"], report["seed"], report["bias"]) == (True, "hpl", 7, 0.4)
    assert 0.3 <= report["time_s"] < 3.0
    assert report["energy_j"]["node"] > 0
    assert not report["finished"]


# ---- kept runs -----------------------------------------------------------------------------------------------------

DAEMON = """
import os, sys, time
if os.fork():
    sys.exit(3)
os.setsid()
served = open("/sys/class/powercap/intel-rapl:0/name").read().strip()
with open(sys.argv[1], "w") as file:
    file.write(served)
while not os.path.exists(sys.argv[2]):
    time.sleep(0.01)
with open(sys.argv[1], "a") as file:
    file.write(" " + open("/sys/class/powercap/intel-rapl:0/name").read().strip())
"""
"""Forks to the background; writes what it is served, at its start and again when the second file exists."""


@dataclass(frozen=True)
class KeptRun:
    """A run whose command has ended with status 3 and left a daemon."""

    process: subprocess.Popen[str]
    line: str  # the first on standard error
    written: Path
    end: Path  # the daemon ends when it exists


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[KeptRun]:
    written, end = tmp_path / "written", tmp_path / "end"
    command = (sys.executable, "-c", DAEMON, str(written), str(end))
    run = subprocess.Popen(
        twin_command("run", "--machine", MACHINE, "--keep", "--", *command),
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        cwd=ROOT,
    )
    assert run.stderr
    line = run.stderr.readline()
    assert within(PATIENCE_S, lambda: written.exists() and written.read_text() == "package-0")
    yield KeptRun(run, line, written, end)
    run.kill()
    run.wait(timeout=PATIENCE_S)
    run.stderr.close()


def of_run(run: subprocess.Popen[str]) -> list[str]:
    return [str(child.pid) for child in psutil.Process(run.pid).children(recursive=True)]


def is_registered(run: subprocess.Popen[str]) -> bool:
    return any(each.launcher.number == run.pid for each in registered_runs.Register().runs())


def test_a_kept_daemon_is_served_until_it_ends_and_the_status_is_the_commands(kept: KeptRun) -> None:
    assert kept.line.startswith("nodectl twin: the command has ended with status 3; what it left running stays served")
    twin("clean")
    assert is_registered(kept.process)
    assert json.loads(twin("status", "--json", "--run", str(kept.process.pid)).stdout)[0]["machine"] == MACHINE
    assert kept.process.poll() is None
    kept.end.touch()
    assert kept.process.wait(timeout=PATIENCE_S) == 3
    assert kept.written.read_text() == "package-0 package-0"
    assert kept.process.stderr and kept.process.stderr.read() == ""
    assert not is_registered(kept.process)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_kept_run_with_all_its_processes(kept: KeptRun, number: signal.Signals) -> None:
    started = of_run(kept.process)
    assert len(started) == 3  # the first process, the server, the daemon
    kept.process.send_signal(number)
    assert kept.process.wait(timeout=PATIENCE_S) == 3
    assert not any(_is_running(each) for each in started)
    assert not is_registered(kept.process)


def test_a_killed_launcher_takes_a_kept_daemon_with_it(kept: KeptRun) -> None:
    started = of_run(kept.process)
    kept.process.kill()
    kept.process.wait(timeout=PATIENCE_S)
    assert within(PATIENCE_S, lambda: not any(_is_running(each) for each in started))


def test_a_kept_run_whose_command_leaves_nothing_ends_at_once_without_a_word() -> None:
    done = twin("run", "--machine", MACHINE, "--keep", "--", "sh", "-c", "exit 7")
    assert (done.returncode, done.stderr) == (7, "")


def test_a_signal_while_the_command_runs_ends_a_kept_run_too() -> None:
    trap = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))"
    daemon = "import subprocess; subprocess.Popen(['sleep', '300'])"
    run = start(
        sys.executable, "-c", f"{trap}; {daemon}; print('up', flush=True); time.sleep(300)", options=("--keep",)
    )
    try:
        run.terminate()
        assert run.wait(timeout=PATIENCE_S) == 5
        assert run.stderr and run.stderr.read() == ""
    finally:
        run.kill()


def test_without_keep_a_daemon_ends_with_the_command(tmp_path: Path) -> None:
    command = (sys.executable, "-c", DAEMON, str(tmp_path / "written"), str(tmp_path / "end"))
    assert twin("run", "--machine", MACHINE, "--", *command).returncode == 3  # the test would not end else


# ---- the host ------------------------------------------------------------------------------------------------------


def test_a_run_leaves_the_hosts_mounts_as_they_were() -> None:
    before = mountinfo()
    run = start(*SLEEP)
    assert mountinfo() == before
    run.terminate()
    run.wait(timeout=PATIENCE_S)
    assert mountinfo() == before


def test_a_killed_launcher_takes_server_and_command_with_it() -> None:
    before = mountinfo()
    run = start(*SLEEP)
    server = server_of(run)
    started = [str(child.pid) for child in psutil.Process(run.pid).children(recursive=True)]
    assert str(server) in started and len(started) == 3  # the first process, the server, the command
    run.kill()
    run.wait(timeout=PATIENCE_S)
    assert within(PATIENCE_S, lambda: not any(_is_running(each) for each in started))
    assert mountinfo() == before


def _is_running(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _is_disconnected(path: str) -> bool:
    try:
        os.listdir(path)
    except OSError as error:
        return error.errno == errno.ENOTCONN
    return False


LOSE_SERVER = """
import errno, os, sys
path = "/sys/class/powercap/intel-rapl:0/energy_uj"
kept = os.open(path, os.O_RDONLY)
print("up", flush=True)
sys.stdin.readline()
def what(action):
    try:
        action()
    except OSError as error:
        return errno.errorcode[error.errno]
print(what(lambda: os.read(kept, 64)), what(lambda: open(path)), what(lambda: os.listdir("/sys/class/powercap")))
print(what(lambda: open("/proc/cpuinfo")), what(lambda: open("/proc/stat")))
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
attr = (0).to_bytes(4, "little") + (64).to_bytes(4, "little") + bytes(56)
number = 298 if os.uname().machine == "x86_64" else 241
print(libc.syscall(number, attr, -1, 0, -1, 0), errno.errorcode[ctypes.get_errno()])
"""


def test_after_the_server_is_killed_nothing_of_the_host_shows() -> None:
    before = mountinfo()
    run = subprocess.Popen(
        twin_command("run", "--machine", MACHINE, "--", sys.executable, "-c", LOSE_SERVER),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        cwd=ROOT,
    )
    assert run.stdout
    assert run.stdout.readline() == "up\n"
    server = server_of(run)
    os.kill(server, signal.SIGKILL)
    # Its last thread closes the connections: a request under way at that instant gets ECONNABORTED, each later one
    # ENOTCONN (Linux fs/fuse/dev.c, fuse_abort_conn). Either way nothing of the host is read.
    assert within(PATIENCE_S, lambda: _is_disconnected(f"/proc/{first_of(run)}/root/sys/class/powercap"))
    output, complaint = run.communicate("go\n", timeout=PATIENCE_S)
    *files, result, error = output.split()
    assert len(files) == 5 and set(files) <= {"ENOTCONN", "ECONNABORTED"}
    assert (result, error) == ("-1", "ENOSYS")
    assert "server has ended" in complaint
    assert run.returncode == 0
    assert mountinfo() == before


def test_clean_removes_what_a_killed_run_left() -> None:
    run = start(*SLEEP)
    record = f"{namespace.RUN_DIRECTORY}/{run.pid}.json"
    assert os.path.exists(record)
    assert f"removed the record {record}" not in twin("clean").stdout  # it lives
    run.kill()
    run.wait(timeout=PATIENCE_S)
    ended = within(
        PATIENCE_S,
        lambda: not any(each.lives for each in registered_runs.Register().runs() if each.launcher.number == run.pid),
    )
    assert ended
    assert f"removed the record {record}" in twin("clean").stdout
    assert not os.path.exists(record)


def test_a_run_is_queried_from_outside_by_the_number_of_its_launcher() -> None:
    run = start(*SLEEP, options=("--fault", "stuck /sys/class/powercap/intel-rapl:0/energy_uj at=60"))
    try:
        status = json.loads(twin("status", "--json", "--run", str(run.pid)).stdout)[0]
        assert (status["machine"], status["faults"], status["has_workload"]) == (MACHINE, 1, False)
        assert twin("status", "--run", "1").returncode == 2
    finally:
        run.terminate()
        run.wait(timeout=PATIENCE_S)


# ---- containment ---------------------------------------------------------------------------------------------------

MUST_NOT_RUN = ("touch", "/tmp/nodectl-twin-must-not-exist")


@pytest.mark.parametrize(
    ("sabotage", "complaint"),
    [
        ("import twin.serve.namespace as n; n.cover_sysfs = lambda *_: None", "of the twin cannot be reached"),
        ("import twin.serve.namespace as n; n.cover_nvml = lambda _: None", "libnvidia-ml.so.1 does not load"),
        ("import twin.serve.containment as c; c.GPU_MAGIC = 1", "is not the state of the twin's GPUs"),
        ("import twin.serve.namespace as n; n.cover_proc = lambda settings: None", "/proc/cpuinfo is not the twin's"),
        (
            "import twin.serve.namespace as n, twin.files.procfs as p; c = n.cover_proc; "
            "n.cover_proc = lambda _: c(())",
            "/proc/acpi is not the twin's",
        ),
        ("import twin.serve.mounts as m; m.detach = lambda point: None", "still mounted"),
        ("import twin.serve.launcher as l; l._CLONE_NEWPID = 0", "shows the host's processes"),
        (
            "import twin.serve.first_process as f; f._hand_over_calls = lambda channel: None",
            "counter of the real kernel",
        ),
    ],
)
def test_a_door_that_leads_to_the_real_node_stops_the_run_before_the_command(sabotage: str, complaint: str) -> None:
    done = twin("run", "--machine", MACHINE, "--", *MUST_NOT_RUN, code=sabotage)
    assert done.returncode == 2
    assert complaint in done.stderr
    assert done.stderr.count("\n") == 1
    assert not os.path.exists(MUST_NOT_RUN[1])


def test_a_served_twin_inside_another_is_refused() -> None:
    inner = twin_command("run", "--machine", MACHINE, "--", *MUST_NOT_RUN)
    done = twin("run", "--machine", MACHINE, "--", *inner)
    assert done.returncode == 2
    assert "already runs on a served twin" in done.stderr


# ---- wrong use -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--machine", "xh2451"), "xh2415"),
        (("--machine", MACHINE, "--workload", "hlp"), "hpl"),
        (("--machine", MACHINE, "--fault", "stuck /sys/no/such/file"), "no such file"),
        (("--machine", MACHINE, "--bias", "7"), "0 to 0.9"),
        (("--machine", MACHINE, "--workload", "hpl", "--bias", "-0.1"), "0 to 0.9"),
        (("--machine", MACHINE, "--report", "/no/such/place/r.json"), "no directory"),
    ],
)
def test_wrong_use_is_one_line_and_status_2(arguments: tuple[str, ...], complaint: str) -> None:
    done = twin("run", *arguments, "--", *MUST_NOT_RUN)
    assert done.returncode == 2
    assert complaint in done.stderr
    assert done.stderr.count("\n") == 1
    assert not os.path.exists(MUST_NOT_RUN[1])


def test_without_root_the_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(TwinError, match="needs root"):
        host_needs.require()


def test_machines_are_listed_with_their_size() -> None:
    rows = {row["machine"]: row for row in json.loads(twin("machines", "--json").stdout)}
    assert (rows["xh2415"]["cpus"], rows["xh2415"]["gpus"]) == (96, 4)
