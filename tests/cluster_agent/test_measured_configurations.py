"""From the jobs that have run to the rows that rmap and moldable choose among."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from random import Random

import pytest

from cluster_agent.cli import main
from cluster_agent.commands.learning import history
from cluster_agent.errors import ClusterError
from cluster_agent.history.job_history import HistoryRow
from cluster_agent.history.measured_configurations import NodeParts, measured_configurations

PARTS = NodeParts(cores=16, cap_w=230.0, rest_w=30.0, packages=2)
MACHINE = """
name = "site"
summary = "four nodes"

[[nodes]]
count = 4
cores = 16
idle_w = 40
rest_w = 30
frequency_mhz = [3000]
busy_w = [230]
"""


def ran(
    nodes: int, cap_w: float | None, run_s: float, watts: float | None, name: str = "cfd", **more: object
) -> HistoryRow:
    given: dict[str, object] = {"state": "done", "cores": 8} | more
    return HistoryRow("1", "ada", name, nodes, 0.0, 0.0, run_s, run_s, watts=watts, cap_w=cap_w, **given)  # type: ignore[arg-type]


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[HistoryRow]:
    """On two nodes a low cap takes twice as long with fewer joules, on four nodes no cap helps: worse in both."""
    found = [ran(2, cap, run_s, watts) for cap, run_s, watts in ((230.0, 100.0, 460.0), (128.0, 180.0, 250.0))] * 3
    found += [ran(4, 230.0, 185.0, 900.0)] * 3
    monkeypatch.setattr(history, "rows_since", lambda place, request: found)
    return found


def test_time_is_the_median_and_watts_are_those_of_the_packages_by_time() -> None:
    found = measured_configurations(
        [ran(2, 221.0, 100.0, 400.0), ran(2, 230.0, 110.0, 420.0), ran(2, 229.0, 400.0, 300.0)], PARTS, 3, 10.0
    )
    assert len(found) == 1
    row, runs = found[0].row, found[0].runs
    assert (row.nodes, row.cores, row.cap_w, row.time_s, runs) == (2, 8, 100.0, 110.0, 3)
    assert row.watts == pytest.approx((400 * 100 + 420 * 110 + 300 * 400) / 610 - 2 * 30.0)


def test_what_says_nothing_of_an_application_does_not_count() -> None:
    good = [ran(1, 230.0, 100.0, 200.0)] * 2
    for other in (
        ran(1, 230.0, 1.0, 200.0, state="failed"),
        ran(1, 230.0, 1.0, None),
        ran(1, 230.0, 1.0, 200.0, is_shared=True),
        ran(1, 230.0, 0.0, 200.0),
        ran(1, 230.0, 1.0, 200.0, name=""),
        ran(2, 230.0, 1.0, 400.0),
    ):
        found = measured_configurations([*good, other], PARTS, 2, 10.0)
        assert [(one.row.time_s, one.runs) for one in found] == [(100.0, 2)], other
    whole = measured_configurations([ran(1, None, 9.0, 200.0, cores=0)], PARTS, 1, 10.0)[0].row
    assert (whole.cores, whole.cap_w) == (16, 100.0), "without a cap and without cores: all that the node has"


def test_the_front_is_what_no_other_beats_in_time_and_joules() -> None:
    rng = Random(7)
    for _ in range(50):
        some = [
            ran(1, float(rng.randrange(40, 230, 10)), float(rng.randrange(1, 9)), rng.uniform(40, 90)) for _ in range(8)
        ]
        found = measured_configurations(some, PARTS, 1, 10.0)
        beaten = {
            id(one)
            for (other, one) in permutations([measured.row for measured in found], 2)
            if (other.time_s <= one.time_s and other.energy_j < one.energy_j)
            or (other.time_s < one.time_s and other.energy_j <= one.energy_j)
        }
        assert [one.is_on_front for one in found] == [id(one.row) not in beaten for one in found]


def test_a_node_whose_packages_would_draw_nothing_is_refused() -> None:
    with pytest.raises(ClusterError, match="rest_w = 30 of the machine file is too high"):
        measured_configurations([ran(2, 230.0, 10.0, 59.0)], PARTS, 1, 10.0)


@pytest.mark.parametrize(("front", "kept"), [([], 3), (["--front"], 2)])
def test_the_table_is_one_that_a_replay_chooses_from(
    rows: list[HistoryRow], tmp_path: Path, capsys: pytest.CaptureFixture[str], front: list[str], kept: int
) -> None:
    machine, table, log = tmp_path / "site.toml", tmp_path / "table.csv", tmp_path / "one.swf"
    machine.write_text(MACHINE)
    given = ["history", "configurations", str(table), "--machine", str(machine), "--packages", "2", *front]
    assert main(given) == 0
    assert f"{kept} configurations of 1 applications" in capsys.readouterr().out
    lines = table.read_text().splitlines()
    assert lines[1:3] == ["cfd,2,8,100.0,100.0,400.0", "cfd,2,8,50.0,180.0,190.0"] and len(lines) == 1 + kept
    table.write_text(table.read_text().replace("cfd,", "1,"))  # a log has numbers of applications
    log.write_text("1 0 -1 100 32 -1 -1 32 400 -1 1 1 1 1 1 -1 -1 -1\n")
    out = tmp_path / "out"
    replay = ["replay", str(log), "--policy", "moldable:rule=energy,slowdown=2", "--machine", str(machine)]
    assert main([*replay, "--cap", "1000", "--configurations", str(table), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "makespan 180 s" in said and "highest 190 W" in said, "the row of fewest joules"


@pytest.mark.parametrize(
    ("given", "said"),
    (
        (["table.txt"], "must end in .csv"),
        (["table.csv", "--least", "0"], "must be above 0"),
        (["table.csv", "--step", "nan"], "must be above 0"),
        (["table.csv", "--least", "4"], "no application ran 4 times"),
        (["none/table.csv"], "cannot write"),
    ),
)
def test_bad_input_is_one_line_and_writes_nothing(
    rows: list[HistoryRow], tmp_path: Path, capsys: pytest.CaptureFixture[str], given: list[str], said: str
) -> None:
    machine = tmp_path / "site.toml"
    machine.write_text(MACHINE)
    assert main(["history", "configurations", str(tmp_path / given[0]), *given[1:], "--machine", str(machine)]) != 0
    printed = capsys.readouterr().err.strip()
    assert said in printed and "\n" not in printed
    assert [one.name for one in tmp_path.iterdir()] == ["site.toml"]
