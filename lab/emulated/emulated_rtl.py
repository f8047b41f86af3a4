"""An emulated controller on a core in RTL as a service: its chip is the twin's, and agents reach it over a serial line.

Slower than real time by two orders of magnitude: a slot of 500 us takes a tenth of a second. An idle core is skipped,
and then this waits, so that its time never runs ahead of the world's.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import numpy as np

from firmware_bridge.controlpulp import rtl, rtl_litex
from firmware_bridge.controlpulp.rtl_board import RtlBoard
from firmware_bridge.controlpulp.shared_memory import TIME_BY_TIMER
from firmware_bridge.errors import LinkError
from foundation.shell.errors import NodectlError
from nodectl.loop.interruptions import Interruptions
from pmu.system import MonotonicClock
from twin.pulp.plant import CLASSES, CORES, Plant
from twin.rtl import LITEX, library, litex_headers

_IDLE_CORE_W: Final = 4.0
BAUD: Final = 921600
SLOWDOWN: Final = 500
"""For the client's timeouts. Ours: some 120 on a machine with nothing else to do, up to 3000 seen on a busy one; an
answer takes 2 ms of the controller's time, of the 250 after which the client repeats its command."""
LINE: Final = "line"
"""The name of the line in the folder: a link to the pty."""


def serve(
    folder: Path, core: str, load: int, trace: Path | None, wave: Path | None, tell: Callable[[str], None]
) -> None:
    """Serve until SIGINT, SIGTERM or SIGHUP. Raises ``NodectlError`` when it cannot start."""
    reason = rtl.missing()
    if reason:
        raise NodectlError(reason)
    try:
        model = library(core, "wave" if wave else "plain")
        folder.mkdir(parents=True, exist_ok=True)
        with Interruptions(MonotonicClock()) as interruptions, tempfile.TemporaryDirectory() as temporary:
            image = Path(temporary) / "controlpulp.elf"
            start = _litex if core == LITEX else _core
            board = RtlBoard(start(image, model, trace, wave))
            with contextlib.closing(board), _linked(folder / LINE, board.pty) as line:
                tell(f"EMULATED controlpulp on {core} in RTL, {CORES} cores with instructions of class {load}")
                tell(f"ospm: scmi+serial://{line.absolute()}?baud={BAUD}&slowdown={SLOWDOWN}")
                _run(board, load, interruptions)
    except (FileNotFoundError, LinkError) as error:
        raise NodectlError(str(error)) from None


def _core(image: Path, model: Path, trace: Path | None, wave: Path | None) -> rtl.RtlController:
    rtl.build(image, *rtl.LINE_FLAGS)
    return rtl.RtlController(image, model, TIME_BY_TIMER, trace=trace, wave=wave)


def _litex(image: Path, model: Path, trace: Path | None, wave: Path | None) -> rtl.RtlController:
    rtl_litex.build(image, litex_headers())
    return rtl_litex.LitexController(image, model, TIME_BY_TIMER, trace=trace, wave=wave)


def _run(board: RtlBoard, load: int, interruptions: Interruptions) -> None:
    plant = Plant()
    plant.capacitance[:] = CLASSES[load]
    plant.settle(np.full(CORES, _IDLE_CORE_W))
    plant.wire(board.controller.wires())
    began_s = time.monotonic()
    while not interruptions.is_over():
        board.step()
        now_s = board.controller.counts().cycles / rtl.CLOCK_HZ
        plant.advance_to(round(now_s * 1e9))
        time.sleep(max(0.0, began_s + now_s - time.monotonic()))


@contextlib.contextmanager
def _linked(link: Path, pty: str) -> Iterator[Path]:
    link.unlink(missing_ok=True)
    link.symlink_to(pty)
    try:
        yield link
    finally:
        link.unlink(missing_ok=True)
