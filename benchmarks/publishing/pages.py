"""The tables of the pages: which rows they name, and whether they print what those say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.publishing.measurements import MEASUREMENTS
from benchmarks.publishing.rows import FOLDER, ROOT, Cells, Published

MANUAL: Final = tuple(
    ROOT / "docs" / name for name in ("hazard.md", "nodes-ahead.md", "notes/scheduler-measurements.md")
)
"""Of these pages only the tables that name their rows are measured."""

PAGES: Final = (*sorted((ROOT / "docs").glob("benchmarks*.md")), *MANUAL)


@dataclass(frozen=True)
class Place:
    """A table of a page: which rows it names, where its lines are."""

    page: Path
    line: int  # of its heading, from 0
    file: str  # "" where none is named
    key: str
    cells: Cells = field(repr=False)

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line + 1}"


def _comment(name: str, key: str) -> str:
    return f"<!-- rows: benchmarks/published/{name}.csv{key and ', '}{key} -->"


NAMED: Final = re.compile(r"<!-- rows: benchmarks/published/([\w.-]+\.csv)(?:, ([\w-]+))? -->")


def places(page: Path) -> Iterator[Place]:
    """Every table of a page of benchmarks, and those of ``MANUAL`` that name their rows; in order."""
    lines = page.read_text().splitlines()
    for at, line in enumerate(lines):
        if not re.fullmatch(r"\|[\s:|-]+\|", line):
            continue
        top, end = at - 1, at + 1
        while end < len(lines) and lines[end].startswith("|"):
            end += 1
        above = next((one for one in reversed(lines[:top]) if one), "")
        named = NAMED.fullmatch(above)
        if page in MANUAL and not named:
            continue
        cells = [_split(one) for one in (lines[top], *lines[at + 1 : end])]
        yield Place(page, top, *((named[1], named[2] or "") if named else ("", "")), cells)


def _split(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip()[1:-1].split("|")]


def files() -> list[str]:
    """Every file that a table names."""
    return list(dict.fromkeys(place.file for page in PAGES for place in places(page) if place.file))


def expected(place: Place) -> Cells:
    """What the rows that a table names make of it."""
    published = Published.read(FOLDER / place.file)
    if published.is_transcribed:
        return [[*row.values()] for row in published.rows]
    return MEASUREMENTS[place.file.removesuffix(".csv")].tables[place.key](published.rows)


def differences(place: Place) -> list[str]:
    """Where the page prints something else than its rows say."""
    wanted = expected(place)
    found = (
        [f"{place}: {len(place.cells)} lines, the rows make {len(wanted)}"] if len(wanted) != len(place.cells) else []
    )
    for number, (shown, right) in enumerate(zip(place.cells, wanted, strict=False)):
        if shown != right:
            line = place.line + number + (number > 0)
            found.append(
                f"{place.page.relative_to(ROOT)}:{line + 1}: {' | '.join(shown)}\n  by the rows: {' | '.join(right)}"
            )
    return found


def rewrite(page: Path) -> None:
    """Print the computed tables of a page from their rows. Where a table was transcribed (``NAME-KEY.csv``) and is
    computed now (``NAME.csv``), it names the rows instead."""
    text = page.read_text()
    for name, measurement in MEASUREMENTS.items():
        path = FOLDER / f"{name}.csv"
        if path.is_file() and not Published.read(path).is_transcribed:
            for key in measurement.tables:
                text = text.replace(f"<!-- rows: benchmarks/published/{name}-{key}.csv -->", _comment(name, key))
    page.write_text(text)
    lines = text.splitlines()
    for place in reversed(list(places(page))):
        if (FOLDER / place.file).is_file() and not Published.read(FOLDER / place.file).is_transcribed:
            heading, *body = ("| " + " | ".join(cells) + " |" for cells in expected(place))
            is_wider = heading.count("|") != lines[place.line + 1].count("|")
            rule = "|---" * (heading.count("|") - 1) + "|" if is_wider else lines[place.line + 1]
            lines[place.line : place.line + len(place.cells) + 1] = [heading.replace("|  |", "| |"), rule, *body]
    page.write_text("\n".join(lines) + "\n")
