"""What holds for every policy on unlike nodes, whatever the trace and the announced cap."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings

from cluster_agent.replay.drawn import power_over_time
from cluster_agent.replay.simulated import JumpingClock, SimulatedMachine
from cluster_agent.replay.world_run import Result
from cluster_agent.scheduler.loop import run
from cluster_agent.scheduler.policies.registry import choose
from cluster_agent.scheduler.power_cap import UNCAPPED, PowerCap, constant
from cluster_agent.scheduler.unlike_nodes.node_jobs import RESOURCES
from cluster_agent.workloads.swf import TraceError
from tests.cluster_agent.node_traces import FOUR_NODES, Row, caps, node_rows, result_of, trace_of
from tests.oracle.node_scheduler import NodeScheduler, Reservation

POLICIES = [
    *("prb", "prb:rule=promise,miss=strict", "easy-capped", "easy-capped:rule=est,placing=first"),
    "planned:iterations=20",
]
SETTINGS = settings(max_examples=20)


def replayed(policy: str, rows: list[Row], cap: PowerCap) -> Result:
    try:
        trace = trace_of(rows).on(FOUR_NODES, cap)
    except TraceError:  # the cap allows none of these jobs
        assume(False)
    return result_of(policy, trace, FOUR_NODES, cap)


@pytest.mark.parametrize("policy", POLICIES)
@given(rows=node_rows(), cap=caps())
@SETTINGS
def test_every_job_runs_after_its_submission_and_within_the_cap(policy: str, rows: list[Row], cap: PowerCap) -> None:
    result = replayed(policy, rows, cap)
    assert result.unstarted == 0
    assert (result.start_s >= result.world.node_trace.jobs.submit_s).all()
    assert power_over_time(result).over_j == 0.0


@pytest.mark.parametrize("policy", POLICIES)
@given(rows=node_rows(), cap=caps())
@SETTINGS
def test_no_core_accelerator_or_byte_is_used_twice(policy: str, rows: list[Row], cap: PowerCap) -> None:
    result = replayed(policy, rows, cap)
    jobs = result.world.node_trace.jobs
    end_s = result.start_s + jobs.run_s
    for now_s in result.start_s:
        used = FOUR_NODES.has * 0
        for job in range(len(jobs)):
            if result.start_s[job] <= now_s < end_s[job]:
                placed = result.schedule.placed(job)
                assert placed.count.sum() == jobs.units[job]
                used[placed.node] += placed.count[:, None] * jobs.need[job]
        assert (used <= FOUR_NODES.has).all(), dict(zip(RESOURCES, used.T.tolist(), strict=True))


@given(rows=node_rows())
@SETTINGS
def test_a_cap_that_never_binds_changes_nothing(rows: list[Row]) -> None:
    starts_s = [replayed("easy-capped", rows, cap).start_s.tolist() for cap in (UNCAPPED, constant(1e6))]
    assert starts_s[0] == starts_s[1]


@given(rows=node_rows(), cap=caps())
@SETTINGS
def test_equal_replays_place_every_job_on_equal_nodes(rows: list[Row], cap: PowerCap) -> None:
    first, again = (replayed("easy-capped", rows, cap).schedule for _ in range(2))
    for job in range(len(first.jobs)):
        assert first.placed(job).node.tolist() == again.placed(job).node.tolist()
        assert first.placed(job).count.tolist() == again.placed(job).count.tolist()


class Watching(NodeScheduler):
    """Notes when each head's reservation was to begin."""

    promised_s: dict[int, list[int]]

    def _reservation(self, now_s: int, head: int) -> Reservation | None:
        reserved = super()._reservation(now_s, head)
        assert reserved is not None
        self.promised_s.setdefault(head, []).append(reserved.from_s)
        return reserved


@given(rows=node_rows(), cap=caps())
@SETTINGS
def test_a_reservation_never_moves_to_a_later_time(rows: list[Row], cap: PowerCap) -> None:
    """In order of submission, where a head stays head, and whether requests are exact or too long."""
    trace = replayed("easy-capped:rule=est", rows, cap).world.node_trace
    scheduler = Watching(choose("easy-capped:rule=est").on_nodes, trace.jobs, FOUR_NODES, cap)
    scheduler.promised_s = {}
    machine = SimulatedMachine(trace.jobs, "instant")
    run(scheduler, JumpingClock(), machine)
    for head, promised_s in scheduler.promised_s.items():
        assert promised_s == sorted(promised_s, reverse=True)
        assert machine.start_s[head] <= promised_s[-1]
