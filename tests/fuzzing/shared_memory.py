"""``python -m tests.fuzzing.shared_memory [rings|words] [STEPS] [SEED]``: whatever lies in memory that is shared.

rings   a step is one field of a virtqueue (address, length, flags or successor of a descriptor, a head, the index)
        set to a random or a boundary value; then the device takes a chain and answers it.
words   a step is one word of a FastChannel window set so; after each 132 of them the firmware polls (125 us).

What must hold: the device takes a chain within bounds or refuses by ``GuestError``, and writes nothing outside the
memory table; the firmware enforces only levels and caps that a message could have set.
"""

from __future__ import annotations

import mmap
import os
import random
import struct
import sys
from collections import Counter

import numpy as np

from firmware_bridge.controlpulp.host import AGENTS, TICK_S, HostController
from firmware_bridge.scmi.virtio.guest_memory import GuestError, GuestMemory, Region
from firmware_bridge.scmi.virtio.virtqueue import Rings, Virtqueue
from tests.firmware.scmi_words import PERFORMANCE, POWERCAP, must
from tests.scmi.virtual_machine import AVAILABLE, BUFFERS, DESCRIPTORS, GUEST, MEMORY, SIZE, USED, USER

MOST = 136
ANSWER = bytes(range(12))
OUTSIDE = bytes([0xA5]) * 4096

_ADDRESS, _LENGTH, _FLAGS, _NEXT = 0, 8, 12, 14  # within a descriptor
_LENGTHS = (0, 1, 4, 8, 12, 132, 136, 137, 300, MEMORY, 2**31, 2**32 - 1)
_ADDRESSES = (0, GUEST - 1, GUEST, GUEST + BUFFERS, GUEST + MEMORY - 1, GUEST + MEMORY, 2**63, 2**64 - 1)


def change_field(memory: mmap.mmap, chance: random.Random) -> None:
    """One field of the rings; often one that a driver could have written."""
    pick = int(chance.random() * 8)
    at = DESCRIPTORS + 16 * int(chance.random() * SIZE)
    if pick == 0:
        address = chance.choice(_ADDRESSES) if chance.random() < 0.3 else GUEST + BUFFERS + chance.getrandbits(12)
        struct.pack_into("<Q", memory, at + _ADDRESS, address)
    elif pick == 1:
        length = chance.choice(_LENGTHS) if chance.random() < 0.3 else chance.getrandbits(8)
        struct.pack_into("<I", memory, at + _LENGTH, length)
    elif pick == 2:
        struct.pack_into("<H", memory, at + _FLAGS, chance.choice((0, 1, 2, 3, chance.getrandbits(16))))
    elif pick == 3:
        struct.pack_into("<H", memory, at + _NEXT, chance.choice((chance.getrandbits(3), chance.getrandbits(16))))
    elif pick == 4:
        head = chance.getrandbits(3) if chance.random() < 0.9 else chance.getrandbits(16)
        struct.pack_into("<H", memory, AVAILABLE + 4 + 2 * int(chance.random() * SIZE), head)
    else:
        (index,) = struct.unpack_from("<H", memory, AVAILABLE + 2)
        index = index + 1 + chance.getrandbits(1) if chance.random() < 0.99 else chance.getrandbits(16)
        struct.pack_into("<H", memory, AVAILABLE + 2, index & 0xFFFF)


def fuzz_rings(steps: int, seed: int) -> Counter[str]:
    """What became of the steps."""
    chance, went = random.Random(seed), Counter[str]()
    file = os.memfd_create("guest")
    os.ftruncate(file, MEMORY + len(OUTSIDE))
    memory = mmap.mmap(file, MEMORY + len(OUTSIDE))
    memory[MEMORY:] = OUTSIDE
    table = GuestMemory([Region(GUEST, MEMORY, USER, 0)], [file])
    rings = Rings(USER + DESCRIPTORS, USER + AVAILABLE, USER + USED)
    queue = Virtqueue(table, SIZE, rings)
    for _ in range(steps):
        change_field(memory, chance)
        try:
            chain = queue.take(MOST)
            if chain is None:
                went["nothing waits"] += 1
                continue
            if len(chain.content) > MOST + 1 or chain.head >= SIZE:
                raise AssertionError(f"a chain out of bounds: {chain}")
            queue.give_back(chain, ANSWER)
            went["answered"] += 1
        except GuestError:  # the ring is broken: its driver sets it up again
            went["refused"] += 1
            queue.release()
            queue = Virtqueue(table, SIZE, rings, *struct.unpack_from("<H", memory, AVAILABLE + 2))
    if memory[MEMORY:] != OUTSIDE:
        raise AssertionError("the device wrote outside the memory table")
    queue.release()
    table.close()
    memory.close()
    os.close(file)
    return went


_VALUES = np.array(
    [0, 1, 500, 1000, 4999, 5000, 19_999, 20_000, 60_000, 81_000, 100_001, 324_000, 324_001, 399_999, 400_000, 800_000,
     1_350_000, 2_000_001, 3_660_000, 3_660_001, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1], dtype=np.uint32,
)  # fmt: skip


def fuzz_words(steps: int, seed: int) -> Counter[str]:
    """What was enforced."""
    rng, went = np.random.default_rng(seed), Counter[str]()
    host = HostController()
    host.wires["temperature_mk"][:] = 320_000
    host.advance(TICK_S / 2)
    windows = [host.fast_channel(channel) for channel in range(AGENTS)]
    words = 6 * 4 + 4 * 5
    for poll in range(-(-steps // (AGENTS * words))):
        for window in windows:
            values = rng.choice(_VALUES, words)
            is_wild = rng.random(words) < 0.1
            values[is_wild] = rng.integers(0, 2**32, is_wild.sum(), dtype=np.uint32)
            window[rng.integers(0, words, words)] = values
        host.advance(TICK_S)
        if poll % 64 == 0:
            check_enforced(host, went)
    return went


def check_enforced(host: HostController, went: Counter[str]) -> None:
    """Levels between limits that are clocks; caps and intervals that a message could have set."""
    for domain in range(4):
        (level,), (high, low) = must(host, PERFORMANCE, 0x8, domain), must(host, PERFORMANCE, 0x6, domain)
        if not 400_000 <= low <= level <= high <= 3_660_000:
            raise AssertionError(f"domain {domain}: level {level} in {low} .. {high}")
        went["levels"] += 1
    for domain in range(5):
        (cap,), (interval,) = must(host, POWERCAP, 0x4, domain), must(host, POWERCAP, 0x6, domain)
        least, most = (20_000, 324_000) if domain == 0 else (5000, 81_000)
        if not (cap == 0 or least <= cap <= most) or not 500 <= interval <= 100_000:
            raise AssertionError(f"power domain {domain}: cap {cap} mW, interval {interval} us")
        went["caps" if cap else "no caps"] += 1


def main(arguments: list[str]) -> int:
    what, steps, seed = (*arguments, *("rings", "1000000", "1")[len(arguments) :])
    went = (fuzz_rings if what == "rings" else fuzz_words)(int(steps), int(seed))
    print(f"{what}: {int(steps)} steps, nothing found; {dict(went)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
