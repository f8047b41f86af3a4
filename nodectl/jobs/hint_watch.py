"""Reads the hints of the one job on this node, and wakes the agent's loop when one comes.

The page is read with every sweep, as an instrument. While a policy wants to decide at once (``Policy.is_woken``), a
thread sleeps on it as well, in futex(2), and makes an eventfd readable on which the loop sleeps. The loop sends the
thread back to sleep after each tick. So nothing is polled, and a job that floods the page wakes the loop no more often
than the loop allows: ticks that hints have brought forward may take ``SHARE`` of one CPU on average, ``BURST_S``
seconds' worth of it at once. Hints that wake nobody are read at the end of the period: none is lost.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Final

from pmu.instruments.job_hints import HintFile, Sleeper
from pmu.readings import NO_RAW_HINTS, PmuError, Quality, RawHints, Sample

SHARE: Final = 0.05
"""Ours: of one CPU, for ticks that hints bring forward."""

BURST_S: Final = 2.0
"""Ours: seconds of that share which may be saved up, so that some fifty phases may begin in one second."""


class HintWatch:
    """``page``: of the one job on this node, None where there is none; ``PmuError`` if it is not to be believed.
    The loop calls all methods."""

    def __init__(self, page: Callable[[], HintFile | None]) -> None:
        self._page_of = page
        self._page: HintFile | None = None
        self._sleeper: Sleeper | None = None
        self._source = 0
        self._last = NO_RAW_HINTS
        self._credit_s, self._least_s = SHARE * BURST_S, 0.0
        self._said: set[str] = set()
        self._lines: list[str] = []
        self._is_wanted = False
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Readable when a hint has come."""

    def read(self) -> RawHints:
        """The hints now; ``NO_RAW_HINTS`` where there is no job, or several."""
        try:
            page = self._page_of()
        except PmuError as error:
            page = None
            self._say(str(error))
        if page is not self._page:
            self._follow(page)
        self._last = page.read(self._source) if page else NO_RAW_HINTS
        return self._last

    def want(self, is_wanted: bool) -> None:
        """Whether a policy at work wants to decide as soon as a hint comes."""
        self._is_wanted = is_wanted
        if self._page:
            self._sleep(self._page)

    def look(self, sample: Sample, spent_s: float, least_s: float = 0.0) -> list[str]:
        """After each tick, which took ``spent_s`` of CPU time: go back to sleep on the page, for ``least_s`` at least.
        Returns lines for the log, each once for each job."""
        self._least_s = least_s
        self._credit_s = min(self._credit_s + SHARE * sample.elapsed_s, SHARE * BURST_S)
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.descriptor)
            self._credit_s -= spent_s
        if self._page:
            self._look(self._page, sample)
        lines, self._lines = self._lines, []
        return lines

    def close(self) -> None:
        """Close everything but the job's own page, which its owner closes."""
        self._drop_sleeper()
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def _look(self, page: HintFile, sample: Sample) -> None:
        if sample.hints.quality == Quality.CLIPPED:
            self._say(f"{page.path}: values that no program with nodectl_hints.h writes: these hints are not used")
        if self._last == NO_RAW_HINTS:
            self._say(f"{page.path}: cannot be read, or was cut short: no hints are read")
        self._sleep(page)

    def _sleep(self, page: HintFile) -> None:
        if not self._is_wanted or self._last == NO_RAW_HINTS:
            self._drop_sleeper()
            return
        if self._sleeper is None:
            try:
                self._sleeper = page.sleeper(self.descriptor)
            except OSError as error:
                self._say(f"{page.path}: hints are read once a period: {error}")
                return
        if self._sleeper.why_not:
            self._say(f"{page.path}: hints are read once a period: {self._sleeper.why_not}")
        elif self._credit_s > 0.0:
            self._sleeper.sleep(self._last.news, self._least_s)
        else:
            self._say(
                f"{page.path}: hints come faster than {SHARE:.0%} of a CPU can answer: some are read at the end of the"
                " period"
            )

    def _follow(self, page: HintFile | None) -> None:
        """Another job."""
        self._drop_sleeper()
        self._page = page
        if page:
            self._source += 1
            self._said.clear()

    def _drop_sleeper(self) -> None:
        if self._sleeper:
            self._sleeper.close()
            self._sleeper = None

    def _say(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            self._lines.append(line)
