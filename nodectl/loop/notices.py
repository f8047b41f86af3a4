"""What a run reports to the administrator: each line when it arises, and the last of them in the summary."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from foundation.shell.number_ranges import blank, with_ranges
from nodectl.knobs import Outcome
from nodectl.write.actuation import TROUBLE
from pmu.ports import Clock

CALM_NS: Final = 600_000_000_000
"""Ours: a knob's trouble is logged again if it was absent for ten minutes, so that one that comes and goes is logged
once."""

RAISED_CALM_NS: Final = 60_000_000_000
"""Ours: the same for a limit that a program has set above the cap. Each program is named."""

NOTICES_KEPT: Final = 200
"""Ours: lines that the summary keeps."""


class Notices:
    """Logs each line with ``log``; keeps the last of them in ``lines``. ``troubles``: knobs in trouble at the last
    ``report``, in short."""

    def __init__(self, clock: Clock, log: Callable[[str], None]) -> None:
        self._clock, self._log = clock, log
        self.troubles: list[str] = []
        self._kept: deque[str] = deque(maxlen=NOTICES_KEPT)
        self._calm_from_ns: dict[tuple[str, str, str, str], int] = {}  # (knob, status, reason, program): news again

    @property
    def lines(self) -> list[str]:
        """The last ``NOTICES_KEPT``, the oldest first."""
        return list(self._kept)

    def add(self, line: str) -> None:
        """Log it now."""
        self._kept.append(line)
        self._log(line)

    def report(self, outcomes: Iterable[Outcome]) -> None:
        """Log what is wrong with each knob in trouble, once while it lasts. Knobs whose lines differ in numbers alone
        share one, which has the numbers of all: so a line names the file of each. A knob that was set again after
        somebody else had moved it is logged too: a write that has a reason."""
        troubled = [one for one in outcomes if one.status in TROUBLE or (one.status == "written" and one.reason)]
        self.troubles = [f"{one.knob}: {one.status}" for one in troubled[:1]]
        self.troubles += [f"{len(troubled) - 1} more knobs"] if len(troubled) > 1 else []
        if not troubled:
            return
        now_ns = self._clock.now_ns()
        news: dict[tuple[str, str, str, str], list[Outcome]] = {}
        for outcome in troubled:
            if self._is_news(outcome, now_ns):
                kind = (blank(outcome.knob), outcome.status, outcome.reason, blank(outcome.detail))
                news.setdefault(kind, []).append(outcome)
        for (_, status, reason, _), alike in news.items():
            why = f" ({reason})" if reason else ""
            names = with_ranges([one.knob for one in alike])
            self.add(f"{names}: {status}{why}: {with_ranges([one.detail for one in alike])}")

    def _is_news(self, outcome: Outcome, now_ns: int) -> bool:
        program = outcome.by.partition(" (")[0]
        trouble = (outcome.knob, outcome.status, outcome.reason, program)
        is_news = now_ns > self._calm_from_ns.get(trouble, -1)
        self._calm_from_ns[trouble] = now_ns + (RAISED_CALM_NS if program else CALM_NS)
        return is_news


def listed(names: list[str]) -> str:
    """All of a few names, or the first and how many more."""
    return ", ".join(names) if len(names) <= 6 else f"{', '.join(names[:5])} and {len(names) - 5} more"
