"""Kernels on an emulated node: the node executes them, and answers with units done.

Nothing of the node's truth is here, neither its physics nor what a kernel costs it. A *host* executes kernels:
``ServedHost`` is a served node's control socket; ``lab.emulated.emulated_kernels`` has one of a node in this process,
in virtual time.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Sequence
from typing import Any, Final, Protocol

import msgspec

from calibration.kernels.port import GPU_KERNELS, KERNELS, Kernel, KernelError, check_cpus, check_kernel

CONTROL: Final = "/run/nodectl-twin/control"
"""The control socket of the node on which this process is served; absent on a real one."""

_ANSWER_S: Final = 10.0
_LONGEST_LINE: Final = 1 << 20


class KernelHost(Protocol):
    """Executes kernels by name. Errors are ``KernelError``."""

    @property
    def cpus(self) -> tuple[int, ...]:
        """The logical CPUs on which it can."""

    @property
    def gpus(self) -> tuple[int, ...]:
        """The GPUs on which it can run ``GPU_KERNELS``."""

    def start(self, name: str, flops_per_byte: float, cpus: Sequence[int]) -> None:
        """Start a thread on each CPU, or a GPU kernel on each GPU."""

    def units(self) -> float:
        """Units done since the start."""

    def stop(self) -> None:
        """End the kernel."""


class EmulatedKernels:
    """A ``KernelPort`` over a host's CPUs, or its GPUs. The node's time is whatever the host's is: virtual, or real."""

    is_emulated: Final = True

    def __init__(self, host: KernelHost, *, on_gpus: bool = False) -> None:
        self._host, self._on_gpus = host, on_gpus
        self._units = 0.0
        self._is_running = False

    @property
    def cpus(self) -> tuple[int, ...]:
        """Those of the node; its GPUs."""
        return self._host.gpus if self._on_gpus else self._host.cpus

    def kernels(self) -> tuple[Kernel, ...]:
        """All of them: an emulated node has no compiler to do without."""
        return GPU_KERNELS if self._on_gpus else KERNELS

    def start(self, kernel: Kernel, cpus: Sequence[int]) -> None:
        """Start it in the node's time."""
        if self._is_running:
            raise KernelError("a kernel runs already: stop it first")
        check_kernel(kernel, self.kernels())
        check_cpus(cpus, self.cpus, "GPU" if self._on_gpus else "CPU")
        self._host.start(kernel.name, kernel.flops_per_byte, cpus)
        self._is_running, self._units = True, 0.0

    def units_done(self) -> float:
        """Units at the node's present time."""
        if self._is_running:
            self._units = max(self._units, self._host.units())
        return self._units

    def stop(self) -> None:
        """End it. The emulated CPU never computes wrongly."""
        if self._is_running:
            self._is_running = False
            self._host.stop()


class _Answer(msgspec.Struct):
    result: Any = None
    error: str = ""


class ServedHost:
    """The served node that this process runs on, by its control socket. The kernel ends with the connection."""

    def __init__(self, path: str = CONTROL) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(_ANSWER_S)
        try:
            self._socket.connect(path)
        except OSError as error:
            self._socket.close()
            raise KernelError(f"{path}: the emulated node does not answer: {error.strerror}") from None
        self._lines = self._socket.makefile("rb")
        self.cpus, self.gpus = tuple(self.request("kernel-cpus")), tuple(self.request("kernel-gpus"))

    def start(self, name: str, flops_per_byte: float, cpus: Sequence[int]) -> None:
        """``kernel-start``."""
        self.request("kernel-start", kernel=name, flops_per_byte=flops_per_byte, cpus=list(cpus))

    def units(self) -> float:
        """``kernel-units``."""
        return float(self.request("kernel-units"))

    def stop(self) -> None:
        """``kernel-stop``."""
        self.request("kernel-stop")

    def close(self) -> None:
        """Close the connection, and with it the kernel."""
        with contextlib.suppress(OSError):
            self._lines.close()
        self._socket.close()

    def request(self, do: str, **arguments: Any) -> Any:
        """A command of the control socket, and its result. ``KernelError`` in one line."""
        try:
            self._socket.sendall(msgspec.json.encode({"do": do, "with": arguments}) + b"\n")
            line = self._lines.readline(_LONGEST_LINE)
        except OSError as error:
            raise KernelError(f"the emulated node does not answer: {error.strerror or error}") from None
        if not line:
            raise KernelError("the emulated node has ended")
        answer = msgspec.json.decode(line, type=_Answer)
        if answer.error:
            raise KernelError(answer.error)
        return answer.result


def is_served() -> bool:
    """Whether this process runs on a served emulated node."""
    return os.path.exists(CONTROL)
