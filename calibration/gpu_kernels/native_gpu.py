"""GPU kernels on this node's cards: a thread launches them one after the other, and counts what has ended.

Launches take some 10 ms and are started in pairs, so the card waits for the host some 10 us of 20 ms (estimated). Of
``gpu-fma`` the result of every thread is compared with what exact arithmetic gives, now and then and at the end; of
``gpu-stream`` numbers at both ends of the array, at the end. The tests have no card: they assemble the PTX
and call a driver of their own.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping, Sequence
from ctypes import c_float, c_uint32, c_uint64
from pathlib import Path
from typing import Any, Final

import msgspec

from calibration.gpu_kernels.cuda_driver import LIBRARY, MULTIPROCESSORS, CudaDevice
from calibration.kernels.port import GPU_FMA, GPU_KERNELS, Kernel, KernelError, check_cpus, check_kernel
from pmu.ports import Ports

PTX: Final = Path(__file__).with_name("kernels.ptx")

CHAINS: Final = 4
START, ONE, FACTOR, B, C = 1.0, 1.0, 3.0, 1.0, 2.0

COMPARED: Final = 1 << 16
"""Ours: numbers of ``gpu-stream`` that are compared at the end, from the beginning and from the end of the array."""

READY_S: Final = 30.0
"""Ours: the driver translates the PTX at the first start, which takes a second or so."""


class GpuPlan(msgspec.Struct, frozen=True):
    """How large a launch is: blocks of each multiprocessor, threads of a block, steps of a chain, numbers of an array.
    Ours: 2048 threads fill a multiprocessor; 2^18 steps and 2^26 numbers take 5 to 20 ms. A sum of four chains stays
    below 2^24, so it is exact."""

    blocks: int = 8
    threads: int = 256
    steps: int = 1 << 18
    numbers: int = 1 << 26


STANDARD: Final = GpuPlan()


def gpu_kernels(ports: Ports) -> GpuKernels:
    """On the GPUs that NVML finds. ``KernelError`` if there is none."""
    nvml = ports.nvml
    if nvml is None:
        raise KernelError(f"no GPU: {ports.nvml_why}")
    try:
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByIndex(gpu) for gpu in range(nvml.nvmlDeviceGetCount())]
        found = [nvml.nvmlDeviceGetPciInfo(handle).busId for handle in handles]
    except nvml.NVMLError as error:
        raise KernelError(f"no GPU: {error}") from None
    if not found:
        raise KernelError("no GPU: the driver has none")
    return GpuKernels(
        {gpu: one if isinstance(one, str) else one.decode() for gpu, one in enumerate(found)}, STANDARD, LIBRARY
    )


class GpuKernels:
    """A ``KernelPort`` whose "CPUs" are the GPUs, by NVML's numbers. ``bus_ids``: their PCI bus ids."""

    is_emulated: Final = False

    def __init__(self, bus_ids: Mapping[int, str], plan: GpuPlan, library: str) -> None:
        self._bus_ids, self._plan, self._library = dict(bus_ids), plan, library
        self._runs: list[_Run] = []

    @property
    def cpus(self) -> tuple[int, ...]:
        """The GPUs."""
        return tuple(sorted(self._bus_ids))

    def kernels(self) -> tuple[Kernel, ...]:
        """Both."""
        return GPU_KERNELS

    def start(self, kernel: Kernel, cpus: Sequence[int]) -> None:
        """Start it on each of these GPUs; returns when all of them compute."""
        if self._runs:
            raise KernelError("a kernel runs already: stop it first")
        check_kernel(kernel, GPU_KERNELS)
        check_cpus(cpus, self.cpus, "GPU")
        self._runs = [_Run(kernel, gpu, self._bus_ids[gpu], self._plan, self._library) for gpu in cpus]
        try:
            for run in self._runs:
                run.wait_until_ready()
        except KernelError:
            self._end()
            raise

    def units_done(self) -> float:
        """Of all launches that have ended. ``KernelError`` if a card has failed."""
        for run in self._runs:
            run.check()
        return sum(run.units for run in self._runs)

    def stop(self) -> None:
        """End it after the launch that runs, and verify."""
        runs = self._end()
        for run in runs:
            run.check()

    def _end(self) -> list[_Run]:
        runs, self._runs = self._runs, []
        for run in runs:
            run.is_over.set()
        for run in runs:
            run.thread.join()
        return runs


class _Run:
    """One kernel on one GPU, in a thread that owns the context."""

    def __init__(self, kernel: Kernel, gpu: int, bus_id: str, plan: GpuPlan, library: str) -> None:
        self._kernel, self._gpu, self._bus_id, self._plan, self._library = kernel, gpu, bus_id, plan, library
        self.units = 0.0
        self.is_over, self._is_ready = threading.Event(), threading.Event()
        self._error: KernelError | None = None
        self.thread = threading.Thread(target=self._run, name=f"gpu-kernel-{gpu}", daemon=True)
        self.thread.start()

    def wait_until_ready(self) -> None:
        """Until the first launch has ended."""
        if not self._is_ready.wait(READY_S):
            raise KernelError(f"GPU {self._gpu}: the kernel has not started within {READY_S:g} s")
        self.check()

    def check(self) -> None:
        """Raise what has gone wrong."""
        if self._error:
            raise self._error

    def _run(self) -> None:
        try:
            device = CudaDevice(self._bus_id, PTX.read_bytes() + b"\0", self._library)
            try:
                self._launch_all(device)
            finally:
                device.close()
        except KernelError as error:
            self._error = KernelError(f"GPU {self._gpu}: {error}")
        finally:
            self._is_ready.set()

    def _launch_all(self, device: CudaDevice) -> None:
        work = _Fma(device, self._plan) if self._kernel == GPU_FMA else _Stream(device, self._plan)
        for pair in itertools.count(1):
            work.launch()
            work.launch()
            device.wait()
            self.units += 2 * work.units
            self._is_ready.set()
            if self.is_over.is_set():
                work.compare()
                return
            if pair % work.compare_every == 0:
                work.compare()


class _Fma:
    compare_every = 64  # ours: to copy the results takes some 1 % of a pair

    def __init__(self, device: CudaDevice, plan: GpuPlan) -> None:
        self._device, self._plan = device, plan
        self._blocks = plan.blocks * device.attribute(MULTIPROCESSORS)
        self._threads = self._blocks * plan.threads
        self._out = device.floats(self._threads)
        self._function = device.function("nodectl_fma")
        self.units = 2.0 * CHAINS * plan.steps * self._threads

    def launch(self) -> None:
        """Start it once."""
        steps, start, one = c_uint32(self._plan.steps), c_float(START), c_float(ONE)
        self._device.launch(self._function, self._blocks, self._plan.threads, c_uint64(self._out), steps, start, one)

    def compare(self) -> None:
        """Of every thread."""
        _compare(self._device.read(self._out, self._threads), CHAINS * (START + self._plan.steps))


class _Stream:
    compare_every = 1 << 62  # at the end only: copies take bandwidth

    def __init__(self, device: CudaDevice, plan: GpuPlan) -> None:
        needed = 3 * 4 * plan.numbers
        if device.free_bytes() < 2 * needed:
            raise KernelError(f"gpu-stream needs {needed >> 20} MiB, more than half of the free memory")
        self._device, self._plan = device, plan
        self._blocks = plan.blocks * device.attribute(MULTIPROCESSORS)
        self._arrays = [device.floats(plan.numbers, value) for value in (0.0, B, C)]
        self._function = device.function("nodectl_stream")
        self.units = 12.0 * plan.numbers

    def launch(self) -> None:
        """Start it once."""
        arrays: list[Any] = [c_uint64(address) for address in self._arrays]
        arguments = (*arrays, c_uint64(self._plan.numbers), c_float(FACTOR))
        self._device.launch(self._function, self._blocks, self._plan.threads, *arguments)

    def compare(self) -> None:
        """Some from both ends."""
        number = min(COMPARED, self._plan.numbers)
        for first in (0, self._plan.numbers - number):
            _compare(self._device.read(self._arrays[0] + 4 * first, number), B + FACTOR * C)


def _compare(found: Sequence[float], expected: float) -> None:
    wrong = next((at for at, value in enumerate(found) if value != expected), None)
    if wrong is not None:
        raise KernelError(f"computed wrongly: {found[wrong]:g} in place of {expected:g} (number {wrong})")
