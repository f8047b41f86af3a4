"""Which boot of the machine this is, and for how long it has been up."""

from __future__ import annotations

import time
from typing import Final

from foundation.shell.errors import NodectlError

BOOT_ID_PATH: Final = "/proc/sys/kernel/random/boot_id"


def boot_id() -> str:
    """The kernel's name for this boot. ``NodectlError`` without /proc. Source: random(4)."""
    try:
        with open(BOOT_ID_PATH) as file:
            return file.read().strip()
    except OSError as error:
        raise NodectlError(f"{BOOT_ID_PATH}: {error.strerror}; is /proc mounted?") from None


def boottime_s() -> float:
    """Seconds since boot: no change of the wall clock moves them. Source: clock_gettime(2), CLOCK_BOOTTIME."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
