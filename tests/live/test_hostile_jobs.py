"""Jobs that do not want to end: what they try against their supervisor, its records and the node, by real processes."""

from __future__ import annotations

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

from foundation.wire.job_messages import JobForget, JobPart, JobSignal
from nodectl.jobs import cgroups
from nodectl.jobs.cgroups import Cgroup
from nodectl.jobs.job_child import be_ordinary
from nodectl.jobs.job_group import VARIABLE, JobGroup
from nodectl.jobs.job_step import main as step_main
from nodectl.jobs.job_user import JobUser, NoUserError, job_user
from nodectl.jobs.proc import process, start_time
from nodectl.jobs.processes import JobRunner
from nodectl.jobs.run_files import ENDED, ROOM, STEP, reserve, write_durably
from tests.live.hostile import WAYS, Way
from tests.live.test_job_runner import ended, is_over, start, until

NOBODY = JobUser("stranger", 61_900, 61_900, (61_900,), "/")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="to run jobs as another user needs root")
KINDS = ["v2", "v2 without kill", "v1", "none"]


@pytest.fixture
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What a node's kernel has to keep the processes of a job together; skips where this one lacks it."""
    name: str = getattr(request, "param", "v2")
    version = {"v1": 1, "none": 0}.get(name, 2)
    mounts = [mount for mount in cgroups._mounts() if mount.version == version]
    monkeypatch.setattr(cgroups, "_mounts", lambda: mounts)
    if name == "v2 without kill":
        monkeypatch.setattr(Cgroup, "_has_kill", False)
    if version and cgroups.home("probe") is None:
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
    """The processes of a user, by the kernel's word."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.stat(f"/proc/{name}").st_uid == uid and process(int(name)) is not None:
                found.append(int(name))
        except OSError:
            continue
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
    runner = JobRunner(place / "jobs", "n0", NOBODY)
    seen: dict[int, JobPart] = {}
    for number, way in enumerate(TRIED if kind == "v2" else TRIED[:5], 1):
        work = place / "w" / str(number)
        work.mkdir(parents=True)
        os.chown(work, NOBODY.uid, NOBODY.gid)
        runner.start(start(
            work, way.text.replace("1000$K", "1000"), job=number, uid=NOBODY.uid, epilog=way.epilog, walltime_s=2,
        ))  # fmt: skip

        def goes_on(number: int = number, way: Way = way, work: Path = work) -> bool:
            if way.end == "cancel" and (work / "ready").exists():
                runner.signal(JobSignal(number, 1, signal.SIGTERM))
            return is_over(runner, number)

        until(goes_on)
        assert alive_of(NOBODY.uid) == [], way.name
        seen[number] = next(part for part in runner.parts() if part.job == number)
        part = seen[number]
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
    assert (place / "jobs/1.1/progress").stat().st_size == 64, "it fills no disk by its progress"
    (place / "w/go").touch()
    assert ended(runner).status == 0
    assert [line for line in (place / "w/out").read_text().splitlines() if "ermission" not in line] == []


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
