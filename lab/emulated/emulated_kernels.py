"""Calibration's kernels on an emulated node in this process: the twin executes them, in virtual or real time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from calibration.kernels.emulated import EmulatedKernels
from calibration.kernels.port import KernelError
from twin.errors import TwinError
from twin.physics.model import Twin
from twin.programs.kernels import KernelRun

_T = TypeVar("_T")


def emulated_kernels(twin: Twin, seed: int = 1, bias: float = 0.2, *, on_gpus: bool = False) -> EmulatedKernels:
    """The port of the kernels of ``twin``, on its CPUs or its GPUs; ``bias`` as of its workloads."""
    return EmulatedKernels(_TwinHost(KernelRun(twin, seed, bias)), on_gpus=on_gpus)


class _TwinHost:
    """A ``KernelHost`` whose errors are calibration's."""

    def __init__(self, run: KernelRun) -> None:
        self._run = run
        self.cpus, self.gpus = run.cpus, run.gpus

    def start(self, name: str, flops_per_byte: float, cpus: Sequence[int]) -> None:
        _translated(lambda: self._run.start(name, flops_per_byte, cpus))

    def units(self) -> float:
        return self._run.units()

    def stop(self) -> None:
        self._run.stop()


def _translated(call: Callable[[], _T]) -> _T:
    try:
        return call()
    except TwinError as error:
        raise KernelError(str(error)) from None
