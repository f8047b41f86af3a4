"""The longest path over small graphs, held against every path there is; each breach of its assumptions is refused."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.worst_case.control_flow import Block, Function, Instruction
from benchmarks.worst_case.longest_path import Bounds
from benchmarks.worst_case.loop_bounds import Line, most_times

TURNS = 3
LOOSE = ("a loop tested above", "a loop in a loop", "a fork in a loop")
"""Graphs whose bound has the body once more, in the turn that leaves."""


def function(edges: dict[int, list[int]], callees: dict[int, list[int]] | None = None, entry: int = 0) -> Function:
    blocks = {
        one: Block([Instruction(one, "addi", None)], list(after), (callees or {}).get(one, []))
        for one, after in edges.items()
    }
    return Function(f"f{entry}", entry, blocks)


def every_path(of: Function, cost: dict[tuple[int, bool], int]) -> Iterator[int]:
    """Cycles of each path to a block without successors on which no header runs more than TURNS times per entry."""

    def go(block: int, runs: dict[int, int], spent: int) -> Iterator[int]:
        runs = {loop.key: runs.get(loop.key, 0) for loop in of.all_loops if block in loop.body}
        if block in runs:
            runs[block] += 1
            if runs[block] > TURNS:
                return
        spent += cost[block, any(one > 1 for one in runs.values())]
        if not of.blocks[block].successors:
            yield spent
        for after in of.blocks[block].successors:
            yield from go(after, runs, spent)

    return go(of.entry, {}, 0)


GRAPHS = {
    "a fork": {0: [1, 2], 1: [3], 2: [3], 3: []},
    "a loop tested above": {0: [1], 1: [2, 3], 2: [1], 3: []},
    "a loop tested below": {0: [1], 1: [1, 2], 2: []},
    "a loop that is left in its middle": {0: [1], 1: [2], 2: [3, 4], 3: [1, 4], 4: []},
    "a loop in a loop": {0: [1], 1: [2, 5], 2: [3, 4], 3: [2], 4: [1], 5: []},
    "a fork in a loop": {0: [1], 1: [2, 3, 5], 2: [4], 3: [4], 4: [1], 5: []},
}


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("caches", ["none", "warm", "any"])
def test_no_path_is_longer_and_without_caches_one_is_as_long(graph: str, caches: str) -> None:
    edges = GRAPHS[graph]
    for seed in range(20):
        dice, one = random.Random(seed), function(edges)
        first = {block: dice.randint(1, 100) for block in edges}
        later = {"none": first, "warm": {block: dice.randint(1, most) for block, most in first.items()}}.get(
            caches, {block: dice.randint(1, 100) for block in edges}
        )
        cost = {
            (block, is_later): (later if is_later else first)[block] for block in edges for is_later in (False, True)
        }
        turns = {loop.key: TURNS for loop in one.all_loops}
        bound = Bounds({0: one}, turns, lambda at, is_later, c=cost: c[at.address, is_later], {}).of(0)
        longest = max(every_path(one, cost))
        assert bound >= longest, seed
        assert caches != "none" or graph in LOOSE or bound == longest, seed


def test_a_call_costs_what_is_called() -> None:
    caller, called = function({0: [1], 1: []}, {0: [10]}), function({10: [11, 12], 11: [], 12: []}, entry=10)
    assert Bounds({0: caller, 10: called}, {}, lambda at, _: at.address + 1, {}).of(0) == 1 + 2 + 11 + 13


def test_recursion_is_refused() -> None:
    with pytest.raises(ValueError, match="recursion: f0 > f0"):
        Bounds({0: function({0: []}, {0: [0]})}, {}, lambda *_: 1, {}).of(0)


@pytest.mark.parametrize(
    ("line", "most"),
    [
        ("for (int i = 0; i < N; i++)", 7),
        ("for (int i = 1; i <= N; i += 2)", 4),
        ("while (rest) { /* at most N + 1 times */", 8),
        ("while (rest) {", None),
        ("for (int i = 0; i < n; i++)", None),
    ],
)
def test_a_loop_says_how_often_it_turns_or_is_refused(tmp_path: Path, line: str, most: int | None) -> None:
    source = tmp_path / "a.c"
    source.write_text(f"#define N 7\n/*\n*/\n#if 0\n{line}\n#endif\n")
    place = Line(source, 5)
    if most is None:
        with pytest.raises(ValueError, match=r"a\.c:5: .*no bound"):
            most_times([place])
    else:
        assert most_times([place]) == {place: most}
