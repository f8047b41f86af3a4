"""Nodes that are switched off and on in the ledger's world (``ledger_world``), by the product's own code.

``live.power`` decides and remembers, ``serve.power`` joins it to the ledger; of both only the processes are replaced,
since commands here are the world's. They fail, hang and are killed, end well without booting anything; boots take
minutes, longer than they are waited for. Somebody switches nodes off and on as chance has it. What is decided is in the
ledger's store, and its last rows are lost with it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from cluster_agent.budget.kept_counts import DeposedError
from cluster_agent.jobs.job_nodes import Node as LiveNode
from cluster_agent.jobs.power_switching import Power, PowerTimes, Switched
from cluster_agent.serve.config import JobSettings, PowerSettings
from cluster_agent.serve.power_commands import Command, PowerCommands

if TYPE_CHECKING:
    from benchmarks.ledger_store import FaultyStore
    from benchmarks.ledger_world import World
    from cluster_agent.budget.ledger import Ledger

STEP_S: Final = 0.5
COMMAND_S: Final = (0.5, 10.0)
LATE_BOOT_S: Final = 400.0
MOST_AWAY: Final = 4
SETTINGS: Final = PowerSettings(off_within_s=20.0, boot_within_s=100.0, retries=1)


class SwitchStore:
    """``live.store.JobStore``, as far as ``live.power`` uses it: rows of the world's store, under one epoch."""

    def __init__(self, store: FaultyStore, epoch: int) -> None:
        self._store, self._epoch = store, epoch

    def switched(self) -> list[Switched]:
        return list(self._store.switched().values())

    def switch(self, node: Switched) -> None:
        self._store.switch(self._epoch, node.name, node)

    def is_on(self, name: str) -> None:
        self._store.switch(self._epoch, name, None)


@dataclass(slots=True)
class _Command(Command):
    ends_s: float
    problem: str


class WorldPower(PowerCommands):
    """``serve.power`` with commands that are the world's."""

    def __init__(self, world: World, ledger: Ledger) -> None:
        self._world = world
        self.nodes = {name: LiveNode(name) for name in sorted(world.nodes)}
        times = PowerTimes(0.0, SETTINGS.off_within_s, SETTINGS.boot_within_s, SETTINGS.retries)
        store: Any = SwitchStore(world.store, ledger.epoch)
        self.power = Power(times, store, lambda: world.now_s, lambda line: None, ledger.settle_s)
        self.power.load(self.nodes)
        side: Any = SimpleNamespace(live=self, is_open=True, updating=self._updating)
        super().__init__(JobSettings(down_after_s=15.0), SETTINGS, side, ledger, lambda: None)
        self._commands: dict[str, _Command] = {}

    @contextlib.contextmanager
    def _updating(self) -> Iterator[WorldPower]:
        yield self

    def heard(self, name: str, boot_id: str) -> None:
        node = self.nodes[name]
        self.power.heard(node, boot_id)
        node.heard_s, node.boot_id, node.is_up = self._world.now_s, boot_id, True

    def look(self, now_s: float) -> None:
        """As the partition of jobs does in each of its turns."""
        self.power.watch(self.nodes.values(), ())
        self.step(now_s)

    def switch_some(self) -> None:
        """Somebody switches a node, as ``clusterctl power`` lets them."""
        dice = self._world.dice
        away = [name for name, node in self.nodes.items() if node.switched is not None]
        node = self.nodes[dice.choice(away if len(away) > MOST_AWAY else sorted(self.nodes))]
        state = node.switched.state if node.switched else "on"
        if state == "on" or (state == "failed" and dice.random() < 0.5):
            self._world.count("switched off")
            self.power.switch_off(node, is_by_hand=True)
        elif state in ("off", "failed") and self.power.is_silent(node):
            self._world.count("switched on")
            self.power.switch_on(node)

    def leave_as_is(self) -> None:
        """Nobody wants any node switched on any more."""
        for node in self.nodes.values():
            if node.switched is not None and node.switched.is_wanted:
                self.power.stay_off(node)

    # --- commands, in place of processes

    def _ended(self, now_s: float) -> list[Any]:
        found: list[Any] = []
        for name, one in list(self._commands.items()):
            if now_s >= min(one.ends_s, one.until_s):
                del self._commands[name]
                found.append((name, one, one.problem if now_s < one.until_s else "its command took too long"))
        return found

    def _start(self, now_s: float, switched: list[LiveNode]) -> None:
        for one in self.power.to_run(switched):
            if one.name not in self._commands:
                within_s = SETTINGS.off_within_s if one.state == "powering-off" else SETTINGS.boot_within_s
                self._commands[one.name] = self._run(one, now_s, within_s)

    def _run(self, one: Switched, now_s: float, within_s: float) -> _Command:
        """It goes on without the cluster agent, should that be killed."""
        dice, node = self._world.dice, self._world.nodes[one.name]
        lasts_s, chance = dice.uniform(*COMMAND_S), dice.random()
        made = _Command(one.state, one.tries, now_s + within_s, now_s + lasts_s, "")
        if chance < 0.1:
            made.problem = "refused"
            return made
        if chance < 0.2:  # it hangs, and has done its work or not
            made.ends_s = now_s + 2 * within_s
        if one.state == "powering-off":
            if chance >= 0.15:
                self._world.after(lasts_s * dice.random(), node.power_off)
        elif chance >= 0.25:
            most_s = LATE_BOOT_S if dice.random() < 0.2 else SETTINGS.boot_within_s
            self._world.after(lasts_s * dice.random(), lambda: node.power_on(most_s))
        return made


def step_all(world: World) -> None:
    """Every cluster agent that is there looks after its nodes' power."""
    for i, side in enumerate(world.sides):
        if side is not None and world.ledgers[i] is not None:
            try:
                side.look(world.now_s)
            except DeposedError:
                world.ledgers[i] = world.sides[i] = None
    world.after(STEP_S, lambda: step_all(world))
