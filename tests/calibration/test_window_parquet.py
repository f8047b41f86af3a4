"""The windows behind a table, as Parquet next to it."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from calibration.commands.calibrate_run import measure
from calibration.commands.result_files import refuse_existing
from calibration.kernels.port import FMA
from calibration.measure.node_session import LEVELS, SessionError, open_session
from calibration.table.adaptive_sweep import Aim
from calibration.table.table_exchange import WINDOW_COLUMNS, WINDOW_SCHEMA, windows_path
from calibration.table.table_file import read_table
from foundation.shell.errors import UsageError
from lab.emulated.emulated_kernels import emulated_kernels
from nodectl.calibrated.node_identity import Identity
from twin.in_process_node import InProcess
from twin.machine import load_machine
from twin.physics.model import Twin


def measured(folder: Path) -> tuple[Path, list[str]]:
    """A table of a minute, and what the command said."""
    path, said = folder / "node.toml", list[str]()
    with InProcess(Twin(load_machine("taurus"))) as node:
        port = emulated_kernels(node.twin)
        with open_session(node.ports, port, str(folder / "state")) as session:
            assert measure(session, [FMA], Aim(budget_s=30.0), path, said.append) == 0
    return path, said


def test_every_window_of_a_table_stands_in_parquet_with_units_and_whose_it_is(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pip install 'nodectl[export]'")
    path, said = measured(tmp_path)
    assert said[-2:] == [f"written: {path}", f"written: {tmp_path / 'node.parquet'}"]
    assert sorted(one.name for one in tmp_path.iterdir()) == ["node.parquet", "node.toml", "state"]
    table, windows = read_table(path), parquet.read_table(windows_path(path))
    assert windows.num_rows == table.quality.windows
    units = {field.name: (field.metadata or {}).get(b"unit", b"").decode() for field in windows.schema}
    assert units == {name: unit for name, (_, unit) in WINDOW_COLUMNS.items()}
    said_of_file = {name.decode(): value for name, value in windows.schema.metadata.items()}
    assert msgspec.json.decode(said_of_file["nodectl.identity"], type=Identity) == table.identity
    assert msgspec.json.decode(said_of_file["nodectl.schema"]) == WINDOW_SCHEMA
    assert msgspec.json.decode(said_of_file["nodectl.units"]) == table.units
    rows = windows.to_pylist()
    idle = [row for row in rows if row["stay"] is None]
    assert np.mean([sum(row["package_w"]) for row in idle]) == pytest.approx(table.conditions.idle_package_w)
    for level in LEVELS:
        (top,) = (point for point in table.of("fma", level) if point.khz == 2301000)
        own = [row for row in rows if (row["level"], row["limit_khz"]) == (level, 2301000)]
        assert len(own) == top.windows and {row["cores"] for row in own} == {top.cores}
        assert np.mean([sum(row["dram_w"]) for row in own]) == pytest.approx(top.dram_w, rel=0.01)
        assert np.mean([row["khz"] for row in own]) == pytest.approx(top.clock_khz, rel=0.01)


def test_without_pyarrow_the_table_is_written_and_a_line_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    earlier = tmp_path / "node.parquet"
    earlier.write_text("of another table")
    path, said = measured(tmp_path)
    assert said[-1] == f"{earlier} is not written: it needs pyarrow (pip install 'nodectl[export]')"
    assert read_table(path).points and not earlier.exists()


def test_windows_that_cannot_be_replaced_are_one_line_and_what_was_measured_is_kept(tmp_path: Path) -> None:
    (tmp_path / "node.parquet").mkdir()
    with pytest.raises(SessionError, match=r"node\.parquet: cannot be replaced: Is a directory"):
        measured(tmp_path)
    assert (tmp_path / "node.toml.partial").exists() and not (tmp_path / "node.toml").exists()


def test_windows_of_somebody_else_are_not_replaced_unasked(tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    windows_path(path).write_text("mine")
    with pytest.raises(UsageError, match=r"node\.parquet: is there already"):
        refuse_existing(path, False, windows_path(path))
    with pytest.raises(UsageError, match=r"the table is TOML, .*name it node\.toml"):
        refuse_existing(windows_path(path), True, windows_path(path))
