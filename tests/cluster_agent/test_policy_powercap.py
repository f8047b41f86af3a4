"""``powercap`` on schedules worked out by hand, and what its levers are worth on a small Curie."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from cluster_agent.cap_steps import FOREVER_S, Cap
from cluster_agent.cluster import Machine, NodeGroup, Topology, load_machine
from cluster_agent.errors import WrongUseError
from cluster_agent.scheduler.energy_window import Budget
from cluster_agent.scheduler.native.governor import Watts
from cluster_agent.scheduler.native.native_replay import NativeReplay
from cluster_agent.scheduler.policies.registry import choose
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.power_phases import Power
from tests.cluster_agent.power_traces import machine
from tests.cluster_agent.test_power_engines_agree import crowd
from tests.cluster_agent.traces import EVERYTHING_ENDED, PROCESSORS, jobs_of

NODE = NodeGroup(count=4, cores=1, off_w=0, idle_w=50, frequency_mhz=(2000, 1000), busy_w=(100, 70))
FOUR_NODES = Machine("four", (NODE,), Topology(), {"default": 2.0})  # 200 W idle, 400 W busy


def replayed(
    policy: str, rows: list[tuple[int, int, int, int, int]], caps: list[Cap], drawn_w: list[float] | None = None
) -> NativeReplay:
    composition = choose(policy).composition
    watts = Watts.of(FOUR_NODES, composition.power)
    if drawn_w is not None:
        watts = replace(watts, job_busy_uw=(np.array(drawn_w) * 1e6).astype(np.int64))
    replay = NativeReplay(composition, jobs_of(rows), 4, watts, caps)
    replay.run(EVERYTHING_ENDED)
    return replay


def test_a_job_that_would_run_into_a_lower_cap_waits_for_its_end() -> None:
    """Two processors draw 300 W with the rest idle; the cap allows one from 10 to 20 s."""
    rows = [(0, 5, 5, 2, 0), (0, 12, 12, 2, 0), (1, 5, 5, 1, 0)]
    replay = replayed("powercap:mode=idle", rows, [Cap(10, 20, 250.0)])
    assert replay.start_s.tolist() == [0, 20, 1]


@pytest.mark.parametrize(("width", "start_s"), [(2, [0, 20, 40]), (3, [0, -1, 2])])
def test_under_a_cap_without_an_end_only_a_head_that_can_never_fit_reserves_nothing(
    width: int, start_s: list[int]
) -> None:
    """The cap allows two processors; the last job would run beyond the end of the first."""
    rows = [(0, 20, 20, 1, 0), (1, 20, 20, width, 0), (2, 30, 30, 1, 0)]
    assert replayed("powercap:mode=idle", rows, [Cap(0, FOREVER_S, 300.0)]).start_s.tolist() == start_s


def test_with_dvfs_it_runs_at_once_at_the_frequency_that_fits() -> None:
    """Two processors at 1000 MHz draw 240 W: the job starts at once and takes twice as long."""
    replay = replayed("powercap:mode=dvfs", [(0, 12, 12, 2, 0)], [Cap(10, 20, 250.0)])
    assert (replay.start_s.tolist(), replay.level.tolist(), replay.end_s.tolist()) == ([0], [1], [24])


def test_a_job_that_ends_before_the_window_keeps_its_frequency() -> None:
    replay = replayed("powercap:mode=dvfs", [(0, 10, 10, 4, 0)], [Cap(10, 20, 250.0)])
    assert (replay.level.tolist(), replay.end_s.tolist()) == ([0], [10])


def test_with_shut_nodes_are_empty_and_off_in_the_window() -> None:
    """300 W for four nodes of 100 W: one goes off, and short jobs before the window are put on it first."""
    rows = [(0, 5, 5, 1, 0), (0, 30, 30, 3, 0), (1, 30, 30, 1, 0)]
    replay = replayed("powercap:mode=shut", rows, [Cap(10, 20, 300.0)])
    assert replay.start_s.tolist() == [0, 0, 20]
    assert replay.processors(0) == [(3, 3)]
    drawn = dict(zip(*(column.tolist() for column in replay.power[:2]), strict=True))
    assert drawn[0] == 400 and drawn[5] == 350 and drawn[10] == 300
    assert replay.joules["off"] == 0


def test_a_job_left_on_a_node_that_should_be_off_leaves_less_under_the_cap() -> None:
    """The cap is not known before 10, and the fourth node, which it would have off, has a job: 250 W are drawn at 10,
    and two processors more would make 350 W."""
    rows = [(0, 10, 10, 3, 0), (0, 40, 40, 1, 0), (1, 5, 5, 2, 0)]
    replay = replayed("powercap:mode=shut", rows, [Cap(10, 20, 300.0, 10)])
    assert replay.processors(1) == [(3, 3)]
    assert replay.start_s.tolist() == [0, 0, 20]


def test_a_cap_nobody_knew_of_kills_the_newest_job_only_on_request() -> None:
    rows = [(0, 30, 30, 2, 0), (1, 30, 30, 1, 0)]
    caps = [Cap(10, 20, 300.0, 10)]
    assert replayed("powercap:mode=idle", rows, caps).kills.tolist() == [0, 0]
    killing = replayed("powercap:mode=idle,kill=true", rows, caps)
    assert killing.kills.tolist() == [0, 1]
    assert killing.lost.tolist() == [0, 9]
    assert killing.start_s.tolist() == [0, 20], "the killed job begins again when it fits again"


@pytest.mark.parametrize(("rule", "off"), [("corrected", 0), ("printed", 948)])
def test_on_curie_at_80_percent_the_rules_take_different_levers(rule: str, off: int) -> None:
    curie = load_machine("curie")
    composition = choose(f"powercap:mode=mix,rule={rule},floor_mhz=1200").composition
    assert composition.power is not None and composition.power.idle is not None
    cap = Cap(3600, 7200, 0.8 * (curie.full_w - curie.fixed_w) + curie.fixed_w)
    assert sum(one.nodes for one in composition.power.idle(curie, [cap], 0)) == off


@pytest.mark.parametrize(("share", "off"), [(0.8, 948), (0.6, 1891), (0.4, 2838)])
def test_shut_takes_the_nodes_of_the_published_table(share: float, off: int) -> None:
    curie = load_machine("curie")
    composition = choose("powercap:mode=shut").composition
    assert composition.power is not None and composition.power.idle is not None
    cap = Cap(3600, 7200, share * (curie.full_w - curie.fixed_w) + curie.fixed_w)
    assert [one.nodes for one in composition.power.idle(curie, [cap], 0)] == [off]


def test_a_rule_without_a_choice_is_refused() -> None:
    with pytest.raises(WrongUseError, match="rule=printed needs mode=mix"):
        choose("powercap:mode=shut,rule=printed")


def test_with_conservative_backfilling_no_job_delays_one_before_it_in_watts() -> None:
    """Four nodes, and watts for three: the last job would fit next to the head, but not next to the one behind that."""
    rows = [(0, 10, 10, 2, 0), (0, 10, 10, 2, 0), (0, 10, 10, 3, 0), (0, 30, 30, 1, 0)]
    cap = [Cap(0, 1000, 350.0)]
    assert replayed("powercap:mode=idle", rows, cap).start_s.tolist() == [0, 10, 30, 0]
    assert replayed("powercap:mode=idle,backfill=conservative", rows, cap).start_s.tolist() == [0, 10, 20, 30]


def test_a_place_that_begins_now_at_a_lower_frequency_is_better_than_a_later_one() -> None:
    """Below 340 W two jobs run at 70 W each beyond the idle nodes, where one at 100 W would make the other wait."""
    rows = [(0, 10, 10, 2, 0), (0, 10, 10, 2, 0)]
    found = replayed("powercap:mode=dvfs,backfill=conservative", rows, [Cap(0, 1000, 340.0)])
    assert (found.start_s.tolist(), found.level.tolist()) == ([0, 0], [0, 1])


def test_a_place_is_on_nodes_that_stay_on() -> None:
    """For 250 W two of four nodes are off from 10 to 20 s: who ends before may have them. The last one would not."""
    rows = [(0, 8, 8, 2, 0), (0, 15, 15, 2, 0), (0, 5, 5, 2, 0)]
    found = replayed("powercap:mode=shut,backfill=conservative", rows, [Cap(10, 20, 250.0)])
    assert (found.start_s.tolist(), found.processors(0)) == ([0, 0, 15], [(2, 3)])


def test_joules_set_aside_for_the_head_leave_no_place_for_everybody() -> None:
    with pytest.raises(
        ValueError, match="conservative needs joules for every job, and rule=reducepc sets them aside for the head"
    ):
        Composition(backfill="conservative", power=Power(budget=Budget(1e6, 0, 100, "reducepc")))


def test_with_rescale_a_job_starts_at_the_highest_frequency_and_is_lowered_for_the_window_alone() -> None:
    """Two processors at 1000 MHz draw 240 W: of 16 s the job does 10 before the window and 5 in its 10 s."""
    replay = replayed("powercap:mode=dvfs,rescale=true", [(0, 16, 16, 2, 0)], [Cap(10, 20, 250.0)])
    assert (replay.start_s.tolist(), replay.end_s.tolist()) == ([0], [21])
    drawn = dict(zip(*(column.tolist() for column in replay.power[:2]), strict=True))
    assert (drawn[0], drawn[10], drawn[20]) == (300, 240, 300)


def test_with_rescale_a_job_that_ends_in_the_window_leaves_its_watts_to_the_others() -> None:
    """Below 300 W four run at 1000 MHz; once two of them have ended at 14 the others run at 2000 again."""
    rows = [(0, 12, 12, 2, 0), (0, 30, 30, 2, 0)]
    replay = replayed("powercap:mode=dvfs,rescale=true", rows, [Cap(10, 20, 300.0)])
    assert replay.end_s.tolist() == [14, 32]


def test_with_rescale_a_lower_job_is_ended_by_then_or_does_not_start() -> None:
    """Slowed by the first window the job would run into the second, which cannot carry it even at 1000 MHz."""
    caps = [Cap(10, 20, 250.0), Cap(20, 30, 210.0)]
    found = replayed("powercap:mode=dvfs,rescale=true", [(0, 14, 14, 1, 0), (0, 17, 17, 1, 0)], caps)
    assert found.start_s.tolist() == [0, 30]


def test_metered_jobs_leave_the_watts_that_they_do_not_draw() -> None:
    """Nameplate watts allow two jobs below 310 W; each draws 60 W of 100, so at the next pass two more fit."""
    rows = [(at, 20, 20, 1, 0) for at in (0, 0, 1, 2)]
    nameplate = replayed("powercap:mode=idle", rows, [Cap(0, 100, 310.0)], [60.0] * 4)
    metered = replayed("powercap:mode=idle,metered=true", rows, [Cap(0, 100, 310.0)], [60.0] * 4)
    assert nameplate.start_s.tolist() == [0, 0, 20, 20]
    assert metered.start_s.tolist() == [0, 0, 1, 2]


@pytest.mark.parametrize("what", ["metered", "rescale"])
def test_watts_of_other_frequencies_need_nodes_that_draw_more_than_idle_ones(what: str) -> None:
    """Of what such a node draws at its lowest frequency nothing follows for the highest."""
    group = replace(FOUR_NODES.node, busy_w=(FOUR_NODES.node.busy_w[0], FOUR_NODES.node.idle_w))
    on = replace(FOUR_NODES, groups=(group,))
    with pytest.raises(WrongUseError, match=f"{what}=true needs nodes that draw more when they are busy"):
        Watts.of(on, choose(f"powercap:{what}=true").composition.power)


@pytest.mark.parametrize("seed", range(20))
def test_rescaled_and_metered_jobs_keep_every_cap_and_nobody_is_killed(seed: int) -> None:
    rng = np.random.default_rng(seed)
    composition = choose("powercap:mode=dvfs,rescale=true,metered=true").composition
    jobs, on = crowd(rng, 60), machine(0.0, True)
    caps = [Cap(at_s, at_s + 40, float(rng.integers(200, 480))) for at_s in (30, 90, 150, 300)]
    watts = Watts.of(on, composition.power)
    watts = replace(watts, job_busy_uw=rng.integers(watts.idle_uw, watts.busy_uw[0], len(jobs)))
    replay = NativeReplay(composition, jobs, PROCESSORS, watts, caps)
    replay.run(EVERYTHING_ENDED)
    _, drawn_w, cap_w = replay.power
    assert (replay.end_s - replay.start_s > jobs.run_s).any(), "nobody was lowered"
    assert (drawn_w <= cap_w).all() and not replay.kills.any()


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ("powercap:mode=shut,rescale=true", "rescale=true needs mode=dvfs or mix"),
        ("powercap:rescale=true,backfill=conservative", "rescale=true gives places at one frequency"),
        ("powercap:rescale=true,idle_off_s=30", "rescale=true counts on nodes that are on"),
        ("powercap:metered=true,idle_off_s=30", "metered=true reads nodes that are on"),
    ],
)
def test_what_does_not_go_with_jobs_that_are_lowered_or_metered_is_refused(policy: str, reason: str) -> None:
    with pytest.raises(WrongUseError, match=reason):
        choose(policy)
