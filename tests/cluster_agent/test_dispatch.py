"""DARDIS: when units fit, who may start a job, and what is left of it when messages, nodes and managers fail."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from cluster_agent.cap_steps import Cap
from cluster_agent.cluster import load_machine
from cluster_agent.dispatch import messages as m
from cluster_agent.dispatch import node_manager, task_manager
from cluster_agent.dispatch.fitting_index import MANY, Booked, Desired, Need, Profile, Window, fittings, packed
from cluster_agent.dispatch.log_world import SETUPS, DispatchWorld, Schedule, dispatched, lateness, result_of, world_of
from cluster_agent.dispatch.node_state import NodeState
from cluster_agent.dispatch.profile_rule import by_rule
from cluster_agent.dispatch.simulation import Crash, Cut, Faults, Job, Links, Outcome, Simulation
from cluster_agent.dispatch.start_choices import chosen, offered
from cluster_agent.dispatch.task_manager import Setup, TaskState
from cluster_agent.replay.measures import measure
from cluster_agent.scheduler.recorded import StartsError

MINUTE_US = 60_000_000
RULES = m.Rules(ahead_us=2_000_000)
SETUP = Setup("first", "earliest", asks=4, backfills=True)
ALL, NONE = Need(32, 352_000), Need(0, 0)


def node_of(node: int = 0, rules: m.Rules = RULES, cap_mw: int = 352_000) -> NodeState:
    has = Need(32, cap_mw)
    return NodeState(node, has, Profile([Desired(0, has)]), rules, cap_mw // 2, m.Grant(cap_mw, 1 << 61))


def job_of(at_us: int = 0, units: int = 1, cores: int = 32, minutes: int = 10) -> Job:
    return Job(at_us, minutes * MINUTE_US, units, Need(cores, cores * 11_000), minutes, 30)


def simulated(jobs: list[Job], nodes: int = 4, **given: Any) -> tuple[Simulation, Outcome]:
    rules = given.pop("rules", RULES)
    simulation = Simulation([node_of(node, rules) for node in range(nodes)], jobs, SETUP, rules, **given)
    return simulation, simulation.run()


def submit(job: int, attempt: int = 1, length: int = 10, need: Need = ALL) -> m.Submit:
    return m.Submit(job, attempt, need, Window(length, 1, 30), 5, "first", False, 1)


def sent(orders: list[m.Order], kind: type[m.Message]) -> list[Any]:
    return [one.message for one in orders if isinstance(one, m.Send) and isinstance(one.message, kind)]


def accepted(state: NodeState, job: int, first: int = 5, need: Need = ALL, attempt: int = 1) -> NodeState:
    """A node on which a job's unit has been accepted."""
    state, _ = node_manager.step(state, submit(job, attempt, need=need), 0)
    state, orders = node_manager.step(state, m.Confirm(job, attempt, first), 0)
    assert sent(orders, m.Accepted)
    return state


# --- when a unit fits

_NEED = st.builds(Need, st.integers(0, 8), st.integers(0, 40))
_BOOKED = st.builds(
    lambda first, lasts, need: Booked(first, first + lasts, need), st.integers(0, 30), st.integers(1, 20), _NEED
)


@settings(max_examples=100, deadline=None)
@given(st.lists(_BOOKED, max_size=6), st.dictionaries(st.integers(0, 40), _NEED, min_size=1, max_size=3), _NEED,
       st.integers(1, 15), st.integers(0, 20), st.integers(1, 25), st.booleans())  # fmt: skip
def test_the_fitting_index_is_that_of_every_slot_of_its_definition(
    booked: list[Booked], steps: dict[int, Need], need: Need, length: int, first: int, width: int, within: bool
) -> None:
    profile = Profile([Desired(at, steps[at]) for at in sorted(steps)])
    capacity, window = Need(16, 100), Window(length, first, first + width)
    found = fittings(b"".join(map(packed, booked)), profile, capacity, need, window, within)
    by_slot = [(slot, fit, room) for begin, end, fit, room in found for slot in range(begin, end)]
    expected = []
    for slot in range(first, first + width):
        fit = room = float("inf")
        for at in range(slot, slot + length):
            desired = next((one.most for one in reversed(profile.steps) if one.first <= at), profile.steps[0].most)
            for k in (0, 1):
                if need[k]:
                    up = sum(one.need[k] for one in booked if one.first <= at < one.last)
                    fit = min(fit, (min(desired[k], capacity[k]) - up) / need[k])
                    room = min(room, (capacity[k] - up) / need[k])
        if room >= 1 and (fit >= 1 or not within):
            expected.append((slot, fit, room))
    assert by_slot == expected


def test_a_full_profile_does_not_hide_that_there_is_room() -> None:
    """The thesis prints the minimum of both: with 24 of 32 cores desired and in use, it is 0."""
    profile = Profile([Desired(0, Need(24, 352_000))])
    booked = packed(Booked(0, 100, Need(24, 0)))
    given = booked, profile, ALL, Need(8, 0), Window(10, 0, 20)
    assert fittings(*given, True) == []
    assert fittings(*given, False) == [(0, 20, 0.0, 1.0)]


def test_watts_that_the_node_is_not_granted_are_no_room() -> None:
    assert fittings(b"", Profile([Desired(0, ALL)]), Need(32, 100_000), ALL, Window(10, 0, 20), False, MANY) == []


def test_each_way_offers_as_many_distinct_starts_as_are_wanted_and_first_the_earliest() -> None:
    profile, window = Profile([Desired(0, ALL)]), Window(10, 0, 100)
    booked = packed(Booked(20, 30, ALL))
    for way in ("first", "uniform", "exponential"):
        spans = offered(booked, profile, ALL, ALL, window, 7, way, True, 3)
        slots = [slot for begin, end, _ in spans for slot in range(begin, end)]
        assert len(slots) == len(set(slots)) == 7
        assert all(slot <= 10 or slot >= 30 for slot in slots)
        if way == "first":
            assert slots == list(range(7))


def test_a_node_that_is_to_keep_the_profile_looks_at_what_is_desired_when_the_unit_starts() -> None:
    """As the central rule does. A unit that outlasts the busy hours of a day would never start otherwise."""
    profile = Profile([Desired(0, NONE), Desired(10, ALL), Desired(20, NONE), Desired(40, ALL), Desired(45, NONE)])
    given = packed(Booked(30, 43, ALL)), profile, ALL, ALL, Window(12, 0, 100)
    assert [span[:2] for span in offered(*given, 100, "first", True, 0)] == [(10, 19), (43, 45)]
    assert [span[:2] for span in offered(*given, 10, "first", True, 0)] == [(10, 19), (43, 44)]
    assert offered(*given, 4, "first", False, 0)[0][:2] == (0, 4)


def test_exponential_offers_come_earlier_than_uniform_ones() -> None:
    profile, window = Profile([Desired(0, ALL)]), Window(1, 0, 1000)
    means = {}
    for way in ("uniform", "exponential"):
        found = [offered(b"", profile, ALL, ALL, window, 5, way, True, seed) for seed in range(60)]
        means[way] = np.mean([begin for spans in found for begin, _, _ in spans])
    assert means["uniform"] == pytest.approx(500, abs=60)
    assert means["exponential"] == pytest.approx(1000 * (1 - 1 / (np.e - 1)), abs=60)  # of a cut exponential: 418


def test_the_three_choices_of_a_job() -> None:
    spans = [((0, 3, 1.0), (5, 6, 9.0)), ((2, 4, 1.0), (5, 6, 1.0)), ((2, 3, 2.0), (5, 6, 2.0))]
    replies = [m.Candidates(0, 1, node, given, 0, 0) for node, given in enumerate(spans)]
    window = Window(1, 0, 10)
    assert chosen(replies, window, 2, "earliest", 0) == (2, [0, 1])
    assert chosen(replies, window, 2, "best", 0) == (5, [0, 2])
    found = {chosen(replies, window, 2, "random", seed)[0] for seed in range(30)}  # type: ignore[index]
    assert found == {2, 5}
    assert chosen(replies, window, 4, "earliest", 0) is None


# --- one node


def test_a_second_job_waits_until_the_offer_to_the_first_is_confirmed_released_or_over() -> None:
    """Else both could be promised the same place; and a dead task manager would block the node."""
    state, orders = node_manager.step(node_of(), submit(1), 0)
    assert sent(orders, m.Candidates)
    for ends in (m.Confirm(1, 1, 1), m.Release(1, 1), m.Due(1, 1, "offer")):
        waiting, orders = node_manager.step(state, submit(2), 1000)
        assert orders == []
        _, orders = node_manager.step(waiting, ends, 2000)
        assert [one.job for one in sent(orders, m.Candidates)] == [2]


def test_a_confirmation_that_comes_late_is_refused_in_one_line_and_starts_nothing() -> None:
    state, _ = node_manager.step(node_of(), submit(1), 0)
    state, _ = node_manager.step(state, m.Due(1, 1, "offer"), RULES.offer_us)
    state, orders = node_manager.step(state, m.Confirm(1, 1, 1), RULES.offer_us + 1)
    assert [one.why for one in sent(orders, m.Refused)] == ["its offer has lapsed: the confirmation came late"]
    assert state.rows == ()


def test_the_journal_has_a_reservation_before_it_is_accepted_and_a_start_before_it_is_answered_for() -> None:
    state, _ = node_manager.step(node_of(), submit(1), 0)
    state, orders = node_manager.step(state, m.Confirm(1, 1, 5), 0)
    kinds = [type(one.message if isinstance(one, m.Send) else one) for one in orders]
    assert kinds.index(m.Write) < kinds.index(m.Accepted)
    _, orders = node_manager.step(state, m.Start(1, 1, (0,)), 0)
    kinds = [type(one.message if isinstance(one, m.Send) else one) for one in orders]
    assert kinds.index(m.Write) < kinds.index(m.Started)


def test_a_reservation_of_a_dead_task_manager_ends_by_itself() -> None:
    state = accepted(node_of(), 1)
    state, orders = node_manager.step(state, m.Due(1, 1, "lapse"), 5 * MINUTE_US + RULES.grace_us)
    assert state.rows == () and orders == [m.Erase(1, 1)]


def test_an_attempt_that_is_over_does_not_come_back_with_a_late_confirmation() -> None:
    state, _ = node_manager.step(accepted(node_of(), 1), m.Release(1, 1), 0)
    state, _ = node_manager.step(state, submit(1), 1)  # doubled, and late
    state, orders = node_manager.step(state, m.Confirm(1, 1, 5), 2)
    assert [one.why for one in sent(orders, m.Refused)] == ["that attempt is over"]
    assert state.rows == ()


def test_a_lead_that_crashed_before_its_start_still_has_the_job_and_returns_it_if_it_comes_back_late() -> None:
    half = Need(16, 176_000)  # it comes back without a lease
    before, orders = node_manager.step(accepted(node_of(), 1, need=half), m.Start(1, 1, (0,)), 0)
    journal = [one.row for one in orders if isinstance(one, m.Write)]
    state, orders = node_manager.recovered(node_of(), journal, MINUTE_US)
    assert state.rows == before.rows
    due = next(one for one in orders if isinstance(one, m.Later))
    state, orders = node_manager.step(state, due.message, 5 * MINUTE_US)
    assert state.rows[0].phase == "running"
    late, _ = node_manager.recovered(node_of(), journal, 60 * MINUTE_US)
    late, orders = node_manager.step(late, due.message, 60 * MINUTE_US)
    assert [one.result for one in sent(orders, m.Ended)] == ["returned"]
    assert [one.text for one in orders if isinstance(one, m.Note)] == [
        "job 1 is returned, not run: node 0 was down when its start came"
    ]


def test_a_job_that_ran_when_its_lead_crashed_is_over_and_not_run_again() -> None:
    state, _ = node_manager.step(accepted(node_of(), 1), m.Start(1, 1, (0,)), 0)
    _, orders = node_manager.step(state, m.Due(1, 1, "begin", 1000), 5 * MINUTE_US)
    journal = [one.row for one in orders if isinstance(one, m.Write)]
    _, orders = node_manager.recovered(node_of(), journal, 6 * MINUTE_US)
    assert [one.result for one in sent(orders, m.Ended)] == ["cut"]


def test_a_node_that_promised_the_same_place_twice_starts_one_job_and_returns_the_other_in_one_line() -> None:
    """As after a journal that was put back from a copy."""
    state = accepted(node_of(), 1)
    other = accepted(node_of(), 2).rows[0]
    state = replace(state, rows=(*state.rows, other))
    for job in (1, 2):
        state, _ = node_manager.step(state, m.Start(job, 1, (0,)), 0)
    state, orders = node_manager.step(state, m.Due(1, 1, "begin", 1000), 5 * MINUTE_US)
    assert [type(one) for one in orders] == [m.Write, m.Run]
    state, orders = node_manager.step(state, m.Due(2, 1, "begin", 1000), 5 * MINUTE_US + RULES.grace_us)
    assert [one.text for one in orders if isinstance(one, m.Note)] == [
        "job 2 is returned, not run: node 0 has 32 cores and promised 64: a job too many"
    ]
    assert [one.result for one in sent(orders, m.Ended)] == ["returned"]


def led(units: int = 2, now_us: int = 5 * MINUTE_US) -> list[NodeState]:
    """A job of several units that runs: the states of its nodes, the lead first, and its units begun."""
    members = tuple(range(units))
    nodes = [accepted(node_of(node), 1) for node in members]
    nodes[0], _ = node_manager.step(nodes[0], m.Start(1, 1, members), 0)
    for node in members[1:]:
        nodes[node], _ = node_manager.step(nodes[node], m.Join(1, 1, 0), now_us)
        nodes[0], orders = node_manager.step(nodes[0], m.Joined(1, 1, node), now_us)
    for node in members[1:]:
        begin = next(one.message for one in orders if isinstance(one, m.Send) and one.to == node)
        nodes[node], more = node_manager.step(nodes[node], begin, now_us)
        assert [one.row.members for one in more if isinstance(one, m.Run)] == [members]
        nodes[0], _ = node_manager.step(nodes[0], sent(more, m.Begun)[0], now_us)
    return nodes


def test_a_unit_begins_once_however_often_the_lead_says_so_and_the_job_ends_with_its_last_unit() -> None:
    lead, other = led()
    other, orders = node_manager.step(other, m.Begin(1, 1, (0, 1)), 6 * MINUTE_US)
    assert not [one for one in orders if isinstance(one, m.Run)] and sent(orders, m.Begun)
    lead, orders = node_manager.step(lead, m.ProgramEnded(1, 1), 6 * MINUTE_US)
    assert lead.rows[0].phase == "running" and not sent(orders, m.Ended)
    other, orders = node_manager.step(other, m.ProgramEnded(1, 1), 7 * MINUTE_US)
    assert other.rows == () and other.closing[0].phase == "left"
    lead, orders = node_manager.step(lead, sent(orders, m.Left)[0], 7 * MINUTE_US)
    assert [one.result for one in sent(orders, m.Ended)] == ["done"] and lead.rows == ()
    other, orders = node_manager.step(other, sent(orders, m.End)[0], 7 * MINUTE_US)
    assert other.closing == () and orders == [m.Erase(1, 1)]


def test_a_unit_that_fails_ends_the_others_and_the_job_says_how_it_failed() -> None:
    lead, other, last = led(3)
    other, orders = node_manager.step(other, m.ProgramEnded(1, 1, "exit status 3"), 6 * MINUTE_US)
    lead, orders = node_manager.step(lead, sent(orders, m.Left)[0], 6 * MINUTE_US)
    assert [type(one) for one in orders if isinstance(one, m.Stop)] == [m.Stop]
    stops = [(one.to, one.message.stops) for one in orders if isinstance(one, m.Send)
             and isinstance(one.message, m.Begin)]  # fmt: skip
    assert stops == [(2, True)]
    last, orders = node_manager.step(last, m.Begin(1, 1, (0, 1, 2), True), 6 * MINUTE_US)
    assert [type(one) for one in orders if isinstance(one, m.Stop)] == [m.Stop]
    last, orders = node_manager.step(last, m.ProgramEnded(1, 1, "exit status -15"), 6 * MINUTE_US)
    lead, _ = node_manager.step(lead, sent(orders, m.Left)[0], 6 * MINUTE_US)
    lead, orders = node_manager.step(lead, m.ProgramEnded(1, 1, "exit status -15"), 6 * MINUTE_US)
    assert [(one.result, one.why) for one in sent(orders, m.Ended)] == [("done", "exit status 3")]


def test_a_job_that_is_cancelled_before_its_start_never_begins_whatever_comes_late() -> None:
    before = accepted(node_of(), 1)
    started, _ = node_manager.step(before, m.Start(1, 1, (0,)), 0)
    for state, answer in ((started, m.Ended(1, 1, 0, "done", m.CANCELLED)),
                          (before, m.Refused(1, 1, 0, "it has no such job", True))):  # fmt: skip
        state, orders = node_manager.step(state, m.Cancel(1, 1), 0)
        assert state.rows == () and [one.message for one in orders if isinstance(one, m.Send)] == [answer]
        state, _ = node_manager.step(state, m.Closed(1, 1), 0)
        state, _ = node_manager.step(state, submit(1), 0)
        for late in (m.Confirm(1, 1, 5), m.Start(1, 1, (0,)), m.Due(1, 1, "begin", 1000)):
            state, orders = node_manager.step(state, late, 0)
            assert state.rows == () and not sent(orders, m.Started)


def test_a_cancelled_job_ends_on_all_its_nodes_also_when_its_lead_restarts() -> None:
    lead, other = led()
    lead, orders = node_manager.step(lead, m.Cancel(1, 1), 6 * MINUTE_US)
    assert node_manager.step(lead, m.Cancel(1, 1), 6 * MINUTE_US) == (lead, [])
    for found in (orders, node_manager.recovered(node_of(), lead.rows, 6 * MINUTE_US, {(1, 1)})[1]):
        assert [one.row.job for one in found if isinstance(one, m.Stop)] == [1]
    lead, orders = node_manager.recovered(node_of(), lead.rows, 6 * MINUTE_US, {(1, 1)})
    due = next(one.message for one in orders if isinstance(one, m.Later) and one.message.what == "members")
    lead, orders = node_manager.step(lead, due, 6 * MINUTE_US)
    assert sent(orders, m.Begin) == [m.Begin(1, 1, (0, 1), True)]
    other, orders = node_manager.step(other, sent(orders, m.Begin)[0], 6 * MINUTE_US)
    assert [one.row.job for one in orders if isinstance(one, m.Stop)] == [1]
    lead, _ = node_manager.step(lead, m.Left(1, 1, 1, "exit status -15"), 6 * MINUTE_US)
    lead, orders = node_manager.step(lead, m.ProgramEnded(1, 1, "exit status -15"), 6 * MINUTE_US)
    assert sent(orders, m.Ended) == [m.Ended(1, 1, 0, "done", m.CANCELLED)] and lead.rows == ()


def test_managers_that_restart_alone_find_the_job_running_and_those_of_a_node_that_crashed_do_not() -> None:
    for node, state in enumerate(led()):
        found, orders = node_manager.recovered(node_of(node), state.rows, 6 * MINUTE_US, {(1, 1)})
        assert found.rows == state.rows and not [one for one in orders if isinstance(one, m.Run)]
        crashed, orders = node_manager.recovered(node_of(node), state.rows, 6 * MINUTE_US)
        assert crashed.rows == () and [one.phase for one in crashed.closing] == [("cut", "lost")[node]]


def test_a_node_that_never_says_that_its_unit_has_ended_is_not_waited_for_for_ever() -> None:
    lead, _ = led()
    lead, _ = node_manager.step(lead, m.ProgramEnded(1, 1), 6 * MINUTE_US)
    _, orders = node_manager.step(lead, m.Due(1, 1, "over"), 60 * MINUTE_US)
    assert [(one.result, one.why) for one in sent(orders, m.Ended)] == [
        ("cut", "node 1 has not said that its unit has ended")
    ]


def test_without_a_lease_a_node_starts_only_what_its_safe_cap_feeds() -> None:
    state = replace(node_of(), grant=m.Grant(352_000, MINUTE_US))
    _, orders = node_manager.step(state, submit(1), MINUTE_US)
    assert sent(orders, m.Candidates)[0].spans == ()
    _, orders = node_manager.step(state, submit(1, need=Need(16, 176_000)), MINUTE_US)
    assert sent(orders, m.Candidates)[0].spans


def test_watts_that_come_move_planned_jobs_forward() -> None:
    """A job that was planned far ahead, since no node was granted its watts sooner."""
    state = accepted(node_of(), 1)
    lapsed = replace(state, grant=m.Grant(352_000, 1))
    _, orders = node_manager.step(lapsed, m.Grant(352_000, 1 << 61), MINUTE_US)
    assert sent(orders, m.Hint) == [m.Hint(1, 1)]
    assert node_manager.step(state, m.Grant(352_000, 1 << 62), MINUTE_US)[1] == []  # a renewal


# --- one job


def task_of(nodes: int = 2, units: int = 1) -> TaskState:
    return TaskState(7, units, ALL, 10, 30, nodes, SETUP, RULES, 1)


def test_a_node_whose_clock_is_minutes_apart_is_left_out_in_one_line() -> None:
    _, outcome = simulated([job_of(units=2), job_of(units=2)], nodes=4, faults=Faults(clock_us={1: 180_000_000}))
    assert set(outcome.notes) == {"node 1: its clock is +180 s from here: set it; it is left out"}
    assert all(1 not in nodes and start >= 0 for nodes, start in zip(outcome.nodes, outcome.start_us, strict=True))


def test_a_job_that_no_node_can_run_ends_in_one_line() -> None:
    simulation, outcome = simulated([job_of(cores=64), job_of(units=5), job_of()], nodes=4)
    assert list(outcome.notes) == [
        "job 0 can never run: 1 nodes with 64 cores and 704 W each are needed, and 0 have them",
        "job 1 can never run: 5 nodes with 32 cores and 352 W each are needed, and 4 have them",
    ]
    assert [start >= 0 for start in outcome.start_us] == [False, False, True]
    assert not simulation.tasks


@pytest.mark.parametrize(("grant_mw", "lease_us"), [(200_000, 0), (352_000, MINUTE_US)])
def test_a_job_that_no_grant_can_ever_feed_ends_in_one_line(grant_mw: int, lease_us: int) -> None:
    """Under too low grants, and under the safe cap once the head is gone for good."""
    nodes = [replace(node_of(node), grant=m.Grant(grant_mw, 1 << 61)) for node in range(4)]
    jobs, gone = [job_of(20 * MINUTE_US), job_of(cores=4)], Faults(head_gone_us=(MINUTE_US, 1 << 60))
    simulation = Simulation(nodes, jobs, SETUP, RULES, faults=gone, lease_us=lease_us)
    outcome = simulation.run(lambda _: pytest.fail("it goes on") if simulation.now_us > 600 * MINUTE_US else None)
    assert [note for note in outcome.notes if "can never" in note] == [
        "job 0 can never run: 1 nodes with 32 cores and 352 W each are needed, and 0 are granted as much"
    ]
    assert [start >= 0 for start in outcome.start_us] == [False, True] and not simulation.tasks


def test_candidates_that_come_twice_count_once() -> None:
    state, orders = task_manager.begin(task_of(nodes=3, units=2), 0)
    reply = m.Candidates(7, 1, 0, ((2, 9, 1.0),), 0, 0)
    state, _ = task_manager.step(state, reply, 1000)
    again, orders = task_manager.step(state, reply, 2000)
    assert again is state and orders == []


def test_a_task_manager_does_not_try_again_before_the_lead_has_answered() -> None:
    """The lead may have the job in its journal: a second attempt could run it twice."""
    state, _ = task_manager.begin(task_of(nodes=1), 0)
    state, _ = task_manager.step(state, m.Candidates(7, 1, 0, ((2, 9, 1.0),), 0, 0), 1000)
    state, orders = task_manager.step(state, m.Accepted(7, 1, 0), 2000)
    late_refusal = m.Refused(7, 1, 0, "a confirmation that came twice")
    for _ in range(20):
        due = next(one for one in orders if isinstance(one, m.Later))
        state, orders = task_manager.step(state, due.message, due.at_us)
        assert [type(one.message) for one in orders if isinstance(one, m.Send)] == [m.Start]
        assert task_manager.step(state, late_refusal, due.at_us) == (state, [])
    assert orders[-1].at_us - due.at_us == RULES.slowest_us  # type: ignore[union-attr]


def test_a_task_manager_ends_its_job_where_a_lead_may_have_it_and_says_once_more_until_that_answers() -> None:
    state, _ = task_manager.begin(task_of(nodes=1), 0)
    over, orders = task_manager.cancel(state, 500)
    assert over.phase == "over" and sent(orders, m.Release) == [m.Release(7, 1)] and not sent(orders, m.Cancel)
    state, _ = task_manager.step(state, m.Candidates(7, 1, 0, ((2, 9, 1.0),), 0, 0), 1000)
    state, orders = task_manager.step(state, m.Accepted(7, 1, 0), 2000)
    state, orders = task_manager.cancel(state, 3000)
    assert state == task_manager.cancel(state, 3000)[0]
    for at in range(12):
        assert state.phase == "cancel" and sent(orders, m.Cancel) == [m.Cancel(7, 1)]
        state, orders = task_manager.resume(state, 4000 + at)
        assert sent(orders, m.Cancel)
        due = next(one for one in orders if isinstance(one, m.Later))
        for _ in range(5):
            state, orders = task_manager.step(state, due.message, due.at_us)
            due = next(one for one in orders if isinstance(one, m.Later))
    assert [one.text for one in orders if isinstance(one, m.Note)] == [
        "job 7: node 0 does not answer: the job ends there as soon as it does"
    ]
    assert task_manager.step(state, m.Started(7, 1), 9000) == (state, [])
    for answer in (m.Refused(7, 1, 0, "it has no such job", True), m.Ended(7, 1, 0, "returned")):
        assert task_manager.step(state, answer, 9000)[0].phase == "over"


def test_a_better_start_keeps_the_lead_and_takes_the_place_of_the_first() -> None:
    """The first job ends early; the second, planned behind it, is moved forward."""
    early = Job(0, 3 * MINUTE_US, 1, ALL, 60, 10)
    _, outcome = simulated([early, job_of(at_us=MINUTE_US)], nodes=1)
    assert outcome.start_us == [MINUTE_US, 5 * MINUTE_US]  # a slot after the end, which is 2 s too late for slot 4
    assert outcome.attempts == [1, 3]
    _, outcome = simulated([early, job_of(at_us=MINUTE_US)], nodes=1, rules=replace(RULES, depth=0))
    assert outcome.start_us[1] == 61 * MINUTE_US


# --- a cluster with faults


def check(simulation: Simulation, outcome: Outcome) -> None:
    """What is promised, whatever happens."""
    assert outcome.lost == []
    assert outcome.twice == outcome.over_capacity == outcome.over_budget_mw == outcome.after_cancel == 0
    assert not simulation.tasks
    for state, journal in zip(simulation.nodes, simulation.journal, strict=True):
        assert state is not None
        assert sorted(journal.values(), key=str) == sorted((*state.rows, *state.closing), key=str)


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 2**32))
def test_no_accepted_job_is_lost_nor_run_twice_and_no_watt_is_above_the_budget(seed: int) -> None:
    """With messages lost, late and doubled, crashes, dead task managers, a cut network, clocks apart, no head for a
    while, and jobs that are cancelled. A million of such events: ``python -m benchmarks dardis``."""
    random, at_us, jobs = Random(seed), 0, []
    for _ in range(25):
        at_us += int(random.expovariate(1 / MINUTE_US))
        jobs.append(job_of(at_us, random.choice((1, 1, 2, 4)), random.choice((4, 16, 32)), random.randrange(1, 30)))
    crashes = [(random.randrange(8), random.randrange(at_us)) for _ in range(6)]
    faults = Faults(
        tuple(Crash(node, begin, begin + random.randrange(60, 900) * 1_000_000) for node, begin in crashes),
        (Cut(at_us // 3, at_us // 2, frozenset((0, 1, 2))),),
        0.1, 100_000, {random.randrange(8): 180_000_000}, (at_us // 2, at_us), 0.2,
    )  # fmt: skip
    links = Links(1000, 10_000, 0.05, 0.05)
    simulation, outcome = simulated(jobs, 8, links=links, faults=faults, seed=seed, lease_us=MINUTE_US)
    check(simulation, outcome)
    assert len(outcome.accepted) > 12
    assert outcome.faults["messages lost"] and outcome.faults["nodes crashed"]
    assert outcome.cancelled or not outcome.faults["jobs cancelled"]


def test_jobs_go_on_while_the_network_is_cut_and_all_of_them_run_when_it_is_whole() -> None:
    cut = Cut(0, 30 * MINUTE_US, frozenset((0, 1, 2)))
    jobs = [job_of(at * MINUTE_US, units=1 + 3 * (at == 2), minutes=5) for at in range(6)]
    simulation, outcome = simulated(jobs, 4, faults=Faults(cuts=(cut,)))
    check(simulation, outcome)
    assert min(outcome.start_us) >= 0
    assert outcome.start_us[0] < 5 * MINUTE_US < 30 * MINUTE_US <= outcome.start_us[2]
    assert any("nodes answer" in note for note in outcome.notes)


def test_jobs_are_dispatched_under_the_safe_cap_while_the_head_is_gone() -> None:
    jobs = [job_of(at * MINUTE_US, cores=16, minutes=5) for at in range(10)]
    simulation, outcome = simulated(jobs, 2, faults=Faults(head_gone_us=(1, 1 << 60)), lease_us=MINUTE_US)
    check(simulation, outcome)
    assert min(outcome.start_us) >= 0 and max(outcome.dispatch_us) < 10 * MINUTE_US


def test_equal_seeds_give_equal_runs() -> None:
    links = Links(1000, 10_000, 0.02, 0.02)
    jobs = [job_of(at * MINUTE_US, units=2) for at in range(8)]
    first, second, other = (simulated(jobs, 6, links=links, seed=seed)[1] for seed in (3, 3, 4))
    assert (first.start_us, first.nodes, first.events) == (second.start_us, second.nodes, second.events)
    assert first.nodes != other.nodes


# --- a log


def world(profile: list[Cap] | None = None, cap_w: float | None = None) -> DispatchWorld:
    random = np.random.default_rng(5)
    request_s = random.integers(1, 40, 60) * 60
    times = {
        "submit_s": np.sort(random.integers(0, 3600, 60)),
        "run_s": np.maximum((request_s * random.uniform(0.1, 1, 60)).astype(np.int64), 1),
        "request_s": request_s,
    }
    machine = load_machine("curie-fat:nodes=6")
    return world_of(times, random.choice([1, 16, 32, 64, 96], 60), machine, lambda _: None, profile or [], cap_w)


@pytest.mark.parametrize("name", SETUPS)
def test_a_schedule_of_each_setup_has_room_in_the_engine_and_is_measured_by_it(name: str) -> None:
    found, said = world(), [0]
    schedule, outcome = dispatched(found, SETUPS[name], 1, said.append)
    assert said == sorted(said), "what has ended is said, never fewer"
    assert 0 < said[-1] <= 60
    result = result_of(found, schedule)
    assert result.start_s.tolist() == schedule.start_s.tolist()
    measured = measure(result)
    assert (measured["ended"], measured["unstarted"], outcome.over_capacity) == (60, 0, 0)
    assert measured["wait_s"]["mean"] == pytest.approx(lateness(found, schedule).wait_s / 60)


def test_the_engine_refuses_a_schedule_without_room() -> None:
    found = world()
    schedule, _ = dispatched(found, SETUPS["throughput"], 1)
    wide = [job for job, nodes in enumerate(schedule.nodes) if found.jobs[job].need.cores == 32]
    moved = schedule.start_s.copy()
    moved[wide] = moved[wide].max()
    with pytest.raises((StartsError, ValueError)):
        result_of(found, Schedule(moved, [tuple(range(len(nodes))) for nodes in schedule.nodes]))


def test_a_cap_leaves_as_many_nodes_as_it_feeds() -> None:
    machine = load_machine("curie-fat:nodes=6")
    cap_w = machine.idle_w + 2.5 * (machine.node.busy_w[0] - machine.node.idle_w)
    assert [round(one / max(world().grant_mw), 1) for one in world(cap_w=cap_w).grant_mw] == [1, 1, 0.5, 0, 0, 0]


def test_the_rule_keeps_a_profile_that_throughput_exceeds_unless_it_is_to_keep_within() -> None:
    busy_w = load_machine("curie-fat").node.busy_w[0]
    found = world([Cap(0, 1 << 40, 3.5 * busy_w)])
    over = {name: lateness(found, dispatched(found, SETUPS[name], 1)[0]).over_core_h for name in SETUPS}
    rule, _ = by_rule(found, "fcfs")
    assert lateness(found, rule).over_core_h == 0.0
    assert result_of(found, rule).unstarted == 0
    assert over["throughput"] > over["throughput-within"] == 0
