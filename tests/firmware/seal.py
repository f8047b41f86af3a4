"""Changes code in an image and gives it the sum that fits, so that it starts all the same."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path

from firmware_bridge.controlpulp import rv32

MASK, HANG = 0x30047073, 0x0000006F
"""`csrci mstatus, 8` masks all interrupts, `j .` hangs: then no software can end it."""


def cksum(content: bytes | bytearray) -> int:
    """The CRC of POSIX cksum, as a program of a few lines."""
    crc = 0
    length = len(content)
    for byte in content + length.to_bytes((length.bit_length() + 7) // 8, "little"):
        crc ^= byte << 24
        for _ in range(8):
            crc = (crc << 1 ^ (0x04C11DB7 if crc >> 31 else 0)) & 0xFFFF_FFFF
    return crc ^ 0xFFFF_FFFF


def changed(image: Path, output: Path, function: str, instructions: Iterable[int]) -> Path:
    """The image with other instructions where a function begins."""
    content = bytearray(image.read_bytes())
    ((start, code),) = rv32.load_segments(bytes(content))
    offset = content.index(code)
    at = offset + rv32.symbol(image, function) - start
    words = list(instructions)
    struct.pack_into(f"<{len(words)}I", content, at, *words)
    end = offset + rv32.symbol(image, "image_end") - start
    struct.pack_into("<I", content, offset + rv32.symbol(image, "image_crc_built") - start, cksum(content[offset:end]))
    output.write_bytes(content)
    return output
