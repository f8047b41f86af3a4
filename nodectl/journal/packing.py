"""Arrays of numbers to few bytes, and back, exactly.

Counters grow by about the same amount at every tick, and decisions hardly change. So the difference to the tick before
is stored: integers subtracted (modulo 2^64, so that the missing-value sentinel survives too), floats and bytes by
exclusive or (so that a NaN keeps its payload). Zigzag coding turns small negative differences into small numbers. Then
the numbers are cut into bytes, and bytes of equal weight are put together into planes. Of 1536 differences below 2^28
the four upper planes are all zero and left out; the others are mostly runs, for which the fast run-length strategy of
deflate is enough.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pmu.readings import type_f64, type_i64, type_u8

type_u64 = npt.NDArray[np.uint64]


@dataclass(slots=True)
class Row:
    """The numbers of one tick, flat: integers, floats, bytes."""

    ints: type_i64
    floats: type_f64
    small: type_u8

    @staticmethod
    def zeros(n_ints: int, n_floats: int, n_small: int) -> Row:
        """A row to take the first difference from."""
        return Row(np.zeros(n_ints, np.int64), np.zeros(n_floats), np.zeros(n_small, np.uint8))


def pack(row: Row, previous: Row) -> bytes:
    """``row`` as its difference to ``previous``, which must have the same lengths."""
    step = row.ints - previous.ints
    int_mask, int_planes = _planes(((step << 1) ^ (step >> 63)).view(np.uint64))
    float_mask, float_planes = _planes(row.floats.view(np.uint64) ^ previous.floats.view(np.uint64))
    deflate = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS, zlib.DEF_MEM_LEVEL, zlib.Z_RLE)
    body = b"".join((bytes((int_mask, float_mask)), int_planes, float_planes, (row.small ^ previous.small).tobytes()))
    return deflate.compress(body) + deflate.flush()


def unpack(data: bytes, previous: Row) -> Row:
    """The row that ``pack`` made ``data`` from; ``ValueError`` if the lengths do not fit ``previous``."""
    longest = 2 + 8 * (previous.ints.size + previous.floats.size) + previous.small.size
    body = memoryview(inflated(data, longest, -zlib.MAX_WBITS))
    if len(body) < 2:
        raise ValueError("a row without its masks")
    int_mask, float_mask, at = body[0], body[1], 2
    folded, at = _numbers(body, at, int_mask, previous.ints.size)
    bits, at = _numbers(body, at, float_mask, previous.floats.size)
    small = np.frombuffer(body[at:], np.uint8)
    if small.size != previous.small.size:
        raise ValueError(f"{small.size} bytes where {previous.small.size} belong")
    step = (folded >> np.uint64(1)).view(np.int64) ^ -(folded & np.uint64(1)).view(np.int64)
    floats = (bits ^ previous.floats.view(np.uint64)).view(np.float64)
    return Row(previous.ints + step, floats, small ^ previous.small)


def inflated(data: bytes, longest: int, window_bits: int = zlib.MAX_WBITS) -> bytes:
    """What ``data`` was deflated from; ``zlib.error`` or ``ValueError`` if it is damaged, or longer than ``longest``:
    a journal comes from elsewhere, and some bytes may be deflated to a thousandth."""
    inflate = zlib.decompressobj(window_bits)
    found = inflate.decompress(data, longest + 1)
    if len(found) > longest or not inflate.eof:
        raise ValueError(f"it does not end within {longest} bytes")
    return found


def _planes(values: type_u64) -> tuple[int, bytes]:
    """Which of the eight byte planes are not all zero (bit 0: lowest), and those planes."""
    if not values.size:
        return 0, b""
    used = int(np.bitwise_or.reduce(values))
    kept = [plane for plane in range(8) if (used >> (8 * plane)) & 0xFF]
    planes = values.astype("<u8", copy=False).view(np.uint8).reshape(-1, 8).T
    return sum(1 << plane for plane in kept), planes[kept].tobytes()


def _numbers(body: memoryview, at: int, mask: int, count: int) -> tuple[type_u64, int]:
    planes = np.zeros((8, count), np.uint8)
    for plane in range(8):
        if mask >> plane & 1:
            planes[plane] = np.frombuffer(body[at : at + count], np.uint8)
            at += count
    return np.ascontiguousarray(planes.T).reshape(-1).view("<u8").astype(np.uint64, copy=False), at
