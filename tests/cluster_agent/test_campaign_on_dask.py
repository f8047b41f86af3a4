"""A campaign on a real Dask cluster of two worker processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from benchmarks.campaigns import POLICIES, cells_of, content, written
from cluster_agent.cli import main

distributed = pytest.importorskip("distributed", reason="distributed is missing: install nodectl[dask]")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Dask gives its workers variables (OMP_NUM_THREADS and others) by way of this process's own, and leaves them."""
    cluster = distributed.LocalCluster
    with mock.patch.dict(os.environ), cluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as made:
        yield made.scheduler_address


def test_two_hundred_cells_on_dask_have_the_bytes_of_a_serial_run(address: str, tmp_path: Path) -> None:
    file = written(tmp_path, POLICIES, range(32, 132, 2))
    assert main(["campaign", str(file), "--out", str(tmp_path / "dask"), "--dask", address]) == 0
    assert main(["campaign", str(file), "--out", str(tmp_path / "serial")]) == 0
    assert cells_of(tmp_path / "dask") == 200
    assert content(tmp_path / "dask") == content(tmp_path / "serial")


def test_a_cell_that_cannot_run_is_named_and_the_others_go_on(
    address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path, ("easy", "powercap"), (32,))
    assert main(["campaign", str(file), "--out", str(tmp_path / "out"), "--dask", address]) == 1
    error = capsys.readouterr().err
    assert "powercap__32: clusterctl replay: --policy powercap" in error
    assert cells_of(tmp_path / "out") == 1


def test_a_scheduler_that_is_not_there_is_said_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cluster_agent.campaigns.executors.PATIENCE_S", 0.5)
    file = written(tmp_path, ("easy",), (32,))
    assert main(["campaign", str(file), "--out", str(tmp_path / "out"), "--dask", "tcp://127.0.0.1:9"]) == 1
    assert "--dask tcp://127.0.0.1:9: no scheduler answers there" in capsys.readouterr().err
