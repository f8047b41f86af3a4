"""``eco``: the four events of its table, worked out by hand, and the properties that make it worth having.

Four nodes of one processor: idle 50 W, at 2000, 1500 and 1000 MHz 100, 80 and 70 W; jobs take twice as long at 1000.
"""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from cluster_agent.cap_steps import Cap
from cluster_agent.cluster import Machine, NodeGroup, Topology
from cluster_agent.errors import WrongUseError
from cluster_agent.replay.simulated import JumpingClock, SimulatedMachine
from cluster_agent.scheduler.loop import run
from cluster_agent.scheduler.native.governor import Watts
from cluster_agent.scheduler.native.native_replay import NativeReplay
from cluster_agent.scheduler.policies.registry import choose
from cluster_agent.workloads.job_log import prepare
from cluster_agent.workloads.swf import read_swf
from tests.cluster_agent.traces import EVERYTHING_ENDED, jobs_of
from tests.cluster_agent.worlds import replay as run_replay
from tests.oracle.power_scheduler import PowerReferenceScheduler

NODE = NodeGroup(count=4, cores=1, off_w=0, idle_w=50, frequency_mhz=(2000, 1500, 1000), busy_w=(100, 80, 70))
FOUR_NODES = Machine("four", (NODE,), Topology(), {"default": 2.0})

Rows = list[tuple[int, int, int, int, int]]


def replayed(policy: str, rows: Rows, eco: list[bool], caps: list[Cap]) -> NativeReplay:
    """The replay, after the plain engine has run the same."""
    composition, jobs = choose(policy).composition, jobs_of(rows)
    watts = Watts.of(FOUR_NODES, composition.power)
    watts = replace(watts, job_lowest=np.where(eco, watts.lowest, 0).astype(np.int32))
    found = NativeReplay(composition, jobs, 4, watts, caps)
    found.run(EVERYTHING_ENDED)
    simulated = SimulatedMachine(jobs, "instant", watts.slowdown, watts.requeues)
    run(PowerReferenceScheduler(composition, jobs, watts, caps), JumpingClock(), simulated)
    assert found.end_s.tolist() == [simulated.end_s[job] for job in range(len(jobs))]
    return found


FOUR: Rows = [(0, 40, 40, 1, 0), (1, 40, 40, 1, 0), (2, 40, 40, 1, 0), (3, 40, 40, 1, 0)]
"""400 W from 3 s on."""


def drawn_at(replay: NativeReplay, time_s: int) -> float:
    times_s, drawn_w, _ = replay.power
    return float(drawn_w[np.searchsorted(times_s, time_s, "right") - 1])


def test_a_cap_that_begins_slows_ecojobs_and_spares_everybody() -> None:
    """Two EcoJobs at their floor would leave 340 W; at 1500 MHz it is 360: one rises, none more."""
    replay = replayed("eco", FOUR, [True, True, False, False], [Cap(10, 20, 365.0)])
    assert replay.kills.sum() == 0
    assert drawn_at(replay, 9) == 400 and drawn_at(replay, 10) == 360


def test_raised_singly_the_cap_is_just_met() -> None:
    """At 1000 MHz both: 340 W. 350 W lets one of them, the older, have 1500 MHz."""
    caps = [Cap(10, 20, 350.0)]
    assert drawn_at(replayed("eco", FOUR, [True, True, False, False], caps), 10) == 350
    assert drawn_at(replayed("eco:raised=together", FOUR, [True, True, False, False], caps), 10) == 340


def test_what_slowing_cannot_save_is_killed_others_first_newest_first() -> None:
    """Floor: 340 W; 300 W needs another 50: the newest job without the flag goes, and EcoJobs stay at their floor."""
    replay = replayed("eco", FOUR, [True, False, False, True], [Cap(10, 20, 300.0)])
    assert replay.kills.tolist() == [0, 0, 1, 0]
    assert drawn_at(replay, 10) == 300, "290 W, and the older EcoJob one step up again"


def test_ecojobs_are_killed_last() -> None:
    replay = replayed("eco", FOUR, [True, False, False, True], [Cap(10, 20, 230.0)])
    assert replay.kills.tolist() == [0, 1, 1, 1]


def test_when_the_cap_ends_ecojobs_get_the_highest_frequency_back() -> None:
    """10 s at half speed: the job ends 5 s later."""
    replay = replayed("eco", [(0, 40, 40, 4, 0)], [True], [Cap(10, 20, 280.0)])
    assert (replay.end_s.tolist(), replay.level.tolist()) == ([45], [0])


def test_a_cap_that_rises_speeds_ecojobs_up_before_it_ends() -> None:
    """10 s at half speed, 10 s at two thirds, then full: 10 + 5 + 20/3 s are done at 30 s, and 18 1/3 are left."""
    replay = replayed("eco", [(0, 40, 40, 4, 0)], [True], [Cap(10, 20, 280.0), Cap(20, 30, 320.0)])
    assert replay.end_s.tolist() == [49]


def test_a_job_that_ends_leaves_its_watts_to_the_queue_or_to_ecojobs() -> None:
    """From 10 s on the EcoJobs draw 70 and 80 W. At 15 s the third job ends and frees 50 W, which a waiting job takes,
    or the EcoJobs."""
    rows: Rows = [(0, 40, 40, 1, 0), (1, 40, 40, 1, 0), (2, 13, 13, 1, 0), (11, 20, 20, 1, 0)]
    flags, caps = [True, True, False, False], [Cap(10, 30, 300.0)]
    queue = replayed("eco", rows, flags, caps)
    assert queue.start_s.tolist() == [0, 1, 2, 15]
    ecos = replayed("eco:freed=eco-first", rows, flags, caps)
    assert ecos.start_s.tolist() == [0, 1, 2, 30]
    assert drawn_at(ecos, 16) == 300, "both at the highest frequency"
    assert replayed("eco:freed=queue-first", rows, flags, caps).start_s.tolist() == [0, 1, 2, 15]
    nobody_waits, flags = rows[:3], flags[:3]
    assert drawn_at(replayed("eco", nobody_waits, flags, caps), 16) == 250, "the EcoJobs stay as they are"
    assert drawn_at(replayed("eco:freed=queue-first", nobody_waits, flags, caps), 16) == 300


def test_a_job_submitted_under_a_cap_starts_slowed_if_it_is_flagged_and_else_waits() -> None:
    rows: Rows = [(0, 40, 40, 3, 0), (12, 10, 10, 1, 0)]
    caps = [Cap(10, 20, 375.0)]
    assert replayed("eco", rows, [False, True], caps).start_s.tolist() == [0, 12]
    assert replayed("eco", rows, [False, False], caps).start_s.tolist() == [0, 20]
    assert replayed("eco:start=full", rows, [False, True], caps).start_s.tolist() == [0, 20]


def test_the_floor_is_the_lowest_frequency_that_draws_no_less_than_its_share() -> None:
    power = choose("eco:floor=0.75").composition.power
    assert Watts.of(FOUR_NODES, power).lowest == 1, "80 W of 100 W"


def test_a_larger_share_drawn_with_a_seed_contains_a_smaller_one(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("eco") / "log.swf"
    line = "{0} {0} -1 60 1 -1 -1 1 60 -1 1 1 1 1 {1} 1 -1 -1"
    path.write_text("\n".join(line.format(i, i % 3) for i in range(1, 400)) + "\n")
    workload = prepare(read_swf(str(path)), 4)
    found = []
    for policy in ("eco:share=0.2", "eco:share=0.6", "eco:volunteers=2"):
        composition = choose(policy).composition
        watts = run_replay(workload, composition, watts=Watts.of(FOUR_NODES, composition.power)).schedule.watts
        assert watts is not None and watts.job_lowest is not None
        found.append(watts.job_lowest > 0)
    few, many, queue = found
    assert not (few & ~many).any() and 0.1 < few.mean() < 0.3 < 0.5 < many.mean() < 0.7
    assert queue.tolist() == [i % 3 == 2 for i in range(1, 400)]


@pytest.mark.parametrize(
    ("policy", "message"), [("eco:share=2", "share=2 must be a share"), ("eco:floor=0", "floor=0 must be a share")]
)
def test_a_share_beyond_its_range_is_refused(policy: str, message: str) -> None:
    with pytest.raises(WrongUseError, match=message):
        choose(policy)
