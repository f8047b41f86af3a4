"""Durations as people of batch systems write them, ``[D-]HH:MM:SS`` or a number with its unit, and times."""

from __future__ import annotations

import re
from datetime import datetime
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


def unix_s(text: str) -> float:
    """Unix seconds of a time in ISO 8601, with an offset or local, or of themselves. ``ValueError`` for another text,
    ``ChangeOfClockError`` says why a local time is none."""
    try:
        return float(text)
    except ValueError:
        when = datetime.fromisoformat(text)
    first_s, second_s = (when.replace(fold=fold).timestamp() for fold in (0, 1))
    if when.tzinfo is None and first_s != second_s:
        raise ChangeOfClockError(text, first_s, second_s)
    return first_s


class ChangeOfClockError(Exception):
    """A local time that does not exist, or that comes twice, because clocks change (PEP 495)."""

    def __init__(self, text: str, first_s: float, second_s: float) -> None:
        found = [datetime.fromtimestamp(one_s).astimezone() for one_s in sorted((first_s, second_s))]
        where = f"in this machine's time zone ({' and '.join(dict.fromkeys(f'{one:%Z}' for one in found))})"
        why = (
            f"does not exist {where}: clocks are put forward over it"
            if first_s > second_s
            else f"comes twice {where}: clocks are put back over it"
        )
        ways = " or ".join(f"{text}{one.isoformat()[-6:]}" for one in found)
        super().__init__(f"{text} {why}; write the offset, {ways}, or times in UTC (Z)")
