"""``--cap rte:FILE:...``: little for the cluster when much is drawn in the country."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster_agent.cap_steps import FOREVER_S, Cap
from cluster_agent.cli import main
from cluster_agent.errors import WrongUseError
from cluster_agent.workloads.rte import rte_caps
from tests.recorded import RECORDED, needs_recorded

SAMPLE = str(Path(__file__).parents[2] / "cluster_agent" / "samples" / "generated-500.swf")
REAL = RECORDED / "rte-load" / "rte-eco2mix-15min-2008-2013.parquet"


@pytest.fixture
def table(tmp_path: Path) -> str:
    pa = pytest.importorskip("pyarrow", reason="pyarrow is missing: install pyarrow")
    pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is missing: install pyarrow")
    load = {"00:00": 50_000, "00:15": 60_000, "01:00": 40_000, "02:00": None, "03:00": 50_000}
    rows = {"local_date": ["2011-01-01"] * 5, "local_time": list(load), "load_mw": list(load.values())}
    pq.write_table(pa.table(rows), tmp_path / "load.parquet")
    return f"rte:{tmp_path / 'load.parquet'}"


def test_the_cap_is_lowest_where_the_load_is_highest_and_linear_between(table: str) -> None:
    """By the hour: 60, 40, nothing known, 50 GW."""
    assert rte_caps(f"{table}:begin=2011-01-01,days=1,least_w=1000,most_w=2000") == [
        Cap(0, 3600, 1000),
        Cap(3600, 10800, 2000),
        Cap(10800, FOREVER_S, 1500),
    ]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("least_w=2,most_w=1", "give least_w and most_w"),
        ("begin=2012-01-01,least_w=1,most_w=2", "has no load from 2012-01-01 on"),
        ("begin=new year,least_w=1,most_w=2", "begin=new year is not a date"),
        ("days=0,least_w=1,most_w=2", "days must be at least 1"),
        ("watts=3", "rte has no parameter 'watts'"),
    ],
)
def test_what_does_not_fit_is_said(table: str, given: str, said: str) -> None:
    with pytest.raises(WrongUseError, match=said):
        rte_caps(f"{table}:{given}")


def test_a_file_that_is_no_such_table_is_said_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for path, said in ((SAMPLE, "damaged Parquet file"), ("nowhere", "No such file")):
        given = ["--machine", "generic", "--policy", "powercap", "--cap", f"rte:{path}:least_w=1,most_w=2"]
        assert main(["replay", SAMPLE, *given]) == 2
        error = capsys.readouterr().err
        assert said in error and error.count("\n") == 1


@needs_recorded("rte-load")
def test_a_cluster_keeps_a_cap_that_follows_the_real_load(capsys: pytest.CaptureFixture[str]) -> None:
    cap = f"rte:{REAL}:begin=2012-02-06,days=3,least_w=3000,most_w=5000"
    given = ["--machine", "generic:nodes=16,cores=16", "--policy", "powercap", "--cap", cap]
    assert main(["replay", SAMPLE, *given]) == 0
    assert "above the cap 0 W s" in capsys.readouterr().out
