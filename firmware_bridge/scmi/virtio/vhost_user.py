"""A virtio-scmi device for virtual machines: a vhost-user back end (virtio device 32; virtio 1.2 §5.17).

A Linux kernel with ``ARM_SCMI_TRANSPORT_VIRTIO`` attaches through its monitor, which connects to a Unix socket and
shares the guest's memory. Each device is one agent's channel: the socket identifies the agent, never the guest. The
owner's loop: ``for agent, message in server.wait(timeout_s): server.answer(agent, ...)``.

An error of a guest or its monitor stops its ring or its connection, with the reason in ``fault``. It never raises an
exception here, never blocks and never affects another agent. One command per agent is in flight; the others wait in the
guest's ring.
"""

from __future__ import annotations

import math
import select
from collections.abc import Callable, Iterable, Mapping

from firmware_bridge.errors import LinkError
from firmware_bridge.scmi.virtio.vhost_user_device import Device, OnMemory
from firmware_bridge.scmi.virtio.virtqueue import IS_ORDERED


class VhostUserServer:
    """Listens on one Unix socket per agent; each accepts one guest at a time."""

    def __init__(self, paths: Mapping[int, str], on_memory: OnMemory = lambda agent, memory: None) -> None:
        """``on_memory`` is called from ``wait`` and ``close``; for a platform that shares more than rings with a guest
        (FastChannels)."""
        if paths and not IS_ORDERED:
            raise LinkError("virtio rings are served on x86-64 only: elsewhere their order would need barriers")
        self._devices: dict[int, Device] = {}
        try:
            for agent, path in paths.items():
                self._devices[agent] = Device(agent, path, on_memory)
        except BaseException:
            self.close()
            raise

    @property
    def agents(self) -> list[int]:
        """The agents that have a connected guest."""
        return [agent for agent, device in self._devices.items() if device.connection]

    def fault(self, agent: int) -> str | None:
        """The last error of the agent's guest, if any; cleared when the next guest connects."""
        return self._devices[agent].fault

    def wait(self, timeout_s: float, others: Iterable[int] = ()) -> list[tuple[int, bytes]]:
        """The commands received, with their agents. Guests may connect and disconnect meanwhile.

        Returns early when one of the ``others`` (descriptors) can be read.
        """
        commands = self._commands()
        poll = select.poll()
        actions: dict[int, Callable[[], None]] = {}
        for device in self._devices.values():
            for descriptor, action in device.waits_for().items():
                poll.register(descriptor, select.POLLIN)
                actions[descriptor] = action
        for descriptor in others:
            poll.register(descriptor, select.POLLIN)
        for descriptor, _ in poll.poll(0 if commands else math.ceil(timeout_s * 1e3)):
            if descriptor in actions:
                actions[descriptor]()
        return commands or self._commands()

    def _commands(self) -> list[tuple[int, bytes]]:
        found = ((agent, device.next_command()) for agent, device in self._devices.items())
        return [(agent, message) for agent, message in found if message is not None]

    def answer(self, agent: int, message: bytes) -> None:
        """Send a response; it is dropped if the guest has left."""
        self._devices[agent].answer(message)

    def notify(self, agent: int, message: bytes) -> bool:
        """Send a notification or delayed response; ``False`` if it is lost because the guest has no buffer."""
        return self._devices[agent].notify(message)

    def close(self) -> None:
        """Disconnect all guests and remove the sockets."""
        for device in self._devices.values():
            device.close()
