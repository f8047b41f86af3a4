"""Reservations: so many processors are for named jobs alone, in one interval or in one that comes again and again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

FOREVER_S: Final = 1 << 62
DAY_S: Final = 86_400
WEEK_S: Final = 7 * DAY_S


class Reserved(NamedTuple):
    """From ``from_s`` to ``to_s``, and after each ``every_s`` again (0: once), ``width`` processors are for its jobs
    alone. It is known from ``made_s`` until it is deleted at ``gone_s``. ``csrc/resources/site_limits.h``."""

    from_s: int
    to_s: int
    every_s: int
    made_s: int
    gone_s: int
    width: int

    @property
    def length_s(self) -> int:
        """Of each interval."""
        return self.to_s - self.from_s

    def next_from_s(self, now_s: float) -> int | None:
        """When the interval begins that is not over, the present or the next one; None: all are over."""
        if now_s < self.to_s:
            return self.from_s
        if not self.every_s:
            return None
        return self.from_s + (int(now_s - self.to_s) // self.every_s + 1) * self.every_s

    def change_after_s(self, now_s: float) -> int | None:
        """When it begins or ends next; None: never."""
        from_s = self.next_from_s(now_s)
        return None if from_s is None else from_s if from_s > now_s else from_s + self.length_s

    def is_open(self, at_s: float) -> bool:
        """Whether its jobs may run then."""
        from_s = self.next_from_s(at_s)
        return from_s is not None and from_s <= at_s


def overlap(one: Reserved, others: Iterable[Reserved], processors: int) -> int | None:
    """When this one and those of the others that are known at the same time are more than there are; None: never. Where
    two intervals overlap one of them begins, and after a week all begin again as before."""
    there = [other for other in others if _may_meet(one, other)]
    if one.width + sum(other.width for other in there) <= processors:
        return None
    for at_s in sorted(
        {at_s for first in (one, *there) for second in (one, *there) for at_s in _begins(first, second)}
    ):
        if one.is_open(at_s) and one.width + sum(other.width for other in there if other.is_open(at_s)) > processors:
            return at_s
    return None


def _may_meet(one: Reserved, other: Reserved) -> bool:
    """Whether both are known at some time, and none is over before the other begins."""
    ends_first = not one.every_s and one.to_s <= other.from_s, not other.every_s and other.to_s <= one.from_s
    return other.made_s < one.gone_s and one.made_s < other.gone_s and not any(ends_first)


def _begins(one: Reserved, other: Reserved) -> list[int]:
    """When one begins for the first time, and in the week after the other has begun."""
    found, from_s = [one.from_s], one.next_from_s(other.from_s)
    while one.every_s and from_s is not None and from_s < other.from_s + WEEK_S:
        found.append(from_s)
        from_s += one.every_s
    return found
