"""Clients that do to a controller's process all that a client can, while an honest one is served as well.

``python -m tests.firmware.hostile_agent [SECONDS] [SEED]`` builds the posix board under AddressSanitizer and
UndefinedBehaviorSanitizer and attacks it for so long.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import random
import select
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from firmware_bridge.build_posix import build
from firmware_bridge.controlpulp.posix import PosixController
from firmware_bridge.scmi.protocols.power_capping import CapGet
from firmware_bridge.scmi.protocols.telemetry import TelemetryStatus
from tests.scmi.patient import patient_client
from tests.waiting import PATIENCE_S

SANITIZED = ("-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")

_LENGTHS = (0, 1, 3, 4, 5, 8, 12, 16, 132, 135, 136, 137, 140, 160, 1 << 12, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)
_PROTOCOLS = (0x10, 0x12, 0x13, 0x14, 0x15, 0x18, 0x80, 0x16, 0xFF)
_FULL = (1 << 64) - 2
_A2P, _P2A, _FAST = 0x000, 0x100, 0x1C0
_AREA_WORDS = 42


@dataclass
class Hostile:
    """One client after the other on the same socket."""

    path: str
    random: random.Random
    deeds: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._connection: socket.socket | None = None
        self._fds: list[int] = []
        self._kept: list[int] = []
        self._memory: mmap.mmap | None = None

    # ---- come and go ----

    def arrive(self) -> None:
        """Connect, and take what is passed."""
        self.leave()
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.settimeout(0.5)
        try:
            connection.connect(self.path)
            packet, fds, _, _ = socket.recv_fds(connection, 64, 8)
        except OSError:
            connection.close()
            return
        if len(fds) != 5 or len(packet) != 36:
            connection.close()
            return
        self._connection, self._fds = connection, fds
        self._memory = mmap.mmap(fds[0], struct.unpack_from("<I", packet, 12)[0])
        connection.setblocking(False)

    def leave(self) -> None:
        """Disconnect; now and then keep memory and bells, and go on using them."""
        if self._connection:
            self._connection.close()
            self._connection = None
        if self._fds and self.random.random() < 0.3:
            self._kept += self._fds[1:]
            os.close(self._fds[0])
        else:
            for fd in self._fds:
                os.close(fd)
        while len(self._kept) > 40:
            os.close(self._kept.pop(0))
        self._fds = []

    def rush(self) -> None:
        """Many connections at once, none of which listens."""
        rushing = []
        for _ in range(self.random.randint(1, 12)):
            one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            one.setblocking(False)
            with contextlib.suppress(OSError):
                one.connect(self.path)
            rushing.append(one)
        for one in rushing:
            one.close()

    def talk(self) -> None:
        """Say something on the socket, with descriptors, or close half of it."""
        if self._connection is None:
            return
        with contextlib.suppress(OSError):
            if self.random.random() < 0.5:
                socket.send_fds(self._connection, [self.random.randbytes(self.random.randint(1, 200))], [0, 1, 2])
            else:
                self._connection.shutdown(self.random.choice([socket.SHUT_RD, socket.SHUT_WR, socket.SHUT_RDWR]))

    # ---- the mailbox ----

    def command(self) -> None:
        """A message that may be one, or not."""
        if self._memory is None:
            return
        pick = self.random
        header = pick.randrange(0x14) | pick.choice(_PROTOCOLS) << 10 | pick.randrange(1024) << 18
        if pick.random() < 0.2:
            header = pick.getrandbits(32)
        length = pick.choice(_LENGTHS) if pick.random() < 0.5 else 4 * pick.randint(1, 6)
        words = [pick.choice([0, 1, 2, 3, pick.getrandbits(32)]) for _ in range(33)]
        area = struct.pack(
            "<IIIIIII33I", 0, pick.choice([0, 0, 0, 1, 3]), 0, 0, pick.randint(0, 3), length, header, *words
        )
        with contextlib.suppress(ValueError):
            self._memory[_A2P : _A2P + len(area)] = area
        self.ring(1)

    def scribble(self) -> None:
        """Any word, anywhere."""
        if self._memory is None:
            return
        for _ in range(20):
            at = self.random.choice([_A2P, _P2A, _FAST]) + 4 * self.random.randrange(_AREA_WORDS)
            value = self.random.choice([0, 1, 2, 3, self.random.getrandbits(32)])
            with contextlib.suppress(ValueError):
                self._memory[at : at + 4] = struct.pack("<I", value)

    def punch(self) -> None:
        """Try to change the memory's size, its seals, or take its pages away."""
        if not self._fds or self._memory is None:
            return
        memory, pages = self._fds[0], self._memory
        with contextlib.suppress(OSError):
            self.random.choice(
                [
                    lambda: os.ftruncate(memory, self.random.choice([0, 1, 4095, 1 << 20])),
                    lambda: fcntl.fcntl(memory, fcntl.F_ADD_SEALS, self.random.randrange(32)),
                    lambda: pages.madvise(mmap.MADV_REMOVE),
                    lambda: os.lseek(memory, self.random.randrange(1 << 40), os.SEEK_SET),
                ]
            )()

    # ---- bells ----

    def ring(self, which: int | None = None) -> None:
        """A bell, once or until it is full; also one of a mailbox that was left."""
        bells = self._fds[1:] + (self._kept if which is None else [])
        if not bells:
            return
        fd = bells[which - 1] if which is not None else self.random.choice(bells)
        os.set_blocking(fd, False)
        with contextlib.suppress(OSError):
            os.eventfd_write(fd, self.random.choice([1, 1, 1, 2, _FULL]))
        if self.random.random() < 0.3:
            os.set_blocking(fd, True)

    def drain(self) -> None:
        """Take away what the controller should hear."""
        for fd in self._fds[1:]:
            if select.select([fd], [], [], 0)[0]:
                os.set_blocking(fd, False)
                with contextlib.suppress(OSError):
                    os.eventfd_read(fd)

    def act(self) -> None:
        """One deed."""
        deeds: list[tuple[Callable[[], None], int]] = [
            (self.command, 40), (self.scribble, 20), (self.ring, 15), (self.drain, 5), (self.punch, 5),
            (self.arrive, 4), (self.rush, 2), (self.talk, 1), (self.leave, 1),
        ]  # fmt: skip
        (deed,) = self.random.choices([one for one, _ in deeds], [weight for _, weight in deeds])
        self.deeds[deed.__name__] = self.deeds.get(deed.__name__, 0) + 1
        deed()


@dataclass(frozen=True)
class Outcome:
    """What came of it."""

    deeds: int
    answers: int
    timeouts: int
    slowest_s: float
    transport_errors: int
    returncode: int
    said: str


def attack(program: Path, folder: Path, seconds: float, seed: int) -> Outcome:
    """Two hostile clients and a honest one at a controller."""
    controller = PosixController(folder, program=program)
    hostiles = [
        Hostile(str(folder / name), random.Random(seed + i)) for i, name in enumerate(("ospm.sock", "runtime.sock"))
    ]
    is_over = threading.Event()

    def run(one: Hostile) -> None:
        one.arrive()
        while not is_over.is_set() and controller.process.poll() is None:
            one.act()
        one.leave()

    client = patient_client(controller.url(3))
    answers, transport_errors, slowest_s, deadline_s = 0, 0, 0.0, time.monotonic() + seconds
    with ThreadPoolExecutor(len(hostiles)) as pool:
        running = [pool.submit(run, one) for one in hostiles]
        try:
            while time.monotonic() < deadline_s:
                begin_s = time.monotonic()
                client.request(CapGet(0))
                transport_errors = client.request(TelemetryStatus()).transport_errors
                slowest_s = max(slowest_s, time.monotonic() - begin_s)
                answers += 2
                time.sleep(0.001)
        finally:
            is_over.set()
            client.close()
        for one in running:
            one.result()
    controller.process.send_signal(signal.SIGTERM)
    said = controller.process.communicate(timeout=PATIENCE_S)[1]
    deeds = sum(sum(one.deeds.values()) for one in hostiles)
    return Outcome(
        deeds, answers, client.counts.timeouts, slowest_s, transport_errors, controller.process.returncode, said
    )


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    with tempfile.TemporaryDirectory() as name:
        program = build(Path(name) / "controlpulp-posix", *SANITIZED)
        outcome = attack(program, Path(name) / "scmi", seconds, seed)
    print(outcome)
    return 0 if outcome.returncode == 0 and outcome.answers else 1


if __name__ == "__main__":
    sys.exit(main())
