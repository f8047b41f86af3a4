"""Worlds with watts, and of nodes that differ, stepped: the policy's own schedules, forks, frequencies, refusals."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from cluster_agent import library
from cluster_agent.cap_steps import Cap
from cluster_agent.errors import StepError
from cluster_agent.replay.closed_loop import ClosedLoop
from cluster_agent.replay.measures import bounded_slowdown
from cluster_agent.replay.world_run import run
from cluster_agent.scheduler.configurations.table import Configuration
from cluster_agent.scheduler.energy_window import Budget
from cluster_agent.scheduler.job_columns import Jobs
from cluster_agent.scheduler.native.governor import Watts
from cluster_agent.scheduler.policies.registry import choose
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.power_cap import PowerCap
from cluster_agent.scheduler.power_phases import Power, React, Reaction, Situation
from cluster_agent.scheduler.world import World
from cluster_agent.stepping.steps import Steps, Stops
from tests.cluster_agent.node_traces import FOUR_NODES, Row, trace_of
from tests.cluster_agent.power_traces import machine, watts_of
from tests.cluster_agent.test_stepping import copied, new_memory_holds_anything, policy, starts  # noqa: F401
from tests.cluster_agent.traces import PROCESSORS
from tests.cluster_agent.worlds import with_ways, workload_of

JOBS = 120
SAMPLES = Path(library.__file__).parents[1] / "samples"
WATTS = (
    "easy",
    "easy:estimate=mean2,correct=doubling-capped,shadow=2",
    "conservative",
    "score:lowest=saf",
    "wfp3",
    "powercap",
    "powercap:mode=shut",
    "powercap:mode=idle",
    "powercap:mode=dvfs,floor_mhz=1000",
    "powercap:kill=true",
    "eco",
    "eco:start=full,victim=least-lost",
    "fcfs-killer:killed=lost,ahead=true",
    "easy-power:of=given",
)
NODES = ("easy-capped:rule=est,placing=first", "easy-capped:placing=pack", "easy-capped:rule=walltime", "fcfs", "easy")


def capped(text: str = "powercap", seed: int = 1, n: int = JOBS) -> World:
    """A crowded machine of five nodes; caps that are known from the start, and others that are not."""
    random = np.random.default_rng(seed)
    run_s, submit_s = random.integers(1, 60, n), np.sort(random.integers(0, 15 * n, n))
    width, user = random.integers(1, PROCESSORS + 1, n).astype(np.int32), random.integers(0, 9, n).astype(np.int32)
    jobs = Jobs(np.arange(n), submit_s, run_s, run_s * random.integers(1, 4, n), width, user)
    edges = np.sort(random.choice(np.arange(10, 20 * n), 14, replace=False)).tolist()
    spans = zip(edges[::2], edges[1::2], [400, 260.5, 333, 200, 435, 290, 365], strict=True)
    caps = [
        Cap(from_s, to_s, watts, 0 if at % 2 else max(from_s - 30, 0)) for at, (from_s, to_s, watts) in enumerate(spans)
    ]
    watts = watts_of(choose(text).composition, machine(1.0, True), jobs, text == "easy-power:of=given")
    return World(workload_of(jobs, PROCESSORS), watts, caps=PowerCap.of(caps))


def noded(seed: int = 1, n: int = JOBS) -> World:
    """Four nodes of two kinds under a cap that changes."""
    random = np.random.default_rng(seed)
    rows: list[Row] = []
    for submit_s in np.sort(random.integers(0, 8 * n, n)).tolist():
        run_s, units, kind = int(random.integers(1, 40)), int(random.integers(1, 3)), int(random.integers(0, 3))
        cores, cards = units * int(random.integers(1, 17)), units * int(random.integers(1, 3))
        watts = float(random.integers(1, 100))
        request_s = run_s * int(random.integers(1, 4))
        rows.append((submit_s, run_s, request_s, units, cores, cards * (kind == 1), cards * (kind == 2), watts))
    caps = PowerCap((0, 200, 500, 700), (220.0, 120.0, 400.0, 150.0))
    return World(trace_of(rows).on(FOUR_NODES, caps), nodes=FOUR_NODES, caps=caps)


def of_world(source: World, text: str) -> Composition:
    return choose(text).on(source.kind)


def check_forks(source: World, own: Composition, every: int) -> Steps:
    """The policy's own passes are its replay, and forks go on alike; so do forks of these."""
    expected = run(source, own).start_s
    steps, at, forks = Steps(source, own), 0, []
    while not steps.is_over:
        if at % every == 0:
            forks.append((steps.fork(), starts(steps)))
        at += 1
        steps.decide()
        steps.advance()
    assert (starts(steps) == expected).all()
    for fork, known in forks:
        again = fork.fork()
        while not fork.is_over:
            fork.decide()
            fork.advance()
        again.run()
        assert (starts(fork, known) == expected).all()
        assert (starts(again, known) == expected).all()
        if source.watts is not None:
            assert fork.joules == again.joules == pytest.approx(steps.joules)
    assert at > 50 and len(forks) > 3
    return steps


@pytest.mark.usefixtures("new_memory_holds_anything")
@pytest.mark.parametrize("text", WATTS)
def test_with_watts_the_policys_own_passes_are_its_replay_and_a_fork_goes_on_alike(text: str) -> None:
    source, own = capped(text), policy(text)
    steps = check_forks(source, own, 16)
    assert steps.joules == pytest.approx(run(source, own).schedule.joules["cluster"])


@pytest.mark.usefixtures("new_memory_holds_anything")
@pytest.mark.parametrize("text", NODES)
def test_on_nodes_the_policys_own_passes_are_its_replay_and_a_fork_goes_on_alike(text: str) -> None:
    source = noded()
    check_forks(source, of_world(source, text), 16)


@pytest.mark.parametrize("stops", ["passes", "choices"])
@pytest.mark.parametrize("text", ["easy", "powercap", "powercap:mode=dvfs,floor_mhz=1000", "powercap:kill=true"])
def test_who_always_chooses_the_head_gets_the_policys_schedule_with_watts(text: str, stops: Stops) -> None:
    source, own = capped(text, seed=2), policy(text)
    steps = Steps(source, own, stops)
    while not steps.is_over:
        steps.order([0])
        steps.advance()
    assert (starts(steps) == run(source, own).start_s).all()


@pytest.mark.parametrize("stops", ["passes", "choices"])
@pytest.mark.parametrize("text", ["easy", "easy-capped:rule=est,placing=first", "easy-capped:rule=est,placing=pack"])
def test_who_always_chooses_the_head_gets_the_policys_schedule_on_nodes(text: str, stops: Stops) -> None:
    source = noded(seed=2)
    own = of_world(source, text)
    steps = Steps(source, own, stops)
    while not steps.is_over:
        if own.order is None:
            steps.order([0])
        else:
            steps.decide()
        steps.advance()
    assert (starts(steps) == run(source, own).start_s).all()


@pytest.mark.parametrize("text", ["powercap", "conservative", "nodes fcfs"])
def test_who_starts_what_the_policy_would_gets_its_schedule(text: str) -> None:
    source = noded(seed=3) if text.startswith("nodes ") else capped(text, seed=3)
    own = of_world(source, text.removeprefix("nodes "))
    steps = Steps(source, own)
    while not steps.is_over:
        steps.start(steps.fork().decide())
        steps.advance()
    assert (starts(steps) == run(source, own).start_s).all()


def alone(rows: list[tuple[int, int, int, int]], caps: list[Cap], floor_mhz: int | None = None) -> Steps:
    """Jobs of (submit_s, run_s, request_s, width) on the machine of 100 W a node, 30 W idle: 35 W a processor more."""
    columns = [np.array(column, np.int64) for column in zip(*rows, strict=True)]
    n = len(rows)
    jobs = Jobs(np.arange(n), *columns[:3], columns[3].astype(np.int32), np.zeros(n, np.int32))
    own = Composition(backfill="easy", power=Power(floor_mhz=floor_mhz))
    watts = Watts.of(machine(0.0, False), own.power)
    return Steps(World(workload_of(jobs, PROCESSORS), watts, caps=PowerCap.of(caps)), own)


def test_a_job_starts_at_the_level_that_is_given_or_at_the_highest_that_the_cap_leaves_room_for() -> None:
    steps = alone([(0, 20, 100, 2), (0, 20, 100, 2), (0, 20, 100, 2)], [Cap(0, 1000, 270.0)], floor_mhz=1000)
    assert (steps.drawn_w, [each.tolist() for each in steps.caps]) == (150.0, [[0, 1000], [270.0, np.inf]])
    steps.start([1], level=2)
    assert (steps.drawn_w, steps.levels.tolist()) == (185.0, [2])
    steps.start([0])
    assert (steps.drawn_w, dict(zip(steps.running["job"].tolist(), steps.levels.tolist(), strict=True))) == (
        255.0,
        {0: 0, 1: 2},
    )
    fork = steps.fork()
    for one in (steps, fork):
        with pytest.raises(StepError, match="job 2 needs 35 W above idle at 1000 MHz, and 15 W are left under the cap"):
            one.start([2])
        one.advance()
        assert (one.now_s, one.running["job"].tolist()) == (20, [1])
        one.start([2])
        assert one.levels.tolist() == [0, 2] and one.drawn_w == 255.0
        one.advance()
        assert one.is_over and one.now_s == 40
    assert steps.joules == fork.joules == pytest.approx(20 * 255 + 15 * 255 + 5 * 220)


def test_starts_that_watts_forbid_are_refused_and_change_nothing() -> None:
    caps = [Cap(0, 50, 400.0), Cap(50, 90, 250.0)]
    steps = alone([(0, 20, 40, 4), (0, 20, 60, 4), (0, 20, 40, 2), (0, 20, 40, 8)], caps)
    for given, level, said in (
        ([0, 3], None, "job 3 needs 8 processors, and 6 are free once those before it in the list have started (job 0"),
        ([1], None, "job 1 may run at 2000 MHz into a cap, or into nodes going off, that leave no room for it"),
        ([0, 1], None, "job 1 needs 140 W above idle at 2000 MHz, and 110 W are left under the cap once those"),
        ([3], None, "job 3 needs 280 W above idle at 2000 MHz, and 250 W are left under the cap"),
        ([0, 2, 2], None, "job 2 is given twice"),
        ([0], 3, "start: level=3: this machine has the levels 0 (2000 MHz) to 2 (1000 MHz)"),
        ([0], -1, "start: level=-1: this machine has the levels 0 (2000 MHz) to 2 (1000 MHz)"),
        ([0], 1.0, "start: level=1.0: this machine has the levels"),
        ([0], True, "start: level=True: this machine has the levels"),
        ([0], 1, "start: level=1: the policy starts job 0 at level 0 at the lowest"),
    ):
        before = copied(steps.queue), copied(steps.running), steps.free, steps.drawn_w, steps.started.tolist()
        with pytest.raises(StepError, match=re.escape(said)):
            steps.start(given, level)  # type: ignore[arg-type]
        assert (copied(steps.queue), copied(steps.running), steps.free, steps.drawn_w, steps.started.tolist()) == before
    steps.start([0, 2])
    with pytest.raises(StepError, match="job 0 runs already"):
        steps.start([0])


def slowed(levels: int) -> React:
    """All that run at the lowest level of the policy while the cap is narrow, else at the highest."""

    def react(situation: Situation) -> Reaction:
        level = levels if situation.cap_watts < 350 else 0
        return Reaction(level=dict.fromkeys(situation.running.job.tolist(), level))

    return react


def test_levels_that_one_gives_as_a_policy_would_make_its_schedule_and_its_joules() -> None:
    """While caps change jobs wait, so each reaction falls on a decision."""
    random, n = np.random.default_rng(4), 200
    submit_s, run_s = np.sort(random.integers(0, 500, n)), random.integers(1, 90, n)
    width = random.integers(1, 5, n).astype(np.int32)
    jobs = Jobs(np.arange(n), submit_s, run_s, run_s * random.integers(1, 4, n), width, np.zeros(n, np.int32))
    caps = PowerCap.of([Cap(at_s, at_s + 60, 300.0, at_s) for at_s in range(100, 1500, 150)])
    reacts = Power(floor_mhz=1000, react=slowed(2))
    alone = replace(reacts, react=None)
    source = World(workload_of(jobs, PROCESSORS), Watts.of(machine(0.0, True), reacts), caps=caps)
    expected = run(source, Composition(backfill="easy", power=reacts))
    steps, last_w, levels_given = Steps(source, Composition(backfill="easy", power=alone)), np.inf, 0
    while not steps.is_over:
        cap_w, running = steps.caps[1][0], steps.running["job"]
        if cap_w != last_w:
            steps.set_level(running, 2 if cap_w < 350 else 0)
            levels_given += len(running)
            last_w = cap_w
        steps.decide()
        steps.advance()
    assert (starts(steps) == expected.start_s).all() and levels_given > 20
    assert steps.joules == pytest.approx(expected.schedule.joules["cluster"])
    assert (run(source, Composition(backfill="easy", power=alone)).start_s != expected.start_s).any()


def test_a_running_job_is_slowed_and_may_be_as_fast_again_as_the_caps_leave_room_for() -> None:
    caps = [Cap(0, 30, 400.0), Cap(30, 1000, 255.0)]
    steps = alone([(0, 40, 100, 2), (0, 40, 100, 2), (5, 1, 1, 10)], caps, floor_mhz=1000)
    steps.start([0, 1], level=2)
    steps.set_level([0], 0)
    assert dict(zip(steps.running["job"].tolist(), steps.levels.tolist(), strict=True)) == {0: 0, 1: 2}
    assert steps.drawn_w == 255.0
    steps.advance()
    refused = (
        ([0, 1], 0, "set_level: with jobs 0, 1 at 2000 MHz more than the cap of 255 W would be drawn at 30 s, if what"),
        ([0, 0], 2, "set_level: job 0 is given twice"),
        ([2], 2, "set_level: job 2 does not run; give jobs of running"),
        ([7], 2, "set_level: job 7 does not run"),
        (["a"], 2, "set_level: job 'a' does not run"),
        ([0], 3, "set_level: level=3: this machine has the levels 0 (2000 MHz) to 2 (1000 MHz)"),
        ([0], None, "set_level: level=None: this machine has the levels"),
    )
    for given, level, said in refused:
        before = copied(steps.running), steps.levels.tolist(), steps.drawn_w
        with pytest.raises(StepError, match=re.escape(said)):
            steps.set_level(given, level)  # type: ignore[arg-type]
        assert (copied(steps.running), steps.levels.tolist(), steps.drawn_w) == before
    fork = steps.fork()
    for one in (steps, fork):
        one.set_level(np.array([0]), 2)
        assert (one.drawn_w, sorted(one.levels.tolist())) == (220.0, [2, 2])
        one.set_level([1], 1)
        one.set_level([1], 0)
        one.run()
        assert one.is_over
    assert steps.joules == fork.joules and steps.now_s == fork.now_s
    with pytest.raises(StepError, match="this world is over"):
        steps.set_level([0], 2)
    unslowed = alone([(0, 40, 100, 2)], caps)
    unslowed.start([0])
    with pytest.raises(StepError, match="the policy slows job 0 to level 0 at the lowest"):
        unslowed.set_level([0], 1)


def test_starts_that_nodes_forbid_are_refused_and_change_nothing() -> None:
    rows: list[Row] = [(0, 9, 9, 1, 4, 2, 0, 60.0), (0, 9, 9, 2, 4, 4, 0, 60.0), (0, 9, 9, 1, 1, 0, 0, 60.0)]
    caps = PowerCap((0, 5), (200.0, 100.0))
    source = World(trace_of(rows).on(FOUR_NODES, caps), nodes=FOUR_NODES, caps=caps)
    steps = Steps(source, of_world(source, "easy-capped"))
    assert steps.room[:, :3].tolist() == [[16, 2, 0], [16, 2, 0], [16, 0, 2], [16, 0, 2]]
    for given, said in (
        ([0, 1], "job 1 with units=2 of need=(2, 2, 0, 0) and watts=60 has no room on the nodes, or under a cap"),
        ([0, 2], "until it may end once those before it in the list have started (job 0 first)"),
    ):
        with pytest.raises(StepError, match=re.escape(said)):
            steps.start(given)
        assert (len(steps.queue), len(steps.running), steps.free) == (3, 0, 64)
    steps.start([0])
    assert steps.room[0, :2].tolist() == [12, 0]
    for what in ("levels", "drawn_w", "joules"):
        with pytest.raises(StepError, match=f"{what}: this world has no machine with watts"):
            getattr(steps, what)
    with pytest.raises(StepError, match="start: level=0: this world has no machine with watts"):
        steps.start([1], level=0)


def test_what_cannot_be_stepped_is_said_as_the_phases_declare_it() -> None:
    own, source = Composition(backfill="easy"), capped()
    budget = Power(budget=Budget(1e6, 0, 100, "energybud", "path", 10))
    rows = [(Configuration(1, 16, 100.0, 60.0, 200.0),)] * JOBS
    ways = with_ways(source.jobs, rows, 5, PowerCap.of(()))
    looped = World(source.source, loop=ClosedLoop(queue=3))
    for world, composition, said in (
        (source, Composition(backfill="easy", power=budget), "a budget of joules needs joules that are counted, and"),
        (source, Composition(idle_off_s=5), "idle_off_s needs boots, and a stepped world knows none: leave idle_off_s"),
        (source, policy("multifactor"), "an order by priorities needs all that has happened before, and a stepped"),
        (ways, own, "a world with configurations needs a table of configurations, and a stepped world has none"),
        (looped, own, "a closed loop needs a replay, and a stepped world is none"),
        (World(source.source), policy("powercap"), "a policy that knows watts needs watts, and a number of processors"),
        (noded(), choose("wfp3").composition, "an order by a score needs a number of processors, and a trace"),
        (noded(), choose("planned").on_nodes, "a plan needs the choice of who starts, and a stepped world leaves that"),
    ):
        with pytest.raises(StepError, match=re.escape(said)):
            Steps(world, composition)


def test_a_blind_fork_does_not_know_caps_to_come_and_goes_on_under_those_that_it_knows() -> None:
    steps = alone([(0, 20, 30, 4), (0, 20, 30, 4), (40, 5, 5, 1)], [Cap(0, 1000, 400.0), Cap(1000, 2000, 300.0, 1)])
    blind = steps.fork(blind=True)
    assert blind.caps[0].tolist() == [0, 1000]
    blind.run()
    assert (blind.started.tolist(), blind.wait_s.tolist(), blind.now_s) == ([0, 1], [0, 30], 60)
    assert blind.caps[1].tolist() == [400.0, np.inf]
    steps.advance()
    assert (steps.now_s, steps.caps[1].tolist()) == (1, [400.0, 300.0, np.inf])


@pytest.mark.parametrize(
    ("jobs", "given", "text"),
    [
        ("eurora-100.csv", {"cap": 3000}, "easy-capped"),
        ("generated-500.swf", {"machine": "curie", "cap": 380_000}, "powercap"),
        ("generated-500.swf", {"machine": 32}, "wfp3"),
    ],
)
def test_the_librarys_worlds_are_stepped_as_they_are_replayed(jobs: str, given: dict[str, Any], text: str) -> None:
    source = library.World(SAMPLES / jobs, **given)
    expected = library.replay(source, text, say=lambda _: None)
    steps = Steps.of(source, text)
    while not steps.is_over:
        steps.decide()
        steps.advance()
    assert (starts(steps) == expected.start_s).all() and len(steps.started) > 50


def test_a_warm_start_of_the_library_cannot_be_stepped() -> None:
    with pytest.raises(
        StepError, match="a warm start needs all that has happened before, and a stepped world is forked"
    ):
        Steps.of(library.World(state="now.csv"))


@pytest.mark.parametrize("text", ["powercap:kill=true", "easy-power:of=given"])
def test_the_gymnasium_environment_takes_watts_and_its_return_is_that_of_the_schedule(text: str) -> None:
    """Jobs that are killed wait again, and count once; each job of a window keeps the watts that are its own."""
    pytest.importorskip("gymnasium", reason="gymnasium is missing: pip install 'nodectl[gym]'")
    from cluster_agent.stepping.environment import Backfilling

    source, own = capped(text, seed=5), policy(text)
    environment = Backfilling(source, own, window=60)
    _, info = environment.reset(options={"first": 40})
    total, ended = info["reward"], False
    while not ended:
        _, reward, ended, _, _ = environment.step(np.int64(0))
        total += reward
    rows = np.arange(40, 100)
    assert source.watts is not None
    window = replace(source.only(rows), watts=source.watts.only(rows))
    found = run(window, own)
    wait_s = found.start_s - window.jobs.submit_s
    assert total == pytest.approx(-bounded_slowdown(wait_s, window.jobs.run_s).mean())
    assert found.schedule.kills.any() == (text == "powercap:kill=true")
