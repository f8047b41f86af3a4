"""A power cap as a step function of time, which becomes known step by step.

The file is CSV with a header line. It contains either windows, with no cap between them, or steps, each of which lasts
until the next, the last one for ever:

    from_s,to_s,watts,announced_s        from_s,watts
    7200,10800,1200000,0                 0,1500000
    ...                                  43200,900000

Times are seconds of the job log. ``announced_s`` (optional) is when the cap becomes known; without it everything is
known from the start. Steps with empty watts lift the cap.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from cluster_agent.errors import WrongUseError
from foundation.shell.plain_text import fields_by_line, read_text

FOREVER_S: Final = 2**62
WINDOWS: Final = ("from_s", "to_s", "watts")
STEPS: Final = ("from_s", "watts")


@dataclass(frozen=True, slots=True)
class Cap:
    """``watts`` for the whole cluster in [from_s, to_s), known from ``announced_s`` on."""

    from_s: int
    to_s: int
    watts: float
    announced_s: int = 0


def read_caps(text: str) -> list[Cap]:
    """The caps of a file, in order of time; ``WrongUseError`` with file and line for the first that is wrong."""
    (first_line, header), *rows = _rows(text) or [(1, [])]
    names = tuple(word.strip() for word in header)
    known = [(*form, *more) for form in (WINDOWS, STEPS) for more in ((), ("announced_s",))]
    if names not in known:
        wanted = " or ".join(",".join(form) for form in known[::2])
        raise WrongUseError(f"{text}:{first_line}: the first line must be {wanted}[,announced_s]")
    caps: list[Cap] = []
    for number, row in rows:
        where = f"{text}:{number}"
        cap = _cap(_numbers(where, names, row))
        if caps and "to_s" not in names:  # a step ends where the next begins
            caps[-1] = replace(caps[-1], to_s=cap.from_s)
            if cap.from_s <= caps[-1].from_s:
                raise WrongUseError(f"{where}: from_s {cap.from_s} is not after that of the line above; sort the lines")
        elif caps and cap.from_s < caps[-1].to_s:
            raise WrongUseError(
                f"{where}: from_s {cap.from_s} is before the end of the window above; sort or join them"
            )
        _check_times(where, cap)
        caps.append(cap)
    return [cap for cap in caps if cap.watts < float("inf")]


def _rows(path: str) -> list[tuple[int, list[str]]]:
    """The lines that are neither empty nor comments, with their numbers."""
    try:
        lines = fields_by_line(read_text(path))
        return [(number, row) for number, row in lines if any(row) and row[0][:1] != "#"]
    except OSError as error:
        raise WrongUseError(f"{path}: cannot read the caps: {error.strerror}") from None


def _cap(values: Mapping[str, float]) -> Cap:
    """The cap of one line, with an end or, of a step, without."""
    to_s, announced_s = int(values.get("to_s", FOREVER_S)), int(values.get("announced_s", 0))
    return Cap(int(values["from_s"]), to_s, values["watts"], announced_s)


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
