"""From a row to what a page prints of it."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from benchmarks.publishing.rows import OUT, Row

_T = TypeVar("_T")


def left(name: str) -> Any:
    """What a measurement has left in out/bench/."""
    return msgspec.json.decode((OUT / f"{name}.json").read_bytes())


def typed(row: Row, kind: type[_T]) -> _T:
    return msgspec.convert({key: value or None for key, value in row.items()}, kind, strict=False)


def percent(value: float, digits: int = 0) -> str:
    return f"{100 * value:.{digits}f} %".replace("-", "−")


def signed(value: float, digits: int = 0) -> str:
    """With its sign; 0 has none."""
    return "0" if digits == 0 and round(value) == 0 else f"{value:+.{digits}f}".replace("-", "−")


def three(value: float) -> str:
    """Three digits."""
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f}"


def grouped(value: float) -> str:
    """Thousands apart from 10 000 on."""
    return f"{value:,.0f}".replace(",", " ") if value >= 9999.5 else f"{value:.0f}"
