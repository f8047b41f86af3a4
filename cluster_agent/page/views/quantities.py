"""Watts, joules, times and durations as people read them. Times are those of the cluster agent's machine."""

from __future__ import annotations

import math
import time
from datetime import date, datetime
from functools import lru_cache
from typing import Final

from cluster_agent.page.views.markup import Html, text

KWH_J: Final = 3.6e6
UNKNOWN: Final = Html("<span class=soft>not known</span>")
NONE: Final = Html('<span class="soft none">–</span>')


def watts(value_w: float | None) -> str:
    """Up to 10 kW in watts, then in kilowatts, from 1 MW on in megawatts."""
    if value_w is None:
        return "not known"
    size = abs(value_w)
    if size < 9999.5:
        return f"{value_w:,.0f} W" if size >= 100 or value_w == round(value_w) else f"{value_w:.1f} W"
    if size < 999_950:
        return f"{value_w / 1000:.1f}".removesuffix(".0") + " kW"
    return f"{value_w / 1e6:.2f} MW"


def shown_w(value_w: float | None) -> Html:
    """A cell."""
    return UNKNOWN if value_w is None else text(watts(value_w))


def energy(value_j: float | None) -> str:
    """In kWh, or Wh where that is little."""
    if value_j is None:
        return "not known"
    kwh = value_j / KWH_J
    if kwh < 0.9995:
        return f"{1000 * kwh:.0f} Wh" if kwh >= 0.1 else f"{1000 * kwh:.3g} Wh"
    return f"{kwh:,.0f} kWh" if kwh >= 99.95 else f"{kwh:.3g} kWh"


def shown_j(value_j: float | None) -> Html:
    """A cell."""
    return UNKNOWN if value_j is None else text(energy(value_j))


def clock(unix_s: float | None, now_s: float) -> Html:
    """The time of day, with its date if that is not today's."""
    if unix_s is None:
        return NONE
    try:
        return _clock(math.floor(unix_s), _day(math.floor(now_s / 60), time.tzname), time.tzname)
    except (OverflowError, OSError, ValueError):  # no year of a calendar
        return UNKNOWN


@lru_cache(maxsize=20_000)
def _clock(second: int, today: date, zone: tuple[str, str]) -> Html:
    """Times are shown again and again, to all viewers."""
    then = datetime.fromtimestamp(second).astimezone()
    words = then.strftime("%H:%M:%S" if then.date() == today else "%Y-%m-%d %H:%M")
    return Html(f'<time datetime="{then.isoformat(timespec="seconds")}">{words}</time>')


@lru_cache(maxsize=16)
def _day(minute: int, zone: tuple[str, str]) -> date:
    return datetime.fromtimestamp(60 * minute).date()


def offset(unix_s: float) -> str:
    """``UTC+01:00``: where the clocks are."""
    return f"UTC{datetime.fromtimestamp(unix_s).astimezone().strftime('%z'):.3}:{_minutes(unix_s)}"


def _minutes(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s).astimezone().strftime("%z")[3:5]


def long(seconds: float) -> str:
    """A duration in words: ``45 s``, ``12 min``, ``3 h 20 min``, ``2 days 4 h``."""
    total = round(max(seconds, 0.0))
    if total < 100:
        return f"{total} s"
    minutes = round(total / 60)
    if minutes < 100:
        return f"{minutes} min"
    hours, rest = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {rest} min" if rest else f"{hours} h"
    days, hours = divmod(round(total / 3600), 24)
    return f"{days} days {hours} h" if hours else f"{days} days"


def ago(unix_s: float, now_s: float) -> str:
    """``5 min ago``, ``in 5 min``."""
    return f"{long(now_s - unix_s)} ago" if unix_s <= now_s else f"in {long(unix_s - now_s)}"


def moment(unix_s: float | None, now_s: float) -> Html:
    """The time and how far away it is."""
    if unix_s is None:
        return NONE
    return Html(f"{clock(unix_s, now_s)} <span class=soft>({ago(unix_s, now_s)})</span>")


def count(number: int, what: str, plural: str = "") -> str:
    """``1 node``, ``2 nodes``."""
    return f"{number:,} {what if number == 1 else plural or what + 's'}"


def run_and_wait(running: int, waiting: int) -> str:
    """``1 job runs, 2 wait``."""
    return f"{count(running, 'job')} {'runs' if running == 1 else 'run'}, {waiting:,} wait{'s' * (waiting == 1)}"


def compared(ratio: float) -> str:
    """``12 % below``, ``as much as``, ``7 % above``."""
    change = round(100 * (ratio - 1))
    return "as much as" if not change else f"{abs(change)} % {'above' if change > 0 else 'below'}"
