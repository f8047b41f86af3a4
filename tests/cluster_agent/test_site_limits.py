"""Partitions, memory and limits of users on logs of processors: the engine against the plain one, and the options."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster_agent.cluster import UW
from cluster_agent.scheduler.job_columns import Jobs
from cluster_agent.scheduler.native.governor import Watts
from cluster_agent.scheduler.native.native_replay import NativeReplay
from cluster_agent.scheduler.native.native_scheduler import NativeScheduler
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.switches.limits import UNCOUNTED, CLimits, Limits
from tests.cluster_agent.power_traces import machine
from tests.cluster_agent.replay_by_command import replayed
from tests.cluster_agent.traces import EVERYTHING_ENDED, PROCESSORS, compositions, looped_starts, traces
from tests.oracle.limited_scheduler import LimitedScheduler

MEMORY_KIB = 100


@st.composite
def limits(draw: st.DrawFn, jobs: Jobs) -> Limits:
    """All jobs are possible: each has the first partition that is wide enough, or a later one."""
    n = len(jobs)
    sizes = draw(st.sampled_from([(PROCESSORS,), (7, 3), (3, 7), (5, 3, 2), (PROCESSORS, 0)]))
    counts_memory = draw(st.booleans())
    has = np.array([[size, MEMORY_KIB if counts_memory else UNCOUNTED] for size in sizes], np.int64)
    part = [draw(st.sampled_from([p for p, size in enumerate(sizes) if size >= width] or [-1])) for width in jobs.width]
    memory = [draw(st.integers(0, MEMORY_KIB)) if counts_memory else 0 for _ in range(n)]
    counts_jobs = np.array(draw(st.lists(st.booleans(), min_size=5, max_size=5)), np.bool_)
    most = np.where(counts_jobs, draw(st.integers(1, 3)), draw(st.integers(1, PROCESSORS)))
    keys = [[(-1, 0, 1)[int(user)] for user in jobs.user], [draw(st.sampled_from([-1, -1, 3, 4])) for _ in range(n)]]
    counter = np.array(keys, np.int32).T[:, : draw(st.integers(0, 2))]
    return Limits(
        ("partitions", "limits", "memory"), has, np.array(part, np.int32), np.array(memory, np.int64),
        most.astype(np.int64), counts_jobs, counter,
    )  # fmt: skip


def possible(jobs: Jobs, found: Limits) -> tuple[Jobs, Limits]:
    width = jobs.width[:, None]
    amount = np.where(found.counts_jobs[found.counter], 1, width)
    keeps = (found.partition >= 0) & ((found.counter < 0) | (amount <= found.most[found.counter])).all(axis=1)
    return jobs.only(keeps), found.only(keeps)


COMPOSITIONS = st.sampled_from(["none", "easy", "list"]).flatmap(
    lambda backfill: compositions(backfill=backfill, ties="instant", guard=None)
)


@settings(max_examples=100, deadline=None)
@given(drawn=traces(), composition=COMPOSITIONS, data=st.data())
def test_the_native_engine_and_the_plain_one_give_the_same_schedule_under_limits(
    drawn: Jobs, composition: Composition, data: st.DataObject
) -> None:
    jobs, found = possible(drawn, data.draw(limits(drawn)))
    expected = looped_starts(LimitedScheduler(composition, jobs, PROCESSORS, found), composition, jobs)
    replay = NativeReplay(composition, jobs, PROCESSORS, limits=CLimits(found))
    replay.run(EVERYTHING_ENDED)
    assert dict(enumerate(replay.start_s.tolist())) == {job: expected.get(job, -1) for job in range(len(jobs))}
    first = np.cumsum(found.has[:, 0]) - found.has[:, 0]
    for job in range(len(jobs)):
        for low, high in replay.processors(job):
            part = found.partition[job]
            assert first[part] <= low <= high < first[part] + found.has[part, 0], "on processors of its partition"
    stepped = NativeScheduler(composition, jobs, PROCESSORS, limits=CLimits(found))
    assert looped_starts(stepped, composition, jobs) == expected


@settings(max_examples=100, deadline=None)
@given(drawn=traces(), composition=COMPOSITIONS, data=st.data())
def test_on_a_machine_with_watts_the_schedule_is_the_same_and_the_watts_are_those_of_its_jobs(
    drawn: Jobs, composition: Composition, data: st.DataObject
) -> None:
    jobs, found = possible(drawn, data.draw(limits(drawn)))
    watts = Watts.of(machine(0.0, has_racks=True), None)
    plain, metered = (
        NativeReplay(composition, jobs, PROCESSORS, **given, limits=CLimits(found)) for given in ({}, {"watts": watts})
    )
    for replay in (plain, metered):
        replay.run(EVERYTHING_ENDED)
    assert plain.start_s.tolist() == metered.start_s.tolist()
    assert [plain.processors(job) for job in range(len(jobs))] == [metered.processors(job) for job in range(len(jobs))]
    runs_s = np.where(metered.start_s < 0, 0, jobs.run_s)
    assert metered.job_j.tolist() == pytest.approx((jobs.width * runs_s * watts.busy_uw[0] / UW).tolist())
    assert metered.level.tolist() == [0] * len(jobs)


@settings(max_examples=100, deadline=None)
@given(drawn=traces(), composition=COMPOSITIONS, data=st.data())
def test_switches_that_count_0_have_changed_nothing(drawn: Jobs, composition: Composition, data: st.DataObject) -> None:
    jobs, found = possible(drawn, data.draw(limits(drawn)))
    c_limits = CLimits(found)
    limited, free = (
        NativeReplay(composition, jobs, PROCESSORS, limits=c_limits),
        NativeReplay(composition, jobs, PROCESSORS),
    )
    for replay in (limited, free):
        replay.run(EVERYTHING_ENDED)
    if not any(c_limits.switches.values()):
        assert limited.start_s.tolist() == free.start_s.tolist()
        assert limited.overtook.tolist() == free.overtook.tolist()


# --- the options

HEADER = "; MaxProcs: 10\n; Queue: 1 batch, 7 processors\n; Queue: 2 short, 3 CPUs\n"


def line(number: int, width: int, user: int = 1, queue: int = 1, kib: int = -1) -> str:
    return f"{number} 0 -1 100 {width} -1 -1 {width} 100 {kib} 1 {user} 1 -1 {queue} {queue} -1 -1\n"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Three jobs of three processors and one of one, by two users, in two queues."""
    path = tmp_path / "site.swf"
    path.write_text(HEADER + line(1, 3) + line(2, 3) + line(3, 3, user=2, kib=1 << 20) + line(4, 1, user=2, queue=2))
    return path


def waits(found: dict[str, Any]) -> tuple[float, float]:
    return found["wait_s"]["mean"], found["wait_s"]["max"]


def test_without_a_switch_nothing_is_counted(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, found, _ = replayed(capsys, log)
    assert (waits(found), found.get("switches")) == ((0, 0), None)


def test_a_user_runs_no_more_than_the_limit_and_others_go_past(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, found, _ = replayed(capsys, log, "--limit", "user:jobs=1")
    assert (waits(found), found["switches"]) == ((50, 100), {"limits": 2})
    _, found, _ = replayed(capsys, log, "--limit", "user:jobs=1", "--limit", "user=2:jobs=5")
    assert (waits(found), found["switches"]) == ((25, 100), {"limits": 1}), "the rule of one user stands in its place"
    _, found, _ = replayed(capsys, log, "--limit", "queue=1:processors=6")
    assert (waits(found), found["switches"]) == ((25, 100), {"limits": 1})
    _, found, _ = replayed(capsys, log, "--limit", "user:jobs=9,processors=9")
    assert (waits(found), found["switches"]) == ((0, 0), {"limits": 0}), "it changes nothing"


def test_a_job_runs_in_its_own_queue_of_the_size_that_the_header_states(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    _, found, _ = replayed(capsys, log, "--partitions", "queue:log", "--out", out)
    assert (waits(found), found["switches"]) == ((25, 100), {"partitions": 2}), "the third waits, the fourth overtakes"
    rows = [row.split(",") for row in (out / "jobs.csv").read_text().splitlines()[1:]]
    assert {row[0]: row[14] for row in rows} == {"1": "0-2", "2": "3-5", "3": "0-2", "4": "7"}
    assert json.loads((out / "manifest.json").read_text())["partitions"] == "queue:log"


def test_memory_is_a_second_resource(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, found, _ = replayed(capsys, log, "--memory", "0.3")
    assert (found["ended"], found["switches"]) == (4, {"memory": 0})
    status, found, err = replayed(capsys, log, "--memory", "0.2")
    assert (status, found["ended"]) == (0, 3)
    assert "jobs with more memory than their partition has: 1 dropped (first: line 6)" in err


def test_limits_go_with_watts_and_with_nodes(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, with_watts, _ = replayed(capsys, log, "--limit", "user:jobs=1", "--machine", "curie:nodes=1")
    assert (waits(with_watts), with_watts["switches"]) == ((50, 100), {"limits": 2})
    assert with_watts["energy_j"] > 0
    table = tmp_path / "history.txt"
    table.write_text(
        "JobID|User|Submit|Start|End|Timelimit|NNodes|NCPUS\n"
        "1|ada|2026-03-01T10:00:00|2026-03-01T10:00:00|2026-03-01T10:10:00|01:00:00|1|12\n"
        "2|ada|2026-03-01T10:00:00|2026-03-01T10:00:00|2026-03-01T10:10:00|01:00:00|1|12\n"
    )
    _, found, _ = replayed(capsys, table, "--machine", "eurora", "--limit", "user=ada:jobs=1")
    assert (found["wait_s"]["max"], found["switches"]) == (600, {"limits": 1})
    for key, problem in (("user=eve", "has no job of user eve"), ("group", "does not say the group of its jobs")):
        status, _, err = replayed(capsys, table, "--machine", "eurora", "--limit", f"{key}:jobs=1")
        assert status == 2 and f"history.txt {problem}" in err and len(err.splitlines()) == 1


SAMPLE = Path(__file__).parents[2] / "cluster_agent" / "samples" / "generated-500.swf"


def starts(folder: Path, from_s: int) -> dict[str, str]:
    rows = [row.split(",") for row in (folder / "jobs.csv").read_text().splitlines()[1:]]
    return {row[0]: row[8] for row in rows if int(row[10]) >= from_s}


@pytest.mark.parametrize(
    "switches",
    [
        ["--limit", "user:jobs=2", "--memory", "1.5"],
        ["--failures", "mtbf=40,repair=4,processors=16", "--seed", "3"],
        ["--partitions", "queue:0=1,1=255", "--machine", "generic:nodes=16,cores=16"],
    ],
)
def test_a_state_of_a_site_goes_on_with_its_switches(
    switches: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same policy goes on as if it was never cut. Another one begins with the state's jobs, and keeps to them."""
    at_s, state = 60_000, tmp_path / "state.json"
    given = [SAMPLE, *switches]
    status, whole, _ = replayed(capsys, *given, "--out", tmp_path / "whole", "--state-at", at_s, "--state-out", state)
    assert status == 0 and any(whole["switches"].values())
    assert replayed(capsys, *given, "--state", state, "--out", tmp_path / "rest")[0] == 0
    assert starts(tmp_path / "rest", at_s) == starts(tmp_path / "whole", at_s)
    status, other, _ = replayed(capsys, *given, "--state", state, "--policy", "fcfs", "--out", tmp_path / "other")
    assert status == 0 and other["switches"].keys() == whole["switches"].keys()
    assert len(starts(tmp_path / "other", at_s)) == len(starts(tmp_path / "whole", at_s))


def test_a_warm_start_on_nodes_and_one_that_would_lose_jobs_are_refused(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state.json"
    replayed(capsys, log, "--state-at", 50, "--state-out", state)
    given = log, "--state", state, "--policy", "fcfs"
    status, _, err = replayed(capsys, *given, "--limit", "queue=1:processors=2")
    assert status == 1 and "3 jobs could never run, which a warm start cannot leave out" in err
    table = tmp_path / "history.txt"
    table.write_text(
        "JobID|User|Submit|Start|End|Timelimit|NNodes|NCPUS\n"
        "1|ada|2026-03-01T10:00:00|2026-03-01T10:00:00|2026-03-01T10:10:00|01:00:00|1|12\n"
    )
    status, _, err = replayed(capsys, table, "--machine", "eurora", "--state", state, "--limit", "user:jobs=1")
    assert status == 2 and "on nodes not with --limit" in err and len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--limit", "user"], "--limit user: give user:processors=NUMBER, queue=NAME:jobs=NUMBER or the like"),
        (["--limit", "user:jobs=0"], "--limit user:jobs=0: 'jobs=0' is neither processors=NUMBER nor jobs=NUMBER"),
        (
            ["--limit", "user:jobs=1", "--limit", "user:jobs=2"],
            "--limit user:jobs=2: another limit is of the same jobs",
        ),
        (["--limit", "user=7:jobs=1"], "site.swf has no job of user 7; correct it, or leave that limit out"),
        (["--limit", "user=1:jobs=1 group=2:jobs=1"], "site.swf has no job of group 2; correct it"),
        (["--limit", "user:jobs=1", "--policy", "conservative"], "backfill=conservative does not go with limits"),
        (["--limit", "user:jobs=1", "--policy", "easy-power", "--machine", "curie"], "does not go with limits"),
        (["--partitions", "log"], "site.swf: no line of its header says how many processors a partition has"),
        (["--partitions", "1"], "--partitions 1: '1' is not NUMBER=PROCESSORS; or give `log`, for its header"),
        (["--partitions", "1=7,2=4"], "--partitions 1=7,2=4: 11 processors in all, and the machine has 10"),
        (["--partitions", "group:1=7"], "--partitions group:1=7: 'group' is neither partition nor queue"),
        (["--memory", "-1"], "--memory -1: give GiB of a processor, above 0, or `machine`"),
        (["--memory", "machine"], "--memory machine: give a --machine whose file has memory_gb"),
        (["--memory", "1", "--machine", "curie", "--policy", "easy-power"], "does not go with memory"),
        (["--partitions", "1=2,2=8", "--strict"], "site.swf:4: jobs wider than their partition (first of 3)"),
    ],
)
def test_what_cannot_be_is_one_line(
    arguments: list[str], problem: str, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, err = replayed(capsys, log, *arguments)
    assert status == 2 or "--strict" in arguments
    assert problem in err
    assert len(err.splitlines()) == 1
