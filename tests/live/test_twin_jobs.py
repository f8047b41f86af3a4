"""Jobs on an emulated node: work in seconds at the highest clock, done when the node's clocks have let it."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from foundation.wire.job_messages import JobForget, JobPart, JobSignal, JobStart
from lab.emulated.emulated_jobs import TwinJobs
from lab.emulated.watts import node_watts
from pmu.readings import RAW_MISSING
from tests.waiting import PATIENCE_S
from twin.machine import load_machine
from twin.physics.model import Twin
from twin.programs.workload import load_workload

CURIE = load_machine("curie")
TICK_S = 0.1


def start(at: Path, *command: str, job: int = 1, **given: Any) -> JobStart:
    values: dict[str, Any] = {
        "job": job, "attempt": 1, "uid": os.geteuid(), "command": list(command), "script": "", "workdir": str(at),
        "output": "out", "error": "", "env": {}, "walltime_s": 600, "grace_s": 30, "prolog": "", "epilog": "",
        "rank": 0, "nodes": ["n0"], "tag": "memory",
    }  # fmt: skip
    return JobStart(**values | given)


class Node:
    """A twin and its jobs, in virtual time."""

    def __init__(self, max_khz: int | None = None, package_w: float | None = None) -> None:
        self.twin = Twin(CURIE)
        self.jobs = TwinJobs(self.twin, "n0", unix_s=lambda: 1000.0 + self.twin.age_ns / 1e9)
        for domain in range(len(CURIE.domains)):
            self.twin.set_domain(domain, max_khz=max_khz, governor="performance")
        for number, zone in enumerate(CURIE.zones):
            if zone.kind == "package" and package_w:
                self.twin.set_zone_limit(number, 0, round(package_w * 1e6), 100_000, True)

    def run(self, seconds: float) -> bool:
        """At most so long, until nothing runs any more; whether that is so."""
        for _ in range(round(seconds / TICK_S)):
            self.twin.advance(TICK_S)
            if self.is_idle:
                return True
        return False

    @property
    def is_idle(self) -> bool:
        return all(part.phase != "running" for part in self.jobs.parts())

    @property
    def part(self) -> JobPart:
        (part,) = self.jobs.parts()
        return part


def took_s(node: Node, at: Path, name: str, seconds: float) -> float:
    node.jobs.start(start(at, "twin-workload", name, f"{seconds:g}s"))
    assert node.run(10 * seconds)
    assert (node.part.phase, node.part.status, node.part.cause) == ("ended", 0, "")
    return node.part.ended_s - node.part.started_s


@pytest.mark.parametrize("name", ["hpl", "nas", "stream"])
def test_a_job_ends_when_its_work_is_done_and_at_a_lower_clock_as_much_later_as_the_model_says(
    tmp_path: Path, name: str
) -> None:
    (group,) = load_workload(name, CURIE).truth.groups
    free, slow = Node(), Node(max_khz=1_200_000)
    assert took_s(free, tmp_path, name, 20) == pytest.approx(20, rel=0.002)
    assert free.part.slowdown == pytest.approx(0, abs=0.002)
    expected = 1 / group.phases[0].speed[0]
    assert expected > 1.2
    assert took_s(slow, tmp_path, name, 20) == pytest.approx(20 * expected, rel=0.002)
    assert slow.part.slowdown == pytest.approx(expected - 1, abs=0.002)
    assert "EMULATED" in (tmp_path / "out").read_text()


def test_a_cap_in_watts_costs_a_compute_job_more_time_than_one_that_waits_for_memory(tmp_path: Path) -> None:
    compute = took_s(Node(package_w=75.0), tmp_path, "hpl", 20)
    memory = took_s(Node(package_w=75.0), tmp_path, "stream", 20)
    assert 20.2 < memory < compute - 2


def test_after_a_job_the_node_is_idle_and_draws_what_an_idle_one_does(tmp_path: Path) -> None:
    node, never = Node(), Node()
    took_s(node, tmp_path, "hpl", 5)
    node.twin.advance(60)
    drawn_j = [each.twin.node_j for each in (node, never)]
    node.twin.advance(10)
    never.twin.advance(10)
    busy_w, idle_w = ((each.twin.node_j - before) / 10 for each, before in zip((node, never), drawn_j, strict=True))
    assert node.is_idle
    assert busy_w == pytest.approx(idle_w, rel=0.02)
    assert node.jobs.work()["memory"].done_s == pytest.approx(5, rel=0.002)


def test_a_walltime_ends_it_and_so_does_being_cancelled(tmp_path: Path) -> None:
    late = Node()
    late.jobs.start(start(tmp_path, "twin-workload", "hpl", "20s", walltime_s=3))
    late.run(5)
    assert (late.part.phase, late.part.status, late.part.cause) == ("ended", -signal.SIGTERM, "walltime")
    assert late.part.ended_s - late.part.started_s == pytest.approx(3, abs=TICK_S)
    told = Node()
    told.jobs.start(start(tmp_path, "twin-workload", "hpl", "20s"))
    told.run(2)
    told.jobs.signal(JobSignal(1, 1, signal.SIGCONT))
    assert told.part.phase == "running"
    told.jobs.signal(JobSignal(1, 1, signal.SIGKILL))
    assert (told.part.phase, told.part.status, told.part.cause) == ("ended", -signal.SIGKILL, "told")
    assert told.jobs.work()["memory"].done_s == pytest.approx(2, abs=TICK_S)


def test_an_output_that_is_a_fifo_holds_up_no_emulated_node(tmp_path: Path) -> None:
    node = Node()
    os.mkfifo(tmp_path / "out")
    node.jobs.start(start(tmp_path, "twin-workload", "hpl", "2s"))
    running = threading.Thread(target=node.run, args=(5,), daemon=True)
    running.start()
    running.join(PATIENCE_S)
    assert not running.is_alive(), "it waits for a reader"
    assert (node.part.phase, node.part.status) == ("ended", 0)
    assert "is a FIFO" in node.part.detail


def test_a_start_that_comes_again_starts_nothing(tmp_path: Path) -> None:
    node = Node()
    took_s(node, tmp_path, "nas", 2)
    node.jobs.start(start(tmp_path, "twin-workload", "nas", "2s"))
    node.twin.advance(3)
    assert node.is_idle
    assert node.jobs.work()["memory"].done_s == pytest.approx(2, rel=0.01)
    node.jobs.forget(JobForget(1, 1))
    node.jobs.start(start(tmp_path, "twin-workload", "nas", "2s"))
    assert (node.jobs.parts(), node.is_idle) == ([], True)


@pytest.mark.parametrize(
    ("command", "given", "why"),
    [
        (("twin-workload", "strem", "30s"), {}, 'unknown workload "strem" (nearest: stream)'),
        (("twin-workload", "stream", "soon"), {}, "not a time above 0"),
        (("twin-workload", "easywave", "30s"), {}, "needs a GPU"),
        (("/bin/true",), {}, "runs only `twin-workload NAME TIME [UNIT]`"),
        (("twin-workload", "stream", "30s"), {"script": "#!/bin/sh"}, "runs only"),
        (("twin-workload", "stream", "30s"), {"uid": os.geteuid() + 1}, f"jobs of user {os.geteuid()} only"),
    ],
)
def test_what_cannot_run_is_refused_in_one_line(
    tmp_path: Path, command: tuple[str, ...], given: dict[str, Any], why: str
) -> None:
    node = Node()
    node.jobs.start(start(tmp_path, *command, **given))
    assert (node.part.phase, node.is_idle) == ("refused", True)
    assert why in node.part.detail
    assert node.part.detail.startswith("n0: ") and "\n" not in node.part.detail


def test_a_second_job_is_refused_while_the_first_has_the_node(tmp_path: Path) -> None:
    node = Node()
    node.jobs.start(start(tmp_path, "twin-workload", "nas", "20s"))
    node.jobs.start(start(tmp_path, "twin-workload", "nas", "20s", job=2))
    assert [(part.job, part.phase) for part in node.jobs.parts()] == [(1, "running"), (2, "refused")]


def test_what_an_emulated_node_says_of_itself_is_what_its_hungriest_and_most_frugal_runs_draw() -> None:
    watts = node_watts(CURIE)
    drawn = {}
    for khz in (CURIE.min_khz, CURIE.max_khz):
        twin = Twin(CURIE, load_workload("hpl", CURIE, duration_s=1000))
        for domain in range(len(CURIE.domains)):
            twin.set_domain(domain, max_khz=khz, governor="performance")
        twin.advance(100)
        before = twin.node_j
        twin.advance(10)
        drawn[khz] = (twin.node_j - before) / 10
    # what DRAM may draw beyond what it draws for Linpack is set aside as a constant
    assert drawn[CURIE.max_khz] < watts.tdp_w < drawn[CURIE.max_khz] + 30
    assert drawn[CURIE.min_khz] < watts.mop_w < drawn[CURIE.min_khz] + 40
    assert watts.rest_w < watts.mop_w < watts.safe_w < watts.tdp_w


def test_a_job_reports_its_progress_if_it_is_submitted_so_and_the_next_one_begins_again(tmp_path: Path) -> None:
    node = Node()
    node.jobs.start(start(tmp_path, "twin-workload", "nas", "10s", "50ms"))
    first = node.jobs.counter(1, 1)
    assert first is not None and first.read() == 0
    node.run(5)
    assert 5 / 0.1 * 0.8 < first.read() < 5 / 0.025 * 1.2
    assert node.jobs.counter(2, 1) is None
    node.run(20)
    node.jobs.start(start(tmp_path, "twin-workload", "nas", "10s", job=2))
    silent = node.jobs.counter(2, 1)
    assert silent is not None and silent.read() == RAW_MISSING == first.read()
