"""The generated pages say what the code does, and what they say of settings holds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cluster_agent.serve.config import Settings
from docs.generator.__main__ import DOCS, out_of_date
from docs.generator.errors_reference import messages
from docs.generator.settings_reference import tables
from foundation.shell.settings import ConfigError, bounds, checked, table_of
from nodectl.config import Config


def bounded(kind: type[msgspec.Struct], path: tuple[str, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every key with a least or a most value: the settings' type, the key's path, its bounds."""
    for field in msgspec.structs.fields(kind):
        meta = bounds(field.type)
        if meta and (meta.ge is not None or meta.le is not None):
            yield (*path, field.name), meta.ge, meta.le
        if table := table_of(field.type):
            yield from bounded(table, (*path, field.name))


def nested(path: tuple[str, ...], value: float) -> dict[str, Any]:
    """Settings with this one key."""
    *tables, key = path
    settings: dict[str, Any] = {key: value}
    for table in reversed(tables):
        settings = {table: settings}
    return settings


def place(path: tuple[str, ...]) -> str:
    return "FILE:1"


CASES = [(kind, *row) for kind in (Config, Settings) for row in bounded(kind)]


def test_no_page_is_out_of_date() -> None:
    assert list(out_of_date()) == [], "python -m docs.generator"


@pytest.mark.parametrize(("kind", "path", "least", "most"), CASES, ids=[".".join(case[1]) for case in CASES])
def test_a_setting_is_refused_just_outside_of_the_range_that_its_page_gives(
    kind: type[msgspec.Struct], path: tuple[str, ...], least: float | None, most: float | None
) -> None:
    for bound, step in ((least, -1), (most, 1)):
        if bound is None:
            continue
        checked(nested(path, bound), kind, place)
        with pytest.raises(ConfigError, match=re.escape(".".join(path))):
            checked(nested(path, bound + step), kind, place)
    for value in (float("nan"), float("inf")):
        with pytest.raises(ConfigError):
            checked(nested(path, value), kind, place)


@pytest.mark.parametrize("kind", [Config, Settings])
def test_every_setting_has_a_meaning(kind: type[msgspec.Struct]) -> None:
    found = list(tables(kind))
    assert [row.key for one in found for row in one.settings if not row.meaning] == []
    assert sum(len(one.settings) for one in found) > 20


def test_an_error_is_listed_with_what_is_filled_in() -> None:
    import ast

    code = 'raise UsageError(f"{path}: no such file{nearest(word, known)}: give a log") from None\nraise KeyError("x")'
    assert list(messages(ast.parse(code))) == [("UsageError", "<path>: no such file<nearest>: give a log")]


@pytest.mark.parametrize("name", ["nodectl.1", "clusterctl.1", "nodectl.toml.5", "cluster.toml.5", "nodectl-hook.8"])
def test_a_manual_page_has_no_line_that_roff_would_take_for_a_request(name: str) -> None:
    text = (DOCS / "man" / name).read_text()
    requests = {line.split(maxsplit=1)[0] for line in text.splitlines() if line.startswith((".", "'"))}
    assert requests <= {".TH", ".SH", ".SS", ".TP", ".B", ".BR", ".I", ".PP", ".nf", ".fi"}
    assert text.count(".SH") >= 4


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("nodectl re", ["restore", "replay"]),
        ("nodectl run --mode ", ["monitor", "optimize"]),
        ("clusterctl bud", ["budget"]),
    ],
)
def test_the_shell_completes_commands_and_values(words: str, expected: list[str]) -> None:
    program, _, last = words.partition(" ")
    environment = os.environ | {
        f"_{program.upper()}_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(last.split(" "))),
    }
    found = subprocess.run(
        [Path(sys.executable).with_name(program)], env=environment, capture_output=True, text=True, check=True
    )
    assert [line.partition(",")[2] for line in found.stdout.splitlines()] == expected


def test_no_line_of_a_page_that_people_write_is_long() -> None:
    pages = [*DOCS.glob("*.md"), *(DOCS / "notes").glob("*.md"), *DOCS.parent.glob("*.md")]
    assert len(pages) > 20
    lines = [(page.name, line) for page in pages for line in page.read_text().splitlines()]
    assert [(name, line) for name, line in lines if len(line) > 120 and not line.startswith("|")] == []
