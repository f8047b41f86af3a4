"""What a replay decided, as a record that names no type of the scheduler: read from the files that the command writes.

``decided``: starts, ends, processors or nodes with their units, estimates and their corrections, who overtook,
frequencies or configurations, kills, and how many passes it took. ``drawn``: the watts with which jobs were admitted
and those that they drew, the cluster's watts and cap over time, and joules.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cluster_agent.cli import main

DECIDED: Final = (
    *("job_id", "submission_time", "requested_number_of_resources", "starting_time", "finish_time"),
    *("final_state", "allocated_resources", "first_estimate", "corrections", "reason"),
    *("frequency_mhz", "kills", "lost_processor_s", "nodes", "cores_per_node", "cap_w"),
)
"""Columns of jobs.parquet; a replay has those that it knows."""
DRAWN: Final = ("consumed_energy", "admitted_w", "drawn_w", "drawn_w_known")
DECIDED_MEASURES: Final = ("jobs", "ended", "unstarted", "passes", "longest_queue", "boots", "plans")
DRAWN_MEASURES: Final = ("energy_j", "idle_j", "off_j", "switching_j", "wasted_j", "window_j")
LATE_S: Final = 1 << 40
"""After the last end: the state there has the nodes of every job."""


class Hashes(NamedTuple):
    """Of ``decided`` and of ``drawn``."""

    decided: str
    drawn: str


class NotReplayedError(Exception):
    """The command refused, with its line."""


def replayed(arguments: Sequence[str], folder: Path, has_nodes: bool) -> Hashes:
    """The hashes of ``clusterctl replay ARGUMENTS``. ``has_nodes``: of a trace whose jobs get units on nodes."""
    out, state = folder / "out", folder / "state.json"
    more = ["--state-out", str(state), "--state-at", str(LATE_S)] if has_nodes else []
    said = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        status = main(["replay", *arguments, "--out", str(out), *more])
    if not (out / "jobs.parquet").exists():
        raise NotReplayedError(f"status {status}: {said.getvalue().strip()}")
    jobs, measures = pq.read_table(out / "jobs.parquet"), json.loads((out / "metrics.json").read_text())
    decided = _columns(jobs, DECIDED) + _measures(measures, DECIDED_MEASURES)
    decided += [json.dumps([job.get("nodes") for job in json.loads(state.read_text())["jobs"]])] if has_nodes else []
    drawn = _columns(jobs, DRAWN) + _measures(measures, DRAWN_MEASURES)
    if (out / "power.parquet").exists():
        drawn += _columns(pq.read_table(out / "power.parquet"), ("time", "watts", "cap"))
    return Hashes(_hash(decided), _hash(drawn))


def _columns(table: Any, names: Sequence[str]) -> list[str | bytes]:
    """Each column's name and values, in one type for whole numbers and one for others."""
    found: list[str | bytes] = []
    for name in names:
        if name in table.column_names:
            found += [name, *_values(table.column(name).combine_chunks())]
    return found


def _values(column: Any) -> list[str | bytes]:
    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.dictionary_decode(), pa.string()
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return ["\n".join(column.fill_null("").to_pylist())]
    is_whole = pa.types.is_integer(kind) or pa.types.is_boolean(kind)
    known = pc.is_valid(column).to_numpy(zero_copy_only=False)
    values = column.cast(pa.int64() if is_whole else pa.float64()).fill_null(0).to_numpy(zero_copy_only=False)
    return [known.tobytes(), np.ascontiguousarray(values).tobytes()]


def _measures(measures: Mapping[str, Any], names: Sequence[str]) -> list[str | bytes]:
    return [json.dumps({name: measures[name] for name in names if name in measures})]


def _hash(parts: Sequence[str | bytes]) -> str:
    found = hashlib.sha256()
    for part in parts:
        found.update(part.encode() if isinstance(part, str) else part)
        found.update(b"\0")
    return found.hexdigest()[:16]
