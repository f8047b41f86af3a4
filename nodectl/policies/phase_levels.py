"""phase-levels: a clock for each phase that a program announces, set at the phase's front.

REGALE's event-driven node manager (D2.3 §3.5) knows at a change of phase which operating point the new phase wants and
sets it at once; its levels are an oracle's. Here whoever runs the program gives them, from measurements of its phases,
by the numbers that its hints have (docs/hints.md). The agent decides at each change of phase and not a period later.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec
import numpy as np

from nodectl.policies.api import Policy, Request
from nodectl.policies.parts.clocks import ClockLadder
from pmu.layout import Layout
from pmu.readings import Quality, Sample

GIVEN, OTHER, NO_HINT = range(3)
REASONS: Final = ("the level of this phase", "a phase without a level", "no hint")


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``levels``: ``PHASE:SHARE/...``, such as ``1:0.9/3:0.6``: the lowest clock of at least this share of the highest
    in this phase. Phases that are not named are free. ``step_mhz``: where the driver takes any clock."""

    levels: str = ""
    step_mhz: int = 100

    def __post_init__(self) -> None:
        self.shares()
        if self.step_mhz <= 0:
            raise ValueError("step_mhz must be above 0")

    def shares(self) -> dict[int, float]:
        """By phase."""
        found = {}
        for word in self.levels.split("/") if self.levels else ():
            phase, _, share = word.partition(":")
            try:
                if not 0 < int(phase) < 2**32 or not 0 < float(share) <= 1 or math.isnan(float(share)):
                    raise ValueError
            except ValueError:
                raise ValueError(f"levels: {word[:40]!r} is no phase (1, 2, ...) with a share in (0, 1]") from None
            found[int(phase)] = float(share)
        return found


class State(msgspec.Struct, frozen=True):
    """Nothing is remembered."""


def initial(params: Params, layout: Layout) -> State:
    """No state."""
    return State()


def decide(params: Params, layout: Layout, state: State, sample: Sample) -> tuple[State, Request]:
    """The level of the present phase on every CPU, or no request."""
    free = Request.free(len(layout.cpus))
    is_hinted = sample.hints.quality == Quality.MEASURED
    share = params.shares().get(sample.hints.phase) if is_hinted else None
    target = free.target
    if share is not None:
        ladder = ClockLadder.of(layout, params.step_mhz)
        target = ladder.target_khz(ladder.level_at_or_above(share))
    reason = np.full(len(target), NO_HINT if not is_hinted else OTHER if share is None else GIVEN, np.uint8)
    return state, Request(target, reason, free.loss, free.saved_w)


POLICY: Final = Policy(
    name="phase-levels",
    domain="cpu",
    summary="a clock for each phase that the job announces, set when the phase begins",
    source="after REGALE D2.3 §3.5, the event-driven node manager; levels are the user's",
    reasons=REASONS,
    params=Params,
    initial=initial,
    decide=decide,
    is_woken=True,
)
