"""Names of nodes as people write them: ``n[0-3,7]`` stands for n0, n1, n2, n3 and n7 (as Slurm and ClusterShell)."""

from __future__ import annotations

import re
from typing import Final

from nodectl.shell.errors import UsageError

MOST: Final = 100_000
_RANGE: Final = re.compile(r"(\d+)(?:-(\d+))?")


def expanded(text: str) -> list[str]:
    """The names that ``text`` stands for, in its order; ``UsageError`` if it is none. Leading zeros are kept."""
    head, bracket, rest = text.partition("[")
    if not bracket:
        return [text]
    inside, closing, tail = rest.partition("]")
    if not closing or "[" in tail or "]" in tail:
        raise UsageError(f"{text!r} is no list of nodes such as n[0-3,7]")
    found: list[str] = []
    for part in inside.split(","):
        match = _RANGE.fullmatch(part)
        if not match:
            raise UsageError(f"{text!r}: {part!r} is no number or range such as 0-3")
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first) or int(last) - int(first) >= MOST:
            raise UsageError(f"{text!r}: {part} is an empty or too long range")
        found += [f"{head}{number:0{len(first)}d}{tail}" for number in range(int(first), int(last) + 1)]
    return found
