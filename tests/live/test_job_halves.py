"""Two jobs on the halves of one node's cores, as real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from foundation.wire.job_messages import JobPart, JobSignal, JobStart, NodeJobs
from nodectl.jobs import job_half
from nodectl.jobs.cgroups import mounts
from nodectl.jobs.job_half import Half
from nodectl.jobs.job_runner import JobThread
from nodectl.jobs.processes import JobRunner
from pmu.core_halves import core_halves
from pmu.cpulist import format_list
from tests.live.test_job_runner import ended, is_over, start, until
from tests.nodectl.test_agent import node
from tests.nodectl.test_cluster_cap import CappedNode, Wire
from twin.in_process_node import InProcess
from twin.machine import load_machine
from twin.physics.model import Twin

HALVES = (frozenset({0}), frozenset({1}))
ALLOWED = "$(sed -n 's/Cpus_allowed_list:.//p' /proc/self/status)"
LEAVE = "python3 -c 'import os, time; os.sched_setaffinity(0, range(2)); time.sleep(1.5)'"

pytestmark = pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="two CPUs are needed")


@pytest.fixture(params=["cpuset", "affinity"])
def how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """By what the halves are kept."""
    if request.param == "affinity":
        monkeypatch.setattr(job_half, "mounts", lambda of: [])
    elif not any(os.access(at / "cgroup.procs", os.W_OK) for at, version in mounts("cpuset") if version == 1):
        pytest.skip("no hierarchy of cpusets that this user may write")
    return str(request.param)


@pytest.fixture
def runner(tmp_path: Path, how: str) -> Iterator[JobRunner]:
    said: list[str] = []
    made = JobRunner(tmp_path / "jobs", "n0", log=said.append, halves=HALVES)
    made.said = said  # type: ignore[attr-defined]
    assert made.halves == how
    yield made
    while running := [part for part in made.parts() if not part.is_over]:
        for part in running:  # one whose job step has not begun hears it the next time
            made.signal(JobSignal(part.job, part.attempt, signal.SIGKILL))


def halved(at: Path, text: str, job: int, half: int, **given: Any) -> Any:
    return start(at, text, job, output=f"out{job}", half=half, **given)


def test_each_of_two_jobs_has_the_cores_of_its_half_and_no_other(tmp_path: Path, runner: JobRunner) -> None:
    for job, half in ((1, 0), (2, 1)):
        runner.start(halved(tmp_path, f"echo {ALLOWED}; while [ ! -e go ]; do sleep 0.05; done", job, half))
    until(lambda: all((tmp_path / f"out{job}").exists() and (tmp_path / f"out{job}").read_text() for job in (1, 2)))
    assert [(tmp_path / f"out{job}").read_text() for job in (1, 2)] == ["0\n", "1\n"]
    (tmp_path / "go").touch()
    until(lambda: is_over(runner, 1) and is_over(runner, 2))
    assert [part.status for part in runner.parts()] == [0, 0]


class JobWire(Wire):
    """The same link, on which jobs are started."""

    wants_jobs, job_queries = True, 0

    def __init__(self, *starts: JobStart) -> None:
        super().__init__()
        self.starts, self.news = list(starts), NodeJobs("n0", "", [])

    def job_messages(self) -> list[JobStart]:
        starts, self.starts = self.starts, []
        return starts

    def send_jobs(self, news: NodeJobs) -> None:
        self.news = news

    def running(self) -> list[int]:
        return [part.job for part in self.news.parts if part.phase == "running" and part.started_s]


def test_an_agent_that_is_killed_leaves_two_jobs_running_and_the_next_one_caps_them_and_puts_all_back(
    tmp_path: Path, runner: JobRunner
) -> None:
    """The node is EMULATED, its jobs are processes. A kill is what the kernel leaves of one: the lock is free."""
    text = f"while [ ! -e go ]; do sleep 0.05; done; echo {ALLOWED}"
    threads = [JobThread(runner, "n0", "boot")]
    with node("skylake-6146", "hpl") as inside:
        wire = JobWire(*(halved(tmp_path, text, job, half) for job, half in ((1, 0), (2, 1))))
        killed = CappedNode(inside, tmp_path, wire=wire, jobs=threads[0])

        def ticked(made: Any, is_so: Callable[[], bool]) -> None:
            def ticks_once() -> bool:
                made.ticks(1)
                time.sleep(0.02)  # twin and jobs have different clocks
                return is_so()

            until(ticks_once)

        ticked(killed, lambda: wire.running() == [1, 2])
        wire.grant(300.0, 1)
        killed.ticks(2)
        assert killed.limit_uw() == 120_000_000, "two packages, half of what 60 W of rest leave"
        killed.die()
        threads[0].close()
        assert killed.restore().is_complete and killed.limit_uw() == 80_000_000  # type: ignore[no-untyped-call]

        threads.append(JobThread(JobRunner(tmp_path / "jobs", "n0", halves=HALVES), "n0", "boot"))
        wire = JobWire()
        again = CappedNode(inside, tmp_path, wire=wire, jobs=threads[1])
        ticked(again, lambda: wire.running() == [1, 2])
        assert again.limit_uw() == 80_000_000, "the lease of the one before is over"
        assert again.cap.halves() == {"1.1": HALVES[0], "2.1": HALVES[1]}
        wire.grant(300.0, 2)
        again.ticks(2)
        assert again.limit_uw() == 120_000_000
        (tmp_path / "go").touch()
        ticked(again, lambda: all(part.phase == "ended" for part in wire.news.parts))
        assert [(part.job, part.status) for part in wire.news.parts] == [(1, 0), (2, 0)]
        assert [(tmp_path / f"out{job}").read_text() for job in (1, 2)] == ["0\n", "1\n"]
        wire.on_wait = lambda: wire.grant(520.0, 3, is_leave=True)
        again.agent.stop()
        assert again.limit_uw() == killed.free_uw
        threads[1].close()


def test_a_half_is_had_by_one_job_at_a_time_and_whole_nodes_by_nobody_meanwhile(
    tmp_path: Path, runner: JobRunner
) -> None:
    runner.start(halved(tmp_path, "sleep 1000", 1, 0))
    runner.start(halved(tmp_path, "touch ran", 2, 0))
    runner.start(start(tmp_path, "touch ran", 3))
    refused = {part.job: part.detail for part in runner.parts() if part.phase == "refused"}
    assert refused == {2: "n0: job 1 has this half of its cores", 3: "n0: job 1 has this half of its cores"}
    assert not (tmp_path / "ran").exists()


def test_a_job_cannot_leave_a_cpuset_and_one_without_is_put_back_with_one_alarm(
    tmp_path: Path, runner: JobRunner, how: str
) -> None:
    runner.start(halved(tmp_path, f"{LEAVE} & {LEAVE} & wait; echo {ALLOWED}", 1, 0))
    part = ended(runner)
    said = runner.said  # type: ignore[attr-defined]
    if how == "cpuset":
        assert (part.detail, said) == ("", [])
        return
    assert part.detail.startswith("left its half of n0: process ")
    assert part.detail.endswith(" took CPUs 0-1 and was put back on 0")
    assert said == [f"ALARM: job 1 {part.detail}"]
    again = JobRunner(tmp_path / "jobs", "n0", halves=HALVES)
    assert again.parts() == [part], "the next agent knows it, too"


def test_a_process_that_has_the_number_of_one_of_the_job_by_now_is_left_where_it_is() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as other:  # it ends with this test
        os.sched_setaffinity(other.pid, {0, 1})
        listed = iter([[other.pid], []])
        assert Half(frozenset({0})).put_back(lambda: next(listed)) == ""
        assert os.sched_getaffinity(other.pid) == {0, 1}
        assert "and was put back on 0" in Half(frozenset({0})).put_back(lambda: [other.pid])
        assert os.sched_getaffinity(other.pid) == {0}


def test_a_half_counts_for_joules_from_the_start_of_its_job_on(tmp_path: Path, runner: JobRunner) -> None:
    parts = [JobPart(1, 1, "running"), JobPart(2, 1, "running", started_s=5.0), JobPart(3, 1, "ended", started_s=5.0)]
    runner.parts, runner.half_of = lambda: parts, lambda job, attempt: HALVES[0]  # type: ignore[method-assign]
    thread = JobThread(runner, "n0", "boot")
    try:
        assert thread.halves() == {"2.1": HALVES[0]}, "the first one's process has not begun, the last one's is over"
    finally:
        thread.close()
        del runner.parts


def test_a_node_without_two_cores_refuses_a_half(tmp_path: Path) -> None:
    runner = JobRunner(tmp_path / "jobs", "n0")
    runner.start(halved(tmp_path, "touch ran", 1, 0))
    (part,) = runner.parts()
    assert (part.phase, part.detail) == ("refused", "n0 cannot keep two jobs apart: it has fewer than two cores")


@pytest.mark.parametrize(
    ("machine", "first"),
    [("curie", "0-3,8-11"), ("rome", ",".join(f"{at}-{at + 1}" for at in range(0, 128, 4)))],
)
def test_a_half_has_half_the_cores_of_every_die_with_all_their_threads(machine: str, first: str) -> None:
    with InProcess(Twin(load_machine(machine))) as inside:
        found = core_halves(inside.ports.files)
    assert found is not None
    assert format_list(found[0]) == first
    assert not found[0] & found[1]


def test_cpus_that_this_process_may_not_use_are_in_no_half() -> None:
    with InProcess(Twin(load_machine("curie"))) as inside:
        found = core_halves(inside.ports.files, range(4))
        assert found == (frozenset({0, 1}), frozenset({2, 3}))
        assert core_halves(inside.ports.files, [0]) is None
