"""The limits of the budget's groups over time: as in the settings, or as somebody has set them since, lowered by rules.

What was set by hand or by a schedule is in a file next to the store, so it counts after a restart, too. It counts until
the limit in the settings is another one than it was then: whoever changes the settings means it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from cluster_agent.budget.budget_line import BudgetLine
from cluster_agent.budget.levels import Levels
from cluster_agent.budget_rules.rule_sets import RuleSets, Steps, kept
from foundation.sealed_file import SealedFileError, write_whole

SAME_S: Final = 0.5
"""Ours: times of steps that differ by less are the same, since they go from one clock to another."""


class Kept(msgspec.Struct, frozen=True):
    """A limit that was set, its steps to come (Unix seconds), and the settings' limit at that time, in mW."""

    limit_mw: int
    steps: Steps
    settings_mw: int


class GroupLimits:
    """Of one partition. ``say`` logs a line."""

    def __init__(self, levels: Levels, rules: RuleSets, path: Path, say: Callable[[str], None]) -> None:
        self._levels, self._rules, self._path, self._say = levels, rules, path, say
        self._settings_mw = {name: line.budget_mw for name, line in zip(levels.names, levels.lines, strict=True)}
        read = self._read()
        self._kept = {name: one for name, one in read.items() if self._settings_mw.get(name) == one.settings_mw}
        if len(self._kept) < len(read):  # for good: the same settings may come back
            try:
                write_whole(self._path, msgspec.json.encode(self._kept))
            except SealedFileError as error:
                say(f"{error}; limits that were set by hand before the settings changed are still in it")

    @property
    def names(self) -> list[str]:
        """Of all groups."""
        return self._levels.names

    def set_now(self, name: str, wall_s: float) -> tuple[int, Steps]:
        """The limit that was set, and the steps to come, whatever the rules lower it to."""
        one = self._kept.get(name)
        if one is None:
            return self._settings_mw[name], []
        past_mw = [mw for at_s, mw in one.steps if at_s <= wall_s]
        return (past_mw[-1] if past_mw else one.limit_mw), [step for step in one.steps if step[0] > wall_s]

    def set(self, name: str, limit_mw: int, steps: Steps) -> str:
        """Set it from now on. What is to be said if it cannot be stored, "" if it was: it counts all the same, since
        it may be what keeps a fuse in its place."""
        self._kept = {**self._kept, name: Kept(limit_mw, steps, self._settings_mw[name])}
        try:
            write_whole(self._path, msgspec.json.encode(self._kept))
        except SealedFileError as error:
            return f"ALARM: {error}; it counts only until the cluster agent is restarted: set it again then"
        return ""

    def put(self, now_s: float, wall_s: float, settle_s: float) -> None:
        """Put the limits in force that count now, and announce the steps to come. ``now_s``: of the ledger's clock."""
        for name, line in zip(self._levels.names, self._levels.lines, strict=True):
            limit_mw, steps = self._rules.lowered(*self.set_now(name, wall_s), wall_s, name)
            change(line, now_s, limit_mw, [(at_s + now_s - wall_s, mw) for at_s, mw in steps], settle_s)

    def _read(self) -> dict[str, Kept]:
        if not self._levels.names:
            return {}
        return kept(self._path, Kept, self._say, "the limits of all groups are those of the settings")


def change(line: BudgetLine, now_s: float, limit_mw: int, steps: Steps, settle_s: float) -> None:
    """Put these in force, unless they are so already: a change would allow nodes a settle time for what was announced
    long before. ``steps`` by the ledger's clock."""
    line.advance(now_s)
    if (
        line.budget_mw != limit_mw
        or [mw for _, mw in line.steps] != [mw for _, mw in steps]
        or any(abs(was_s - at_s) >= SAME_S for (was_s, _), (at_s, _) in zip(line.steps, steps, strict=True))
    ):
        line.change(now_s, limit_mw, steps, settle_s)
