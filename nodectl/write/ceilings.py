"""How high a limit may be written: never above what anybody else has set it to.

A limit of clock or watts that was there before this run may protect a breaker or a cooling loop, which this agent knows
nothing of. So each limit has a *ceiling*, the lowest of:

- the value that it was found at when the writer started (of a knob that an earlier run has left moved: its captured
  value), and when it was captured;
- every value that somebody else has set since, as far as the writer has looked; a higher one does not raise the
  ceiling again, since a tool that lifts its own limit for a while is no reason to forget the site's;
- the most that the hardware takes, where it reports that.

A value that firmware or temperature explains is nobody's and sets none: their limit stays in force whatever is written.

No write and no restore goes above the ceiling. The last point does not concern restores: a limit that was found above
what the hardware takes (some firmware sets "no limit" so) goes back to where it was. 0 watts is how some firmware shows
"no limit" too, and sets no ceiling. Knobs that the setting ``may_raise`` names know the hardware's maximum only.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from operator import le
from typing import Final

from nodectl.knobs.api import Knob, KnobError
from nodectl.knobs.kind import Limit
from nodectl.knobs.registry import kind_of
from nodectl.write.saves import Captured

_OF_CONTROLLER: Final = re.compile(r".*#[^/]+/(cap_mw|limit_khz)")
"""Limits behind an SCMI controller. A level is none: the controller grants the highest one that any agent requests."""

_SCMI_LIMIT: Final = Limit(highest=lambda knob: None)


class Ceilings:
    """The ceilings of one node's limits. ``may_raise``: patterns of knob names that have none but the hardware's."""

    def __init__(self, knobs: Iterable[Knob], may_raise: Sequence[str] = ()) -> None:
        self._limits = {knob.name: (knob, limit) for knob in knobs if (limit := _limit_of(knob.name))}
        self._may_raise = frozenset(
            name for name in self._limits if any(fnmatchcase(name, pattern) for pattern in may_raise)
        )
        self._site: dict[str, int] = {}
        self._least: dict[str, int] = {}
        self._highest: dict[str, int] = {}
        self._searched: set[str] = set()
        self._unexplained: set[tuple[Limit, int]] = set()

    @property
    def site(self) -> Mapping[str, int]:
        """The lowest value of each limit that the site or another program has set; the same object at all times."""
        return self._site

    @property
    def values(self) -> Mapping[str, int]:
        """The ceiling of each limit that has one; the same object at all times."""
        return self._least

    def start(self, captured: Mapping[str, Captured]) -> None:
        """Look at every limit. ``captured``: what an earlier run has left moved. A knob behind a controller is looked
        at when it is captured: before that it may show what an earlier lease has left."""
        for name, (knob, _) in self._limits.items():
            with contextlib.suppress(KnobError):
                if name in captured:
                    self.found(name, captured[name].to_restore)
                elif "#" not in name:
                    self.found(name, knob.read())

    def below_hardware(self) -> list[str]:
        """One line for the limits that were found at the start below what the hardware can do, where neither firmware
        nor temperature explains it. A later restore puts them back to what was found, so an administrator should
        know."""
        low = [name for name in self._site if self._is_low(name)]
        if not low:
            return []
        name, (knob, _) = low[0], self._limits[low[0]]
        more = f" and {len(low) - 1} more" if len(low) > 1 else ""
        values = f"{knob.shown(self._site[name])} of {knob.shown(self._highest[name])}"
        return [
            f"{name}{more}: found below what the hardware can do ({values}), and no reason is known: an administrator's"
            " limit, or what a run left whose save is lost; it counts as the highest allowed"
        ]

    def _is_low(self, name: str) -> bool:
        (knob, limit), present, highest = self._limits[name], self._site[name], self._highest.get(name, 0)
        return limit.is_seldom_lowered and present < highest and not knob.matches(highest, present)

    def found(self, name: str, text: str) -> None:
        """The knob was found at what ``Knob.read`` returned, and that is not ours."""
        if name in self._limits:
            knob, limit = self._limits[name]
            if name not in self._searched:
                with contextlib.suppress(KnobError):
                    self._searched.add(name)
                    if highest := limit.highest(knob):
                        self._highest[name] = highest
                        self._lower(self._least, name, highest)
            if not self._is_explained(knob, limit, text):
                self.note(name, limit.found(knob, text))

    def note(self, name: str, value: int | None) -> bool:
        """Somebody else has set the limit to ``value`` (None: to none). True if that is a new ceiling."""
        if name not in self._limits or name in self._may_raise:
            return False
        self._lower(self._least, name, value)
        return self._lower(self._site, name, value)

    def highest(self, name: str) -> int | None:
        """The most that the hardware takes; None where it does not report that."""
        return self._highest.get(name)

    def is_limit(self, name: str) -> bool:
        """Whether higher values of this knob allow more."""
        return name in self._limits

    def below(self, name: str, text: str) -> int | None:
        """What a restore may set in place of a captured ``text`` that is above what somebody else has set; None where
        the captured value may be set."""
        site = self._site.get(name)
        if site is None:
            return None
        knob, limit = self._limits[name]
        first = limit.found(knob, text)
        return site if first is None or site < first else None

    def _is_explained(self, knob: Knob, limit: Limit, text: str) -> bool:
        """Do firmware or temperature keep the limit this low? A value for which that was denied once is not looked into
        again: the search costs milliseconds on a node with hundreds of cooling devices, and a site limits all alike."""
        value = knob.number(text)
        if not value or value >= self._least.get(knob.name, value + 1) or (limit, value) in self._unexplained:
            return False
        with contextlib.suppress(KnobError):
            if knob.explain(2 * value, value)[1]:
                return True
        self._unexplained.add((limit, value))
        return False

    @staticmethod
    def _lower(values: dict[str, int], name: str, value: int | None) -> bool:
        if not value or value >= values.get(name, value + 1):
            return False
        values[name] = value
        return True


def under(ceilings: Mapping[str, int], settings: Mapping[str, int]) -> dict[str, int]:
    """The settings with no value above its ceiling; 0, a release, stays."""
    most, values = ceilings.get, settings.values()
    if all(map(le, values, map(most, settings, values))):  # nearly always, hundreds of them at each tick
        return dict(settings)
    return {name: value if value <= most(name, value) else ceilings[name] for name, value in settings.items()}


def _limit_of(name: str) -> Limit | None:
    if _OF_CONTROLLER.fullmatch(name):
        return _SCMI_LIMIT
    kind = kind_of(name)
    return kind.limit if kind else None
