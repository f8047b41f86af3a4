"""The demonstration of calibration: a node is measured, its curves are drawn, and policies run before and after."""

from __future__ import annotations

from pathlib import Path

import pytest

from calibration.table.pstate_table import Table
from calibration.table.table_file import write_table
from lab.node_demo import calibration_demo
from lab.node_demo.calibration_demo import Line, before_and_after, calibrated, demo_of_calibration, lines_of
from nodectl.cli import main


@pytest.fixture(scope="module")
def table() -> Table:
    return calibrated()


def test_what_the_table_says_makes_bdpo_cpu_save_on_stream_which_its_defaults_leave_alone(table: Table) -> None:
    reactive, bounded = before_and_after(table, 6.0, ("stream",))
    assert (reactive.policy, bounded.policy) == calibration_demo.POLICIES
    assert reactive.saved == pytest.approx(0.0, abs=0.005)
    assert reactive.saved_after > 0.02 and reactive.slower_after < 0.05


def test_every_figure_is_in_one_table() -> None:
    found = lines_of([Line("stream", "bdpo-cpu", 0.001, 0.002, 0.052, 0.026)])
    assert found[-1].split() == ["stream", "bdpo-cpu", "0.1", "5.2", "0.2", "2.6"]


def test_the_demonstration_leaves_table_picture_and_figures(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is missing: install nodectl[plots]")
    monkeypatch.setattr(calibration_demo, "calibrated", lambda: table)
    monkeypatch.setattr(calibration_demo, "WORKLOADS", ("stream",))
    said: list[str] = []
    assert demo_of_calibration(tmp_path, 2.0, True, said.append) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"pstates.toml", "pstates.svg", "calibration.json"}
    assert "<svg" in (tmp_path / "pstates.svg").read_text() and said[0].startswith("EMULATED")
    assert any("not served: requested" in line for line in said)


def test_a_picture_of_a_table_is_drawn_or_refused_in_one_line(
    table: Table, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is missing: install nodectl[plots]")
    file, picture = tmp_path / "t.toml", tmp_path / "t.png"
    write_table(file, table)
    assert main(["calibrate", "plot", str(file), "--out", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    capsys.readouterr()
    for out, said in ((tmp_path / "t.txt", "is no .png, .svg, .pdf"), (tmp_path / "none" / "t.svg", "No such file")):
        assert main(["calibrate", "plot", str(file), "--out", str(out)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert said in line
