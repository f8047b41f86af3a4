"""The tables of a replay that was broken off: jobs that never started are rows with empty cells."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster_agent import library
from cluster_agent.replay import output_columns, outputs
from cluster_agent.replay.measures import measure, percentiles
from cluster_agent.replay.world_run import Result
from cluster_agent.scheduler.native.native_replay import NativeReplay
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.world import World
from cluster_agent.workloads.job_log import prepare
from cluster_agent.workloads.swf import read_swf

SHIPPED = str(Path(__file__).parents[2] / "cluster_agent" / "samples" / "generated-500.swf")
LOG = """\
7 0 -1 100 4 -1 -1 4 100 -1 1 3 -1 -1 -1 -1 -1 -1
8 1 -1 10 4 -1 -1 4 10 -1 1 4 -1 -1 -1 -1 -1 -1
9 2 -1 10 4 -1 -1 4 10 -1 1 4 -1 -1 -1 -1 -1 -1
"""


@pytest.fixture
def broken_off(tmp_path: Path) -> Result:
    path = tmp_path / "a,b.swf"
    path.write_text(LOG)
    workload = prepare(read_swf(str(path)), 4)
    schedule = NativeReplay(Composition(), workload.jobs, 4)
    assert schedule.run(1), "jobs are left"
    return Result(World(workload), schedule)


def test_a_job_that_never_started_has_empty_cells(broken_off: Result, tmp_path: Path) -> None:
    outputs.write_into(tmp_path, broken_off, {}, {})
    rows = list(csv.DictReader((tmp_path / "jobs.csv").read_text().splitlines()))
    assert [row["final_state"] for row in rows] == ["COMPLETED_SUCCESSFULLY", "COMPLETED_SUCCESSFULLY", "NOT_STARTED"]
    assert all(None not in row and None not in row.values() for row in rows), "as many cells as columns"
    assert {name for name, value in rows[2].items() if value} == {
        *("job_id", "workload_name", "submission_time", "requested_number_of_resources", "requested_time"),
        *("success", "final_state"),
    }
    assert rows[0]["workload_name"] == "a_b"


def test_the_parquet_table_has_nulls_where_the_csv_is_empty(broken_off: Result, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is missing: install pyarrow")
    outputs.write_into(tmp_path, broken_off, {}, {})
    row = parquet.read_table(tmp_path / "jobs.parquet").to_pylist()[2]
    assert (row["starting_time"], row["waiting_time"], row["stretch"]) == (None, None, None)
    assert (row["final_state"], row["reason"], row["success"]) == ("NOT_STARTED", "not started", False)


def test_groups_of_jobs_and_kept_words_end_in_no_other_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is missing: install pyarrow")
    result, tables = library.replay(library.World(SHIPPED), "easy-sjbf"), []
    for group, chunk, words in ((1 << 16, 1 << 14, 1 << 17), (7, 3, 12), (500, 500, 0)):
        monkeypatch.setattr(outputs, "GROUP_ROWS", group)
        monkeypatch.setattr(outputs, "CHUNK_ROWS", chunk)
        monkeypatch.setattr(output_columns, "MOST_WORDS", words)
        (folder := tmp_path / str(group)).mkdir()
        outputs.write_into(folder, result, {}, {})
        groups = parquet.ParquetFile(folder / "jobs.parquet").num_row_groups
        assert groups == -(-len(result.jobs) // group)
        tables.append(((folder / "jobs.csv").read_bytes(), parquet.read_table(folder / "jobs.parquet").to_pylist()))
    assert tables[0] == tables[1] == tables[2]
    assert [row["allocated_resources"] for row in tables[0][1]] == result.columns()["allocated_resources"].tolist()


def test_the_metrics_count_the_jobs_that_did_not_start(broken_off: Result) -> None:
    measured = measure(broken_off)
    assert (measured["jobs"], measured["ended"], measured["unstarted"]) == (3, 1, 2)


@given(st.lists(st.integers(0, 10**9) | st.floats(0, 1e9), min_size=1, max_size=40))
def test_percentiles_are_those_of_numpy_bit_for_bit(values: list[float]) -> None:
    assert percentiles(np.array(values), 0.5, 0.95) == np.percentile(values, [50, 95]).tolist()
