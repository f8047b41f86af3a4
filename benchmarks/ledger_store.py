"""A store of the ledger whose machine can go down and lose what the disk had promised to keep."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np

from cluster_agent.budget.accounts import Ints
from cluster_agent.budget.kept_counts import Change, DeposedError, Snapshot
from cluster_agent.jobs.power_switching import Switched
from foundation.wire.power_messages import Declaration


class FaultyStore:
    """Commits in memory; a crash of its machine may lose the last of them, though each was called durable."""

    def __init__(self) -> None:
        self.epoch = 0
        self.log: list[tuple[str, Any]] = []
        self.is_certain = True
        self._kept = 1

    def take_over(self, at_least: int = 0) -> Snapshot:
        nodes: dict[int, tuple[str, Declaration]] = {}
        counts: dict[int, int] = {}
        for kind, what in self.log:
            if kind == "nodes":
                nodes.update(what[0])
                counts.update(what[1])
        power = [("power", (name, one)) for name, one in self.switched().items()]
        self.log = [*power, ("nodes", (nodes, counts)), ("epoch", self.epoch)]
        self._kept = len(power) + 1
        self.epoch = max(self.epoch + 1, at_least)
        self.log.append(("epoch", self.epoch))
        is_certain, self.is_certain = self.is_certain, True
        places = range(len(nodes))
        return Snapshot(
            self.epoch, [nodes[at][0] for at in places], [nodes[at][1] for at in places],
            np.array([counts[at] for at in places], np.int64), is_certain,
        )  # fmt: skip

    def trouble(self, is_trial: bool = False) -> str:
        """None."""
        return ""

    def commit(
        self, epoch: int, nodes: Mapping[int, tuple[str, Declaration]], changed: Ints, counts_mw: Ints,
        change: Change | None = None,
    ) -> None:  # fmt: skip
        if epoch != self.epoch:
            raise DeposedError(f"epoch {epoch} is over, the newest is {self.epoch}")
        if nodes or len(changed):
            places = {*nodes, *changed.tolist()}
            self.log.append(("nodes", (dict(nodes), {at: int(counts_mw[at]) for at in places})))

    def switched(self) -> dict[str, Switched]:
        """Nodes whose power was switched, as last stored."""
        rows = {what[0]: what[1] for kind, what in self.log if kind == "power"}
        return {name: copy.copy(one) for name, one in rows.items() if one is not None}

    def switch(self, epoch: int, name: str, one: Switched | None) -> None:
        if epoch != self.epoch:
            raise DeposedError(f"epoch {epoch} is over, the newest is {self.epoch}")
        self.log.append(("power", (name, copy.copy(one))))

    def crash(self, lost: int) -> None:
        """Lose the last commits."""
        self.log = self.log[: max(len(self.log) - lost, self._kept)]
        self.epoch = next((what for kind, what in reversed(self.log) if kind == "epoch"), 0)
        self.is_certain = False
