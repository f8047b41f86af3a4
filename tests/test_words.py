"""The code speaks the words of its field: none of those that docs/glossary.md replaces, in names, comments or messages.

Sources are parsed: names, comments and docstrings are read, and strings with a blank in them, which are messages. Other
strings are data. What stands in backquotes is a quoted name.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import pytest

ROOT: Final = Path(__file__).parents[1]

PACKAGES: Final = (
    "benchmarks",
    "calibration",
    "cluster_agent",
    "firmware_bridge",
    "foundation",
    "hil_tests",
    "lab",
    "nodectl",
    "pmu",
    "twin",
)
"""Packages whose words are checked."""

EXEMPT: Final = ("cluster_agent/csrc",)
"""Folders whose own files are not checked: the scheduler in C is to be rewritten, and its words with it."""

WORDS: Final = {
    "acting": "in force",
    "acts": "in force",
    "anew": "again",
    "asked": "requested",
    "beside": "next to, in addition to",
    "desk": "thread, service: by its job",
    "door": "port, escape path, entry point",
    "doors": "ports, escape paths, entry points",
    "held": "the one that is meant: saved, capped, limited, present, enforced, locked",
    "hold": "save, cap, limit, keep",
    "holds": "has, contains, enforces",
    "remedy": "fix, what to do",
    "tells": "reports",
    "told": "reported",
    "wish": "request",
    "wishes": "requests",
    "witness": "estimator",
}
"""Words that the glossary replaces, and by what."""

PHRASES: Final = (
    r"clock domains?",
    r"known again",
    r"sa(?:y|ys|id) once",
    r"st(?:and|ands|anding|ood) (?:over|still)",
    r"(?:a|its|the|their) draws?",
    r"(?:is|are|be) to be had",
)
"""More than a word, or a word that is right elsewhere ("a node draws power")."""

LEGACY: Final = {
    "HELD": ("nodectl/policies/bdpo_cpu.py",),
    "ToldState": ("nodectl/policies/bdpo_cpu_bounded.py",),
    "asked": ("nodectl/commands/scmi_targets.py",),
    "asked_mw": (
        "cluster_agent/budget/sharers/needs.py",
        "cluster_agent/serve/budget_service.py",
        "cluster_agent/serve/job_service.py",
        "nodectl/member/cluster_cap.py",
        "foundation/wire/power_messages.py",
    ),
    "asked_w": ("lab/node_demo/controller_demo.py",),
    "gpu_held_back_s": ("nodectl/loop/agent.py", "nodectl/loop/summary.py"),
    "held": (
        "cluster_agent/budget/sharers/needs.py",
        "cluster_agent/serve/job_service.py",
        "nodectl/member/cluster_cap.py",
        "foundation/wire/power_messages.py",
    ),
    "is_as_asked": ("nodectl/commands/scmi.py", "nodectl/commands/scmi_targets.py"),
    "last_told": ("nodectl/policies/bdpo_cpu_bounded.py",),
    "told": (
        "nodectl/journal/format.py",
        "nodectl/journal/reading.py",
        "nodectl/journal/writing.py",
        "nodectl/policies/bdpo_cpu_bounded.py",
    ),
    "told_full_saving": ("nodectl/policies/bdpo_cpu_bounded.py",),
    "told_least_saving": ("nodectl/policies/bdpo_cpu_bounded.py",),
    "told_s": ("nodectl/loop/summary.py", "nodectl/policies/bdpo_cpu_bounded.py"),
    "told_share": ("nodectl/policies/bdpo_cpu_bounded.py",),
}
"""Names in stored and wire formats, settings and JSON (docs/glossary.md, Legacy names), and their files."""

PROSE: Final = {
    "held": ("nodectl/knobs/api.py",),  # a status, in the table of what each means
}
"""Words that are right in the comments or messages of a file."""

_WORD: Final = re.compile(rf"(?<![\w-])(?:{'|'.join((*WORDS, *PHRASES))})(?![\w-])", re.IGNORECASE)
_QUOTED: Final = re.compile(r"``.*?``|`[^`]*`", re.DOTALL)


class Found(NamedTuple):
    """One place in a source. ``name``: the identifier, "" in prose."""

    path: str
    line: int
    word: str
    name: str = ""


def words_of(name: str) -> list[str]:
    """The words that an identifier is made of, in lower case."""
    return re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower().split("_")


def in_names(path: str, names: Iterator[tuple[str, int]]) -> Iterator[Found]:
    for name, line in names:
        for word in words_of(name):
            if word in WORDS:
                yield Found(path, line, word, name)


def in_prose(path: str, texts: Iterator[tuple[str, int]]) -> Iterator[Found]:
    for text, line in texts:
        plain = _QUOTED.sub(lambda quoted: "\n" * quoted[0].count("\n"), text)
        for match in _WORD.finditer(plain):
            yield Found(path, line + plain.count("\n", 0, match.start()), match[0].lower())


def python_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        for field in ("id", "attr", "arg", "name", "asname"):
            name = getattr(node, field, None)
            if isinstance(name, str):
                yield name.rpartition(".")[2], getattr(node, "lineno", 0)


def python_texts(tree: ast.AST, source: str) -> Iterator[tuple[str, int]]:
    """Docstrings, messages and comments."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.value, node.lineno
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string, token.start[0]


_C_PART: Final = re.compile(
    r'(?P<comment>/\*.*?\*/|//[^\n]*)|"(?P<text>(?:[^"\\\n]|\\.)*)"|(?P<name>[A-Za-z_]\w*)', re.DOTALL
)


def c_parts(source: str, kinds: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    for part in _C_PART.finditer(source):
        if part.lastgroup in kinds and (part.lastgroup == "name" or " " in part[0]):
            yield part[0], source.count("\n", 0, part.start()) + 1


def found_in(path: str, source: str) -> Iterator[Found]:
    if path.endswith(".py"):
        tree = ast.parse(source)
        yield from in_names(path, python_names(tree))
        yield from in_prose(path, python_texts(tree, source))
    else:
        yield from in_names(path, c_parts(source, ("name",)))
        yield from in_prose(path, c_parts(source, ("comment", "text")))


@cache
def all_found(package: str) -> list[Found]:
    files = [path for path in sorted((ROOT / package).rglob("*")) if path.suffix in (".py", ".c", ".h")]
    files = [path for path in files if path.parent.relative_to(ROOT).as_posix() not in EXEMPT]
    files = [path for path in files if path.suffix == ".py" or not path.name.startswith("_")]  # _native.c is generated
    assert files
    return [one for path in files for one in found_in(str(path.relative_to(ROOT)), path.read_text())]


def is_listed(one: Found) -> bool:
    lists = (LEGACY,) if one.name else (PROSE,)
    return any(one.path.startswith(place) for known in lists for place in known.get(one.name or one.word, ()))


@pytest.mark.parametrize("package", PACKAGES)
def test_names_comments_and_messages_have_none_of_the_words_that_the_glossary_replaces(package: str) -> None:
    wrong = [one for one in all_found(package) if not is_listed(one)]
    lines = [f"{one.path}:{one.line}: {one.name or one.word}: {WORDS.get(one.word, 'see PHRASES')}" for one in wrong]
    assert lines == []


def test_every_legacy_name_is_in_the_files_that_are_listed_for_it() -> None:
    found = {(one.name or one.word, one.path) for package in PACKAGES for one in all_found(package)}
    listed = {(name, path) for known in (LEGACY, PROSE) for name, paths in known.items() for path in paths}
    assert sorted(one for one in listed if one[1].startswith(PACKAGES) and one not in found) == []


def test_every_legacy_name_is_listed_in_the_glossary() -> None:
    section = (ROOT / "docs" / "glossary.md").read_text().partition("## Legacy names")[2]
    known = {name.lower() for name in re.findall(r"`([^`]+)`", section)}
    assert sorted(name for name in LEGACY if name.lower() not in known) == []


PYTHON: Final = """
def told(x):  # the draw was asked
    \'\'\'A node draws power; ``held`` is quoted.

    It holds its cap.\'\'\'
    held_mw = {"held": f"the cap {x.is_heldBack} was told"}
"""
C: Final = """
/* Beside the cap
   of a clock domain. */
int beholder, is_held = f("asked", "it was asked");
"""


def test_each_kind_of_place_is_read_and_data_is_not() -> None:
    python = [(one.line, one.name or one.word) for one in found_in("a.py", PYTHON)]
    assert sorted(python) == sorted(
        [(2, "told"), (2, "the draw"), (2, "asked"), (5, "holds"), (6, "held_mw"), (6, "is_heldBack"), (6, "told")]
    )
    c = [(one.line, one.name or one.word) for one in found_in("a.c", C)]
    assert sorted(c) == [(2, "beside"), (3, "clock domain"), (4, "asked"), (4, "is_held")]
