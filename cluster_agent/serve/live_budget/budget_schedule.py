"""A budget by schedule: CSV of ``time,watts``, times in ISO 8601 (with an offset, or local) or Unix seconds.

A profile, ``from_s,watts`` or ``from_s,watts,cores`` (``clusterctl budget from-price``), is one, too, if its times are
Unix seconds; the budget has no use for the cores.

A local time is of the time zone of the machine that reads the file. Where its clocks change, some local times do not
exist and others come twice; which instant is meant is not guessed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from cluster_agent.budget.budget_line import MOST_W
from cluster_agent.cap_steps import PROFILE, STEPS
from cluster_agent.errors import WrongUseError
from foundation.shell.duration import ChangeOfClockError, unix_s
from foundation.shell.plain_text import TextError, fields_by_line, read_text


def read_schedule(path: Path) -> list[tuple[float, int]]:
    """(Unix seconds, mW) in order of time; an error names the line."""
    try:
        text = read_text(path)
    except OSError as error:
        raise WrongUseError(f"{path}: cannot read the schedule: {error.strerror}") from None
    return parse_schedule(path, text)


def parse_schedule(path: Path, text: str) -> list[tuple[float, int]]:
    """As ``read_schedule``, from a text; ``path`` is where it came from, for messages."""
    steps: list[tuple[float, int]] = []
    for number, row in _below_names(path, text):
        try:
            when, watts = row
            step = (unix_s(when.strip()), round(float(watts) * 1000))
        except ChangeOfClockError as error:
            raise WrongUseError(f"{path}:{number}: {error}") from None
        except (ValueError, OverflowError):
            raise WrongUseError(f"{path}:{number}: not TIME,WATTS, e.g. 2030-01-31T08:00:00+01:00,12000") from None
        if not math.isfinite(step[0]):
            raise WrongUseError(f"{path}:{number}: {row[0]} is no time")
        if not 0 < step[1] < 1000 * MOST_W:
            raise WrongUseError(f"{path}:{number}: {row[1]} W is not a budget")
        if steps and step[0] <= steps[-1][0]:
            raise WrongUseError(f"{path}:{number}: is not later than the line before it")
        steps.append(step)
    if not steps:
        raise WrongUseError(f"{path}: has no line TIME,WATTS")
    return steps


def _below_names(path: Path, text: str) -> Iterator[tuple[int, list[str]]]:
    """The lines with a step, without the cores of a profile; a first line may name the columns."""
    names: tuple[str, ...] | None = None
    for number, row in _rows(path, text):
        if not row or row[0].startswith("#"):
            continue
        if names is None:
            names = tuple(word.strip() for word in row)
            if names[0] == "time" or names in (STEPS, PROFILE):
                continue
        yield number, row[:2] if names == PROFILE and len(row) == len(PROFILE) else row


def _rows(path: Path, text: str) -> Iterator[tuple[int, list[str]]]:
    try:
        yield from fields_by_line(text)
    except TextError as error:
        raise WrongUseError(f"{path}: {error.strerror}") from None


def divide(steps: list[tuple[float, int]], wall_s: float) -> tuple[int | None, list[tuple[float, int]]]:
    """The budget by the last step in the past (None: there is none), and the steps to come."""
    past = [mw for at_s, mw in steps if at_s <= wall_s]
    return past[-1] if past else None, [step for step in steps if step[0] > wall_s]


def refuse_low(source: Path | str, steps: list[tuple[float, int]], fixed_mw: int) -> None:
    """Refuse a budget that is not above the fixed power."""
    low_mw = next((mw for _, mw in steps if mw <= fixed_mw), None)
    if low_mw is not None:
        raise WrongUseError(f"{source}: {low_mw / 1000:g} W is not above fixed_w ({fixed_mw / 1000:g} W)")


def refuse_past(path: Path, steps: list[tuple[float, int]], wall_s: float) -> None:
    """Refuse a schedule without a step to come, which must be a mistake."""
    if steps[-1][0] <= wall_s:
        ended = datetime.fromtimestamp(steps[-1][0]).astimezone().isoformat(timespec="seconds")
        raise WrongUseError(f"{path}: the schedule is past: its last line was for {ended}")
