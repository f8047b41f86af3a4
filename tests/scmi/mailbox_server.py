"""The platform's end of the shared-memory transport, to be made late, silent or wrong by a test.

The owner's loop is ``for agent, message in server.wait(timeout_s): server.answer(agent, ...)``; an answer may also come
later. Agents are as many as the platform has channels for; each connection gets a mailbox of its own, made afresh.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import mmap
import os
import select
import socket

import msgspec

from firmware_bridge.errors import LinkError
from firmware_bridge.scmi.transports.shm_handshake import (
    HANDSHAKE_VERSION,
    MAGIC,
    PACKET,
    SEALS,
    Descriptors,
    Invitation,
)
from firmware_bridge.scmi.transports.smt import Area, Geometry
from firmware_bridge.scmi.transports.unix_socket import listen

_PAGE = mmap.PAGESIZE


def create_descriptors(memory_bytes: int) -> Descriptors:
    """A sealed memfd and four eventfds."""
    memory = os.memfd_create("scmi-mailbox", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(memory, memory_bytes)
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, SEALS)
    return Descriptors(memory, *(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK) for _ in range(4)))


def send_invitation(connection: socket.socket, invitation: Invitation) -> None:
    """Pass memory and eventfds to a new agent."""
    geometry = msgspec.structs.astuple(invitation.geometry)
    packet = PACKET.pack(MAGIC, HANDSHAKE_VERSION, invitation.agent, invitation.memory_bytes, *geometry)
    socket.send_fds(connection, [packet], list(msgspec.structs.astuple(invitation.descriptors)))


class _Mailbox:
    """One agent's connection, memory and areas."""

    def __init__(self, connection: socket.socket, agent: int, geometry: Geometry) -> None:
        extent = max(geometry.a2p_offset, geometry.p2a_offset) + max(
            geometry.doorbell_offset, geometry.completion_offset, geometry.payload_bytes
        )
        size = (extent + _PAGE) // _PAGE * _PAGE
        self.connection = connection
        self.agent = agent
        self.fds: Descriptors = create_descriptors(size)
        self._memory = mmap.mmap(self.fds.memory, size)
        view = memoryview(self._memory)
        self.a2p = Area(view, geometry.a2p_offset, geometry)
        self.p2a = Area(view, geometry.p2a_offset, geometry)
        view.release()
        self.a2p.reset()
        self.p2a.reset()
        self.invitation = Invitation(agent, size, geometry, self.fds)
        self._has_unread_event = False

    def can_notify(self) -> bool:
        """The agent has said that it is done with the last event, if there was one."""
        if self._has_unread_event:
            try:
                os.eventfd_read(self.fds.p2a_completion)
            except BlockingIOError:
                return False
            self._has_unread_event = False
        return self.p2a.is_free

    def notify(self, message: bytes) -> None:
        """Put an event into the area and ring."""
        self.p2a.call(message, self.agent)
        self._has_unread_event = True
        os.eventfd_write(self.fds.p2a_doorbell, 1)

    def close(self) -> None:
        """Unmap and disconnect."""
        self.a2p.release()
        self.p2a.release()
        self._memory.close()
        self.fds.close()
        self.connection.close()


class MailboxServer:
    """Listens on a Unix socket and gives each agent that connects a mailbox."""

    def __init__(self, path: str, agents: int = 4, geometry: Geometry | None = None) -> None:
        self._geometry = geometry or Geometry()
        problem = self._geometry.problem(1 << 31)
        if problem:
            raise LinkError(f"{path}: mailbox geometry: {problem}")
        self._path = path
        self._mailboxes: dict[int, _Mailbox | None] = dict.fromkeys(range(1, agents + 1))
        self._listener = listen(path, socket.SOCK_SEQPACKET)
        self._poll = select.poll()
        self._poll.register(self._listener, select.POLLIN)
        self._by_descriptor: dict[int, _Mailbox] = {}

    @property
    def agents(self) -> list[int]:
        """The agents that are connected."""
        return [agent for agent, mailbox in self._mailboxes.items() if mailbox]

    def wait(self, timeout_s: float) -> list[tuple[int, bytes]]:
        """The commands that have come in, with their agents; agents may come and go meanwhile."""
        commands: list[tuple[int, bytes]] = []
        ready = [descriptor for descriptor, _ in self._poll.poll(math.ceil(timeout_s * 1e3))]
        for descriptor in ready:
            mailbox = self._by_descriptor.get(descriptor)
            if mailbox is None:
                continue
            if descriptor == mailbox.connection.fileno():
                self._forget(mailbox)
            elif (message := self._fetch(mailbox)) is not None:
                commands.append((mailbox.agent, message))
        if self._listener.fileno() in ready:  # last: a new agent may be given the descriptor numbers of one that left
            self._accept()
        return commands

    def answer(self, agent: int, message: bytes) -> None:
        """Hand a response back; an agent that has left misses it."""
        mailbox = self._mailboxes[agent]
        if mailbox is None or mailbox.a2p.is_free:
            return
        if mailbox.a2p.fits(message):
            mailbox.a2p.answer(message, agent)
        else:
            mailbox.a2p.hand_back(agent, damaged=True)
        os.eventfd_write(mailbox.fds.a2p_completion, 1)

    def notify(self, agent: int, message: bytes) -> bool:
        """Send a notification or delayed response; ``False`` where it is lost because the area is still taken."""
        mailbox = self._mailboxes[agent]
        if mailbox is None or not mailbox.p2a.fits(message) or not mailbox.can_notify():
            return False
        mailbox.notify(message)
        return True

    def close(self) -> None:
        """Disconnect everyone and take the socket away."""
        for mailbox in list(self._mailboxes.values()):
            if mailbox:
                self._forget(mailbox)
        self._listener.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)

    def _fetch(self, mailbox: _Mailbox) -> bytes | None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(mailbox.fds.a2p_doorbell)
        if mailbox.a2p.is_free:
            return None
        message = mailbox.a2p.fetch()
        mailbox.a2p.clear_doorbell()
        if message is None:
            mailbox.a2p.hand_back(mailbox.agent, damaged=True)
            os.eventfd_write(mailbox.fds.a2p_completion, 1)
        return message

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return
        agent = next((agent for agent, mailbox in self._mailboxes.items() if mailbox is None), None)
        if agent is None:
            connection.close()
            return
        mailbox = _Mailbox(connection, agent, self._geometry)
        try:
            send_invitation(connection, mailbox.invitation)
        except OSError:  # the agent has gone again already
            mailbox.close()
            return
        self._mailboxes[agent] = mailbox
        for descriptor in (mailbox.fds.a2p_doorbell, connection.fileno()):
            self._poll.register(descriptor, select.POLLIN)
            self._by_descriptor[descriptor] = mailbox

    def _forget(self, mailbox: _Mailbox) -> None:
        for descriptor in (mailbox.fds.a2p_doorbell, mailbox.connection.fileno()):
            self._poll.unregister(descriptor)
            del self._by_descriptor[descriptor]
        self._mailboxes[mailbox.agent] = None
        mailbox.close()
