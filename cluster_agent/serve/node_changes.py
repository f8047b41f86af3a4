"""Which rows of nodes have changed since somebody listed them.

Whoever shows 10,000 nodes needs their rows every second, of which few have changed. So the cluster agent keeps the rows
that it has made last, with the version in which each became what it is. Nodes are in parts of ``PART``, by their place
in the ledger, which they keep: each part has versions of its own, and its answer is made without the others, so that
the loop goes on in between.

To make 10,000 rows takes the loop some fifty milliseconds, so a row is made again only if something has changed of
what it is made of: its *marks* (``budget_service.Partition.marks_at``). A mark that changes too often costs time; one
that is missing would leave a row as it was, so tests compare every kind of change with a full listing.
``heard_s_ago`` changes by itself, so it is kept as the time of the report.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec.structs import replace

from cluster_agent.serve.people_protocol import ListNodeChanges, NodeChanges, NodeRow

PART: Final = 500
"""Ours: rows that are compared, and if need be made, for one answer: some milliseconds of the cluster agent's loop."""


@dataclass(slots=True)
class _Part:
    version: int = 0
    marks: Sequence[list[Any]] = ()
    rows: dict[str, NodeRow] = field(default_factory=dict)
    changed_in: dict[str, int] = field(default_factory=dict)
    """By name, also of nodes that are gone: in which version the row became what it is."""

    def changed(self, marks: Sequence[list[Any]]) -> list[tuple[Any, ...]]:
        """The entries of each place where one is another than before, or which is new."""
        before, self.marks = self.marks, marks
        found = set(range(len(before[0]) if before else 0, len(marks[0])))
        for old, new in zip(before, marks, strict=False):
            if old != new:  # of whole lists that is fast, and most are as they were
                found.update(at for at, (was, now) in enumerate(zip(old, new, strict=False)) if was != now)
        return [tuple(column[at] for column in marks) for at in sorted(found)]

    def follow(self, now_s: float, rows: dict[str, NodeRow | None]) -> None:
        """Rows that were made again, by name; None: that node is gone."""
        version = self.version + 1
        for name, row in rows.items():
            if row is not None:
                row.heard_s_ago = _shifted(row.heard_s_ago, -now_s)
            if self.rows.get(name) == row:
                continue
            self.changed_in[name] = self.version = version
            if row is None:
                del self.rows[name]
            else:
                self.rows[name] = row

    def since(self, version: int) -> list[str]:
        """The names of what has changed after this version."""
        return [name for name, changed_in in self.changed_in.items() if changed_in > version]


class NodeParts:
    """Answers ``ListNodeChanges``. ``marks_at`` gives, at a time, lists of what the rows of these places are made of,
    the names first and an entry for each place; ``row`` makes a new row of the time and the entries of a place, or None
    where there is no node any more."""

    def __init__(
        self, marks_at: Callable[[float, range], Sequence[list[Any]]], row: Callable[..., NodeRow | None]
    ) -> None:
        self._marks_at, self._row, self._parts = marks_at, row, list[_Part]()
        self._run = secrets.randbits(62) + 1

    def answer(self, now_s: float, n_places: int, request: ListNodeChanges) -> NodeChanges:
        """For a ledger with so many places. Of a part that there is not, nothing."""
        n_parts = max(-(-n_places // PART), 1)
        if request.part >= n_parts:
            return NodeChanges(self._run, 0, n_parts, now_s, [], [])
        while len(self._parts) < n_parts:
            self._parts.append(_Part())
        part, first = self._parts[request.part], PART * request.part
        marks = self._marks_at(now_s, range(first, min(first + PART, n_places)))
        part.follow(now_s, {one[0]: self._row(now_s, *one) for one in part.changed(marks)})
        names = part.since(request.since if request.run == self._run else 0)
        shown = [part.rows[name] for name in names if name in part.rows]
        rows = [replace(row, heard_s_ago=_shifted(row.heard_s_ago, now_s)) for row in shown]
        gone = [name for name in names if name not in part.rows]
        return NodeChanges(self._run, part.version, n_parts, now_s, rows, gone)


def _shifted(age_s: float | None, by_s: float) -> float | None:
    """The age of a report by another clock; to a microsecond, so that it is the same at every time."""
    return None if age_s is None else round(age_s + by_s, 6)
