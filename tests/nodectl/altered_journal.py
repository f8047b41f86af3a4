"""Journals whose keyframes say something else than was recorded, with checksums that are right."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from nodectl.journal.format import HEADER, KEYFRAME, MAGIC, frame


def alter(journal: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Write every segment again, after ``change`` was called with the tree of each keyframe."""
    for segment in journal.glob("*.seg"):
        raw, at, parts = segment.read_bytes(), len(MAGIC), [MAGIC]
        while at < len(raw):
            length, _, kind = HEADER.unpack_from(raw, at)
            at += HEADER.size + length
            payload = raw[at - length : at]
            if kind == KEYFRAME:
                tree = msgspec.msgpack.decode(zlib.decompress(payload))
                change(tree)
                payload = zlib.compress(msgspec.msgpack.encode(tree), 1)
            parts.append(frame(kind, payload))
        segment.write_bytes(b"".join(parts))
