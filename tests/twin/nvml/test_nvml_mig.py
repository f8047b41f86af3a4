"""A card that is divided: mode, profiles, placements, instances and MIG devices, as the real nvidia-ml-py sees them."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pmu.instruments.gpu import Gpus, find
from pmu.readings import GPU_FIELDS, RAW_MISSING
from tests.twin.nvml.conftest import FFI

A100, H100, V100 = range(3)
ONE, TWO, THREE, FOUR, WHOLE, DOUBLE, MEDIA = 19, 14, 9, 5, 0, 15, 20
"""Identifiers of profiles: 1g, 2g, 3g, 4g, 7g, 1g with twice the memory, 1g with the media engines."""


def raises(nvml: Any, code: str) -> Any:
    return pytest.raises(nvml.nvmlExceptionClass(getattr(nvml, f"NVML_ERROR_{code}")))


def switched_on(nvml: Any, card: Any) -> Any:
    assert nvml.nvmlDeviceSetMigMode(card, 1) == 0
    return card


def placed(nvml: Any, instance: Any) -> tuple[int, int, int]:
    """Identifier, start and size of a GPU instance."""
    info = nvml.nvmlGpuInstanceGetInfo(instance)
    return info.id, info.placement.start, info.placement.size


def devices(nvml: Any, card: Any) -> list[Any]:
    found = []
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(card)):
        try:
            found.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(card, index))
        except nvml.NVMLError_NotFound:
            break
    return found


def placements(nvml: Any, card: Any, profile: int) -> list[tuple[int, int]]:
    rows = (nvml.c_nvmlGpuInstancePlacement_t * 8)()
    count = ctypes.c_uint(8)
    nvml.nvmlDeviceGetGpuInstancePossiblePlacements(card, profile, rows, ctypes.byref(count))
    return [(row.start, row.size) for row in rows[: count.value]]


# ---------------------------------------------------------------- mode


def test_a_card_that_computes_keeps_its_mode_until_it_is_idle(
    nvml: Any, gpus: Any, handles: list[Any], publish: Any
) -> None:
    card = handles[A100]
    publish(gpus.gpu[A100], process_pid=4711)
    assert nvml.nvmlDeviceSetMigMode(card, 1) == nvml.NVML_ERROR_IN_USE
    assert nvml.nvmlDeviceGetMigMode(card) == [0, 1]
    publish(gpus.gpu[A100], process_pid=0)
    assert nvml.nvmlDeviceSetMigMode(card, 1) == nvml.NVML_SUCCESS
    assert nvml.nvmlDeviceGetMigMode(card) == [1, 1]


def test_a_card_without_mig_has_no_mode_and_no_profile(nvml: Any, gpus: Any, handles: list[Any]) -> None:
    for call in (
        lambda: nvml.nvmlDeviceGetMigMode(handles[V100]),
        lambda: nvml.nvmlDeviceSetMigMode(handles[V100], 1),
        lambda: nvml.nvmlDeviceGetGpuInstanceProfileInfo(handles[V100], 0),
        lambda: nvml.nvmlDeviceCreateGpuInstance(handles[V100], ONE),
    ):
        with raises(nvml, "NOT_SUPPORTED"):
            call()
    assert gpus.gpu[V100].mig_seq == 0


def test_instances_are_made_only_in_mig_mode_which_they_hold(nvml: Any, handles: list[Any]) -> None:
    card = handles[A100]
    with raises(nvml, "NOT_SUPPORTED"):
        nvml.nvmlDeviceCreateGpuInstance(card, ONE)
    instance = nvml.nvmlDeviceCreateGpuInstance(switched_on(nvml, card), ONE)
    with raises(nvml, "IN_USE"):
        nvml.nvmlDeviceSetMigMode(card, 0)
    nvml.nvmlGpuInstanceDestroy(instance)
    assert nvml.nvmlDeviceSetMigMode(card, 0) == 0
    assert nvml.nvmlDeviceGetMigMode(card) == [0, 0]


def test_utilisation_of_a_card_in_mig_mode_is_not_known_and_its_watts_are(nvml: Any, handles: list[Any]) -> None:
    card = switched_on(nvml, handles[A100])
    with raises(nvml, "NOT_SUPPORTED"):
        nvml.nvmlDeviceGetUtilizationRates(card)
    assert nvml.nvmlDeviceGetPowerUsage(card) == 251_000


def test_a_busy_slice_of_a_divided_card_is_not_read_as_a_card_of_low_occupancy(
    nvml: Any, gpus: Any, handles: list[Any], publish: Any
) -> None:
    found, _ = find(nvml, "")
    assert [gpu.has_mig for gpu in found] == [True, True, False]
    sensors, row = Gpus(nvml, found), np.zeros((3, len(GPU_FIELDS)), np.int64)
    occupancy, watts = (GPU_FIELDS.index(name) for name in ("sm_occupancy_ppm", "power_mw"))

    def read(at_s: int) -> int:
        publish(gpus.gpu[H100], gpm_time_s=float(at_s), gpm_sm_occupancy_s=0.06 * at_s)
        sensors.sweep(at_s * 10**9, row)
        assert row[H100, watts] == 251_000
        return int(row[H100, occupancy])

    assert [read(at_s) for at_s in (1, 2)][1] == 60_000
    switched_on(nvml, handles[H100])
    assert read(3) == RAW_MISSING
    nvml.nvmlDeviceSetMigMode(handles[H100], 0)
    assert [read(at_s) for at_s in (4, 5)][1] == 60_000
    sensors.close()


# ---------------------------------------------------------------- profiles


def test_profiles_are_those_that_the_drivers_program_lists(nvml: Any, gpus: Any, handles: list[Any]) -> None:
    """Identifier, count, GiB, SMs, copy engines, decoders; from listings of such cards."""
    expected = {
        A100: {
            "MIG 1g.10gb": (ONE, 7, 9.5, 14, 1, 0),
            "MIG 2g.20gb": (TWO, 3, 19.5, 28, 2, 1),
            "MIG 3g.40gb": (THREE, 2, 39.25, 42, 3, 2),
            "MIG 4g.40gb": (FOUR, 1, 39.25, 56, 4, 2),
            "MIG 7g.80gb": (WHOLE, 1, 79.0, 98, 7, 5),
            "MIG 1g.20gb": (DOUBLE, 4, 19.5, 14, 1, 1),
            "MIG 1g.10gb+me": (MEDIA, 1, 9.5, 14, 1, 1),
        },
        H100: {
            "MIG 1g.10gb": (ONE, 7, 9.75, 16, 1, 1),
            "MIG 2g.20gb": (TWO, 3, 19.62, 32, 2, 2),
            "MIG 3g.40gb": (THREE, 2, 39.5, 60, 3, 3),
            "MIG 4g.40gb": (FOUR, 1, 39.5, 64, 4, 4),
            "MIG 7g.80gb": (WHOLE, 1, 79.25, 132, 8, 7),
            "MIG 1g.20gb": (DOUBLE, 4, 19.62, 26, 1, 1),
            "MIG 1g.10gb+me": (MEDIA, 1, 9.75, 16, 1, 1),
        },
    }
    for card, rows in expected.items():
        found = {}
        for number in range(nvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
            try:
                info = nvml.nvmlDeviceGetGpuInstanceProfileInfo(handles[card], number)
            except nvml.NVMLError_NotSupported:
                continue
            numbers = (info.multiprocessorCount, info.copyEngineCount, info.decoderCount)
            name = info.name if isinstance(info.name, str) else info.name.decode()
            found[name] = (info.id, info.instanceCount, pytest.approx(info.memorySizeMB / 1024, abs=0.01), *numbers)
        assert found == rows
    gpus.gpu[A100].memory_mib = 40960
    smallest = nvml.nvmlDeviceGetGpuInstanceProfileInfo(handles[A100], nvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE)
    assert (smallest.name, smallest.memorySizeMB) == ("MIG 1g.5gb", 4864) or smallest.name == b"MIG 1g.5gb"


def test_placements_are_those_of_the_user_guide(nvml: Any, handles: list[Any]) -> None:
    card = handles[A100]
    assert placements(nvml, card, ONE) == [(start, 1) for start in range(7)]
    assert placements(nvml, card, MEDIA) == [(start, 1) for start in range(7)]
    assert placements(nvml, card, DOUBLE) == [(0, 2), (2, 2), (4, 2), (6, 2)]
    assert placements(nvml, card, TWO) == [(0, 2), (2, 2), (4, 2)]
    assert placements(nvml, card, THREE) == [(0, 4), (4, 4)]
    assert placements(nvml, card, FOUR) == [(0, 4)]
    assert placements(nvml, card, WHOLE) == [(0, 8)]


# ---------------------------------------------------------------- instances


def test_identifiers_and_places_of_instances_are_those_of_the_user_guide(nvml: Any, handles: list[Any]) -> None:
    card = switched_on(nvml, handles[A100])
    three = [placed(nvml, nvml.nvmlDeviceCreateGpuInstance(card, THREE)) for _ in range(2)]
    assert three == [(1, 4, 4), (2, 0, 4)]
    other = switched_on(nvml, handles[H100])
    ones = [placed(nvml, nvml.nvmlDeviceCreateGpuInstance(other, ONE)) for _ in range(7)]
    assert sorted(ones) == [(7, 4, 1), (8, 5, 1), (9, 6, 1), (11, 0, 1), (12, 1, 1), (13, 2, 1), (14, 3, 1)]
    with raises(nvml, "INSUFFICIENT_RESOURCES"):
        nvml.nvmlDeviceCreateGpuInstance(other, ONE)


def test_an_instance_is_made_at_a_wanted_place_or_not_at_all(nvml: Any, gpus: Any, handles: list[Any]) -> None:
    card = switched_on(nvml, handles[A100])

    def place(start: int, size: int) -> Any:
        return ctypes.byref(nvml.c_nvmlGpuInstancePlacement_t(start, size))

    assert placed(nvml, nvml.nvmlDeviceCreateGpuInstanceWithPlacement(card, TWO, place(2, 2))) == (6, 2, 2)
    before = bytes(_instances(gpus))
    for wanted, code in ((place(1, 2), "INVALID_ARGUMENT"), (place(2, 2), "INSUFFICIENT_RESOURCES")):
        with raises(nvml, code):
            nvml.nvmlDeviceCreateGpuInstanceWithPlacement(card, TWO, wanted)
    for profile in (FOUR, WHOLE):  # they overlap it
        with raises(nvml, "INSUFFICIENT_RESOURCES"):
            nvml.nvmlDeviceCreateGpuInstance(card, profile)
    assert bytes(_instances(gpus)) == before


def _instances(gpus: Any) -> Any:
    return FFI.buffer(gpus.gpu[A100].instances)


def test_who_is_not_root_may_neither_divide_nor_list(nvml: Any, gpus: Any, handles: list[Any], faults: Any) -> None:
    card = switched_on(nvml, handles[A100])
    gpus.gpu[A100].faults = faults.SET_REFUSED
    for call in (
        lambda: nvml.nvmlDeviceSetMigMode(card, 0),
        lambda: nvml.nvmlDeviceCreateGpuInstance(card, ONE),
        lambda: nvml.nvmlDeviceGetGpuInstanceById(card, 1),
    ):
        with raises(nvml, "NO_PERMISSION"):
            call()


@given(
    wanted=st.lists(
        st.tuples(st.sampled_from([ONE, TWO, THREE, FOUR, WHOLE, DOUBLE, MEDIA]), st.booleans()), max_size=12
    )
)
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=60, deadline=None
)
def test_instances_never_overlap_and_the_remaining_capacity_is_true(
    nvml: Any, gpus: Any, handles: list[Any], wanted: list[tuple[int, bool]]
) -> None:
    card = switched_on(nvml, handles[A100])
    made: list[Any] = []
    for profile, removes_one in wanted:
        if removes_one and made:
            nvml.nvmlGpuInstanceDestroy(made.pop(0))
        left = nvml.nvmlDeviceGetGpuInstanceRemainingCapacity(card, profile)
        if left:
            made.append(nvml.nvmlDeviceCreateGpuInstance(card, profile))
        else:
            with raises(nvml, "INSUFFICIENT_RESOURCES"):
                nvml.nvmlDeviceCreateGpuInstance(card, profile)
        taken = [slot for one in made for _, start, size in [placed(nvml, one)] for slot in range(start, start + size)]
        assert len(taken) == len(set(taken)) and all(slot < 8 for slot in taken)
        assert sum(gpus.gpu[A100].instances[at].slices for at in range(15)) <= 7
    for one in made:
        nvml.nvmlGpuInstanceDestroy(one)
    nvml.nvmlDeviceSetMigMode(card, 0)


# ---------------------------------------------------------------- compute instances and MIG devices


def test_a_compute_instance_is_a_device_with_memory_of_its_own_and_no_clock(nvml: Any, handles: list[Any]) -> None:
    card = switched_on(nvml, handles[A100])
    instance = nvml.nvmlDeviceCreateGpuInstance(card, THREE)
    assert devices(nvml, card) == []
    with raises(nvml, "INVALID_ARGUMENT"):
        nvml.nvmlGpuInstanceCreateComputeInstance(instance, nvml.NVML_COMPUTE_INSTANCE_PROFILE_4_SLICE)
    parts = [nvml.nvmlGpuInstanceCreateComputeInstance(instance, profile) for profile in (1, 0)]
    with raises(nvml, "INSUFFICIENT_RESOURCES"):
        nvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
    first, second = devices(nvml, card)
    assert nvml.nvmlDeviceGetName(second) == "NVIDIA A100-SXM4-80GB MIG 1c.3g.40gb"
    assert [nvml.nvmlDeviceGetGpuInstanceId(first), nvml.nvmlDeviceGetComputeInstanceId(second)] == [1, 1]
    assert nvml.nvmlDeviceGetAttributes(first).multiprocessorCount == 28
    assert nvml.nvmlDeviceGetMemoryInfo(first).total == 40192 << 20
    assert nvml.nvmlDeviceIsMigDeviceHandle(first) and not nvml.nvmlDeviceIsMigDeviceHandle(card)
    assert nvml.nvmlDeviceGetIndex(nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(second)) == A100
    for call in (nvml.nvmlDeviceGetPowerUsage, nvml.nvmlDeviceGetUtilizationRates, nvml.nvmlDeviceGetMigMode):
        with raises(nvml, "NOT_SUPPORTED"):
            call(first)
    with raises(nvml, "IN_USE"):
        nvml.nvmlGpuInstanceDestroy(instance)
    for part in parts:
        nvml.nvmlComputeInstanceDestroy(part)
    nvml.nvmlGpuInstanceDestroy(instance)
    with raises(nvml, "INVALID_ARGUMENT"):
        nvml.nvmlDeviceGetUUID(first)


def test_an_instance_made_again_in_its_place_has_its_uuid_again(nvml: Any, handles: list[Any]) -> None:
    found = []
    for card in (A100, A100, H100):
        instance = nvml.nvmlDeviceCreateGpuInstance(switched_on(nvml, handles[card]), THREE)
        part = nvml.nvmlGpuInstanceCreateComputeInstance(instance, nvml.NVML_COMPUTE_INSTANCE_PROFILE_3_SLICE)
        uuid = nvml.nvmlDeviceGetUUID(devices(nvml, handles[card])[0])
        assert nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByUUID(uuid)) == uuid
        found.append(uuid)
        nvml.nvmlComputeInstanceDestroy(part)
        nvml.nvmlGpuInstanceDestroy(instance)
        with raises(nvml, "NOT_FOUND"):
            nvml.nvmlDeviceGetHandleByUUID(uuid)
    assert found[0] == found[1] != found[2]
    assert all(uuid.startswith("MIG-") and len(uuid) == 40 for uuid in found)
