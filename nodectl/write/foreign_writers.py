"""What to do about another program that moves a knob which this agent has set: the settings under ``[foreign]``.

``yield`` leaves the knob to it. ``reassert`` sets the knob again, a number of times, and then yields: two programs that
overwrite each other for ever help nobody. ``alarm`` yields too, and the line in the log begins with ALARM. A value that
is set again is never above its ceiling (``nodectl.write.ceilings``), so a stricter limit of the other program stays.

A value above the cap that a knob enforces is none of these: it is always set again (``nodectl.write.cap_guard``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from nodectl.config import Foreign
from nodectl.knobs.api import Outcome

CALM_NS: Final = 600_000_000_000
"""Ours: after so long without a foreign value the count of ``reassert`` begins again."""


@dataclass(slots=True)
class _Count:
    n: int = 0
    last_ns: int = 0


class ForeignRule:
    """Applies the settings, and counts how often each knob was set again."""

    def __init__(self, settings: Foreign) -> None:
        self._settings = settings
        self._counts: dict[str, _Count] = {}
        self._again: dict[str, str] = {}
        self._alarms: dict[str, tuple[str, str]] = {}

    def left(self, found: Outcome, now_ns: int) -> Outcome | None:
        """The outcome for a knob that somebody else has moved; None if it is to be set again, as ``done`` then
        reports."""
        if found.status != "foreign":
            return found
        action = self._settings.of(found.knob)
        if action == "yield":
            return found
        if action == "alarm":
            return replace(found, detail=f"ALARM: {found.detail}")
        count = self._counts.setdefault(found.knob, _Count())
        if now_ns - count.last_ns > CALM_NS:
            count.n = 0
        count.last_ns = now_ns
        if count.n >= self._settings.times:
            return replace(found, detail=f"ALARM: set again {count.n} times in vain: {found.detail}")
        count.n += 1
        self._again[found.knob] = f"{found.detail.partition(';')[0]}; set again ({count.n} of {self._settings.times})"
        return None

    def raised(self, knob: str, by: str, alarm: str) -> None:
        """``by`` has set a knob above the cap that it enforces; ``done`` says so, whatever becomes of the write."""
        self._alarms[knob] = by, alarm

    @property
    def is_setting_again(self) -> bool:
        """Whether a knob is set again of which ``done`` has not reported yet."""
        return bool(self._again or self._alarms)

    def done(self, outcome: Outcome) -> Outcome:
        """The outcome of a write, which says so if the knob was set again."""
        text = self._again.pop(outcome.knob, "")
        by, alarm = self._alarms.pop(outcome.knob, ("", ""))
        if alarm:
            end = f"set again to {outcome.detail}" if outcome.status == "written" else outcome.detail
            return replace(outcome, detail=f"{alarm}; {end}", reason="foreign writer", by=by)
        if not text or outcome.status != "written":
            return outcome
        return replace(outcome, detail=f"{outcome.detail}: {text}", reason="foreign writer")
