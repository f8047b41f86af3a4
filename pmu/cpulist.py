"""The kernel's list format for sets of numbers, as in ``0-7,16-23`` (Documentation/admin-guide/cputopology.rst)."""

from __future__ import annotations

from collections.abc import Iterable

from pmu.driver_values import MOST_CPU


def parse_list(text: str) -> tuple[int, ...]:
    """Numbers of a list such as "0-3,8"; blanks separate too, as in cpufreq's ``related_cpus``. ValueError if bad,
    or above ``MOST_CPU``."""
    numbers: list[int] = []
    for part in text.replace(",", " ").split():
        first, dash, last = part.partition("-")
        low, high = int(first), int(last if dash else first)
        if not 0 <= low <= high <= MOST_CPU:
            raise ValueError(f"{part} is no range of CPUs")
        numbers.extend(range(low, high + 1))
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
