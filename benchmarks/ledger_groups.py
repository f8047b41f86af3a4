"""Groups of nodes with limits of their own in the ledger's world (``ledger_world``): two rooms, two racks in each.

Each rack has every fourth node, so every lease class and size is in each, and some gear. A limit is changed as chance
has it: raised or dropped, announced up to a minute ahead or not at all. What every node may *really* draw is added up
in each group, too, and compared with what is promised of its limit, as the world does for the whole budget.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from cluster_agent.budget.levels import Group, Levels
from foundation.wire.power_messages import Declaration

if TYPE_CHECKING:
    from benchmarks.ledger_world import World
    from cluster_agent.budget.ledger import Ledger

RACKS: Final = 4
GEAR_MW: Final = 40_000
AT_ONCE: Final = 0.4
"""Which part of the changes nobody announces."""


@dataclass(slots=True)
class _Group:
    """One group. Promises: from when, mW, the step's own time."""

    least_mw: int
    most_mw: int
    promised_mw: int
    enforceable_mw: int
    promises: list[tuple[float, int, float]] = field(default_factory=list)
    violations: int = 0
    worst_mw: int = 0
    used_mws: float = 0.0
    promised_mws: float = 0.0


class WorldGroups:
    """The tree of one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        racks = {rack: sorted(world.nodes)[rack::RACKS] for rack in range(RACKS)}
        self._path = {name: (f"room{rack % 2}", f"rack{rack}") for rack, names in racks.items() for name in names}
        self._tree = [Group(f"room{room}", 1) for room in range(2)]
        self._tree += [Group(f"rack{rack}", 1, tuple(names), f"room{rack % 2}", GEAR_MW)
                       for rack, names in racks.items()]  # fmt: skip
        self.groups = {one.name: self._made(one.name) for one in self._tree}
        first = self.levels()
        self.lines = dict(zip(first.names, first.lines, strict=True))
        for name, one in self.groups.items():
            self.lines[name].set(one.most_mw)
            self._announce(name, 60.0, one.least_mw + (one.most_mw - one.least_mw) * 2 // 5)

    def levels(self) -> Levels:
        """For a new ledger; limits are the same for all."""
        made = Levels(self._tree)
        if hasattr(self, "lines"):
            made.lines = [self.lines[name] for name in made.names]
        return made

    def charge(self, node: str, more_mw: int) -> None:
        """What the node may draw has risen by so much."""
        for name in self._path[node]:
            self.groups[name].enforceable_mw += more_mw

    def account(self, now_s: float, next_s: float) -> None:
        """Judge the time from now to the next event, at each promise that begins in it."""
        for one in self.groups.values():
            at_s = now_s
            while one.promises and one.promises[0][0] <= next_s:
                from_s, mw, _ = heapq.heappop(one.promises)
                _judge(one, max(from_s - at_s, 0.0))
                at_s = max(from_s, at_s)
                one.promised_mw = mw
            _judge(one, next_s - at_s)

    def is_whole(self, ledger: Ledger) -> bool:
        """Whether the reserve of every group is whole."""
        free_mw = ledger.levels.free_mw(
            self._world.now_s, ledger.settle_s, ledger.accounts, ledger.terms.failing_together
        )
        return bool((free_mw >= 0).all())

    def change(self) -> None:
        """Change a limit, perhaps at once. A drop is in force a settle time after its announcement at the latest."""
        world = self._world
        ledger = world.active()
        if ledger is None:
            return
        name = world.dice.choice(sorted(self.groups))
        one = self.groups[name]
        mw = world.dice.randrange(one.least_mw, one.most_mw)
        is_at_once = world.dice.random() < AT_ONCE
        at_s = world.now_s + (0.0 if is_at_once else world.dice.uniform(0, 60))
        world.count("limit changed at once" if is_at_once else "limit changed ahead")
        self._announce(name, at_s, mw, ledger.settle_s)

    # --- inside

    def _announce(self, name: str, at_s: float, mw: int, settle_s: float = 0.0) -> None:
        line, one = self.lines[name], self.groups[name]
        line.advance(self._world.now_s)
        line.announce(at_s, mw)
        before_mw = line.steps[-2][1] if len(line.steps) > 1 else line.budget_mw
        from_s = max(at_s, self._world.now_s + settle_s) if mw < before_mw else at_s
        one.promises = [promise for promise in one.promises if promise[0] < from_s and promise[2] < at_s]
        heapq.heapify(one.promises)
        heapq.heappush(one.promises, (from_s, mw, at_s))

    def _made(self, name: str) -> _Group:
        world = self._world
        members = [world.nodes[node] for node, path in self._path.items() if name in path]
        fixed_mw = GEAR_MW * (1 if name.startswith("rack") else 2)
        declared: list[Declaration] = [node.declaration for node in members]
        boots = sorted((one.boot_mw - one.mop_mw for one in declared), reverse=True)
        least_mw = sum(world.needs_mw(node) for node in members) + sum(boots[: world.terms.failing_together]) + fixed_mw
        most_mw = sum(one.tdp_mw for one in declared) + fixed_mw
        return _Group(least_mw, most_mw, most_mw, fixed_mw)


def _judge(one: _Group, seconds: float) -> None:
    over_mw = one.enforceable_mw - one.promised_mw
    one.used_mws += one.enforceable_mw * seconds
    one.promised_mws += one.promised_mw * seconds
    if over_mw > 0 and seconds > 0:
        one.violations += 1
        one.worst_mw = max(one.worst_mw, over_mw)
