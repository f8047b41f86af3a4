"""Reservations of processors: the engine against a plain machine, and the option of a replay."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster_agent.scheduler.job_columns import Jobs
from cluster_agent.scheduler.native.native_replay import NativeReplay
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.switches.limits import CLimits, Limits
from cluster_agent.scheduler.switches.reservations import FOREVER_S, Reserved
from tests.cluster_agent.traces import EVERYTHING_ENDED, PROCESSORS, SCORES, compositions, traces
from tests.oracle.reserved_machine import ReservedMachine

COMPOSITIONS = st.sampled_from(["none", "easy", "list", "conservative"]).flatmap(
    lambda backfill: compositions(
        backfill=backfill,
        ties="instant",
        guard=None,
        estimate="requested",
        correct="requested",
        shadow=1.0,
        passes_if_new_fits=False,
    )
)


@st.composite
def reservations(draw: st.DrawFn) -> list[Reserved]:
    """Two at most, of half of the processors each at most, so that both can be had."""
    found = []
    for _ in range(draw(st.integers(0, 2))):
        from_s, length_s = draw(st.integers(0, 40)), draw(st.integers(1, 30))
        every_s = draw(st.sampled_from([0, length_s + 30, length_s + 50]))
        made_s = draw(st.integers(0, 20))
        gone_s = draw(st.sampled_from([FOREVER_S, made_s + 60])) if not every_s else 150
        found.append(
            Reserved(from_s, from_s + length_s, every_s, made_s, gone_s, draw(st.integers(1, PROCESSORS // 2)))
        )
    return found


def limits_of(jobs: Jobs, reserved: list[Reserved], pool: list[int]) -> Limits:
    none, nothing = np.zeros((0, 2), np.int64), np.zeros(len(jobs), np.int64)
    no_limits = np.zeros(0, np.int64), np.zeros(0, np.bool_), np.zeros((len(jobs), 0), np.int32)
    places = np.zeros(len(jobs), np.int32), nothing
    return Limits(("reservations",), none, *places, *no_limits, reserved, np.array(pool, np.int32))


@settings(max_examples=150, deadline=None)
@given(jobs=traces(12), composition=COMPOSITIONS, reserved=reservations(), data=st.data())
def test_the_engine_and_the_plain_machine_start_the_same_jobs_around_reservations(
    jobs: Jobs, composition: Composition, reserved: list[Reserved], data: st.DataObject
) -> None:
    if composition.priority is not None:
        composition = Composition(backfill=composition.backfill, score=SCORES[0])
    pool = [data.draw(st.integers(0, len(reserved))) for _ in range(len(jobs))]
    expected = ReservedMachine(composition, jobs, PROCESSORS, reserved, pool).replay()
    c_limits = CLimits(limits_of(jobs, reserved, pool))
    replay, free = (NativeReplay(composition, jobs, PROCESSORS, **more) for more in ({"limits": c_limits}, {}))
    replay.run(EVERYTHING_ENDED)
    found = {job: at_s for job, at_s in enumerate(replay.start_s.tolist()) if at_s >= 0}
    assert found == expected
    for job, at_s in found.items():  # whatever the policy is
        for number, one in enumerate(reserved, 1):
            if pool[job] == number:
                last_s = one.next_from_s(at_s)
                assert last_s is not None and last_s <= at_s and at_s + jobs.request_s[job] <= last_s + one.length_s
    if reserved and not c_limits.switches["reservations"] and composition.backfill == "none":
        free.run(EVERYTHING_ENDED)
        assert free.start_s.tolist() == replay.start_s.tolist(), "what counts 0 has changed nothing"
