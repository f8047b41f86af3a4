"""Rigs with a core in RTL: the rv32 image on VexRiscv, on CV32E40P and on a LiteX SoC, cycle by cycle (``twin/rtl``).

A slot takes a tenth of a second of a processor, so these rigs run only by ``make hil-rtl``, and only the
scenarios that fit.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Final

import numpy as np
import serial
from numpy.typing import NDArray

from firmware_bridge.controlpulp import rtl, rtl_litex
from firmware_bridge.controlpulp.rtl_board import PTY_PATIENCE_S, RtlBoard
from firmware_bridge.controlpulp.shared_memory import TIME_BY_LINE
from firmware_bridge.scmi.transports.lock_step import LockStepLine
from hil_tests.serial_rigs import BAUD, FpgaRig
from hil_tests.virtual_rigs import TICK_NS, VirtualRig
from tests.firmware.images import image
from twin.rtl import LITEX, library, litex_headers, missing

VARIABLE: Final = "NODECTL_HIL_RTL"
LINE_PATIENCE_S: Final = 0.1
"""Of the board's time: a slot with its two frames takes 5 ms."""


def why_not(core: str) -> str | None:
    """Why this core does not run here and now."""
    if VARIABLE not in os.environ:
        return "a core in RTL takes minutes: make hil-rtl runs it"
    return rtl.missing() or missing(core)


class RtlRig(VirtualRig):
    """A core with mailboxes in its RAM. Its time is given tick by tick; cycles are counted."""

    core: ClassVar[str]
    most_slots = 500

    @classmethod
    def missing(cls) -> str | None:
        """The variable, compiler and model."""
        return why_not(cls.core)

    def make_controller(self) -> tuple[Any, dict[str, NDArray[np.int32]]]:
        """The image after reset."""
        controller = self.start_core()
        return controller, controller.wires()

    def start_core(self) -> rtl.RtlController:
        """The core with its image."""
        return rtl.RtlController(image(*rtl.LINK_FLAGS, f"-DBYPASS={self.has_bypass:d}"), library(self.core))

    def kill(self) -> None:
        """Switch the core off."""
        if self._controller:
            self._controller.close()
        super().kill()

    def stop(self) -> None:
        """Power off."""
        super().stop()
        self.kill()

    def tick(self) -> None:
        """Give a tick when it is due."""
        if self._now_ns % TICK_NS == 0:
            self._controller.tick()


class VexRiscvRig(RtlRig):
    """VexRiscv, as LiteX has it: with caches."""

    name = "rtl-vexriscv"
    core = "vexriscv"


class Cv32e40pRig(RtlRig):
    """CV32E40P, the core family of ControlPULP: without caches."""

    name = "rtl-cv32e40p"
    core = "cv32e40p"


class LitexRig(RtlRig):
    """A whole SoC of LiteX: its own timer, bus and caches. A slot takes half a second."""

    name = "rtl-litex"
    core = LITEX
    most_slots = 70

    def start_core(self) -> rtl.RtlController:
        """The SoC with its image."""
        return rtl_litex.LitexController(litex_image(f"-DBYPASS={self.has_bypass:d}"), library(self.core))


class BoardPort:
    """The client's end of the pty. The board's time passes, tick by tick, only while the client waits for a byte."""

    def __init__(self, board: RtlBoard) -> None:
        self._board = board
        self._port = serial.Serial(board.pty, BAUD, timeout=PTY_PATIENCE_S)
        self._read = board.sent

    @property
    def in_waiting(self) -> int:
        """Bytes that can be read without waiting."""
        return self._board.sent - self._read

    def read(self, size: int, /) -> bytes:
        """The bytes that are there; if there are none, those of the next tick."""
        if not self.in_waiting:
            self._board.step()
        count = min(size, self.in_waiting)
        data = bytes(self._port.read(count)) if count else b""
        self._read += len(data)
        return data

    def write(self, data: bytes, /) -> int:
        """Writes to the line."""
        self._port.write(data)
        self._board.await_bytes(len(data))
        return len(data)

    def close(self) -> None:
        """Closes the device."""
        self._port.close()


class BoardClock:
    """The board's time."""

    def __init__(self, board: RtlBoard) -> None:
        self._board = board

    def now_s(self) -> float:
        """Seconds since its reset."""
        return self._board.now_s()

    def sleep(self, duration_s: float) -> None:
        """Lets the board run."""
        until_s = self.now_s() + duration_s
        while self.now_s() < until_s:
            self._board.step()


class RtlLineRig(FpgaRig):
    """CV32E40P as an FPGA board: nothing but a serial line of 921600 baud, on a pty."""

    name = "rtl-line"
    most_slots = 70
    cannot: ClassVar[Mapping[Any, str]] = FpgaRig.cannot

    def __init__(self, folder: Path) -> None:
        model = rtl.RtlController(image(*rtl.LINK_FLAGS, *rtl.LINE_FLAGS), library("cv32e40p"), TIME_BY_LINE)
        self._board = RtlBoard(model)
        super().__init__(folder)

    @classmethod
    def missing(cls) -> str | None:
        """As the others."""
        return why_not("cv32e40p")

    def open_line(self) -> LockStepLine:
        """The pty. All timeouts count the board's time."""
        self._cable = BoardPort(self._board)
        return LockStepLine(self._cable, self._board.pty, LINE_PATIENCE_S, BoardClock(self._board))

    def is_quiet(self) -> bool:
        """The model knows of each byte."""
        return self.port is None or (self._board.has_settled() and not self._cable.in_waiting)

    def stop(self) -> None:
        """Close the line, then switch the board off."""
        super().stop()
        self._board.close()


@cache
def _images() -> TemporaryDirectory[str]:
    """Goes with this process."""
    return TemporaryDirectory(prefix="hil-rtl-")


@cache
def litex_image(*flags: str) -> Path:
    """The image for the LiteX SoC, built once for all scenarios."""
    return rtl_litex.build(Path(_images().name) / f"litex{''.join(flags)}.elf", litex_headers(), *flags)
