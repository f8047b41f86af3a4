"""Nodes that stay on, or boot ahead, by a number or a profile: by hand, and where they must change nothing."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from cluster_agent.cap_steps import cores_of
from cluster_agent.cluster import load_machine
from cluster_agent.errors import WrongUseError
from cluster_agent.kept_on import Kept, ahead, kept, value_at
from cluster_agent.scheduler.job_columns import Jobs
from cluster_agent.scheduler.native.governor import Watts
from cluster_agent.scheduler.native.native_replay import NativeReplay
from cluster_agent.scheduler.policies.registry import choose
from cluster_agent.scheduler.policy_phases import Composition
from tests.cluster_agent.traces import EVERYTHING_ENDED, PROCESSORS, jobs_of, traces

TAURUS = load_machine("taurus:nodes=4,cores=1")
"""A boot takes 152 s and switching off 7 s."""

IDLE_OFF = choose("easy:idle_off_s=10").composition


def replayed(composition: Composition, jobs: Jobs, machine: str = "taurus:nodes=4,cores=1") -> NativeReplay:
    on = load_machine(machine)
    replay = NativeReplay(composition, jobs, on.processors, Watts.of(on, composition.power), [])
    replay.run(EVERYTHING_ENDED)
    return replay


def drawn_w(replay: NativeReplay, at_s: int) -> float:
    times_s, watts, _ = replay.power
    return float(watts[times_s.searchsorted(at_s, "right") - 1])


def test_idle_nodes_that_are_kept_boot_again_when_a_job_takes_them() -> None:
    jobs = jobs_of([(0, 5, 5, 1, 0), (1000, 600, 600, 1, 0), (1001, 50, 50, 1, 0), (1300, 50, 50, 1, 0)])
    replay = replayed(choose("easy:idle_off_s=10,keep_idle=1").composition, jobs)
    # the second finds the node that is kept; one boots in its place, which the third gets once it is on, and the
    # fourth the one that boots in place of that
    assert replay.start_s.tolist() == [0, 1000, 1152, 1300]
    assert drawn_w(replay, 500) == pytest.approx(95.0 + 3 * 9.75)


def test_nodes_boot_before_the_step_of_a_profile_and_go_off_after_it() -> None:
    jobs = jobs_of([(0, 5, 5, 1, 0), (1000, 20, 20, 2, 0), (3000, 5, 5, 1, 0)])
    profile = Kept(on=((900, 3), (2000, 0)))
    replay = replayed(replace(IDLE_OFF, kept=profile), jobs)
    assert replay.start_s.tolist() == [0, 1000, 3152]
    boot_w = 19030 / 152
    assert drawn_w(replay, 747) == pytest.approx(4 * 9.75)
    assert drawn_w(replay, 748) == pytest.approx(3 * boot_w + 9.75)  # on at 900
    assert drawn_w(replay, 900) == pytest.approx(3 * 95 + 9.75)
    assert drawn_w(replay, 1999) == pytest.approx(3 * 95 + 9.75)  # their timers ran out long ago
    assert drawn_w(replay, 2007) == pytest.approx(4 * 9.75)
    assert replay.boots == 4


def test_a_profile_refuses_no_job() -> None:
    """A job that needs more nodes than are kept boots the others at once."""
    jobs = jobs_of([(0, 5, 5, 1, 0), (1000, 20, 20, 4, 0)])
    replay = replayed(replace(IDLE_OFF, kept=Kept(on=((0, 1),))), jobs)
    assert replay.start_s.tolist() == [0, 1152]


def test_a_job_gets_nodes_while_they_boot_ahead() -> None:
    jobs = jobs_of([(0, 5, 5, 1, 0), (800, 20, 20, 3, 0)])
    replay = replayed(replace(IDLE_OFF, kept=Kept(on=((900, 3),))), jobs)
    assert replay.start_s.tolist() == [0, 900]  # not 952
    assert replay.boots == 3


@given(traces(), st.sampled_from([1, 3, 12]))
@settings(max_examples=60, deadline=None)
def test_a_profile_of_all_nodes_is_as_if_none_went_off_and_one_of_none_as_without(jobs: Jobs, timer_s: int) -> None:
    machine = f"taurus:nodes={PROCESSORS // 2},cores=2"
    going = choose(f"easy:idle_off_s={timer_s}").composition
    every, none = Kept(on=((0, PROCESSORS),)), Kept(on=((0, 0),))
    for kept_on, composition in ((every, choose("easy").composition), (none, going)):
        found, wanted = replayed(replace(going, kept=kept_on), jobs, machine), replayed(composition, jobs, machine)
        assert found.start_s.tolist() == wanted.start_s.tolist()
        assert found.joules == wanted.joules and found.boots == wanted.boots


def test_a_rise_comes_so_much_earlier_and_a_fall_when_it_comes() -> None:
    assert ahead([(0, 2), (100, 5), (120, 1), (150, 3)], 10) == [(0, 2), (90, 5), (120, 1), (140, 3)]
    assert ahead([(0, 2), (5, 4)], 10) == [(0, 4)]
    assert ahead([(100, 5), (104, 0)], 10) == [(90, 5), (104, 0)]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 5)), max_size=12), st.integers(0, 30))
def test_what_is_ahead_is_the_most_of_now_and_of_the_lead(rises: list[tuple[int, int]], lead_s: int) -> None:
    steps = [(sum(gap_s for gap_s, _ in rises[: at + 1]), cores) for at, (_, cores) in enumerate(rises)]
    found = ahead(steps, lead_s)
    for at_s in range(130):
        expected = max(value_at(steps, later_s) for later_s in range(at_s, at_s + lead_s + 1))
        assert value_at(found, at_s) == expected


def test_a_long_profile_with_a_long_lead_is_quick() -> None:
    """Of 20000 steps that are all within the lead: each is looked at a few times, and not once for each edge."""
    begun_s = time.process_time()
    ahead([(2 * at + 100_000, at * 7919 % 1000) for at in range(20_000)], 50_000)
    assert time.process_time() - begun_s < 5


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("from_s,watts\n0,5\n", "p.csv:1: the first line must be from_s,watts,cores$"),
        ("from_s,watts,cores\n0,5\n", ":2: 2 values for the 3 columns"),
        ("from_s,watts,cores\n0,5,x\n", ":2: cores cannot be 'x': a number is needed"),
        ("from_s,watts,cores\n0,5,-1\n", ":2: cores cannot be -1: give a number from 0"),
        ("from_s,watts,cores\n0,5,3e9\n", ":2: cores cannot be 3000000000: give a number below 2147483648"),
        ("from_s,watts,cores\n9,5,1\n9,5,2\n", ":3: from_s 9 is not after that of the line above"),
        ("from_s,watts,cores\n", "has no line below its names"),
        ("", "the first line must be"),
    ],
)
def test_a_wrong_profile_is_refused_in_one_line(text: str, problem: str) -> None:
    with pytest.raises(WrongUseError, match=problem) as error:
        cores_of("p.csv", text.encode())
    assert "\n" not in str(error.value)


def test_a_policy_says_what_a_profile_needs(tmp_path: Path) -> None:
    with pytest.raises(WrongUseError, match="keep_idle needs nodes that go off: give idle_off_s"):
        choose("easy:keep_idle=2")
    with pytest.raises(WrongUseError, match="keep_idle needs a policy that knows no caps"):
        choose("powercap:idle_off_s=300,keep_idle=2")
    with pytest.raises(WrongUseError, match="keep_idle=-1: give 0 nodes or more"):
        choose("easy:idle_off_s=300,keep_idle=-1")
    with pytest.raises(WrongUseError, match="keep_idle=99999999999999999999: give 0 nodes or more, below 2147483648"):
        choose("easy:idle_off_s=300,keep_idle=99999999999999999999")
    with pytest.raises(WrongUseError, match="cannot read"):
        choose(f"easy:idle_off_s=300,keep_on={tmp_path / 'none.csv'}")


def test_the_profile_of_a_policy_is_recorded(tmp_path: Path) -> None:
    file = tmp_path / "nodes.csv"
    file.write_text("from_s,watts,cores\n0,100,2\n3600,100,4\n")
    chosen = choose(f"easy:idle_off_s=300,keep_on={file},keep_idle=1")
    assert chosen.composition.kept.on == ((0, 2), (3600, 4)) and chosen.composition.kept.nodes == 1
    assert chosen.profile_origin is not None and chosen.profile_origin.file == str(file)
    assert kept(str(file), None).idle == ((0, 2), (3600, 4))
