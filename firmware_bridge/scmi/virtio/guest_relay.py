"""Guests as agents of a controller that runs elsewhere: messages pass between virtio devices and mailboxes.

A guest's command goes into its agent's mailbox as it is, tokens and all, and what comes back goes into the guest's
rings. A controller that stays silent is answered for, with COMMS_ERROR: a command is answered exactly once.
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
"""After so long a command is answered in the controller's place; ours. Far above the 30 ms for which Linux waits."""


class _Asked(msgspec.Struct, frozen=True):
    """A command that the controller has, or is to have."""

    header: bytes
    deadline_s: float


class GuestRelay:
    """Owns neither the devices nor the mailboxes. ``mailboxes``: by agent, one for each device."""

    def __init__(self, devices: VhostUserServer, mailboxes: Mapping[int, SharedMemory]) -> None:
        self._devices = devices
        self._mailboxes = mailboxes
        self._asked: dict[int, _Asked] = {}

    def wait(self, timeout_s: float, others: Sequence[int] = ()) -> None:
        """Pass on what comes within this time; returns early when one of the ``others`` can be read.

        Raises ``LinkError`` when the controller has gone.
        """
        ours = [descriptor for mailbox in self._mailboxes.values() for descriptor in mailbox.descriptors]
        deadline_s = min((asked.deadline_s for asked in self._asked.values()), default=float("inf"))
        left_s = max(min(timeout_s, deadline_s - time.monotonic()), 0.0)
        for agent, message in self._devices.wait(left_s, (*ours, *others)):
            self._ask(agent, message)
        for agent, mailbox in self._mailboxes.items():
            while (answer := mailbox.receive(0.0)) is not None:
                self._hand_back(agent, answer)
        for agent in [agent for agent, asked in self._asked.items() if time.monotonic() >= asked.deadline_s]:
            self._answer_in_its_place(agent)

    def _ask(self, agent: int, message: bytes) -> None:
        """A mailbox that still holds the command of a guest that has left is waited for, and that answer dropped."""
        self._asked[agent] = _Asked(message[:HEADER_BYTES], time.monotonic() + SILENCE_S)
        mailbox = self._mailboxes[agent]
        try:
            mailbox.send(message)
        except LinkError:
            mailbox.receive(0.0)  # raises where the controller has gone
            self._answer_in_its_place(agent)

    def _hand_back(self, agent: int, message: bytes) -> None:
        """A response has its command's header, whatever that is; all else is an event, or for one who has left."""
        asked = self._asked.get(agent)
        if asked and message[:HEADER_BYTES] == asked.header:
            del self._asked[agent]
            self._devices.answer(agent, message)
        elif _type_of(message) != MessageType.SYNCHRONOUS:
            self._devices.notify(agent, message)

    def _answer_in_its_place(self, agent: int) -> None:
        asked = self._asked.pop(agent)
        self._devices.answer(agent, asked.header + struct.pack("<i", Status.COMMS_ERROR))


def _type_of(message: bytes) -> int:
    return int.from_bytes(message[:HEADER_BYTES], "little") >> TYPE_SHIFT & 3
