"""`make bench` knows every measurement, and every measurement it knows is there."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from benchmarks import cpu_savings
from benchmarks.__main__ import NAMES
from benchmarks.gpu_savings import Row, merit

FOLDER = Path(__file__).parent.parent / "benchmarks"


@pytest.mark.parametrize("name", NAMES)
def test_a_measurement_can_be_run_by_its_name(name: str) -> None:
    assert callable(importlib.import_module(f"benchmarks.{name}").main)


def test_no_measurement_is_forgotten() -> None:
    with_main = {path.stem for path in FOLDER.glob("*.py") if "\ndef main(" in path.read_text()}
    assert with_main - {"__main__"} == set(NAMES)


def test_a_set_of_parameters_is_preferred_for_its_slowdown_then_its_worst_share_then_its_mean() -> None:
    def runs(shares: tuple[float, float], slowdown: float = 0.03) -> list[Row]:
        return [Row("v100", "v100:RNN", 1, 0.2, {}, 0.5, 0.5 * share, slowdown, None, 300.0, 0.5) for share in shares]

    too_slow, unlucky, dull, best = runs((1.0, 1.0), 0.04), runs((0.25, 1.0)), runs((0.5, 0.75)), runs((0.5, 1.0))
    assert sorted([best, too_slow, dull, unlucky], key=merit) == [too_slow, unlucky, dull, best]
    assert merit(runs((0.5, 1.0))) == merit(runs((0.75, 0.75)))  # beyond what is required, only the mean counts


def test_cpu_savings_are_means_over_nodes_with_their_intervals_and_shares_count_where_something_can_be_saved() -> None:
    def row(workload: str, node: int, oracle: float, saving: float, slowdown: float) -> cpu_savings.Row:
        return cpu_savings.Row(
            "rome", workload, node, 0.2, "bdpo-cpu-bounded", None, True, oracle, 0.03, oracle, 0.03, saving, slowdown
        )

    found = cpu_savings.figures(
        [
            row("a", 1, 0.10, 0.08, 0.030), row("a", 2, 0.10, 0.09, 0.040),
            row("b", 1, 0.01, 0.00, 0.010), row("b", 2, 0.01, 0.01, 0.012),
        ]
    )  # fmt: skip
    assert (found.runs, found.worth, found.kept) == (4, 2, 0.75)
    assert found.saving == pytest.approx(0.045) and found.saving_half == pytest.approx(12.706 * 0.005, rel=1e-3)
    assert found.median_share == pytest.approx(0.85) and found.worst_share == pytest.approx(0.8)
    assert (found.worst_slowdown, found.elsewhere_slowdown, found.elsewhere_saving) == (0.040, 0.012, 0.0)
    one = cpu_savings.figures([row("a", 1, 0.10, 0.08, 0.03)])
    assert one.saving_half is None and "±" not in cpu_savings.text("one node", one)


def test_no_sequence_judges_that_parameters_were_chosen_on() -> None:
    judged = {name for line in cpu_savings.LINES for _, name in cpu_savings.cases(line, chosen=False, quick=False)}
    assert not judged & set(cpu_savings.CHOSEN_ON) and judged >= set(cpu_savings.JUDGED_MIXED)
