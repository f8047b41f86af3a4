"""Rigs with a core in RTL: the rv32 image on VexRiscv and on CV32E40P, simulated cycle by cycle (``twin/rtl``).

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
from numpy.typing import NDArray

from firmware_bridge.controlpulp import rtl
from firmware_bridge.controlpulp.shared_memory import TIME_BY_LINE
from hil_tests.serial_rigs import BAUD, FpgaRig
from hil_tests.virtual_rigs import TICK_NS, VirtualRig
from twin.rtl import library, missing

VARIABLE: Final = "NODECTL_HIL_RTL"


def _why_not(core: str) -> str | None:
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
        return _why_not(cls.core)

    def make_controller(self) -> tuple[Any, dict[str, NDArray[np.int32]]]:
        """The image after reset."""
        controller = rtl.RtlController(_image(), library(self.core))
        return controller, controller.wires()

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


class RtlLineRig(FpgaRig):
    """CV32E40P as an FPGA board: nothing but a serial line of 921600 baud, on a pty."""

    name = "rtl-line"
    most_slots = 70
    cannot: ClassVar[Mapping[Any, str]] = FpgaRig.cannot

    def __init__(self, folder: Path) -> None:
        model = rtl.RtlController(_image(*rtl.LINE_FLAGS), library("cv32e40p"), TIME_BY_LINE)
        self._board = rtl.RtlBoard(model)
        self._board.start()
        super().__init__(folder)

    @classmethod
    def missing(cls) -> str | None:
        """As the others."""
        return _why_not("cv32e40p")

    def device(self) -> str:
        """The pty."""
        return f"{self._board.pty}?baud={BAUD}"

    def stop(self) -> None:
        """Close the line, then switch the board off."""
        super().stop()
        self._board.close()


@cache
def _images() -> TemporaryDirectory[str]:
    """Goes with this process."""
    return TemporaryDirectory(prefix="hil-rtl-")


@cache
def _image(*flags: str) -> Path:
    """Built once for all scenarios."""
    return rtl.build(Path(_images().name) / f"controlpulp-{len(flags)}.elf", *flags)
