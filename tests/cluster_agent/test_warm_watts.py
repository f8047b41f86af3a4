"""A replay with watts that starts in the middle: frequencies, nodes that are off, caps, kills, and joules."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from cluster_agent.cap_steps import Cap
from cluster_agent.cli import main
from cluster_agent.cluster import Machine, load_machine
from cluster_agent.replay.drawn import power_over_time
from cluster_agent.replay.event_log import ReplayMeter
from cluster_agent.replay.outputs import power_csv
from cluster_agent.replay.simulated import JumpingClock, SimulatedMachine
from cluster_agent.replay.state_at import departure, past_of, state_at
from cluster_agent.replay.world_run import Result
from cluster_agent.scheduler.energy_window import Budget
from cluster_agent.scheduler.job_columns import Jobs
from cluster_agent.scheduler.loop import run
from cluster_agent.scheduler.native.governor import Watts
from cluster_agent.scheduler.native.native_replay import NativeReplay
from cluster_agent.scheduler.native.native_scheduler import NativeScheduler
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.workloads.job_log import prepare
from cluster_agent.workloads.state_file import MachineState, encode, problem_of
from cluster_agent.workloads.warm_log import Start, again, budget_from, caps_from, warm
from tests.cluster_agent.power_traces import cap_lists, compositions, conservative, machines, watts_of
from tests.cluster_agent.test_state_files import RUNS, SAMPLE, log_of, of, rows_of
from tests.cluster_agent.traces import PROCESSORS, traces
from tests.cluster_agent.worlds import replay as run_replay

budgets = st.builds(
    Budget,
    joules=st.sampled_from([2_000.0, 8_000.0, 20_000.0]),
    from_s=st.integers(0, 20),
    to_s=st.integers(40, 90),
    rule=st.sampled_from(["energybud", "reducepc", "powercap"]),
    test=st.sampled_from(["path", "job", "whole"]),
    tick_s=st.sampled_from([1, 7, 60]),
)
any_composition = st.one_of(compositions, conservative)


def with_budget(watts: Watts, composition: Composition, budget: Budget | None) -> Watts:
    if composition.power is None or (composition.backfill == "conservative" and budget and budget.rule == "reducepc"):
        return watts
    return replace(watts, budget=budget)


def state_of(result: Result, until_s: int) -> MachineState:
    state = state_at(until_s, result, "of this test", None)
    assert msgspec.json.decode(encode(state), type=MachineState) == state and problem_of(state) is None
    return state


@settings(max_examples=400)
@given(
    jobs=traces().filter(len), composition=any_composition, caps=cap_lists(), on=machines, until_s=st.integers(1, 90),
    has_predictions=st.booleans(), budget=st.none() | budgets,
)  # fmt: skip
def test_with_watts_a_replay_goes_on_from_a_file_as_if_it_had_not_been_cut(
    jobs: Jobs, composition: Composition, caps: list[Cap], on: Machine, until_s: int, has_predictions: bool,
    budget: Budget | None,
) -> None:  # fmt: skip
    """Starts, ends, frequencies, processors, kills, and from the state on watts and joules to the last bit."""
    log = log_of(jobs)
    watts = with_budget(watts_of(composition, on, jobs, has_predictions), composition, budget)
    cold = run_replay(prepare(log, PROCESSORS), composition, watts=watts, caps=caps, at_s=[until_s])
    state = state_of(cold, until_s)
    knowing = [msgspec.structs.replace(job, run_s=int(jobs.run_s[job.job - 1])) for job in state.jobs]
    later = rows_of(log, jobs.submit_s >= until_s)
    for given_jobs, rest in ((state.jobs, log), (knowing, later)):
        start = Start("state.json", "", msgspec.structs.replace(state, jobs=given_jobs), watts.slowdown)
        found = again(start, rest, PROCESSORS)
        warmed = run_replay(found.workload, composition, watts=watts, caps=caps, at_s=[until_s])
        assert departure(state, past_of(warmed, warmed.moments[until_s])) is None
        for name in ("start_s", "end_s", "level", "kills", "lost", "job_j", "first_estimate_s", "corrections"):
            assert getattr(warmed.schedule, name).tolist() == getattr(cold.schedule, name).tolist(), name
        started = np.flatnonzero(cold.schedule.start_s >= 0).tolist()
        assert [warmed.schedule.processors(job) for job in started] == [
            cold.schedule.processors(job) for job in started
        ]
        assert warmed.schedule.joules == cold.schedule.joules
        assert power_csv(power_over_time(warmed)) == power_csv(power_over_time(cold))
        check_parts(cold, warmed, until_s)


def check_parts(cold: Result, warmed: Result, until_s: int) -> None:
    """Before the state and from it on make up the whole."""
    before, whole = cold.moments[until_s], cold.schedule
    if (whole.end_s[whole.end_s >= 0] < until_s).all() and (whole.end_s >= 0).all():
        return
    later = warmed.since(until_s).schedule
    times_s, power_w, _ = later.power
    last_s = max(int(whole.end_s.max()), int(times_s[-1]))
    assert abs((power_w * np.diff([*times_s, max(last_s, until_s)])).sum() - later.joules["cluster"]) < 1e-6
    assert int(later.kills.sum()) <= int(whole.kills.sum())
    for part, joules in whole.joules.items():
        assert abs(before.joules[part] + later.joules[part] - joules) < 1e-6


@settings(max_examples=300)
@given(
    jobs=traces().filter(len), before=any_composition, after=any_composition, caps=cap_lists(), later=cap_lists(),
    on=machines, until_s=st.integers(1, 90), budget=st.none() | budgets,
)  # fmt: skip
def test_after_another_policy_with_watts_its_starts_are_carried_out_and_both_engines_go_on_alike(
    jobs: Jobs, before: Composition, after: Composition, caps: list[Cap], later: list[Cap], on: Machine, until_s: int,
    budget: Budget | None,
) -> None:  # fmt: skip
    log = log_of(jobs)
    first = watts_of(before, on, jobs, False)
    cold = run_replay(prepare(log, PROCESSORS), before, watts=first, caps=caps, at_s=[until_s])
    state = state_of(cold, until_s)
    watts = with_budget(watts_of(after, on, jobs, False), after, budget)
    start = Start("state.json", "", state, watts.slowdown)
    if watts.budget is not None:
        watts = replace(watts, budget=budget_from(watts.budget, state))
    found = warm(start, log, PROCESSORS)
    assert found.recorded is not None
    kept = np.isin(jobs.number, found.workload.jobs.number)
    if watts.job_lowest is not None:
        watts = replace(watts, job_lowest=watts.job_lowest[kept])
    there = caps_from(later, until_s)
    warmed = run_replay(found.workload, after, watts=watts, caps=there, recorded=found.recorded, at_s=[until_s])
    of = {job.job: job for job in state.jobs}
    moment = warmed.moments[until_s]
    for job, number in enumerate(found.workload.jobs.number.tolist()):
        known = of.get(number)
        started_s = -1 if known is None or known.start_s is None else known.start_s
        assert moment.start_s[job] == started_s
        if known is not None and known.what == "ended":
            assert known.end_s is not None
            assert moment.end_s[job] < 0 if known.end_s - started_s == 0 else 0 <= moment.end_s[job] <= known.end_s
    simulated = SimulatedMachine(found.workload.jobs, after.ties, watts.slowdown, watts.requeues, found.recorded)
    meter = ReplayMeter(warmed.schedule.power_uw)
    native = NativeScheduler(
        after, found.workload.jobs, PROCESSORS, watts, there, meter, found.workload.users, recorded=found.recorded
    )
    check_loop(native, simulated, warmed.schedule, meter)


def check_loop(
    native: NativeScheduler, simulated: SimulatedMachine, schedule: NativeReplay, meter: ReplayMeter
) -> None:
    clock = JumpingClock()
    meter.follow(clock, io.BytesIO())
    run(native, clock, simulated)
    n = range(len(schedule.jobs))
    assert schedule.start_s.tolist() == [simulated.start_s.get(job, -1) for job in n]
    assert schedule.end_s.tolist() == [simulated.end_s.get(job, -1) for job in n]


CAPS = "from_s,to_s,watts,announced_s\n20000,60000,4000,10000\n80000,100000,3500,80000\n"
BASE = ["replay", str(SAMPLE), "--machine", "taurus:nodes=32,cores=1"]
POLICIES = (
    "fcfs-killer:killed=lost",
    "eco:victim=least-lost",
    "powercap:mode=mix",
    "powercap:estimate=mean2,backfill=conservative",
    "easy:idle_off_s=600",
    "energy-budget:joules=3e8,from_s=10000,to_s=90000",
    "multifactor:energy=1",
)


def rows(path: Path) -> list[list[str]]:
    with path.open(newline="") as file:
        return list(csv.reader(file))[1:]


@pytest.mark.parametrize("policy", POLICIES)
def test_the_rest_of_a_log_has_the_same_rows_and_watts_from_the_state_of_its_middle(
    policy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From within a cap, with another one to come; a second state is the same; energy is that of the rows of power."""
    (caps := tmp_path / "caps.csv").write_text(CAPS)
    given = [*BASE, "--policy", policy, "--cap", str(caps)]
    states = [str(tmp_path / name) for name in ("state", "cold-later", "warm-later")]
    cold, warmed = tmp_path / "cold", tmp_path / "warm"
    assert main([*given, "--state-at", "40000", "--state-out", states[0]]) == 0
    assert main([*given, "--state-at", "90000", "--state-out", states[1], "--out", str(cold)]) == 0
    from_there = [*given, "--state", states[0], "--out", str(warmed)]
    assert main([*from_there, "--state-at", "90000", "--state-out", states[2], "--log", str(tmp_path / "log")]) == 0
    assert "does not lead to this state" not in capsys.readouterr().err
    assert main(["check-log", str(tmp_path / "log")]) == 0
    found = (warmed / "jobs.csv").read_text().splitlines()
    assert set(found) < set((cold / "jobs.csv").read_text().splitlines()) and len(found) > 200
    assert Path(states[1]).read_bytes() == Path(states[2]).read_bytes()
    whole, later = rows(cold / "power.csv"), rows(warmed / "power.csv")
    assert later[1:] == [row for row in whole if int(row[0]) > 40000]
    assert later[0] == ["40000", *[row for row in whole if int(row[0]) <= 40000][-1][1:]]
    measured = json.loads((warmed / "metrics.json").read_text())
    times_s = [int(row[0]) for row in later] + [40000 + measured["makespan_s"]]
    drawn_j = float((np.diff(times_s) * [float(row[1]) for row in later]).sum())
    assert measured["energy_j"] == pytest.approx(drawn_j, rel=1e-9)
    assert measured["passes"] == json.loads((cold / "metrics.json").read_text())["passes"]
    capsys.readouterr()


def test_a_policy_that_owns_watts_starts_from_the_state_of_one_that_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A cap that would have been in force before is none before, and known at once: at 100 the killer ends a job. The
    jobs that ended keep their times, and a job that runs slowly has what is left of it left."""
    path, out = tmp_path / "state.json", tmp_path / "out"
    rows_ = [
        {"job": 1, "submit_s": 0, "width": 2, "request_s": 50, "start_s": 0, "end_s": 50},
        {"job": 2, "submit_s": 0, "width": 1, "request_s": 500, "start_s": 10},
        {"job": 3, "submit_s": 0, "width": 1, "request_s": 500, "start_s": 20},
    ]
    path.write_text(json.dumps(of(rows_, processors=4)))
    given = ["replay", "--state", str(path), "--machine", "taurus:nodes=4,cores=1", "--cap", "500", "--out", str(out)]
    assert main([*given, "--policy", "fcfs-killer:killed=lost", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kills"] == 1
    assert [(row[0], row[8], row[10]) for row in rows(out / "jobs.csv")] == [("2", "10", "510"), ("3", "20", "100")]


@pytest.mark.parametrize(("stored_j", "starts_s"), [(None, 120), (-2000.0, 140), (1e4, 100)])
def test_a_budget_goes_on_with_the_joules_that_the_state_says(
    stored_j: float | None, starts_s: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The limit is 100 W above the idle machine. A job of 200 W above it for 20 s needs 2000 J, stored in 20 s."""
    machine = tmp_path / "small.toml"
    machine.write_text(
        'name = "small"\nsummary = "of this test"\n[[nodes]]\ncount = 4\ncores = 1\noff_w = 0\nidle_w = 100\n'
        "frequency_mhz = [1000]\nbusy_w = [300]\nboot_s = 0\nboot_j = 0\nswitch_off_s = 0\nswitch_off_j = 0\n"
    )
    path, out = tmp_path / "state.json", tmp_path / "out"
    queued = {"job": 1, "submit_s": 90, "width": 1, "request_s": 20}
    more = {} if stored_j is None else {"stored_j": stored_j}
    path.write_text(json.dumps(of([queued], processors=4, **more)))
    policy = "energy-budget:joules=500000,from_s=0,to_s=1000,tick_s=1"
    assert main(["replay", "--state", str(path), "--machine", str(machine), "--policy", policy, "--out", str(out)]) == 0
    assert int(rows(out / "jobs.csv")[0][8]) == starts_s
    capsys.readouterr()
    runs = {"job": 1, "submit_s": 0, "width": 1, "request_s": 900, "start_s": 90}
    path.write_text(json.dumps(of([runs], processors=4, **more)))
    policy = "energy-budget:joules=200000,from_s=0,to_s=1000"
    assert main(["replay", "--state", str(path), "--machine", str(machine), "--policy", policy, "--json"]) == 0
    measured = json.loads(capsys.readouterr().out)
    assert measured["window_j"] == 890 * 600.0, "until the job ends"
    assert measured["over_budget_j"] == 890 * 600.0 - 900 * 200.0 - (stored_j or 0.0)


def test_jobs_that_had_another_frequency_or_were_killed_keep_what_is_left_and_are_not_learned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At 100 the job has done 30 s of 200."""
    path, out = tmp_path / "state.json", tmp_path / "out"
    rows_ = [
        {"job": 1, "submit_s": 0, "width": 16, "request_s": 200, "start_s": 50, "level": 1, "done_s": 30},
        {"job": 2, "submit_s": 0, "width": 16, "request_s": 90, "start_s": 10, "end_s": 40, "is_killed": True},
    ]
    path.write_text(json.dumps(of(rows_, processors=80640)))
    given = ["replay", "--state", str(path), "--machine", "curie", "--policy", "powercap", "--out", str(out)]
    assert main(given) == 0
    assert "jobs of the state that were killed, from which no policy learns: 1 left out" in (capsys.readouterr().err)
    [(start_s, end_s)] = [(int(row[8]), int(row[10])) for row in rows(out / "jobs.csv")]
    slowdown = load_machine("curie").slowdowns()[1]
    assert (start_s, abs(end_s - (100 + 170 * slowdown)) <= 1 + slowdown) == (50, True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"level": 13},
            "job 1 is at frequency 13 (0 is the highest), and the machine has 13: give the state's --machine",
        ),
        ({"level": -1}, "Expected a whole number >= 0"),
        ({"done_s": 91}, "job 1 has done 91 s of its run in 90 s: correct its done_s"),
    ],
)
def test_frequencies_and_work_that_cannot_be_are_refused_in_one_line(
    change: dict[str, int], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "state.json"
    path.write_text(json.dumps(of([RUNS | change])))
    assert main(["replay", "--state", str(path), "--machine", "taurus:nodes=8,cores=1"]) == 2
    said = capsys.readouterr().err
    assert words in said and said.count("\n") == 1


@pytest.mark.parametrize("joules", ["NaN", "1e400", '"many"', "-1e19"])
def test_joules_that_are_no_number_are_refused_in_one_line(
    joules: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "state.json"
    path.write_text(json.dumps(of([RUNS], stored_j=0)).replace('"stored_j": 0', f'"stored_j": {joules}'))
    assert main(["replay", "--state", str(path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_two_jobs_on_one_node_of_a_partition_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "state.json"
    both = [RUNS | {"nodes": ["n1"]}, RUNS | {"job": 2, "nodes": ["n0", "n1"]}]
    path.write_text(json.dumps(of(both, source="partition")))
    assert main(["replay", "--state", str(path)]) == 2
    assert "job 2 runs on n1, and so does job 1: correct one" in capsys.readouterr().err


def test_what_does_not_count_of_a_state_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "state.json"
    path.write_text(json.dumps(of([RUNS | {"level": 1}])))
    assert main(["replay", "--state", str(path)]) == 0
    assert "its frequencies and joules count only with a --machine that has watts" in capsys.readouterr().err
    given = ["replay", "--state", str(path), "--machine", "taurus:nodes=8,cores=1", "--policy"]
    assert main([*given, "energy-budget:joules=1e6,from_s=0,to_s=1000"]) == 0
    assert "it has no stored_j: the budget's store is empty at 100 s" in capsys.readouterr().err
    path.write_text(json.dumps(of([RUNS], source="partition")))
    assert main(["replay", "--state", str(path), "--machine", "taurus"]) == 2
    assert "jobs of a partition have whole nodes: give nodes of one core (taurus:cores=1)" in capsys.readouterr().err


@pytest.mark.parametrize("at_s", [10, 110])
def test_where_the_last_job_ends_with_the_state_its_mean_power_is_unknown(
    at_s: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A state of before the first job, too: power counts from that job on."""
    (log := tmp_path / "log.swf").write_text("; MaxProcs: 1\n1 100 -1 10 1 -1 -1 1 10 -1 1 1 1 -1 1 -1 -1 -1\n")
    given = ["replay", str(log), "--policy", "easy", "--machine", "taurus:nodes=1,cores=1"]
    assert main([*given, "--state-at", str(at_s), "--state-out", str(tmp_path / "state"), "--json"]) == 0
    cold = json.loads(capsys.readouterr().out)
    assert main([*given, "--state", str(tmp_path / "state"), "--out", str(tmp_path / "out")]) == 0
    measured = json.loads((tmp_path / "out" / "metrics.json").read_text())
    is_over = at_s == 110
    assert (measured["energy_j"], measured["mean_w"]) == ((0, None) if is_over else (cold["energy_j"], cold["mean_w"]))
    assert ("power             mean unknown" in capsys.readouterr().out) is is_over
