"""Names of nodes as people and Slurm write them: ``n[0-3,7]`` stands for n0, n1, n2, n3 and n7.

A list has names with any number of brackets, and commas between: ``n7,rack[0-1]_blade[08-11]``. Leading zeros are kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from foundation.shell.errors import UsageError

MOST: Final = 100_000
_RANGE: Final = re.compile(r"([0-9]+)(?:-([0-9]+))?")
_ENTRY: Final = re.compile(r"(?:[^\[\],]|\[[^\[\]]*\])+")
_BLANKS: Final = re.compile(r"\s*,\s*")
_BRACKET: Final = re.compile(r"\[([^\[\]]*)\]")


def expanded(text: str) -> list[str]:
    """The names that ``text`` stands for, in its order; ``UsageError`` if it is none, or more than 100 000. Blanks
    around it and around its commas mean nothing: what is copied from a mail or a web page has some."""
    plain = _BLANKS.sub(",", text.strip())
    entries = _ENTRY.findall(plain)
    if ",".join(entries) != plain or not entries or any(one.isspace() for one in plain):
        raise UsageError(f"{text!r} is no list of nodes such as n[0-3,7]")
    found: list[str] = []
    for entry in entries:
        found += _of_entry(text, entry)
        _refuse_many(text, len(found))
    return found


def first_of(names: Sequence[str], most: int) -> str:
    """``n1, n2 and 7 more``: at most so many are named."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def with_domain(requested: Iterable[str], known: Iterable[str]) -> dict[str, str]:
    """By name, those of ``requested`` that are the same as one of ``known`` but for a domain or capitals: hosts often
    call themselves ``n1.example.org`` where a job manager says ``n1``."""
    ours = {name.lower().partition(".")[0]: name for name in known}
    found = {name: ours.get(name.lower().partition(".")[0], name) for name in requested}
    return {name: other for name, other in found.items() if other != name}


def _of_entry(text: str, entry: str) -> list[str]:
    """Every combination of the numbers in its brackets; the last one changes first."""
    literal, *rest = _BRACKET.split(entry)
    found = [literal]
    for inside, literal in zip(rest[::2], rest[1::2], strict=True):
        numbers = _numbers(text, inside)
        _refuse_many(text, len(found) * len(numbers))
        found = [f"{head}{number}{literal}" for head in found for number in numbers]
    return found


def _numbers(text: str, inside: str) -> list[str]:
    found: list[str] = []
    for part in inside.split(","):
        match = _RANGE.fullmatch(part)
        if not match:
            raise UsageError(f"{text!r}: {part!r} is no number or range such as 0-3")
        first, last = match[1], match[2] or match[1]
        if max(len(first), len(last)) > len(str(MOST)) + 9 or not 0 <= int(last) - int(first) < MOST:
            raise UsageError(f"{text!r}: {part} is an empty or too long range")
        found += [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]
        _refuse_many(text, len(found))
    return found


def _refuse_many(text: str, names: int) -> None:
    if names > MOST:
        raise UsageError(f"{text[:40]!r} stands for more than {MOST} nodes")
