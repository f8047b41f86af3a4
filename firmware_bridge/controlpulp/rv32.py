"""The rv32 image run in this process by the Unicorn emulator, in virtual time.

Unicorn has neither a timer nor interrupt lines, so this module emulates both: whenever the core waits (WFI), virtual
time moves on to the next event, and the trap is entered as the hardware would with interrupts enabled. Jobs take no
virtual time; their instructions are counted on demand. Host and image share the wires and mailboxes at ``SHARED``
(``shared_memory.py``).
"""

from __future__ import annotations

import importlib
import importlib.util
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

from firmware_bridge.controlpulp.shared_memory import MAGIC, RIG, SHARED, TIME_BY_TIMER, SharedMemory

RAM, RAM_BYTES = 0x8000_0000, 0x10_0000
CLINT = 0x0200_0000
UART = 0x1000_0000
TICK_US = 125
START_LIMIT_US = 20_000_000
"""Ours, of real time: a start takes some milliseconds of a processor, which a busy machine may give late."""
COMPILER = "riscv64-unknown-elf-gcc"

_TIMER, _SOFTWARE = 0x8000_0007, 0x8000_0003
_MIE = 8


def missing() -> str | None:
    """Names a missing tool and the package to install; None when the image can be built and run."""
    if shutil.which(COMPILER) is None:
        return f"{COMPILER} is missing: install gcc-riscv64-unknown-elf"
    if importlib.util.find_spec("unicorn") is None:
        return "unicorn is missing: pip install unicorn"
    return None


def build(output: Path, *flags: str) -> Path:
    """Compiles the image with these compiler flags (``-DPUBLISHED=1``)."""
    script = Path(__file__).parent / "boards/rv32/build.sh"
    subprocess.run(["sh", str(script), str(output), *flags], check=True, capture_output=True, text=True)
    return output


def load_segments(image: bytes) -> list[tuple[int, bytes]]:
    """Address and content of each loadable segment of a 32-bit little-endian ELF."""
    if image[:6] != b"\x7fELF\x01\x01":
        raise ValueError("not a 32-bit little-endian ELF")
    (table,) = struct.unpack_from("<I", image, 28)
    entry_size, count = struct.unpack_from("<HH", image, 42)
    segments = []
    for i in range(count):
        kind, offset, _, address, size = struct.unpack_from("<5I", image, table + i * entry_size)
        if kind == 1 and size:
            segments.append((address, image[offset : offset + size]))
    return segments


def symbol(image: Path, name: str) -> int:
    """The address of a symbol."""
    listing = subprocess.run(["riscv64-unknown-elf-nm", str(image)], check=True, capture_output=True, text=True).stdout
    return next(int(line.split()[0], 16) for line in listing.splitlines() if line.split()[2] == name)


def symbol_range(image: Path, name: str) -> range:
    """The addresses of a function, of which the compiler may have made a special one."""
    listing = subprocess.run(["riscv64-unknown-elf-nm", "-S", str(image)], check=True, capture_output=True, text=True)
    rows = map(str.split, listing.stdout.splitlines())
    start, size, *_ = next(row for row in rows if row[-1].partition(".")[0] == name)
    return range(int(start, 16), int(start, 16) + int(size, 16))


class Rv32Controller(SharedMemory):
    """The image after reset, waiting for its first tick, unless it has refused to run. The mailbox methods are those of
    ``HostController``. ``start_limit_us``: of real time; an image that has not started by then is a RuntimeError."""

    def __init__(
        self,
        image: Path,
        *,
        count: bool = False,
        time_mode: int = TIME_BY_TIMER,
        start_limit_us: int = START_LIMIT_US,
    ) -> None:
        self.line_in, self.line_out = bytearray(), bytearray()
        """The serial line, if the image was built with ``-DSERIAL=1``."""
        self._is_divisor = False
        unicorn: Any = importlib.import_module("unicorn")
        self._reg: Any = importlib.import_module("unicorn.riscv_const")
        self._memory = np.zeros(RAM_BYTES, dtype=np.uint8)
        super().__init__(self._memory[SHARED - RAM :])
        self._uc: Any = unicorn.Uc(unicorn.UC_ARCH_RISCV, unicorn.UC_MODE_RISCV32)
        self._uc.mem_map_ptr(RAM, RAM_BYTES, unicorn.UC_PROT_ALL, self._memory.ctypes.data)
        self._uc.mmio_map(CLINT, 0x1_0000, self._read_clint, None, self._write_clint, None)
        self._uc.mmio_map(UART, 0x1000, self._read_uart, None, self._write_uart, None)
        for address, content in load_segments(image.read_bytes()):
            self._memory[address - RAM : address - RAM + len(content)] = np.frombuffer(content, dtype=np.uint8)
        self.words("rig")[0] = RIG | time_mode
        self.now_us = 0
        self.instructions = 0
        self._sizes: dict[int, int] = {}
        if count:
            self._uc.hook_add(unicorn.UC_HOOK_BLOCK, self._count_block)
        self._pc = RAM
        self._run(start_limit_us)
        if self.words("magic")[0] != MAGIC and not self.has_refused:
            raise RuntimeError(f"the image did not start; it stopped at {self._pc:#x}")

    def memory_at(self, address: int, size: int) -> Any:
        """Bytes of RAM; the view is live."""
        return self._memory[address - RAM :][:size]

    # ---- processor ----

    def _read_clint(self, _uc: Any, offset: int, _size: int, _data: Any) -> int:
        time = self.now_us * 10
        return {0xBFF8: time & 0xFFFFFFFF, 0xBFFC: time >> 32}.get(offset, 0)

    def _write_clint(self, _uc: Any, _offset: int, _size: int, _value: int, _data: Any) -> None:
        """Ignores writes: the tick's period is fixed, and taking a doorbell clears it."""

    def _read_uart(self, _uc: Any, offset: int, _size: int, _data: Any) -> int:
        """Line status and received bytes. The transmitter is always empty."""
        if offset == 5:
            return 0x60 | bool(self.line_in)
        return self.line_in.pop(0) if offset == 0 and self.line_in else 0

    def _write_uart(self, _uc: Any, offset: int, _size: int, value: int, _data: Any) -> None:
        if offset == 3:
            self._is_divisor = bool(value & 0x80)
        elif offset == 0 and not self._is_divisor:
            self.line_out.append(value & 0xFF)

    def _count_block(self, _uc: Any, address: int, size: int, _data: Any) -> None:
        known = self._sizes.get(address << 16 | size)
        if known is None:
            known, at = 0, address - RAM
            while at < address - RAM + size:
                at += 4 if self._memory[at] & 3 == 3 else 2
                known += 1
            self._sizes[address << 16 | size] = known
        self.instructions += known

    def _run(self, limit_us: int = 0) -> None:
        """Runs until the core waits, at most for so long in real time."""
        self._uc.emu_start(self._pc, RAM + RAM_BYTES, limit_us)
        self._pc = self._uc.reg_read(self._reg.UC_RISCV_REG_PC)
        before = self._memory[self._pc - RAM - 4 : self._pc - RAM].tobytes()
        if before != b"\x73\x00\x50\x10":
            raise RuntimeError(f"the core stopped at {self._pc:#x}, not in WFI")

    def _trap(self, cause: int) -> int:
        """Enters the trap from WFI, where interrupts are masked; returns the instructions until the next WFI."""
        uc, reg = self._uc, self._reg
        before = self.instructions
        uc.reg_write(reg.UC_RISCV_REG_MEPC, self._pc)
        uc.reg_write(reg.UC_RISCV_REG_MCAUSE, cause)
        status = uc.reg_read(reg.UC_RISCV_REG_MSTATUS)
        uc.reg_write(reg.UC_RISCV_REG_MSTATUS, status & ~(_MIE | _MIE << 4) | 0x1800)
        self._pc = uc.reg_read(reg.UC_RISCV_REG_MTVEC)
        self._run()
        return self.instructions - before

    def tick(self) -> int:
        """Triggers the timer's next tick, then moves time on by 125 us. Returns the instructions, if counted."""
        spent = self._trap(_TIMER)
        self.now_us += TICK_US
        return spent

    def doorbell(self) -> int:
        """Triggers the doorbell's interrupt."""
        return self._trap(_SOFTWARE)

    def send(self, channel: int, message: bytes) -> int:
        """Writes a message and rings the doorbell; the image serves it at once. Returns the instructions, if
        counted."""
        super().send(channel, message)
        return self.doorbell()
