"""The agent's end of the shared-memory transport (``scmi+shm:/path``)."""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import select
import socket
from collections import deque
from typing import Final

from firmware_bridge.errors import LinkError
from firmware_bridge.scmi.clock import Clock, RealClock
from firmware_bridge.scmi.transports.shared_words import SharedWords
from firmware_bridge.scmi.transports.shm_handshake import HANDSHAKE_TIMEOUT_S, Invitation, receive_invitation
from firmware_bridge.scmi.transports.smt import Area

REPLY_TIMEOUT_S: Final = 30e-3
"""Linux 6.12 mailbox clients."""

FREE_TIMEOUTS: Final = 2
"""How many reply timeouts to wait for an area that a late platform still owns (Linux does the same)."""


class SharedMemory:
    """A mapped mailbox of two areas."""

    def __init__(
        self,
        connection: socket.socket,
        invitation: Invitation,
        name: str,
        clock: Clock | None = None,
        reply_timeout_s: float = REPLY_TIMEOUT_S,
    ) -> None:
        self.name = name
        self.clock: Clock = clock or RealClock()
        self.reply_timeout_s = reply_timeout_s
        self.agent = invitation.agent
        self._connection = connection
        self._fds = invitation.descriptors
        geometry = invitation.geometry
        self._memory = mmap.mmap(self._fds.memory, invitation.memory_bytes)
        view = memoryview(self._memory)
        self._a2p = Area(view, geometry.a2p_offset, geometry)
        self._p2a = Area(view, geometry.p2a_offset, geometry)
        self.shared_words = SharedWords(view)
        view.release()
        self.descriptors = (self._fds.a2p_completion, self._fds.p2a_doorbell, connection.fileno())
        """One of them is readable when ``receive`` has a message; for callers that also wait for other descriptors."""
        self._poll = select.poll()
        for descriptor in self.descriptors:
            self._poll.register(descriptor, select.POLLIN)
        self._arrived: deque[bytes] = deque()
        self._is_outstanding = False
        """The platform still owns the command area, until its completion shows that its writes are over."""
        self._is_waiting = False
        """The client still waits for the outstanding response."""
        self._transport_errors = 0
        self._is_closed = False

    def send(self, message: bytes) -> None:
        """Write a command and ring the doorbell; waits for the area if a late platform still owns it."""
        if not self._a2p.fits(message):
            raise LinkError(f"{self.name}: a message of {len(message)} bytes does not fit into the mailbox")
        if self._is_outstanding:
            self._wait_until_free()
        self._a2p.call(message, self.agent)
        self._is_outstanding = self._is_waiting = True
        os.eventfd_write(self._fds.a2p_doorbell, 1)

    def receive(self, timeout_s: float) -> bytes | None:
        """The response, or an event."""
        deadline_s = self.clock.now_s() + timeout_s
        while not self._arrived:
            left_s = deadline_s - self.clock.now_s()
            self._wait(max(left_s, 0.0))
            if not self._arrived and left_s <= 0.0:
                return None
        return self._arrived.popleft()

    def _wait_until_free(self) -> None:
        deadline_s = self.clock.now_s() + FREE_TIMEOUTS * self.reply_timeout_s
        self._is_waiting = False  # this responds to a command that was given up
        while self._is_outstanding:
            left_s = deadline_s - self.clock.now_s()
            if left_s <= 0.0:
                raise LinkError(
                    f"{self.name}: the controller has not handed the mailbox back within"
                    f" {FREE_TIMEOUTS * self.reply_timeout_s * 1e3:g} ms: it hangs, or was reset during the exchange"
                )
            self._wait(left_s)

    def _wait(self, timeout_s: float) -> None:
        """Process the events of the next wake-up."""
        ready = {descriptor for descriptor, _ in self._poll.poll(math.ceil(timeout_s * 1e3))}
        if self._fds.a2p_completion in ready:
            _drain(self._fds.a2p_completion)
            self._take_response()
        if self._fds.p2a_doorbell in ready:
            _drain(self._fds.p2a_doorbell)
            self._take_event()
        if self._connection.fileno() in ready and not self._arrived:
            raise LinkError(f"{self.name}: the controller's process has ended")

    def _take_response(self) -> None:
        if not self._is_outstanding or not self._a2p.is_free:
            return
        message = self._a2p.fetch()
        damaged = self._a2p.has_error
        self._a2p.clear_completion()
        is_wanted, self._is_outstanding, self._is_waiting = self._is_waiting, False, False
        if message is None or damaged:
            self._transport_errors += 1
        elif is_wanted:
            self._arrived.append(message)

    def _take_event(self) -> None:
        if self._p2a.is_free:
            return
        message = self._p2a.fetch()
        self._p2a.clear_doorbell()
        self._p2a.hand_back(self.agent)
        os.eventfd_write(self._fds.p2a_completion, 1)
        if message is None:
            self._transport_errors += 1
        else:
            self._arrived.append(message)

    def diagnosis(self) -> str:
        """Why there was no response: damage, or a mailbox that was not handed back."""
        if self._transport_errors:
            return f"{self._transport_errors} messages were marked as damaged in the mailbox"
        return "the mailbox was not handed back (is the controller running?)"

    def close(self) -> None:
        """Unmap and disconnect; a second call does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        self._a2p.release()
        self._p2a.release()
        self.shared_words.release()
        self._memory.close()
        self._fds.close()
        self._connection.close()


def open_shared_memory(path: str, name: str, reply_timeout_s: float = REPLY_TIMEOUT_S) -> SharedMemory:
    """Connect to a platform's socket and map the mailbox that it passes."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    connection.settimeout(HANDSHAKE_TIMEOUT_S)
    try:
        connection.connect(path)
        invitation = receive_invitation(connection, name)
        connection.setblocking(False)
        return SharedMemory(connection, invitation, name, reply_timeout_s=reply_timeout_s)
    except OSError as error:
        connection.close()
        # a regular file refuses connections in the same way as a socket without a listener
        hint = " (does a controller serve it?)" if isinstance(error, ConnectionRefusedError) else ""
        raise LinkError(f"{name}: cannot connect to {path}: {error.strerror or error}{hint}") from None
    except BaseException:
        connection.close()
        raise


def _drain(descriptor: int) -> None:
    with contextlib.suppress(BlockingIOError):
        os.eventfd_read(descriptor)
