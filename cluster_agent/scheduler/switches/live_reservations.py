"""Reservations of a live partition: who has nodes when, who may not have them, and in which words people hear of it.

Nodes are alike to the policies that keep reservations, so a reservation has a number of nodes: which ones these are is
decided when its jobs start, and a node that fails takes no reservation with it. It may name them, too, such as for
maintenance. The policy counts those as any others, and who starts a job picks nodes that it may have.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Final, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta

from cluster_agent.errors import WrongUseError
from cluster_agent.scheduler.switches.reservations import DAY_S, FOREVER_S, WEEK_S, Reserved, overlap
from foundation.shell.duration import shown
from foundation.shell.errors import nearest
from foundation.shell.names import first_of

PERIODS: Final = {"day": DAY_S, "week": WEEK_S}
"""After how many seconds a reservation comes again. Where clocks change, its local time does."""

KEPT: Final = 1000
"""Ours: how many reservations that are over or deleted are remembered, for a replay."""

NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]{0,63}")
LONGEST_S: Final = 366 * DAY_S
"""Ours: of an interval."""
LATEST_S: Final = 4_102_444_800
"""Ours: no reservation begins later, at the end of 2099 (UTC)."""

Name: TypeAlias = Annotated[str, Meta(pattern=rf"^{NAME.pattern}\Z")]


class Reservation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """As stored. Unix seconds; ``every_s`` 0: once. ``users``: by name, whose jobs may be in it; ``on``: the names of
    its nodes, empty: any."""

    name: Name
    nodes: Annotated[int, Meta(ge=1, le=1 << 20)]
    from_s: Annotated[int, Meta(ge=0, le=LATEST_S)]
    length_s: Annotated[int, Meta(ge=1, le=LONGEST_S)]
    users: Annotated[list[Annotated[str, Meta(min_length=1, max_length=96)]], Meta(min_length=1, max_length=1000)]
    every_s: Literal[0, 86_400, 604_800] = 0
    made_s: Annotated[int, Meta(ge=0, le=LATEST_S)] = 0
    on: Annotated[list[Annotated[str, Meta(min_length=1, max_length=96)]], Meta(max_length=1 << 20)] = []

    def reserved(self, gone_s: int = FOREVER_S) -> Reserved:
        """As the engine has it."""
        return Reserved(self.from_s, self.from_s + self.length_s, self.every_s, self.made_s, gone_s, self.nodes)


class Busy(NamedTuple):
    """Nodes that are taken until then at the latest: by a job, or, with number 0, since they are away."""

    job: int
    nodes: int
    until_s: float
    reservation: str = ""
    names: Collection[str] = ()


class JobNeed(NamedTuple):
    """What a job that waits, or is submitted, wants."""

    user: str
    nodes: int
    walltime_s: int
    reservation: str = ""
    queue: str = ""


class Reservations:
    """Those that are not over, by name, in the order in which they were made; ``past`` has those that are over, or were
    deleted since the agent began, with the time of that (``FOREVER_S``: they are over by themselves)."""

    def __init__(self, found: Iterable[Reservation]) -> None:
        self.by_name = {one.name: one for one in sorted(found, key=lambda one: (one.made_s, one.name))}
        self.past: deque[tuple[Reservation, int]] = deque(maxlen=KEPT)

    @property
    def reserved(self) -> Mapping[str, Reserved]:
        """As the engine has them."""
        return {name: one.reserved() for name, one in self.by_name.items()}

    def change_after_s(self, now_s: int) -> float:
        """When one begins or ends next; inf: never."""
        changes = (one.change_after_s(now_s) for one in self.reserved.values())
        return min((at_s for at_s in changes if at_s is not None), default=float("inf"))

    def remove(self, name: str, gone_s: int) -> None:
        """It is deleted, or over."""
        self.past.append((self.by_name.pop(name), gone_s))

    def over(self, now_s: int) -> list[str]:
        """Those whose last interval has ended."""
        return [name for name, one in self.reserved.items() if one.next_from_s(now_s) is None]

    def find(self, name: str) -> Reservation:
        """``WrongUseError`` if there is none of this name."""
        if name not in self.by_name:
            there = nearest(name, self.by_name) if self.by_name else ": there is none (`clusterctl reserve`)"
            raise WrongUseError(f"no reservation is called {name!r}{there}")
        return self.by_name[name]

    def check_job(self, need: JobNeed) -> None:
        """``WrongUseError`` for a job that its reservation can never run."""
        if not need.reservation:
            return
        one = self.find(need.reservation)
        if need.user not in one.users:
            raise WrongUseError(f"reservation {one.name} is for {', '.join(one.users)}, not for {need.user}")
        if need.nodes > one.nodes:
            raise WrongUseError(f"{need.nodes} nodes requested, and reservation {one.name} has {one.nodes}")
        if need.walltime_s > one.length_s:
            times = f"a walltime of {shown(need.walltime_s)} is longer than reservation {one.name}"
            raise WrongUseError(f"{times}, which lasts {shown(one.length_s)}: give a shorter --time")

    def check_new(self, new: Reservation, nodes: int, busy: Collection[Busy], now_s: int) -> None:
        """``WrongUseError`` for one that cannot be had: of so many nodes these are taken."""
        if new.name in self.by_name:
            raise WrongUseError(f"there is a reservation {new.name} already: delete it first, or choose another name")
        if new.nodes > nodes:
            raise WrongUseError(f"{new.nodes} nodes requested, and the partition has {nodes}")
        if new.every_s and new.length_s > new.every_s:
            period = next(name for name, seconds in PERIODS.items() if seconds == new.every_s)
            raise WrongUseError(f"it lasts {shown(new.length_s)}, which is longer than a {period}: leave out --every")
        mine, others = new.reserved(), self.reserved
        if mine.next_from_s(now_s) is None:
            raise WrongUseError(f"it would be over since {clock(mine.to_s)}: give a later --start")
        if (at_s := overlap(mine, others.values(), nodes)) is not None:
            there = [f"{one.width} for {name}" for name, one in others.items() if one.is_open(at_s)]
            raise WrongUseError(
                f"of the {nodes} nodes at {clock(at_s)} {' and '.join(there)} are reserved already: choose another"
                " time, or fewer nodes"
            )
        self._check_busy(mine, new.nodes, nodes, busy, now_s)
        self._check_named(new, busy, now_s)

    def _check_named(self, new: Reservation, busy: Collection[Busy], now_s: int) -> None:
        """Those that it names."""
        if new.on and not new.nodes == len(new.on) == len(set(new.on)):
            raise WrongUseError("a node is named twice, or their number is another one: name each once")
        mine, named = new.reserved()._replace(width=1), set(new.on)
        for name, other in self.by_name.items():
            shared = sorted(named & set(other.on))
            at_s = overlap(mine, [other.reserved()._replace(width=1)], 1) if shared else None
            if at_s is not None:
                raise WrongUseError(
                    f"{shared[0]} is reserved for {name} at {clock(at_s)} already: choose another time or node"
                )
        from_s = max(mine.next_from_s(now_s) or 0, now_s)
        for one in busy:
            if one.until_s > from_s and (taken := sorted(named & set(one.names))):
                fix = "choose a later --start, or other nodes"
                raise WrongUseError(f"{taken[0]} may have job {one.job} until {clock(one.until_s)}: {fix}")

    @property
    def name_nodes(self) -> bool:
        """Whether any of them does."""
        return any(one.on for one in self.by_name.values())

    def choose(self, names: Iterable[str], need: JobNeed, now_s: int) -> list[str]:
        """Of these nodes those on which the job may start now; first those that are reserved later, which longer jobs
        may not have."""
        own = self.by_name.get(need.reservation)
        named = own is not None and set(own.on)
        found = [name for name in names if not named or name in named]
        later: dict[str, int] = {}
        for one in self.by_name.values():
            from_s = one.reserved().next_from_s(now_s)
            if one is not own and from_s is not None:
                later |= {name: min(from_s, later.get(name, from_s)) for name in one.on}
        free = [name for name in found if later.get(name, FOREVER_S) >= now_s + need.walltime_s]
        return sorted(free, key=lambda name: later.get(name, FOREVER_S))

    def _check_busy(self, mine: Reserved, wanted: int, nodes: int, busy: Collection[Busy], now_s: int) -> None:
        """What runs now, until the next interval begins; and with it the other reservations that begin in it."""
        from_s = max(mine.next_from_s(now_s) or 0, now_s)
        to_s = (mine.next_from_s(now_s) or 0) + mine.length_s
        begins = (one.next_from_s(now_s) or 0 for one in self.reserved.values())
        for at_s in [from_s, *sorted(begin_s for begin_s in begins if from_s < begin_s < to_s)]:
            late = [one for one in busy if one.until_s > at_s and not self._is_in(one, at_s)]
            left = nodes - sum(one.nodes for one in late)
            left -= sum(one.width for one in self.reserved.values() if one.is_open(at_s))
            if wanted > left:
                raise WrongUseError(
                    f"{wanted} nodes requested, and at {clock(at_s)} only {max(left, 0)} of {nodes} are certain to be"
                    f" free: {_named(late)} may have the others; choose a later --start, or fewer nodes"
                )

    def _is_in(self, one: Busy, at_s: float) -> bool:
        """Whether it is on nodes of a reservation that is open then."""
        reservation = self.by_name.get(one.reservation)
        return reservation is not None and reservation.reserved().is_open(at_s)

    def why(
        self, waiting: Sequence[tuple[int, JobNeed]], nodes: int, busy: Collection[Busy], now_s: int
    ) -> dict[int, str]:
        """Why each of the waiting jobs, by number, may not start now, however many nodes are idle; others are left
        out."""
        found = {}
        for number, need in waiting if self.by_name else ():
            if reason := self._of_own(need, now_s) if need.reservation else self._of_others(need, nodes, busy, now_s):
                found[number] = reason
        return found

    def _of_own(self, need: JobNeed, now_s: int) -> str:
        one = self.by_name.get(need.reservation)
        if one is None or (from_s := (mine := one.reserved()).next_from_s(now_s)) is None:
            return "about to be cancelled, since its reservation is over"
        if from_s > now_s:
            return f"waits for its reservation {one.name}, from {clock(from_s)}"
        if now_s + need.walltime_s <= from_s + one.length_s:
            return ""
        words = f"needs {shown(need.walltime_s)}, and its reservation {one.name} ends at {clock(from_s + one.length_s)}"
        again_s = mine.next_from_s(from_s + one.length_s)
        return words if again_s is None else f"{words}; it waits for the next one, from {clock(again_s)}"

    def _of_others(self, need: JobNeed, nodes: int, busy: Collection[Busy], now_s: int) -> str:
        """With the first reservation into which it could run, and that leaves too few nodes for it then."""
        begins = sorted((one.next_from_s(now_s) or 0, name) for name, one in self.reserved.items())
        for from_s, name in begins:
            at_s = max(from_s, now_s)
            if at_s >= now_s + need.walltime_s:
                break
            late = sum(one.nodes for one in busy if one.until_s > at_s and not self._is_in(one, at_s))
            kept = sum(one.width for one in self.reserved.values() if one.is_open(at_s))
            if late + kept + need.nodes > nodes:
                words = f"{are_reserved(self.by_name[name])} from {clock(from_s)}"
                return f"{words}, and it may run until {clock(now_s + need.walltime_s)}"
        return ""


def are_reserved(one: Reservation) -> str:
    """So many nodes are, or these."""
    if one.on:
        return f"{first_of(one.on, 3)} {'are' if one.on[1:] else 'is'} reserved for {one.name}"
    return f"{one.nodes} node{'s are' if one.nodes > 1 else ' is'} reserved for {one.name}"


def clock(unix_s: float) -> str:
    """Local time, with the day."""
    return datetime.fromtimestamp(unix_s).strftime("%Y-%m-%d %H:%M:%S").removesuffix(":00")


def _named(busy: Collection[Busy]) -> str:
    """Who has these nodes."""
    jobs = [one.job for one in busy if one.job]
    away = sum(one.nodes for one in busy if not one.job)
    listed = ", ".join(map(str, jobs[:5])) + ", ..." * (len(jobs) > 5)
    names = [f"job{'s' * (len(jobs) > 1)} {listed}"] if jobs else []
    names += [f"{away} that {'are' if away > 1 else 'is'} away"] if away else []
    return " and ".join(names) or "reservations"
