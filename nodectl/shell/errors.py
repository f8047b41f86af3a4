"""The one exception family of the node agent.

What a user can put right (a config key, a policy name, a locked file) is raised as one of these and ends as one line
on stderr; ``main`` prints no traceback for it. Expected conditions of a machine are rows of ``doctor``, not exceptions.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

FEW: Final = 40
"""Ours: so many names are told to somebody who has typed none of them; a partition has more nodes than that."""


class NodectlError(Exception):
    """Something the user can act on; the message says what, where and what to do. ``exit_status`` as in the docs."""

    exit_status = 1


class UsageError(NodectlError):
    """The command or its configuration is wrong: nothing was started."""

    exit_status = 2


def nearest(word: str, known: Iterable[str]) -> str:
    """`` (nearest: NAME)`` for the valid name closest to ``word``, else all of them if they are ``FEW``."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    if close:
        return f" (nearest: {close[0]})"
    return f" (known: {', '.join(names)})" if 0 < len(names) <= FEW else ""
