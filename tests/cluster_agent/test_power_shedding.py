"""Power shedding: switch-off and frequencies, against the tables of Glesser's thesis (ch. 4)."""

from __future__ import annotations

import pytest

from cluster_agent.cluster import Machine, load_machine
from cluster_agent.scheduler.power_shedding import Lever, SwitchOff, lever, nodes_off, off_watts, rho, switch_off

CURIE = load_machine("curie")
FULL_NODES_W = 5040 * 358.0
FLOOR = 7  # 1.2 GHz
MIX_FLOOR = CURIE.node.frequency_mhz.index(2000)


@pytest.mark.parametrize(("share", "off"), [(0.8, 948), (0.6, 1891), (0.4, 2838)])
def test_grouped_switch_off_on_curie_takes_fewer_nodes(share: float, off: int) -> None:
    assert switch_off(CURIE, (1 - share) * FULL_NODES_W).nodes == off


def work(machine: Machine, watts: float, degradation: float, floor: int, chosen: Lever) -> float:
    """W: what the machine does per second under ``watts``, in fully busy nodes at the highest frequency."""
    node, n = machine.node, machine.nodes
    highest_w, lowest_w = (node.busy_max_w or node.busy_w)[0], (node.busy_max_w or node.busy_w)[floor]
    if chosen == "none":
        return float(n)
    if chosen == "off":
        return n - (n * highest_w - watts) / (highest_w - node.off_w)
    if chosen == "dvfs":
        slow = (n * highest_w - watts) / (highest_w - lowest_w)
        return n - slow + slow / degradation
    return (watts - n * node.off_w) / (lowest_w - node.off_w) / degradation


def test_one_chassis_sheds_what_twenty_scattered_nodes_do() -> None:
    assert switch_off(CURIE, 6600) == SwitchOff(0, 1, 18)
    assert 20 * 344 >= 6600 > 19 * 344


@pytest.mark.parametrize(("nodes", "saved_w"), [(1, 344), (18, 6692), (90, 34360)])
def test_a_whole_chassis_or_rack_saves_more_than_its_nodes(nodes: int, saved_w: float) -> None:
    off_w, fixed_w = off_watts(CURIE, nodes)
    assert CURIE.full_w - ((5040 - nodes) * 358 + off_w + fixed_w) == saved_w


@pytest.mark.parametrize("shed_w", [0.0, 1.0, 344.0, 345.0, 6691.0, 6693.0, 34000.0, 34361.0, 123456.0, 900000.0])
def test_what_is_switched_off_sheds_what_was_requested(shed_w: float) -> None:
    nodes = switch_off(CURIE, shed_w).nodes
    off_w, fixed_w = off_watts(CURIE, nodes)
    assert CURIE.full_w - ((5040 - nodes) * 358 + off_w + fixed_w) >= shed_w


@pytest.mark.parametrize(("share", "off_only", "dvfs"), [(0.8, 0.792, 0.832), (0.6, 0.584, 0.665), (0.4, 0.376, 0.443)])
def test_the_work_done_under_a_cap_is_that_of_the_model(share: float, off_only: float, dvfs: float) -> None:
    watts = share * FULL_NODES_W
    assert work(CURIE, watts, 1.63, FLOOR, "off") / 5040 == pytest.approx(off_only, abs=5e-4)
    chosen = lever(CURIE, watts, 1.63, FLOOR)
    assert chosen == ("dvfs" if share > 0.4 else "both")
    assert work(CURIE, watts, 1.63, FLOOR, chosen) / 5040 == pytest.approx(dvfs, abs=5e-4)


@pytest.mark.parametrize(("share", "mix"), [(0.8, 0.817), (0.6, 0.608), (0.4, 0.392)])
def test_with_the_floor_of_mix_both_levers_combine_below_three_quarters(share: float, mix: float) -> None:
    watts = share * FULL_NODES_W
    chosen = lever(CURIE, watts, 1.294, MIX_FLOOR)
    assert chosen == ("dvfs" if share > 269 / 358 else "both")
    assert work(CURIE, watts, 1.294, MIX_FLOOR, chosen) / 5040 == pytest.approx(mix, abs=1e-3)


@pytest.mark.parametrize(
    ("application", "value", "corrected", "printed"),
    [
        ("linpack", 0.053, "off", "dvfs"),
        ("imb", 0.051, "off", "dvfs"),
        ("spec-float", -0.009, "dvfs", "off"),
        ("default", -0.093, "dvfs", "off"),
        ("gromacs", -0.342, "dvfs", "off"),
    ],
)
def test_the_printed_rule_takes_the_worse_lever(application: str, value: float, corrected: str, printed: str) -> None:
    degradation = CURIE.degradation[application]
    watts = 0.8 * FULL_NODES_W
    assert rho(degradation, 14, 193, 358) == pytest.approx(value, abs=1e-3)
    assert lever(CURIE, watts, degradation, FLOOR) == corrected
    assert lever(CURIE, watts, degradation, FLOOR, "printed") == printed
    better, worse = (lever(CURIE, watts, degradation, FLOOR, rule) for rule in ("corrected", "printed"))
    assert work(CURIE, watts, degradation, FLOOR, better) > work(CURIE, watts, degradation, FLOOR, worse)


def test_switch_off_alone_beats_both_where_it_is_preferred_at_all() -> None:
    watts = 0.4 * FULL_NODES_W
    assert lever(CURIE, watts, 2.14, FLOOR) == "off"
    assert lever(CURIE, watts, 2.14, FLOOR, "printed") == "both"
    assert work(CURIE, watts, 2.14, FLOOR, "off") / 5040 == pytest.approx(0.376, abs=5e-4)
    assert work(CURIE, watts, 2.14, FLOOR, "both") / 5040 == pytest.approx(0.337, abs=5e-4)


def test_both_levers_switch_off_what_the_floor_leaves_over() -> None:
    watts = 0.4 * FULL_NODES_W
    off = nodes_off(CURIE, watts, 1.63, FLOOR, "both").nodes
    off_w, fixed_w = off_watts(CURIE, off)
    assert (5040 - off) * 193 + off_w + fixed_w <= watts + CURIE.fixed_w
    assert off / 5040 < 0.28, "the bonus of whole racks saves nodes: without it 28 % go off"
