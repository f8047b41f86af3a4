"""Packets and descriptors over a Unix socket between the agent and its writer process (unix(7), SCM_RIGHTS)."""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import Final

from foundation.shell.errors import NodectlError
from nodectl.writer_process.writer_protocol import MOST_BYTES

MOST_DESCRIPTORS: Final = 64
"""Ours, per packet; Linux takes 253 (SCM_MAX_FD)."""

WAIT_STEP_S: Final = 1.0
"""Ours: who waits for long does something else so often, such as feeding its watchdog (15 s in the unit)."""

_CREDENTIALS: Final = struct.Struct("iII")  # struct ucred: pid, uid, gid


class ChannelError(NodectlError):
    """The other process is gone, or does not answer."""


class Channel:
    """One end of a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)

    @property
    def descriptor(self) -> int:
        """For callers that wait for other things as well."""
        return self._socket.fileno()

    def peer_uid(self) -> int:
        """The other end's user, as the kernel knows it (SO_PEERCRED)."""
        found = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        return int(_CREDENTIALS.unpack(found)[1])

    def send(self, data: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send one packet, never waiting; ``ChannelError`` if the other end is gone or has not read for long."""
        try:
            if descriptors:
                socket.send_fds(self._socket, [data], list(descriptors), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            else:
                self._socket.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except OSError as error:
            raise ChannelError(f"cannot send: {error.strerror}") from error

    def receive(self, patience_s: float, while_waiting: Callable[[], object] = lambda: None) -> tuple[bytes, list[int]]:
        """One packet and the descriptors that it carries; ``ChannelError`` at the end of the connection, for a packet
        that is too large, or when ``patience_s`` is over. Meanwhile it calls ``while_waiting`` each ``WAIT_STEP_S``."""
        deadline_s = time.monotonic() + patience_s
        while not self._poll.poll(min(max(deadline_s - time.monotonic(), 0.0), WAIT_STEP_S) * 1e3):
            if time.monotonic() >= deadline_s:
                raise ChannelError(f"no answer within {patience_s:g} s")
            while_waiting()
        try:
            data, descriptors, flags, _ = socket.recv_fds(
                self._socket, MOST_BYTES, MOST_DESCRIPTORS, socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return self.receive(max(deadline_s - time.monotonic(), 0.0), while_waiting)
        except OSError as error:
            raise ChannelError(f"cannot receive: {error.strerror}") from error
        if not data or flags & socket.MSG_TRUNC:
            for descriptor in descriptors:
                os.close(descriptor)
            raise ChannelError("the connection has ended" if not data else f"a packet over {MOST_BYTES} bytes")
        return data, descriptors

    def close(self) -> None:
        """Hang up; the other end notices."""
        self._socket.close()


def pair() -> tuple[socket.socket, socket.socket]:
    """Both ends of a new connection."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
