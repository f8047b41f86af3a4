"""Cap, watts and health of a run in one line, which ``systemctl status`` shows (``STATUS=`` of sd_notify(3)).

Watts are the mean since the line before, of the packages and boards by their counters and of the rest as it was set
(``caps.rest_w``). What is missing is named, and never counted as 0.
"""

from __future__ import annotations

from collections.abc import Sequence

from nodectl.decide.node_cap import CapRequest
from nodectl.loop.notices import listed
from nodectl.loop.summary import Energy


class StatusLine:
    """Makes the line of each call from sums since the start of the run."""

    def __init__(self, rest_w: float) -> None:
        self._rest_w = rest_w
        self._joules = self._elapsed_s = 0.0
        self._missing_s: dict[str, float] = {}

    def text(
        self, cap: CapRequest | None, elapsed_s: float, energy: Sequence[Energy], troubles: Sequence[str], mode: str
    ) -> str:
        """``cap``: on the whole node; ``energy``: joules by instrument; ``troubles``: what is wrong now."""
        capped = f"cap {cap.node_w:.0f} W by {cap.source}" if cap else "no cap"
        health = f"TROUBLE: {'; '.join(troubles)}" if troubles else "healthy"
        return f"{capped}, {self._power(elapsed_s, energy)}, {health} ({mode})"

    def _power(self, elapsed_s: float, energy: Sequence[Energy]) -> str:
        parts = [one for one in energy if one.side in ("cpu", "gpu")]
        gone = listed([one.name for one in parts if one.missing_s > self._missing_s.get(one.name, 0.0)])
        joules, passed_s = sum(one.joules for one in parts), elapsed_s - self._elapsed_s
        drawn_j, self._joules, self._elapsed_s = joules - self._joules, joules, elapsed_s
        self._missing_s = {one.name: one.missing_s for one in parts}
        if not parts or passed_s <= 0:
            return "power not measured"
        return f"power unknown (no reading of {gone})" if gone else f"power {drawn_j / passed_s + self._rest_w:.0f} W"
