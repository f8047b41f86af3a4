"""Programs that know nothing of the twin: gpustat and nvitop, unmodified, in a process of their own."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

Runner = Callable[..., subprocess.CompletedProcess[str]]


def needs(module: str) -> pytest.MarkDecorator:
    missing = importlib.util.find_spec(module) is None
    return pytest.mark.skipif(missing, reason=f"{module} is missing: install it (pip install {module})")


@needs("gpustat")
def test_gpustat_shows_the_emulated_cards(run_in_node: Runner, write_state: Any, cards: Any) -> None:
    write_state(cards)
    result = run_in_node(sys.executable, "-m", "gpustat", "--json")
    assert result.returncode == 0, result.stderr
    shown = json.loads(result.stdout)
    assert shown["driver_version"] == "570.86.15"
    card = shown["gpus"][0]
    assert card["name"] == "NVIDIA A100-SXM4-80GB"
    assert (card["temperature.gpu"], card["utilization.gpu"], card["power.draw"]) == (61, 97, 251)
    assert (card["enforced.power.limit"], card["memory.total"], card["memory.used"]) == (400, 81920, 1024)
    assert [gpu["processes"] for gpu in shown["gpus"]] == [[], [], []]


@needs("gpustat")
def test_gpustat_reports_a_lost_card_and_shows_the_others(
    run_in_node: Runner, write_state: Any, cards: Any, faults: Any
) -> None:
    cards.gpu[1].faults = faults.LOST
    write_state(cards)
    result = run_in_node(sys.executable, "-m", "gpustat", "--no-color", "--no-header")
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert "GPU is lost" in lines[1]
    assert "A100" in lines[0] and "97 %" in lines[0] and "V100" in lines[2]


@needs("nvitop")
def test_nvitop_shows_the_emulated_cards_without_a_complaint(run_in_node: Runner, write_state: Any, cards: Any) -> None:
    write_state(cards)
    result = run_in_node(sys.executable, "-m", "nvitop", "--once", "--no-unicode")
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    assert "570.86.15" in result.stdout and "1024MiB / 80.00GiB" in result.stdout
    for reading in ("61C", "251W / 400W", "97%"):
        assert result.stdout.count(reading) >= 3


NVITOP_API = """
import json
from nvitop import Device
device = Device(1)
clocks = device.sm_clock(), device.max_sm_clock()
modes = device.performance_state(), device.cuda_compute_capability(), device.persistence_mode()
use = device.gpu_utilization(), device.memory_total()
print(json.dumps([device.name(), device.power_usage(), *clocks, *use, *modes]))
"""


@needs("nvitop")
def test_nvitops_library_reads_a_card(run_in_node: Runner, write_state: Any, cards: Any) -> None:
    write_state(cards)
    result = run_in_node(sys.executable, "-c", NVITOP_API)
    assert result.stderr == ""
    assert json.loads(result.stdout) == [
        *("NVIDIA H100 80GB HBM3", 251_000, 1980, 1980, 97),
        *(81559 << 20, "P0", [9, 0], "Enabled"),
    ]
