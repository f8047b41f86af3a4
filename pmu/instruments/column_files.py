"""Columns whose ``source`` is a file with one decimal number.

A chip on a slow bus takes a millisecond to read and changes over seconds. Columns with a ``period_s`` are therefore
read once in that time, spread evenly over it, so that no single sweep waits for all of them; in between the last
reading is repeated. The first sweep reads everything.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pmu.instruments.kept import keep_integers
from pmu.layout import Column
from pmu.ports import Ports
from pmu.readings import RAW_MISSING, type_i64


class ColumnFiles:
    """The files of some columns, kept open. One that cannot be opened or read gives RAW_MISSING and keeps its errno."""

    def __init__(self, ports: Ports, columns: Sequence[Column]) -> None:
        quick = [row for row, column in enumerate(columns) if not column.period_s]
        slow = [row for row, column in enumerate(columns) if column.period_s]
        self._quick, self._slow = np.array(quick, np.int64), slow
        self._quick_files = keep_integers(ports.files, [columns[row].source for row in quick])
        self._slow_files = [keep_integers(ports.files, [columns[row].source]) for row in slow]
        self._periods_ns = [round(columns[row].period_s * 1e9) for row in slow]
        self._last = np.full(len(columns), RAW_MISSING, np.int64)
        self._quick_raw = np.empty(len(quick), np.int64)
        self._due_ns: list[int] = []  # of each slow file; empty before the first sweep
        self._next_due_ns = 0

    def sweep(self, time_ns: int, out: type_i64) -> None:
        """Fill ``out`` ``[n_columns]``."""
        if self._quick.size:
            self._quick_files.sweep(self._quick_raw)
            self._last[self._quick] = self._quick_raw
        if self._slow and (not self._due_ns or time_ns >= self._next_due_ns):
            self._read_due(time_ns)
        out[:] = self._last

    def errors(self) -> list[int]:
        """The errno of each column's last reading; 0 where it gave a number."""
        errors = dict(zip(self._quick.tolist(), self._quick_files.errors(), strict=True))
        errors |= {row: files.errors()[0] for row, files in zip(self._slow, self._slow_files, strict=True)}
        return [errors[row] for row in range(len(self._last))]

    def close(self) -> None:
        """Close the files."""
        self._quick_files.close()
        for files in self._slow_files:
            files.close()

    def _read_due(self, time_ns: int) -> None:
        is_first = not self._due_ns
        if is_first:
            self._due_ns = [time_ns] * len(self._slow)
        for i, (row, files, period_ns) in enumerate(zip(self._slow, self._slow_files, self._periods_ns, strict=True)):
            if time_ns >= self._due_ns[i]:
                files.sweep(self._last[row : row + 1])
                self._due_ns[i] = time_ns + (period_ns * (i + 1) // len(self._slow) if is_first else period_ns)
        self._next_due_ns = min(self._due_ns)
