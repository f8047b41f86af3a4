"""Guests as agents of a controller in another process: relays messages between virtio devices and mailboxes.

A guest's command goes unchanged into its agent's mailbox, and the response goes into the guest's rings. If the
controller stays silent, the relay responds with COMMS_ERROR: every command gets exactly one response.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from firmware_bridge.errors import LinkError
from firmware_bridge.scmi.messages.header import HEADER_BYTES, TYPE_SHIFT, MessageType
from firmware_bridge.scmi.messages.status import Status
from firmware_bridge.scmi.transports.shm import SharedMemory
from firmware_bridge.scmi.virtio.vhost_user import VhostUserServer

SILENCE_S: Final = 2.0
"""Ours: after this time the relay responds instead of the controller. Far above the 30 ms for which Linux waits."""


class _Pending(msgspec.Struct, frozen=True):
    """A command that the controller has or will get."""

    header: bytes
    deadline_s: float


class GuestRelay:
    """Does not own the devices and mailboxes. ``mailboxes``: by agent, one for each device."""

    def __init__(self, devices: VhostUserServer, mailboxes: Mapping[int, SharedMemory]) -> None:
        self._devices = devices
        self._mailboxes = mailboxes
        self._pending: dict[int, _Pending] = {}

    def wait(self, timeout_s: float, others: Sequence[int] = ()) -> None:
        """Relay messages for this time; returns early when one of the ``others`` can be read.

        Raises ``LinkError`` when the controller has ended.
        """
        ours = [descriptor for mailbox in self._mailboxes.values() for descriptor in mailbox.descriptors]
        deadline_s = min((pending.deadline_s for pending in self._pending.values()), default=float("inf"))
        left_s = max(min(timeout_s, deadline_s - time.monotonic()), 0.0)
        for agent, message in self._devices.wait(left_s, (*ours, *others)):
            self._ask(agent, message)
        for agent, mailbox in self._mailboxes.items():
            while (answer := mailbox.receive(0.0)) is not None:
                self._hand_back(agent, answer)
        for agent in [agent for agent, pending in self._pending.items() if time.monotonic() >= pending.deadline_s]:
            self._answer_in_its_place(agent)

    def _ask(self, agent: int, message: bytes) -> None:
        """If the mailbox still has the command of a guest that has left, waits for its response and drops it."""
        self._pending[agent] = _Pending(message[:HEADER_BYTES], time.monotonic() + SILENCE_S)
        mailbox = self._mailboxes[agent]
        try:
            mailbox.send(message)
        except LinkError:
            mailbox.receive(0.0)  # raises when the controller has ended
            self._answer_in_its_place(agent)

    def _hand_back(self, agent: int, message: bytes) -> None:
        """A response has its command's header. Any other message is an event, or a response for a guest that has
        left."""
        pending = self._pending.get(agent)
        if pending and message[:HEADER_BYTES] == pending.header:
            del self._pending[agent]
            self._devices.answer(agent, message)
        elif _type_of(message) != MessageType.SYNCHRONOUS:
            self._devices.notify(agent, message)

    def _answer_in_its_place(self, agent: int) -> None:
        pending = self._pending.pop(agent)
        self._devices.answer(agent, pending.header + struct.pack("<i", Status.COMMS_ERROR))


def _type_of(message: bytes) -> int:
    return int.from_bytes(message[:HEADER_BYTES], "little") >> TYPE_SHIFT & 3
