"""The kernel's list format for sets of numbers, as in ``0-7,16-23`` (Documentation/admin-guide/cputopology.rst)."""

from __future__ import annotations

from collections.abc import Iterable


def parse_list(text: str) -> tuple[int, ...]:
    """Numbers of a list such as "0-3,8"; blanks separate too, as in cpufreq's ``related_cpus``. ValueError if bad."""
    numbers: list[int] = []
    for part in text.replace(",", " ").split():
        first, dash, last = part.partition("-")
        numbers.extend(range(int(first), int(last) + 1) if dash else (int(first),))
    return tuple(numbers)


def format_list(numbers: Iterable[int]) -> str:
    """The shortest list with these numbers, ascending."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
