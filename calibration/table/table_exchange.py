"""A table in other formats: CSV both ways, the part of a machine file that it decides, and its windows as Parquet.

A sweep of somebody else's comes in as CSV with the columns ``kernel, level, cores, khz, units_per_s, package_w`` and,
where measured, ``dram_w, node_w, ipc, clock_khz``. It has no intervals, so none are claimed.

The Parquet file next to a table's TOML has the windows of every stay in their order, disturbed ones too. Idle windows
have no stay and no kernel. A field's metadata has its unit; the file's has the version of these columns, and what the
table says of the node and of the measurement.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from calibration.measure.node_session import LEVELS, Dwell, Window
from calibration.table.pstate_table import SCHEMA, Conditions, Point, Quality, Table
from calibration.table.uncore_values import uncore_values
from foundation.sealed_file import SealedFileError, write_whole
from foundation.shell.plain_text import read_text, rows_by_name
from nodectl.calibrated.node_identity import Identity

COLUMNS: Final = tuple(field.name for field in msgspec.structs.fields(Point))
NEEDED: Final = ("kernel", "level", "cores", "khz", "units_per_s", "package_w")
OPTIONAL: Final = ("dram_w", "node_w", "ipc", "clock_khz")
MOST_ROWS: Final = 100_000

WINDOW_SCHEMA: Final = 1

WINDOW_COLUMNS: Final = {
    "stay": ("int32", ""), "kernel": ("string", ""), "level": ("string", ""), "cores": ("int32", ""),
    "limit_khz": ("int64", "kHz"), "uncore_khz": ("int64", "kHz"), "begin_s": ("double", "s"),
    "seconds": ("double", "s"), "package_w": ("list", "W"), "dram_w": ("list", "W"), "node_w": ("double", "W"),
    "units_per_s": ("double", "units/s"), "khz": ("double", "kHz"), "ipc": ("double", "instructions/cycle"),
    "celsius": ("list", "C"), "is_disturbed": ("bool_", ""),
}  # fmt: skip
"""Type and unit. ``limit_khz``: requested; ``khz``: as found; ``uncore_khz``: null where it is as it was found; lists:
of each package."""


def csv_of(table: Table) -> str:
    """Its rows, with a line of names. ``clock``: whose limit ``khz`` is, of cores or of the uncore."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow((*COLUMNS, "clock"))
    for clock, points in (("core", table.points), ("uncore", table.uncore)):
        writer.writerows([*(getattr(point, name) for name in COLUMNS), clock] for point in points)
    return out.getvalue()


def table_from_csv(path: Path, identity: Identity, measured_at: str, expires_at: str) -> Table:
    """The table of an external sweep; ``SealedFileError`` names the line that is wrong."""
    try:
        found = _rows(path, read_text(path))
    except OSError as error:
        raise SealedFileError(f"{path}: cannot be read: {error.strerror}") from None
    rows: dict[tuple[str, str], dict[int, dict[str, float]]] = {}
    for number, row in found:
        kernel, level, values = _row(path, number, row)
        series = rows.setdefault((kernel, level), {})
        if int(values["khz"]) in series:
            raise SealedFileError(f"{path}:{number}: {kernel}, {level}, {values['khz']:.0f} kHz stands twice")
        series[int(values["khz"])] = values
    if not rows:
        raise SealedFileError(f"{path}: has no rows")
    points = tuple(point for (kernel, level), own in rows.items() for point in _points(kernel, level, own))
    has_meter = all(math.isfinite(point.node_w) for point in points)
    conditions = Conditions(False, measured_at, 0.0, has_meter, math.nan, math.nan, math.nan)
    remarks = (f"imported from {path.name}: an external sweep, without intervals",)
    quality = Quality(0, 0, len(points), math.inf, 1.0, (), remarks)
    units = {kernel: "units" for kernel, _ in rows}
    return Table(SCHEMA, expires_at, identity, conditions, quality, units, points)


def machine_part(table: Table) -> str:
    """What this table decides of a machine file (docs/twin.md), as TOML with a comment on what it does not."""
    who, cond = table.identity, table.conditions
    clocks = sorted({point.khz for point in table.points})
    busiest = max(table.points, key=lambda point: point.package_w)
    packages = max(who.packages, 1)
    watts, rest = _split(table)
    lines = [
        "# What a P-state table decides of a machine file (docs/twin.md). Not decided, since no kernel shows it:",
        "# voltages and leakage by temperature of single cores, caches, idle states, GPUs, event names, CPUID numbers.",
        f"# Measured {cond.measured_at}{' on an EMULATED node' if cond.is_emulated else ''}.",
        'name = "calibrated"',
        f"summary = {_text(f'{who.packages} x {who.cores // packages} cores, calibrated')}",
        "",
        "[cpu]",
        f"model_name = {_text(who.cpu_model)}",
        f"sockets = {who.packages}",
        f"cores_per_socket = {who.cores // packages}",
        f"threads_per_core = {max(who.threads // max(who.cores, 1), 1)}",
        "",
        "[frequency]",
        f"driver = {_text(who.driver)}",
        f"min_khz = {clocks[0]}",
        f"max_khz = {clocks[-1]}",
        f"steps_khz = {list(clocks)}",
    ]
    if bins := _turbo_bins(table):
        lines.append(f"# clocks as found at the highest request: {bins}")
    lines += ["", "[power]", f"# fitted: {busiest.package_w:.0f} W of packages under {busiest.kernel} at the top"]
    lines += [f"{name} = {value:.4g}" for name, value in {**watts, **rest}.items() if math.isfinite(value)]
    lines += _uncore(table)
    if cond.air_c:
        lines += ["", "[heat]", f"ambient_c = {np.mean(cond.air_c):.4g}"]
        lines += [f"{name} = {k:.4g}" for name, k in zip(("die_k_per_w", "sink_k_per_w"), cond.k_per_w, strict=False)]
    return "\n".join(lines) + "\n"


def _split(table: Table) -> tuple[dict[str, float], dict[str, float]]:
    """Watts that follow from the table alone: idle packages and DRAM, DRAM per GB/s, the rest of the node."""
    cond, packages = table.conditions, max(table.identity.packages, 1)
    found = {"uncore_idle_w": cond.idle_package_w / packages, "dram_idle_w": cond.idle_dram_w / packages}
    stream = [point for point in table.points if point.kernel == "stream" and math.isfinite(point.dram_w)]
    if stream:
        gbs = np.array([point.units_per_s for point in stream]) / 1e9
        slope = np.polyfit(gbs, [point.dram_w for point in stream], 1)[0] if np.ptp(gbs) > 0 else math.nan
        found["dram_w_per_gbs"] = float(slope)
    rest = cond.idle_node_w - cond.idle_package_w - (cond.idle_dram_w if math.isfinite(cond.idle_dram_w) else 0.0)
    return found, {"rest_w": rest}


def _uncore(table: Table) -> list[str]:
    """The uncore's clocks and its watts in a package, and how much of waiting follows it."""
    if not table.uncore:
        return []
    values, clocks = uncore_values(table.points, table.uncore), sorted({point.khz for point in table.uncore})
    lines = ["", "[uncore]", f"min_khz = {clocks[0]}", f"max_khz = {clocks[-1]}"]
    if "share" in values:
        lines.append(f"wait_share = {values['share']:.4g}")
    return [*lines, f"clock_w = {values['clock_w'] / max(table.identity.packages, 1):.4g}"]


def _turbo_bins(table: Table) -> str:
    found = []
    for kernel, level in table.series():
        top = table.of(kernel, level)[-1]
        if abs(top.clock_khz / top.khz - 1) > 0.01:
            found.append(f"{kernel}, {level} cores {top.clock_khz / 1e6:.2f} GHz")
    return "; ".join(found)


def _text(value: str) -> str:
    return msgspec.json.encode(value).decode()


def _rows(path: Path, text: str) -> list[tuple[int, dict[str, str]]]:
    names, found = rows_by_name(text)
    if missing := [name for name in NEEDED if name not in names]:
        raise SealedFileError(f"{path}:1: the column {missing[0]} is missing (needed: {', '.join(NEEDED)})")
    if unknown := [name for name in names if name not in (*NEEDED, *OPTIONAL)]:
        raise SealedFileError(f"{path}:1: unknown column {unknown[0]!r}")
    rows = list(found)
    if len(rows) > MOST_ROWS:
        raise SealedFileError(f"{path}: has more than {MOST_ROWS} rows")
    return rows


def _row(path: Path, number: int, row: Mapping[str, str]) -> tuple[str, str, dict[str, float]]:
    kernel, level = row["kernel"].strip(), row["level"].strip()
    if not kernel:
        raise SealedFileError(f"{path}:{number}: the kernel has no name")
    if level not in LEVELS:
        raise SealedFileError(f"{path}:{number}: level {level!r} is none of {', '.join(LEVELS)}")
    values: dict[str, float] = {}
    for name in (*NEEDED[2:], *OPTIONAL):
        text = row.get(name, "").strip()
        if not text and name in OPTIONAL:
            values[name] = math.nan
            continue
        try:
            values[name] = float(text)
        except ValueError:
            raise SealedFileError(f"{path}:{number}: {name}: {text!r} is no number") from None
        if not (0 < values[name] < 1e18):
            raise SealedFileError(f"{path}:{number}: {name}: {text} is not above 0")
        if name in ("cores", "khz") and values[name] < 1:
            raise SealedFileError(f"{path}:{number}: {name}: {text} is less than 1")
    return kernel, level, values


def _points(kernel: str, level: str, own: Mapping[int, Mapping[str, float]]) -> list[Point]:
    top = own[max(own)]
    found = []
    for khz in sorted(own):
        one = own[khz]
        watts = one["node_w"] if math.isfinite(one["node_w"]) else one["package_w"] + np.nan_to_num(one["dram_w"])
        found.append(
            Point(
                kernel=kernel,
                level=level,
                cores=int(one["cores"]),
                khz=khz,
                is_measured=True,
                windows=0,
                clock_khz=one["clock_khz"] if math.isfinite(one["clock_khz"]) else float(khz),
                package_w=one["package_w"],
                package_half=math.inf,
                model_half=0.0,
                dram_w=one["dram_w"],
                dram_half=math.inf,
                node_w=one["node_w"],
                node_half=math.inf,
                speed=one["units_per_s"] / top["units_per_s"],
                speed_half=math.inf,
                speed_model_half=0.0,
                units_per_s=one["units_per_s"],
                ipc=one["ipc"],
                ipc_half=math.inf,
                units_per_j=one["units_per_s"] / float(watts),
                units_per_j_half=math.inf,
            )
        )
    return found


def windows_path(table: Path) -> Path:
    """Where the windows of the table in this file are."""
    return table.with_suffix(".parquet")


def write_windows(path: Path, table: Table, idle: Sequence[Window], dwells: Sequence[Dwell]) -> str:
    """Write them whole; a line that says so, or what is missing. ``SealedFileError`` if the disk refuses."""
    try:
        import pyarrow as pa  # large, and only needed here
        import pyarrow.parquet
    except ModuleNotFoundError:
        return f"{path} is not written: it needs pyarrow (pip install 'nodectl[export]')"
    kinds = {"list": pa.list_(pa.float64()), "double": pa.float64()}
    fields = [
        pa.field(name, kinds.get(kind) or getattr(pa, kind)(), metadata={"unit": unit} if unit else None)
        for name, (kind, unit) in WINDOW_COLUMNS.items()
    ]
    schema = pa.schema(fields, metadata=_metadata(table))
    with pa.BufferOutputStream() as out:
        pyarrow.parquet.write_table(
            pa.Table.from_pylist(list(_window_rows(idle, dwells)), schema), out, compression="zstd"
        )
        write_whole(path, out.getvalue().to_pybytes())
    return f"written: {path}"


def _metadata(table: Table) -> dict[str, bytes]:
    plain = {
        "schema": WINDOW_SCHEMA, "measured_at": table.conditions.measured_at, "expires_at": table.expires_at,
        "is_emulated": table.conditions.is_emulated, "identity": table.identity, "units": table.units,
    }  # fmt: skip
    return {f"nodectl.{name}": msgspec.json.encode(value) for name, value in plain.items()}


def _window_rows(idle: Sequence[Window], dwells: Sequence[Dwell]) -> Iterator[dict[str, Any]]:
    for window in idle:
        yield msgspec.structs.asdict(window)
    for stay, dwell in enumerate(dwells):
        at = dwell.setting
        known = {"stay": stay, "kernel": at.kernel, "level": at.level, "cores": dwell.cores, "limit_khz": at.khz}
        known["uncore_khz"] = at.uncore_khz or None
        for window in dwell.windows:
            yield known | msgspec.structs.asdict(window)
