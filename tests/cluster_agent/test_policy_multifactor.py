"""multifactor by hand: who has used less, or fewer joules, or waited longer, comes first."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from cluster_agent.cluster import Machine, NodeGroup, Topology
from cluster_agent.errors import WrongUseError
from cluster_agent.scheduler.job_columns import Jobs
from cluster_agent.scheduler.native.governor import Watts
from cluster_agent.scheduler.native.native_replay import NativeReplay
from cluster_agent.scheduler.orders.priority import Account, Priority
from cluster_agent.scheduler.policies.registry import choose
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.workloads.job_log import prepare
from cluster_agent.workloads.swf import read_swf
from tests.cluster_agent.traces import EVERYTHING_ENDED, jobs_of, native_starts
from tests.cluster_agent.worlds import replay
from tests.oracle.usage import Usage

H = 3600
WEEK_S = 604800


def starts(policy: str, rows: list[tuple[int, int, int, int, int]]) -> dict[int, int]:
    return native_starts(choose(policy).composition, jobs_of(rows))


def ended(priority: Priority, jobs: Jobs, processors: int) -> NativeReplay:
    replay = NativeReplay(Composition(priority=priority, backfill="easy"), jobs, processors)
    replay.run(EVERYTHING_ENDED)
    return replay


def test_the_thesis_example_has_used_three_tenths_of_its_period() -> None:
    """Five jobs of 30 h on 10 of 50 processors within one period of 100 h (Glesser, ch. 6): U = 0.3."""
    priority = Priority(period_s=100 * H)
    jobs = jobs_of([(0, 30 * H, 30 * H, 10, 0)] * 5)
    assert ended(priority, jobs, 50).used == pytest.approx([0.3], rel=1e-12)
    usage = Usage(priority, 50, [0])
    usage.submit(0)
    for _ in range(5):
        usage.charge(30 * H, 0, 30 * H * 10)
    assert usage.used(30 * H, 0) == pytest.approx(0.3, rel=1e-12)
    # F = 2^(-(U/S)/d) with the whole share; half the damping squares it
    assert usage.priority_of(30 * H, 0, 30 * H, 1) == pytest.approx(2**-0.3, rel=1e-12)
    usage.priority = replace(priority, damping=0.5)
    assert usage.priority_of(30 * H, 0, 30 * H, 1) == pytest.approx(2**-0.6, rel=1e-12)


def test_usage_of_a_period_ago_counts_for_less_and_so_does_what_the_machine_had_to_give() -> None:
    """D = 1/2 a period: 1500 processor-hours of 5000, then 2500: (1500/2 + 2500) / (5000/2 + 5000)."""
    priority = Priority(period_s=100 * H, half_life_s=100.0 * H)
    jobs = jobs_of([(0, 30 * H, 30 * H, 50, 0), (110 * H, 50 * H, 50 * H, 50, 0)])
    assert ended(priority, jobs, 50).used == pytest.approx([3250 / 7500], rel=1e-12)


def test_usage_that_decays_all_the_time_halves_in_a_half_life() -> None:
    """A job of one week on the whole machine, and a week later its user's second, of one second."""
    jobs = jobs_of([(0, WEEK_S, WEEK_S, 10, 0), (2 * WEEK_S - 1, 1, 1, 1, 1)])
    used = ended(Priority(), jobs, 10).used
    had = 10 * WEEK_S / np.log(2) * (1 - 2**-2.0)
    assert used == pytest.approx([10 * WEEK_S / 2 / had, 1 / had], rel=1e-12)


@pytest.mark.parametrize("options", ["", ",factor=relative", ",decay=period,period_s=7"])
def test_who_has_used_less_goes_first(options: str) -> None:
    rows = [(0, 20, 20, 10, 0), (0, 10, 10, 10, 1), (1, 30, 30, 10, 2), (2, 5, 5, 10, 0), (3, 5, 5, 10, 1)]
    assert starts("easy", rows) == {0: 0, 1: 20, 2: 30, 3: 60, 4: 65}
    # at 20 user 0 has used 200 processor-seconds, the others nothing; at 30 user 1 has used 100 and user 2 nothing
    assert starts(f"multifactor{options or ':'}".replace("multifactor,", "multifactor:"), rows) == {
        0: 0,
        1: 20,
        2: 30,
        3: 65,
        4: 60,
    }


def test_old_usage_is_forgiven() -> None:
    """User 0 used twice as much as user 1, but ten half-lives before."""
    rows = [(0, 20, 20, 10, 0), (100, 10, 10, 10, 1), (101, 20, 20, 10, 2), (102, 5, 5, 10, 1), (103, 5, 5, 10, 0)]
    assert starts("multifactor:half_life_s=10", rows) == {0: 0, 1: 100, 2: 110, 3: 135, 4: 130}
    assert starts("multifactor:half_life_s=100000", rows) == {0: 0, 1: 100, 2: 110, 3: 130, 4: 135}


def test_a_charge_comes_at_the_end_of_a_job() -> None:
    """User 0's long job still runs when its second one and user 1's are to be ordered: nothing has been used."""
    rows = [(0, 100, 100, 5, 0), (0, 10, 10, 5, 1), (1, 8, 8, 5, 0), (2, 8, 8, 5, 1)]
    assert starts("multifactor", rows) == {0: 0, 1: 0, 2: 10, 3: 18}


# users 0 and 1 use the machine alike, and have one more job each while user 2's is running
ALIKE = [(0, 10, 10, 10, 0), (0, 10, 10, 10, 1), (0, 30, 30, 10, 2), (1, 5, 5, 10, 1), (2, 5, 5, 10, 0)]


def accounts(tmp_path: Path, text: str) -> str:
    path = tmp_path / "users.csv"
    path.write_text(text)
    return str(path)


def replayed(tmp_path: Path, policy: str) -> list[int]:
    """``ALIKE`` as a log, whose users are called 7, 8 and 9; starts of the last two jobs."""
    lines = [
        f"{job} {submit} -1 {run} {width} -1 -1 {width} {request} -1 1 {user + 7} 1 -1 -1 -1 -1 -1"
        for job, (submit, run, request, width, user) in enumerate(ALIKE, 1)
    ]
    log = tmp_path / "log.swf"
    log.write_text("\n".join(lines))
    workload = prepare(read_swf(str(log)), 10)
    return [int(start_s) for start_s in replay(workload, choose(policy).composition).schedule.start_s[3:]]


def test_at_equal_efficiency_ties_go_by_arrival_and_joules_change_nothing(tmp_path: Path) -> None:
    for weights in ("cpu=1,energy=0", "cpu=0,energy=1", "cpu=1,energy=1"):
        assert replayed(tmp_path, f"multifactor:decay=period,{weights}") == [50, 55]


def test_who_takes_fewer_joules_for_the_same_work_goes_first(tmp_path: Path) -> None:
    users = accounts(tmp_path, "user,share,efficiency\n7,1,0.7\n")
    assert replayed(tmp_path, f"multifactor:decay=period,cpu=0,energy=1,users={users}") == [55, 50]
    assert replayed(tmp_path, f"multifactor:decay=period,cpu=1,energy=1,users={users}") == [55, 50]
    assert replayed(tmp_path, f"multifactor:decay=period,cpu=1,energy=0,users={users}") == [50, 55]


def test_who_has_a_larger_share_may_use_more(tmp_path: Path) -> None:
    users = accounts(tmp_path, "user,share\n7,2\n")
    assert replayed(tmp_path, f"multifactor:decay=period,users={users}") == [55, 50]
    assert replayed(tmp_path, f"multifactor:factor=relative,users={users}") == [55, 50]


def test_age_and_size_weigh_against_usage() -> None:
    rows = [(0, 10, 10, 10, 0), (1, 5, 5, 2, 1), (2, 5, 5, 9, 2)]
    assert starts("multifactor:cpu=0,energy=0,size=1", rows) == {0: 0, 1: 15, 2: 10}
    assert starts("multifactor:cpu=0,energy=0,size=-1", rows) == {0: 0, 1: 10, 2: 15}
    assert starts("multifactor:cpu=0,energy=0,size=1,age=1,oldest_s=10", rows) == {0: 0, 1: 15, 2: 10}
    assert starts("multifactor:cpu=0,energy=0,size=1,age=10,oldest_s=10", rows) == {0: 0, 1: 10, 2: 15}


def test_on_a_machine_with_watts_joules_are_the_metered_ones() -> None:
    """User 0's jobs draw a third of user 1's: with equal processor-seconds user 0 goes first."""
    node = NodeGroup(count=10, cores=1, off_w=0, idle_w=10, frequency_mhz=(2000,), busy_w=(100,))
    watts = Watts.of(Machine("ten", (node,), Topology(), {"default": 1.0}), None)
    busy_uw = np.array([30, 90, 60, 90, 30], np.int64) * 1_000_000
    metered = replace(watts, job_busy_uw=busy_uw)
    for weights, expected in (("cpu=0,energy=1", [55, 50]), ("cpu=1,energy=0", [50, 55])):
        replay = NativeReplay(choose(f"multifactor:decay=period,{weights}").composition, jobs_of(ALIKE), 10, metered)
        replay.run(EVERYTHING_ENDED)
        assert replay.start_s[3:].tolist() == expected


def test_drawn_efficiencies_are_those_of_their_seed() -> None:
    _, drawn = Priority(spread=0.3, seed=2, accounts={1: Account(1.0, 2.0)}).of_users([1, 2, 3])
    assert drawn.tolist() == (np.random.default_rng(2).uniform(0.7, 1.3, 3) * [2, 1, 1]).tolist()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("user:share\n", ":1: the first line must be user,share,efficiency, or user,share"),
        ("user,share\n1,x\n", ":2: user,share are numbers; this line is not"),
        ("user,share\n1,0\n", ":2: 2 values are needed, shares and efficiencies above 0"),
        ("user,share\n1,2\n1,3\n", ":3: user 1 occurs twice"),
    ],
)
def test_a_file_of_users_that_is_wrong_is_answered_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = accounts(tmp_path, text)
    with pytest.raises(WrongUseError, match=message):
        choose(f"multifactor:users={path}")


@pytest.mark.parametrize(
    "wrong", ["half_life_s=0", "period_s=0", "damping=0", "oldest_s=0", "spread=1", "seed=-1", "cpu=nan"]
)
def test_numbers_that_mean_nothing_are_answered_in_one_line(wrong: str) -> None:
    with pytest.raises(WrongUseError, match=r"--policy multifactor:.* must be"):
        choose(f"multifactor:{wrong}")
