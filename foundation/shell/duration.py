"""Durations as people of batch systems write them: ``[D-]HH:MM:SS``, or a number with its unit."""

from __future__ import annotations

import re
from typing import Final

from foundation.shell.errors import UsageError

UNITS_S: Final = {"s": 1, "min": 60, "h": 3600, "d": 86_400}
_CLOCK: Final = re.compile(r"(?:(\d{1,5})-)?(\d{1,5}):(\d{2}):(\d{2})")
_NUMBER: Final = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*(s|min|h|d)")


def seconds(text: str) -> int:
    """``1-12:00:00``, ``02:30:00``, ``90s``, ``30min``, ``2h``, ``1.5d``, rounded up; ``UsageError`` otherwise."""
    if clock := _CLOCK.fullmatch(text.strip()):
        days, hours, minutes, rest = (int(part or 0) for part in clock.groups())
        if minutes < 60 and rest < 60:
            return days * 86_400 + hours * 3600 + minutes * 60 + rest
    elif number := _NUMBER.fullmatch(text.strip()):
        return -int(-float(number[1]) * UNITS_S[number[2]] // 1)
    raise UsageError(f"{text!r} is no duration: D-HH:MM:SS, HH:MM:SS, 90s, 30min, 2h or 1d")


def shown(duration_s: float) -> str:
    """``[D-]HH:MM:SS``."""
    total = round(max(duration_s, 0.0))
    clock = f"{total // 3600 % 24:02}:{total // 60 % 60:02}:{total % 60:02}"
    return f"{total // 86_400}-{clock}" if total >= 86_400 else clock
