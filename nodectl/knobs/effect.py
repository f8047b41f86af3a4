"""Did clock or power follow a write? The third step after set and read back.

A register with the new limit proves little: a governor, a locked second interface, temperature or the firmware may keep
the clock where it was. So after each write, the first sample that lies wholly after the knob's latency is checked:

- a limit is kept if the clock (or power) is not above it;
- a raised clock limit is followed if a busy domain runs at least at the lower of the limit and its nominal clock, less
  what a driver without a table of clocks may round down. A clock above nominal is turbo, which no limit can demand.

What a sample shows of a knob is in the knob's own file (``KnobKind.effect``).

An idle domain shows nothing and is checked again at the next sample. No instrument is read here; only where an effect
is missing does the knob look for the cause.

Of several knobs in one row (``KnobRange.also``) the highest counts. A clock above one limit is none of its doing where
another knob of the row allows it: nothing is reported if this agent has set that one so (a site's limit may bind one of
two threads), and its name if somebody else has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from nodectl.knobs.api import Knob, KnobError, Outcome, Reason
from nodectl.knobs.registry import KINDS, rows_of_several
from nodectl.knobs.timing import Deadline, deadline_of
from pmu.layout import Layout
from pmu.readings import Sample

TOLERANCE = 0.05
"""Ours: clocks are means over an interval and power is averaged by the instrument; 5 % is beyond both."""


class EffectWatch:
    """Keeps for each knob the last value written and since when, until a sample shows whether it was followed."""

    def __init__(self, knobs: Sequence[Knob], layout: Layout, deadlines: Sequence[Deadline] = ()) -> None:
        """``deadlines``: as a calibration has measured them; a knob without one has its own ``latency_s``."""
        self._knobs = list(knobs)
        self._row = {knob.name: row for row, knob in enumerate(knobs)}
        self._rows_of_several = rows_of_several(layout)
        measured = [deadline_of(knob.name, deadlines) for knob in knobs]
        latency_s = [due.effect_s if due else knob.latency_s for due, knob in zip(measured, knobs, strict=True)]
        self._latency_ns = (np.array(latency_s) * 1e9).astype(np.int64)
        self._requested = np.zeros(len(knobs))
        self._since_ns = np.zeros(len(knobs), np.int64)
        self._pending = np.zeros(len(knobs), np.bool_)
        effects = [kind.effect(self._row, layout) for kind in KINDS if kind.effect]
        self._effects = [effect for effect in effects if effect.rows.size]
        self._rounding = np.zeros(len(knobs))
        self._is_watched = np.zeros(len(knobs), np.bool_)
        for effect in self._effects:
            self._rounding[effect.rows] = effect.rounding
            self._is_watched[effect.rows] = True

    def wrote(self, outcomes: Iterable[Outcome], settings: Mapping[str, int], now_ns: int) -> None:
        """Take note of what the writer has just done with ``settings`` at ``now_ns`` (CLOCK_MONOTONIC)."""
        for outcome in outcomes:
            if outcome.status == "unchanged" or (row := self._row.get(outcome.knob)) is None:
                continue
            value = settings.get(outcome.knob, 0)
            self._pending[row] = outcome.status == "written" and value > 0 and self._is_watched[row]
            self._requested[row] = value
            self._since_ns[row] = now_ns

    def judge(self, sample: Sample) -> list[Outcome]:
        """Knobs whose effect this sample shows to be missing; each written value is judged once."""
        if not self._pending.any():
            return []
        start_ns = sample.time_ns - round(sample.elapsed_s * 1e9)
        is_due = self._pending & (start_ns >= self._since_ns + self._latency_ns)
        if not is_due.any():
            return []
        seen, floor = np.full(len(self._knobs), np.nan), np.full(len(self._knobs), np.nan)
        for effect in self._effects:
            effect.look(sample, seen, floor)
        with np.errstate(invalid="ignore"):
            is_above = seen > self._requested * (1 + TOLERANCE)
            is_below = seen < (np.minimum(floor, self._requested) - self._rounding) * (1 - TOLERANCE)
        self._pending &= ~(is_due & ~np.isnan(seen))
        missing = np.flatnonzero(is_due & (is_above | is_below)).tolist()
        found = [self._missing_effect(row, float(seen[row])) for row in missing]
        return [outcome for outcome in found if outcome]

    def _missing_effect(self, row: int, seen: float) -> Outcome | None:
        """None: another knob of the row allows what was seen, as this agent has set it."""
        knob, requested = self._knobs[row], int(self._requested[row])
        try:
            present = knob.read_back()
            if present is not None and not knob.matches(requested, present):
                reason, text = knob.explain(requested, present)
                return self._outcome(
                    knob, requested, seen, reason or "foreign writer", text or f"it is at {present} now"
                )
            other = self._allowing(knob.name, requested, seen)
            if other is not None:
                return self._kept_up(knob, other, requested, seen)
            reason, text = knob.explain(requested, None)
        except KnobError as error:
            return Outcome(knob.name, error.status, str(error), error.reason)
        return self._outcome(knob, requested, seen, reason, text)

    def _allowing(self, name: str, requested: int, seen: float) -> tuple[int, int] | None:
        """Another knob of the row that allows more than was requested, and no less than was seen: its place and its
        present value."""
        for other in self._rows_of_several.get(name, ()):
            row = self._row.get(other)
            if row is None or other == name:
                continue
            present = self._knobs[row].read_back()
            if present is not None and present > requested and seen <= present * (1 + TOLERANCE):
                return row, present
        return None

    def _kept_up(self, knob: Knob, other: tuple[int, int], requested: int, seen: float) -> Outcome | None:
        row, present = other
        if present == self._requested[row]:
            return None
        text = f"{self._knobs[row].name} has the same clock and allows {knob.shown(present)}, not set by this agent"
        return self._outcome(knob, requested, seen, "foreign writer", text)

    def _outcome(self, knob: Knob, requested: int, seen: float, reason: Reason, text: str) -> Outcome:
        detail = f"requested {knob.shown(requested)}, {seen:.0f} measured: {text}"
        return Outcome(knob.name, "no-effect", detail, reason)
