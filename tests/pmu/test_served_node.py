"""The kernel's own interfaces on a served node: real perf_event_open, sysfs and libnvidia-ml, in real time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pmu.readings import Quality
from tests.waiting import PATIENCE_S

if os.geteuid() != 0 or not os.access("/dev/fuse", os.R_OK | os.W_OK):
    pytest.skip("needs root and /dev/fuse", allow_module_level=True)

ROOT = Path(__file__).parents[2]

READER = """
import json, numpy as np
from pmu.decode import decode
from pmu.node import Instruments, discover
from pmu.system import system_ports
ports = system_ports()
layout, findings = discover(ports)
instruments = Instruments(ports, layout)
samples, before = [], instruments.sweep()
for tick in range(1, 6):
    ports.clock.sleep_until_ns(before.time_ns + 100_000_000)
    now = instruments.sweep()
    samples.append(decode(layout, before, now))
    before = now
median = lambda name: np.median([getattr(s.cpu, name) for s in samples], axis=0).tolist()
print(json.dumps({
    "cpus": len(layout.cpus), "events": layout.events, "gpus": len(layout.gpus), "khz": layout.reference_khz,
    "why": {f.name: f.why for f in findings},
    "ipc": median("ipc"), "busy": median("busy"), "frequency_khz": median("frequency_khz"),
    "quality": [sorted({int(q) for q in s.cpu.quality}) for s in samples],
    "watts": np.median([s.energy_j / s.elapsed_s for s in samples], axis=0).tolist(),
    "gpu_w": np.median([s.gpu.power_w for s in samples], axis=0).tolist() if layout.gpus else [],
}))
"""


def read_served(machine: str, workload: str) -> dict[str, Any]:
    """What a program that knows nothing of the twin reads through ``pmu`` in half a second."""
    command = [sys.executable, "-m", "twin.cli", "run", "--machine", machine, "--workload", workload, "--"]
    done = subprocess.run(
        [*command, sys.executable, "-c", READER],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def is_measured(read: dict[str, Any]) -> bool:
    """In most intervals every CPU was; a sweep during which the host stops stretches one of two, which is reported."""
    whole = [quality for quality in read["quality"] if quality == [Quality.MEASURED]]
    return len(whole) >= 3 and all(set(quality) <= {Quality.MEASURED, Quality.CLIPPED} for quality in read["quality"])


def test_every_counter_of_a_served_cpu_node_is_read_through_the_kernels_interfaces() -> None:
    read = read_served("curie", "hpl")
    assert read["cpus"] == 16 and read["khz"] == 2_700_000
    assert read["events"] == ["cycles", "reference-cycles", "instructions", "stalls", "llc-misses"]
    assert is_measured(read)
    # A CPU's counters are read one after the other: where the machine is busy, some time passes between two of them.
    assert read["busy"] == pytest.approx([1.0] * 16, abs=0.08)
    assert read["frequency_khz"] == pytest.approx([2_700_000] * 16, rel=0.02)
    assert all(0.5 < ipc < 5 for ipc in read["ipc"])
    assert all(watts > 5 for watts in read["watts"])


def test_a_served_zen_2_counts_reference_cycles_with_mperf_in_the_same_group() -> None:
    read = read_served("xh2415", "easywave")
    assert read["cpus"] == 96 and read["gpus"] == 4
    assert read["why"]["reference-cycles"].startswith("counted by msr/mperf/")
    assert read["why"]["stalls"].startswith("this processor has no such event")
    assert is_measured(read) and max(read["busy"]) == pytest.approx(1.0, abs=0.02)
    assert all(100 < watts < 450 for watts in read["gpu_w"])
