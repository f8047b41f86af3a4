"""Sets of rules by time of day: which sharer, which budget, which limits of groups, and what comes when they end.

At every instant at most one set is in force: of those that are switched on and within their times, the one that began
last, and of several that began together the last one of the settings. When it ends, an earlier one that still lasts is
in force again, else the settings are; where one ends in the instant in which another begins, there is nothing in
between. A set with ``then = "keep"`` stays in force after its end until another one begins. A set without times is in
force from when it is switched on until it is switched off, and goes before those with times: somebody means it now.

A set only lowers: of the budget that was set (by hand, schedule or feed) and the one of the set, the lesser counts.
So whoever lowers the budget in an emergency need not know which rules are in force.

All this follows from the time, the settings, and which sets are switched on since when. That alone is stored, so after
a restart the same set is in force. Times are local ones of the machine; where clocks change, one that does not exist
is later by the change, and of one that comes twice the first counts. (BEO: collections of rules, REGALE D2.3 §4.2.)
"""

from __future__ import annotations

import re
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from datetime import time as time_of_day
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from cluster_agent.budget.budget_line import MOST_W
from cluster_agent.budget.group_settings import Name
from cluster_agent.errors import WrongUseError
from foundation.sealed_file import SealedFileError, write_whole
from foundation.shell.errors import nearest

DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
LEAST_W: Final = 0.001
"""The ledger counts in milliwatts."""
AHEAD_DAYS: Final = 2
"""Ours: changes are announced so far ahead; no settle time is as long."""
AHEAD_S: Final = 86_400.0
"""Ours: and computed again at least so often."""

Steps: TypeAlias = list[tuple[float, int]]
Kind = TypeVar("Kind")


class RuleSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A set of rules, in force by the time of day or by name (`clusterctl budget rules`)."""

    name: Name
    begin: Annotated[str, Meta(description="`HH:MM`, local time; empty, with `end`: as long as it is switched on.")] = (
        ""
    )
    end: Annotated[str, Meta(description="`HH:MM`; not after `begin`: of the next day.")] = ""
    days: Annotated[
        str, Meta(description="On which it begins, such as `mon-fri,sun`; empty: on all.")
    ] = ""  # fmt: skip
    budget_w: Annotated[
        float, Meta(description="The budget is at most this; 0: what it is.", ge=0, le=MOST_W)
    ] = 0.0  # fmt: skip
    groups: Annotated[dict[str, float], Meta(description="The limits of these groups are at most these watts.")] = {}
    sharer: Annotated[str, Meta(description="Divides the watts; empty: the one of the settings.")] = ""
    then: Annotated[
        Literal["settings", "keep"],
        Meta(description="At its end the settings count again, or it stays in force until another set begins."),
    ] = "settings"
    on: Annotated[bool, Meta(description="Whether it is switched on until somebody switches it off.")] = True


class RulesView(msgspec.Struct, frozen=True):
    """A set of rules as people see it. ``until_s``: when it ends, or begins next if it is not in force, in seconds from
    now; None: not by itself."""

    name: str
    is_on: bool
    is_in_force: bool
    until_s: float | None
    what: str


class Span(NamedTuple):
    """From when until when a set lasts, in Unix seconds; ``which``: its place in the settings."""

    begin_s: float
    which: int
    end_s: float


class _Switched(msgspec.Struct, frozen=True):
    is_on: bool
    since_s: float


def problems(
    sets: Sequence[RuleSettings], groups: Mapping[str, float], fixed_w: float, sharer_problem: Callable[[str], str]
) -> Iterator[tuple[str, str]]:
    """What is wrong with them: the key, and a line. ``groups``: the watts of each one's gear; ``fixed_w``: what of the
    whole budget nobody can cap; ``sharer_problem``: why there is no such sharer, "" if there is."""
    names = [one.name for one in sets]
    for at, one in enumerate(sets):
        if one.name in names[:at]:
            yield f"rules[{at}].name", f"the set {one.name} is there twice"
            return
        if problem := _problem(one, groups, fixed_w) or (sharer_problem(one.sharer) if one.sharer else ""):
            yield f"rules[{at}]", f"set {one.name}: {problem}"
            return


def _problem(one: RuleSettings, groups: Mapping[str, float], fixed_w: float) -> str:
    if bool(one.begin) != bool(one.end) or (one.days and not one.begin):
        return "give begin and end, or neither of them and no days"
    try:
        _clock(one.begin), _clock(one.end), _weekdays(one.days)
    except ValueError as error:
        return str(error)
    if 0 < one.budget_w <= max(fixed_w, LEAST_W):
        return f"budget_w = {one.budget_w:g} is not above what nobody can cap ({fixed_w:g} W)"
    if not (one.budget_w or one.groups or one.sharer):
        return "it changes nothing: give budget_w, groups or sharer"
    for name, watts in one.groups.items():
        if name not in groups:
            return f"no group is called {name!r}{nearest(name, groups)}"
        if not LEAST_W <= watts <= MOST_W:
            return f"{watts:g} W are no limit of a group"
        if watts <= groups[name]:
            return f"group {name}: {watts:g} W is not above what its gear draws ({groups[name]:g} W)"
    return ""


class RuleSets:
    """The sets of one partition. ``path``: the file of what was switched by hand; ``say`` logs a line."""

    def __init__(self, sets: Sequence[RuleSettings], path: Path, say: Callable[[str], None]) -> None:
        self.sets, self._path, self._say = sets, path, say
        self._places = {one.name: at for at, one in enumerate(sets)}
        self._switched = self._read() if sets else {}
        self._known: tuple[float, RuleSettings | None, list[tuple[float, RuleSettings | None]]] | None = None
        """What was found last, and when: every group asks in one instant."""

    def is_on(self, name: str) -> bool:
        """Whether it is switched on."""
        switched = self._switched.get(name)
        return self.sets[self._places[name]].on if switched is None else switched.is_on

    def switch(self, name: str, is_on: bool, wall_s: float) -> None:
        """``WrongUseError`` for a set that there is not, or where that cannot be stored."""
        if name not in self._places:
            known = "" if self.sets else "; the settings have no [[rules]]"
            raise WrongUseError(f"no set of rules is called {name!r}{nearest(name, self._places)}{known}")
        if self.is_on(name) == is_on:
            return
        switched = {**self._switched, name: _Switched(is_on, wall_s)}
        try:
            write_whole(self._path, msgspec.json.encode(switched))
        except SealedFileError as error:
            raise WrongUseError(f"{error}; the rules stay as they were") from None
        self._switched, self._known = switched, None

    def in_force(self, wall_s: float) -> RuleSettings | None:
        """The set that is in force at this time; None: the settings are."""
        return self._found(wall_s)[0]

    def coming(self, wall_s: float) -> list[tuple[float, RuleSettings | None]]:
        """What will be in force from when on, if it stays as it is switched now, for the next ``AHEAD_DAYS``."""
        return self._found(wall_s)[1]

    def due_s(self, wall_s: float) -> float:
        """When to ask again what is in force, in Unix seconds."""
        return min([wall_s + AHEAD_S, *(at_s for at_s, _ in self.coming(wall_s))])

    def lowered(self, budget_mw: int, steps: Steps, wall_s: float, group: str = "") -> tuple[int, Steps]:
        """This budget, or limit of a group, and its steps to come (Unix seconds), lowered by the sets in force then."""
        if not self.sets:
            return budget_mw, steps
        now = self.in_force(wall_s)
        now_mw = _least_mw(budget_mw, now, group)
        if now_mw == budget_mw and not any(_least_mw(1 << 62, one, group) < 1 << 62 for one in self.sets):
            return budget_mw, steps
        rules = self.coming(wall_s)
        steps_s, rules_s = [at_s for at_s, _ in steps], [at_s for at_s, _ in rules]
        found: Steps = []
        before_mw = now_mw
        for at_s in sorted({*steps_s, *rules_s}):
            step, rule = bisect_right(steps_s, at_s), bisect_right(rules_s, at_s)
            base_mw = steps[step - 1][1] if step else budget_mw
            mw = _least_mw(base_mw, rules[rule - 1][1] if rule else now, group)
            if mw != before_mw:
                found.append((at_s, mw))
            before_mw = mw
        return now_mw, found

    def words(self, wall_s: float) -> str:
        """What is in force, for people."""
        one = self.in_force(wall_s)
        if one is None:
            return "no set of rules is in force: the settings are"
        end_s = next((at_s for at_s, other in self.coming(wall_s) if other is not one), None)
        until = "" if end_s is None else f" until {time.strftime('%a %H:%M', time.localtime(end_s))}"
        return f"the rules {one.name} are in force{until}: {what_of(one)}"

    def views(self, wall_s: float) -> list[RulesView]:
        """All sets, in the order of the settings."""
        now, coming = self.in_force(wall_s), self.coming(wall_s)
        found = []
        for one in self.sets:
            is_in_force = one is now
            change_s = next((at_s for at_s, other in coming if (other is one) != is_in_force), None)
            until_s = None if change_s is None else change_s - wall_s
            found.append(RulesView(one.name, self.is_on(one.name), is_in_force, until_s, what_of(one)))
        return found

    # --- inside

    def _found(self, wall_s: float) -> tuple[RuleSettings | None, list[tuple[float, RuleSettings | None]]]:
        """What is in force, and what will be."""
        if self._known is None or self._known[0] != wall_s:
            spans = self._spans(wall_s)
            times = {at_s for span in spans for at_s in (span.begin_s, span.end_s)}
            ahead = sorted(at_s for at_s in times if wall_s < at_s < wall_s + AHEAD_DAYS * 86_400)
            coming = [(at_s, self._in_force(spans, at_s)) for at_s in ahead]
            self._known = wall_s, self._in_force(spans, wall_s), coming
        return self._known[1:]

    def _spans(self, wall_s: float) -> list[Span]:
        """The spans of all sets that are on, from a week before to ``AHEAD_DAYS`` after this time, by their begin."""
        today = datetime.fromtimestamp(wall_s).date()
        found: list[Span] = []
        for which, one in enumerate(self.sets):
            if not self.is_on(one.name):
                continue
            switched = self._switched.get(one.name)
            since_s = 0.0 if switched is None else min(switched.since_s, wall_s)  # the clock may have been ahead
            if not one.begin:
                found.append(Span(since_s, which, float("inf")))
                continue
            days = _weekdays(one.days)
            for ahead in range(-8, AHEAD_DAYS + 2):
                if (day := today + timedelta(ahead)).weekday() in days:
                    begin_s = max(_instant(day, one.begin), since_s)
                    end_s = _instant(day + timedelta(one.end <= one.begin), one.end)
                    if end_s > begin_s:  # not in an hour that a change of clocks leaves out
                        found.append(Span(begin_s, which, end_s))
        return sorted(found)

    def _in_force(self, spans: list[Span], at_s: float) -> RuleSettings | None:
        by_name = [span for span in spans if not self.sets[span.which].begin and span.begin_s <= at_s]
        if by_name:
            return self.sets[by_name[-1].which]
        begun = spans[: bisect_right(spans, (at_s, len(self.sets)), key=lambda span: (span.begin_s, span.which))]
        if begun and self.sets[begun[-1].which].then == "keep":
            return self.sets[begun[-1].which]
        lasting = [span for span in begun if at_s < span.end_s]
        return self.sets[lasting[-1].which] if lasting else None

    def _read(self) -> dict[str, _Switched]:
        return kept(self._path, _Switched, self._say, "all sets of rules are on or off as the settings have them")


def kept(path: Path, kind: type[Kind], say: Callable[[str], None], instead: str) -> dict[str, Kind]:
    """What was set by hand, by name; where that cannot be read, nothing, and what then counts ``instead`` is said."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, kind])  # type: ignore[valid-type]
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError):
        say(f"{path}: cannot be read: {instead}")
        return {}


def what_of(one: RuleSettings) -> str:
    """What it changes, in short."""
    parts = [f"budget at most {one.budget_w:g} W"] if one.budget_w else []
    parts += [f"{name} at most {watts:g} W" for name, watts in one.groups.items()]
    parts += [f"sharer {one.sharer}"] if one.sharer else []
    return ", ".join(parts)


def _least_mw(base_mw: int, one: RuleSettings | None, group: str) -> int:
    watts = 0.0 if one is None else one.groups.get(group, 0.0) if group else one.budget_w
    return min(base_mw, round(watts * 1000)) if watts else base_mw


def _clock(text: str) -> time_of_day:
    found = re.fullmatch(r"([01][0-9]|2[0-3]):([0-5][0-9])", text or "00:00")
    if not found:
        raise ValueError(f"{text!r} is no time of day such as 06:30")
    return time_of_day(int(found[1]), int(found[2]))


def _instant(day: date, text: str) -> float:
    return datetime.combine(day, _clock(text)).timestamp()


def _weekdays(text: str) -> frozenset[int]:
    """``mon-fri,sun`` as numbers from 0; ``ValueError``."""
    if not text:
        return frozenset(range(7))
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().lower().partition("-")
        if first not in DAYS or (last or first) not in DAYS:
            raise ValueError(f"{part.strip()!r} is no day or range of days such as mon-fri")
        begin, end = DAYS.index(first), DAYS.index(last or first)
        found |= {day % 7 for day in range(begin, (end if end >= begin else end + 7) + 1)}
    return frozenset(found)
