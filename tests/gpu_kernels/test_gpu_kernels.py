"""GPU kernels without a GPU: the PTX is assembled by ptxas, and a driver of the tests executes what it says."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from calibration.commands import calibrate_kernels
from calibration.gpu_kernels import native_gpu
from calibration.gpu_kernels.native_gpu import CHAINS, PTX, START, GpuKernels, GpuPlan
from calibration.kernels.kernel_speed import measure_speed
from calibration.kernels.port import FMA, GPU_FMA, GPU_STREAM, Kernel, KernelError, running
from nodectl.cli import main
from pmu.system import MonotonicClock, system_ports
from tests.waiting import PATIENCE_S, within

ROOT = Path(__file__).parents[2]
PTXAS = ROOT / "build" / "foreign-python"
BUS_ID = "00000000:3B:00.0"
PLAN = GpuPlan(blocks=2, threads=32, steps=64, numbers=4096)
SMS = 2


def ptxas() -> str:
    found = next(PTXAS.rglob("nvidia/cuda_nvcc/bin/ptxas"), None) if PTXAS.exists() else None
    return str(found) if found else shutil.which("ptxas") or ""


@pytest.mark.skipif(not ptxas(), reason="no ptxas: install it with `make setup` (nvidia-cuda-nvcc-cu12 of PyPI)")
@pytest.mark.parametrize("card", ["sm_75", "sm_80", "sm_90"])
def test_the_ptx_is_assembled_for_several_cards_without_spilling(card: str, tmp_path: Path) -> None:
    path = Path(ptxas())
    path.chmod(path.stat().st_mode | 0o100)  # a wheel does not keep it
    command = [str(path), f"-arch={card}", "-v", "-o", str(tmp_path / "kernels.cubin"), str(PTX)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"(\d+) bytes spill stores", done.stderr) == ["0", "0"]
    assert {name for name in ("nodectl_fma", "nodectl_stream") if name in done.stderr} == {
        "nodectl_fma",
        "nodectl_stream",
    }
    assert max(map(int, re.findall(r"Used (\d+) registers", done.stderr))) <= 32, "2048 threads fill a multiprocessor"


def test_the_loop_of_the_ptx_has_the_work_that_is_counted() -> None:
    body = PTX.read_text().split("nodectl_fma", 1)[1].split("nodectl_stream")[0]
    loop = body.split("loop:")[1].split("bra loop")[0]
    assert loop.count("fma.rn.f32") == CHAINS * int(re.search(r"sub\.u32 %left, %left, (\d+)", loop)[1])  # type: ignore[index]
    stream = PTX.read_text().split("nodectl_stream")[-1].split("loop:")[1].split("bra loop")[0]
    assert (stream.count("ld.global.f32"), stream.count("st.global.f32")) == (2, 1), "12 bytes"
    assert CHAINS * (START + GpuPlan().steps) < 2**24, "sums stay exact"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    made = tmp_path_factory.mktemp("driver") / "libcuda-stub.so"
    source = Path(__file__).with_name("stub_cuda.c")
    subprocess.run(["cc", "-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off", "-shared", "-fPIC",
                    "-o", str(made), str(source)], check=True)  # fmt: skip
    return str(made)


def left(library: str) -> int:
    return int(ctypes.CDLL(library).stub_left())


@pytest.mark.parametrize("kernel", [GPU_FMA, GPU_STREAM], ids=["fma", "stream"])
def test_a_kernel_counts_its_work_verifies_it_and_leaves_nothing_on_the_card(kernel: Kernel, library: str) -> None:
    port = GpuKernels({3: BUS_ID}, PLAN, library)
    launch = 2 * CHAINS * PLAN.steps * PLAN.blocks * SMS * PLAN.threads if kernel == GPU_FMA else 12 * PLAN.numbers
    with running(port, kernel, [3]):
        first = port.units_done()
        assert first > 0 and first % launch == 0
        assert within(PATIENCE_S, lambda: port.units_done() > first)
        with pytest.raises(KernelError, match="runs already"):
            port.start(kernel, [3])
    assert left(library) == 0
    speed = measure_speed(port, MonotonicClock(), kernel, (3,), 0.2)
    assert speed.units_per_s > 0 and not speed.is_emulated


@pytest.mark.parametrize("kernel", [GPU_FMA, GPU_STREAM], ids=["fma", "stream"])
def test_a_card_that_computes_wrongly_is_found(kernel: Kernel, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUB_CUDA", "wrong")
    port = GpuKernels({0: BUS_ID}, PLAN, library)
    with pytest.raises(KernelError, match=r"GPU 0: computed wrongly: .* in place of"):
        port.start(kernel, [0])
        time.sleep(0.01)
        port.stop()
    assert left(library) == 0


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("no-device", "GPU 0: cuInit: no CUDA-capable device is detected"),
        ("old", "is older than Volta"),
        ("launch", "GPU 0: cuLaunchKernel: unspecified launch failure"),
    ],
)
def test_what_the_driver_refuses_is_one_line(
    how: str, message: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUB_CUDA", how)
    port = GpuKernels({0: BUS_ID}, PLAN, library)
    with pytest.raises(KernelError, match=message) as raised:
        port.start(GPU_FMA, [0])
    assert "\n" not in str(raised.value) and left(library) == 0
    port.stop()


def test_without_a_driver_or_memory_and_with_a_wrong_request_it_is_one_line(library: str) -> None:
    with pytest.raises(KernelError, match="GPU 0: no CUDA driver here: "):
        GpuKernels({0: BUS_ID}, PLAN, "libcuda-is-not-here.so.1").start(GPU_FMA, [0])
    large = GpuPlan(numbers=1 << 20)
    with pytest.raises(KernelError, match="gpu-stream needs 12 MiB, more than half of the free memory"):
        GpuKernels({0: BUS_ID}, large, library).start(GPU_STREAM, [0])
    port = GpuKernels({0: BUS_ID}, PLAN, library)
    with pytest.raises(KernelError, match="no kernel fma: there are gpu-fma"):
        port.start(FMA, [0])
    with pytest.raises(KernelError, match="GPU 1: this process may not run there, or the node has no such GPU"):
        port.start(GPU_FMA, [1])
    assert left(library) == 0


def nvml_of(bus_ids: list[bytes]) -> SimpleNamespace:
    """As much of pynvml as finds cards."""
    return SimpleNamespace(
        NVMLError=RuntimeError, nvmlInit=lambda: None, nvmlDeviceGetCount=lambda: len(bus_ids),
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetPciInfo=lambda handle: SimpleNamespace(busId=bus_ids[handle]),
    )  # fmt: skip


def test_the_command_measures_the_gpus_that_nvml_finds(
    library: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ports = system_ports()
    monkeypatch.setattr(native_gpu, "LIBRARY", library)
    monkeypatch.setattr(native_gpu, "STANDARD", PLAN)
    for bus_ids, status, text in (([BUS_ID.encode()], 0, "gpu-stream"), ([], 1, "no GPU: the driver has none")):
        found = replace(ports, nvml=nvml_of(bus_ids))
        monkeypatch.setattr(calibrate_kernels, "system_ports", lambda found=found: found)
        assert main(["calibrate", "kernels", "--gpus", "--seconds", "0.1"]) == status
        shown = capsys.readouterr()
        assert text in shown.out + shown.err
