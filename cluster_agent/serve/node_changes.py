"""Which rows of nodes have changed since somebody listed them.

Whoever shows 10,000 nodes needs their rows every second, of which few have changed. So the cluster agent keeps the rows
that it has made last, with the version in which each became what it is. Nodes are in parts of ``PART``, by their place
in the ledger, which they keep: each part has versions of its own, and its answer is made without the others, so that
the loop goes on in between.

A row is compared as a whole, whatever it is made of, so no change can be missed. ``heard_s_ago`` changes by itself, so
it is kept as the time of the report.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from cluster_agent.serve.people_protocol import ListNodeChanges, NodeChanges, NodeRow

PART: Final = 500
"""Ours: rows that are made and compared for one answer, which take the cluster agent's loop some milliseconds."""


@dataclass(slots=True)
class _Part:
    version: int = 0
    rows: dict[str, NodeRow] = field(default_factory=dict)
    changed_in: dict[str, int] = field(default_factory=dict)
    """By name, also of nodes that are gone: in which version the row became what it is."""

    def follow(self, now_s: float, rows: list[NodeRow]) -> None:
        """Compare with how it was before."""
        before, self.rows = self.rows, {}
        version = self.version + 1
        for row in rows:
            kept = self.rows[row.name] = _with_time(row, -now_s)
            if before.pop(row.name, None) != kept:
                self.changed_in[row.name] = self.version = version
        for name in before:
            self.changed_in[name] = self.version = version

    def since(self, version: int) -> list[str]:
        """The names of what has changed after this version."""
        return [name for name, changed_in in self.changed_in.items() if changed_in > version]


class NodeParts:
    """Answers ``ListNodeChanges``. ``rows_at`` gives the rows of these places at a time."""

    def __init__(self, rows_at: Callable[[float, range], list[NodeRow]]) -> None:
        self._rows_at, self._parts = rows_at, list[_Part]()
        self._run = secrets.randbits(62) + 1

    def answer(self, now_s: float, n_places: int, request: ListNodeChanges) -> NodeChanges:
        """For a ledger with so many places. Of a part that there is not, nothing."""
        n_parts = max(-(-n_places // PART), 1)
        if request.part >= n_parts:
            return NodeChanges(self._run, 0, n_parts, now_s, [], [])
        while len(self._parts) < n_parts:
            self._parts.append(_Part())
        part, first = self._parts[request.part], PART * request.part
        part.follow(now_s, self._rows_at(now_s, range(first, min(first + PART, n_places))))
        names = part.since(request.since if request.run == self._run else 0)
        rows = [_with_time(part.rows[name], now_s) for name in names if name in part.rows]
        gone = [name for name in names if name not in part.rows]
        return NodeChanges(self._run, part.version, n_parts, now_s, rows, gone)


def _with_time(row: NodeRow, shift_s: float) -> NodeRow:
    """With the age of its report by another clock; to a microsecond, so that it is the same at every time."""
    return row if row.heard_s_ago is None else replace(row, heard_s_ago=round(row.heard_s_ago + shift_s, 6))
