"""Submissions that answer to the schedule."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from cluster_agent.cap_steps import Cap
from cluster_agent.cli import main
from cluster_agent.cluster import Machine
from cluster_agent.errors import WrongUseError
from cluster_agent.replay.closed_loop import closed_loop
from cluster_agent.scheduler.job_columns import Int64s, Jobs
from cluster_agent.scheduler.native.governor import Watts
from cluster_agent.scheduler.native.native_replay import NativeReplay
from cluster_agent.scheduler.policies import registry
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.workloads.job_log import Workload
from cluster_agent.workloads.swf import NUMBER, PRECEDING, THINK, USER, Log
from tests.cluster_agent.power_traces import cap_lists, machines
from tests.cluster_agent.power_traces import compositions as power_compositions
from tests.cluster_agent.traces import EVERYTHING_ENDED, PROCESSORS, compositions, jobs_of, traces
from tests.cluster_agent.worlds import replay as run_replay

SAMPLE = Path(__file__).parents[2] / "cluster_agent" / "samples" / "generated-500.swf"
loops = st.sampled_from(["think=log", "think=7", "queue=1", "queue=4"])


def preceding_of(jobs: Jobs) -> tuple[Int64s, Int64s]:
    """Columns of a log: jobs before and after, some that are not there, themselves, and none; -1 to 3 s later."""
    named = jobs.number * 3 % (len(jobs) + 3)
    return np.where(jobs.run_s % 3 > 0, named, -1), jobs.request_s % 5 - 1


def workload_of(jobs: Jobs) -> Workload:
    columns = np.full((18, len(jobs)), -1, np.int64)
    columns[USER] = jobs.user
    columns[NUMBER] = jobs.number
    columns[PRECEDING], columns[THINK] = preceding_of(jobs)
    log = Log("rows", "", {}, columns, np.arange(len(jobs)), ())
    return Workload(log, PROCESSORS, jobs, np.arange(len(jobs)), True, np.zeros(len(jobs), np.bool_), ())


def submitted(jobs: Jobs, text: str, composition: Composition, seed: int = 0) -> Jobs:
    return run_replay(workload_of(jobs), composition, loop=closed_loop(text, seed)).world.jobs


def starts(jobs: Jobs, composition: Composition) -> list[int]:
    replay = NativeReplay(composition, jobs, PROCESSORS)
    replay.run(EVERYTHING_ENDED)
    return replay.start_s.tolist()


FCFS = Composition()


def test_a_user_thinks_after_the_last_end_as_long_as_in_the_log() -> None:
    """User 0 submits the second job 5 s after the first has ended; user 1 keeps the machine from him until 50."""
    jobs = jobs_of([(0, 50, 50, 10, 1), (1, 10, 10, 1, 0), (16, 10, 10, 1, 0)])
    found = submitted(jobs, "think=log", FCFS)
    assert found.submit_s.tolist() == [0, 1, 65]
    assert starts(found, FCFS) == [0, 50, 65]


def test_jobs_that_did_not_wait_for_one_another_come_with_the_same_gap() -> None:
    jobs = jobs_of([(0, 50, 50, 10, 1), (1, 10, 10, 1, 0), (4, 10, 10, 1, 0), (20, 10, 10, 1, 0)])
    assert submitted(jobs, "think=log", FCFS).submit_s.tolist() == [0, 1, 4, 66]  # 6 s after 14, here after 60


def test_a_regulated_queue_is_filled_a_second_after_a_job_has_left_it() -> None:
    jobs = jobs_of([(100 * at, 10, 10, 10, 0) for at in range(4)])
    found = submitted(jobs, "queue=2", FCFS)
    assert found.submit_s.tolist() == [0, 0, 1, 11]
    assert starts(found, FCFS) == [0, 10, 20, 30]


def came_as_promised(
    jobs: Jobs, text: str, found: Jobs, row: Int64s, schedule: NativeReplay, waited_s: int | Int64s = 0
) -> None:
    """Every job is there once, and came when the rule says, by what happened to those before it. ``row``: the places in
    ``jobs`` of those in ``found``; ``waited_s``: in the log."""
    start_s, end_s = schedule.start_s, schedule.end_s
    assert sorted(found.number.tolist()) == sorted(jobs.number.tolist())
    assert found.number.tolist() == jobs.number[row].tolist()
    assert (np.diff(found.submit_s) >= 0).all()
    if text.startswith("queue="):
        assert found.number.tolist() == jobs.number.tolist()
        if schedule.watts is None:  # else killed jobs wait again, and others leave the queue before they begin
            came_s = set(found.submit_s[: schedule.submitted].tolist())
            assert came_s <= {*jobs.submit_s[:1].tolist(), *(start_s + 1).tolist()}
            for now_s in found.submit_s:
                assert ((found.submit_s <= now_s) & (start_s > now_s)).sum() <= int(text[6:])
        return
    ended_in_log_s = jobs.submit_s + waited_s + jobs.run_s
    place = {int(one): at for at, one in enumerate(row[: schedule.submitted])}
    for one, at in place.items():
        earlier = [other for other in range(one) if jobs.user[other] == jobs.user[one]]
        if not earlier:
            assert found.submit_s[at] == jobs.submit_s[one]
        elif jobs.submit_s[one] < max(ended_in_log_s[other] for other in earlier):
            before = found.submit_s[place[earlier[-1]]]
            assert found.submit_s[at] == before + jobs.submit_s[one] - jobs.submit_s[earlier[-1]]
        elif text == "think=log":
            thought_s = max(jobs.submit_s[one] - max(ended_in_log_s[other] for other in earlier), 1)
            assert found.submit_s[at] == max(end_s[place[other]] for other in earlier) + thought_s
        else:
            assert found.submit_s[at] > max(end_s[place[other]] for other in earlier)


@settings(max_examples=60)
@given(jobs=traces(), text=loops, composition=compositions())
def test_a_replay_of_what_was_submitted_is_the_schedule_that_was_answered(
    jobs: Jobs, text: str, composition: Composition
) -> None:
    result = run_replay(workload_of(jobs), composition, loop=closed_loop(text, 0))
    came_as_promised(jobs, text, result.world.workload.jobs, result.world.workload.row, result.schedule)
    assert starts(result.world.workload.jobs, composition) == result.schedule.start_s.tolist()


def follows_its_preceding(jobs: Jobs, found: Jobs, schedule: NativeReplay) -> None:
    """Every job is there once, and came when it had to, by the job that precedes it or else as in the log."""
    assert sorted(found.number.tolist()) == jobs.number.tolist()
    end_s = dict(zip(found.number.tolist(), schedule.end_s.tolist(), strict=True))
    came_s = dict(zip(found.number[: schedule.submitted].tolist(), found.submit_s.tolist(), strict=False))
    named, think_s = preceding_of(jobs)
    for number, before, after_s, log_s in zip(jobs.number, named, think_s, jobs.submit_s, strict=True):
        expected_s = end_s[before] + max(after_s, 1) if 0 < before < number else log_s
        if number in came_s:
            assert came_s[number] == expected_s
        else:  # the one before it never started, or never came
            assert end_s[before] == -1


@settings(max_examples=100)
@given(jobs=traces(), composition=power_compositions, caps=cap_lists(), on=machines, has_watts=st.booleans())
def test_a_job_that_another_precedes_comes_after_its_end(
    jobs: Jobs, composition: Composition, caps: list[Cap], on: Machine, has_watts: bool
) -> None:
    named, _ = preceding_of(jobs)
    loop = closed_loop("preceding", 0)
    watts = Watts.of(on, composition.power) if has_watts else None
    composition = composition if has_watts else FCFS
    if not ((named > 0) & (named < jobs.number)).any():
        with pytest.raises(WrongUseError, match="no job of this trace says that it waits"):
            run_replay(workload_of(jobs), composition, watts=watts, loop=loop)
        return
    result = run_replay(workload_of(jobs), composition, watts=watts, caps=caps if has_watts else (), loop=loop)
    follows_its_preceding(jobs, result.world.workload.jobs, result.schedule)
    odd = (named > 0) & (named >= jobs.number)
    found = [one.count for one in result.world.workload.findings if "wait for a job which is not above" in one.what]
    assert found == ([int(odd.sum())] if odd.any() else [])


@settings(max_examples=80)
@given(
    jobs=traces(),
    text=loops,
    composition=power_compositions,
    caps=cap_lists(),
    on=machines,
    is_volunteer=st.lists(st.booleans(), min_size=25, max_size=25),
)
def test_with_kills_frequencies_and_watts_of_single_jobs_too(
    jobs: Jobs, text: str, composition: Composition, caps: list[Cap], on: Machine, is_volunteer: list[bool]
) -> None:
    watts = Watts.of(on, composition.power)
    share = 1 - np.arange(len(jobs)) / 50
    watts = replace(
        watts,
        job_busy_uw=(watts.idle_uw + share * (watts.busy_uw[0] - watts.idle_uw)).astype(np.int64),
        job_lowest=np.where(is_volunteer[: len(jobs)], watts.lowest, 0).astype(np.int32),
    )
    result = run_replay(workload_of(jobs), composition, watts=watts, caps=caps, loop=closed_loop(text, 0))
    came_as_promised(jobs, text, result.world.workload.jobs, result.world.workload.row, result.schedule)
    on_order = result.schedule.watts
    assert on_order is not None and on_order.job_busy_uw is not None and on_order.job_lowest is not None
    assert on_order.job_busy_uw.tolist() == watts.job_busy_uw[result.world.workload.row].tolist()  # type: ignore[index]
    assert on_order.job_lowest.tolist() == watts.job_lowest[result.world.workload.row].tolist()  # type: ignore[index]
    again = NativeReplay(composition, result.world.workload.jobs, PROCESSORS, on_order, caps)
    again.run(EVERYTHING_ENDED)
    assert again.start_s.tolist() == result.schedule.start_s.tolist()
    assert again.power_uw[1].tolist() == result.schedule.power_uw[1].tolist()


def test_the_seed_draws_the_times_to_think() -> None:
    jobs = jobs_of([(100 * at, 10, 10, 3, at % 2) for at in range(12)])
    first, again, other = (submitted(jobs, "think=60", FCFS, seed=seed).submit_s.tolist() for seed in (1, 1, 2))
    assert first == again != other


def test_a_slower_machine_gets_its_jobs_later(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log.swf"
    lines = [f"{at + 1} {at * 20} -1 10 4 -1 -1 4 10 -1 1 {at % 3} -1 -1 -1 -1 -1 -1" for at in range(9)]
    log.write_text("\n".join(lines))
    command = ["replay", str(log), "--machine", "4", "--closed-loop", "think=log", "--out", str(tmp_path / "out")]
    assert main(command) == 0
    assert '"closed_loop": "think=log"' in (tmp_path / "out" / "manifest.json").read_text()
    capsys.readouterr()
    assert main([*command[:5], "think=never"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_jobs_of_equal_priority_are_served_in_the_order_in_which_they_come() -> None:
    """The users' first jobs come at once and in the order of the log; later ones as their users' earlier ones end."""
    policy = registry.choose("multifactor:cpu=0,energy=0").composition
    jobs = jobs_of([(0, 30, 30, 10, 0), (0, 10, 10, 10, 1), (50, 10, 10, 10, 1)])
    found = submitted(jobs, "think=log", policy)
    assert starts(found, policy) == starts(found, FCFS)


BUDGET = "joules=5e7,from_s=20000,to_s=100000,tick_s=600"
GIVEN = {
    "energy-budget": f"energy-budget:rule=energybud,{BUDGET}",
    "eco": "eco:share=0.5",
    "powercap": "powercap:mode=mix",
}
ON_NODES = "rmap", "moldable", "prb", "easy-capped", "planned", "shared"
METERED = "--machine", "generic:nodes=16,cores=16"
CAPPED = *METERED, "--cap", "3000", "--job-watts", "generated"


@pytest.mark.parametrize("text", ["think=log", "queue=5"])
@pytest.mark.parametrize("name", [name for name in registry.names() if name not in ON_NODES])
def test_every_policy_runs_in_a_closed_loop_and_decides_the_same_again(
    name: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Caps and watts of single jobs where it knows watts; a scheduler that gets the log decides the same."""
    choice = registry.choose(GIVEN.get(name, name))
    on = CAPPED if choice.composition.power is not None else METERED
    sample, log = tmp_path / "log.swf", tmp_path / "events"
    sample.write_text("".join(SAMPLE.read_text().splitlines(keepends=True)[:90]))
    command = ["replay", str(sample), "--policy", choice.text, *on, "--closed-loop", text, "--json", "--log", str(log)]
    assert main(command) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ended"] == found["jobs"] > 70
    assert main(["check-log", str(log)]) == 0


@pytest.mark.parametrize("rule", ["energybud", "reducepc"])
def test_a_budget_of_joules_is_kept_in_a_closed_loop(rule: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The window begins with the first job, and no job draws more than is planned with."""
    policy = f"energy-budget:rule={rule},joules=3e8,from_s=0,to_s=100000,tick_s=600"
    assert main(["replay", str(SAMPLE), "--policy", policy, *METERED, "--closed-loop", "queue=5", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["over_budget_j"] == 0 < 2e8 < found["window_j"]


def test_what_precedes_jobs_is_modelled_then(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The third waits for the first, which ends at 100 s; the fourth for one that is not in the log."""
    log, out = tmp_path / "log.swf", tmp_path / "out"
    rows = [(1, 0, -1, -1), (2, 5, -1, -1), (3, 7, 1, 60), (4, 9, 9, 60)]
    lines = [f"{n} {at} -1 100 4 -1 -1 4 100 -1 1 1 -1 -1 -1 -1 {before} {think}" for n, at, before, think in rows]
    log.write_text("; MaxProcs: 4\n" + "\n".join(lines))
    command = ["replay", str(log), "--out", str(out)]
    assert main([*command, "--closed-loop", "preceding"]) == 0
    told = capsys.readouterr().err
    assert "jobs that wait for a job which is not above them: 1 submitted as in the log (first: line 5)" in told
    jobs = [line.split(",") for line in (out / "jobs.csv").read_text().splitlines()]
    column = jobs[0].index("submission_time")
    assert {line[0]: line[column] for line in jobs[1:]} == {"1": "0", "2": "5", "4": "9", "3": "160"}
    assert json.loads((out / "manifest.json").read_text())["trace"]["not_modelled"] == {}
    log.write_text(log.read_text().replace(" 1 60", " -1 -1"))
    assert main([*command, "--closed-loop", "preceding"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_jobs_that_never_come_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second needs more watts than there are, and keeps the queue of one for itself."""
    log = tmp_path / "log.swf"
    rows = [(1, 4), (2, 16), (3, 4)]
    log.write_text("\n".join(f"{at} 0 -1 10 {wide} -1 -1 {wide} 10 -1 1 1 -1 -1 -1 -1 -1 -1" for at, wide in rows))
    command = ["replay", str(log), "--machine", "generic:nodes=1,cores=16", "--policy", "powercap:mode=idle"]
    assert main([*command, "--cap", "300", "--closed-loop", "queue=1", "--json"]) == 1
    told = capsys.readouterr()
    assert "jobs that never came, as those before them never started: 1 taken as submitted at the end" in told.err
    assert json.loads(told.out)["unstarted"] == 2
