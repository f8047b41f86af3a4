"""GPM: means of activity between two samples, on Hopper and no card before it."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

METRICS = ("GRAPHICS_UTIL", "SM_UTIL", "SM_OCCUPANCY", "DRAM_BW_UTIL", "FP64_UTIL", "HMMA_TENSOR_UTIL")


def raises(nvml: Any, code: str) -> Any:
    return pytest.raises(nvml.nvmlExceptionClass(getattr(nvml, f"NVML_ERROR_{code}")))


@pytest.fixture
def samples(nvml: Any) -> Iterator[list[Any]]:
    taken = [nvml.nvmlGpmSampleAlloc() for _ in range(2)]
    yield taken
    for sample in taken:
        nvml.nvmlGpmSampleFree(sample)


def request(nvml: Any, first: Any, second: Any, metrics: tuple[str, ...] = METRICS) -> Any:
    wanted = nvml.c_nvmlGpmMetricsGet_t(version=nvml.NVML_GPM_METRICS_GET_VERSION, numMetrics=len(metrics))
    wanted.sample1, wanted.sample2 = first, second
    for i, metric in enumerate(metrics):
        wanted.metrics[i].metricId = getattr(nvml, f"NVML_GPM_METRIC_{metric}")
    return wanted


def test_only_hopper_supports_it(nvml: Any, handles: list[Any], samples: list[Any]) -> None:
    assert [nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice for handle in handles] == [0, 1, 0]
    for handle in (handles[0], handles[2]):
        with raises(nvml, "NOT_SUPPORTED"):
            nvml.nvmlGpmSampleGet(handle, samples[0])


def test_a_metric_is_the_mean_share_between_two_samples_in_percent(
    nvml: Any, gpus: Any, handles: list[Any], samples: list[Any], publish: Callable[..., None]
) -> None:
    publish(gpus.gpu[1], gpm_time_s=100.0, gpm_sm_active_s=50.0, gpm_sm_occupancy_s=10.0)
    nvml.nvmlGpmSampleGet(handles[1], samples[0])
    publish(
        gpus.gpu[1],
        gpm_time_s=102.0,
        gpm_graphics_s=2.0,
        gpm_sm_active_s=51.5,
        gpm_sm_occupancy_s=10.5,
        gpm_dram_active_s=1.0,
        gpm_fp_s=0.2,
    )
    nvml.nvmlGpmSampleGet(handles[1], samples[1])
    got = nvml.nvmlGpmMetricsGet(request(nvml, *samples))
    assert [got.metrics[i].value for i in range(5)] == pytest.approx([100.0, 75.0, 25.0, 50.0, 10.0])
    assert [got.metrics[i].nvmlReturn for i in range(6)] == [0] * 5 + [nvml.NVML_ERROR_NOT_SUPPORTED]
    assert math.isnan(got.metrics[5].value)
    assert got.metrics[2].metricInfo.unit == b"%"


def test_two_samples_of_one_instant_have_no_data(nvml: Any, handles: list[Any], samples: list[Any]) -> None:
    for sample in samples:
        nvml.nvmlGpmSampleGet(handles[1], sample)
    got = nvml.nvmlGpmMetricsGet(request(nvml, *samples))
    assert got.metrics[0].nvmlReturn == nvml.NVML_ERROR_NO_DATA
    assert math.isnan(got.metrics[0].value)


def test_samples_never_read_freed_or_of_two_gpus_are_refused(
    nvml: Any, gpus: Any, handles: list[Any], samples: list[Any]
) -> None:
    with raises(nvml, "INVALID_ARGUMENT"):
        nvml.nvmlGpmMetricsGet(request(nvml, *samples))
    gpus.gpu[0].has_gpm = 1
    for handle, sample in zip(handles, samples, strict=False):
        nvml.nvmlGpmSampleGet(handle, sample)
    with raises(nvml, "INVALID_ARGUMENT"):
        nvml.nvmlGpmMetricsGet(request(nvml, *samples))
    freed = nvml.nvmlGpmSampleAlloc()
    nvml.nvmlGpmSampleFree(freed)
    with raises(nvml, "INVALID_ARGUMENT"):
        nvml.nvmlGpmSampleGet(handles[1], freed)
    with raises(nvml, "INVALID_ARGUMENT"):
        nvml.nvmlGpmSampleFree(ctypes.cast(ctypes.c_void_p(64), type(freed)))


def test_an_older_request_version_is_refused(nvml: Any, handles: list[Any], samples: list[Any]) -> None:
    wanted = request(nvml, *samples)
    wanted.version = 0
    with raises(nvml, "ARGUMENT_VERSION_MISMATCH"):
        nvml.nvmlGpmMetricsGet(wanted)


def test_samples_can_be_had_again_after_they_were_freed(nvml: Any) -> None:
    for _ in range(3):
        taken = []
        with raises(nvml, "MEMORY"):
            while True:
                taken.append(nvml.nvmlGpmSampleAlloc())
        assert len(taken) >= 512
        for sample in taken:
            nvml.nvmlGpmSampleFree(sample)


def test_a_metric_may_be_missing_or_absurd_while_the_others_are_sane(
    nvml: Any, gpus: Any, handles: list[Any], samples: list[Any], readings: Any, publish: Callable[..., None]
) -> None:
    gpus.gpu[1].missing, gpus.gpu[1].absurd = readings.GPM_SM_ACTIVE, readings.GPM_DRAM_ACTIVE
    publish(gpus.gpu[1], gpm_time_s=1.0, gpm_graphics_s=0.0)
    nvml.nvmlGpmSampleGet(handles[1], samples[0])
    publish(gpus.gpu[1], gpm_time_s=2.0, gpm_graphics_s=0.5)
    nvml.nvmlGpmSampleGet(handles[1], samples[1])
    got = nvml.nvmlGpmMetricsGet(request(nvml, *samples))
    graphics, active, _, dram, *_ = (got.metrics[i] for i in range(6))
    assert (graphics.nvmlReturn, graphics.value) == (0, pytest.approx(50.0))
    assert active.nvmlReturn == nvml.NVML_ERROR_NOT_SUPPORTED and math.isnan(active.value)
    assert (dram.nvmlReturn, dram.value) == (0, pytest.approx(65535.0))
