"""Jobs that do not want to end: what they try against their supervisor, its records and the node, by real processes."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from foundation.boot import boot_id, boottime_s
from foundation.wire.job_messages import JobForget, JobPart, JobSignal
from nodectl.jobs import cgroups, job_step
from nodectl.jobs.cgroups import Cgroup
from nodectl.jobs.job_child import be_ordinary
from nodectl.jobs.job_group import VARIABLE, JobGroup
from nodectl.jobs.job_step import main as step_main
from nodectl.jobs.job_user import JobUser, NoUserError, job_user, user_of
from nodectl.jobs.proc import process, start_time
from nodectl.jobs.processes import JobRunner
from nodectl.jobs.progress_file import new_progress_file
from nodectl.jobs.run_files import (
    ENDED,
    ROOM,
    SESSION,
    STAGE,
    STEP,
    read_stage,
    reserve,
    write_durably,
    write_sessions,
)
from tests.live.hostile import WAYS
from tests.live.test_job_runner import ended, is_over, start, until

NOBODY = JobUser("stranger", 61_900, 61_900, (61_900,), "/")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="to run jobs as another user needs root")
KINDS = ["v2", "v2 without kill", "v1", "none"]


@pytest.fixture
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What a node's kernel has to keep the processes of a job together; skips where this one lacks it."""
    name: str = getattr(request, "param", "v2")
    version = {"v1": 1, "none": 0}.get(name, 2)
    all_mounts = cgroups.mounts
    monkeypatch.setattr(cgroups, "mounts", lambda *of: [mount for mount in all_mounts(*of) if mount.version == version])
    if name == "v2 without kill":
        monkeypatch.setattr(Cgroup, "_has_kill", False)
    home = cgroups.home("probe") if version else None
    if home is not None:
        home.remove()
    elif version:
        pytest.skip(f"no cgroup of version {version} can be made here: mount a hierarchy, and run as root")
    return name


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that every user may pass through; pytest's own are closed."""
    with tempfile.TemporaryDirectory() as name:
        at = Path(name)
        at.chmod(0o711)
        (at / "w").mkdir()
        os.chown(at / "w", NOBODY.uid, NOBODY.gid) if os.geteuid() == 0 else None
        yield at


def alive_of(uid: int) -> list[int]:
    """The processes of a user of which a thread lives, by the kernel's word alone."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{name}").st_uid == uid:
                threads = [f"/proc/{name}/task/{thread}/stat" for thread in os.listdir(f"/proc/{name}/task")]
                texts = [Path(thread).read_text() for thread in threads]
                found += [int(name)] if any(text.rpartition(")")[2].split()[0] not in "ZX" for text in texts) else []
    return found


def own_pids(word: str) -> list[int]:
    """Processes with this word in their command lines."""
    done = subprocess.run(["pgrep", "-f", word], capture_output=True, text=True, check=False)
    return [int(pid) for pid in done.stdout.split() if process(int(pid)) is not None]


# --- the agent's own user: what the version before did wrong


def test_a_job_that_stops_its_supervisor_is_ended_by_a_cancel(tmp_path: Path) -> None:
    runner = JobRunner(tmp_path / "jobs", "n0")
    runner.start(start(tmp_path, "kill -STOP $PPID; touch ready; sleep 1000.11", walltime_s=3600))
    until((tmp_path / "ready").exists)
    runner.signal(JobSignal(1, 1, signal.SIGTERM))
    part = ended(runner)
    assert (part.phase, part.cause) == ("ended", "told")
    assert own_pids("sleep 1000.11") == []


def test_a_job_that_keeps_its_supervisor_stopped_ends_at_its_walltime(tmp_path: Path) -> None:
    runner = JobRunner(tmp_path / "jobs", "n0")
    runner.start(start(tmp_path, "trap '' TERM; while :; do kill -STOP $PPID; sleep 0.01; done", walltime_s=1))
    part = ended(runner)
    assert (part.phase, part.cause) == ("ended", "walltime")
    assert not own_pids("kill -STOP .PPID")


def test_a_job_that_kills_its_supervisor_is_lost_with_all_that_it_started(tmp_path: Path) -> None:
    runner = JobRunner(tmp_path / "jobs", "n0")
    hidden = "setsid sleep 1000.12 & setsid sh -c 'setsid sleep 1000.12 & sleep 1000.12' & "
    runner.start(start(tmp_path, hidden + "sleep 0.5; kill -9 $PPID; sleep 1000.12"))
    assert ended(runner).phase == "lost"
    assert own_pids("sleep 1000.12") == [], "when it is said to be over, it is"


def test_an_end_that_a_job_forges_is_not_believed_while_it_runs(tmp_path: Path) -> None:
    runner = JobRunner(tmp_path / "jobs", "n0")
    forged = '{"status": 0, "cause": "", "started_s": 1.0, "ended_s": 2.0, "detail": ""}'
    text = f"echo '{forged}' >$(dirname $NODECTL_PROGRESS)/ended.json; touch ready; sleep 1000.13"
    runner.start(start(tmp_path, text))
    until((tmp_path / "ready").exists)
    until_s = time.monotonic() + 0.5
    while time.monotonic() < until_s:
        assert runner.parts()[0].phase == "running"
    os.kill(json.loads((tmp_path / "jobs/1.1" / STEP).read_text())["pid"], signal.SIGKILL)
    until(lambda: is_over(runner))
    assert own_pids("sleep 1000.13") == []


# --- another user, on every kind of node

TRIED = [WAYS[0], *WAYS[2:4], *(way for way in WAYS if way.name in (
    "has no environment and ignores every signal", "is a chain of forks", "leaves its cgroup", "kills all that it may",
    "plants links in its records", "stops itself", "hides in namespaces", "stays behind in its epilog",
))]  # fmt: skip
"""Of the ways of ``benchmarks.hostile_jobs`` those that differ most."""


@needs_root
@pytest.mark.parametrize("kind", KINDS, indirect=True)
def test_hostile_jobs_of_another_user_leave_nothing_and_their_records_are_true(kind: str, place: Path) -> None:
    """Side by side, each way on a node of its own and as a user of its own."""
    going = {}
    for number, way in enumerate(TRIED if kind == "v2" else TRIED[:5], 1):
        uid, work = NOBODY.uid + number, place / "w" / str(number)
        work.mkdir(parents=True)
        os.chown(work, uid, uid)
        runner = JobRunner(place / f"jobs-{number}", "n0", JobUser(f"stranger{number}", uid, uid, (uid,), "/"))
        text = way.text.replace("1000$K", "1000")
        runner.start(start(work, text, uid=uid, epilog=way.epilog, walltime_s=2))
        going[uid] = way, runner, work

    def is_over_now(uid: int) -> bool:
        way, runner, work = going[uid]
        if way.end == "cancel" and (work / "ready").exists():
            runner.signal(JobSignal(1, 1, signal.SIGTERM))
        if not is_over(runner):
            return False
        assert alive_of(uid) == [], way.name
        return True

    until(lambda: min(list(map(is_over_now, going))))  # each of them, each time
    for way, runner, _ in going.values():
        (part,) = runner.parts()
        expected = {"own": ("ended", ""), "walltime": ("ended", "walltime"), "cancel": ("ended", "told")}[way.end]
        assert (part.phase, part.cause) == expected, (way.name, part)
        assert part.status == 0 or way.end != "own", (way.name, part)


@needs_root
def test_a_job_is_another_user_from_its_first_instruction_and_gains_no_right(kind: str, place: Path) -> None:
    runner = JobRunner(place / "jobs", "n0", NOBODY)
    secret = place / "secret"
    secret.write_text("")
    secret.chmod(0o600)
    runner.start(start(place / "w", "id -u; id -G; grep NoNewPrivs /proc/self/status; ulimit -c; echo $HOME $USER",
                       uid=NOBODY.uid, script="", prolog="id -u", epilog="id -u"))  # fmt: skip
    runner.start(start(place / "w", "echo x", job=2, uid=NOBODY.uid, output=str(secret)))
    until(lambda: is_over(runner) and is_over(runner, 2))
    _, second = runner.parts()
    said = (place / "w/out").read_text().split()
    assert said[:5] == ["61900", "61900", "61900", "NoNewPrivs:", "1"] and said[-3:] == ["/", "stranger", "61900"]
    assert (second.status, secret.read_text()) == (1, ""), "what a job's user may not open, root does not open for him"
    assert second.detail == f"{secret}: Permission denied"
    assert (place / "w/out").stat().st_uid == NOBODY.uid


@needs_root
def test_a_job_can_write_its_progress_and_none_of_its_other_records(kind: str, place: Path) -> None:
    runner = JobRunner(place / "jobs", "n0", NOBODY)
    text = (
        "d=$(dirname $NODECTL_PROGRESS); printf '\\7\\0\\0\\0\\0\\0\\0\\0' >$NODECTL_PROGRESS; for f in request.json"
        " group.json lock step.json session stage ending ended.json ended.json.part new; do echo x >$d/$f && echo $f;"
        " cat $d/$f; rm -f $d/$f; done 2>/dev/null; ls $d ${d%/*}; truncate -s 100M $NODECTL_PROGRESS; touch grown;"
        " while [ ! -e go ]; do sleep 0.05; done"
    )
    runner.start(start(place / "w", text, uid=NOBODY.uid))
    until(lambda: (place / "w/grown").exists())
    runner.parts()
    counter = runner.counter(1, 1)
    assert counter is not None and counter.read() == 7
    until(lambda: (place / "jobs/1.1/progress").stat().st_size == 64)  # it fills no disk by its progress
    (place / "w/go").touch()
    assert ended(runner).status == 0
    assert [line for line in (place / "w/out").read_text().splitlines() if "ermission" not in line] == []


LEASES = """
import fcntl, os, signal, time
signal.signal(signal.SIGIO, signal.SIG_IGN)
file = os.open(os.environ["NODECTL_PROGRESS"], os.O_RDWR)
os.ftruncate(file, 10_000_000)
open("grown", "w").close()
while not os.path.exists("go"):
    for name, kind in ((os.environ["NODECTL_PROGRESS"], fcntl.F_WRLCK), ("{script}", fcntl.F_RDLCK)):
        try:
            fcntl.fcntl(os.open(name, os.O_RDONLY), fcntl.F_SETLEASE, kind)
            open("has-a-lease", "w").close()
        except OSError:
            time.sleep(0.001)
"""


@needs_root
def test_a_job_that_takes_leases_on_its_files_keeps_nobody_waiting(kind: str, place: Path) -> None:
    """Whoever opens a file on which its owner has a lease waits for 45 s."""
    runner = JobRunner(place / "jobs", "n0", NOBODY)
    leases = LEASES.format(script=place / "jobs/1.1/script")
    runner.start(start(place / "w", "", uid=NOBODY.uid, command=[], script="#!/usr/bin/python3\n" + leases))
    until((place / "w/grown").exists)
    began_s = time.monotonic()
    until(lambda: runner.parts() and (place / "jobs/1.1/progress").stat().st_size == 64)
    runner.signal(JobSignal(1, 1, signal.SIGKILL))
    assert ended(runner).cause == "told"
    assert time.monotonic() - began_s < 20.0
    assert not (place / "w/has-a-lease").exists()


@needs_root
def test_a_jobs_script_is_its_users_to_run_and_to_read_and_not_to_change(kind: str, place: Path) -> None:
    runner = JobRunner(place / "jobs", "n0", NOBODY)
    script = "#!/bin/sh\n(echo x >>$0; chmod 700 $0; truncate -s 1M $0) 2>/dev/null\nwc -c <$0; stat -c %U $0\n"
    runner.start(start(place / "w", "", uid=NOBODY.uid, command=[], script=script))
    assert ended(runner).status == 0
    assert (place / "w/out").read_text().split() == [str(len(script)), "root"]


@needs_root
def test_an_agent_without_the_right_to_read_others_files_reads_a_jobs_progress(place: Path) -> None:
    """As jobs.conf has it: root, with a few capabilities."""
    os.close(new_progress_file(place / "progress", NOBODY.uid))
    read = "import sys; from pathlib import Path; from pmu.instruments.job_progress import CounterFile as C"
    done = subprocess.run(
        ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all", sys.executable, "-c",
         f"{read}; print(C(Path(sys.argv[1])).read())", str(place / "progress")],
        capture_output=True, text=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("0\n", "")
    assert (place / "progress").stat().st_uid == NOBODY.uid and (place / "progress").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("what", ["another boot", "another leader", "its own"])
def test_a_process_that_got_the_number_of_an_ended_jobs_session_is_none_of_its_processes(
    what: str, tmp_path: Path
) -> None:
    """After a reboot each number means another process: the node's services."""
    other = subprocess.Popen(["sleep", "1000.78"], start_new_session=True)
    began = start_time(other.pid)
    assert began is not None
    directory = tmp_path / "jobs" / "7.1"
    directory.mkdir(parents=True)
    (directory / STEP).write_text('{"pid": 4194303, "start": 5, "began_s": 1.0}')
    write_sessions(directory, JobGroup(None, "", {other.pid: began - (what == "another leader")}))
    if what == "another boot":
        text = (directory / SESSION).read_text()
        (directory / SESSION).write_text(text.replace(boot_id(), "6a1e1c5e-0000-4000-8000-000000000000"))
    try:
        runner = JobRunner(tmp_path / "jobs", "n0")
        until(lambda: is_over(runner, 7))
        assert (other.poll() is None) == (what != "its own")
    finally:
        other.kill()
        other.wait()


@needs_root
@pytest.mark.parametrize("kind", ["v2", "v1"], indirect=True)
def test_somebody_elses_process_in_a_session_that_has_a_number_of_the_jobs_is_left_alone(
    kind: str, place: Path
) -> None:
    """A job can use up numbers until a service that becomes a daemon gets the one that it has noted."""
    runner = JobRunner(place / "jobs", "n0", NOBODY)
    runner.start(start(place / "w", "touch began; while [ ! -e go ]; do sleep 0.05; done", uid=NOBODY.uid))
    until((place / "w/began").exists)
    leader = subprocess.Popen(["sh", "-c", "sleep 1000.79 & echo $!"], start_new_session=True, stdout=subprocess.PIPE)
    assert leader.stdout is not None
    other = int(leader.stdout.readline())
    leader.wait()
    write_sessions(place / "jobs/1.1", JobGroup(None, "", {leader.pid: 1}))
    (place / "w/go").touch()
    try:
        assert ended(runner).status == 0
        assert process(other) is not None
    finally:
        os.kill(other, signal.SIGKILL)
        leader.stdout.close()


KEYS = """
import ctypes, os, sys
number = ctypes.c_long({"x86_64": 250, "aarch64": 219}[os.uname().machine])
add_key = ctypes.c_long({"x86_64": 248, "aarch64": 217}[os.uname().machine])
libc = ctypes.CDLL(None, use_errno=True)
session, search, read = ctypes.c_long(-3), ctypes.c_long(10), ctypes.c_long(11)
def secret():
    key, text = libc.syscall(number, search, session, b"user", b"nodectl-test", 0), ctypes.create_string_buffer(16)
    return libc.syscall(number, read, ctypes.c_long(key), text, 16) > 0 and text.value
if libc.syscall(number, ctypes.c_long(1), None) < 0 or libc.syscall(
        add_key, b"user", b"nodectl-test", b"secret", ctypes.c_size_t(6), session) < 0:
    print("no keys")
    sys.exit()
print(secret())
if os.fork() == 0:
    from nodectl.jobs.job_user import JobUser
    JobUser("stranger", 61900, 61900, (61900,), "/").become()
    print(secret())
    os._exit(0)
os.wait()
"""


@needs_root
def test_a_job_has_none_of_the_keys_of_the_agents_session() -> None:
    """Of a root who has logged in these may be the keys of encrypted directories and of Kerberos."""
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-uc", KEYS], capture_output=True, text=True, cwd=root, check=True)
    if "no keys" in done.stdout:
        pytest.skip("this kernel or container gives no keys to its processes")
    assert done.stdout.split() == ["b'secret'", "False"]


ATTRIBUTES = """
import os, sys, time
n = 0
def fill(many):
    global n
    for _ in range(many):
        n += 1
        try: os.setxattr(os.environ["NODECTL_PROGRESS"], f"user.{n}".ljust(200, "x"), b"v" * 64)
        except OSError: time.sleep(0.001)
fill(10)
open("filled", "w").close()
while not os.path.exists("go"): time.sleep(0.01)
while True: fill(1000)
"""


@needs_root
def test_a_job_fills_no_disk_by_attributes_of_its_progress_file(kind: str) -> None:
    """XFS, Btrfs and tmpfs take any number of them; a list of names has 64 KiB at most."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        at = Path(name)
        at.chmod(0o711)
        try:
            os.setxattr(at, "user.x", b"")
        except OSError:
            pytest.skip("the file system in memory takes no attributes")
        (at / "w").mkdir()
        os.chown(at / "w", NOBODY.uid, NOBODY.gid)
        runner = JobRunner(at / "jobs", "n0", NOBODY)
        command = ["/usr/bin/env", "python3", "-Sc", ATTRIBUTES]
        runner.start(start(at / "w", "", uid=NOBODY.uid, command=command))
        until((at / "w/filled").exists)
        until(lambda: os.listxattr(at / "jobs/1.1/progress") == [])
        (at / "w/go").touch()
        part = ended(runner)
        assert (part.phase, part.cause) == ("ended", "") and "attributes" in part.detail
        assert alive_of(NOBODY.uid) == []


@pytest.mark.parametrize("named", ["workdir", "output", "error"])
def test_a_name_with_a_null_byte_is_said_to_be_wrong(named: str, tmp_path: Path) -> None:
    runner = JobRunner(tmp_path / "jobs", "n0")
    runner.start(start(tmp_path, "true", **{named: f"{tmp_path}/a\0b"}))
    part = ended(runner)
    assert (part.phase, part.status) == ("ended", 1) and "null byte" in part.detail


def test_a_stage_that_cannot_be_noted_leaves_no_other_whose_time_would_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job with a prolog, on a disk that has become full, was ended after a minute, as if by its walltime."""
    step = job_step._Step(
        tmp_path, {"job": 1, "attempt": 1, "nodes": ["n0"], "rank": 0, "env": {}, "workdir": str(tmp_path),
                   "output": "out", "error": ""}, JobGroup(None, ""), user_of(os.geteuid()), 1.0)  # fmt: skip
    (tmp_path / STAGE).write_text(f"prolog {boottime_s()}")

    def full(path: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(job_step, "write_note", full)
    os.waitpid(step._start(["/bin/true"], "job"), 0)
    assert read_stage(tmp_path) is None


def may_protect() -> bool:
    """Whether a process may be spared by the out-of-memory killer here, as the agent's unit has it."""
    child = subprocess.run(["sh", "-c", "echo -900 >/proc/self/oom_score_adj"], capture_output=True, check=False)
    return child.returncode == 0


@needs_root
@pytest.mark.skipif(not may_protect(), reason="needs CAP_SYS_RESOURCE, which this container lacks")
def test_a_job_cannot_take_back_the_agents_protection_from_the_out_of_memory_killer() -> None:
    def protected() -> None:
        Path("/proc/self/oom_score_adj").write_text("-900")
        be_ordinary()
        os.setresgid(NOBODY.gid, NOBODY.gid, NOBODY.gid)
        os.setresuid(NOBODY.uid, NOBODY.uid, NOBODY.uid)

    text = "echo -900 >/proc/self/oom_score_adj; cat /proc/self/oom_score_adj"
    done = subprocess.run(["/bin/sh", "-c", text], preexec_fn=protected, capture_output=True, text=True, check=False)
    assert done.stdout == "0\n"


# --- whoever looks after it is gone


@pytest.mark.parametrize("kind", ["v2", "none"], indirect=True)
def test_the_next_agent_ends_a_job_whose_supervisor_was_killed_while_there_was_none(kind: str, tmp_path: Path) -> None:
    runner = JobRunner(tmp_path / "jobs", "n0")
    runner.start(start(tmp_path, "(setsid sleep 1000.14 &) ; touch ready; sleep 1000.14"))
    until((tmp_path / "ready").exists)
    until(lambda: len(own_pids("sleep 1000.14")) == 2 + 1)  # the shell has the words, too
    os.kill(json.loads((tmp_path / "jobs/1.1" / STEP).read_text())["pid"], signal.SIGKILL)
    again = JobRunner(tmp_path / "jobs", "n0")
    assert ended(again).phase == "lost"
    assert own_pids("sleep 1000.14") == []


def test_what_is_in_a_cgroup_of_no_run_on_record_is_ended_and_meanwhile_no_job_is_started(
    kind: str, tmp_path: Path
) -> None:
    runner = JobRunner(tmp_path / "jobs", "n0")
    runner.start(start(tmp_path, "touch ready; sleep 1000.15"))
    until((tmp_path / "ready").exists)
    os.kill(json.loads((tmp_path / "jobs/1.1" / STEP).read_text())["pid"], signal.SIGKILL)
    shutil.rmtree(tmp_path / "jobs/1.1")
    again = JobRunner(tmp_path / "jobs", "n0")
    assert "not on record" in again.refuses
    until(lambda: not (again.parts() or again.refuses))
    assert own_pids("sleep 1000.15") == []


def test_a_run_that_was_half_forgotten_is_not_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = JobRunner(tmp_path / "jobs", "n0")
    runner.start(start(tmp_path, "echo ran >>ran"))
    ended(runner)

    def dies(path: Path, **_: object) -> None:
        if path.exists():  # killed in the middle of it
            for name in (STEP, ENDED):
                (path / name).unlink(missing_ok=True)

    monkeypatch.setattr(shutil, "rmtree", dies)
    runner.forget(JobForget(1, 1))
    monkeypatch.undo()
    again = JobRunner(tmp_path / "jobs", "n0")
    assert again.parts() == []
    assert (tmp_path / "ran").read_text() == "ran\n"


def test_a_run_that_was_forgotten_before_it_came_is_not_started(tmp_path: Path) -> None:
    runner = JobRunner(tmp_path / "jobs", "n0")
    runner.forget(JobForget(1, 1))
    runner.start(start(tmp_path, "touch ran"))
    assert runner.parts() == []


# --- disks, cgroups, users


@needs_root
def test_the_end_of_a_job_is_recorded_on_a_disk_that_it_has_filled(tmp_path: Path) -> None:
    """In a child with mounts of its own: a disk of 1 MB without blocks that are kept for root."""
    text = f"""
import sys; from pathlib import Path
from nodectl.jobs.run_files import reserve, write_durably, ENDED
at = Path({str(tmp_path)!r})
reserve(at / ENDED)
try:
    (at / "fill").open("wb", buffering=0).write(bytes(2_000_000)); (at / "fill").open("ab", buffering=0).write(bytes(1))
except OSError: pass
write_durably(at / ENDED, dict(status=3, detail="x" * 300))
print((at / ENDED).read_text()[:13])
"""
    mount = f'mount -t tmpfs -o size=1m tmpfs {tmp_path} && exec "$@"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", mount, "sh", sys.executable, "-c", text],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.stdout == '{"status": 3,\n', done.stderr


def test_a_record_has_the_room_that_was_reserved_for_it_and_no_more(tmp_path: Path) -> None:
    reserve(tmp_path / ENDED)
    assert (tmp_path / f"{ENDED}.part").stat().st_size == ROOM
    write_durably(tmp_path / ENDED, {"status": 0})
    assert (tmp_path / ENDED).read_text() == '{"status": 0}'
    assert not (tmp_path / f"{ENDED}.part").exists()


@needs_root
@pytest.mark.parametrize("kind", KINDS, indirect=True)
@pytest.mark.parametrize("has_step", [True, False])
def test_a_process_whose_first_thread_has_ended_lives_and_is_killed(kind: str, has_step: bool, place: Path) -> None:
    """The kernel shows it as a zombie, and cgroup.kill does not reach it."""
    (way,) = [way for way in WAYS if "first thread" in way.name]
    runner = JobRunner(place / "jobs", "n0", NOBODY)
    then = "" if has_step else "touch there; sleep 1000"
    runner.start(start(place / "w", way.text.replace("1000$K", "1000") + then, uid=NOBODY.uid))
    if not has_step:
        until((place / "w/there").exists)
        runner.parts()
        os.kill(json.loads((place / "jobs/1.1" / STEP).read_text())["pid"], signal.SIGKILL)
    began_s = time.monotonic()
    part = ended(runner)
    assert alive_of(NOBODY.uid) == [] and time.monotonic() - began_s < 30.0
    assert part.phase == ("ended" if has_step else "lost")


@pytest.mark.parametrize("kind", ["v2", "v2 without kill", "v1"], indirect=True)
def test_a_cgroup_is_empty_when_a_chain_of_forks_in_it_was_killed(kind: str) -> None:
    home = cgroups.home(f"test-{os.getpid()}")
    assert home is not None
    group = JobGroup(Cgroup(home.path / "1.1", home.version), "")
    group.cgroup.make() if group.cgroup else None
    chain = "import os\nwhile True:\n  if os.fork(): os._exit(0)"
    try:
        assert group.cgroup is not None and group.cgroup.is_empty()
        subprocess.run(["python3", "-Sc", chain], preexec_fn=group.enter, check=True)
        assert not group.cgroup.is_empty()
        until(lambda: group.kill(None) or group.cgroup is None or group.cgroup.is_empty())
    finally:
        home.remove()
    assert not home.path.exists()


def test_an_agent_leaves_a_cgroup_only_while_something_of_a_run_is_in_it(kind: str, tmp_path: Path) -> None:
    """None of these agents is closed: each is killed."""
    runner = JobRunner(tmp_path / "jobs", "n0")
    home = runner._home
    assert home is not None and not home.path.exists()
    runner.start(start(tmp_path, "while [ ! -e go ]; do sleep 0.05; done"))
    until((tmp_path / "out").exists)
    assert [path.name for path in home.path.iterdir() if path.is_dir()] == ["1.1"]
    (tmp_path / "go").touch()
    ended(runner)
    assert not home.path.exists()
    home.path.mkdir()  # as an agent left it that was killed as it made it, or one of 0.2.0
    JobRunner(tmp_path / "jobs", "n0")
    assert not home.path.exists()


def test_a_process_with_the_mark_of_a_run_is_found_in_whatever_session_it_is() -> None:
    group = JobGroup(None, "7.1-abc")
    child = subprocess.Popen(["sleep", "1000"], env={VARIABLE: "7.1-abc"}, start_new_session=True)
    try:
        assert group.left(None) == [child.pid]
        assert JobGroup(None, "7.1-ab").left(None) == []
        group.kill(None)
        assert child.wait(60) == -signal.SIGKILL
    finally:
        child.kill()


def test_a_step_that_finds_its_run_begun_by_another_does_nothing(tmp_path: Path) -> None:
    (tmp_path / STEP).write_text("{}")
    assert step_main(tmp_path) == 0
    assert not (tmp_path / ENDED).exists()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "is not set"), ("nodectl", "own services"), ("no-such-user", "there is no such user"),
    ],
)  # fmt: skip
def test_an_agent_that_is_root_runs_no_job_without_a_user_that_the_site_named(name: str, why: str) -> None:
    with pytest.raises(NoUserError, match=why):
        job_user(name, agent=0)


def test_jobs_are_root_only_where_the_site_has_set_root() -> None:
    assert job_user("root", agent=0).uid == 0
    assert job_user("nobody", agent=0).uid == pwd.getpwnam("nobody").pw_uid
    with pytest.raises(NoUserError, match="only root can run jobs of others"):
        job_user("nobody", agent=1234)


def test_a_runner_that_refuses_says_so_and_still_ends_what_an_earlier_agent_started(tmp_path: Path) -> None:
    runner = JobRunner(tmp_path / "jobs", "n0")
    runner.start(start(tmp_path, "touch ready; sleep 1000"))
    until((tmp_path / "ready").exists)
    again = JobRunner(tmp_path / "jobs", "n0", refuses="no user")
    again.start(start(tmp_path, "touch ran", job=2))
    assert again.parts()[1] == JobPart(2, 1, "refused", detail="n0: no user")
    again.signal(JobSignal(1, 1, signal.SIGTERM))
    until(lambda: is_over(again, 1))
    assert start_time(os.getpid()) is not None and not (tmp_path / "ran").exists()
