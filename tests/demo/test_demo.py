"""`nodectl demo` ends with a table, two figures and its JSON, all labelled emulated."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path

import msgspec
import pytest

from lab.node_demo import comparison, node_figures
from lab.node_demo.comparison import CASES, Case, Cell, Comparison, compare, experiments, table
from lab.node_demo.experiment import run as run_experiment
from nodectl.cli import main
from twin.machine import load_machine
from twin.programs.workload import load_workload


def test_the_demo_prints_its_table_and_leaves_plots_and_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shorter = tuple(msgspec.structs.replace(case, duration_s=case.duration_s / 6) for case in CASES)
    monkeypatch.setattr(comparison, "CASES", shorter)
    (tmp_path / "journal").mkdir()  # of an agent, say
    assert main(["demo", "--virtual", "--quick", "--runs", "2", "--seconds", "8", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "journal").is_dir() and any((tmp_path / "demo-journal").iterdir())
    printed = capsys.readouterr().out
    assert "EMULATED" in printed
    assert "virtual time, not served: requested" in printed
    for name in ("fixed", "firmware", "bdpo-gpu", "gpu-ladder", "bdpo-cpu-bounded", "oracle"):
        assert name in printed
    for figure in ("demo-over-time.png", "demo-energy-time.png"):
        assert (tmp_path / figure).read_bytes().startswith(b"\x89PNG")
    content = json.loads((tmp_path / "demo.json").read_text())
    assert content["emulated"] is True
    first = content["comparison"][0]
    assert [cell["policy"] for cell in first["cells"]] == ["fixed", "firmware", "bdpo-gpu", "gpu-ladder"]
    assert len(first["draws"]) == 2 and first["draws"][0] != first["draws"][1], "each run has other counter errors"
    assert "Means over 2 runs" in printed and "±" in next(line for line in printed.splitlines() if "gpu-ladder" in line)


def test_an_output_folder_that_cannot_be_made_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--out", "/proc/nowhere"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_savings_are_counted_against_the_highest_clock() -> None:
    (compared,) = compare([Case("curie", "stream", "cpu", 30.0)], runs=1)
    reference = compared.cells[0]
    assert (reference.policy, reference.saving, reference.slowdown) == ("fixed", 0.0, 0.0)
    bounded = next(cell for cell in compared.cells if cell.policy == "bdpo-cpu-bounded")
    assert bounded.saving > 0.0
    assert bounded.slowdown < 0.05
    assert len(table([compared])) == 2 + len(compared.cells) + 1
    assert "±" not in "".join(table([compared])), "one run has no interval"


def test_intervals_are_over_runs_on_nodes_that_differ_with_every_policy_on_the_same_ones() -> None:
    case = Case("curie", "stream", "cpu", 20.0)
    runs = [experiments(case, run) for run in range(3)]
    assert all(len({(each.seed, each.variation) for each in run}) == 1 for run in runs), "paired"
    assert len({run[0].seed for run in runs}) == len({run[0].variation.node for run in runs if run[0].variation}) == 3
    (compared,) = compare([case], runs=3)
    reference, bounded = compared.cells[0], compared.cells[2]
    assert (reference.saving, reference.half_interval["saving"]) == (0.0, 0.0)
    assert reference.half_interval["energy_j"] > 0.0, "the nodes differ"
    savings = [compare_once(case, run) for run in range(3)]
    assert bounded.saving == pytest.approx(sum(savings) / 3)
    assert bounded.half_interval["saving"] == pytest.approx(4.303 * statistics.stdev(savings) / math.sqrt(3))
    (line,) = (line for line in table([compared]) if "bdpo-cpu-bounded" in line)
    assert f"±{100 * bounded.half_interval['saving']:3.1f}" in line.replace("± ", "±")


def compare_once(case: Case, run: int) -> float:
    """What the bounded policy saves of the node's energy in this run."""
    fixed, _, bounded = (run_experiment(each) for each in experiments(case, run))
    return 1.0 - bounded.joules("node") / fixed.joules("node")


def test_a_policy_far_over_the_bound_is_still_in_its_panel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    far = Cell("bdpo-gpu", 1.2, 0.9, saving=0.1, node_saving=0.05, slowdown=0.2, against_firmware=None, share=0.5)
    compared = Comparison(Case("xh2415", "easywave", "gpu", 1.0), [], [far], 0.2, 0.03, front=[(0.03, 0.2)])
    plot = node_figures.pyplot()
    monkeypatch.setattr(plot, "close", lambda figure: None)
    node_figures.energy_against_time([compared], tmp_path / "figure.png")
    assert plot.gcf().axes[0].get_xlim()[1] > 20
    monkeypatch.undo()
    plot.close("all")


def test_regales_daemon_gets_a_phase_that_it_can_act_on() -> None:
    """SM occupancy under 10 % (REGALE D2.3 3.4), on a card that shows it."""
    machines = {case.workload: load_machine(case.machine) for case in CASES if case.side == "gpu"}
    occupancies = [
        phase.occupancy
        for name, machine in machines.items()
        if machine.gpu and machine.gpu.has_gpm
        for group in load_workload(name, machine).groups
        for phase in group.phases
        if phase.truth.on_gpu
    ]
    assert min(occupancies) < 0.10
