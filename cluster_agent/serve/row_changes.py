"""Which rows of nodes, or of jobs, have changed since somebody listed them.

Whoever shows 10,000 nodes needs their rows every second, of which few have changed. So the cluster agent keeps the rows
that it has made last, with the version in which each became what it is. Rows are in parts of ``PART``, by a place that
they keep: each part has versions of its own, and its answer is made without the others, so that the loop goes on in
between.

To make 10,000 rows takes the loop some fifty milliseconds, so a row is made again only if something has changed of
what it is made of: its *marks* (``budget_service.Partition.marks_at``, ``JobMarks``). A mark that changes too often
costs time; one that is missing would leave a row as it was, so tests compare every kind of change with a full listing.

A number of seconds that grows by itself, as the age of a report, is kept as the time from which it counts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from msgspec.structs import replace

from cluster_agent.serve.people_protocol import Changes, ListChanges, Row

Key = TypeVar("Key", bound=Hashable)

PART: Final = 200
"""Ours: rows that are compared, and if need be made, for one answer: a millisecond or two of the agent's loop."""


@dataclass(slots=True)
class _Part(Generic[Key, Row]):
    version: int = 0
    marks: Sequence[list[Any]] = ()
    rows: dict[Key, Row] = field(default_factory=dict)
    changed_in: dict[Key, int] = field(default_factory=dict)
    """By key, also of what is gone: in which version the row became what it is."""

    def changed(self, marks: Sequence[list[Any]]) -> list[tuple[Any, ...]]:
        """The entries of each place where one is another than before, or which is new."""
        before, self.marks = self.marks, marks
        found = set(range(len(before[0]) if before else 0, len(marks[0])))
        for old, new in zip(before, marks, strict=False):
            if old != new:  # of whole lists that is fast, and most are as they were
                pairs = enumerate(zip(old, new, strict=False))
                found.update(at for at, (was, now) in pairs if was is not now and was != now)
        return [tuple(column[at] for column in marks) for at in sorted(found)]

    def follow(self, rows: dict[Key, Row | None]) -> None:
        """Rows that were made again, by key; None: that one is gone."""
        version = self.version + 1
        for key, row in rows.items():
            if self.rows.get(key) == row:
                continue
            self.changed_in[key] = self.version = version
            if row is None:
                del self.rows[key]
            else:
                self.rows[key] = row

    def since(self, version: int) -> list[Key]:
        """The keys of what has changed after this version."""
        return [key for key, changed_in in self.changed_in.items() if changed_in > version]


class RowParts(Generic[Key, Row]):
    """Answers ``ListNodeChanges`` or ``ListJobChanges``.

    ``marks_at`` gives, at a time, lists of what the rows of these places are made of: an entry for each place, and the
    keys first. ``row`` makes a new row of the time and the entries of a place, or None where there is nothing any more.
    ``grows``: the field of seconds that grow by themselves, None in rows where they do not.
    """

    def __init__(
        self, marks_at: Callable[[float, range], Sequence[list[Any]]], row: Callable[..., Row | None], grows: str
    ) -> None:
        self._marks_at, self._row, self._grows = marks_at, row, grows
        self._parts = list[_Part[Key, Row]]()
        self._run = (int.from_bytes(os.urandom(8)) >> 2) + 1

    def answer(self, now_s: float, n_places: int, request: ListChanges) -> Changes[Row, Key]:
        """For so many places. Of a part that there is not, nothing."""
        n_parts = max(-(-n_places // PART), 1)
        if request.part >= n_parts:
            return Changes(self._run, 0, n_parts, now_s, [], [])
        while len(self._parts) < n_parts:
            self._parts.append(_Part())
        part, first = self._parts[request.part], PART * request.part
        marks = self._marks_at(now_s, range(first, min(first + PART, n_places)))
        part.follow({one[0]: self._shifted(self._row(now_s, *one), -now_s) for one in part.changed(marks)})
        keys = part.since(request.since if request.run == self._run else 0)
        rows = [row for key in keys if (row := self._shifted(part.rows.get(key), now_s)) is not None]
        gone = [key for key in keys if key not in part.rows]
        return Changes(self._run, part.version, n_parts, now_s, rows, gone)

    def _shifted(self, row: Row | None, by_s: float) -> Row | None:
        """What grows in it by another clock; to a microsecond, so that it is the same at every time."""
        seconds = None if row is None else getattr(row, self._grows)
        if row is None or seconds is None:
            return row
        return replace(row, **{self._grows: round(seconds + by_s, 6)})
