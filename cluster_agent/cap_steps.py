"""A power cap as a step function of time, which becomes known step by step.

The file is CSV with a header line. It contains either windows, with no cap between them, or steps, each of which lasts
until the next, the last one for ever:

    from_s,to_s,watts,announced_s        from_s,watts
    7200,10800,1200000,0                 0,1500000
    ...                                  43200,900000

A third column of steps, ``cores``, may say how many cores are to be in use (``cores_of``); a cap has no use for it.

Times are seconds of the job log. ``announced_s`` (optional) is when the cap becomes known; without it everything is
known from the start. Steps with empty watts lift the cap.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import ceil, floor
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from cluster_agent.errors import WrongUseError
from foundation.shell.plain_text import fields_by_line, foreign_text

FOREVER_S: Final = 2**62
WINDOWS: Final = ("from_s", "to_s", "watts")
STEPS: Final = ("from_s", "watts")
PROFILE: Final = (*STEPS, "cores")
MOST_CORES: Final = 2**31
MOST_STEPS: Final = 100_000
"""Ours: lines of a profile of cores."""


class Cap(msgspec.Struct, frozen=True):
    """``watts`` for the whole cluster in [from_s, to_s), known from ``announced_s`` on."""

    from_s: int
    to_s: int
    watts: float
    announced_s: int = 0


def read_caps(path: str) -> list[Cap]:
    """The caps of a file, in order of time; ``WrongUseError`` with file and line for the first that is wrong."""
    return caps_of(path, read_bytes(path))


def read_bytes(path: str) -> bytes:
    """What the file has; ``WrongUseError`` if it cannot be read."""
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a NUL in a path
        raise WrongUseError(f"{path}: cannot read the steps: {getattr(error, 'strerror', None) or error}") from None


def caps_of(path: str, content: bytes) -> list[Cap]:
    """As ``read_caps``, of the file ``path`` with this content."""
    known = [(*form, *more) for form in (WINDOWS, STEPS) for more in ((), ("announced_s",))]
    wanted = f"{' or '.join(','.join(form) for form in known[::2])}[,announced_s]"
    names, rows = _table(path, content, (*known, PROFILE), wanted)
    caps: list[Cap] = []
    for where, values in rows:
        cap = _cap(values)
        if caps and "to_s" not in names:  # a step ends where the next begins
            caps[-1] = replace(caps[-1], to_s=cap.from_s)
            _check_order(where, caps[-1].from_s, cap.from_s)
        elif caps and cap.from_s < caps[-1].to_s:
            raise WrongUseError(
                f"{where}: from_s {cap.from_s} is before the end of the window above; sort or join them"
            )
        _check_times(where, cap)
        caps.append(cap)
    return [cap for cap in caps if cap.watts < float("inf")]


def cores_of(path: str, content: bytes) -> tuple[tuple[int, int], ...]:
    """(Second, cores, rounded up) of each line of a profile with this content; errors as of ``read_caps``. Its watts
    may be empty."""
    steps: list[tuple[int, int]] = []
    for where, values in _table(path, content, (PROFILE,), ",".join(PROFILE))[1]:
        from_s, cores = int(values["from_s"]), ceil(values["cores"])
        if cores >= MOST_CORES:
            raise WrongUseError(f"{where}: cores cannot be {cores}: give a number below {MOST_CORES}")
        if steps:
            _check_order(where, steps[-1][0], from_s)
        steps.append((from_s, cores))
    if not steps:
        raise WrongUseError(f"{path}: the profile has no line below its names")
    if len(steps) > MOST_STEPS:
        raise WrongUseError(f"{path}: {len(steps)} lines, and a profile of cores has at most {MOST_STEPS}; give fewer")
    return tuple(steps)


def as_kept(caps: Sequence[Cap], settle_s: float, aside_w: float) -> list[Cap]:
    """The caps as the ledger of a partition keeps them (``cluster.Kept``): ``aside_w`` of each is for others than the
    nodes, and a lower one is in force ``settle_s`` before it comes, but not before it is known. Seconds are whole: a
    lower cap begins early."""
    if not settle_s and not aside_w:
        return list(caps)
    early = [(max(floor(cap.from_s - settle_s), min(cap.announced_s, cap.from_s), 0), cap) for cap in caps]
    times_s = sorted({at_s for from_s, cap in early for at_s in (from_s, cap.from_s, cap.to_s)})
    kept: list[Cap] = []
    for from_s, to_s in pairwise(times_s):
        found = [cap for early_s, cap in early if early_s <= from_s < cap.to_s]
        if not found:
            continue
        least = min(found, key=lambda cap: cap.watts)
        cap = Cap(from_s, to_s, max(least.watts - aside_w, 0.0), least.announced_s)
        if kept and kept[-1] == replace(cap, from_s=kept[-1].from_s, to_s=from_s):
            kept[-1] = replace(kept[-1], to_s=to_s)
        else:
            kept.append(cap)
    return kept


def _table(
    path: str, content: bytes, known: Sequence[tuple[str, ...]], wanted: str
) -> tuple[tuple[str, ...], Iterator[tuple[str, dict[str, float]]]]:
    """The columns, which must be some that are ``known``, and of each line where it is and its numbers."""
    (first_line, header), *rows = _rows(path, content) or [(1, [])]
    names = tuple(word.strip() for word in header)
    if names not in known:
        raise WrongUseError(f"{path}:{first_line}: the first line must be {wanted}")
    wheres = ((f"{path}:{number}", row) for number, row in rows)
    return names, ((where, _numbers(where, names, row)) for where, row in wheres)


def _rows(path: str, content: bytes) -> list[tuple[int, list[str]]]:
    """The lines that are neither empty nor comments, with their numbers."""
    try:
        lines = fields_by_line(foreign_text(content))
        return [(number, row) for number, row in lines if any(row) and row[0][:1] != "#"]
    except OSError as error:
        raise WrongUseError(f"{path}: cannot read the steps: {error.strerror}") from None


def _cap(values: Mapping[str, float]) -> Cap:
    """The cap of one line, with an end or, of a step, without."""
    to_s, announced_s = int(values.get("to_s", FOREVER_S)), int(values.get("announced_s", 0))
    return Cap(int(values["from_s"]), to_s, values["watts"], announced_s)


def _check_order(where: str, before_s: int, from_s: int) -> None:
    if from_s <= before_s:
        raise WrongUseError(f"{where}: from_s {from_s} is not after that of the line above; sort the lines")


def _check_times(where: str, cap: Cap) -> None:
    if cap.to_s <= cap.from_s:
        raise WrongUseError(f"{where}: to_s {cap.to_s} is not after from_s {cap.from_s}")
    if cap.announced_s > cap.from_s:
        raise WrongUseError(f"{where}: announced_s {cap.announced_s} is after from_s {cap.from_s}")


def _numbers(where: str, header: tuple[str, ...], row: list[str]) -> dict[str, float]:
    if len(row) != len(header):
        raise WrongUseError(f"{where}: {len(row)} values for the {len(header)} columns of the first line")
    values: dict[str, float] = {}
    for name, text in zip(header, row, strict=True):
        if name == "watts" and not text.strip():
            values[name] = float("inf")
            continue
        try:
            values[name] = float(text)
        except ValueError:
            raise WrongUseError(f"{where}: {name} cannot be {text!r}: a number is needed") from None
        if not 0 <= values[name] <= FOREVER_S:
            raise WrongUseError(f"{where}: {name} cannot be {text}: give a number from 0")
    return values
