"""The one exception family of the node agent.

What a user can put right (a config key, a policy name, a locked file) is raised as one of these and ends as one line
on stderr; ``main`` prints no traceback for it. Expected conditions of a machine are rows of ``doctor``, not exceptions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

FEW: Final = 40
"""Ours: at most so many valid names are listed where none is close; a partition has more nodes than that."""

_TYPES: Final = {
    "int": "a whole number", "float": "a number", "str": "text", "bool": "true or false", "array": "a list",
    "object": "a table", "null": "nothing",
}  # fmt: skip
"""What msgspec calls the types of values, and what people call them."""


class NodectlError(Exception):
    """Something the user can act on; the message says what, where and what to do. ``exit_status`` as in the docs."""

    exit_status = 1


class UsageError(NodectlError):
    """The command or its configuration is wrong: nothing was started."""

    exit_status = 2


def plain_reason(message: str) -> str:
    """A message of msgspec as a clause for people: ``expected a whole number, got text``."""
    if missing := re.match(r"Object missing required field `([^`]+)`(.*)", message):
        return f"the key {missing[1]} is missing{missing[2].replace('`', '')}"
    plain = types_in_words(message)
    return (plain[:1].lower() + plain[1:]).replace("`", "")


def types_in_words(message: str) -> str:
    """The same message with what people call types in place of what msgspec calls them; other quoted names stay."""

    def words(quoted: re.Match[str]) -> str:
        names = quoted[1].split(" | ")
        return " or ".join(_TYPES[name] for name in names) if all(name in _TYPES for name in names) else quoted[0]

    return re.sub(r"`(\w+(?: \| \w+)*)`", words, message)


def nearest(word: str, known: Iterable[str]) -> str:
    """`` (nearest: NAME)`` for the valid name closest to ``word``, else all of them if they are ``FEW``."""
    import difflib  # for whoever has mistyped something; most processes live without

    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    if close:
        return f" (nearest: {close[0]})"
    return f" (known: {', '.join(names)})" if 0 < len(names) <= FEW else ""
