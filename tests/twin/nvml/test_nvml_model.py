"""The library on the real model: what a client asks for changes what it then reads."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("twin._model", reason="the node model is not built: run `make setup`")

from twin.in_process_node import InProcess
from twin.machine import load_machine
from twin.physics.model import Twin
from twin.programs.workload import load_workload

SAMPLE = Path(__file__).parents[3] / "twin" / "data" / "v100-sample.csv"

POWER_CAP = 0x4  # nvmlClocksEventReasonSwPowerCap


@pytest.fixture
def twin(library: Any) -> Twin:
    """Two sockets and four A100-80 under a memory-bound GPU workload."""
    machine = load_machine("xh2415")
    return Twin(machine, load_workload("easywave", machine, seed=1), seed=1)


@pytest.fixture
def nvml(twin: Twin) -> Iterator[Any]:
    with InProcess(twin) as node:
        pynvml: Any = node.ports.nvml
        pynvml.nvmlInit()
        yield pynvml
        pynvml.nvmlShutdown()


def test_locked_clocks_are_followed_and_save_power(twin: Twin, nvml: Any) -> None:
    gpu = nvml.nvmlDeviceGetHandleByIndex(0)
    twin.advance(1.0)
    free_mw, free_mhz = nvml.nvmlDeviceGetPowerUsage(gpu), nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM)
    nvml.nvmlDeviceSetGpuLockedClocks(gpu, 0, 1100)
    twin.advance(1.0)
    assert nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM) == 1095 < free_mhz
    assert nvml.nvmlDeviceGetPowerUsage(gpu) < 0.85 * free_mw
    nvml.nvmlDeviceResetGpuLockedClocks(gpu)
    twin.advance(1.0)
    assert nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM) == free_mhz
    other = nvml.nvmlDeviceGetHandleByIndex(1)
    assert nvml.nvmlDeviceGetClockInfo(other, nvml.NVML_CLOCK_SM) == free_mhz


def test_every_step_of_the_ladder_is_the_clock_that_runs_when_it_is_locked(twin: Twin, nvml: Any) -> None:
    gpu = nvml.nvmlDeviceGetHandleByIndex(0)
    for mhz in nvml.nvmlDeviceGetSupportedGraphicsClocks(gpu, nvml.nvmlDeviceGetSupportedMemoryClocks(gpu)[0])[::9]:
        nvml.nvmlDeviceSetGpuLockedClocks(gpu, mhz, mhz)
        twin.advance(0.1)
        assert nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM) == mhz


def test_a_power_limit_throttles_and_says_so(twin: Twin, nvml: Any) -> None:
    gpu = nvml.nvmlDeviceGetHandleByIndex(0)
    twin.advance(0.5)
    assert nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu) & POWER_CAP == 0
    nvml.nvmlDeviceSetPowerManagementLimit(gpu, 200_000)
    twin.advance(1.0)
    assert nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) == 200_000
    assert nvml.nvmlDeviceGetPowerUsage(gpu) <= 202_000
    assert nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu) & POWER_CAP
    assert nvml.nvmlDeviceGetViolationStatus(gpu, nvml.NVML_PERF_POLICY_POWER).violationTime > 0.5e9


def test_the_process_of_the_model_computes_on_a_card_while_it_has_work(library: Any) -> None:
    machine = load_machine("v100")
    twin = Twin(machine, load_workload("v100:3MM", machine, duration_s=3.0, data=SAMPLE))
    with InProcess(twin) as node:
        nvml: Any = node.ports.nvml
        nvml.nvmlInit()
        card = nvml.nvmlDeviceGetHandleByIndex(0)
        twin.advance(1.0)
        (process,) = nvml.nvmlDeviceGetComputeRunningProcesses(card)
        used = nvml.nvmlDeviceGetMemoryInfo(card).used
        assert (process.pid, process.usedGpuMemory) == (os.getpid(), used) and used > 100 << 20
        twin.advance(5.0)
        assert nvml.nvmlDeviceGetComputeRunningProcesses(card) == []
        nvml.nvmlShutdown()


def test_energy_is_the_integral_of_what_was_drawn(twin: Twin, nvml: Any) -> None:
    gpu = nvml.nvmlDeviceGetHandleByIndex(2)
    twin.advance(3.0)
    shown_j = nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1e3
    sensors = twin.machine.gpu.sensors  # type: ignore[union-attr]
    true_j = twin.report().energy_j["gpu-2"]
    assert shown_j == pytest.approx(sensors.power_gain * true_j + sensors.power_offset_w * 3.0, rel=0.01)
    _, samples = nvml.nvmlDeviceGetSamples(gpu, nvml.NVML_TOTAL_POWER_SAMPLES, 0)
    mean_w = sum(sample.sampleValue.uiVal for sample in samples) / len(samples) / 1e3
    assert shown_j == pytest.approx(3.0 * mean_w, rel=0.1)


def test_gpm_shows_the_mean_activity_between_two_samples(twin: Twin, nvml: Any) -> None:
    twin.gpus.gpu[0].has_gpm = 1  # an A100 has none; the model keeps the integrals of every card
    gpu = nvml.nvmlDeviceGetHandleByIndex(0)
    first, second = nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()
    nvml.nvmlGpmSampleGet(gpu, first)
    twin.advance(2.0)
    nvml.nvmlGpmSampleGet(gpu, second)
    wanted = nvml.c_nvmlGpmMetricsGet_t(version=1, numMetrics=3, sample1=first, sample2=second)
    for i, metric in enumerate((nvml.NVML_GPM_METRIC_SM_OCCUPANCY, nvml.NVML_GPM_METRIC_SM_UTIL, 10)):
        wanted.metrics[i].metricId = metric
    got = nvml.nvmlGpmMetricsGet(wanted)
    occupancy, sm_active, dram = (got.metrics[i].value for i in range(3))
    assert 5 < occupancy < sm_active <= 100 and 5 < dram <= 100
    for sample in (first, second):
        nvml.nvmlGpmSampleFree(sample)


ACT = """
import time, pynvml
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
free_mw = pynvml.nvmlDeviceGetPowerUsage(gpu)
pynvml.nvmlDeviceSetGpuLockedClocks(gpu, 1095, 1095)
deadline = time.monotonic() + 180
while time.monotonic() < deadline:
    mhz, mw = pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM), pynvml.nvmlDeviceGetPowerUsage(gpu)
    if mhz == 1095 and mw < 0.85 * free_mw:
        break
    time.sleep(0.02)
print(mhz, mw < 0.85 * free_mw, free_mw > 200_000)
"""


def test_another_process_changes_a_model_that_runs_in_real_time(
    library: Any, run_in_node: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    machine = load_machine("xh2415")
    with (tmp_path / "gpus").open("w+b") as file:
        file.truncate(Twin.GPU_BYTES)
        memory = mmap.mmap(file.fileno(), Twin.GPU_BYTES)
    twin = Twin(machine, load_workload("easywave", machine, seed=1), seed=1, gpu_memory=memory)
    twin.advance(1.0)
    stop = threading.Event()
    model = threading.Thread(target=twin.run_realtime, args=(stop,))
    model.start()
    try:
        result = run_in_node(sys.executable, "-c", ACT)
    finally:
        stop.set()
        model.join()
    assert result.stdout.split() == ["1095", "True", "True"], result.stderr
