"""The rv32 image on a LiteX SoC in RTL: LiteX's own bus, timer, UART and watchdog, simulated in this process.

The SoC has a clock of 100 MHz, and the image runs five times slower than real time (``boards/litex/build.sh``): so a
tick takes as many cycles as on a core at 500 MHz, and all times here are those of the image. Every cycle is simulated,
also those in which the core waits: LiteX's timer is part of the model.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

from firmware_bridge.controlpulp.rtl import CLOCK_HZ, TICK_CYCLES, RtlController
from firmware_bridge.controlpulp.shared_memory import TIME_BY_WORD, SharedMemory

SOC_CLOCK_HZ: Final = 100_000_000
SLOWDOWN: Final = CLOCK_HZ // SOC_CLOCK_HZ
_BUILD: Final = Path(__file__).parent / "boards/litex/build.sh"


def build(output: Path, headers: Path, *flags: str) -> Path:
    """Compiles the image for the SoC that these headers of LiteX describe."""
    command = ["sh", str(_BUILD), str(output), str(headers), f"SLOWDOWN={SLOWDOWN}", *flags]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return output


class LitexController(RtlController):
    """The SoC after reset, with its image, until it waits for its first tick."""

    _devices = (0, 0)

    def __init__(
        self,
        image: Path,
        library: Path,
        time_mode: int = TIME_BY_WORD,
        *,
        trace: Path | None = None,
        wave: Path | None = None,
    ) -> None:
        super().__init__(image, library, time_mode, skips_idle=False, trace=trace, wave=wave)

    def send(self, channel: int, message: bytes) -> int:
        """Writes a message; the image polls its doorbell at the next tick. Returns the cycles."""
        SharedMemory.send(self, channel, message)
        self.run(TICK_CYCLES)
        self._run_until_waiting()
        return self.awake_cycles()
