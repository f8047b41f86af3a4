"""One firmware: the rv32 image, run in Unicorn, decides and answers as the host board does, bit for bit."""

from __future__ import annotations

import random
import struct
import time
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.firmware_lockstep import run
from benchmarks.firmware_rig import Rig, mixed_load
from firmware_bridge.controlpulp import rv32
from firmware_bridge.controlpulp.host import HostOptions
from tests.firmware import images, stack_bound

pytestmark = pytest.mark.skipif(rv32.missing() is not None, reason=str(rv32.missing()))


@pytest.fixture(scope="module")
def image() -> Path:
    return images.image()


def test_host_and_rv32_decide_and_answer_alike(image: Path) -> None:
    rig = Rig.start(HostOptions(), mixed_load(3), seed=3, noisy=True)
    controller = rv32.Rv32Controller(image)
    run(rig, controller, 1000, seed=3)  # compares each tick and each answer
    assert controller.words("freq_khz").tolist() == rig.host.wires["freq_khz"].tolist()


def test_the_published_build_is_alike_too() -> None:
    image = images.image("-DPUBLISHED=1")
    rig = Rig.start(HostOptions.published(), mixed_load(4), seed=4, noisy=True)
    controller = rv32.Rv32Controller(image)
    for tick in range(800):
        rig.host.advance_to(tick * 125_000)
        for name in ("temperature_mk", "capacitance_ff", "power_uw"):
            controller.words(name)[:] = rig.host.wires[name]
        controller.tick()
        assert (controller.words("freq_khz") == rig.host.wires["freq_khz"]).all()


def test_control_takes_at_most_40_percent_of_a_500_mhz_core(image: Path) -> None:
    rig = Rig.start(HostOptions(), mixed_load(5), seed=5, noisy=True)
    worst = run(rig, rv32.Rv32Controller(image, count=True), 150, seed=5)
    assert 0 < worst["fast and control"] <= 0.40 * 500e6 * 500e-6
    assert 0 < worst["fast"] < 10_000


def test_no_chain_of_calls_needs_more_than_half_of_the_stack(tmp_path: Path) -> None:
    image = rv32.build(tmp_path / "image.elf", "-fstack-usage", "-DSERIAL=1")
    most, chain = stack_bound.deepest(image)
    assert "control_step" in chain or "scmi_message" in chain, "the call graph is followed into the jobs"
    assert "board_trap" in chain
    assert most <= stack_bound.reserved(image) / 2, chain


def test_a_stack_that_grew_over_its_end_starts_the_image_anew(image: Path) -> None:
    controller = rv32.Rv32Controller(image)
    controller.tick()
    assert controller.words("restarts")[0] == 0
    controller.memory_at(rv32.symbol(image, "stack_guard"), 4)[:] = 0
    controller.tick()
    assert controller.words("restarts")[0] == 1
    controller.tick()
    assert controller.words("restarts")[0] == 1


HANGS_S = 0.3
"""Of a processor, ours: a hundred starts of a whole image. What has not ended by then does not run."""


def outcome(image: Path, content: bytes) -> str:
    """What an image with this content does after reset, on a chip that ran at full speed before."""
    image.write_bytes(content)
    limit_s = HANGS_S
    while True:
        real_s, own_s = time.monotonic(), time.thread_time()
        try:
            controller = rv32.Rv32Controller(image, start_limit_us=int(limit_s * 1e6))
            break
        except Exception as reason:  # Unicorn has no type for "an exception without a handler"
            has_ended = time.monotonic() - real_s < limit_s
            if has_ended or time.thread_time() - own_s > HANGS_S / 2:
                return f"crashed: {type(reason).__name__}"
            limit_s *= 4  # of real time, of which a busy machine gave it little
    if not controller.has_refused:
        return "runs"
    clocks, volts = controller.words("freq_khz"), controller.words("volt_mv")
    return "refused" if (clocks == 400_000).all() and (volts == 500).all() else "refused, at another level"


def flipped(content: bytes, at: int, bit: int) -> bytes:
    damaged = bytearray(content)
    damaged[at] ^= 1 << bit
    return bytes(damaged)


def test_no_image_with_a_flipped_bit_runs(image: Path, tmp_path: Path) -> None:
    """350 bits in code, constants, the lowest levels and the sum itself; each is refused at the lowest levels.
    Only in the code that runs until then may it also crash, or set another level."""
    content = image.read_bytes()
    ((start, code),) = rv32.load_segments(content)
    offset = content.index(code)
    earliest = range(rv32.symbol(image, "_start"), rv32.symbol(image, "trap"))
    checks = [rv32.symbol_range(image, name) for name in ("image_crc", "board_main", "set_lowest", "refuse")]
    dice = random.Random(18)
    assert outcome(tmp_path / "whole.elf", content) == "runs"
    tables = [rv32.symbol(image, name) - start for name in ("chip_volt_mv", "chip_freq_khz")]
    lowest = [table + byte for table in tables for byte in range(4)]
    for at in [*dice.sample(range(len(code)), 338), *lowest, *range(len(code) - 4, len(code))]:
        said = outcome(tmp_path / "damaged.elf", flipped(content, offset + at, dice.randrange(8)))
        is_early = any(start + at in each for each in (earliest, *checks))
        assert said == "refused" or (is_early and said != "runs"), f"{start + at:#x}"


def test_no_flipped_bit_in_the_check_itself_lets_a_damaged_image_run(image: Path, tmp_path: Path) -> None:
    """A bit of every fourth byte of the check, and each bit of the branches in its caller, where the answer counts."""
    content = image.read_bytes()
    ((start, code),) = rv32.load_segments(content)
    offset = content.index(code)
    dice = random.Random(19)
    flips = [(at, dice.randrange(8)) for at in rv32.symbol_range(image, "image_crc")[::4]]
    flips += [
        (at, bit) for at in branches(code, start, rv32.symbol_range(image, "board_main")[:256]) for bit in range(8)
    ]
    said = Counter(outcome(tmp_path / "damaged.elf", flipped(content, offset + at - start, bit)) for at, bit in flips)
    assert said["runs"] == 0, said
    assert said["refused"] > 100


def branches(code: bytes, start: int, within: range) -> list[int]:
    """The bytes of all conditional branches there, of 32 and of 16 bits."""
    found, at = [], within.start
    while at in within:
        (low,) = struct.unpack_from("<H", code, at - start)
        size = 4 if low & 3 == 3 else 2
        if low & 0x7F == 0x63 or (size == 2 and low & 3 == 1 and low >> 13 in (6, 7)):
            found += range(at, at + size)
        at += size
    return found


def test_an_idle_image_waits(image: Path) -> None:
    controller = rv32.Rv32Controller(image, count=True)
    controller.tick()
    assert controller.tick() < 10_000, "between ticks there is nothing but WFI"
