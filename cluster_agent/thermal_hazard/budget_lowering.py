"""The budget lowered ahead of a thermal hazard: how far, until when, and never more than the settings allow.

Whoever predicts hazards may be wrong for ever, so the bounds are here and not there. A lowering is to ``lower_to`` of
the budget, ends by itself, and of any 24 hours at most ``hours`` are lowered; whoever sets the budget by hand ends it.
It is laid over the budget by hand, schedule or feed, which stays what it is: where a lowering ends, or its record is
lost, the budget is the one that it would have been. It is never below the fixed power and the MOP of every node.

The record is a file next to the store, replaced by one rename, so a restart goes on with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from cluster_agent.errors import WrongUseError
from foundation.sealed_file import SealedFileError, write_whole

HOUR_S: Final = 3600.0
DAY_S: Final = 24 * HOUR_S
LEAST_S: Final = 60.0
"""Ours: nothing is lowered for less."""

Steps = list[tuple[float, int]]


class Lowering(msgspec.Struct, frozen=True):
    """``spans``: from when until when the budget was lowered, in Unix seconds, the newest last. ``by_hand_s``: when
    somebody has set the budget by hand while it was."""

    spans: list[tuple[float, float]] = []
    why: str = ""
    by_hand_s: float = -DAY_S

    def requested(self, wall_s: float, hours: float, why: str, most_hours: float) -> Lowering:
        """Lowered from now on for so many hours, or as many as are left of ``most_hours`` in any 24; 0 ends it.
        ``WrongUseError`` where none is left."""
        spans = [(begin_s, min(end_s, wall_s)) for begin_s, end_s in self.spans if wall_s - DAY_S < end_s]
        spans = [span for span in spans if span[0] <= wall_s]  # others are of a clock that was ahead
        left_s = most_hours * HOUR_S - sum(end_s - begin_s for begin_s, end_s in spans)
        if hours > 0:
            is_by_hand = 0 <= wall_s - self.by_hand_s < DAY_S
            if is_by_hand or left_s < LEAST_S:
                free_s = DAY_S + (self.by_hand_s if is_by_hand else spans[0][1])
                why_not = "it was set by hand" if is_by_hand else f"at most {most_hours:g} of 24 hours are lowered"
                raise WrongUseError(f"the budget is not lowered for a hazard before {_local(free_s)}: {why_not}")
            begin_s = spans.pop()[0] if spans and spans[-1][1] == wall_s else wall_s
            spans.append((begin_s, wall_s + min(hours * HOUR_S, left_s)))
        return msgspec.structs.replace(self, spans=spans, why=why)

    def is_on(self, wall_s: float) -> bool:
        """Whether the budget is lowered now."""
        return bool(self.spans) and self.spans[-1][0] <= wall_s < self.spans[-1][1]


class Lowerings:
    """What is lowered, of one partition. ``lower_to``: a share of the budget, 1 for never; ``hours``: of any 24 at most
    so many. ``say`` logs a line."""

    def __init__(self, path: Path, lower_to: float, hours: float, say: Callable[[str], None]) -> None:
        self._path, self._lower_to, self._hours, self._say = path, lower_to, hours, say
        self._last = self._read()

    def begin(self, wall_s: float, hours: float, why: str) -> None:
        """As ``Lowering.requested``. ``WrongUseError`` also where the settings allow none, or where it cannot be
        recorded."""
        if self._lower_to >= 1.0:
            raise WrongUseError("the budget is never lowered for a hazard unless the settings have [hazard] lower_to")
        self._write(self._last.requested(wall_s, hours, why, self._hours))

    def end(self, wall_s: float) -> None:
        """Somebody has set the budget by hand, which counts more."""
        if not self.text(wall_s):
            return
        begin_s = self._last.spans[-1][0]
        self._last = Lowering([*self._last.spans[:-1], (begin_s, wall_s)], self._last.why, wall_s)
        try:
            self._write(self._last)
        except WrongUseError as error:
            self._say(str(error))

    @property
    def _until_s(self) -> float:
        return self._last.spans[-1][1]

    def text(self, wall_s: float) -> str:
        """What is lowered, for people; empty: nothing."""
        if not self._last.is_on(wall_s) or self._lower_to >= 1.0:
            return ""
        return (
            f"the budget is lowered to {100 * self._lower_to:g} % until {_local(self._until_s)} ahead of a"
            f" thermal hazard: {self._last.why}"
        )

    def over(self, budget_mw: int, steps: Steps, wall_s: float, least_mw: int) -> tuple[int, Steps]:
        """This budget and these steps to come, lowered where they are; none of it below ``least_mw`` that is not so
        anyway."""
        if not self.text(wall_s):
            return budget_mw, steps
        until_s = self._until_s

        def lowered(mw: int) -> int:
            return min(mw, max(round(mw * self._lower_to), least_mw))

        (*_, after_mw) = budget_mw, *(mw for at_s, mw in steps if at_s <= until_s)
        within = [(at_s, lowered(mw)) for at_s, mw in steps if at_s < until_s]
        later = [(at_s, mw) for at_s, mw in steps if at_s > until_s]
        return lowered(budget_mw), [*within, (until_s, after_mw), *later]

    def _read(self) -> Lowering:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=Lowering)
        except FileNotFoundError:
            return Lowering()
        except (OSError, msgspec.MsgspecError):
            self._say(f"{self._path}: cannot be read: the budget is not lowered until a hazard is predicted again")
            return Lowering()

    def _write(self, lowering: Lowering) -> None:
        try:
            write_whole(self._path, msgspec.json.encode(lowering))
        except SealedFileError as error:
            raise WrongUseError(f"{error}; the budget stays as it was") from None
        self._last = lowering


def _local(unix_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(unix_s))
