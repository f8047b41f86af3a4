"""The rows of all nodes, kept up to date by what changes (``serve.node_changes``)."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from cluster_agent.serve.people_protocol import ListNodeChanges, NodeChanges, NodeRow


class NodeTable:
    """``read`` gives all rows as they are now. ``request`` sends a request to the cluster agent; what it raises,
    ``read`` raises, and the next one requests what is still missing."""

    def __init__(self, request: Callable[[ListNodeChanges], NodeChanges]) -> None:
        self._request, self._run = request, 0
        self._versions: list[int] = []
        self._rows: dict[str, tuple[NodeRow, float]] = {}  # with the time of the answer that had it
        self._names: list[str] = []

    def read(self) -> tuple[NodeRow, ...]:
        """By name."""
        part, parts, at_s = 0, 1, 0.0
        while part < parts:
            if part == len(self._versions):
                self._versions.append(0)
            got = self._request(ListNodeChanges(part, self._run, self._versions[part]))
            if got.run != self._run:  # all that is known is of another process
                self._run, self._versions = got.run, [0]
                self._rows.clear()
                if part:
                    part, parts = 0, got.parts
                    continue
            at_s, parts = got.at_s, got.parts
            self._versions[part] = got.version
            self._rows.update((row.name, (row, at_s)) for row in got.rows)
            for name in got.gone:
                self._rows.pop(name, None)
            part += 1
        if self._names != (names := list(self._rows)):
            self._rows = {name: self._rows[name] for name in sorted(names)}
            self._names = list(self._rows)
        return tuple(_aged(row, at_s - then_s) for row, then_s in self._rows.values())


def _aged(row: NodeRow, by_s: float) -> NodeRow:
    return row if row.heard_s_ago is None or not by_s else replace(row, heard_s_ago=row.heard_s_ago + by_s)
