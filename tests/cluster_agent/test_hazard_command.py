"""``clusterctl hazard judge`` on tables in the layout of M100 ExaData. The temperatures are EMULATED."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cluster_agent.cli import main
from cluster_agent.errors import WrongUseError
from cluster_agent.thermal_hazard.inlet_tables import read_inlets
from twin.room.room_failures import drawn
from twin.room.room_spec import read_room
from twin.room.room_year import year

pa = pytest.importorskip("pyarrow", reason="pyarrow is missing: pip install pyarrow")
pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is missing: pip install pyarrow")

START_S = 1_641_000_600  # 2022-01-01, in Unix seconds: a full quarter of an hour


def write(path: Path, when_s: Any, value: Any, node: Any) -> Path:
    """As the data set has them: milliseconds in UTC, degrees, names of nodes as text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    when = pa.array(np.asarray(when_s) * 1000, pa.int64()).cast(pa.timestamp("ms", "UTC"))
    columns = {"timestamp": when, "value": pa.array(value)} | ({"node": pa.array(node)} if node is not None else {})
    pq.write_table(pa.table(columns), path)
    return path


def test_readings_are_averaged_over_quarters_of_an_hour_by_node(tmp_path: Path) -> None:
    folder = tmp_path / "year_month=22-01" / "plugin=ipmi_pub" / "metric=ambient"
    write(folder / "a_0.parquet", START_S + np.array([0, 20, 0, 900]), [20.0, 22.0, 30.0, 25.0], ["1", "1", "2", "1"])
    write(folder / "a_1.parquet", START_S + np.array([40, 2700, 0]), [24.0, 18.0, 31.0], ["1", "3", "2"])
    found, nodes, left_out = read_inlets(tmp_path)
    assert nodes == ["1", "2", "3"] and left_out == 0 and found.start_s == START_S
    expected = [[22.0, 30.5, None], [25.0, None, None], [None, None, None], [None, None, 18.0]]
    assert [[None if np.isnan(cell) else cell for cell in row] for row in found.inlet_c.tolist()] == expected


def test_what_no_room_has_is_left_out_and_counted(tmp_path: Path) -> None:
    file = write(tmp_path / "a.parquet", [START_S] * 5, [20.0, 255.0, -300.0, float("nan"), None], ["1"] * 5)
    found, _, left_out = read_inlets(file)
    assert found.inlet_c.tolist() == [[20.0]] and left_out == 3


@pytest.mark.parametrize(
    ("value", "node", "says"),
    [
        ([20.0], None, "no column node"),
        (["warm"], ["1"], "no table of temperatures"),
        ([250.0], ["1"], "no temperature from"),
    ],
)
def test_a_table_that_is_none_is_refused_by_name(tmp_path: Path, value: Any, node: Any, says: str) -> None:
    file = write(tmp_path / "a.parquet", [START_S], value, node)
    with pytest.raises(WrongUseError, match=f"{file}.*{says}"):
        read_inlets(file)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"timestamp,value,node\n"])
def test_a_file_that_is_no_parquet_is_refused_in_one_line(
    tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.parquet"
    file.write_bytes(content)
    assert main(["hazard", "judge", str(file)]) == 2
    told = capsys.readouterr()
    assert str(file) in told.err and told.err.count("\n") == 1 and told.out == ""


def test_too_few_days_and_an_odd_share_are_wrong_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "a.parquet", [START_S, START_S + 86_400], [20.0, 21.0], ["1", "1"])
    for arguments, says in (
        ([str(file)], "takes 28"),
        ([str(file), "--share", "5"], "--share 5"),
        ([str(tmp_path / "b")], "b"),
    ):
        assert main(["hazard", "judge", *arguments]) == 2
        assert says in capsys.readouterr().err


def test_a_site_judges_the_prediction_on_its_own_readings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failures = drawn("fouling", 60 * 24.0, 30.0, 4, 2) + drawn("drift", 60 * 24.0, 20.0, 4, 3)
    inlet_c = year(read_room(), "command", failures, 60 * 86_400.0).inlet_c[:, ::4]
    steps, nodes = inlet_c.shape
    when_s = START_S + 900 * np.repeat(np.arange(steps), nodes)
    names = np.tile([f"r{node}" for node in range(nodes)], steps)
    write(tmp_path / "metric=ambient" / "a_0.parquet", when_s, inlet_c.ravel(), names)
    assert main(["hazard", "judge", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["nodes"] == 36 and found["missing"] == 0.0 and found["days"] == 60.0
    assert found["logistic regression"]["f1"] > found["last value"]["f1"]
    assert found["logistic regression"]["rate"] == found["last value"]["rate"] > 0.05
