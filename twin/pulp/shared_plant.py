"""A plant in a file that a controller in another process advances (``twin/pulp/library.c``).

This process reads the truth and breaks sensors while the controller runs. The plant outlives controllers: the next one
that opens the file finds the same temperatures and clocks.
"""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twin._pulp import ffi, lib
from twin.pulp.plant import Plant

LIBRARY = Path(__file__).parent / "libpulp.so"
"""The library for a controller's posix board (``--plant``), from the package build."""

_SENSOR_FAULT = -(2**31)


class SharedPlant(Plant):
    """36 cores in a new file at ``path``."""

    def __init__(self, path: Path, *, ambient_c: float = 25.0, cooling: float = 1.0, seed: int = 1) -> None:
        self.path = path
        size = ffi.sizeof("pulp_shared_t")
        with path.open("w+b") as file:
            file.truncate(size)
            self._file = np.frombuffer(mmap.mmap(file.fileno(), size), dtype=np.uint8)
        start = ffi.offsetof("pulp_shared_t", "plant")
        super().__init__(
            ambient_c=ambient_c, cooling=cooling, seed=seed,
            memory=self._file[start : start + ffi.sizeof("pulp_plant_t")],
        )  # fmt: skip
        self.wires = {
            name: self._shared(name, size, np.int32)
            for name, size in (
                ("temperature_mk", 36), ("capacitance_ff", 36), ("power_uw", 5), ("freq_khz", 36), ("volt_mv", 4),
            )
        }  # fmt: skip
        self.wires["temperature_mk"][:] = self.wires["power_uw"][:] = _SENSOR_FAULT
        self._trace = self._shared("trace_w", lib.PULP_SHARED_TRACE, np.float32)
        self._shared("magic", 1, np.int64)[0] = lib.PULP_SHARED_MAGIC

    def _shared(self, field: str, size: int, kind: Any) -> NDArray[Any]:
        start = ffi.offsetof("pulp_shared_t", field)
        return self._file[start : start + size * np.dtype(kind).itemsize].view(kind)

    def trace(self, slots: int) -> NDArray[np.float32]:
        """As for any plant, up to 10 s. The array is in the file, and the next trace overwrites it."""
        if slots > len(self._trace):
            raise ValueError(f"a trace of {slots} slots: the file has room for {len(self._trace)}")
        s = self._struct
        s.trace_size = 0
        s.trace_length = 0
        s.longest_advance_ns = 0
        s.trace_size = slots
        return self._trace[:slots]
