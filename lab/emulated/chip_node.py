"""One emulated node of a cluster whose cap is enforced by an on-chip controller, in real time.

    clusterctl serve ── grant ──► nodectl.loop.agent ── SCMI, shared memory ──► controlpulp-posix ──► chip (twin.pulp)
         ▲                              │ energy counter ◄────────────────────────────────────────────────┘
         └──────── confirmed ◄──────────┘

The agent is the real one, the controller is the firmware as a process, or its rv32 image in QEMU, which has a serial
line in place of shared memory and QEMU's clock. The chip's power follows what the firmware does. Of the kernel there is
one energy counter, without limits of its own, as on AMD. The truth is written by another SCMI agent of the controller
(the ``bmc``), which the agent does not see.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from firmware_bridge.controlpulp import qemu, rv32
from firmware_bridge.controlpulp.posix import PosixController
from firmware_bridge.errors import ScmiError
from firmware_bridge.scmi.client import Client
from firmware_bridge.scmi.protocols.power_capping import CapGet
from firmware_bridge.scmi.protocols.telemetry import Faults
from firmware_bridge.scmi.transports.in_process import InProcess
from firmware_bridge.scmi.transports.shm import open_shared_memory
from lab.node_demo.pulp_node import MAX_KHZ, NoCounters, NodeFiles
from nodectl.config import Config, build_config
from nodectl.loop.agent import Agent
from nodectl.loop.interruptions import Interruptions
from nodectl.member.cluster_cap import open_cluster_cap
from nodectl.write.saves import node_id
from pmu.ports import Ports
from pmu.system import MonotonicClock
from twin.pulp.plant import CLASSES, CORES, DOMAINS, Plant
from twin.pulp.shared_plant import LIBRARY, SharedPlant

REST_W: Final = 40.0
TDP_W, MOP_W, SAFE_W = 300.0, 110.0, 160.0
"""Ours: of the node with the heaviest instructions, which draws more at its highest clock, and its least cap."""

RUNTIME, BMC = 2, 3
"""Agents of the controller."""

LOOK_S: Final = 0.01
ADVANCE_S: Final = 0.001
LOOK_AGAIN_S: Final = 0.0005
QEMU_REPLY_S: Final = 0.5
"""Ours: QEMU answers late on a busy machine; the others take what the transports have."""

_IDLE_CORE_W: Final = 4.0


@dataclass(frozen=True, slots=True)
class ChipPlan:
    """``run``: the folder whose part of the node's name is what /run/nodectl is on a real one; ``trace``: where the
    truth is written, a line every ``LOOK_S``; ``load``: of ``CLASSES``; ``in_qemu``: the controller is the rv32
    image."""

    name: str
    url: str
    keys: Path
    run: Path
    trace: Path
    load: int = 3
    in_qemu: bool = False


class ChipTruth(msgspec.Struct, frozen=True):
    """``at_s``: CLOCK_MONOTONIC; ``chip_s``: the chip's own time, which is late where nobody has moved the chip along;
    ``chip_j``: drawn until then since it was made; ``cap_mw``: in force in the controller, 0 for none, -1 if it does
    not answer; ``alarms``: how often the safe level of its guard has begun."""

    at_s: float
    chip_s: float
    chip_j: float
    cap_mw: int
    alarms: int = 0


class Chip:
    """What ``NodeFiles`` shows: the chip, and clock limits, which nothing moves here."""

    def __init__(self, plant: Plant, wires: dict[str, NDArray[np.int32]], load: int) -> None:
        self.plant, self.wires = plant, wires
        self.plant.capacitance[:] = CLASSES[load]
        self.plant.settle(np.full(CORES, _IDLE_CORE_W))
        self.limits_khz = [MAX_KHZ] * DOMAINS


class Controlled(NamedTuple):
    """A chip with its controller: the URL for the node's agent, and another agent's client (the ``bmc``)."""

    chip: Chip
    url: str
    bmc: Client


@contextlib.contextmanager
def as_process(at: Path, load: int) -> Iterator[Controlled]:
    """The firmware as a process of this machine."""
    shared = SharedPlant(at / "chip")
    chip = Chip(shared, shared.wires, load)
    controller = PosixController(at / "scmi", "--fifo", "try", plant=(LIBRARY, shared.path))
    url = controller.url(BMC)
    try:
        with contextlib.closing(Client(open_shared_memory(url.removeprefix("scmi+shm:"), url))) as bmc:
            yield Controlled(chip, controller.url(RUNTIME), bmc)
    finally:
        controller.stop()


@contextlib.contextmanager
def as_image(at: Path, load: int) -> Iterator[Controlled]:
    """Its rv32 image in QEMU, whose clock gives it its time; a thread moves the chip along."""
    controller = qemu.QemuController(rv32.build(at / "controlpulp.elf", f"-DLINE_CHANNEL={RUNTIME - 1}"))
    over, began_ns = threading.Event(), time.monotonic_ns()
    chip = Chip(Plant(), controller.wires(), load)
    chip.plant.wire(chip.wires)

    def move() -> None:
        while not over.wait(ADVANCE_S):
            chip.plant.advance_to(time.monotonic_ns() - began_ns)

    moving = threading.Thread(target=move)
    moving.start()
    mailbox = InProcess(_Mailbox(controller), BMC - 1)
    mailbox.reply_timeout_s = QEMU_REPLY_S
    try:
        url = f"scmi+serial://{controller.pty}?baud=921600"
        with contextlib.closing(Client(mailbox)) as bmc:
            yield Controlled(chip, url, bmc)
    finally:
        over.set()
        moving.join()
        controller.kill()


class _Mailbox:
    """The memory that an agent shares with the image, which looks at it in its own time."""

    def __init__(self, memory: qemu.QemuController) -> None:
        self._memory = memory
        self.poll, self.notifications = memory.poll, memory.notifications

    def send(self, channel: int, message: bytes) -> None:
        """Write a command."""
        self._memory.send(channel, message)

    def advance(self, duration_s: float) -> None:
        """Time passes by itself."""
        time.sleep(max(duration_s, LOOK_AGAIN_S))


def run_chip_node(plan: ChipPlan) -> None:
    """Run it until SIGTERM or SIGINT."""
    with tempfile.TemporaryDirectory(prefix=f"chip-{plan.name}-") as temporary, contextlib.ExitStack() as opened:
        at, run = Path(temporary), plan.run / plan.name
        run.mkdir(mode=0o755, parents=True, exist_ok=True)
        chip, url, bmc = opened.enter_context((as_image if plan.in_qemu else as_process)(at, plan.load))
        lock = f"{run}/lock-{uuid.uuid4().hex}"
        ports = Ports(NodeFiles(chip), NoCounters(), None, "this node has no GPU", MonotonicClock(), lock)
        config, boot_id = _config(plan, at, url), node_id(lock)
        interruptions = opened.enter_context(Interruptions(ports.clock))
        opened.enter_context(_traced(plan.trace, chip, bmc))
        cluster = opened.enter_context(open_cluster_cap(config.cluster, boot_id, print, None))
        agent = opened.enter_context(
            Agent.open(
                ports, config, log=lambda line: print(line, flush=True), wait=interruptions.wait, cluster=cluster
            )
        )
        agent.run(is_over=interruptions.is_over)


def _config(plan: ChipPlan, state: Path, url: str) -> Config:
    server_key = plan.keys / "cluster.pub"
    settings: dict[str, Any] = {
        "mode": "optimize", "state_dir": str(state), "caps": {"rest_w": REST_W}, "journal": {"max_bytes": 0},
        "cpu_policy": {"name": "none"}, "gpu_policy": {"name": "none"},
        "scmi": {"url": url, "knobs": {"node/cap_mw": "package"}},
        "cluster": {
            "url": plan.url, "key": f"{plan.keys}/{plan.name}.key", "name": plan.name, "lease_class": "hw",
            "server_key": str(server_key if server_key.exists() else plan.keys / "cluster.key"),
            "tdp_w": TDP_W, "mop_w": MOP_W, "safe_w": SAFE_W, "boot_w": SAFE_W, "settle_s": 0.2,
        },
    }  # fmt: skip
    return build_config(settings, lambda path: f"{plan.name}: {'.'.join(path)}")


@contextlib.contextmanager
def _traced(path: Path, chip: Chip, bmc: Client) -> Iterator[None]:
    """Writes ``ChipTruth`` meanwhile, from a thread."""
    over = threading.Event()

    def look() -> None:
        alarms = 0
        with open(path, "wb", buffering=0) as file:
            while not over.wait(LOOK_S):
                try:
                    alarms, cap_mw = bmc.request(Faults()).alarms, bmc.request(CapGet(0)).cap
                except ScmiError:
                    cap_mw = -1
                truth = ChipTruth(time.monotonic(), *chip.plant.drawn(), cap_mw, alarms)
                file.write(msgspec.json.encode(truth) + b"\n")

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
