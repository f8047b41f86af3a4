"""What may be set, to what it settles, who may set it; and the faults."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.waiting import PATIENCE_S


def raises(nvml: Any, code: str) -> Any:
    return pytest.raises(nvml.nvmlExceptionClass(getattr(nvml, f"NVML_ERROR_{code}")))


def lock_of(gpu: Any) -> tuple[int, int]:
    return gpu.lock_min_mhz, gpu.lock_max_mhz


# ---------------------------------------------------------------- locked clocks


@pytest.mark.parametrize(
    ("asked", "settled"),
    [
        ((1095, 1095), (1095, 1095)),
        ((0, 1095), (210, 1095)),
        ((0, 1000), (210, 990)),  # the maximum is never exceeded
        ((1000, 1000), (990, 990)),  # and the minimum gives way to it
        ((1000, 1200), (1005, 1200)),
        ((100, 5000), (210, 1410)),
        ((0, 0), (210, 210)),
        ((3000, 5000), (1410, 1410)),
    ],
)
def test_a_lock_settles_on_steps_of_the_ladder(
    nvml: Any, gpus: Any, handles: list[Any], asked: tuple[int, int], settled: tuple[int, int]
) -> None:
    nvml.nvmlDeviceSetGpuLockedClocks(handles[0], *asked)
    assert lock_of(gpus.gpu[0]) == settled
    assert gpus.gpu[0].lock_seq == 1


@given(low=st.integers(0, 3000), high=st.integers(0, 3000), card=st.integers(0, 2))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=200)
def test_any_range_settles_inside_itself_or_at_an_end_of_the_ladder(
    nvml: Any, gpus: Any, handles: list[Any], low: int, high: int, card: int
) -> None:
    gpu = gpus.gpu[card]
    ladder = list(gpu.clocks_mhz[0 : gpu.n_clocks])
    if low > high:
        before = lock_of(gpu), gpu.lock_seq
        with raises(nvml, "INVALID_ARGUMENT"):
            nvml.nvmlDeviceSetGpuLockedClocks(handles[card], low, high)
        assert (lock_of(gpu), gpu.lock_seq) == before
        return
    nvml.nvmlDeviceSetGpuLockedClocks(handles[card], low, high)
    minimum, maximum = lock_of(gpu)
    assert minimum in ladder and maximum in ladder and minimum <= maximum
    assert maximum == max((mhz for mhz in ladder if mhz <= high), default=ladder[-1])
    assert minimum >= low or minimum == maximum


def test_a_reset_unlocks_and_so_does_an_unlimited_range(nvml: Any, gpus: Any, handles: list[Any]) -> None:
    unlimited = nvml.NVML_CLOCK_LIMIT_ID_UNLIMITED
    ways: list[Callable[[], None]] = [
        lambda: nvml.nvmlDeviceResetGpuLockedClocks(handles[0]),
        lambda: nvml.nvmlDeviceSetGpuLockedClocks(handles[0], unlimited, unlimited),
    ]
    for unlock in ways:
        nvml.nvmlDeviceSetGpuLockedClocks(handles[0], 1005, 1005)
        unlock()
        assert lock_of(gpus.gpu[0]) == (0, 0)
    assert gpus.gpu[0].lock_seq == 4


def test_a_symbolic_bound_together_with_a_number_is_invalid(nvml: Any, gpus: Any, handles: list[Any]) -> None:
    for low, high in ((nvml.NVML_CLOCK_LIMIT_ID_TDP, 1410), (210, nvml.NVML_CLOCK_LIMIT_ID_UNLIMITED)):
        with raises(nvml, "INVALID_ARGUMENT"):
            nvml.nvmlDeviceSetGpuLockedClocks(handles[0], low, high)
    assert gpus.gpu[0].lock_seq == 0


def test_memory_clocks_can_be_locked_from_ampere_on(nvml: Any, handles: list[Any]) -> None:
    nvml.nvmlDeviceSetMemoryLockedClocks(handles[0], 810, 1593)
    nvml.nvmlDeviceResetMemoryLockedClocks(handles[0])
    with raises(nvml, "INVALID_ARGUMENT"):
        nvml.nvmlDeviceSetMemoryLockedClocks(handles[0], 1593, 810)
    with raises(nvml, "NOT_SUPPORTED"):
        nvml.nvmlDeviceSetMemoryLockedClocks(handles[2], 877, 877)


# ---------------------------------------------------------------- applications clocks


def test_applications_clocks_are_a_supported_pair_which_is_read_back_until_the_reset(
    nvml: Any, gpus: Any, handles: list[Any]
) -> None:
    for card, mhz in zip(handles, (1005, 1200, 757), strict=True):  # Ampere, Hopper, Volta
        top_mhz = nvml.nvmlDeviceGetMaxClockInfo(card, nvml.NVML_CLOCK_SM)
        nvml.nvmlDeviceSetApplicationsClocks(card, 1593, mhz)
        assert nvml.nvmlDeviceGetApplicationsClock(card, nvml.NVML_CLOCK_GRAPHICS) == mhz
        assert nvml.nvmlDeviceGetClock(card, nvml.NVML_CLOCK_SM, nvml.NVML_CLOCK_ID_APP_CLOCK_TARGET) == mhz
        assert nvml.nvmlDeviceGetApplicationsClock(card, nvml.NVML_CLOCK_MEM) == 1593
        assert nvml.nvmlDeviceGetDefaultApplicationsClock(card, nvml.NVML_CLOCK_SM) == top_mhz
        nvml.nvmlDeviceResetApplicationsClocks(card)
        assert nvml.nvmlDeviceGetApplicationsClock(card, nvml.NVML_CLOCK_SM) == top_mhz
    assert (gpus.gpu[0].applications_mhz, gpus.gpu[0].lock_seq) == (0, 2)


@pytest.mark.parametrize("pair", [(810, 1005), (1593, 1006), (1593, 5000), (1593, 0), (1593, 195)])
def test_applications_clocks_that_are_no_supported_pair_are_invalid(
    nvml: Any, gpus: Any, handles: list[Any], pair: tuple[int, int]
) -> None:
    with raises(nvml, "INVALID_ARGUMENT"):
        nvml.nvmlDeviceSetApplicationsClocks(handles[0], *pair)
    assert (gpus.gpu[0].applications_mhz, gpus.gpu[0].lock_seq) == (0, 0)


# ---------------------------------------------------------------- power limit, persistence


def test_the_power_limit_is_read_back_as_set(nvml: Any, gpus: Any, handles: list[Any]) -> None:
    gpu = handles[0]
    assert nvml.nvmlDeviceGetPowerManagementLimit(gpu) == nvml.nvmlDeviceGetPowerManagementDefaultLimit(gpu) == 400_000
    nvml.nvmlDeviceSetPowerManagementLimit(gpu, 250_000)
    assert nvml.nvmlDeviceGetPowerManagementLimit(gpu) == gpus.gpu[0].power_limit_mw == 250_000
    nvml.nvmlDeviceSetPowerManagementLimit_v2(gpu, nvml.NVML_POWER_SCOPE_GPU, 300_000)
    assert nvml.nvmlDeviceGetPowerManagementLimit(gpu) == 300_000
    assert gpus.gpu[0].limit_seq == 2


def test_a_power_limit_outside_the_cards_bounds_is_invalid(nvml: Any, gpus: Any, handles: list[Any]) -> None:
    assert nvml.nvmlDeviceGetPowerManagementLimitConstraints(handles[0]) == [100_000, 400_000]
    for limit_mw in (0, 99_999, 400_001):
        with raises(nvml, "INVALID_ARGUMENT"):
            nvml.nvmlDeviceSetPowerManagementLimit(handles[0], limit_mw)
    assert gpus.gpu[0].limit_seq == 0


def test_persistence_mode_is_what_was_set(nvml: Any, handles: list[Any]) -> None:
    nvml.nvmlDeviceSetPersistenceMode(handles[0], nvml.NVML_FEATURE_DISABLED)
    assert nvml.nvmlDeviceGetPersistenceMode(handles[0]) == nvml.NVML_FEATURE_DISABLED
    with raises(nvml, "INVALID_ARGUMENT"):
        nvml.nvmlDeviceSetPersistenceMode(handles[0], 2)


# ---------------------------------------------------------------- faults


def test_a_lost_gpu_answers_nothing_and_the_others_go_on(
    library: ctypes.CDLL, nvml: Any, gpus: Any, handles: list[Any], faults: Any
) -> None:
    gpus.gpu[0].faults = faults.LOST
    questions: list[Callable[[Any], Any]] = [
        nvml.nvmlDeviceGetName,
        nvml.nvmlDeviceGetPowerUsage,
        nvml.nvmlDeviceGetMemoryInfo,
        nvml.nvmlDeviceGetUtilizationRates,
        nvml.nvmlDeviceGetIndex,
        nvml.nvmlGpmQueryDeviceSupport,
        nvml.nvmlDeviceResetGpuLockedClocks,
        lambda gpu: nvml.nvmlDeviceGetFieldValues(gpu, [nvml.NVML_FI_DEV_POWER_INSTANT]),
        lambda gpu: nvml.nvmlDeviceSetPowerManagementLimit(gpu, 200_000),
        lambda gpu: nvml.nvmlDeviceGetHandleByIndex(0),
    ]
    for question in questions:
        with raises(nvml, "GPU_IS_LOST"):
            question(handles[0])
    assert nvml.nvmlDeviceGetCount() == 3
    assert nvml.nvmlDeviceGetPowerUsage(handles[1]) == 251_000
    gpus.gpu[0].faults = 0
    assert nvml.nvmlDeviceGetPowerUsage(handles[0]) == 251_000


def test_a_card_without_its_power_sensor_still_shows_the_rest(
    nvml: Any, gpus: Any, handles: list[Any], readings: Any
) -> None:
    gpus.gpu[0].missing = readings.POWER | readings.ENERGY
    gpu = handles[0]
    for question in (nvml.nvmlDeviceGetPowerUsage, nvml.nvmlDeviceGetTotalEnergyConsumption):
        with raises(nvml, "NOT_SUPPORTED"):
            question(gpu)
    with raises(nvml, "NOT_SUPPORTED"):
        nvml.nvmlDeviceGetSamples(gpu, nvml.NVML_TOTAL_POWER_SAMPLES, 0)
    power, limit = nvml.nvmlDeviceGetFieldValues(
        gpu, [nvml.NVML_FI_DEV_POWER_INSTANT, nvml.NVML_FI_DEV_POWER_MAX_LIMIT]
    )
    assert (power.nvmlReturn, limit.nvmlReturn) == (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_SUCCESS)
    assert nvml.nvmlDeviceGetTemperature(gpu, 0) == 61


QUESTIONS: dict[str, Callable[[Any, Any], int]] = {
    "POWER": lambda n, gpu: int(n.nvmlDeviceGetPowerUsage(gpu)),
    "ENERGY": lambda n, gpu: int(n.nvmlDeviceGetTotalEnergyConsumption(gpu)),
    "TEMPERATURE": lambda n, gpu: int(n.nvmlDeviceGetTemperature(gpu, n.NVML_TEMPERATURE_GPU)),
    "SM_CLOCK": lambda n, gpu: int(n.nvmlDeviceGetClockInfo(gpu, n.NVML_CLOCK_SM)),
    "GPU_UTILIZATION": lambda n, gpu: int(n.nvmlDeviceGetUtilizationRates(gpu).gpu),
    "MEMORY_UTILIZATION": lambda n, gpu: int(n.nvmlDeviceGetUtilizationRates(gpu).memory),
}
SANE = (251_000, 12_345_678, 61, 1410, 97, 41)
ABSURD = (4_000_000, (2**63 - 1) // 1000, 255, 4_294_967, 255, 255)


@pytest.mark.parametrize("struck", QUESTIONS)
def test_a_missing_reading_is_not_supported_and_the_others_answer(
    nvml: Any, gpus: Any, handles: list[Any], readings: Any, struck: str
) -> None:
    gpus.gpu[0].missing = getattr(readings, struck)
    for (name, question), value in zip(QUESTIONS.items(), SANE, strict=True):
        if name == struck or {name, struck} == {"GPU_UTILIZATION", "MEMORY_UTILIZATION"}:  # one answer has both
            with raises(nvml, "NOT_SUPPORTED"):
                question(nvml, handles[0])
        else:
            assert question(nvml, handles[0]) == value
    assert nvml.nvmlDeviceGetClockInfo(handles[0], nvml.NVML_CLOCK_MEM) == 1593


@pytest.mark.parametrize("struck", QUESTIONS)
def test_an_absurd_reading_is_shown_as_it_comes_and_the_others_are_sane(
    nvml: Any, gpus: Any, handles: list[Any], readings: Any, struck: str
) -> None:
    gpus.gpu[0].absurd = getattr(readings, struck)
    for (name, question), sane, absurd in zip(QUESTIONS.items(), SANE, ABSURD, strict=True):
        assert question(nvml, handles[0]) == (absurd if name == struck else sane)
        assert question(nvml, handles[2]) != absurd


def test_samples_and_fields_show_the_same_faults_as_the_readings(
    nvml: Any, gpus: Any, handles: list[Any], readings: Any
) -> None:
    gpus.gpu[0].absurd, gpus.gpu[0].missing = readings.POWER, readings.GPU_UTILIZATION
    power, *_ = nvml.nvmlDeviceGetFieldValues(handles[0], [nvml.NVML_FI_DEV_POWER_INSTANT])
    assert power.value.uiVal == 4_000_000
    _, taken = nvml.nvmlDeviceGetSamples(handles[0], nvml.NVML_TOTAL_POWER_SAMPLES, 0)
    assert {sample.sampleValue.uiVal for sample in taken} == {4_000_000}
    with raises(nvml, "NOT_SUPPORTED"):
        nvml.nvmlDeviceGetSamples(handles[0], nvml.NVML_GPU_UTILIZATION_SAMPLES, 0)
    _, memory = nvml.nvmlDeviceGetSamples(handles[0], nvml.NVML_MEMORY_UTILIZATION_SAMPLES, 0)
    assert {sample.sampleValue.uiVal for sample in memory} == {40}


def test_refused_settings_change_nothing(nvml: Any, gpus: Any, handles: list[Any], faults: Any) -> None:
    gpus.gpu[0].faults = faults.SET_REFUSED
    attempts: list[Callable[[], None]] = [
        lambda: nvml.nvmlDeviceSetGpuLockedClocks(handles[0], 0, 1095),
        lambda: nvml.nvmlDeviceResetGpuLockedClocks(handles[0]),
        lambda: nvml.nvmlDeviceSetPowerManagementLimit(handles[0], 200_000),
        lambda: nvml.nvmlDeviceSetPersistenceMode(handles[0], 0),
    ]
    for setting in attempts:
        with raises(nvml, "NO_PERMISSION"):
            setting()
    assert (gpus.gpu[0].lock_seq, gpus.gpu[0].limit_seq, gpus.gpu[0].persistence) == (0, 0, 1)
    assert nvml.nvmlDeviceGetPowerUsage(handles[0]) == 251_000


def test_a_slow_gpu_takes_its_time_for_every_call(nvml: Any, gpus: Any, handles: list[Any], faults: Any) -> None:
    gpus.slow_ms, gpus.gpu[0].faults = 30, faults.SLOW
    started = time.monotonic()
    nvml.nvmlDeviceGetPowerUsage(handles[0])
    slow_s = time.monotonic() - started
    assert slow_s >= 0.03


def test_in_virtual_time_a_slow_call_is_handed_to_the_clocks_owner(
    library: ctypes.CDLL, nvml: Any, gpus: Any, handles: list[Any], faults: Any
) -> None:
    gpus.slow_ms, gpus.gpu[0].faults = 100_000, faults.SLOW
    advanced: list[int] = []
    advance = ctypes.CFUNCTYPE(None, ctypes.c_uint32)(advanced.append)
    library.twin_nvml_set_delay(advance)
    started = time.monotonic()
    nvml.nvmlDeviceSetGpuLockedClocks(handles[0], 0, 1095)
    nvml.nvmlDeviceGetPowerUsage(handles[1])
    assert advanced == [100_000]
    assert time.monotonic() - started < PATIENCE_S
