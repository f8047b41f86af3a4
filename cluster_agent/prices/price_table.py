"""Prices, or a grid's carbon intensity, over time: a table of somebody else's, CSV or Parquet.

The table has a column ``time`` (ISO 8601, or Unix seconds), or ``local_date`` and ``local_time`` as RTE's eCO2mix has,
and a column of values. Each value counts until the next row. A time with an offset is an instant. One without is of the
time zone that is given. Where clocks are put back, an hour comes twice: the first is taken, then, where the table goes
back, the second; a table that has the hour once then has a gap. An hour over which clocks are put forward does not
exist, and a row of it is refused. Tables whose clock never changes are of a zone such as ``Etc/GMT-1``.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any, Final
from zoneinfo import ZoneInfo

import msgspec

from cluster_agent.errors import WrongUseError
from cluster_agent.workloads.parquet_tables import read_columns
from cluster_agent.workloads.swf import TraceError
from foundation.shell.plain_text import TextError, read_text, rows_by_name

TIME: Final = ("time",)
LOCAL: Final = ("local_date", "local_time")
PARQUET: Final = ".parquet"


class Spell(msgspec.Struct, frozen=True):
    """One value in [from_s, to_s), Unix seconds; NaN: unknown."""

    from_s: int
    to_s: int
    value: float


def zone_of(name: str | None) -> ZoneInfo | None:
    """A time zone by its name; None: this machine's."""
    if name is None:
        return None
    try:
        return ZoneInfo(name)
    except (KeyError, OSError, ValueError):  # what is not found is a KeyError
        raise WrongUseError(f"--zone {name}: no such time zone; give one such as Europe/Paris, or Etc/GMT-1") from None


def begin_of(text: str | None, zone: ZoneInfo | None) -> int | None:
    """Unix seconds of the option ``--begin``; None if it is not given."""
    try:
        return None if text is None else instant_s(text, zone)
    except ValueError as error:
        raise WrongUseError(f"--begin: {error}") from None


def instant_s(text: str, zone: ZoneInfo | None, after_s: float = -math.inf) -> int:
    """Unix seconds of a time; of one that comes twice, the first that is later than ``after_s``. ``ValueError`` says
    what is wrong."""
    try:
        number = float(text)
    except ValueError:
        try:
            when = datetime.fromisoformat(text)
        except ValueError:
            raise ValueError(f"{text!r} is no time: write 2030-01-31T08:00:00+01:00") from None
    else:
        if not abs(number) < 2**53:
            raise ValueError(f"{text!r} is no time: give Unix seconds")
        return round(number)
    if when.tzinfo is None:
        when = when.replace(tzinfo=zone)
    try:
        first_s, second_s = (when.replace(fold=fold).timestamp() for fold in (0, 1))
    except (OverflowError, OSError):
        raise ValueError(f"{text!r} is too far from today") from None
    if first_s > second_s:
        raise ValueError(
            f"{text} does not exist: clocks are put forward over it; write the offset, or --zone Etc/GMT-1 if this"
            " clock never changes"
        )
    return round(first_s if first_s > after_s else second_s)


def read_spells(path: str, column: str, zone: ZoneInfo | None) -> list[Spell]:
    """The values of the column, in order of time and without a hole: where the table has one, the value is unknown.
    ``WrongUseError`` names file and line. The last value counts for the most frequent distance of rows."""
    times: list[int] = []
    values: list[float] = []
    for where, text, given in _rows(path, column):
        try:
            at_s = instant_s(text, zone, times[-1] if times else -math.inf)
            value = _value(column, given)
        except ValueError as error:
            raise WrongUseError(f"{where}: {error}") from None
        if times and at_s <= times[-1]:
            raise WrongUseError(f"{where}: {text} is not later than the row above; sort the rows, and delete doubles")
        times.append(at_s)
        values.append(value)
    if len(times) < 2:
        raise WrongUseError(f"{path}: has {len(times)} rows with a time; a profile needs two or more")
    every_s = Counter(later - earlier for earlier, later in pairwise(times)).most_common(1)[0][0]
    return _without_holes(times, values, every_s)


def _without_holes(times: Sequence[int], values: Sequence[float], every_s: int) -> list[Spell]:
    spells: list[Spell] = []
    for from_s, next_s, value in zip(times, [*times[1:], times[-1] + every_s], values, strict=True):
        spells.append(Spell(from_s, min(next_s, from_s + every_s), value))
        if next_s > from_s + every_s:
            spells.append(Spell(from_s + every_s, next_s, math.nan))
    return spells


def _value(column: str, given: Any) -> float:
    """NaN: there is none."""
    if given is None or (isinstance(given, str) and not given.strip()):
        return math.nan
    try:
        value = float(given)
    except (TypeError, ValueError):
        hint = "; write decimals with a point" if _has_comma(given) else ""
        raise ValueError(f"{column} cannot be {str(given)[:40]!r}: a number is needed{hint}") from None
    if math.isinf(value):
        raise ValueError(f"{column} cannot be {given}: a number is needed")
    return value


def _has_comma(given: Any) -> bool:
    """Whether it is a number as spreadsheets write it where the decimal mark is a comma."""
    return isinstance(given, str) and re.fullmatch(r"\s*-?\d+,\d+\s*", given) is not None


def _rows(path: str, column: str) -> Iterator[tuple[str, str, Any]]:
    """(Where, time, value) of each row."""
    try:
        if path.endswith(PARQUET):
            yield from _of_parquet(path, column)
        else:
            yield from _of_csv(path, column)
    except (TextError, OSError) as error:
        raise WrongUseError(f"{path}: cannot read the table: {error.strerror}") from None


def _of_csv(path: str, column: str) -> Iterator[tuple[str, str, Any]]:
    header, rows = rows_by_name(read_text(path), "#")
    time = next((form for form in (TIME, LOCAL) if set(form) <= set(header)), None)
    if time is None or column not in header:
        there = ", ".join(header)[:200] or "none"
        raise WrongUseError(f"{path}: needs the columns time and {column}; it has {there}; name another with --column")
    for number, row in rows:
        yield f"{path}:{number}", "T".join(row[name].strip() for name in time), row[column]


def _of_parquet(path: str, column: str) -> Iterator[tuple[str, str, Any]]:
    try:
        columns = read_columns(path, (*LOCAL, column))
    except TraceError as error:
        raise WrongUseError(str(error)) from None
    for number, (day, clock, value) in enumerate(zip(*columns.values(), strict=True), 1):
        yield f"{path}: row {number}", f"{day}T{clock}", value
