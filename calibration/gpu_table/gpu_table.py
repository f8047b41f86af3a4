"""The table of a program, or of our own kernels, on this node's GPUs: its file, and what people read of it."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Any, Final

import msgspec

from calibration.gpu_table.clock_sweep import Row
from calibration.kernels.port import GPU_KERNELS
from foundation.sealed_file import SealedFileError, sealed, sealed_text, write_whole
from foundation.shell.errors import plain_reason
from foundation.shell.text_table import render
from nodectl.calibrated.node_identity import Identity

SCHEMA: Final = 2
KNOWN_SCHEMAS: Final = (1, SCHEMA)
"""Tables of schema 1 are of one program, and their rows have no kernel."""

GPU_TABLE: Final = "gpus.toml"

BOUND: Final = 0.03
"""The slowdown within which the clock of the fewest joules is named: that of `gpu-ladder`."""

HEAD: Final = """\
# A program, or kernels, on the GPUs of one node, at each clock: watts of the cards and speed. Explained by
# `nodectl calibrate show`.
# The last line seals the text: a changed table is refused.
"""

_COLUMNS: Final = tuple(field.name for field in msgspec.structs.fields(Row))


class GpuTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """As its file has it. ``command``: the program, empty: kernels; ``cards``: how many ran it, of ``model``;
    ``has_units``: speeds are by units of work (reported progress), else by run time."""

    schema: int
    command: str
    model: str
    cards: int
    is_emulated: bool
    has_units: bool
    idle_w: float
    measured_at: str
    expires_at: str
    identity: Identity
    gpu_rows: tuple[Row, ...]

    @property
    def series(self) -> dict[str, tuple[Row, ...]]:
        """By kernel its rows; of a program's table one, of the name ``""``."""
        kernels = dict.fromkeys(row.kernel for row in self.gpu_rows)
        return {kernel: tuple(row for row in self.gpu_rows if row.kernel == kernel) for kernel in kernels}


def best(rows: tuple[Row, ...]) -> Row:
    """The clock of the fewest joules among those within ``BOUND``."""
    return min((row for row in rows if row.speed >= 1.0 / (1.0 + BOUND)), key=lambda row: row.joules)


def write_gpu_table(path: Path, table: GpuTable) -> None:
    """Write it whole, or leave what was there. ``SealedFileError`` if the disk refuses."""
    plain = msgspec.structs.asdict(table)
    rows, who = plain.pop("gpu_rows"), msgspec.structs.asdict(plain.pop("identity"))
    lines = [HEAD.rstrip(), *(f"{name} = {_value(value)}" for name, value in plain.items())]
    lines += [f"columns = {_value(list(_COLUMNS))}", "gpu_rows = ["]
    lines += [f"  {_value([getattr(row, name) for name in _COLUMNS])}," for row in rows]
    lines += ["]", "", "[identity]", *(f"{name} = {_value(value)}" for name, value in who.items())]
    write_whole(path, sealed("\n".join(lines) + "\n"))


def read_gpu_table(path: Path) -> GpuTable:
    """The table of a file; ``SealedFileError`` if it is none, is damaged or of a later version."""
    text = sealed_text(path)
    try:
        values = tomllib.loads(text)
        if values.get("schema") not in KNOWN_SCHEMAS:
            raise SealedFileError(f"{path}: schema {values.get('schema')} is not known here, up to {SCHEMA} is")
        columns = values.pop("columns", [])
        values["gpu_rows"] = [dict(zip(columns, row, strict=True)) for row in values.get("gpu_rows", ())]
        table = msgspec.convert(values, GpuTable)
        if reason := next(filter(None, map(_wrong_rows, table.series.values() or [()])), ""):
            raise ValueError(reason)
        return table
    except tomllib.TOMLDecodeError as error:
        raise SealedFileError(f"{path}: is no TOML: {error}") from None
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        raise SealedFileError(f"{path}: is no table of GPUs: {plain_reason(str(error))}") from None


def _wrong_rows(rows: tuple[Row, ...]) -> str:
    """Why no sweep can have written them; empty: one can."""
    clocks = [row.mhz for row in rows]
    if not rows or clocks != sorted(set(clocks)) or clocks[0] <= 0:
        return "its clocks are not one or more, rising from above 0 MHz"
    above_0 = [value for row in rows for value in (row.seconds, row.watts, row.speed, row.joules)]
    if not all(0 < value < math.inf for value in above_0) or rows[-1].speed != 1.0:
        return "seconds, watts, speeds and joules are numbers above 0, and the speed of the highest clock is 1"
    return ""


def is_gpu_table(path: Path) -> bool:
    """Whether a whole file is one, by its text."""
    return "\ngpu_rows = [" in sealed_text(path)


def gpu_lines(table: GpuTable) -> list[str]:
    """Where it is from, its rows, the clock of the fewest joules."""
    emulated = "EMULATED " if table.is_emulated else ""
    by = "progress that it reports" if table.has_units else "its run time"
    said = [
        f"{emulated}{table.cards} x {table.model}, {table.identity.node}, measured {table.measured_at}, expires"
        f" {table.expires_at}; idle {table.idle_w:.1f} W"
    ]
    for kernel, series in table.series.items():
        rows = [
            (
                str(row.mhz), f"{row.clock_mhz:.0f}", str(row.runs), f"{row.seconds:.1f}",
                f"{row.watts:.1f} +-{row.watts_half:.1f}", f"{row.speed:.3f} +-{row.speed_half:.3f}",
                f"{row.joules:.3f} +-{row.joules_half:.3f}",
            )
            for row in series
        ]  # fmt: skip
        least, speed = best(series), f"{table.command}: speed by {by}"
        if kernel:
            unit = next((one.unit for one in GPU_KERNELS if one.name == kernel), "units")
            speed = f"{kernel}: {series[-1].units_per_s:.3g} {unit}/s on all cards at {series[-1].mhz} MHz"
        said += [
            speed,
            render(("MHz", "found", "runs", "seconds", "cards W", "speed", "joules, of the highest clock's"), rows),
            f"fewest joules within a slowdown of {BOUND:.0%}: {least.mhz} MHz, {1 - least.joules:.1%} less,"
            f" {1 / least.speed - 1:.1%} slower",
        ]
    return [*said, "bias: watts are the cards' own; what their meters are wrong by is not in the intervals"]


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        if not math.isfinite(value):
            return "nan" if math.isnan(value) else "inf"
        text = f"{value:.7g}"
        return text if any(sign in text for sign in ".e") else f"{text}.0"
    if isinstance(value, str):
        return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")
    return f"[{', '.join(_value(one) for one in value)}]" if isinstance(value, list | tuple) else str(value)
