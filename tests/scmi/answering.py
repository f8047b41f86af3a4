"""The firmware in this process, as the links' test ends call a platform."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # it may not be built here
    from firmware_bridge.controlpulp.host import HostController


class Answering:
    """Agents are counted from 1, messages answered at once."""

    def __init__(self, firmware: HostController) -> None:
        self.firmware = firmware

    def answer(self, agent: int, message: bytes) -> bytes:
        return self.firmware.exchange(agent - 1, message)

    def notifications(self, agent: int) -> list[bytes]:
        return self.firmware.notifications(agent - 1)

    def advance(self, duration_s: float) -> None:
        self.firmware.advance(duration_s)
