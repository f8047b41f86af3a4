"""What measuring the limits of a node needs of it: a cap, a heartbeat, and for each knob the effect that it has.

A calibration's session has all of these (``session_probes``); tests and benchmarks have their own. Every set goes
through a writer, so what is moved is captured before and put back in any case.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

from foundation.shell.errors import NodectlError


class LimitsError(NodectlError):
    """A limit cannot be measured here; one line, with what to do."""


class Beats(NamedTuple):
    """How late each beat since the last look was, and by how much one is overdue now; seconds."""

    late_s: Sequence[float]
    overdue_s: float


class HeartbeatPort(Protocol):
    """A thread, on any CPU, that sleeps until the next multiple of its period, does a little fixed work, and notes how
    late it was."""

    period_s: float

    def start(self) -> None:
        """Begin to beat."""

    def beats(self) -> Beats:
        """The beats since the call before, or since the start."""

    def stop(self) -> None:
        """End the thread. Does nothing when none runs."""


class CapPort(Protocol):
    """A cap in watts, which may be ``lowest_w`` to ``highest_w``. ``settle_s``: in this time power follows it."""

    lowest_w: float
    highest_w: float
    settle_s: float

    def set_cap_w(self, watts: float) -> float:
        """Set the cap; returns the seconds until the writer had answered. ``LimitsError`` when it refuses."""

    def read_watts(self) -> float:
        """Mean power of what the cap limits, since the call before; NaN where nothing was read."""

    def trouble(self) -> str:
        """Why the node must not be measured any further, such as its temperature; empty if nothing is wrong."""

    def release(self) -> None:
        """Put the cap back to what it was found at."""


type_shows = Literal["level", "mean of a jump", "mean of a ramp"]
"""The present value, or the mean since the call before of what changes at once, or over several calls."""


class EffectPort(Protocol):
    """A knob, and the quantity that shows its effect: a clock, or watts.

    ``knob``: its name, or a pattern for all of its kind. ``shows``: what ``observe`` returns.
    """

    knob: str
    unit: str
    shows: type_shows

    def request(self, value: float) -> None:
        """Set the knob. ``LimitsError`` when the writer refuses."""

    def observe(self) -> float:
        """The quantity now; NaN where nothing was read."""

    def release(self) -> None:
        """Put the knob back to what it was found at."""
