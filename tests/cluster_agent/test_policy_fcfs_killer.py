"""``fcfs-killer`` on schedules worked out by hand: four nodes of one processor, 100 W busy, 50 W idle."""

from __future__ import annotations

from cluster_agent.cap_steps import Cap
from tests.cluster_agent.test_policy_powercap import replayed

THREE = [(0, 40, 40, 2, 0), (1, 40, 40, 1, 0), (2, 40, 40, 1, 0)]
"""400 W from 2 s on."""


def test_the_newest_job_is_killed_when_the_cap_begins_and_runs_again_when_it_fits() -> None:
    replay = replayed("fcfs-killer", THREE, [Cap(10, 20, 350.0)])
    assert replay.kills.tolist() == [0, 0, 1]
    assert replay.start_s.tolist() == [0, 1, 20]
    assert replay.lost.tolist() == [0, 0, 8]
    assert replay.lost_j.tolist() == [0, 0, 800], "eight seconds of 100 W"


def test_a_cap_that_drops_kills_again() -> None:
    replay = replayed("fcfs-killer", THREE, [Cap(10, 15, 350.0), Cap(15, 20, 300.0)])
    assert replay.kills.tolist() == [0, 1, 1]


def test_a_submitted_job_waits_for_watts_and_so_does_who_comes_after_it() -> None:
    """Two processors would make 350 W, one 300 W: but nobody overtakes."""
    rows = [(0, 30, 30, 1, 0), (12, 5, 5, 2, 0), (13, 5, 5, 1, 0)]
    replay = replayed("fcfs-killer", rows, [Cap(10, 20, 300.0)])
    assert replay.start_s.tolist() == [0, 20, 20]


def test_watts_of_a_job_that_ends_go_to_the_queue() -> None:
    rows = [(0, 15, 15, 2, 0), (12, 5, 5, 2, 0)]
    assert replayed("fcfs-killer", rows, [Cap(10, 40, 300.0)]).start_s.tolist() == [0, 15]


def test_the_victim_can_be_who_has_done_least_or_who_came_last() -> None:
    rows = [(0, 40, 40, 1, 0), (0, 9, 9, 3, 0), (1, 40, 40, 1, 0), (2, 40, 40, 2, 0)]
    caps = [Cap(20, 30, 350.0)]
    assert replayed("fcfs-killer", rows, caps).kills.tolist() == [0, 0, 0, 1]
    rows = [(0, 40, 40, 3, 0), (5, 40, 40, 1, 0)]
    assert replayed("fcfs-killer:victim=least-lost", rows, caps).kills.tolist() == [0, 1]
    assert replayed("fcfs-killer:victim=newest-submit", rows, caps).kills.tolist() == [0, 1]


def test_killed_jobs_can_be_lost_and_announced_caps_heeded() -> None:
    replay = replayed("fcfs-killer:killed=lost", THREE, [Cap(10, 20, 350.0)])
    assert (replay.ended, replay.end_s.tolist()) == (3, [40, 41, 10])
    heeding = replayed("fcfs-killer:ahead=true", THREE, [Cap(10, 20, 350.0)])
    assert (heeding.kills.tolist(), heeding.start_s.tolist()) == ([0, 0, 0], [0, 1, 20])
