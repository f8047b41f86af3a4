"""One virtio-scmi device: the requests of its front end, the commands and events of its guest.

See ``vhost_user.py`` for its guarantees.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import stat
import struct
from collections.abc import Callable
from typing import Final

from firmware_bridge.scmi.messages.header import HEADER_BYTES
from firmware_bridge.scmi.messages.status import Status
from firmware_bridge.scmi.transports.unix_socket import listen
from firmware_bridge.scmi.virtio.guest_memory import GuestError, GuestMemory, Region
from firmware_bridge.scmi.virtio.vhost_user_messages import (
    ADDRESSES,
    COMMANDS,
    EVENTS,
    FEATURES,
    NO_DESCRIPTOR,
    NUMBER,
    OFFERED_PROTOCOL_FEATURES,
    P2A_CHANNELS,
    PROTOCOL_FEATURES,
    QUEUES,
    REGION,
    STATE,
    TABLE,
    VERSION_1,
    Message,
    MessageStream,
    Request,
    name_of,
)
from firmware_bridge.scmi.virtio.vhost_user_ring import Ring
from firmware_bridge.scmi.virtio.virtqueue import MAX_SIZE, Chain, Rings, Virtqueue

MAX_MESSAGE: Final = 136
"""Size of the longest command that is relayed: 132 bytes of payload as in the mailbox, and the header."""

_STATUS = struct.Struct("<i")
_ANSWER_BYTES: Final = HEADER_BYTES + _STATUS.size
_PEER = struct.Struct("3i")  # pid, uid, gid (SO_PEERCRED)


OnMemory = Callable[[int, GuestMemory | None], None]
"""Called with an agent and its guest's memory when that is mapped, and with the agent and ``None`` before it is
unmapped: views of it must be released by then."""


class Device:
    """One agent's socket, and the guest that is connected to it."""

    def __init__(self, agent: int, path: str, on_memory: OnMemory) -> None:
        self.agent = agent
        self._on_memory = on_memory
        self.path = path
        self.listener = listen(path, socket.SOCK_STREAM)
        self.connection: socket.socket | None = None
        self.fault: str | None = None
        self.may_have_commands = False
        self._stream: MessageStream | None = None
        self._memory: GuestMemory | None = None
        self._rings = [Ring() for _ in range(QUEUES)]
        self._features = 0
        self._outstanding: Chain | None = None
        self._backend_channel: int | None = None
        self._handlers: dict[int, Callable[[Message], bytes | None]] = {
            Request.GET_FEATURES: lambda _: NUMBER.pack(FEATURES),
            Request.SET_FEATURES: self._set_features,
            Request.SET_OWNER: lambda _: None,
            Request.RESET_OWNER: self._reset,
            Request.RESET_DEVICE: self._reset,
            Request.SET_MEM_TABLE: self._set_memory,
            Request.SET_VRING_NUM: self._set_size,
            Request.SET_VRING_ADDR: self._set_addresses,
            Request.SET_VRING_BASE: self._set_base,
            Request.GET_VRING_BASE: self._get_base,
            Request.SET_VRING_KICK: self._set_descriptor,
            Request.SET_VRING_CALL: self._set_descriptor,
            Request.SET_VRING_ERR: self._set_descriptor,
            Request.GET_PROTOCOL_FEATURES: lambda _: NUMBER.pack(OFFERED_PROTOCOL_FEATURES),
            Request.SET_PROTOCOL_FEATURES: self._set_protocol_features,
            Request.GET_QUEUE_NUM: lambda _: NUMBER.pack(QUEUES),
            Request.SET_VRING_ENABLE: self._enable,
            Request.SET_BACKEND_REQ_FD: self._set_backend_channel,
        }

    # ---- the loop's side ----

    def waits_for(self) -> dict[int, Callable[[], None]]:
        """Descriptors to wait for, each with the function to call when it is readable."""
        if self.connection is None:
            return {self.listener.fileno(): self._accept}
        waits: dict[int, Callable[[], None]] = {self.connection.fileno(): self._serve}
        kick = self._rings[COMMANDS].descriptor(Request.SET_VRING_KICK)
        if kick is not None:
            waits[kick] = self._take_kick
        return waits

    def next_command(self) -> bytes | None:
        """The next command, unless the last one has not been answered.

        None is taken while a request of the front end waits: a guest may run, and kick, before all of them are read,
        and its command could cause an event for a queue that is still to be set up.
        """
        if not self.may_have_commands or self._outstanding is not None or self._has_request():
            return None
        ring = self._rings[COMMANDS]
        try:
            queue = self._queue(COMMANDS)
            for _ in range(MAX_SIZE):  # a guest that keeps adding unusable chains must not delay the others
                chain = queue.take(MAX_MESSAGE) if queue else None
                if chain is None:
                    break
                if HEADER_BYTES <= len(chain.content) <= MAX_MESSAGE and chain.capacity >= _ANSWER_BYTES:
                    self._outstanding = chain
                    return chain.content
                self._give_back(COMMANDS, chain, _refusal(chain))
            else:
                return None
        except GuestError as error:
            self._break(ring, error)
        self.may_have_commands = False
        return None

    def answer(self, message: bytes) -> None:
        """Send the response to the outstanding command; does nothing when the guest has left."""
        chain, self._outstanding = self._outstanding, None
        if chain is None:
            return
        try:
            self._give_back(COMMANDS, chain, message if len(message) <= chain.capacity else _refusal(chain))
        except GuestError as error:
            self._break(self._rings[COMMANDS], error)

    def notify(self, message: bytes) -> bool:
        """Send an event, if the guest has a buffer for it."""
        if not self._features & P2A_CHANNELS:
            return False
        try:
            queue = self._queue(EVENTS)
            chain = queue.take(0) if queue else None
            if queue is None or chain is None:
                return False
            if chain.capacity < len(message):
                queue.put_off()
                return False
            self._give_back(EVENTS, chain, message)
        except GuestError as error:
            self._break(self._rings[EVENTS], error)
            return False
        return True

    def close(self) -> None:
        """Disconnect the guest and remove the socket."""
        self._forget()
        self.listener.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)

    # ---- rings ----

    def _queue(self, index: int) -> Virtqueue | None:
        if not self._features & VERSION_1:
            return None
        return self._rings[index].start(self._memory)

    def _give_back(self, index: int, chain: Chain, content: bytes) -> None:
        ring = self._rings[index]
        if ring.queue and ring.queue.give_back(chain, content):
            ring.signal(Request.SET_VRING_CALL)

    def _break(self, ring: Ring, error: GuestError) -> None:
        """Stop the ring until the front end sets it up again."""
        self.fault = f"{self.path}: {error}"
        ring.is_broken = True
        self._stop(ring)
        ring.signal(Request.SET_VRING_ERR)

    def _stop(self, ring: Ring) -> None:
        if ring is self._rings[COMMANDS] and self._outstanding is not None:
            self._outstanding = None  # executed again after a restart of the ring: commands set or read a state
            if ring.queue:
                ring.queue.put_off()
        ring.stop()

    def _has_request(self) -> bool:
        """Whether the front end has sent something that is not read yet, its end included."""
        if self.connection is None:
            return False
        poll = select.poll()
        poll.register(self.connection, select.POLLIN)
        return bool(poll.poll(0))

    def _take_kick(self) -> None:
        self.may_have_commands = True
        kick = self._rings[COMMANDS].descriptor(Request.SET_VRING_KICK)
        if kick is None:
            return
        try:
            if os.read(kick, 512):
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self._rings[COMMANDS].set_descriptor(Request.SET_VRING_KICK, None)  # closed at the other end

    # ---- the connection ----

    def _accept(self) -> None:
        try:
            connection, _ = self.listener.accept()
        except OSError:
            return
        _, uid, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        if uid not in (os.geteuid(), 0):
            self.fault = f"{self.path}: user {uid} may not connect"
            connection.close()
            return
        connection.setblocking(False)
        self.connection, self._stream, self.fault = connection, MessageStream(connection), None

    def _serve(self) -> None:
        """Execute the front end's requests, one message at a time."""
        stream = self._stream
        if stream is None:
            return
        try:
            message = stream.read()
            if message:
                self._do(stream, message)
        except GuestError as error:
            self.fault = f"{self.path}: {error}"
            self._forget()

    def _do(self, stream: MessageStream, message: Message) -> None:
        try:
            handler = self._handlers.get(message.request)
            if handler is None:
                raise GuestError(f"{name_of(message.request)} is not provided")
            reply = handler(message)
        except GuestError as error:
            if not message.wants_reply:
                raise
            self.fault = f"{self.path}: {error}"
            reply = NUMBER.pack(1)
        else:
            if reply is None and message.wants_reply:
                reply = NUMBER.pack(0)
        finally:
            message.close()
        if reply is not None:
            stream.reply(message.request, reply)

    def _forget(self) -> None:
        """Disconnect the front end."""
        self._reset()
        self._replace_memory(None)
        self._close_backend_channel()
        if self._stream:
            self._stream.close()
        self.connection = self._stream = None

    # ---- requests ----

    def _reset(self, _: Message | None = None) -> None:
        for ring in self._rings:
            ring.close()
        self._rings = [Ring() for _ in range(QUEUES)]
        self._outstanding = None
        self._features = 0
        self.may_have_commands = False

    def _set_features(self, message: Message) -> None:
        (features,) = message.unpack(NUMBER)
        if features & ~FEATURES:
            raise GuestError(f"features {features:#x}, of which {features & ~FEATURES:#x} were not offered")
        self._features = features
        if not features & PROTOCOL_FEATURES:
            for ring in self._rings:  # then there is no SET_VRING_ENABLE
                ring.is_enabled = True

    def _set_backend_channel(self, message: Message) -> None:
        """Nothing is ever sent there, but it stays open: user-mode Linux takes its end for the end of the device."""
        if len(message.descriptors) != 1:
            raise GuestError(f"{name_of(message.request)} with {len(message.descriptors)} descriptors")
        self._close_backend_channel()
        self._backend_channel = message.descriptors.pop()

    def _close_backend_channel(self) -> None:
        if self._backend_channel is not None:
            os.close(self._backend_channel)
            self._backend_channel = None

    def _set_protocol_features(self, message: Message) -> None:
        (features,) = message.unpack(NUMBER)
        if features & ~OFFERED_PROTOCOL_FEATURES:
            raise GuestError(f"protocol features {features:#x}, not all of which were offered")

    def _set_memory(self, message: Message) -> None:
        if len(message.payload) < TABLE.size:
            raise GuestError(f"a memory table of {len(message.payload)} bytes")
        count, _ = TABLE.unpack_from(message.payload)
        if len(message.payload) < TABLE.size + count * REGION.size:
            raise GuestError(f"a memory table of {count} regions in {len(message.payload)} bytes")
        regions = [Region(*REGION.unpack_from(message.payload, TABLE.size + n * REGION.size)) for n in range(count)]
        memory = GuestMemory(regions, message.descriptors)
        for ring in self._rings:
            self._stop(ring)  # restarted in the new memory when needed
        self._replace_memory(memory)
        self.may_have_commands = True

    def _replace_memory(self, memory: GuestMemory | None) -> None:
        if self._memory:
            self._on_memory(self.agent, None)
            self._memory.close()
        self._memory = memory
        if memory:
            self._on_memory(self.agent, memory)

    def _ring(self, index: int) -> Ring:
        if not 0 <= index < QUEUES:
            raise GuestError(f"queue {index}: there are {QUEUES}")
        return self._rings[index]

    def _stopped_ring(self, index: int) -> Ring:
        ring = self._ring(index)
        if ring.queue:
            raise GuestError(f"queue {index} cannot be changed while it runs")
        return ring

    def _set_size(self, message: Message) -> None:
        index, size = message.unpack(STATE)
        self._stopped_ring(index).size = size

    def _set_base(self, message: Message) -> None:
        index, base = message.unpack(STATE)
        self._stopped_ring(index).base = base

    def _get_base(self, message: Message) -> bytes:
        index, _ = message.unpack(STATE)
        ring = self._ring(index)
        self._stop(ring)
        ring.set_descriptor(Request.SET_VRING_KICK, None)
        return STATE.pack(index, ring.base)

    def _set_addresses(self, message: Message) -> None:
        index, _, descriptors, used, available, _ = message.unpack(ADDRESSES)
        ring = self._stopped_ring(index)
        ring.rings, ring.is_broken = Rings(descriptors, available, used), False

    def _enable(self, message: Message) -> None:
        index, is_enabled = message.unpack(STATE)
        ring = self._ring(index)
        ring.is_enabled = bool(is_enabled)
        if is_enabled:
            self.may_have_commands = True
        else:
            self._stop(ring)

    def _set_descriptor(self, message: Message) -> None:
        (number,) = message.unpack(NUMBER)
        ring = self._ring(number & ~NO_DESCRIPTOR)
        is_expected = not number & NO_DESCRIPTOR
        if len(message.descriptors) != is_expected:
            raise GuestError(f"{name_of(message.request)} with {len(message.descriptors)} descriptors")
        if not is_expected:
            if message.request == Request.SET_VRING_KICK:
                raise GuestError("a queue without a descriptor for its kicks would have to be polled")
            ring.set_descriptor(message.request, None)
            return
        descriptor = message.descriptors[0]
        kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
        if kind not in (0, stat.S_IFIFO, stat.S_IFSOCK):  # 0: eventfd; a file or terminal could block
            raise GuestError(f"{name_of(message.request)} with a descriptor that is neither eventfd nor pipe")
        os.set_blocking(descriptor, False)
        ring.set_descriptor(message.request, message.descriptors.pop())
        if message.request == Request.SET_VRING_KICK:
            self.may_have_commands = True


def _refusal(chain: Chain) -> bytes:
    """The response to a command that is not relayed, or for which the real response has no room: header and status."""
    if len(chain.content) < HEADER_BYTES or chain.capacity < _ANSWER_BYTES:
        return b""
    return chain.content[:HEADER_BYTES] + _STATUS.pack(Status.PROTOCOL_ERROR)
