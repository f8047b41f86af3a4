"""What the cluster agent and its front process say to each other, over a Unix socket pair.

Four bytes of length, then one typed message in MessagePack, in either direction. Both ends check type and size while
they decode. An end that finds something else closes the pipe, and the front process is replaced. Neither end ever
blocks: what the other end does not read waits here, up to ``MOST_WAITING`` bytes.

Source of the handshake's words (ZAP): ZeroMQ RFC 27.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from typing import Annotated, Final, Generic, TypeVar

import msgspec
from msgspec import Meta

from cluster_agent.fabric.ask import LARGEST_ANSWER

LARGEST_FRAME: Final = LARGEST_ANSWER + (1 << 16)
MOST_WAITING: Final = 2 * LARGEST_FRAME
AT_ONCE: Final = 1 << 20
"""Ours: bytes read from the pipe at a time."""

WRITTEN_AT: Final = 1 << 16
"""Ours: so many waiting bytes are written without a ``flush``."""

_LENGTH: Final = struct.Struct("!I")

Name = Annotated[bytes, Meta(max_length=255)]
"""libzmq's name of a connection."""


class Listen(msgspec.Struct, frozen=True, array_like=True, tag="listen"):
    """To the front process: listen at ``url`` with these socket options and keys ("": no encryption).

    ``patience_s``: how long to wait for an address that is in use. ``memory``: the most bytes of data to allocate.
    """

    url: str
    public: str
    secret: str
    options: list[tuple[int, int]]
    patience_s: float
    memory: int


class Welcome(msgspec.Struct, frozen=True, array_like=True, tag="welcome"):
    """To the front process: the answer to a ``Handshake``. ``public`` is the key, if it is on the list, else ""."""

    asker: Name
    request: Name
    public: str


class Send(msgspec.Struct, frozen=True, array_like=True, tag="send"):
    """To the front process: send ``frame`` to this connection."""

    connection: Name
    frame: bytes


class Listening(msgspec.Struct, frozen=True, array_like=True, tag="listening"):
    """From the front process: peers can connect to ``url``."""

    url: str


class CannotListen(msgspec.Struct, frozen=True, array_like=True, tag="cannot"):
    """From the front process: why it does not listen."""

    why: str


class Came(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message. ``public`` is the key of its connection; ``is_plain``: it has one part and libzmq named its
    connection."""

    connection: Name
    public: Annotated[str, Meta(max_length=40)]
    is_plain: bool
    frame: bytes


class Handshake(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A peer shows a key; ``Welcome`` says whether it may connect."""

    asker: Name
    request: Name
    address: Name
    public: Annotated[str, Meta(max_length=40)]


class Lost(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A ``Send`` was not done: the connection ``is_gone``, or its queue is full."""

    connection: Name
    is_gone: bool


class Turn(msgspec.Struct, frozen=True, array_like=True, tag="turn"):
    """From the front process: what happened since the last one. At least one a second, which shows that it lives."""

    came: list[Came]
    handshakes: list[Handshake]
    lost: list[Lost]


Down = Listen | Welcome | Send
Up = Listening | CannotListen | Turn

T = TypeVar("T")


class PipeError(Exception):
    """The pipe is closed, or carried something that is no message."""


class Pipe(Generic[T]):
    """One end of the pair; ``kinds`` are the types of message that the other end may send."""

    def __init__(self, end: socket.socket, kinds: object) -> None:
        end.setblocking(False)
        self._socket = end
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(kinds)
        self._encoder = msgspec.msgpack.Encoder()
        self._got = bytearray()
        self._waiting = bytearray()

    def fileno(self) -> int:
        """Its descriptor, to be polled."""
        return self._socket.fileno()

    @property
    def waiting(self) -> int:
        """Bytes that the other end has not taken yet."""
        return len(self._waiting)

    def send(self, message: msgspec.Struct) -> bool:
        """Queue it for the next ``flush``; False if it does not fit any more. ``PipeError``"""
        body = self._encoder.encode(message)
        if len(body) > LARGEST_FRAME or len(self._waiting) + len(body) > MOST_WAITING:
            return False
        self._waiting += _LENGTH.pack(len(body)) + body
        if len(self._waiting) > WRITTEN_AT:
            self.flush()
        return True

    def flush(self) -> None:
        """Write what waits, as far as the other end takes it. ``PipeError``"""
        try:
            while self._waiting:
                del self._waiting[: self._socket.send(memoryview(self._waiting)[:AT_ONCE].tobytes())]
        except BlockingIOError:
            pass
        except OSError as error:
            raise PipeError(f"closed: {error.strerror}") from None

    def receive(self) -> Iterator[T]:
        """The messages that have come, from one read. ``PipeError``"""
        try:
            part = self._socket.recv(AT_ONCE)
        except BlockingIOError:
            return
        except OSError as error:
            raise PipeError(f"closed: {error.strerror}") from None
        if not part:
            raise PipeError("closed")
        self._got += part
        begin = 0
        try:
            while len(self._got) - begin >= _LENGTH.size:
                (size,) = _LENGTH.unpack_from(self._got, begin)
                if size > LARGEST_FRAME:
                    raise PipeError(f"a frame of {size} bytes")
                end = begin + _LENGTH.size + size
                if len(self._got) < end:
                    break
                body, begin = bytes(memoryview(self._got)[end - size : end]), end
                yield self._decoder.decode(body)
        except msgspec.MsgspecError as error:
            raise PipeError(str(error)) from None
        finally:
            del self._got[:begin]

    def close(self) -> None:
        """Close this end."""
        self._socket.close()
