"""The table's file: one TOML text, whose last line is the SHA-256 of all before it.

One format that needs nothing but Python's own parser, and one file, so that no half of a pair can be missing: what is
cut off or changed is noticed by the last line. Rows are inline arrays, one line each, below the names of their columns;
``nodectl calibrate export --csv`` makes them a spreadsheet. ``uncore_rows`` have limits of the uncore in ``khz``; files
of schema 2 have none.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from calibration.table.pstate_table import READ_SCHEMAS, SCHEMA, Point, Table
from foundation.sealed_file import SealedFileError, sealed, sealed_text, write_whole
from foundation.shell.errors import plain_reason

HEAD: Final = """\
# P-state table of nodectl: watts and speed of one node's kernels at every clock. `nodectl calibrate show` explains it.
# The last line seals the text: a changed table is refused.
"""

_COLUMNS: Final = tuple(field.name for field in msgspec.structs.fields(Point))


def write_table(path: Path, table: Table) -> None:
    """Write it whole, or leave what was there. ``SealedFileError`` if the disk refuses."""
    write_whole(path, sealed(text_of(table)))


def read_table(path: Path) -> Table:
    """The table of a file; ``SealedFileError`` if it is none, is damaged or of a later version."""
    text = sealed_text(path)
    try:
        return table_of(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise SealedFileError(f"{path}: is no TOML: {error}") from None
    except (msgspec.ValidationError, SealedFileError) as error:
        raise SealedFileError(f"{path}: is no table: {plain_reason(str(error))}") from None


def table_of(values: dict[str, Any]) -> Table:
    """A table from parsed TOML."""
    if values.get("schema") not in READ_SCHEMAS:
        raise SealedFileError(f"schema {values.get('schema')} is not known here, {SCHEMA} is")
    columns = values.pop("columns", None)
    values["points"] = _rows(columns, values.pop("rows", None))
    values["uncore"] = _rows(columns, values.pop("uncore_rows", []))
    return msgspec.convert(values, Table)


def _rows(columns: Any, rows: Any) -> list[dict[str, Any]]:
    if not isinstance(columns, list) or not isinstance(rows, list) or any(not isinstance(c, str) for c in columns):
        raise SealedFileError("columns or rows are missing")
    if any(not isinstance(row, list) or len(row) != len(columns) for row in rows):
        raise SealedFileError("a row has another number of values than there are columns")
    return [dict(zip(columns, row, strict=True)) for row in rows]


def text_of(table: Table) -> str:
    """The text of a table, without its seal."""
    plain = msgspec.structs.asdict(table)
    lines = [HEAD, f"schema = {table.schema}", f"expires_at = {_value(table.expires_at)}"]
    lines.append(f"columns = {_value(list(_COLUMNS))}")
    for name, points in (("rows", table.points), ("uncore_rows", table.uncore)):
        lines.append(f"{name} = [")
        lines += [f"  {_value([getattr(point, column) for column in _COLUMNS])}," for point in points]
        lines.append("]")
    for name in ("units", "identity", "conditions", "quality"):
        values = plain[name] if isinstance(plain[name], dict) else msgspec.structs.asdict(plain[name])
        lines += ["", f"[{name}]", *_pairs(values)]
    for name, values in table.policies.items():
        lines += ["", f"[policies.{name}]", *_pairs(values)]
    return "\n".join(lines) + "\n"


def _pairs(values: dict[str, Any]) -> Iterator[str]:
    for name, value in values.items():
        yield f"{_value(name) if not name.replace('_', '').isalnum() else name} = {_value(value)}"


def _value(value: Any) -> str:
    """A value as TOML has it; floats with the digits that a meter can be right in."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        if math.isnan(value):
            return "nan"
        if math.isinf(value):
            return "inf" if value > 0 else "-inf"
        text = f"{value:.7g}"
        return text if any(sign in text for sign in ".e") else f"{text}.0"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")
    return f"[{', '.join(_value(one) for one in value)}]"
