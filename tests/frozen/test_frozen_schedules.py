"""The frozen schedules of KTH, Eurora and all samples, computed again. The others: ``tests.frozen.schedules``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from numpy._core import _multiarray_umath as numpys  # where NumPy lists what it found

from tests.frozen.schedules import LIST, hash_of, is_here, lines

ROOT = Path(__file__).parents[2]
VECTOR_UNITS = [name for name in numpys.__cpu_dispatch__ if numpys.__cpu_features__[name]]

SAMPLES = [(kept, options) for kept, options in lines() if options.startswith("samples/")]
"""All of logs that ship with nodectl, so that they run everywhere."""

RECORDED = [(kept, options) for kept, options in lines() if options.startswith(("swf/KTH", "eurora/"))]


def test_every_line_of_the_list_is_a_hash_and_options_that_occur_once() -> None:
    options = [options for _, options in lines()]
    assert len(options) == len(set(options)) > 500
    assert all(len(kept) == 16 and int(kept, 16) for kept, _ in lines())
    assert LIST.stat().st_size < 100_000


@pytest.mark.parametrize(("kept", "options"), SAMPLES, ids=[options for _, options in SAMPLES])
def test_a_schedule_of_a_sample_is_the_frozen_one(kept: str, options: str) -> None:
    assert hash_of(options) == kept


@pytest.mark.skipif(not all(is_here(one) for _, one in RECORDED), reason="needs recorded data: ../shared/data")
@pytest.mark.parametrize(("kept", "options"), RECORDED, ids=[options for _, options in RECORDED])
def test_a_schedule_of_a_recorded_log_is_the_frozen_one(kept: str, options: str) -> None:
    assert hash_of(options) == kept


def test_a_schedule_does_not_depend_on_the_processors_vector_unit() -> None:
    """NumPy and OpenBLAS choose their loops by the processor, and the last digits of some differ."""
    without = {"NPY_DISABLE_CPU_FEATURES": " ".join(VECTOR_UNITS), "OPENBLAS_CORETYPE": "Prescott"}
    command = [sys.executable, "-m", "tests.frozen.schedules", "samples/eurora-100.csv"]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | without, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_replay_that_decides_otherwise_has_another_hash() -> None:
    same = "samples/generated-500.swf --policy easy"
    assert hash_of(same) == hash_of(same) != hash_of("samples/generated-500.swf --policy fcfs")
