"""What holds for docs/glossary.md: it names files that are there, in order, and old names that are still in use."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = re.sub(r"\n  +(?=\S)", " ", (ROOT / "docs" / "glossary.md").read_text())  # one line for each term
GROUPS = dict(part.split("\n", 1) for part in PAGE.split("\n## ")[1:])
LEGACY = GROUPS.pop("Legacy names")


def terms(group: str) -> list[str]:
    return re.findall(r"^- \*\*(.+?)\*\*: \S", group, re.MULTILINE)


def quoted(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def legacy_rows() -> list[tuple[list[str], list[str]]]:
    """Per row of the last section the names and the files that have them."""
    rows = [line.strip("| ").split(" | ") for line in LEGACY.splitlines() if line.startswith("| `")]
    return [(quoted(row[0]), quoted(row[3])) for row in rows]


def test_every_file_that_the_glossary_names_is_there() -> None:
    named = [name for name in quoted(PAGE) if re.fullmatch(r"(?:[\w.-]+/)+[\w.-]+\.\w+", name)]
    assert len(named) > 100
    assert sorted({name for name in named if not (ROOT / name).is_file()}) == []


@pytest.mark.parametrize("group", GROUPS)
def test_every_line_of_a_group_is_a_term_that_names_its_file_in_alphabetical_order(group: str) -> None:
    lines = [line for line in GROUPS[group].splitlines() if line]
    found = terms(GROUPS[group])
    assert len(found) == len(lines) > 10
    assert [line for line in lines if "/" not in line.rpartition(" `")[2]] == []
    keys = [re.sub(r"[^a-z0-9 ]", "", term.lower().replace("-", " ")) for term in found]
    assert [(one, next_) for one, next_ in pairwise(keys) if one > next_] == []


def test_a_term_is_in_the_glossary_once() -> None:
    found = [term for group in GROUPS.values() for term in terms(group)]
    assert sorted({term for term in found if found.count(term) > 1}) == []


def test_every_legacy_name_is_still_in_its_file() -> None:
    rows = legacy_rows()
    assert len(rows) > 20 and all(names and files for names, files in rows)
    texts = {file: file + (ROOT / file).read_text() for _, files in rows for file in files}
    gone = [
        name
        for names, files in rows
        for name in names
        if not any(re.search(rf"\b{re.escape(name)}\b", texts[file]) for file in files)
    ]
    assert gone == []
