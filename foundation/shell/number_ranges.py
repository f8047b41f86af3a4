"""Lines that differ only in their numbers, as one line with the ranges of those numbers: "policy0..3,7"."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

MOST_RANGES: Final = 6
"""Ours: more than these are counted."""

_NUMBER: Final = re.compile(r"\d+")


def blank(text: str) -> str:
    """The text with "#" for each number."""
    return _NUMBER.sub("#", text)


def with_ranges(texts: Sequence[str]) -> str:
    """``cpu/policy0/max_khz`` to ``cpu/policy15/max_khz`` as ``cpu/policy0..15/max_khz``. ``blank`` of all is equal."""
    columns = zip(*(_NUMBER.findall(text) for text in texts), strict=True)
    ranges = iter([_ranges(column) for column in columns])
    return _NUMBER.sub(lambda match: next(ranges), texts[0])


def _ranges(column: Sequence[str]) -> str:
    if len(set(column)) == 1:
        return column[0]  # also one with leading zeros
    runs: list[list[int]] = []
    for number in sorted({int(text) for text in column}):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    shown = ",".join(str(low) if low == high else f"{low}..{high}" for low, high in runs[:MOST_RANGES])
    return shown + (f" and {len(runs) - MOST_RANGES} more" if len(runs) > MOST_RANGES else "")
