"""How the library finds its GPUs: attached in process, or a file filled by another process. And who may write there."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cffi
import pytest

pynvml: Any = pytest.importorskip("pynvml", reason="nvidia-ml-py is missing: install it")

Runner = Callable[..., subprocess.CompletedProcess[str]]


def attach(library: ctypes.CDLL, gpus: Any) -> int:
    address = None if gpus is None else int(cffi.FFI().cast("uintptr_t", gpus))
    answer: int = library.twin_nvml_attach(address)
    return answer


def raises(code: str) -> Any:
    return pytest.raises(pynvml.nvmlExceptionClass(getattr(pynvml, f"NVML_ERROR_{code}")))


# ---------------------------------------------------------------- in process


def test_a_later_attachment_replaces_the_earlier_one_under_the_same_handles(
    library: ctypes.CDLL, nvml: Any, handles: list[Any], cards: Any, gpus: Any
) -> None:
    cards.gpu[0].power_mw, cards.n_gpus = 99_000, 1
    assert attach(library, cards) == 0
    assert nvml.nvmlDeviceGetPowerUsage(handles[0]) == 99_000
    with raises("INVALID_ARGUMENT"):
        nvml.nvmlDeviceGetPowerUsage(handles[1])  # the second node has one card
    assert attach(library, gpus) == 0
    assert nvml.nvmlDeviceGetPowerUsage(handles[1]) == 251_000


def test_detached_while_initialised_every_call_says_uninitialized(
    library: ctypes.CDLL, nvml: Any, handles: list[Any], gpus: Any
) -> None:
    attach(library, None)
    with raises("UNINITIALIZED"):
        nvml.nvmlDeviceGetPowerUsage(handles[0])
    attach(library, gpus)
    assert nvml.nvmlDeviceGetPowerUsage(handles[0]) == 251_000


def test_memory_that_is_no_gpu_state_is_not_attached(library: ctypes.CDLL, cards: Any) -> None:
    for field in ("magic", "version", "size"):
        original = getattr(cards, field)
        setattr(cards, field, original + 1)
        assert attach(library, cards) == pynvml.NVML_ERROR_INVALID_ARGUMENT
        setattr(cards, field, original)
    cards.n_gpus = 17
    assert attach(library, cards) == pynvml.NVML_ERROR_INVALID_ARGUMENT


def test_init_and_shutdown_are_counted(gpus: Any, library: ctypes.CDLL) -> None:
    for _ in range(2):
        pynvml.nvmlInit()
    pynvml.nvmlShutdown()
    assert pynvml.nvmlDeviceGetCount() == 3
    pynvml.nvmlShutdown()


# ---------------------------------------------------------------- from another process


def test_without_a_twin_the_driver_is_not_loaded(library_file: Path) -> None:
    if Path("/run/nodectl-twin/gpus").exists():
        pytest.skip("a served twin is running in this mount namespace")
    script = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).nvmlInit_v2())"
    result = subprocess.run(
        [sys.executable, "-c", script, str(library_file)], capture_output=True, text=True, check=True
    )
    assert int(result.stdout) == pynvml.NVML_ERROR_DRIVER_NOT_LOADED


def test_a_file_that_is_no_gpu_state_is_a_driver_not_loaded(run_in_node: Runner, tmp_path: Path) -> None:
    script = "import ctypes; print(ctypes.CDLL('libnvidia-ml.so.1').nvmlInit_v2())"
    for content in (b"", b"short", bytes(200_000)):
        (tmp_path / "gpus").write_bytes(content)
        result = run_in_node(sys.executable, "-c", script)
        assert result.stdout.split() == [str(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)], result.stderr


ACT = """
import pynvml
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(1)
print(pynvml.nvmlDeviceGetName(gpu), pynvml.nvmlDeviceGetPowerUsage(gpu))
pynvml.nvmlDeviceSetGpuLockedClocks(gpu, 0, 1201)
pynvml.nvmlDeviceSetPowerManagementLimit(gpu, 300_000)
"""


def test_another_process_reads_the_shared_state_and_its_requests_arrive_there(
    run_in_node: Runner, write_state: Any, read_state: Any, cards: Any
) -> None:
    path = write_state(cards)
    result = run_in_node(sys.executable, "-c", ACT)
    assert result.stdout.strip() == "NVIDIA H100 80GB HBM3 251000", result.stderr
    left = read_state(path).gpu[1]
    assert (left.lock_min_mhz, left.lock_max_mhz, left.lock_seq) == (345, 1200, 1)
    assert (left.power_limit_mw, left.limit_seq) == (300_000, 1)


UNPRIVILEGED = """
import json, os, pynvml
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
os.seteuid(65534)
outcomes = []
for setting in (
    lambda: pynvml.nvmlDeviceSetGpuLockedClocks(gpu, 0, 1095),
    lambda: pynvml.nvmlDeviceResetGpuLockedClocks(gpu),
    lambda: pynvml.nvmlDeviceSetPowerManagementLimit(gpu, 200_000),
    lambda: pynvml.nvmlDeviceSetPersistenceMode(gpu, 0),
):
    try:
        setting()
    except pynvml.NVMLError as error:
        outcomes.append(error.value)
print(json.dumps([outcomes, pynvml.nvmlDeviceGetPowerUsage(gpu)]))
"""


def test_a_process_without_root_reads_but_may_not_set(
    run_in_node: Runner, write_state: Any, read_state: Any, cards: Any
) -> None:
    path = write_state(cards)
    result = run_in_node(sys.executable, "-c", UNPRIVILEGED)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == [[pynvml.NVML_ERROR_NO_PERMISSION] * 4, 251_000]
    assert read_state(path).gpu[0].lock_seq == 0


READ_ONLY = """
import pynvml
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
print(pynvml.nvmlDeviceGetPowerUsage(gpu))
try:
    pynvml.nvmlDeviceSetGpuLockedClocks(gpu, 0, 1095)
except pynvml.NVMLError as error:
    print(error.value)
"""


def test_state_that_cannot_be_written_is_read_only_even_to_root(
    run_in_node: Runner, write_state: Any, cards: Any
) -> None:
    path = write_state(cards)
    remount = f"mount --bind {path} {path} && mount -o remount,ro,bind {path} && exec {sys.executable} -c '{READ_ONLY}'"
    result = run_in_node("sh", "-c", remount)
    assert result.stdout.split() == ["251000", str(pynvml.NVML_ERROR_NO_PERMISSION)], result.stderr


RACE = """
import sys, pynvml
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
mhz = int(sys.argv[1])
for _ in range(3000):
    pynvml.nvmlDeviceSetGpuLockedClocks(gpu, mhz, mhz)
"""


def test_two_processes_that_lock_clocks_at_once_leave_one_whole_request(
    run_in_node: Runner, write_state: Any, read_state: Any, cards: Any
) -> None:
    path = write_state(cards)
    both = f"{sys.executable} -c '{RACE}' 1005 & {sys.executable} -c '{RACE}' 1395 & wait"
    result = run_in_node("sh", "-c", both)
    assert result.returncode == 0, result.stderr
    left = read_state(path).gpu[0]
    assert left.lock_seq == 6000
    assert (left.lock_min_mhz, left.lock_max_mhz) in ((1005, 1005), (1395, 1395))
