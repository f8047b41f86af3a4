"""The frozen schedules of KTH, Eurora and all samples, computed again, and those of the plain-Python references.

All lines, those of large logs too: ``python -m tests.frozen.schedules`` (two minutes).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from numpy._core import _multiarray_umath as numpys  # where NumPy lists what it found

pytest.importorskip("pyarrow.parquet", reason="pyarrow is missing: install pyarrow")

from tests.cluster_agent.test_published_schedules import JOB_BY_JOB
from tests.frozen import references
from tests.frozen.schedules import LIST, Line, hashes_of, lines

ROOT = Path(__file__).parents[2]
VECTOR_UNITS = [name for name in numpys.__cpu_dispatch__ if numpys.__cpu_features__[name]]

SAMPLES = [line for line in lines() if line.options.startswith("samples/")][::2]
"""Of logs that ship with nodectl, so that they run everywhere: every second one, the others by the command."""

RECORDED = [line for line in lines() if line.options.startswith(("swf/KTH", "eurora/"))][::2]

SWITCHING = [
    line
    for line in lines()
    if line.options.startswith("samples/")
    and ("closed-loop" in line.options or "idle_off_s" in line.options or "mode=shut" in line.options)
][::12]
"""Worlds for the sanitizers (``test_engine_sanitizers``): nodes that go off, budgets, caps, closed loops."""


def test_every_line_of_the_list_is_two_hashes_and_options_that_occur_once() -> None:
    options = [line.options for line in lines()]
    assert len(options) == len(set(options)) > 500
    assert all(len(one) == 16 and int(one, 16) for line in lines() for one in line.kept)
    assert LIST.stat().st_size < 100_000


@pytest.mark.parametrize("line", SAMPLES, ids=[line.options for line in SAMPLES])
def test_a_schedule_of_a_sample_is_the_frozen_one(line: Line) -> None:
    assert hashes_of(line.options) == line.kept


@pytest.mark.skipif(not all(line.trace.exists() for line in RECORDED), reason="needs recorded data: ../shared/data")
@pytest.mark.parametrize("line", RECORDED, ids=[line.options for line in RECORDED])
def test_a_schedule_of_a_recorded_log_is_the_frozen_one(line: Line) -> None:
    assert hashes_of(line.options) == line.kept


@pytest.mark.parametrize(("kept", "options"), references.lines())
def test_a_plain_python_reference_decides_as_it_did(kept: str, options: str) -> None:
    assert references.hash_of(options) == kept


def test_the_worlds_of_the_sanitizers_have_the_frozen_schedules() -> None:
    assert len(SWITCHING) > 5
    assert [line.options for line in SWITCHING if hashes_of(line.options) != line.kept] == []


def test_all_sixteen_published_schedules_are_in_the_list() -> None:
    """Job by job: ``test_published_schedules`` compares their waits with the published ones."""
    logs, policies = ("KTH-SP2", "CTC-SP2", "SDSC-SP2", "SDSC-BLUE"), JOB_BY_JOB.values()
    wanted = {f"sc15-backfilling/{log}.swf.gz --policy {policy}" for log in logs for policy in policies}
    assert len(wanted) == 16
    assert wanted <= {line.options for line in lines()}


def test_a_schedule_does_not_depend_on_the_processors_vector_unit() -> None:
    """NumPy and OpenBLAS choose their loops by the processor, and the last digits of some differ."""
    without = {"NPY_DISABLE_CPU_FEATURES": " ".join(VECTOR_UNITS), "OPENBLAS_CORETYPE": "Prescott"}
    command = [sys.executable, "-m", "tests.frozen.schedules", "samples/eurora-100.csv"]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | without, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_replay_that_decides_otherwise_has_another_hash() -> None:
    tight, wide = ("samples/cab-30.swf --policy rmap --machine cab64 --cap " + cap for cap in ("6500", "7000"))
    assert hashes_of(tight) == hashes_of(tight)
    assert hashes_of(tight).decided != hashes_of(wide).decided
    assert hashes_of(tight).drawn != hashes_of(wide).drawn
