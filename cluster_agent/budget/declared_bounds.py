"""What a node may declare: whoever has a node's key writes its declaration, and the budget is shared by it.

No node draws more than ``most_mw``, says the site. Watts that a node declares above that are cut to it before anything
counts or plans with them, and an alarm names the node; so one key cannot take the watts of all others. An honest node
whose TDP is higher than the site says is capped to the bound, so it does not draw more than it counts. The cap that a
node reports as in force, and the power that it reports, count as they are: they may be true.

A node that declares a TDP of 0 would count nothing. It gets what every node counts before its first report.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from foundation.wire.power_messages import Declaration, Report

NAMED: Final = 3
"""Ours: how many nodes the alarm names."""

POWERS: Final = ("tdp_mw", "mop_mw", "safe_mw", "boot_mw")


class DeclaredBounds:
    """``usual_mw``: what a node counts before its first report; ``most_mw``: the most that one may declare."""

    def __init__(self, usual_mw: int, most_mw: int) -> None:
        self._usual_mw, self._most_mw = usual_mw, most_mw
        self._outside: dict[str, Declaration] = {}

    def bounded(self, reports: Iterable[Report]) -> list[Report]:
        """The reports, with declarations that are within the bounds; ``alarm`` then knows which were not."""
        found = []
        for report in reports:
            found.append(within := self.within(report))
            if within is not report:
                self._outside[report.node] = report.declaration
            elif self._outside:
                self._outside.pop(report.node, None)
        return found

    def within(self, report: Report) -> Report:
        """The report itself if its declaration is within the bounds, else one with a declaration that is."""
        declared = report.declaration
        highest_mw = max(declared.tdp_mw, declared.mop_mw, declared.safe_mw, declared.boot_mw)
        if declared.tdp_mw and highest_mw <= self._most_mw:
            return report
        powers_mw = {name: min(getattr(declared, name), self._most_mw) for name in POWERS}
        if not declared.tdp_mw:
            powers_mw["tdp_mw"] = self._usual_mw
        return msgspec.structs.replace(report, declaration=msgspec.structs.replace(declared, **powers_mw))

    def forget(self, node: str) -> None:
        """The node is gone."""
        self._outside.pop(node, None)

    @property
    def alarm(self) -> str:
        """The nodes whose declarations are outside the bounds now; empty: none."""
        if not self._outside:
            return ""
        named = ", ".join(f"{name} {self._words(one)}" for name, one in sorted(self._outside.items())[:NAMED])
        more = ", ..." if len(self._outside) > NAMED else ""
        return (
            f"{len(self._outside)} nodes declare what no node may ({named}{more}): they count and get at most"
            f" {self._most_mw / 1000:g} W each; if that is too little, set nodes.most_w, else see who has their keys"
        )

    def _words(self, declared: Declaration) -> str:
        if not declared.tdp_mw:
            return "a TDP of 0 W"
        name = max(POWERS, key=lambda name: int(getattr(declared, name)))
        return f"{name.removesuffix('_mw')} {getattr(declared, name) / 1000:g} W"
