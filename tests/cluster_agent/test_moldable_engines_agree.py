"""The native scheduler of jobs with configurations, and the plain-Python one, on the same random traces."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from cluster_agent.replay.drawn import power_over_time
from cluster_agent.replay.simulated import JumpingClock
from cluster_agent.replay.world_run import stepped
from cluster_agent.scheduler.configurations.table import Configuration, Rows, ScaledRows
from cluster_agent.scheduler.loop import run
from cluster_agent.scheduler.policies.registry import choose
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.power_cap import PowerCap, constant
from cluster_agent.scheduler.world import Ways, World
from tests.cluster_agent.traces import jobs_of
from tests.cluster_agent.worlds import replay_moldable, with_ways, workload_of
from tests.oracle.moldable_scheduler import MoldableScheduler, TableMachine, choice_of, true_row

NODES, CAP = 8, constant(1000.0)

policies = st.sampled_from(
    [
        *(
            "rmap:policy=traditional",
            "rmap:policy=naive",
            "rmap",
            "rmap:th=0.3",
            "rmap:th=inf",
            "rmap:th=1,near=0.2",
            "rmap:priority=1.5",
        ),
        *("rmap:policy=naive,near=0.3", "rmap:priority=1.7,th=inf", "rmap:priority=1.5"),
        *("moldable", "moldable:rule=cores-endtime", "moldable:rule=energy", "moldable:rule=energy,slowdown=2.5"),
    ]
)

times = st.floats(0.5, 20) | st.integers(1, 20).map(float)


@st.composite
def tables(draw: st.DrawFn) -> tuple[Rows, Rows]:
    """Rows as a policy knows them, and as they are; few watts, nodes and times, so that ties are common."""
    places = draw(
        st.lists(
            st.tuples(st.integers(1, NODES), st.sampled_from([8, 16]), st.sampled_from([65.0, 115.0])),
            min_size=1,
            max_size=8,
            unique=True,
        )
    )
    known, true = [], []
    for place in places:
        watts, time_s = draw(st.sampled_from([100.0, 200.0, 1000 / 3, 500.0, 737.7, 1000.0])), draw(times)
        known.append(Configuration(*place, time_s, watts))
        true.append(Configuration(*place, draw(st.sampled_from([time_s, time_s, 0.5 * time_s, 2 * time_s])), watts))
    return tuple(known), tuple(draw(st.permutations(true)))


@st.composite
def worlds(draw: st.DrawFn) -> World:
    pairs = draw(st.lists(tables(), min_size=1, max_size=3))
    count = draw(st.sampled_from([1, 6, 10, 16]))
    row = st.tuples(st.integers(0, 12), st.just(1), st.integers(1, 30), st.integers(1, NODES), st.integers(0, 2))
    jobs = jobs_of(draw(st.lists(row, min_size=count, max_size=count)))
    of_job = draw(st.lists(st.integers(0, len(pairs) - 1), min_size=count, max_size=count))
    scale = draw(st.lists(st.sampled_from([1.0, 1.0, 0.37, 2.6]), min_size=count, max_size=count))
    known, true = (ScaledRows([pair[side] for pair in pairs], of_job, scale) for side in (0, 1))
    ways = Ways(known, draw(st.sampled_from([None, true])))
    return World(workload_of(jobs, NODES), caps=CAP, ways=ways)


@st.composite
def caps(draw: st.DrawFn) -> PowerCap:
    """Announced changes; the last cap is the highest, so that every job that could run at any runs in the end."""
    times_s = sorted(draw(st.sets(st.integers(1, 40), max_size=4)))
    watts = draw(st.lists(st.sampled_from([0.0, 350.0, 600.0, 1000.0]), min_size=len(times_s), max_size=len(times_s)))
    return PowerCap((0, *times_s), (*watts, 1000.0))


@settings(max_examples=200)
@given(world=worlds(), policy=policies, cap=st.just(CAP) | caps())
def test_the_native_and_the_plain_scheduler_start_every_job_alike_and_in_the_same_configuration(
    world: World, policy: str, cap: PowerCap
) -> None:
    empty, jobs = MoldableScheduler(choice_of(policy), world), range(len(world.jobs))
    never = [job for job in jobs if empty.starts_now(0, job) is None]
    world = replace(world, caps=cap)
    possible = world.only(np.array([job for job in jobs if job not in never], np.int64))
    plain = MoldableScheduler(choice_of(policy), possible)
    machine = TableMachine(plain)
    run(plain, JumpingClock(), machine)
    chosen = tuple(true_row(plain.ways, job, plain.chosen[job]) for job in range(len(possible.jobs)))
    # the choice as C has it, and as the papers have it, called by the engine
    for one in (choose(policy).composed, Composition(choose=choice_of(policy))):
        native = replay_moldable(one, world)
        ran = native.start_s >= 0
        assert native.impossible == tuple(never)
        assert dict(enumerate(native.start_s[ran].tolist())) == machine.start_s
        assert dict(enumerate(native.end_s[ran].tolist())) == machine.end_s
        assert tuple(row for row in native.chosen if row is not None) == chosen
        scheduler, again = stepped(possible, one)
        run(scheduler, JumpingClock(), again)
        assert again.start_s == machine.start_s
    event(f"{len(cap.time_s) - 1} changes of the cap")
    if plain.ways.truth is None:  # who runs as long as the table says keeps every cap
        power = power_over_time(native.result)
        assert (power.watts <= power.cap_w + 1e-5).all()


def test_a_choice_of_ones_own_is_called_by_the_engine() -> None:
    """The row of fewest watts, whenever it fits."""
    rows = (Configuration(4, 16, 115, 10, 600), Configuration(2, 16, 115, 15, 450))
    world = with_ways(jobs_of([(0, 1, 10, 4, 0), (0, 1, 10, 4, 0)]), [rows, rows], NODES, CAP)
    frugal = Composition(choose=lambda asked: min(asked.rows, key=lambda row: row.watts))
    assert replay_moldable(frugal, world).start_s.tolist() == [0, 0]


def test_an_error_of_a_choice_of_ones_own_reaches_the_caller() -> None:
    rows = (Configuration(4, 16, 115, 10, 600),)
    world = with_ways(jobs_of([(0, 1, 10, 4, 0)]), [rows], NODES, CAP)
    with pytest.raises(ZeroDivisionError):
        replay_moldable(Composition(choose=lambda asked: asked.rows[1 // 0]), world)


def test_a_head_keeps_its_watts_over_its_whole_span_where_the_cap_drops_meanwhile() -> None:
    """At 20 s there are 400 W next to the head, from 30 s on none."""
    rows = [(Configuration(*one),) for one in ((4, 16, 115, 20, 500), (5, 16, 115, 20, 600), (2, 16, 115, 35, 300))]
    cap = PowerCap((0, 30, 60), (1000.0, 600.0, 1000.0))
    world = with_ways(jobs_of([(0, 20, 20, 4, 0), (1, 20, 20, 5, 0), (1, 35, 35, 2, 0)]), rows, NODES, cap)
    for policy in ("rmap:policy=traditional", "moldable"):
        assert replay_moldable(choose(policy).composed, world).start_s.tolist() == [0, 20, 40]


@pytest.mark.parametrize(("ends", "start_s"), [([2, 4], 4), ([2, 4, 6, 7], 7), ([2, 4, 6, 9], 0)])
def test_a_faster_configuration_is_waited_for_until_it_has_its_watts_to_its_end(ends: list[int], start_s: int) -> None:
    """500 W for 5 s, which caps of 100 W allow only between them, or 90 W for 13 s at once."""
    rows = (Configuration(1, 16, 115, 5, 500), Configuration(1, 8, 65, 13, 90))
    cap = PowerCap((0, *ends), tuple([1000.0, 100.0][at % 2] for at in range(len(ends) + 1)))
    world = with_ways(jobs_of([(0, 1, 10, 1, 0)]), [rows], NODES, cap)
    assert replay_moldable(choose("moldable").composed, world).start_s.tolist() == [start_s]
