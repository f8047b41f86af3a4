"""What the real nvidia-ml-py reads: each value is the one published, in NVML's unit."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.waiting import PATIENCE_S
from tests.yardstick import yardstick_ns


def raises(nvml: Any, code: str) -> Any:
    return pytest.raises(nvml.nvmlExceptionClass(getattr(nvml, f"NVML_ERROR_{code}")))


# ---------------------------------------------------------------- system and devices


def test_versions_are_the_drivers(nvml: Any) -> None:
    assert nvml.nvmlSystemGetDriverVersion() == "570.86.15"
    assert nvml.nvmlSystemGetNVMLVersion() == "12.570.86.15"
    assert nvml.nvmlSystemGetCudaDriverVersion() == nvml.nvmlSystemGetCudaDriverVersion_v2() == 12080


def test_a_process_is_named_by_its_command(nvml: Any) -> None:
    command = Path(f"/proc/{os.getpid()}/cmdline").read_bytes().split(b"\0")[0].decode()
    assert nvml.nvmlSystemGetProcessName(os.getpid()) == command
    with raises(nvml, "NOT_FOUND"):
        nvml.nvmlSystemGetProcessName(2**22 + 1)


def test_a_device_is_found_by_index_uuid_serial_and_bus(nvml: Any, handles: list[Any]) -> None:
    assert nvml.nvmlDeviceGetCount() == 3
    for index, handle in enumerate(handles):
        found = (
            nvml.nvmlDeviceGetHandleByUUID(nvml.nvmlDeviceGetUUID(handle).encode()),
            nvml.nvmlDeviceGetHandleBySerial(nvml.nvmlDeviceGetSerial(handle).encode()),
            nvml.nvmlDeviceGetHandleByPciBusId(nvml.nvmlDeviceGetPciInfo(handle).busId.encode()),
            nvml.nvmlDeviceGetHandleByPciBusId(nvml.nvmlDeviceGetPciInfo(handle).busIdLegacy.lower().encode()),
            nvml.nvmlDeviceGetHandleByPciBusId(nvml.nvmlDeviceGetPciInfo(handle).busId[9:].encode()),
        )
        assert [nvml.nvmlDeviceGetIndex(device) for device in found] == [index] * len(found)


def test_a_device_that_is_not_there_is_refused_as_the_driver_does(nvml: Any) -> None:
    with raises(nvml, "INVALID_ARGUMENT"):
        nvml.nvmlDeviceGetHandleByIndex(3)
    with raises(nvml, "NOT_FOUND"):
        nvml.nvmlDeviceGetHandleByUUID(b"GPU-no-such")
    with raises(nvml, "NOT_FOUND"):
        nvml.nvmlDeviceGetHandleByPciBusId(b"0000:99:00.0")
    with raises(nvml, "INVALID_ARGUMENT"):
        nvml.nvmlDeviceGetHandleByPciBusId(b"nonsense")


def test_what_a_card_is(nvml: Any, handles: list[Any]) -> None:
    a100, h100, v100 = handles
    assert nvml.nvmlDeviceGetName(a100) == "NVIDIA A100-SXM4-80GB"
    assert [nvml.nvmlDeviceGetArchitecture(h) for h in handles] == [7, 9, 5]
    assert nvml.nvmlDeviceGetCudaComputeCapability(h100) == (9, 0)
    assert nvml.nvmlDeviceGetBrand(v100) == nvml.NVML_BRAND_TESLA
    assert nvml.nvmlDeviceGetBrand(h100) == nvml.NVML_BRAND_NVIDIA
    assert nvml.nvmlDeviceGetNumGpuCores(a100) == 6912
    assert nvml.nvmlDeviceGetMemoryBusWidth(a100) == 5120
    assert nvml.nvmlDeviceGetVbiosVersion(a100) == "92.00.45.00.03"
    assert nvml.nvmlDeviceGetPciInfo(h100).busId == "00000000:47:00.0"
    assert nvml.nvmlDeviceGetPciInfo(h100).bus == 0x47
    assert (nvml.nvmlDeviceGetCurrPcieLinkGeneration(a100), nvml.nvmlDeviceGetCurrPcieLinkWidth(a100)) == (4, 16)
    assert nvml.nvmlDeviceGetPcieSpeed(a100) == 16000


def test_modes_of_a_data_centre_card(nvml: Any, handles: list[Any]) -> None:
    a100, _, v100 = handles
    assert nvml.nvmlDeviceGetPersistenceMode(a100) == nvml.NVML_FEATURE_ENABLED
    assert nvml.nvmlDeviceGetEccMode(a100) == [1, 1]
    assert nvml.nvmlDeviceGetDisplayMode(a100) == nvml.nvmlDeviceGetDisplayActive(a100) == 0
    assert nvml.nvmlDeviceGetComputeMode(a100) == nvml.NVML_COMPUTEMODE_DEFAULT
    assert nvml.nvmlDeviceGetMigMode(a100) == [0, 0]
    for question in (nvml.nvmlDeviceGetMigMode, nvml.nvmlDeviceGetFanSpeed, nvml.nvmlDeviceGetRemappedRows):
        with raises(nvml, "NOT_SUPPORTED"):
            question(v100)


VERSIONS = ("", "_v2", "_v3")


def test_no_process_runs_on_a_card_without_work(nvml: Any, handles: list[Any]) -> None:
    for mode in ("Compute", "Graphics", "MPSCompute"):
        for version in VERSIONS:
            assert getattr(nvml, f"nvmlDeviceGet{mode}RunningProcesses{version}")(handles[0]) == []
    assert nvml.nvmlDeviceGetRunningProcessDetailList(handles[0], nvml.nvmlProcessDetailList_v1, 0) == []
    with raises(nvml, "NOT_FOUND"):
        nvml.nvmlDeviceGetProcessUtilization(handles[0], 0)


def test_the_process_of_the_work_is_listed_with_its_memory(
    nvml: Any, gpus: Any, handles: list[Any], publish: Callable[..., None]
) -> None:
    publish(gpus.gpu[0], process_pid=4711)
    for version in VERSIONS:
        (process,) = getattr(nvml, f"nvmlDeviceGetComputeRunningProcesses{version}")(handles[0])
        assert (process.pid, process.usedGpuMemory) == (4711, 1024 << 20)
    (process,) = nvml.nvmlDeviceGetRunningProcessDetailList(handles[0], nvml.nvmlProcessDetailList_v1, 0)
    assert (process.pid, process.usedGpuMemory, process.gpuInstanceId) == (4711, 1024 << 20, 0xFFFFFFFF)
    (sample,) = nvml.nvmlDeviceGetProcessUtilization(handles[0], 0)
    assert (sample.pid, sample.timeStamp, sample.smUtil, sample.memUtil) == (4711, 5_000_000, 97, 41)
    assert (sample.encUtil, sample.decUtil) == (0, 0)
    with raises(nvml, "NOT_FOUND"):
        nvml.nvmlDeviceGetProcessUtilization(handles[0], 5_000_000)
    assert nvml.nvmlDeviceGetRunningProcessDetailList(handles[0], nvml.nvmlProcessDetailList_v1, 1) == []
    assert nvml.nvmlDeviceGetGraphicsRunningProcesses(handles[0]) == []
    assert nvml.nvmlDeviceGetComputeRunningProcesses(handles[1]) == []


def test_the_first_version_of_the_list_has_the_shorter_entries(
    library: ctypes.CDLL, nvml: Any, gpus: Any, handles: list[Any], publish: Callable[..., None]
) -> None:
    publish(gpus.gpu[0], process_pid=4711)
    entry, count = (ctypes.c_uint64 * 3)(0, 0, 77), ctypes.c_uint(1)
    assert library.nvmlDeviceGetComputeRunningProcesses(handles[0], ctypes.byref(count), entry) == 0
    assert (count.value, list(entry)) == (1, [4711, 1024 << 20, 77])
    count.value = 0
    assert library.nvmlDeviceGetComputeRunningProcesses(handles[0], ctypes.byref(count), None) == 7
    assert count.value == 1


def test_topology_knows_numa_nodes(nvml: Any, handles: list[Any]) -> None:
    a100, h100, v100 = handles
    assert nvml.nvmlDeviceGetTopologyCommonAncestor(a100, h100) == nvml.NVML_TOPOLOGY_NODE
    assert nvml.nvmlDeviceGetTopologyCommonAncestor(a100, v100) == nvml.NVML_TOPOLOGY_SYSTEM
    near = nvml.nvmlDeviceGetTopologyNearestGpus(a100, nvml.NVML_TOPOLOGY_NODE)
    assert [nvml.nvmlDeviceGetIndex(device) for device in near] == [1]
    assert not nvml.nvmlDeviceOnSameBoard(a100, h100)
    assert list(nvml.nvmlDeviceGetMemoryAffinity(v100, 1, nvml.NVML_AFFINITY_SCOPE_NODE)) == [2]


# ---------------------------------------------------------------- readings


def test_power_energy_heat_and_use_are_the_published_ones(nvml: Any, handles: list[Any]) -> None:
    gpu = handles[0]
    assert nvml.nvmlDeviceGetPowerUsage(gpu) == 251_000
    assert nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) == 12_345_678  # mJ
    assert nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) == 400_000
    assert nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU) == 61
    assert nvml.nvmlDeviceGetTemperatureV(gpu, nvml.NVML_TEMPERATURE_GPU) == 61
    assert nvml.nvmlDeviceGetTemperatureThreshold(gpu, nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN) == 89
    assert nvml.nvmlDeviceGetTemperatureThreshold(gpu, nvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN) == 92
    rates = nvml.nvmlDeviceGetUtilizationRates(gpu)
    assert (rates.gpu, rates.memory) == (97, 41)
    assert nvml.nvmlDeviceGetEncoderUtilization(gpu)[0] == nvml.nvmlDeviceGetDecoderUtilization(gpu)[0] == 0
    assert nvml.nvmlDeviceGetPcieThroughput(gpu, nvml.NVML_PCIE_UTIL_TX_BYTES) == 1200
    assert nvml.nvmlDeviceGetPcieThroughput(gpu, nvml.NVML_PCIE_UTIL_RX_BYTES) == 3400
    assert nvml.nvmlDeviceGetPerformanceState(gpu) == 0
    with raises(nvml, "INVALID_ARGUMENT"):
        nvml.nvmlDeviceGetTemperature(gpu, 5)


def test_memory_is_in_bytes_and_adds_up(nvml: Any, handles: list[Any]) -> None:
    for version in (None, nvml.nvmlMemory_v2):
        memory = nvml.nvmlDeviceGetMemoryInfo(handles[0], version)
        assert (memory.total, memory.used) == (81920 << 20, 1024 << 20)
        assert memory.free + memory.used == memory.total
    assert nvml.nvmlDeviceGetBAR1MemoryInfo(handles[0]).bar1Total == 128 << 30  # as an A100-80 shows
    with raises(nvml, "ARGUMENT_VERSION_MISMATCH"):
        nvml.nvmlDeviceGetMemoryInfo(handles[0], 0x01000028)


def test_reasons_and_violations_say_what_lowered_the_clock(nvml: Any, handles: list[Any]) -> None:
    gpu = handles[0]
    assert nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu) == nvml.nvmlClocksEventReasonSwPowerCap
    assert nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu) == nvml.nvmlClocksThrottleReasonSwPowerCap
    assert nvml.nvmlDeviceGetSupportedClocksEventReasons(gpu) & nvml.nvmlClocksEventReasonHwThermalSlowdown
    assert nvml.nvmlDeviceGetViolationStatus(gpu, nvml.NVML_PERF_POLICY_POWER).violationTime == 2_000_000  # ns
    assert nvml.nvmlDeviceGetViolationStatus(gpu, nvml.NVML_PERF_POLICY_THERMAL).violationTime == 30_000
    assert nvml.nvmlDeviceGetViolationStatus(gpu, nvml.NVML_PERF_POLICY_SYNC_BOOST).violationTime == 0
    with raises(nvml, "INVALID_ARGUMENT"):
        nvml.nvmlDeviceGetViolationStatus(gpu, 7)


def test_field_values_carry_type_time_and_outcome_each(nvml: Any, handles: list[Any]) -> None:
    wanted = [
        nvml.NVML_FI_DEV_POWER_INSTANT,
        nvml.NVML_FI_DEV_POWER_AVERAGE,
        nvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION,
        nvml.NVML_FI_DEV_MEMORY_TEMP,
        nvml.NVML_FI_DEV_POWER_CURRENT_LIMIT,
        nvml.NVML_FI_DEV_NVLINK_LINK_COUNT,
        (nvml.NVML_FI_DEV_POWER_INSTANT, nvml.NVML_POWER_SCOPE_MEMORY),
    ]
    values = nvml.nvmlDeviceGetFieldValues(handles[0], wanted)
    assert [v.nvmlReturn for v in values] == [0] * 5 + [nvml.NVML_ERROR_NOT_SUPPORTED] * 2
    assert [v.value.uiVal for v in values[:2]] == [263_500, 251_000]
    assert values[2].valueType == nvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
    assert values[2].value.ullVal == 12_345_678
    assert [v.value.uiVal for v in values[3:5]] == [70, 400_000]
    assert {v.timestamp for v in values} == {5_000_000}


def test_samples_are_those_after_the_last_one_seen(nvml: Any, handles: list[Any]) -> None:
    kind, samples = nvml.nvmlDeviceGetSamples(handles[0], nvml.NVML_TOTAL_POWER_SAMPLES, 0)
    assert kind == nvml.NVML_VALUE_TYPE_UNSIGNED_INT
    assert [s.sampleValue.uiVal for s in samples] == list(range(200_000, 200_010))
    assert [s.timeStamp for s in samples] == sorted(s.timeStamp for s in samples)
    _, later = nvml.nvmlDeviceGetSamples(handles[0], nvml.NVML_GPU_UTILIZATION_SAMPLES, samples[6].timeStamp)
    assert [s.sampleValue.uiVal for s in later] == [92, 93, 94]
    with raises(nvml, "NOT_FOUND"):
        nvml.nvmlDeviceGetSamples(handles[0], nvml.NVML_TOTAL_POWER_SAMPLES, samples[-1].timeStamp)
    with raises(nvml, "NOT_SUPPORTED"):
        nvml.nvmlDeviceGetSamples(handles[0], nvml.NVML_MODULE_POWER_SAMPLES, 0)


def test_a_full_ring_of_samples_comes_out_oldest_first(nvml: Any, gpus: Any, handles: list[Any]) -> None:
    for slot in range(128):
        gpus.gpu[0].samples[slot].time_us = 1_000 + (slot - 37) % 128
    gpus.gpu[0].sample_head = 37
    _, samples = nvml.nvmlDeviceGetSamples(handles[0], nvml.NVML_PROCESSOR_CLK_SAMPLES, 0)
    assert [s.timeStamp for s in samples] == list(range(1_000, 1_128))


# ---------------------------------------------------------------- clocks


def test_the_ladder_is_listed_descending_under_the_one_memory_clock(nvml: Any, gpus: Any, handles: list[Any]) -> None:
    for index, handle in enumerate(handles):
        assert nvml.nvmlDeviceGetSupportedMemoryClocks(handle) == [1593]
        listed = nvml.nvmlDeviceGetSupportedGraphicsClocks(handle, 1593)
        assert listed == list(gpus.gpu[index].clocks_mhz[0 : gpus.gpu[index].n_clocks]) == sorted(listed, reverse=True)
    with raises(nvml, "NOT_FOUND"):
        nvml.nvmlDeviceGetSupportedGraphicsClocks(handles[0], 877)


def test_a_short_buffer_gets_the_size_it_needs(library: ctypes.CDLL, nvml: Any, handles: list[Any]) -> None:
    count, buffer = ctypes.c_uint(4), (ctypes.c_uint * 4)()
    answer = library.nvmlDeviceGetSupportedGraphicsClocks(handles[0], 1593, ctypes.byref(count), buffer)
    assert (answer, count.value, list(buffer)) == (nvml.NVML_ERROR_INSUFFICIENT_SIZE, 81, [0] * 4)
    name = ctypes.create_string_buffer(5)
    assert library.nvmlDeviceGetName(handles[0], name, 5) == nvml.NVML_ERROR_INSUFFICIENT_SIZE


def test_clocks_now_and_at_most(nvml: Any, gpus: Any, publish: Callable[..., None], handles: list[Any]) -> None:
    publish(gpus.gpu[0], sm_clock_mhz=1095)
    gpu = handles[0]
    for kind in (nvml.NVML_CLOCK_SM, nvml.NVML_CLOCK_GRAPHICS):
        assert nvml.nvmlDeviceGetClockInfo(gpu, kind) == nvml.nvmlDeviceGetClock(gpu, kind, 0) == 1095
        assert nvml.nvmlDeviceGetMaxClockInfo(gpu, kind) == 1410
        assert nvml.nvmlDeviceGetApplicationsClock(gpu, kind) == 1410
    assert nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM) == 1593
    assert nvml.nvmlDeviceGetMinMaxClockOfPState(gpu, nvml.NVML_CLOCK_SM, 0) == (210, 1410)
    assert nvml.nvmlDeviceGetSupportedPerformanceStates(gpu) == [0]


# ---------------------------------------------------------------- consistency and speed


def test_a_reading_never_mixes_two_publications(nvml: Any, gpus: Any, handles: list[Any], publish: Any) -> None:
    """Power and energy are published together; a field read of both sees both old or both new."""
    stop = threading.Event()

    def model() -> None:
        step = 0
        while not stop.is_set():
            step += 1
            publish(gpus.gpu[0], power_mw=step % 1000, power_instant_mw=step % 1000)

    writer = threading.Thread(target=model)
    writer.start()
    try:
        wanted = [nvml.NVML_FI_DEV_POWER_AVERAGE, nvml.NVML_FI_DEV_POWER_INSTANT]
        for _ in range(300):
            average, instant = nvml.nvmlDeviceGetFieldValues(handles[0], wanted)
            assert average.value.uiVal == instant.value.uiVal
    finally:
        stop.set()
        writer.join()


def test_a_model_stopped_while_publishing_ends_in_an_error_not_a_hang(nvml: Any, gpus: Any, handles: list[Any]) -> None:
    gpus.gpu[0].seq += 1
    started = time.monotonic()
    with raises(nvml, "UNKNOWN"):
        nvml.nvmlDeviceGetPowerUsage(handles[0])
    assert time.monotonic() - started < PATIENCE_S
    assert nvml.nvmlDeviceGetPowerUsage(handles[1]) == 251_000


def test_a_hundred_calls_cost_less_than_four_yardsticks(library: ctypes.CDLL, nvml: Any, handles: list[Any]) -> None:
    """About a microsecond each, through ctypes, which itself takes most of it."""
    power = ctypes.c_uint()
    call, reference = library.nvmlDeviceGetPowerUsage, ctypes.byref(power)

    costs_ns, yardsticks_ns = [], []
    for _ in range(100):
        yardsticks_ns.append(yardstick_ns())
        begin_ns = time.thread_time_ns()
        for _ in range(100):
            call(handles[0], reference)
        costs_ns.append(time.thread_time_ns() - begin_ns)
    assert median(costs_ns) < 4 * median(yardsticks_ns)
