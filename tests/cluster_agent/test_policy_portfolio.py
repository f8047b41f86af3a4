"""``portfolio``: looks that are replays of its members, the record that repeats it, and members that cannot be."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from cluster_agent.cli import main
from cluster_agent.errors import StepError
from cluster_agent.replay.measures import bounded_slowdown
from cluster_agent.replay.world_run import run
from cluster_agent.scheduler.job_columns import Int64s, Jobs
from cluster_agent.scheduler.native.native_replay import NativeReplay
from cluster_agent.scheduler.plans.looks import Look
from cluster_agent.scheduler.policies.registry import choose
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.world import World
from cluster_agent.stepping.searched import estimated_slowdown
from cluster_agent.stepping.steps import Steps
from tests.cluster_agent.worlds import workload_of
from tests.live.fakes import Fake

LOG = str(Path(__file__).parents[2] / "cluster_agent" / "samples" / "generated-500.swf")
PROCESSORS = 32
MEMBERS = ("easy", "easy-sjbf", "score:lowest=saf", "wfp3", "conservative", "conservative:ends=compress", "fcfs")
ALL = "|".join(MEMBERS)
SCORED = ("easy:guard=3", "score:lowest=-wait * width + 1", "wfp3:power=2;guard=4")
ONLY_LOOK = "every=1000000,hours=100000,arrivals=none"
EQUAL = ("jobs.csv", "jobs.parquet", "metrics.json", "plan.jsonl")
OBJECTIVES: dict[str, Callable[[Int64s, Int64s], float]] = {
    "slowdown": lambda wait_s, run_s: float(bounded_slowdown(wait_s, run_s).mean()),
    "wait": lambda wait_s, run_s: float(wait_s.mean()),
    "longest": lambda wait_s, run_s: float(wait_s.max()),
}


def policy(text: str) -> Composition:
    return choose(text).composition


def alone(member: str, estimates: str) -> Composition:
    """The member with these estimates."""
    own = policy(member.replace(";", ","))
    return replace(policy(f"easy:{estimates}"), backfill=own.backfill, scan=own.scan, score=own.score, guard=own.guard)


def world(n: int = 300, seed: int = 1, at_once: bool = False, times: int = 4, load: float = 1.3) -> World:
    """``load`` times what the machine can do; requests are up to ``times`` the run times."""
    random = np.random.default_rng(seed)
    width = (2 ** random.integers(0, 6, n)).astype(np.int32)
    run_s = random.integers(1, 4000, n)
    span_s = int(n * (width * run_s).mean() / PROCESSORS / load)
    submit_s = np.full(n, 5) if at_once else np.sort(random.integers(0, span_s, n))
    request_s = run_s * random.integers(1, times + 1, n)
    user = random.integers(0, 9, n).astype(np.int32)
    return World(workload_of(Jobs(np.arange(n), submit_s, run_s, request_s, width, user), PROCESSORS))


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_look_costs_what_a_whole_replay_costs_where_run_times_are_known(objective: str) -> None:
    source = world(at_once=True)
    text = f"portfolio:members={ALL},objective={objective},estimate=clairvoyant,{ONLY_LOOK}"
    found = run(source, policy(text))
    whole = [run(source, alone(one, "estimate=clairvoyant")) for one in MEMBERS]
    costs = [OBJECTIVES[objective](one.start_s - source.jobs.submit_s, source.jobs.run_s) for one in whole]
    (look,) = found.looks
    assert look.at_s == 5 and look.costs == pytest.approx(costs, rel=1e-12)
    assert costs[look.member] == min(costs) < max(costs)
    assert found.start_s.tolist() == whole[look.member].start_s.tolist()


def test_a_look_in_between_is_a_blind_fork_under_each_member() -> None:
    members, source = MEMBERS[:4], world(n=400, seed=3)
    found = run(source, policy(f"portfolio:members={'|'.join(members)},every=9,hours=90000,objective=slowdown"))
    changed = next(at for at, one in enumerate(found.looks) if one.member > 0)  # until then easy acts
    steps = Steps(source, policy("easy"))
    for look in found.looks[: changed + 1]:
        steps.run(look.at_s)
        steps.advance()
        costs = [estimated_slowdown(steps, policy(one)) / len(steps.queue) for one in members]
        assert steps.now_s == look.at_s and look.costs == pytest.approx(costs, rel=1e-12)
    assert changed > 1 and costs[found.looks[changed].member] == min(costs) < costs[0]


def test_run_times_are_drawn_from_what_ended_jobs_took_of_their_estimates() -> None:
    """Here each takes a third, so that what is drawn is true, and a look is a fork that knows the log."""
    jobs = world(n=300, seed=5).jobs
    third = Jobs(jobs.number, jobs.submit_s, jobs.run_s, 3 * jobs.run_s, jobs.width, jobs.user)
    source = World(workload_of(third, PROCESSORS))
    text = "portfolio:members=easy,every=4,hours=90000,arrivals=none,objective=wait,draws="
    drawn, estimated = (run(source, policy(text + draws)).looks for draws in ("2", "0"))
    look = next(one for one in drawn if one.at_s > third.submit_s[-1])
    steps = Steps(source, policy("easy"))
    steps.run(look.at_s)
    steps.advance()
    ahead = steps.fork()
    ahead.run()
    assert steps.now_s == look.at_s and look.costs == pytest.approx([ahead.wait_s.mean()], rel=1e-12)
    assert look.costs[0] < next(one for one in estimated if one.at_s == look.at_s).costs[0]


def test_the_member_that_costs_least_is_in_force_and_of_equal_ones_the_present_one() -> None:
    source = world(n=1000, seed=12, load=1.0)
    looks = run(source, policy(f"portfolio:members={ALL},every=3,hours=1,draws=1")).looks
    members, stayed = [one.member for one in looks], 0
    for before, one in zip([0, *members], looks, strict=False):
        least = min(one.costs)
        stayed += before > 0 and one.costs[0] == one.costs[before] == least
        assert one.member == (before if one.costs[before] == least else one.costs.index(least))
    assert len(set(members)) > 3 and stayed > 10
    again = run(source, policy(f"portfolio:members={ALL},every=3,hours=1,draws=1")).looks
    assert again == looks


def test_the_seed_decides_what_is_drawn() -> None:
    source = world(n=200, seed=6)
    text = "portfolio:every=4,draws=2,seed="
    looks = [run(source, policy(text + seed)).looks for seed in ("1", "1", "2")]
    assert looks[0] == looks[1] != looks[2]


def test_the_jobs_of_the_last_hours_come_again() -> None:
    """Here they do, each six hours, so that a look is a fork that knows the log."""
    period_s, n = 6 * 3600, 60
    day = world(n=n, seed=8).jobs
    submit_s = day.submit_s * period_s // (day.submit_s[-1] + 1)
    run_s, request_s, width, user = (np.tile(one, 4) for one in (day.run_s, day.request_s, day.width, day.user))
    days_s = (submit_s + period_s * np.arange(4)[:, None]).ravel()
    source = World(workload_of(Jobs(np.arange(4 * n), days_s, run_s, request_s, width, user), PROCESSORS))
    text = "portfolio:members=easy|easy:guard=1000,every=3,hours=6,objective=slowdown,estimate=clairvoyant,arrivals="
    again, none = (run(source, policy(text + arrivals)).looks for arrivals in ("again", "none"))
    look = next(one for one in again if 1.3 * period_s < one.at_s)
    steps = Steps(source, policy("easy:estimate=clairvoyant"))
    steps.run(look.at_s)
    steps.advance()
    ahead, end_s = steps.fork(), look.at_s + period_s
    ahead.run(end_s)
    start_s = np.full(4 * n, end_s)
    start_s[ahead.started] = ahead.wait_s + days_s[ahead.started]
    came = np.flatnonzero((days_s > look.at_s) & (days_s < end_s))
    seen = np.concatenate([steps.queue["job"], came])
    slowdown = bounded_slowdown(start_s[seen] - days_s[seen], run_s[seen])
    assert len(came) > n // 2 and look.costs == pytest.approx([slowdown.mean()] * 2, rel=1e-12)
    assert look.costs != next(one for one in none if one.at_s == look.at_s).costs


@pytest.mark.parametrize("member", [*MEMBERS, *SCORED])
def test_a_portfolio_of_one_is_its_member(member: str) -> None:
    for estimates in ("estimate=requested", "estimate=mean2,history=similar,fixed=start,correct=incremental"):
        source = world(seed=9)
        looking = run(source, policy(f"portfolio:members={member},every=2,draws=1,hours=4,{estimates}"))
        assert len(looking.looks) > 50
        assert looking.start_s.tolist() == run(source, alone(member, estimates)).start_s.tolist()


def test_each_member_takes_over_as_a_fork_of_the_world_does() -> None:
    source = world(n=250, seed=11)
    composition = policy(f"portfolio:members={ALL},every=40")
    first, second = (one.at_s for one in run(source, policy("portfolio:members=easy,every=40")).looks[:2])
    steps = Steps(source, policy("easy"))
    steps.run(second)
    steps.advance()
    before = np.flatnonzero(~np.isin(np.arange(250), steps.queue["job"]) & (source.jobs.submit_s <= second))
    easy_s, found = run(source, policy("easy")).start_s, []
    for number, member in enumerate(MEMBERS):
        ahead = steps.fork(policy(member))
        ahead.run()
        expected_s = easy_s.copy()
        expected_s[ahead.started] = ahead.wait_s + source.jobs.submit_s[ahead.started]
        # where the record ends, the member that acts stays
        looks = [Look(first, 0, ()), Look(second, number, ())]
        engine = NativeReplay(composition, source.jobs, PROCESSORS, looks=looks)
        engine.run(len(source.jobs))
        found.append(engine.start_s.tolist())
        assert found[-1] == expected_s.tolist() and (expected_s[before] == easy_s[before]).all()
    assert len({tuple(one) for one in found}) > 4


def replayed(*arguments: object) -> int:
    return main(["replay", *map(str, arguments)])


def test_a_record_repeats_its_replay_byte_for_byte_without_looking(tmp_path: Path) -> None:
    options = (LOG, "--policy", "portfolio:members=easy|score:lowest=saf|wfp3,every=4,draws=1", "--machine", 32)
    first, again = tmp_path / "first", tmp_path / "again"
    assert replayed(*options, "--out", first) == 0
    assert replayed(*options, "--plan-from", first / "plan.jsonl", "--out", again) == 0
    digests = [[hashlib.sha256((out / name).read_bytes()).hexdigest() for name in EQUAL] for out in (first, again)]
    assert digests[0] == digests[1]
    header, *lines = (first / "plan.jsonl").read_text().splitlines()
    looks = [json.loads(line) for line in lines]
    assert len({member for _, member, _ in looks}) > 1
    known = [json.dumps([at_s, member, [0.5, 0.5, 0.5]]) for at_s, member, _ in looks]  # as no look would find them
    (tmp_path / "known.jsonl").write_text("\n".join([header, *known]))
    assert replayed(*options, "--plan-from", tmp_path / "known.jsonl", "--out", tmp_path / "known") == 0
    assert (tmp_path / "known" / "jobs.csv").read_bytes() == (first / "jobs.csv").read_bytes()
    looks[-1][0] += 1
    (tmp_path / "late.jsonl").write_text("\n".join([header, *map(json.dumps, looks)]))
    assert replayed(*options, "--plan-from", tmp_path / "late.jsonl") == 1


def test_a_log_of_it_is_decided_again_by_the_loop_in_python(tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    assert replayed(LOG, "--policy", "portfolio:every=4", "--machine", 32, "--log", log) == 0
    assert main(["check-log", str(log)]) == 0


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[5, 0, [1.0, 2.0, 3.0]]", "the recorded looks are not of this replay"),
        ("[5, 3, [1.0, 2.0, 3.0]]", "damaged line; record the plan again"),
        ("[5, 0, [1.0]]", "damaged line; record the plan again"),
        ('[5, "list", "", []]', "damaged line; record the plan again"),
    ],
)
def test_a_record_of_another_replay_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, said: str
) -> None:
    options = (LOG, "--policy", "portfolio:members=easy|easy-sjbf|wfp3", "--machine", 32)
    assert replayed(*options, "--out", tmp_path / "first") == 0
    other = tmp_path / "other.jsonl"
    other.write_text((tmp_path / "first" / "plan.jsonl").read_text().splitlines()[0] + f"\n{line}\n")
    capsys.readouterr()
    assert replayed(*options, "--plan-from", other) != 0
    (error,) = capsys.readouterr().err.splitlines()
    assert said in error


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ("members=easy|", "members: one is empty; write members=easy|score:lowest=saf"),
        ("members=easy|easy", "members: easy is given twice"),
        ("members=easy|easi", "member easi: no policy is called 'easi' (nearest: easy)"),
        ("members=easy|wfp3:power=big", "member wfp3:power=big: wfp3:power=big: power cannot be 'big'"),
        ("members=easy|portfolio", "member portfolio: a portfolio has no portfolios"),
        ("members=easy|prb", "member prb: its order is in Python, and a look is made in C: choose a formula (score)"),
        ("members=easy|powercap", "a policy that knows watts needs watts, and a look counts none"),
        ("members=easy|rmap", "needs a table of configurations, and a look has none: choose another member"),
        ("members=easy|multifactor", "needs all that has happened before, and a look has only what waits and runs"),
        ("members=fcfs|easy:estimate=mean2", "needs estimates of its own, and a look takes those of the portfolio"),
        ("members=fcfs|easy:ties=sc15", "needs processors that are free before their job has ended, and a look has"),
        ("members=conservative:ends=compress,guard=3", "guard needs a head of the queue, and backfill=compress gives"),
        ("members=easy|./mine.py", "member ./mine.py: names a file: choose a policy that ships"),
        ("members=easy|easy-power:model=./mine.py", "member easy-power:model=./mine.py: names a file"),
        ("ties=sc15", "needs processors that are free before their job has ended, and a portfolio has none"),
        ("idle_off_s=5", "idle_off_s needs watts, and a portfolio counts none: leave one of them out"),
        ("every=0", "every=0: give 1 to 1073741824"),
        ("hours=0", "hours=0: give more than 0, at most 100000"),
        ("hours=nan", "hours=nan: give more than 0, at most 100000"),
        ("draws=-1", "draws=-1: give 0 to 100"),
        ("seed=-1", "seed=-1: give 0 to"),
        ("objective=mean", "objective cannot be 'mean': one of slowdown, wait, longest"),
    ],
)
def test_a_member_or_number_that_cannot_be_is_one_line(
    capsys: pytest.CaptureFixture[str], parameters: str, said: str
) -> None:
    assert replayed(LOG, "--policy", f"portfolio:{parameters}") == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert said in error


def test_an_event_log_starts_no_file_that_its_portfolio_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine, mark, log = tmp_path / "mine.py", tmp_path / "has-run", tmp_path / "events.log"
    mine.write_text(f"open({str(mark)!r}, 'w')\n")
    assert replayed(LOG, "--policy", "portfolio:members=easy|wfp3", "--machine", 32, "--log", log) == 0
    log.write_text(log.read_text().replace("members=easy|wfp3", f"members=easy|{mine}"))
    capsys.readouterr()
    assert main(["check-log", str(log)]) == 2
    assert f"member {mine}: names a file" in capsys.readouterr().err and not mark.exists()


def test_a_warm_start_follows_recorded_looks_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state, plan = tmp_path / "state.json", tmp_path / "first" / "plan.jsonl"
    assert replayed(LOG, "--policy", "easy", "--machine", 32, "--state-at", 40_000, "--state-out", state) == 0
    options = (LOG, "--policy", "portfolio:members=easy|score:lowest=saf,every=1", "--state", state)
    assert replayed(*options, "--out", tmp_path / "first") == 0
    assert replayed(*options, "--plan-from", plan, "--out", tmp_path / "second") == 0
    assert (tmp_path / "second" / "jobs.csv").read_bytes() == (tmp_path / "first" / "jobs.csv").read_bytes()
    header, first, *_ = plan.read_text().splitlines()
    plan.write_text(f"{header}\n{first}\n")
    capsys.readouterr()
    assert replayed(*options, "--plan-from", plan) == 1
    assert "the recorded looks are not of this replay" in capsys.readouterr().err


def test_a_stepped_world_refuses_it() -> None:
    with pytest.raises(
        StepError, match="a portfolio needs all that has happened before, and a stepped world is forked"
    ):
        Steps(world(n=20), policy("portfolio"))


def test_a_live_partition_follows_the_member_that_a_look_chose() -> None:
    live = choose("portfolio:members=easy|score:lowest=sjf,every=1,arrivals=none").live
    fake = Fake(1, live)
    fake.submit(run_s=100)
    fake.settle()
    slow, quick = fake.submit(run_s=50, walltime_s=1000), fake.submit(run_s=5, walltime_s=10)
    fake.until(lambda: slow.state == quick.state == "done")
    assert quick.started_s is not None and slow.started_s is not None and quick.started_s < slow.started_s
