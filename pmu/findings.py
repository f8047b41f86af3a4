"""One instrument or knob as it was found: what ``nodectl doctor`` lists."""

from __future__ import annotations

import msgspec

from pmu.driver_values import digits
from pmu.ports import Files


class Finding(msgspec.Struct, frozen=True):
    """An instrument or knob. ``kind``: "counter", "energy", "limit", "frequency", "sensor" or "gpu".

    ``why`` says in one line what is missing and what would help, or where the reading comes from.
    """

    name: str
    kind: str
    present: bool
    readable: bool = False
    writable: bool = False
    locked: bool = False
    why: str = ""


def absent(name: str, kind: str, why: str) -> Finding:
    """Something this node does not have."""
    return Finding(name, kind, present=False, why=why)


def read_or_none(files: Files, path: str) -> str | None:
    """The stripped text of a file; None if it cannot be read."""
    try:
        return files.read(path).strip()
    except OSError:
        return None


def read_number(files: Files, path: str) -> int | None:
    """The integer in a file; None if it cannot be read, is no integer or needs more than 64 bits."""
    text = read_or_none(files, path)
    if text is None:
        return None
    number = digits(text.removeprefix("-"))
    return -number if number is not None and text.startswith("-") else number
