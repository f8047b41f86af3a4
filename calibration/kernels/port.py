"""The port through which a calibration runs kernels: it sees units of work, and nothing of who does them.

A kernel is a small program whose work is counted in *units*: floating-point operations, bytes or loads. The work of a
unit is the same at every clock and on every CPU, so units per second are a speed. ``native`` runs our own C on this
node's CPUs, ``gpu_kernels.native_gpu`` our own PTX on its GPUs: there "CPUs" are GPUs. ``emulated`` has an emulated
node execute the kernel, by a truth that calibration never sees.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Protocol

import msgspec

from foundation.shell.errors import NodectlError

type_unit = str
"""``flops`` (a multiply-add is two), ``bytes`` (each read and each write of the program) or ``loads``."""

FINEST_FLOPS_PER_BYTE: Final = 0.25
MOST_FLOPS_PER_BYTE: Final = 64.0
"""A mix reads 8 bytes and does 1 to 256 multiply-adds with them."""


class KernelError(NodectlError):
    """A kernel cannot run here, or its result is wrong."""


class Kernel(msgspec.Struct, frozen=True):
    """``flops_per_byte``: of a mix; 0 of the others."""

    name: str
    unit: type_unit
    summary: str
    flops_per_byte: float = 0.0


FMA: Final = Kernel("fma", "flops", "independent chains of multiply-adds in registers: bound by the clock")
STREAM: Final = Kernel("stream", "bytes", "triad over arrays far above the last-level cache: bound by bandwidth")
CHASE: Final = Kernel("chase", "loads", "one dependent load after the other, in random order: bound by latency")


def mix(flops_per_byte: float) -> Kernel:
    """The kernel that reads an array and does this many floating-point operations per byte; a multiple of
    ``FINEST_FLOPS_PER_BYTE``. ``KernelError`` for another."""
    steps = flops_per_byte / FINEST_FLOPS_PER_BYTE
    if steps != round(steps) or not FINEST_FLOPS_PER_BYTE <= flops_per_byte <= MOST_FLOPS_PER_BYTE:
        raise KernelError(
            f"mix: {flops_per_byte:g} flops per byte is no multiple of {FINEST_FLOPS_PER_BYTE:g} up to"
            f" {MOST_FLOPS_PER_BYTE:g}"
        )
    return Kernel("mix", "flops", "multiply-adds on numbers read from memory: between the two", flops_per_byte)


KERNELS: Final = (FMA, STREAM, CHASE, mix(1.0))

GPU_FMA: Final = Kernel("gpu-fma", "flops", "chains of single-precision multiply-adds in registers: bound by the clock")
GPU_STREAM: Final = Kernel("gpu-stream", "bytes", "triad over arrays far above the L2 cache: bound by bandwidth")
GPU_KERNELS: Final = (GPU_FMA, GPU_STREAM)


class KernelPort(Protocol):
    """Runs one kernel at a time. Errors are ``KernelError``, one line each."""

    @property
    def is_emulated(self) -> bool:
        """Whether an emulated node does the work. Emulated and native figures never share a table."""

    @property
    def cpus(self) -> tuple[int, ...]:
        """The logical CPUs on which kernels can run, ascending."""

    def kernels(self) -> tuple[Kernel, ...]:
        """The kernels that run here; ``mix`` stands for every intensity that ``mix()`` makes."""

    def start(self, kernel: Kernel, cpus: Sequence[int]) -> None:
        """Start one thread on each of these logical CPUs; returns when all of them compute. Another kernel must not be
        running."""

    def units_done(self) -> float:
        """Units that all threads have done since the start. Never falls; counts whole blocks, of some 10 to 100 us of a
        thread."""

    def stop(self) -> None:
        """End the kernel and verify its result: an error if the CPU computed wrongly. Does nothing when none runs."""


@contextmanager
def running(port: KernelPort, kernel: Kernel, cpus: Sequence[int]) -> Iterator[None]:
    """``with running(port, kernel, cpus): ...``: the kernel is stopped, and its result verified, in any case."""
    port.start(kernel, cpus)
    try:
        yield
    finally:
        port.stop()


def check_kernel(kernel: Kernel, kernels: Sequence[Kernel] = KERNELS) -> None:
    """``KernelError`` unless it is one of ``kernels``, or a mix of an intensity that there is."""
    known = mix(kernel.flops_per_byte) if kernel.name == "mix" else next((k for k in kernels if k == kernel), None)
    if kernel != known:
        raise KernelError(f"no kernel {kernel.name}: there are {', '.join(each.name for each in kernels)}")


def check_cpus(cpus: Sequence[int], known: Sequence[int], what: str = "CPU") -> None:
    """``KernelError`` unless ``cpus`` are different logical CPUs (or GPUs: ``what``), at least one, among ``known``."""
    if not cpus:
        raise KernelError(f"no {what} was given for the kernel")
    if len(set(cpus)) < len(cpus):
        twice = next(cpu for cpu in cpus if cpus.count(cpu) > 1)
        raise KernelError(f"{what} {twice} was given twice: a kernel runs once on each {what}")
    if unknown := sorted(set(cpus) - set(known)):
        raise KernelError(f"{what} {unknown[0]}: this process may not run there, or the node has no such {what}")
