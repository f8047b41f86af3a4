"""An agent gets its shared memory in one packet over a Unix socket (``scmi+shm:/path``).

The platform (``boards/posix/channel.c``) listens on one ``SOCK_SEQPACKET`` socket with mode 0600 for each agent. The
socket identifies the agent, so no agent can pretend to be another one. The packet has the words below and, as ancillary
data, five descriptors: the memory (a memfd sealed against a change of size, so that neither side can make the other
fault) and four eventfds. The socket then stays open; when it closes, the other side has gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
from collections.abc import Sequence
from typing import Final

import msgspec

from firmware_bridge.errors import LinkError, WrongDeviceError
from firmware_bridge.scmi.transports.smt import Geometry

MAGIC: Final = b"SCMI"
HANDSHAKE_VERSION: Final = 1
HANDSHAKE_TIMEOUT_S: Final = 1.0

PACKET: Final = struct.Struct("<4s8I")
"""Magic; version, agent, memory size, then the ``Geometry``."""

SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class Descriptors(msgspec.Struct, frozen=True):
    """In the order in which they are passed."""

    memory: int
    a2p_doorbell: int
    """The agent signals: a command is in the A2P area."""
    a2p_completion: int
    """The platform signals: the response is in the A2P area."""
    p2a_doorbell: int
    """The platform signals: an event is in the P2A area."""
    p2a_completion: int
    """The agent signals: the P2A area is free again."""

    def close(self) -> None:
        """Close all five."""
        for descriptor in msgspec.structs.astuple(self):
            os.close(descriptor)


_COUNT: Final = len(Descriptors.__struct_fields__)


class Invitation(msgspec.Struct, frozen=True):
    """What the platform passes to an agent that connects."""

    agent: int
    memory_bytes: int
    geometry: Geometry
    descriptors: Descriptors


def receive_invitation(connection: socket.socket, name: str) -> Invitation:
    """Receive memory and eventfds from the platform, and check all of it."""
    try:
        packet, passed, _, _ = socket.recv_fds(connection, PACKET.size + 1, _COUNT, socket.MSG_CMSG_CLOEXEC)
    except TimeoutError:
        raise LinkError(f"{name}: connected, but no mailbox was passed in {HANDSHAKE_TIMEOUT_S:g} s") from None
    except OSError as error:
        raise LinkError(f"{name}: {error.strerror}") from None
    try:
        return _checked(packet, passed, name)
    except BaseException:
        for descriptor in passed:
            with contextlib.suppress(OSError):
                os.close(descriptor)
        raise


def _checked(packet: bytes, passed: Sequence[int], name: str) -> Invitation:
    if not packet:
        raise LinkError(f"{name}: this channel is taken by another client, or this user may not use it")
    if len(packet) != PACKET.size or packet[:4] != MAGIC or len(passed) != _COUNT:
        raise WrongDeviceError(f"{name}: the listener there is not an SCMI mailbox")
    _, version, agent, memory_bytes, *offsets = PACKET.unpack(packet)
    if version != HANDSHAKE_VERSION:
        raise WrongDeviceError(f"{name}: mailbox handshake version {version} instead of {HANDSHAKE_VERSION}")
    geometry = Geometry(*offsets)
    descriptors = Descriptors(*passed)
    problem = geometry.problem(memory_bytes) or _memory_problem(descriptors.memory, memory_bytes)
    if problem:
        raise WrongDeviceError(f"{name}: the mailbox that was passed cannot be used: {problem}")
    for eventfd in passed[1:]:
        os.set_blocking(eventfd, False)
    return Invitation(agent, memory_bytes, geometry, descriptors)


def _memory_problem(memory: int, memory_bytes: int) -> str | None:
    try:
        seals = fcntl.fcntl(memory, fcntl.F_GET_SEALS)
    except OSError:
        return "its memory is not a memfd"
    if seals & SEALS != SEALS:
        return "its memory is not sealed against a change of size"
    if os.fstat(memory).st_size < memory_bytes:
        return f"its memory has {os.fstat(memory).st_size} bytes instead of {memory_bytes}"
    return None
