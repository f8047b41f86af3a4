"""One knob as the writer sees it: what it was brought to, and when it is tried again after trouble."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from nodectl.knobs.api import Knob, Outcome

FIRST_RETRY_S, LAST_RETRY_S = 1.0, 60.0
"""Ours: a knob that refused is tried again after a second, then twice that, up to a minute."""

NEVER_NS = 2**63 - 1

_TROUBLE: Final = ("refused", "no-effect", "foreign", "vanished")


@dataclass(slots=True)
class Setting:
    """``written`` is the value that the knob was brought to, 0 where none of ours is set. ``at_rest``: the outcome as
    long as nothing happens."""

    knob: Knob
    at_rest: Outcome
    written: int = 0
    present: int | None = None  # what the hardware was at when last read
    trouble: Outcome | None = None  # repeated until it is time to try again
    wanted: int = 0  # the value that met trouble
    retry_ns: int = 0
    retry_s: float = FIRST_RETRY_S

    def waits_with(self, value: int, is_guarded: bool) -> bool:
        """Whether a knob in trouble is left alone for a while though ``value`` is requested. ``is_guarded``: it
        enforces a cap."""
        if self.wanted == value:
            return True
        # a limit that somebody has set below the cap before may be above the new one
        return self.trouble is not None and self.trouble.status == "foreign" and not is_guarded

    def take_note(self, outcome: Outcome, value: int, now_ns: int, is_guarded: bool) -> Outcome:
        """Remember the outcome of bringing it to ``value``, and when to try again. One that enforces a cap is tried
        again without a growing pause."""
        if outcome.status in _TROUBLE:
            is_growing = self.trouble is not None and self.wanted == value and not is_guarded
            self.retry_s = min(2 * self.retry_s, LAST_RETRY_S) if is_growing else FIRST_RETRY_S
            self.retry_ns = now_ns + round(self.retry_s * 1e9)
            self.trouble, self.wanted = outcome, value
        else:
            self.trouble, self.retry_s = None, FIRST_RETRY_S
        return outcome

    def is_put_back(self) -> None:
        """It was restored, and may be moved again."""
        self.written, self.trouble, self.retry_s = 0, None, FIRST_RETRY_S

    def is_theirs(self, detail: str) -> None:
        """It was left to somebody else, and stays so."""
        self.trouble, self.retry_ns = Outcome(self.knob.name, "foreign", detail, "foreign writer"), NEVER_NS
