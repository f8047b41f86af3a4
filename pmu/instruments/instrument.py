"""What an instrument is: one object that registers columns (``pmu.layout.Column``).

Registered in ``pmu.instruments.registered``, it is in the layout, in each sweep, sample, journal and export and in
``nodectl doctor`` without a change to any of them. Most instruments are files with one number each and need only
``find``; another one brings an ``open`` of its own.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
import numpy as np

from pmu.decode import column_rules, decode_columns
from pmu.findings import Finding
from pmu.instruments.column_files import ColumnFiles
from pmu.layout import Column
from pmu.ports import Ports
from pmu.readings import Quality, Reading, type_i64


@dataclass(frozen=True, slots=True)
class Found:
    """What an instrument has on this node.

    ``columns`` are read by the loop. ``shown`` are for people only: too slow for the loop, or of no use to it.
    ``missing``: what this node lacks, and why.
    """

    columns: tuple[Column, ...]
    shown: tuple[Column, ...] = ()
    missing: tuple[Finding, ...] = ()


class OpenColumns(Protocol):
    """Columns that are being read."""

    def sweep(self, time_ns: int, out: type_i64) -> None:
        """Fill ``out`` ``[n_columns]``; RAW_MISSING where there is no reading. Never raises for want of one."""

    def errors(self) -> list[int]:
        """The errno of each column's last reading; 0 where it gave a number."""

    def close(self) -> None:
        """Close everything."""


@dataclass(frozen=True, slots=True)
class Instrument:
    """``name`` is that of its columns' ``instrument``. ``find`` never fails for want of the instrument."""

    name: str
    find: Callable[[Ports], Found]
    open: Callable[[Ports, Sequence[Column]], OpenColumns] = ColumnFiles


class ForPeople:
    """Every column of an instrument, open to be read when somebody wants to know."""

    def __init__(self, instrument: Instrument, ports: Ports) -> None:
        self.found = instrument.find(ports)
        self._columns = [_now(column) for column in (*self.found.columns, *self.found.shown)]
        self._rules = column_rules(self._columns)
        self._open = instrument.open(ports, self._columns)

    def findings(self) -> list[Finding]:
        """One line for each column, with what it shows, and for what is missing."""
        present = [_finding(column, reading) for column, reading in zip(self._columns, self.read(0), strict=True)]
        return [*present, *self.found.missing]

    def read(self, time_ns: int) -> list[Reading]:
        """One reading per column; a counter gives its total."""
        raw = np.empty(len(self._columns), np.int64)
        self._open.sweep(time_ns, raw)
        values, qualities = decode_columns(self._rules, raw, raw, 1.0)
        return [
            Reading(column.name, value, column.unit, time_ns, Quality(quality), _why(column, quality, shown, error))
            for column, value, quality, shown, error in zip(
                self._columns,
                values.tolist(),
                qualities.tolist(),
                raw.tolist(),
                self._open.errors(),
                strict=True,
            )
        ]

    def close(self) -> None:
        """Close everything."""
        self._open.close()


def _now(column: Column) -> Column:
    """The column as one that is read at once and shown as it stands."""
    kind = "level" if column.kind == "counter" else column.kind
    return msgspec.structs.replace(column, kind=kind, period_s=0.0)


def _finding(column: Column, reading: Reading) -> Finding:
    is_readable = reading.quality is not Quality.MISSING
    place = f"{column.source}: " if column.source else ""
    why = f"{place}{reading.why}" if reading.why else f"{reading.value:.0f} {reading.unit}".strip() + " now"
    return Finding(column.name, "sensor", True, is_readable, why=why)


def _why(column: Column, quality: int, raw: int, error: int) -> str:
    if quality == Quality.MISSING:
        return "no number" if error in (0, errno.EINVAL) else os.strerror(error)
    return f"shows {raw / column.per_unit:g} {column.unit}" if quality == Quality.CLIPPED else ""
