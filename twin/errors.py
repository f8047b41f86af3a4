"""The exception of the emulated node. Its message is one line that says what, where and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TwinError(Exception):
    """An invalid or unsupported machine, workload, key or request."""


def nearest(name: str, known: Iterable[str]) -> str:
    """`` (nearest: curie)`` for an unknown name, else all known names, in the form of ``nodectl.shell.errors.nearest``.

    The twin must not import nodectl, so it has its own copy.
    """
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if close:
        return f" (nearest: {close[0]})"
    return f" (known: {', '.join(names)})" if names else ""
