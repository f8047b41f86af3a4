"""How soon the knobs of this node have an effect, as a calibration has measured it, and the times that follow.

The defaults in the knobs' files (``Knob.latency_s``) are guesses for every machine. With a calibration

- an effect that is missing is noticed sooner, or not too soon (``EffectWatch``);
- the loop does not write a clock again before the last one could be in force (``Pace``);
- policies wait as long as their knobs need (``Policy.waits``, ``nodectl.calibrated.knob_waits``).

Decisions do not depend on the first two; the third is in the run's settings, so a journal replays without the files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

import msgspec

from foundation.shell.settings import ConfigError

LATE_FACTOR: Final = 2.0
"""Ours: an effect is missing after twice the time within which 95 of 100 were there."""


class Spread(msgspec.Struct, frozen=True):
    """Times from a request to its effect, seconds."""

    n: int
    median_s: float
    p95_s: float


class KnobLatency(msgspec.Struct, frozen=True):
    """One knob, or by a pattern (fnmatch) all of its kind. ``noise``: relative standard deviation of what shows the
    effect, at rest; ``seen_by``: that quantity; ``poll_s``: how often it was read; ``missing``: requests without an
    effect in time. ``settle_s``: of a power limit, until power keeps it: after a step it goes beyond it for a while."""

    knob: str
    up: Spread
    down: Spread
    noise: float = 0.0
    seen_by: str = ""
    poll_s: float = 0.0
    missing: int = 0
    settle_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Deadline:
    """Of the knobs that ``knob`` matches. ``gap_s``: the shortest time between two writes. ``effect_s``: an effect that
    an interval which begins later does not show is missing. ``dwell_s``: a shorter value cannot be judged."""

    knob: str
    gap_s: float
    dwell_s: float
    effect_s: float


def deadlines(latencies: Iterable[KnobLatency]) -> tuple[Deadline, ...]:
    """What follows from measured latencies, the slower direction counting."""
    found = []
    for one in latencies:
        slowest_s = max(one.up.p95_s, one.down.p95_s)
        effect_s = LATE_FACTOR * max(slowest_s, one.settle_s)
        found.append(Deadline(one.knob, slowest_s, effect_s + one.poll_s, effect_s))
    return tuple(found)


def deadline_of(knob: str, known: Sequence[Deadline]) -> Deadline | None:
    """The first that matches the knob's name."""
    return next((one for one in known if fnmatchcase(knob, one.knob)), None)


def slowest_of(kind: str, known: Sequence[Deadline]) -> Deadline | None:
    """Of all knobs of a kind, by the kind's name (``uncore/*/max_khz``), the one that takes longest."""
    own = [one for one in known if fnmatchcase(kind, one.knob) or fnmatchcase(one.knob, kind)]
    return max(own, key=lambda one: one.effect_s, default=None)


def least_period_s(knobs: Iterable[str], known: Sequence[Deadline]) -> Mapping[str, float]:
    """Of the knobs that have a deadline, by name: how long after a write the next one makes sense."""
    found = {knob: deadline_of(knob, known) for knob in knobs}
    return {knob: one.gap_s for knob, one in found.items() if one}


def checked_deadlines(latencies: Sequence[KnobLatency], path: str) -> tuple[Deadline, ...]:
    """Those of a calibration's file (``[[latency]]``). ``ConfigError`` in one line that names the file."""
    wrong = next((one.knob for one in latencies if not 0 < max(one.up.p95_s, one.down.p95_s) < 60.0), "")
    if wrong:
        raise ConfigError(f"{path}: latency of {wrong}: p95_s must be above 0 and below 60 s")
    return deadlines(latencies)
