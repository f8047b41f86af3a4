"""Fields of a 64-bit register, and a register as a pair of functions."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass

WIDE = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Register:
    """``read`` takes the logical CPU; ``write``, if the register can be written, the CPU and the value."""

    read: Callable[[int], int]
    write: Callable[[int, int], None] | None = None


def constant(value: int) -> Register:
    """A register that always reads this value and cannot be written."""
    return Register(lambda cpu: value)


def field(value: int, low: int, high: int) -> int:
    """Bits ``high``:``low`` of a value."""
    return value >> low & ((1 << high - low + 1) - 1)


def placed(value: int, low: int, high: int) -> int:
    """``value`` in bits ``high``:``low``; a value too large for them becomes their largest."""
    most = (1 << high - low + 1) - 1
    return min(max(value, 0), most) << low


def faulted() -> OSError:
    """EIO: what the msr driver returns if the instruction faults, as on a register that the processor lacks."""
    return OSError(errno.EIO, os.strerror(errno.EIO))
