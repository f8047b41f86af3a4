"""The ledger in a simulated world in which everything goes wrong: the budget is kept, and each rule is needed."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.ledger import RULES
from benchmarks.ledger_rules import STEPS, counting
from benchmarks.ledger_world import KINDS, World


@pytest.mark.parametrize("kind", list(KINDS))
def test_the_budget_is_never_exceeded_whatever_goes_wrong(kind: str) -> None:
    totals = World(1, faults=KINDS[kind]).run(10_000)
    assert totals.counted, "nothing went wrong"
    assert (totals.violations, totals.worst_mw) == (0, 0)


REACHED_IN = {
    "switching and all": 20_000, "nodes that leave": 5_000, "nodes that boot fast": 10_000, "cluster agents": 10_000,
    "deaf nodes": 10_000, "cluster machines": 20_000,
}  # fmt: skip
"""The least of the worlds, and of their events, that reach everything."""


def test_the_worlds_reach_everything_that_each_rule_does() -> None:
    """A rule that is never applied in them could be wrong, and the budget would still be kept there."""
    acted: Counter[str] = Counter()
    ledger_type, lease_type = counting(acted)
    for kind, events in REACHED_IN.items():
        world = World(1, faults=KINDS[kind], ledger_type=ledger_type, lease_type=lease_type)
        assert world.run(events).violations == 0
    assert {act for act in STEPS if not acted[act]} == set()
    assert {act.split(" ")[0] for act in STEPS} == {str(rule) for rule in range(1, 11)}


def test_a_world_in_which_its_rules_are_counted_is_the_same_world() -> None:
    def end(**types: Any) -> tuple[float, int, dict[str, int]]:
        world = World(7, faults=KINDS["all"], **types)
        world.run(2_000)
        return world.now_s, world.enforceable_mw, world.totals.counted

    ledger_type, lease_type = counting(Counter())
    assert end() == end(ledger_type=ledger_type, lease_type=lease_type)


@settings(max_examples=10)
@given(seed=st.integers(0, 2**32), kind=st.sampled_from(list(KINDS)))
def test_no_seed_breaks_the_budget(seed: int, kind: str) -> None:
    assert World(seed, faults=KINDS[kind]).run(1_000).violations == 0


@pytest.mark.parametrize(
    ("rule", "kind"),
    [("without 1, counts", "network and agents"), ("without 2, order", "network and agents"),
     ("without 4, lapse", "a bad network"), ("without 5, retiring", "network and agents"),
     ("without 6, classes", "sticky controllers"), ("without 9, new ledgers", "cluster agents"),
     ("without 6, known to be off", "nodes switched off"), ("without 8, boots granted", "nodes switched off"),
     ("without 7, reserve", "kernels and reboots"), ("without 8, new boots", "joining nodes"),
     ("without 10, drops", "network and agents")],
)  # fmt: skip
def test_the_world_notices_a_rule_that_is_missing(rule: str, kind: str) -> None:
    world = RULES[rule](0, faults=KINDS[kind])
    assert any(world.run(1_000).violations for _ in range(30))


@pytest.mark.parametrize("kind", ["network and agents", "nodes switched off", "all"])
def test_once_faults_end_the_budget_is_used_again(kind: str) -> None:
    world = World(3, faults=KINDS[kind])
    world.run_for(600)
    assert world.unused_once_healed() <= 0.01


def test_the_same_seed_gives_the_same_world() -> None:
    def end(seed: int) -> tuple[float, int, int]:
        world = World(seed, faults=KINDS["all"])
        world.run(5_000)
        return world.now_s, world.enforceable_mw, sum(world.totals.counted.values())

    assert end(5) == end(5) != end(6)
