"""The rv32 image in QEMU's `virt` machine: a process with a serial line on a pty and shared memory.

Time follows QEMU's clock (``TIME_BY_TIMER``), which is late on a loaded machine, or the rig controls it: in ticks of
125 us by a word in shared memory (``TIME_BY_WORD``), or in control slots by frames on the line (``TIME_BY_LINE``, as
for an FPGA). If the rig controls time, a busy machine makes a run slower and changes nothing else.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy as np

from firmware_bridge.controlpulp import rv32
from firmware_bridge.controlpulp.shared_memory import MAGIC, RIG, SHARED, TIME_BY_TIMER, SharedMemory
from firmware_bridge.errors import LinkError

PROGRAM: Final = "qemu-system-riscv32"
RAM_BYTES: Final = 0x100_0000
START_S: Final = 20.0
"""Ours: time limit for the start on a loaded machine; an idle one needs a quarter of a second."""


def missing() -> str | None:
    """Names a missing tool and the package to install."""
    if shutil.which(rv32.COMPILER) is None:
        return f"{rv32.COMPILER} is missing: install gcc-riscv64-unknown-elf"
    if shutil.which(PROGRAM) is None:
        return f"{PROGRAM} is missing: install qemu-system-misc"
    return None


class QemuController(SharedMemory):
    """The running image. ``pty`` is the device of its serial line, which agent 1 uses; the others have mailboxes."""

    def __init__(self, image: Path, time_mode: int = TIME_BY_TIMER) -> None:
        descriptor = os.memfd_create("controlpulp-ram")
        os.ftruncate(descriptor, RAM_BYTES)
        self._map = mmap.mmap(descriptor, RAM_BYTES)
        memory: Any = np.frombuffer(self._map, dtype=np.uint8)
        self._memory = memory
        super().__init__(memory[SHARED - rv32.RAM :])
        self.words("rig")[0] = RIG | time_mode
        self._process = subprocess.Popen(
            [*_dies_with_us(), *_command(image, descriptor)],
            pass_fds=[descriptor],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        os.close(descriptor)
        self.pty = self._find_pty()
        self._open_pty = os.open(self.pty, os.O_RDWR | os.O_NOCTTY)
        self._await(lambda: self.words("magic")[0] == MAGIC, "the image did not start")
        # QEMU checks only once a second whether its pty is open. A stray byte that arrives shows that it is; the open
        # descriptor keeps it so.
        os.write(self._open_pty, b"\0")
        self._await(lambda: self.words("line_bytes")[0] == 1, "the line did not open")

    def _find_pty(self) -> str:
        assert self._process.stdout is not None
        output = ""
        for line in self._process.stdout:
            output += line
            if "redirected to " in line:
                return line.split("redirected to ")[1].split()[0]
        return self._fail(f"did not start: {output.strip() or 'no output'}")

    def _await(self, has_come: Callable[[], bool], otherwise: str) -> None:
        deadline_s = time.monotonic() + START_S
        while not has_come():
            if self.has_refused:
                self._fail("the image is damaged and refused to run")
            if self._process.poll() is not None:
                self._fail(f"ended with status {self._process.returncode}")
            if time.monotonic() > deadline_s:
                self._fail(f"{otherwise} within {START_S:g} s")
            time.sleep(0.002)

    def _fail(self, what: str) -> NoReturn:
        self.kill()
        raise LinkError(f"{PROGRAM}: {what}")

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def code(self, address: int) -> Any:
        """A writable view of an instruction, to break the image. QEMU does not read an instruction again that has
        run."""
        return self._memory[address - rv32.RAM :][:4].view(np.uint32)

    def give_ticks(self, ticks: int, timeout_s: float = 10.0) -> None:
        """Lets the image run the jobs of this many ticks (``TIME_BY_WORD``) and waits for them. The first tick begins a
        slot."""
        given, done = self.words("ticks_given"), self.words("ticks_done")
        given[0] += ticks
        deadline_s = time.monotonic() + timeout_s
        while done[0] != given[0]:
            if time.monotonic() > deadline_s or not self.is_alive:
                raise LinkError(f"{PROGRAM}: a tick has not ended after {timeout_s:g} s; the process hangs or died")
            time.sleep(20e-6)

    def has_settled(self, written: int) -> bool:
        """Whether the image has read this many bytes from its line, is idle and has sent everything.

        QEMU forwards at once what the image sends, so all of it can then be read from the pty.
        """
        return bool(self.words("line_bytes")[0] == 1 + written and self.words("line_is_idle")[0])

    def kill(self) -> None:
        """Kills it; the pty goes away with it."""
        self._process.kill()
        self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()
        with contextlib.suppress(AttributeError, OSError):
            os.close(self._open_pty)
            del self._open_pty


def _command(image: Path, descriptor: int) -> list[str]:
    size = f"{RAM_BYTES >> 20}M"
    memory = f"memory-backend-file,id=ram,size={size},share=on,mem-path=/proc/self/fd/{descriptor}"
    return [
        *(PROGRAM, "-M", "virt,memory-backend=ram", "-object", memory, "-m", size, "-bios", "none"),
        *("-kernel", str(image), "-display", "none", "-nodefaults"),
        *("-chardev", "pty,id=line", "-serial", "chardev:line"),
    ]


def _dies_with_us() -> list[str]:
    """Ends the emulator when the test run dies."""
    return ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
