"""Tables of plain text: aligned columns, the last one wrapped to the terminal."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence

from foundation.shell.plain_text import plain

NARROWEST_LAST = 24
"""Columns left for the last column of a table wider than the terminal."""


def render(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The table as text without a final newline. Numbers are aligned like words: callers format them. Cells
    may come from elsewhere (``plain``)."""
    headings, rows = [*map(plain, headings)], [[*map(plain, row)] for row in rows]
    widths = [max(len(line[column]) for line in (headings, *rows)) for column in range(len(headings))]
    indent = sum(widths[:-1]) + 2 * (len(widths) - 1)
    room = max(shutil.get_terminal_size((160, 24)).columns - indent, NARROWEST_LAST)
    lines: list[str] = []
    for row in (headings, *rows):
        start = "".join(f"{cell:<{width + 2}}" for cell, width in zip(row[:-1], widths[:-1], strict=True))
        last = textwrap.wrap(row[-1], room, break_on_hyphens=False) or [""]
        lines += [(start + last[0]).rstrip(), *(" " * indent + more for more in last[1:])]
    return "\n".join(lines)
