"""Host board and rv32 image (emulated, or in RTL) side by side: the same sensors and messages, decision by decision."""

from __future__ import annotations

import numpy as np

from benchmarks.firmware_rig import POWERCAP, Rig, command
from firmware_bridge.controlpulp.host import TICK_S
from firmware_bridge.controlpulp.rtl import RtlController
from firmware_bridge.controlpulp.rv32 import TICK_US, Rv32Controller

TICKS_PER_SLOT = 4
TICK_NS = round(TICK_S * 1e9)


class DifferenceError(AssertionError):
    """The two decided or answered differently."""


def run(
    rig: Rig, image: Rv32Controller | RtlController, slots: int, seed: int, *, has_messages: bool = True
) -> dict[str, int]:
    """Random caps, levels and readings over some slots; the most instructions (in RTL: cycles) of each kind of
    wake-up, if counted.

    ``has_messages`` must be false for a polling build, which does not answer at once."""
    random = np.random.default_rng(seed)
    worst = {"fast": 0, "fast and control": 0, "message": 0}
    for tick in range(slots * TICKS_PER_SLOT):
        rig.host.advance_to(tick * TICK_NS)
        for name in ("temperature_mk", "capacitance_ff", "power_uw"):
            image.words(name)[:] = rig.host.wires[name]
        kind = "fast and control" if tick % TICKS_PER_SLOT == 0 else "fast"
        worst[kind] = max(worst[kind], image.tick())
        for name in ("freq_khz", "volt_mv"):
            if (image.words(name) != rig.host.wires[name]).any():
                raise DifferenceError(
                    f"tick {tick}: {name} is {image.words(name)} on rv32, {rig.host.wires[name]} on the host"
                )
        if has_messages and random.random() < 0.03:
            worst["message"] = max(worst["message"], _message(rig, image, tick, random))
        if random.random() < 0.001:
            rig.plant.temperature_fault[random.integers(36)] = random.integers(3)
    return worst


def _message(rig: Rig, image: Rv32Controller | RtlController, tick: int, random: np.random.Generator) -> int:
    choice = random.integers(5)
    if choice == 0:
        message = command(
            POWERCAP, 0x5, int(random.integers(5)), 0, int(random.integers(10_000, 330_000)), token=tick % 1024
        )
    elif choice == 1:
        message = command(
            0x13, 0x7, int(random.integers(5)), int(random.integers(300_000, 3_700_000)), token=tick % 1024
        )
    elif choice == 2:
        message = command(0x80, 0x4, 0)
    elif choice == 3:
        message = command(
            int(random.choice([0x10, 0x13, 0x15, 0x18])), int(random.integers(14)), int(random.integers(20))
        )
    else:
        message = random.bytes(int(random.integers(1, 34)) * 4)
    channel = int(random.integers(3))
    if isinstance(image, Rv32Controller):
        image.now_us -= TICK_US  # the message comes at the tick's moment, on both
    spent = image.send(channel, message)
    if isinstance(image, Rv32Controller):
        image.now_us += TICK_US
    rig.host.send(channel, message)
    rig.host.advance(0)
    ours, theirs = rig.host.poll(channel), image.poll(channel)
    if ours != theirs or ours is None:
        raise DifferenceError(f"tick {tick}: {message.hex()} is answered {theirs!r} on rv32, {ours!r} on the host")
    return spent
