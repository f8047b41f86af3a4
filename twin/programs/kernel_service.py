"""Calibration's kernels on a served twin: commands of the control socket.

A kernel ends with the connection that started it, so a calibration that is killed leaves none running.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from twin.errors import TwinError
from twin.physics.model import Twin
from twin.programs.kernels import KernelRun


class KernelService:
    """The node's one kernel, and the connection that owns it."""

    def __init__(self, twin: Twin, seed: int) -> None:
        self._run = KernelRun(twin, seed)
        self._owner: KernelConversation | None = None
        self._lock = threading.Lock()

    def conversation(self) -> KernelConversation:
        """The commands of a new connection."""
        return KernelConversation(self)

    def start(self, owner: KernelConversation, given: Mapping[str, Any]) -> None:
        """Start a kernel; TwinError if one runs, or this one cannot."""
        cpus = [int(cpu) for cpu in given["cpus"]]
        with self._lock:
            self._run.start(str(given["kernel"]), float(given["flops_per_byte"]), cpus)
            self._owner = owner

    def units(self, owner: KernelConversation) -> float:
        """Units done; TwinError if this connection has started no kernel."""
        with self._lock:
            if self._owner is not owner:
                raise TwinError("this connection has started no kernel")
            return self._run.units()

    def stop(self, owner: KernelConversation) -> None:
        """End the connection's kernel, if it has one."""
        with self._lock:
            if self._owner is owner:
                self._run.stop()
                self._owner = None

    @property
    def cpus(self) -> tuple[int, ...]:
        """The logical CPUs of the node."""
        return self._run.cpus

    @property
    def gpus(self) -> tuple[int, ...]:
        """The GPUs of the node."""
        return self._run.gpus


class KernelConversation:
    """One connection: ``kernel-cpus``, ``kernel-gpus``, ``kernel-start``, ``kernel-units``, ``kernel-stop``."""

    def __init__(self, service: KernelService) -> None:
        self._service = service
        self.commands: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
            "kernel-cpus": lambda _: service.cpus,
            "kernel-gpus": lambda _: service.gpus,
            "kernel-start": lambda given: service.start(self, given),
            "kernel-units": lambda _: service.units(self),
            "kernel-stop": lambda _: service.stop(self),
        }

    def close(self) -> None:
        """The connection has ended."""
        self._service.stop(self)
