"""The most cycles that a function of the image can take: the longest path through its blocks, loops taken as often as
their bounds allow, with what it calls.

An instruction costs the most that it took in a run: one number for the first turn of a loop, when caches may be cold,
and one for later turns of it or of a loop around it, in the function itself or in one that called it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from benchmarks.worst_case.control_flow import Block, Function, Instruction, Loop

Cost = Callable[[Instruction, bool], int]
"""Cycles of an instruction; true: in a later turn of a loop."""


@dataclass
class Bounds:
    """``turns``: how often each loop's header runs at most for each entry. ``pointed``: entries that a call through a
    pointer may reach, by the name of the function that calls; ``""``: from any other. ``few``: functions of which one
    function, by its entry, and what it calls, make so many calls at most. Calls of functions that are not among
    ``functions`` cost nothing."""

    functions: Mapping[int, Function]
    turns: Mapping[int, int]
    cost: Cost
    pointed: Mapping[str, Collection[int]]
    few: Mapping[int, tuple[Collection[int], int]] = field(default_factory=dict)
    _known: dict[tuple[int, bool], int] = field(default_factory=dict)
    _path: list[str] = field(default_factory=list)

    def of(self, entry: int, *, is_later: bool = False) -> int:
        """Cycles of the function from its entry to its return. Raises ``ValueError`` for recursion."""
        key = (entry, is_later)
        if entry in self.few and key not in self._known:
            self._known[key] = self._with_few(entry, is_later)
        if key not in self._known:
            function = self.functions[entry]
            if function.name in self._path:
                raise ValueError(f"recursion: {' > '.join((*self._path, function.name))}")
            self._path.append(function.name)
            region = _Region(function, {entry}, function.blocks.keys(), function.loops)
            self._known[key] = max(self._lengths(function, region, is_later).values())
            self._path.pop()
        return self._known[key]

    def _with_few(self, entry: int, is_later: bool) -> int:
        chosen, calls = self.few[entry]
        others = {one: function for one, function in self.functions.items() if one not in chosen}
        without = Bounds(others, self.turns, self.cost, self.pointed)
        dearest = max(self.of(one, is_later=later) for one in chosen for later in (False, True))
        return without.of(entry, is_later=is_later) + calls * dearest

    def _lengths(self, function: Function, region: _Region, is_later: bool) -> dict[int, int]:
        """The longest way from a start to the end of each block of a region, or of each loop in it."""
        lengths: dict[int, int] = {}
        before: dict[int, int] = {}
        for node in region.order:
            loop = region.loops.get(node)
            own = self._turning(function, loop, is_later) if loop else self._block(function, node, is_later)
            lengths[node] = before.get(node, 0) + own
            for after in region.after(node):
                before[after] = max(before.get(after, 0), lengths[node])
        return lengths

    def _turning(self, function: Function, loop: Loop, is_later: bool) -> int:
        """A whole loop: turns up to the one that leaves it."""
        turns = self.turns[loop.key]
        region = _Region(function, loop.entries | loop.headers, loop.body, loop.inner, loop.headers)
        first = self._lengths(function, region, is_later)
        if turns <= 1:
            return max(first.values())
        later = self._lengths(function, region, True)
        ends = {region.node(end) for end in loop.ends} & later.keys()
        first_turn, turn = (max(lengths[end] for end in ends) for lengths in (first, later))
        return first_turn + (turns - 2) * turn + max(later.values())

    def _block(self, function: Function, first: int, is_later: bool) -> int:
        block = function.blocks[first]
        own = sum(self.cost(one, is_later) for one in block.instructions)
        return own + max((self.of(entry, is_later=is_later) for entry in self._callees(function, block)), default=0)

    def _callees(self, function: Function, block: Block) -> Collection[int]:
        callees = self.pointed.get(function.name, self.pointed[""]) if block.calls_pointer else block.callees
        return [entry for entry in callees if entry in self.functions]


class _Region:
    """Blocks of a function, or of a loop without the edges to its headers, in which each inner loop counts as one node,
    by its key. So it has no cycles. ``order``: the nodes that can be reached, each after all that lead to it."""

    def __init__(
        self,
        function: Function,
        starts: Collection[int],
        body: Collection[int],
        inner: Iterable[Loop],
        headers: Collection[int] = (),
    ) -> None:
        self.loops = {loop.key: loop for loop in inner}
        self._function, self._body, self._headers = function, body, headers
        self._owner = {block: loop.key for loop in self.loops.values() for block in loop.body}
        self.order: list[int] = []
        seen: set[int] = set()
        for start in sorted(starts):
            self._visit(self.node(start), seen)
        self.order.reverse()

    def node(self, block: int) -> int:
        """The block, or the loop that it is in."""
        return self._owner.get(block, block)

    def after(self, node: int) -> set[int]:
        """Nodes that may follow."""
        inside: Collection[int] = self.loops[node].body if node in self.loops else (node,)
        blocks = {one for block in inside for one in self._function.blocks[block].successors}
        return {self.node(one) for one in blocks if one in self._body and one not in self._headers} - {node}

    def _visit(self, node: int, seen: set[int]) -> None:
        if node in seen:
            return
        seen.add(node)
        for after in sorted(self.after(node)):
            self._visit(after, seen)
        self.order.append(node)
