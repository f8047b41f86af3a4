"""A budget by feed: a file that another program keeps replacing, read whenever it has been replaced.

It has one line ``WATTS``, the budget from now on, or lines ``TIME,WATTS`` as a schedule does (``budget_schedule``): the
last one in the past is the budget now, the others are announced. The writer replaces the file (write another file, then
rename it), so that it is never read half written. A file is taken as a whole or not at all: if one line is wrong, the
budget stays as it is and an alarm names the line. A feed that is replaced with the same content is fresh. A feed that
is not replaced for too long is stale: that is an alarm, and its last budget stays.

It is a file, not a pipe or a command, since nothing here can block on a file, a restart of either program loses
nothing, and anything can write one.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cluster_agent.errors import WrongUseError
from cluster_agent.serve.live_budget.budget_schedule import divide, parse_schedule, refuse_low
from foundation.shell.plain_text import read_text

MOST_BYTES: Final = 65_536
"""Ours: some two thousand lines, as many as a schedule may have."""


@dataclass(frozen=True, slots=True)
class Fed:
    """What a feed contains: the budget now (None: all its lines are in the future), and the steps to come (Unix
    seconds, mW)."""

    budget_mw: int | None
    steps: list[tuple[float, int]]


class Feed:
    """Call ``look`` often. Times are seconds: of a clock that does not go back, and of the wall clock."""

    def __init__(self, path: Path, stale_s: float, least_mw: int) -> None:
        """``least_mw``: a budget must be above this (the fixed power)."""
        self.alarm = ""
        self._path, self._stale_s, self._least_mw = path, stale_s, least_mw
        self._seen: tuple[int, ...] = ()
        self._problem = ""
        self._fresh_s = -math.inf

    def look(self, now_s: float, wall_s: Callable[[], float]) -> Fed | None:
        """The content, if the file was replaced since the last call; ``alarm`` says what is wrong with it, "" if
        nothing."""
        if self._fresh_s == -math.inf:
            self._fresh_s = now_s
        fed: Fed | None = None
        try:
            found = os.stat(self._path)
            if not stat.S_ISREG(found.st_mode) or found.st_size > MOST_BYTES:
                raise WrongUseError(f"{self._path}: is not a file of at most {MOST_BYTES} bytes")
            seen = (found.st_ino, found.st_mtime_ns, found.st_size)
            if seen != self._seen:
                self._seen = seen
                self._problem = ""
                fed = self._parse(read_text(self._path), wall_s())
                self._fresh_s = now_s
        except OSError as error:
            self._seen = ()
            self._problem = f"{self._path}: cannot read the feed: {error.strerror}"
        except WrongUseError as error:
            self._problem = str(error)
        old_s = now_s - self._fresh_s
        stale = f"{self._path}: the feed has not been replaced for {self._stale_s:g} s" if old_s > self._stale_s else ""
        problem = self._problem or stale
        self.alarm = f"{problem}; the budget stays as it is" if problem else ""
        return fed

    def _parse(self, text: str, wall_s: float) -> Fed:
        lines = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
        if len(lines) == 1 and "," not in lines[0]:
            steps = parse_schedule(self._path, f"0,{lines[0]}")
        else:
            steps = parse_schedule(self._path, text)
        refuse_low(self._path, steps, self._least_mw)
        return Fed(*divide(steps, wall_s))
