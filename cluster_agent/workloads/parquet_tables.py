"""Columns of a Parquet file that somebody else wrote: read as plain values, or refused in one line.

A Parquet file may have any columns, of any type, of unequal meaning: text that is no UTF-8, times that no calendar has,
pages that are damaged. pyarrow has an exception of its own for each, and Python's for values it cannot make.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from cluster_agent.workloads.swf import TraceError

OF_VALUES: Final = (ValueError, TypeError, ArithmeticError, LookupError, NotImplementedError)
"""What Python raises where a value cannot be made: of text, times, decimals, types."""

LONGEST_REASON: Final = 300
"""Ours: characters of what pyarrow says of a damaged file; it quotes whole schemas."""


def read_columns(
    path: str, names: Sequence[str], others: Sequence[str] = (), only: tuple[str, str] | None = None
) -> dict[str, list[Any]]:
    """The columns ``names``, and those of ``others`` that there are, all of the same length. ``only``: a column of
    ``names`` and what must stand there; other rows are left out.

    ``TraceError`` if there is no such file, if it is no Parquet, or if it lacks one of ``names``.
    """
    try:
        import pyarrow.lib
        import pyarrow.parquet as pq  # large, and only needed here
    except ModuleNotFoundError:
        from foundation.shell.command_line import distribution  # only here: a short replay is as long as its imports

        raise TraceError(f"{path}: reading Parquet needs pyarrow; pip install '{distribution()}[export]'") from None
    try:
        with open(path, "rb") as file, pq.ParquetFile(file) as found:
            there = found.schema_arrow.names
            if missing := [name for name in names if there.count(name) != 1]:
                raise TraceError(_lacks(path, missing, there))
            wanted = [*names, *(name for name in others if there.count(name) == 1)]
            table = found.read(wanted, use_threads=False)
            if only is not None:
                is_so = [str(one) == only[1] for one in table.column(only[0]).to_pylist()]
                table = table.filter(pyarrow.lib.array(is_so, pyarrow.lib.bool_()))
            return {name: table.column(name).to_pylist() for name in wanted}
    except OSError as error:
        raise TraceError(f"{path}: {_short(error.strerror or str(error))}; name a readable table") from None
    except (pyarrow.lib.ArrowException, *OF_VALUES) as error:
        raise TraceError(f"{path}: damaged Parquet file ({_short(str(error))}); make it again") from None


def _lacks(path: str, missing: Sequence[str], there: Sequence[str]) -> str:
    """In one line that is not too long: ``there`` is somebody else's."""
    return f"{path}: no column {', '.join(missing)}, or several; there are {_short(', '.join(map(str, there)))}"


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= LONGEST_REASON else f"{text[:LONGEST_REASON]}..."
