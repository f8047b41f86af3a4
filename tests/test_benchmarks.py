"""`make bench` knows every measurement, and every measurement it knows is there."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

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
