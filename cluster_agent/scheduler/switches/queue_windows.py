"""Windows of queues: the hours of the week in which jobs of a queue may run, such as the nights.

They are written ``night=18:00-08:00,sat-sun batch=mon-fri@19:00-07:00``: by queue, windows of days, of hours, or of
hours of days. One that ends no later than it begins ends on the next day. Windows that touch are one. They are local
times, so a window stays at its hours where clocks change. The engine gets each interval in seconds, and after the last
one takes those of its week again and again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final, NamedTuple

import numpy as np

from cluster_agent.errors import WrongUseError
from cluster_agent.scheduler.job_columns import Int32s
from cluster_agent.scheduler.switches.reservations import DAY_S, WEEK_S

DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAY_MIN: Final = 24 * 60
WINDOW: Final = re.compile(
    rf"(?:(?P<first>{'|'.join(DAYS)})(?:-(?P<last>{'|'.join(DAYS)}))?)?(?P<at>@)?"
    r"(?:(?P<from>\d\d:\d\d)-(?P<to>\d\d:\d\d))?"
)


class OpenHours(NamedTuple):
    """On each of these days (0: Monday) from one minute of the day to another, which may be of the next day."""

    days: tuple[int, ...]
    from_min: int
    to_min: int


class Span(NamedTuple):
    """Seconds."""

    from_s: int
    to_s: int


def windows_of(text: str, option: str = "") -> dict[str, list[OpenHours]]:
    """By queue. ``WrongUseError`` for what is no such text."""
    found: dict[str, list[OpenHours]] = {}
    for one in text.split():
        queue, equals, windows = one.rpartition("=")
        if not equals or not queue:
            raise WrongUseError(f"{option}{one}: give QUEUE=WINDOW,..., such as night=18:00-08:00,sat-sun")
        if queue in found:
            raise WrongUseError(f"{option}{one}: the windows of queue {queue} are there twice")
        found[queue] = [_window(window, f"{option}{one}") for window in windows.split(",")]
        if _is_always(found[queue]):
            raise WrongUseError(f"{option}{one}: these windows are the whole week; leave the queue out")
    return found


def _window(text: str, where: str) -> OpenHours:
    matched = WINDOW.fullmatch(text)
    if not text or matched is None or bool(matched["at"]) != bool(matched["first"] and matched["from"]):
        raise WrongUseError(
            f"{where}: {text!r} is no window; give HH:MM-HH:MM, DAY, DAY-DAY or DAY-DAY@HH:MM-HH:MM (days: mon to sun)"
        )
    first, last = matched["first"] or "mon", matched["last"] or matched["first"] or "sun"
    at, length = DAYS.index(first), (DAYS.index(last) - DAYS.index(first)) % 7 + 1
    days = tuple((at + day) % 7 for day in range(length))
    from_min, to_min = _minute(matched["from"] or "00:00", where), _minute(matched["to"] or "24:00", where)
    if from_min == DAY_MIN:
        raise WrongUseError(f"{where}: {text!r} begins at 24:00, which is 00:00 of the next day")
    return OpenHours(days, from_min, to_min if to_min > from_min else to_min + DAY_MIN)


def _minute(text: str, where: str) -> int:
    hour, minute = int(text[:2]), int(text[3:])
    if minute > 59 or hour * 60 + minute > DAY_MIN:
        raise WrongUseError(f"{where}: {text} is no time of the day")
    return hour * 60 + minute


def spans(windows: Sequence[OpenHours], from_s: int, to_s: int, zone: tzinfo | None = None) -> list[Span]:
    """The intervals in these Unix seconds that close after ``from_s`` and open before ``to_s``; ``zone`` None: this
    machine's. Each is whole, since none is longer than a week."""
    first = datetime.fromtimestamp(from_s, zone).replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
    found = []
    for day in range(-9, (to_s - from_s) // DAY_S + 10):
        date = first + timedelta(days=day)
        of_day = (one for one in windows if date.weekday() in one.days)
        found += [Span(*(_unix_s(date, at, zone) for at in (one.from_min, one.to_min))) for one in of_day]
    joined = _joined(one for one in found if one.from_s < one.to_s)
    return [one for one in joined if one.to_s > from_s and one.from_s < to_s]


def _unix_s(date: datetime, minute: int, zone: tzinfo | None) -> int:
    local = date + timedelta(minutes=minute)
    return int((local if zone is None else local.replace(tzinfo=zone)).timestamp())


def _offset(at_s: int, zone: tzinfo | None) -> timedelta | None:
    """Of the local time from that of Greenwich."""
    return datetime.fromtimestamp(at_s, UTC).astimezone(zone).utcoffset()


def _joined(found: Iterable[Span]) -> list[Span]:
    joined: list[Span] = []
    for one in sorted(found):
        if joined and one.from_s <= joined[-1].to_s:
            joined[-1] = Span(joined[-1].from_s, max(joined[-1].to_s, one.to_s))
        else:
            joined.append(one)
    return joined


def longest_s(windows: Sequence[OpenHours]) -> int:
    """Of a queue's windows, in a week without a change of clocks."""
    return max(one.to_s - one.from_s for one in spans(windows, 0, WEEK_S, UTC))


def _is_always(windows: Sequence[OpenHours]) -> bool:
    return longest_s(windows) > WEEK_S


class OpenQueues(NamedTuple):
    """As the engine has them (``csrc/resources/site_limits.h``): the windows of all queues, and where those of each
    begin."""

    opens: Int32s
    windows: Sequence[Span]


NOWHERE: Final = OpenQueues(np.zeros(0, np.int32), ())
"""No queue has windows."""


def opened(
    windows: Mapping[str, Sequence[OpenHours]], from_s: int, to_s: int, zone: tzinfo | None = None, zero_s: int = 0
) -> OpenQueues:
    """Of these queues, in order, for at least two weeks, of which clocks change in none that is taken again and again;
    seconds count from ``zero_s``."""
    to_s = max(to_s, from_s + 2 * WEEK_S)
    while _offset(to_s - WEEK_S - 2 * DAY_S, zone) != _offset(to_s + WEEK_S + DAY_S, zone):
        to_s += WEEK_S
    all_spans = [spans(each, from_s, to_s, zone) for each in windows.values()]
    opens = np.cumsum([0, *map(len, all_spans)]).astype(np.int32)
    return OpenQueues(opens, [Span(a - zero_s, b - zero_s) for each in all_spans for a, b in each])


def next_span(found: Sequence[Span], now_s: float, length_s: int = 0) -> Span | None:
    """The first that closes after this time, or for a job of this length that would begin then, or later."""
    fits = (one for one in found if one.to_s > now_s and one.to_s - max(one.from_s, now_s) >= length_s)
    return next(fits, None)


def next_open_s(found: Sequence[Span], now_s: int) -> float:
    """When the first opens that is not open yet; inf: never."""
    return next((one.from_s for one in found if one.from_s > now_s), float("inf"))


def as_shown(windows: Mapping[str, Sequence[OpenHours]]) -> str:
    """As they are written."""
    return " ".join(f"{queue}={','.join(map(_shown, each))}" for queue, each in windows.items())


def _shown(one: OpenHours) -> str:
    first, last = DAYS[one.days[0]], DAYS[one.days[-1]]
    days = "" if len(one.days) == 7 and first == "mon" else first if first == last else f"{first}-{last}"
    begins, ends = (f"{minute // 60:02}:{minute % 60:02}" for minute in (one.from_min, _of_day(one)))
    return f"{days}{'@' * bool(days)}{begins}-{ends}"


def _of_day(one: OpenHours) -> int:
    return one.to_min if one.to_min <= DAY_MIN else one.to_min - DAY_MIN
