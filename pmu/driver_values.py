"""What drivers answer, believed only where it can be: the one way for every number from NVML and sysfs.

A driver, its firmware or its binding may answer anything: all ones for "not available" (NVML_VALUE_NOT_AVAILABLE), the
numbers of a register that nobody powers, 2^63 and more from an unsigned counter, NaN or 1e300 from a quotient, a
string or nothing where a number belongs. Each kind of number has bounds here. What lies outside of them is no reading:
None, or ``RAW_MISSING`` in a sweep, and never an exception, since one sensor must not end a run.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any, Final

import numpy as np

from pmu.readings import RAW_HIGHEST, RAW_MISSING

type_bounds = tuple[int, int]

MOST_BOARD_MW: Final = 20_000_000
"""Ours: ten times the largest board of today."""

MOST_CLOCK_MHZ: Final = 10_000
"""Ours: no processor and no memory of a GPU runs at 10 GHz by this count."""

MOST_LIMIT_UW: Final = 100_000_000_000
"""Ours: 100 kW; a limit above it is the "no limit" of some firmware, or garbage."""

MOST_KHZ: Final = 10_000_000
"""Ours: no processor runs at 10 GHz."""

MOST_CPU: Final = 65_535
"""Ours: eight times what Linux can be built for (NR_CPUS)."""

MOST_DIGITS: Final = 18
"""Every number of so many digits fits into 64 bits."""

ALL_ONES: Final = frozenset({2**32 - 1, 2**64 - 1})

MOST_KNOWN_BITS: Final = 2**31
"""Below it a set of bits is neither all ones nor has the sign's."""

ODD_ANSWERS: Final = (
    ctypes.ArgumentError, AttributeError, MemoryError, OverflowError, RuntimeError, TypeError, UnicodeError, ValueError,
)  # fmt: skip
"""What the binding of a library raises when the library answers what no version of it should: text that is none, a
count without bounds, a handle that is no handle."""


def whole(value: Any, bounds: type_bounds) -> int | None:
    """A whole number within ``bounds``, both included; None for anything else. A finite float is rounded."""
    if isinstance(value, float | np.floating):
        if not math.isfinite(value):
            return None
        value = round(float(value))
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        return None
    low, high = bounds
    return int(value) if low <= value <= high else None


def raw(value: Any, bounds: type_bounds) -> int:
    """``whole``, as a sweep keeps it. What nearly every reading is needs no more than one look: a sweep has dozens."""
    kind, (low, high) = type(value), bounds
    if kind is int and low <= value <= high:
        return int(value)
    if kind is float and low <= value <= high:
        return round(float(value))
    number = whole(value, bounds)
    return RAW_MISSING if number is None else number


def bits(value: Any) -> int:
    """A set of bits, unknown ones included, without the sign's; ``RAW_MISSING`` where every bit is set, which means
    that there is no value."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0 or value in ALL_ONES:
        return RAW_MISSING
    return int(value) & RAW_HIGHEST


def digits(text: str) -> int | None:
    """The number that a text of ASCII digits is; None for any other text, and for one that needs more than 64 bits."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS else None


def words(text: Any) -> str:
    """A name as a line of text: without what a terminal or a file of ours could not take."""
    if isinstance(text, bytes):
        text = text.decode(errors="replace")
    if not isinstance(text, str):
        return ""
    plain = text.encode("utf-8", errors="replace").decode()
    return "".join(one if one.isprintable() else "?" for one in plain)[:128]
