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

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cluster_agent.errors import WrongUseError

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
    import csv  # only here: most replays have no file of caps

    try:
        content = Path(text).read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise WrongUseError(f"{text}: cannot read the caps: {reason}") from None
    rows = [
        (number, row)
        for number, row in enumerate(csv.reader(content.splitlines()), 1)
        if any(row) and row[0][:1] != "#"
    ]
    header = tuple(word.strip() for word in rows[0][1]) if rows else ()
    known = [(*names, *more) for names in (WINDOWS, STEPS) for more in ((), ("announced_s",))]
    if header not in known:
        wanted = " or ".join(",".join(names) for names in known[::2])
        raise WrongUseError(f"{text}:{rows[0][0] if rows else 1}: the first line must be {wanted}[,announced_s]")
    has_ends = header[1] == "to_s"
    caps: list[Cap] = []
    for number, row in rows[1:]:
        where = f"{text}:{number}"
        values = _numbers(where, header, row)
        from_s, watts = int(values["from_s"]), values["watts"]
        if not has_ends and caps:
            caps[-1] = Cap(caps[-1].from_s, from_s, caps[-1].watts, caps[-1].announced_s)
            if from_s <= caps[-1].from_s:
                raise WrongUseError(f"{where}: from_s {from_s} is not after that of the line above; sort the lines")
        if has_ends and caps and from_s < caps[-1].to_s:
            raise WrongUseError(f"{where}: from_s {from_s} is before the end of the window above; sort or join them")
        to_s = int(values["to_s"]) if has_ends else FOREVER_S
        if to_s <= from_s:
            raise WrongUseError(f"{where}: to_s {to_s} is not after from_s {from_s}")
        announced_s = int(values.get("announced_s", 0))
        if announced_s > from_s:
            raise WrongUseError(f"{where}: announced_s {announced_s} is after from_s {from_s}")
        caps.append(Cap(from_s, to_s, watts, announced_s))
    return [cap for cap in caps if cap.watts < float("inf")]


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
