"""The one exception of the emulated node: its message is a single line that says what, where and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TwinError(Exception):
    """A machine, workload, key or request that the emulated node cannot honour."""


def nearest(name: str, known: Iterable[str]) -> str:
    """`` (nearest: curie)`` for an unknown name, else all known ones: in the words of ``nodectl.shell.errors.nearest``.

    It stands here again because imports point one way: nodectl knows the twin, the twin does not know nodectl.
    """
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if close:
        return f" (nearest: {close[0]})"
    return f" (known: {', '.join(names)})" if names else ""
