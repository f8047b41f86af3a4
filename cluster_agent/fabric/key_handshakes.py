"""Which key a peer shows when it connects, and the answer: ZeroMQ's ZAP (RFC 27)."""

from __future__ import annotations

from typing import Final

from zmq.utils import z85

from cluster_agent.fabric.front_pipe import Handshake

ENDPOINT: Final = "inproc://zeromq.zap.01"
VERSION: Final = b"1.0"


def handshake(frames: list[bytes]) -> Handshake:
    """What libzmq requests. ``public`` is empty where no key is shown."""
    asker, _, _, request, _, address, _, mechanism, *credentials = frames
    is_curve = mechanism == b"CURVE" and len(credentials) == 1 and len(credentials[0]) == 32
    return Handshake(asker, request, address[:255], z85.encode(credentials[0]).decode() if is_curve else "")


def verdict(asker: bytes, request: bytes, public: str) -> list[bytes]:
    """``public``: the key, by which each message of the connection is then named; empty: it may not connect."""
    status = (b"200", b"OK") if public else (b"400", b"key not allowed")
    return [asker, b"", VERSION, request, *status, public.encode(), b""]
