"""What a knob is, and the outcome of moving it.

A knob is one setting of the hardware that this agent may move: a clock limit, a clock lock, a power limit. It knows
how to read, set and put back that one setting and nothing else; when it may be set, and that its first value is
saved on disk before, is the writer's business (``nodectl.write.writer``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, Protocol

from nodectl.knobs.recipe import Recipe
from pmu.driver_values import digits

Status = Literal[
    "written",
    "unchanged",
    "refused",
    "no-effect",
    "foreign",
    "vanished",
    "restored",
    "left",
    "held",
    "silent",
    "answers",
]
"""
=========== ===========================================================================================
written     set and read back (or set, where the hardware has no getter)
unchanged   already there; nothing was written
refused     the kernel or the driver said no
no-effect   accepted, but the hardware shows another value, or clock or power did not follow
foreign     somebody else has moved the knob since; it is theirs now and not written again
vanished    the knob is gone: CPU offline, GPU lost
restored    back at its captured value
held        kept at its restore limit or below under a cluster's grant, not at its captured value
left        not put back, because somebody else has set it since
silent      of a controller, not of a knob: it does not answer, and this node does its part
answers     of a controller: it answers again, and its values are in force again
=========== ===========================================================================================
"""

Reason = Literal[
    "", "governor", "lock bit", "second RAPL interface", "HWP", "thermal", "firmware", "foreign writer", "no answer"
]
"""Why a knob does not follow; empty where there is nothing to explain or no cause was found."""


_SIGNS: Final = {"khz": "kHz", "mhz": "MHz", "mw": "mW", "uw": "uW"}


def unit_sign(unit: str) -> str:
    """A knob's ``unit`` as people write it; that of a site's own kind stands for itself."""
    return _SIGNS.get(unit, unit)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one knob at one tick; ``detail`` is one line for people, with values and what to do. ``by``: which
    program has set the knob above the cap that it enforces, by its name; "" for every other outcome."""

    knob: str
    status: Status
    detail: str = ""
    reason: Reason = ""
    by: str = ""


UNKNOWN: Final = "unknown"
"""Who has set a knob, where neither kernel nor hardware says that."""


@dataclass(frozen=True, slots=True)
class Raised:
    """Somebody has set a knob above the cap that it enforces. ``allowed``: how much the knob allowed then, in its unit
    and at most what the hardware takes; 0: no limit. ``by``: the program, or ``UNKNOWN``."""

    allowed: int
    by: str


@dataclass(frozen=True, slots=True)
class Companion:
    """A file with a whole number that decides whether a power limit is in force: its switch, its averaging window, the
    limit for short times. ``what``: its name for people. ``is_switch``: 0 is the looser value; otherwise the higher
    one."""

    path: str
    what: str
    is_switch: bool = False

    def is_looser(self, present: int, before: int) -> bool:
        """Does ``present`` allow more than ``before``?"""
        return present < before if self.is_switch else present > before


class KnobError(Exception):
    """A knob could not be read or moved; the message names the file or device.

    ``status`` is what the writer reports: "vanished" when the knob itself is gone, else "refused".
    """

    def __init__(self, message: str, status: Literal["refused", "vanished"] = "refused", reason: Reason = "") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class WholeNumber:
    """What knobs have in common whose values are whole numbers of ``unit``."""

    unit: str

    def number(self, text: str) -> int | None:
        """The digits as a number; None for a released state, such as "unlocked"."""
        return digits(text)

    def shown(self, value: int) -> str:
        """The number and its unit."""
        return f"{value} {unit_sign(self.unit)}"

    def recipe(self) -> Recipe | None:
        """None: only this program can put the knob back."""
        return None


class Knob(Protocol):
    """One setting of the hardware.

    ``name``: "cpu/policy0/max_khz", "gpu/0/sm_clock_mhz", "rapl/package-0/long_term_uw"; it ends in ``unit`` and is
    enough to find the knob again (``nodectl.knobs.open_knob``). ``latency_s``: within this time of a write its
    effect on clock or power must be seen. All methods raise ``KnobError`` and nothing else.
    """

    name: str
    unit: str
    latency_s: float

    def read(self) -> str:
        """The present value, in the form that ``restore`` takes."""

    def set(self, value: int) -> None:
        """Move the knob; 0 releases it where the knob has a released state (GPU clock lock)."""

    def read_back(self) -> int | None:
        """The value that the hardware now shows; None where it has no getter."""

    def restore(self, captured: str) -> None:
        """Put back what ``read`` once returned."""

    def number(self, text: str) -> int | None:
        """What ``read`` returned, as ``set`` takes it and ``read_back`` returns it; None for a released state."""

    def shown(self, value: int) -> str:
        """A value as people write it."""

    def recipe(self) -> Recipe | None:
        """How the restorer puts the knob back without this class; None where only this class can."""

    def matches(self, requested: int, present: int) -> bool:
        """Does the hardware show ``present`` when ``requested`` is set? It rounds limits to its own step."""

    def overruled(self, value: int) -> tuple[Reason, str]:
        """Is a limit below ``value`` in force from elsewhere, so that ``value`` changes nothing?"""

    def explain(self, requested: int, present: int | None) -> tuple[Reason, str]:
        """Why the hardware shows ``present`` (None: no getter, or as set but without effect): reason and one line."""
