"""The errors of the cluster side: what a user can fix, in one line that says what, where and how."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from nodectl.shell.errors import NodectlError, nearest


class ClusterError(NodectlError):
    """The run failed: a trace that cannot be read, an output that cannot be written. Exit status 1."""


class StoppedError(ClusterError):
    """The user has stopped it (Ctrl-C). Exit status 130, as shells use it."""

    exit_status = 130


class WrongUseError(ClusterError):
    """The command line is wrong: a policy, parameter or machine that does not exist. Exit status 2."""

    exit_status = 2


def no_such_node(name: str, known: Iterable[str]) -> WrongUseError:
    """The error for a node name that does not exist."""
    return WrongUseError(f"no node is called {name!r}{nearest(name, known)} (`clusterctl nodes` lists them)")


_TYPES: Final = {
    "int": "a whole number", "float": "a number", "str": "text", "bool": "true or false", "array": "a list",
    "object": "a table", "null": "nothing",
}  # fmt: skip


def without_types(message: str) -> str:
    """A decoder's message without the names of Python's types: ``expected a number, got text``."""
    message = message.replace("Object missing required field", "Missing key")
    message = message.replace("Object contains unknown field", "Unknown key")
    return re.sub(r"`(\w+(?: \| \w+)*)`", _in_words, message)


def _in_words(found: re.Match[str]) -> str:
    names = found[1].split(" | ")
    return " or ".join(_TYPES[name] for name in names) if all(name in _TYPES for name in names) else found[0]
