"""The engine's machine on a Slurm, here a plain one in virtual time that starts and ends jobs late: clocks, nodes off,
and that a replay with the same delays is next to it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cluster_agent.cap_steps import Cap
from cluster_agent.scheduler.power_cap import PowerCap
from lab.riplay import slurm_machine
from lab.riplay.log_part import Delays, Hours, LogPart
from lab.riplay.ran_jobs import Part, Ran
from tests.slurm.test_riplay_hours import FROM_S, HOURS, NODES, quiet, small_log

SPEED, TURN_S, LATE_S = 10.0, 0.5, 0.7
CAP = Cap(FROM_S + 1200, FROM_S + 2400, 0.6 * NODES * 358)
NAMES = [f"n{number:02d}" for number in range(1, NODES + 1)]


@dataclass
class Job:
    """Of the plain Slurm: its nodes, when it begins and ends (real seconds)."""

    number: int
    key: str
    nodes: tuple[str, ...] = ()
    begins_s: float = float("inf")
    ends_s: float = float("inf")
    is_over: bool = False


@dataclass
class PlainSlurm:
    """A site, its queue, and its nodes, which note what is done to them."""

    at: Path
    now_s: float = 1000.0
    jobs: list[Job] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    clocks: dict[str, int] = field(default_factory=dict)
    off: set[str] = field(default_factory=set)
    most_off: int = 0

    def programs(self, *names: str) -> str:
        return ""

    def shell(self, script: str) -> str:
        for line in script.splitlines():
            job = Job(int(line.split()[-1]), str(len(self.jobs) + 1))
            self.jobs.append(job)
            if found := re.search(r" -w (\S+)", line):
                job.nodes, job.begins_s = tuple(found[1].split(",")), self.now_s
        return "\n".join(job.key for job in self.jobs[-script.count("sbatch") :])

    def until(self, is_true: Callable[[], object]) -> None:
        assert is_true()

    def read(self) -> tuple[list[Any], dict[str, str]]:
        if (self.at / "origin").exists():
            for job in self.jobs:
                self._live(job)
        there = [job for job in self.jobs if job.ends_s > self.now_s]
        rows = [SimpleNamespace(key=job.key, nodes=job.nodes, has_nodes=job.begins_s <= self.now_s,
                                state="R" if job.begins_s <= self.now_s else "PD") for job in there]  # fmt: skip
        return rows, {}

    def _live(self, job: Job) -> None:
        """Its file says when it began, and ended."""
        began, ended = job.begins_s <= self.now_s, job.ends_s <= self.now_s
        if began and job.ends_s == float("inf"):
            job.begins_s = max(job.begins_s, float((self.at / "origin").read_text()))
            job.ends_s = job.begins_s + float((self.at / "jobs" / str(job.number)).read_text())
            ended = job.ends_s <= self.now_s
            (self.at / "ran" / str(job.number)).write_text(f"{job.begins_s}")
        if ended and not job.is_over:
            job.is_over = True
            (self.at / "ran" / str(job.number)).write_text(f"{job.begins_s} {job.ends_s}")

    def update(self, commands: Sequence[str]) -> list[str]:
        for command in commands:
            words = dict(word.split("=", 1) for word in command.split()[1:] if "=" in word)
            self.done.append(command)
            if "jobid" in words:
                job = self.jobs[int(words["jobid"]) - 1]
                job.nodes, job.begins_s = tuple(words["nodelist"].split(",")), self.now_s + LATE_S
        return []

    def set_clock(self, names: Sequence[str], mhz: int) -> None:
        self.clocks |= dict.fromkeys(names, mhz)

    def set_off(self, names: Sequence[str], is_off: bool) -> None:
        self.off = self.off | set(names) if is_off else self.off - set(names)
        self.most_off = max(self.most_off, len(self.off))

    def begin_meter(self) -> None:
        pass

    def check(self) -> None:
        pass


def riplayed(policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[PlainSlurm, LogPart, Part, Any]:
    """All hours under a policy."""
    log, cap = small_log(tmp_path / "small.swf"), PowerCap.of([CAP]) if "powercap" in policy else None
    whole = LogPart(Hours(log, FROM_S, HOURS, NODES, policy, cap), quiet)
    scheduler, part = whole.new()
    slurm: Any = PlainSlurm(tmp_path)
    monkeypatch.setattr(slurm_machine, "time", SimpleNamespace(time=lambda: slurm.now_s))
    machine = slurm_machine.SlurmMachine(slurm, slurm, NAMES, part, SPEED, scheduler)
    machine._table = slurm
    machine.prepare()
    machine.begin()
    while machine.now() < part.to_s:
        busy = [name for job in slurm.jobs if job.begins_s <= slurm.now_s < job.ends_s for name in job.nodes]
        assert len(set(busy)) == len(busy) and not slurm.off & set(busy)
        machine.turn()
        slurm.now_s += TURN_S
    machine.finish()
    return slurm, whole, part, machine.ran


@pytest.mark.parametrize("policy", ["easy", "conservative", "powercap:mode=dvfs", "powercap:mode=shut"])
def test_a_riplay_is_next_to_a_replay_that_is_as_late(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, whole, part, ran = riplayed(policy, tmp_path, monkeypatch)
    late = [one.seen_s - one.end_s for one in ran.values() if one.end_s]
    started = [one.start_s - one.decided_s for job, one in ran.items() if one.end_s and job not in part.left_s]
    assert len(started) > 20 and started == pytest.approx([SPEED * LATE_S] * len(started))
    found, near = part.measures(ran), part.measures(whole.replayed(Delays(SPEED * LATE_S, sum(late) / len(late))))
    assert found["mean_wait_s"] == pytest.approx(near["mean_wait_s"], rel=0.05)
    assert found["energy_j"] == pytest.approx(near["energy_j"], rel=0.03)


def test_a_lower_clock_makes_jobs_longer_and_is_that_of_their_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm, _, part, ran = riplayed("powercap:mode=dvfs", tmp_path, monkeypatch)
    slow: list[tuple[int, Ran]] = [(job, one) for job, one in ran.items() if one.level and one.end_s]
    assert slow
    for job, one in slow:
        assert one.end_s is not None and one.start_s is not None
        assert one.end_s - one.start_s == pytest.approx(part.jobs.run_s[job] * part.slowdown[one.level], abs=0.1)
    last = max(ran.values(), key=lambda one: one.decided_s or 0.0)
    assert {slurm.clocks[name] for name in last.nodes} == {part.machine.node.frequency_mhz[last.level]}


def test_nodes_are_drained_for_the_window_and_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm, whole, _, _ = riplayed("powercap:mode=shut", tmp_path, monkeypatch)
    (off,) = whole.offs
    switched = [command for command in slurm.done if command.startswith("update nodename=")]
    assert slurm.most_off == off.nodes and not slurm.off
    drained = [name for line in switched if "state=drain" in line for name in line.split()[1][9:].split(",")]
    resumed = [name for line in switched if "state=resume" in line for name in line.split()[1][9:].split(",")]
    assert sorted(drained) == sorted(resumed) and len(drained) >= off.nodes


def test_a_job_that_did_not_run_to_its_end_ends_the_riplay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = PlainSlurm.read

    def refused(self: PlainSlurm) -> Any:
        rows, nodes = read(self)
        for file in (self.at / "ran").iterdir():
            file.write_text("1 2 the node has a workload already")
        return rows, nodes

    monkeypatch.setattr(PlainSlurm, "read", refused)
    with pytest.raises(Exception, match=r"did not run to its end: .*'has', 'a', 'workload'"):
        riplayed("easy", tmp_path, monkeypatch)
