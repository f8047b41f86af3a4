"""`make bench` knows every measurement, and every measurement it knows is there."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from benchmarks.__main__ import NAMES

FOLDER = Path(__file__).parent.parent / "benchmarks"


@pytest.mark.parametrize("name", NAMES)
def test_a_measurement_can_be_run_by_its_name(name: str) -> None:
    assert callable(importlib.import_module(f"benchmarks.{name}").main)


def test_no_measurement_is_forgotten() -> None:
    with_main = {path.stem for path in FOLDER.glob("*.py") if "\ndef main(" in path.read_text()}
    assert with_main - {"__main__"} == set(NAMES)
