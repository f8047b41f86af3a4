"""The rv32 image on a core in RTL, simulated in this process cycle by cycle.

The model is a library around a core (``twin/rtl/soc.h`` has its functions and timing), the image the one for FPGAs,
linked for the model's addresses. Time is the core's clock. The rig gives ticks by a word in RAM (``TIME_BY_WORD``), or
the timer or frames on the serial line make them, as on a board.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from firmware_bridge.controlpulp import rv32
from firmware_bridge.controlpulp.shared_memory import MAGIC, REFUSED, RIG, SHARED, TIME_BY_WORD, SharedMemory
from firmware_bridge.errors import LinkError

CLOCK_HZ: Final = 500_000_000
"""ControlPULP's clock."""
RAM_BASE, WINDOW_BASE, RAM_BYTES = 0x4000_0000, 0x8000_0000, 0x10_0000
"""The same RAM twice. VexRiscv caches the first, and neither the second nor the devices behind it."""
CLINT_BASE, UART_BASE, WATCHDOG_BASE = 0xF001_0000, 0xF000_1000, 0xF002_0000
UART_CLOCK_HZ = 14_745_600
LINK_FLAGS: Final = (
    f"-Wl,--defsym=soc_ram={RAM_BASE:#x}",
    f"-Wl,--defsym=soc_window={WINDOW_BASE + SHARED - rv32.RAM:#x}",
    f"-Wl,--defsym=soc_clint={CLINT_BASE:#x}",
    f"-Wl,--defsym=soc_uart={UART_BASE:#x}",
    "-DUART_STRIDE=4",
)
TICK_CYCLES: Final = CLOCK_HZ // 8000
_START_CYCLES: Final = 5_000_000
"""Ours: a start takes a fifth of it."""
_HANG_CYCLES: Final = 20_000_000
"""Ours: 40 ms of the core's time; a job takes a hundredth of it."""

_CYCLES, _WAITS, _WORD = range(3)
_NO_WORD: Final = 0xFFFF_FFFF


class _Options(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint32)
        for name in (
            *("ram_base", "alias_base", "ram_bytes", "watchdog_base", "watchdog_cycles", "clint_base", "uart_base"),
            *("clock_hz", "timebase_hz", "uart_clock_hz", "ram_cycles", "mmio_cycles", "skips_idle"),
        )
    ]


class Counts(ctypes.Structure):
    """What the model counted since reset, in cycles of the clock and in instructions."""

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            *("cycles", "retired", "skipped", "woken_at", "last_retired_at"),
            *("core_retired", "overruns", "resets", "bus_errors", "line_bytes_in_flight"),
        )
    ]
    cycles: int
    retired: int
    skipped: int
    woken_at: int
    last_retired_at: int
    core_retired: int
    overruns: int
    resets: int
    bus_errors: int
    line_bytes_in_flight: int


def missing() -> str | None:
    """Names a missing compiler and the package to install."""
    if shutil.which(rv32.COMPILER) is None:
        return f"{rv32.COMPILER} is missing: install gcc-riscv64-unknown-elf"
    return None


def build(output: Path, *flags: str) -> Path:
    """Compiles the image for the model's addresses, with these further flags."""
    return rv32.build(output, *LINK_FLAGS, *flags)


LINE_FLAGS: Final = ("-DSERIAL=1", f"-DUART_CLOCK_HZ={UART_CLOCK_HZ}u")
"""For an image that uses the serial line."""
WATCHDOG_FLAGS: Final = (f"-Wl,--defsym=soc_watchdog={WATCHDOG_BASE:#x}",)
"""For an image that feeds the model's watchdog."""


def _functions(library: Path) -> Any:
    lib: Any = ctypes.CDLL(str(library))
    lib.rtl_new.restype = ctypes.c_void_p
    lib.rtl_run.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint32]
    lib.rtl_count.argtypes = [ctypes.c_void_p, ctypes.POINTER(Counts)]
    lib.rtl_profile.argtypes = [ctypes.c_void_p] * 4
    for name in ("rtl_put", "rtl_get"):
        getattr(lib, name).argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint32]
    for name in ("rtl_trace", "rtl_wave"):
        getattr(lib, name).argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    for name in ("rtl_software_interrupt", "rtl_free"):
        getattr(lib, name).argtypes = [ctypes.c_void_p]
    return lib


class RtlController(SharedMemory):
    """The core after reset, with its image, until it waits for its first tick or has refused to run."""

    _devices = (CLINT_BASE, UART_BASE)

    def __init__(
        self,
        image: Path,
        library: Path,
        time_mode: int = TIME_BY_WORD,
        *,
        ram_cycles: int = 1,
        mmio_cycles: int = 8,
        watchdog_cycles: int = 0,
        skips_idle: bool = True,
        trace: Path | None = None,
        wave: Path | None = None,
    ) -> None:
        self._memory = np.zeros(RAM_BYTES, dtype=np.uint8)
        super().__init__(self._memory[SHARED - rv32.RAM :])
        for address, content in rv32.load_segments(image.read_bytes()):
            at = address - RAM_BASE
            self._memory[at : at + len(content)] = np.frombuffer(content, dtype=np.uint8)
        self.words("rig")[0] = RIG | time_mode
        self._lib = _functions(library)
        options = _Options(
            *(RAM_BASE, WINDOW_BASE, RAM_BYTES, WATCHDOG_BASE, watchdog_cycles, *self._devices),
            *(CLOCK_HZ, 10_000_000, UART_CLOCK_HZ, ram_cycles, mmio_cycles, skips_idle),
        )
        ram = ctypes.c_void_p(self._memory.ctypes.data)
        self._model: Any = ctypes.c_void_p(self._lib.rtl_new(ram, ctypes.byref(options)))
        if trace:
            self._record("rtl_trace", trace)
        if wave:
            self._record("rtl_wave", wave)
        self.run(_START_CYCLES, until_waiting=True, word="magic", value=REFUSED)
        if self.words("magic")[0] != MAGIC and not self.has_refused:
            raise LinkError("the image did not start on the RTL model")

    def _record(self, what: str, path: Path) -> None:
        status = getattr(self._lib, what)(self._model, os.fsencode(path))
        if status == errno.ENOSYS:
            raise LinkError("this model has no waveforms: build it with `twin/rtl/build.sh CORE wave`")
        if status:
            raise LinkError(f"{path}: {os.strerror(status)}")

    def close(self) -> None:
        """Ends the model, and with it traces and waveforms."""
        if self._model:
            self._lib.rtl_free(self._model)
            self._model = None

    # ---- time ----

    def run(self, cycles: int, *, until_waiting: bool = False, word: str | None = None, value: int = 0) -> int:
        """Runs the core; ``word`` names a field of struct shared that ends the run when it has the value."""
        offset = _NO_WORD
        if word is not None:
            address = self.words(word).ctypes.data
            offset = address - self._memory.ctypes.data
        return int(self._lib.rtl_run(self._model, cycles, until_waiting, offset, value & 0xFFFF_FFFF))

    def counts(self) -> Counts:
        """What the model has counted."""
        counts = Counts()
        self._lib.rtl_count(self._model, ctypes.byref(counts))
        return counts

    def awake_cycles(self) -> int:
        """Cycles from the first instruction after the core waited to the latest one."""
        counts = self.counts()
        return counts.last_retired_at - counts.woken_at + 1

    def tick(self) -> int:
        """Lets the image run a tick's jobs (``TIME_BY_WORD``), until it waits again. Returns the cycles."""
        given = self.words("ticks_given")
        given[0] += 1
        if self.run(_HANG_CYCLES, word="ticks_done", value=int(given[0])) != _WORD:
            raise LinkError("a tick has not ended on the RTL model")
        self._run_until_waiting()
        return self.awake_cycles()

    def _run_until_waiting(self) -> None:
        if self.run(_HANG_CYCLES, until_waiting=True) != _WAITS:
            raise LinkError("the image does not come to rest on the RTL model")

    # ---- agents ----

    def send(self, channel: int, message: bytes) -> int:
        """Writes a message and rings the doorbell; the image serves it at once. Returns the cycles."""
        super().send(channel, message)
        self._lib.rtl_software_interrupt(self._model)
        self._run_until_waiting()
        return self.awake_cycles()

    # ---- serial line ----

    def put(self, content: bytes) -> None:
        """Sends bytes to the image's serial line; they arrive at the line's speed."""
        self._lib.rtl_put(self._model, content, len(content))

    def get(self) -> bytes:
        """The bytes that have arrived from the image."""
        buffer = ctypes.create_string_buffer(4096)
        count = self._lib.rtl_get(self._model, buffer, len(buffer))
        return buffer.raw[:count]

    # ---- measurement ----

    def profile(self) -> tuple[NDArray[np.uint64], NDArray[np.uint32], NDArray[np.uint64]]:
        """Per halfword of RAM, from now on: instructions that retired there, the most cycles that one took, and their
        sum."""
        self._profile = (
            np.zeros(RAM_BYTES // 2, np.uint64),
            np.zeros(RAM_BYTES // 2, np.uint32),
            np.zeros(RAM_BYTES // 2, np.uint64),
        )
        self._lib.rtl_profile(self._model, *(ctypes.c_void_p(array.ctypes.data) for array in self._profile))
        return self._profile
