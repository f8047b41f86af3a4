"""Jobs as columns by name: a dictionary of arrays, a DataFrame, an Arrow table, ``Jobs``, or rows of a generator.

Columns become the lines of a log, or the rows of a table with nodes, so that jobs from memory are read like those of a
file: what cannot have run is dropped, what is imprecise corrected, and both are counted. A column that is itself wrong
(type, length, unit, NaN) is an error that names it and its row, counted from 0.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from cluster_agent.library.given import COLUMNS_PATH
from cluster_agent.scheduler.job_columns import RESOURCES, Bools, Int64s, Jobs
from cluster_agent.workloads import swf
from cluster_agent.workloads.job_log import LONGEST_S
from cluster_agent.workloads.swf import Finding, Log, TraceError
from foundation.shell.errors import nearest

if TYPE_CHECKING:
    from cluster_agent.scheduler.unlike_nodes.components import Components
    from cluster_agent.workloads.node_trace import NodeTrace

OF_LOG: Final = {
    "number": swf.NUMBER, "submit_s": swf.SUBMIT, "wait_s": swf.WAIT, "run_s": swf.RUN, "width": swf.WANTED,
    "request_s": swf.REQUEST, "memory_kib": swf.MEMORY_WANTED, "status": swf.STATUS, "user": swf.USER,
    "group": swf.GROUP, "application": swf.EXECUTABLE, "queue": swf.QUEUE, "partition": swf.PARTITION,
    "preceding": swf.PRECEDING, "think_s": swf.THINK,
}  # fmt: skip
"""Columns of a log of processors, and where they stand in it. ``watts`` and ``best_effort`` are two more."""

OF_NODES: Final = ("number", "name", "submit_s", "wait_s", "run_s", "request_s", "units", *RESOURCES, "watts",
                   "max_wait_s", "queue", "user", "text", "component_of")  # fmt: skip
"""Columns of a trace with nodes; ``cores`` to ``memory_kib`` are of all units of a job. Rows with the same text in
``component_of`` are the components of one job of that name, which start together; "": an ordinary job."""

UNKNOWN: Final = -1
"""Seconds that are not known, as in a log."""

NEEDED: Final = ("submit_s", "run_s")
TEXTS: Final = ("user", "group", "application", "queue", "partition")
"""Of a log: numbers, or texts, which get numbers in the order of the alphabet."""

_PER_SECOND: Final = np.timedelta64(1, "s")


class ColumnError(TraceError):
    """A column that cannot be used; the message names it and the first row that is wrong, from 0. ``row`` -1: none."""

    def __init__(self, column: str, row: int, problem: str) -> None:
        super().__init__(f"column {column}{f', row {row}' if row >= 0 else ''}: {problem}")
        self.column, self.row = column, row


def jobs_given(given: Any) -> dict[str, npt.NDArray[Any]]:
    """The columns by name, all of one length. ``ColumnError`` if they are not, or there is none of that name."""
    columns = _columns(given)
    on_nodes = "units" in columns
    known = OF_NODES if on_nodes else (*OF_LOG, "watts", "best_effort")
    for name in columns:
        if name not in known:
            raise ColumnError(name, -1, f"there is no such column{nearest(name, known)}; times are whole seconds (_s)")
    for name in (*NEEDED, "units" if on_nodes else "width"):
        if name not in columns:
            raise ColumnError(name, -1, f"it is missing; there are {', '.join(columns) or 'none'}")
    if on_nodes and "number" in columns and "name" in columns:
        raise ColumnError("name", -1, "there is a column number, too: give one of the two")
    _check_lengths(columns)
    return columns


def _check_lengths(columns: Mapping[str, npt.NDArray[Any]]) -> None:
    for name, column in columns.items():
        if column.ndim != 1:
            raise ColumnError(name, -1, f"it has {column.ndim} dimensions: give one value for each job")
    jobs = len(columns["submit_s"])
    for name, column in columns.items():
        if len(column) != jobs:
            raise ColumnError(name, -1, f"it has {len(column)} values, and submit_s has {jobs}: give as many")
    if not jobs:
        raise ColumnError("submit_s", -1, "it has no values: give at least one job")


def log_of(columns: Mapping[str, npt.NDArray[Any]]) -> Log:
    """A log of processors."""
    findings: list[Finding] = []
    jobs = len(columns["submit_s"])
    table = np.full((18, jobs), -1, np.int64)
    table[swf.NUMBER] = np.arange(1, jobs + 1)
    for name, column in columns.items():
        if name in OF_LOG:
            table[OF_LOG[name]] = _numbered(name, column) if name in TEXTS else _whole(name, column, findings)
    return Log(COLUMNS_PATH, _sha256(columns), {}, table, np.arange(jobs), tuple(findings))


def watts_given(columns: Mapping[str, npt.NDArray[Any]]) -> Mapping[int, float] | None:
    """The column ``watts`` of a log of processors by the jobs' numbers; NaN: unknown."""
    if "watts" not in columns:
        return None
    watts = _watts(columns["watts"])
    number = _whole("number", columns["number"], []) if "number" in columns else np.arange(1, len(watts) + 1)
    if (again := np.setdiff1d(np.arange(len(number)), np.unique(number, return_index=True)[1])).size:
        raise ColumnError(
            "number", int(again[0]), f"{number[again[0]]} is there twice: watts are of a job by its number"
        )
    known = ~np.isnan(watts)
    return dict(zip(number[known].tolist(), watts[known].tolist(), strict=True))


def best_effort_given(columns: Mapping[str, npt.NDArray[Any]]) -> Bools | None:
    """The column ``best_effort`` of a log of processors: 1, or true, of those that are; None: there is none."""
    if "best_effort" not in columns:
        return None
    column = columns["best_effort"]
    found = column.astype(np.int64) if column.dtype.kind == "b" else _whole("best_effort", column, [])
    if (wrong := np.flatnonzero((found != 0) & (found != 1))).size:
        raise ColumnError("best_effort", int(wrong[0]), f"{found[wrong[0]]}: give 1 for a best-effort job, else 0")
    return found.astype(np.bool_)


def trace_of(columns: Mapping[str, npt.NDArray[Any]], is_strict: bool) -> NodeTrace:
    """A trace with nodes: rows like those of sacct."""
    from cluster_agent.workloads.node_trace import NodeTraceBuilder  # only here: a log of processors needs none

    findings: list[Finding] = []
    builder = NodeTraceBuilder(COLUMNS_PATH, _sha256(columns), is_strict)
    jobs = len(columns["submit_s"])
    given: dict[str, Any] = {
        "wait_s": [0] * jobs, "queue": [""] * jobs, "watts": [None] * jobs, "request_s": [None] * jobs,
        "name": list(map(str, range(1, jobs + 1))),
    }  # fmt: skip
    for name, column in columns.items():
        given["name" if name == "number" else name] = _of_nodes(name, column, findings)
    for row in range(jobs):
        builder.add(row, lambda row=row: {name: values[row] for name, values in given.items()})  # type: ignore[misc]
    for finding in findings:
        builder.note(finding.first_line, finding.what, finding.done, finding.fix)
    return builder.finish()


def _of_nodes(name: str, column: npt.NDArray[Any], findings: list[Finding]) -> list[Any]:
    """A column of a trace with nodes as it takes it; None: not known."""
    if name in ("name", "queue", "user", "text"):
        return _texts(name, column)
    if name == "component_of":
        return [(text,) if text else () for text in _texts(name, column)]
    if name == "watts":
        return [None if np.isnan(one) else one for one in _watts(column).tolist()]
    values: list[int] = _whole(name, column, findings).tolist()
    if name == "number":
        return list(map(str, values))
    if name == "request_s":
        return [None if one == UNKNOWN else one for one in values]
    return [0 if one == UNKNOWN else one for one in values] if name == "wait_s" else values


def _columns(given: Any) -> dict[str, npt.NDArray[Any]]:
    if isinstance(given, Jobs):
        return _of_jobs(given)
    if isinstance(given, Mapping):
        return {str(name): _array(str(name), column) for name, column in given.items()}
    if hasattr(given, "column_names"):  # an Arrow table
        for at, name in enumerate(given.column_names):
            if name in given.column_names[:at]:
                raise ColumnError(name, -1, "there are two columns of that name: give one")
        return {name: _array(name, given.column(name).to_numpy(zero_copy_only=False)) for name in given.column_names}
    if hasattr(given, "columns") and hasattr(given, "iloc"):  # a DataFrame
        return {str(name): _array(str(name), given[name].to_numpy()) for name in given.columns}
    if isinstance(given, Iterable):
        return _of_rows(list(given))
    raise TraceError(f"jobs cannot be {type(given).__name__}: give a file, columns by name, or rows by name")


def _of_rows(rows: list[Any]) -> dict[str, npt.NDArray[Any]]:
    for at, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise TraceError(f"jobs, row {at}: it is {type(row).__name__}: give columns by name, or rows by name")
        if odd := row.keys() ^ rows[0].keys():
            raise ColumnError(str(min(map(str, odd))), at, "it is only in some of the rows: give it in all or in none")
    return {str(name): _array(str(name), [row[name] for row in rows]) for name in rows[0]} if rows else {}


def _of_jobs(jobs: Jobs) -> dict[str, npt.NDArray[Any]]:
    names = ("number", "submit_s", "run_s", "request_s", "width", "user")
    if not jobs.has_units:
        of_all = () if jobs.best_effort is None else ("best_effort",)
        return {name: getattr(jobs, name) for name in (*names, *of_all)}
    found: dict[str, npt.NDArray[Any]] = {name: getattr(jobs, name) for name in names if name != "width"}
    found |= {"units": jobs.units, "watts": np.where(jobs.knows_watts, jobs.watts, np.nan)}
    if jobs.components is not None:
        return _of_components(jobs, jobs.components, found)
    return found | dict(zip(RESOURCES, jobs.total().T, strict=True))


def _of_components(jobs: Jobs, components: Components, of_jobs: dict[str, npt.NDArray[Any]]) -> dict[str, Any]:
    """A row for each component, with the share of the job's watts that its units have."""
    job = components.job
    found = {name: column[job] for name, column in of_jobs.items()}
    found |= {"units": components.units, "watts": found["watts"] * components.units / jobs.units[job]}
    several = components.count[job] > 1
    name = [str(number) if is_one else "" for number, is_one in zip(found["number"], several, strict=True)]
    whole = components.need * components.units[:, None]
    return found | dict(zip(RESOURCES, whole.T, strict=True)) | {"component_of": np.array(name)}


def _array(name: str, column: Any) -> npt.NDArray[Any]:
    try:
        found = np.asarray(column)
        kinds = set(map(type, column)) if isinstance(column, list | tuple) and found.ndim == 1 else set()
        if len(kinds) > 1 and kinds & {str, bool}:  # of which NumPy would make values of one type
            found = np.fromiter(column, object, len(column))
        if found.dtype.hasobject and all(type(one) in (int, float) for one in found.tolist()):
            return np.asarray(found.tolist())  # numbers of a nullable column
    except (TypeError, ValueError, OverflowError):
        raise ColumnError(name, -1, "its values make no array: give one number or text for each job") from None
    mask = np.broadcast_to(column.mask, found.shape) if hasattr(column, "filled") else False  # an array of numpy.ma
    if (masked := np.flatnonzero(mask)).size:
        raise ColumnError(name, int(masked[0]), "it is masked: give -1 where it is unknown")
    return found


def _whole(name: str, column: npt.NDArray[Any], findings: list[Finding]) -> Int64s:
    """Whole numbers; fractions are cut, as those of a log's lines."""
    if column.dtype.kind in "mM":
        column = _seconds(name, column)
    if column.dtype.kind in "iu":
        return _checked_times(name, column)
    if column.dtype.kind != "f":
        raise _wrong_type(name, column, "whole seconds or datetime64" if name == "submit_s" else "whole numbers")
    column = column.astype(np.float64, copy=False)
    if (wrong := np.flatnonzero(~np.isfinite(column))).size:
        raise ColumnError(name, int(wrong[0]), f"{column[wrong[0]]} is no number: give -1 where it is unknown")
    if (wrong := np.flatnonzero(np.abs(column) >= 2.0**63)).size:
        raise ColumnError(name, int(wrong[0]), f"{column[wrong[0]]:g} is too large for a whole number")
    cut = column.astype(np.int64)
    if (odd := np.flatnonzero(cut != column)).size:
        fix = "round the column to whole numbers"
        findings.append(Finding(f"jobs with fractions in {name}", "cut to whole numbers", odd.size, int(odd[0]), fix))
    return _checked_times(name, cut)


def _checked_times(name: str, column: npt.NDArray[Any]) -> Int64s:
    most = LONGEST_S if name.endswith("_s") else 2**63 - 1
    if (wrong := np.flatnonzero(column > most)).size:
        unit = "s: are these other units? Give whole seconds" if name.endswith("_s") else "is too large"
        raise ColumnError(name, int(wrong[0]), f"{column[wrong[0]]} {unit}")
    return column.astype(np.int64, copy=False)


def _seconds(name: str, column: npt.NDArray[Any]) -> Int64s:
    """Durations, or of ``submit_s`` moments, in seconds since 1970."""
    wanted = "mM" if name == "submit_s" else "m"
    if column.dtype.kind not in wanted or not name.endswith("_s"):
        raise _wrong_type(name, column, "seconds" if name.endswith("_s") else "whole numbers")
    if (wrong := np.flatnonzero(np.isnat(column))).size:
        raise ColumnError(name, int(wrong[0]), "NaT is no time: give -1 s where it is unknown")
    try:
        if column.dtype.kind == "M":
            return (column - np.datetime64(0, "s")) // _PER_SECOND
        if np.datetime_data(column.dtype)[0] != "generic":
            return column // _PER_SECOND
    except (TypeError, OverflowError):  # of years and months, or of far more than a log has
        pass
    raise ColumnError(
        name, -1, f"it is {column.dtype}: give times that are a number of seconds, such as timedelta64[s]"
    )


def _floats(name: str, column: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    if column.dtype.kind not in "iuf":
        raise _wrong_type(name, column, "numbers")
    return column.astype(np.float64)


def _watts(column: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Above 0; NaN: unknown."""
    watts = _floats("watts", column)
    if (wrong := np.flatnonzero(~np.isnan(watts) & ~((watts > 0) & np.isfinite(watts)))).size:
        raise ColumnError("watts", int(wrong[0]), f"{watts[wrong[0]]:g} W: give watts above 0, or NaN where unknown")
    return watts


def _texts(name: str, column: npt.NDArray[Any]) -> list[str]:
    """Texts as they are, and whole numbers as texts."""
    if column.dtype.kind in "OU":
        for row, value in enumerate(column.tolist()):
            if isinstance(value, bool) or not isinstance(value, str | int):
                raise ColumnError(name, row, f"{value!r} is {type(value).__name__}: give numbers or texts")
        return list(map(str, column.tolist()))
    return list(map(str, _whole(name, column, []).tolist()))


def _numbered(name: str, column: npt.NDArray[Any]) -> Int64s:
    """Numbers as they are; of texts the places in the order of the alphabet."""
    if column.dtype.kind not in "OU":
        return _whole(name, column, [])
    for row, value in enumerate(column.tolist()):
        if not isinstance(value, str):
            raise ColumnError(name, row, f"{value!r} is {type(value).__name__}: give numbers or texts")
    return np.unique(column.astype(str), return_inverse=True)[1].astype(np.int64)


def _wrong_type(name: str, column: npt.NDArray[Any], wanted: str) -> ColumnError:
    """Names the first value that is no number, if there is one."""
    for row, one in enumerate(column.tolist() if column.dtype.kind not in "mM" else ()):
        if isinstance(one, bool) or not isinstance(one, int | float):
            return ColumnError(name, row, f"{one!r} is {type(one).__name__}: give {wanted}")
        if isinstance(one, int) and abs(one) >= 2**63:
            return ColumnError(name, row, "it is too large for a whole number")
    return ColumnError(name, -1, f"it is {column.dtype}: give {wanted}")


def _sha256(columns: Mapping[str, npt.NDArray[Any]]) -> str:
    """Of the content, as a file would have one."""
    digest = hashlib.sha256()
    for name in sorted(columns):
        column = columns[name]
        digest.update(name.encode())
        is_plain = not column.dtype.hasobject
        digest.update(np.ascontiguousarray(column).view(np.uint8).data if is_plain else repr(column.tolist()).encode())
    return digest.hexdigest()
