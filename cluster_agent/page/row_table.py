"""The rows of all nodes, or of all jobs, kept up to date by what changes (``serve.row_changes``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic

from msgspec.structs import replace

from cluster_agent.serve.people_protocol import Changes, ListChanges, Row


class RowTable(Generic[Row]):
    """``read`` gives all rows as they are now. ``request`` sends a request to the cluster agent; what it raises,
    ``read`` raises, and the next one requests what is still missing.

    ``kind``: which request; ``key``: the field by which rows are known and in whose order they are; ``grows``: the one
    of seconds that grow by themselves, None in rows where they do not.
    """

    def __init__(
        self, kind: Callable[[int, int, int], ListChanges], request: Callable[[Any], Changes[Row, Any]], key: str,
        grows: str,
    ) -> None:  # fmt: skip
        self._kind, self._request, self._key, self._grows = kind, request, key, grows
        self._run = 0
        self._versions: list[int] = []
        self._rows: dict[Any, tuple[Row, float]] = {}  # with the time of the answer that had it
        self._keys: list[Any] = []

    def read(self) -> tuple[Row, ...]:
        """By key."""
        part, parts, at_s = 0, 1, 0.0
        while part < parts:
            if part == len(self._versions):
                self._versions.append(0)
            got = self._request(self._kind(part, self._run, self._versions[part]))
            if got.run != self._run:  # all that is known is of another process
                self._run, self._versions = got.run, [0]
                self._rows.clear()
                if part:
                    part, parts = 0, got.parts
                    continue
            at_s, parts = got.at_s, got.parts
            self._versions[part] = got.version
            self._rows.update((getattr(row, self._key), (row, at_s)) for row in got.rows)
            for key in got.gone:
                self._rows.pop(key, None)
            part += 1
        if self._keys != (keys := list(self._rows)):
            self._rows = {key: self._rows[key] for key in sorted(keys)}
            self._keys = list(self._rows)
        return tuple(self._aged(row, at_s - then_s) for row, then_s in self._rows.values())

    def _aged(self, row: Row, by_s: float) -> Row:
        seconds = getattr(row, self._grows) if by_s else None
        return row if seconds is None else replace(row, **{self._grows: seconds + by_s})
