"""An emulated on-chip controller as a service: the ControlPULP firmware as a process, in real time, with the twin's
chip. Agents connect through shared memory or, from a virtual machine, through a virtio device.
"""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import numpy as np

from firmware_bridge.controlpulp.posix import AGENTS, PosixController
from firmware_bridge.errors import LinkError, ScmiError
from firmware_bridge.scmi.transports.shm import SharedMemory, open_shared_memory
from firmware_bridge.scmi.virtio.guest_relay import GuestRelay
from firmware_bridge.scmi.virtio.vhost_user import VhostUserServer
from foundation.shell.errors import NodectlError
from nodectl.loop.interruptions import Interruptions
from pmu.system import MonotonicClock
from twin.pulp.plant import CLASSES, CORES
from twin.pulp.shared_plant import LIBRARY, SharedPlant

_IDLE_CORE_W: Final = 4.0
"""The power to whose steady temperatures the chip is heated at the start; as in the demo."""
_LOOK_S: Final = 1.0


def serve(
    folder: Path, guests: Mapping[int, Path], load: int, fifo: str | None,
    tell: Callable[[str], None], remark: Callable[[str], None],
) -> None:  # fmt: skip
    """Serve until SIGINT, SIGTERM or SIGHUP. ``guests``: the vhost-user sockets, by agent; ``load``: of ``CLASSES``.

    The addresses are logged once (``tell``); connections and errors of agents are logged as they happen (``remark``).
    Raises ``NodectlError`` when it cannot start, or when the controller ends by itself.
    """
    try:
        with Interruptions(MonotonicClock()) as interruptions, contextlib.ExitStack() as stack:
            devices = VhostUserServer({agent: str(path) for agent, path in guests.items()})
            stack.callback(devices.close)
            controller = _start(folder, guests, load, fifo)
            stack.callback(lambda: remark(controller.stop()))
            mailboxes = {
                agent: stack.enter_context(contextlib.closing(_mailbox(controller, agent))) for agent in guests
            }
            tell(f"EMULATED controlpulp, {CORES} cores with instructions of class {load}")
            for agent, name in AGENTS.items():
                tell(f"{name}: " + (f"vhost-user {guests[agent]}" if agent in guests else controller.url(agent)))
            relay, notes = GuestRelay(devices, mailboxes), {agent: _Notes(agent, devices) for agent in guests}
            while not interruptions.is_over():
                _wait(relay, controller, interruptions)
                for one in notes.values():
                    one.look(remark)
    except ScmiError as error:
        raise NodectlError(str(error)) from None
    except OSError as error:
        raise NodectlError(f"{error.filename or folder}: {error.strerror or error}") from None


def _start(folder: Path, guests: Mapping[int, Path], load: int, fifo: str | None) -> PosixController:
    options = [f"--message-only={AGENTS[agent]}" for agent in guests]
    if fifo:
        options.append(f"--fifo={fifo}")
    with tempfile.TemporaryDirectory(prefix="nodectl-chip-") as temporary:  # both have mapped it
        chip = SharedPlant(Path(temporary) / "chip")
        chip.capacitance[:] = CLASSES[load]
        chip.settle(np.full(CORES, _IDLE_CORE_W))
        return PosixController(folder, *options, plant=(LIBRARY, chip.path))


def _mailbox(controller: PosixController, agent: int) -> SharedMemory:
    url = controller.url(agent)
    return open_shared_memory(url.removeprefix("scmi+shm:"), url)


def _wait(relay: GuestRelay, controller: PosixController, interruptions: Interruptions) -> None:
    try:
        relay.wait(_LOOK_S, (interruptions.descriptor,))
    except LinkError as error:  # usually because the controller is just ending
        with contextlib.suppress(subprocess.TimeoutExpired):
            controller.process.wait(_LOOK_S)
        if controller.process.returncode is None:
            raise NodectlError(str(error)) from None
    status = controller.process.poll()
    if status is not None and not interruptions.is_over():
        how = f"by signal {-status}" if status < 0 else f"with status {status}"
        raise NodectlError(f"the controller has ended by itself, {how}; its agents' requests are gone with it")


class _Notes:
    """What has been logged about one agent's guest."""

    def __init__(self, agent: int, devices: VhostUserServer) -> None:
        self._agent, self._devices = agent, devices
        self._is_there = False
        self._fault: str | None = None

    def look(self, remark: Callable[[str], None]) -> None:
        """Log what has changed."""
        is_there, fault = self._agent in self._devices.agents, self._devices.fault(self._agent)
        if fault and fault != self._fault:
            remark(fault)
        if is_there != self._is_there:
            remark(f"{AGENTS[self._agent]}: the guest has " + ("connected" if is_there else "gone"))
        self._is_there, self._fault = is_there, fault
