"""A virtio-scmi device for virtual machines: a vhost-user back end (virtio device 32; virtio 1.2 §5.17).

A Linux kernel with ``ARM_SCMI_TRANSPORT_VIRTIO`` attaches through its monitor, which connects to a Unix socket and
shares the guest's memory. Each device is one agent's channel: which agent a guest is, the socket says, never the guest.
The owner's loop: ``for agent, message in server.wait(timeout_s): server.answer(agent, ...)``.

What a guest or its monitor does wrong stops its ring or its connection, with the reason in ``fault``; it never raises
here, never blocks, and never touches another agent. One command of an agent is worked on at a time: the others wait in
the guest's own ring.
"""

from __future__ import annotations

import math
import select
from collections.abc import Callable, Iterable, Mapping

from firmware_bridge.errors import LinkError
from firmware_bridge.scmi.virtio.vhost_user_device import Device
from firmware_bridge.scmi.virtio.virtqueue import IS_ORDERED


class VhostUserServer:
    """Listens on one Unix socket per agent; a guest at a time may be connected to each."""

    def __init__(self, paths: Mapping[int, str]) -> None:
        if paths and not IS_ORDERED:
            raise LinkError("virtio rings are served on x86-64 only: elsewhere their order would need barriers")
        self._devices: dict[int, Device] = {}
        try:
            for agent, path in paths.items():
                self._devices[agent] = Device(agent, path)
        except BaseException:
            self.close()
            raise

    @property
    def agents(self) -> list[int]:
        """The agents that a guest is connected as."""
        return [agent for agent, device in self._devices.items() if device.connection]

    def fault(self, agent: int) -> str | None:
        """What the agent's guest did wrong last, if anything; forgotten when the next one connects."""
        return self._devices[agent].fault

    def wait(self, timeout_s: float, others: Iterable[int] = ()) -> list[tuple[int, bytes]]:
        """The commands that have come in, with their agents; guests may come and go meanwhile.

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
        """Hand a response back; a guest that has left misses it."""
        self._devices[agent].answer(message)

    def notify(self, agent: int, message: bytes) -> bool:
        """Send a notification or delayed response; ``False`` where it is lost because the guest has no buffer."""
        return self._devices[agent].notify(message)

    def close(self) -> None:
        """Disconnect everyone and take the sockets away."""
        for device in self._devices.values():
            device.close()
