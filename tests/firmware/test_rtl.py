"""The rv32 image on cores in RTL: decides as the host board does, within its budget of cycles."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks.firmware_bound import flood, watched_by_all
from benchmarks.firmware_lockstep import run
from benchmarks.firmware_rig import POWERCAP, Rig, command, mixed_load
from firmware_bridge.controlpulp import rtl, rv32
from firmware_bridge.controlpulp.host import HostOptions
from firmware_bridge.controlpulp.rtl_board import RtlBoard
from firmware_bridge.controlpulp.shared_memory import TIME_BY_LINE, TIME_BY_TIMER, TIME_BY_WORD, SharedMemory
from firmware_bridge.scmi.client import Client
from firmware_bridge.scmi.messages.codec import encode
from firmware_bridge.scmi.protocols.base import DiscoverVendor
from firmware_bridge.scmi.protocols.telemetry import LeaseSet
from firmware_bridge.scmi.transports.frames import FrameDecoder, FrameKind, greeting, pack_frame
from firmware_bridge.scmi.transports.serial_line import SerialLine
from hil_tests.rtl_rigs import BoardClock, BoardPort
from tests.firmware import images
from tests.firmware.seal import HANG, MASK, changed
from twin.rtl import CORES, library, missing

WHY_NOT = rtl.missing() or missing(CORES[0]) or missing(CORES[1])
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))

BUDGET = {
    "fast": {"vexriscv": 14_000, "cv32e40p": 10_000},
    "fast and control": {"vexriscv": 100_000, "cv32e40p": 100_000},
    "message": {"vexriscv": 12_000, "cv32e40p": 8_000},
}
"""Cycles of each kind of wake-up, of 250 000 in a slot."""


@pytest.fixture(scope="module")
def image() -> Path:
    return images.image(*rtl.LINK_FLAGS)


@pytest.fixture(scope="module")
def line_image() -> Path:
    return images.image(*rtl.LINK_FLAGS, *rtl.LINE_FLAGS)


@pytest.fixture
def core(request: pytest.FixtureRequest, image: Path) -> Iterator[rtl.RtlController]:
    controller = rtl.RtlController(image, library(request.param))
    yield controller
    controller.close()


def hot_rig(seed: int) -> Rig:
    """The load with the slots that cost most: different cores, all slowed down by heat, under a cap."""
    rig = Rig.start(HostOptions(), mixed_load(seed), seed=seed, noisy=True)
    rig.plant.settle(np.full(36, 7.5))
    return rig


@pytest.mark.parametrize("core", CORES, indirect=True)
def test_a_core_in_rtl_decides_and_answers_as_the_host_does_within_its_budget(
    core: rtl.RtlController, request: pytest.FixtureRequest
) -> None:
    name = request.node.callspec.params["core"]
    rig = hot_rig(6)
    core.send(0, command(POWERCAP, 0x5, 0, 0, 150_000))
    core.poll(0)
    rig.cap(150.0)
    worst = run(rig, core, 12, seed=6)  # compares each tick and each answer
    spent = {kind: cycles for kind, cycles in worst.items() if cycles > BUDGET[kind][name]}
    assert spent == {}
    assert core.counts().bus_errors == 0


@pytest.mark.parametrize("core", CORES, indirect=True)
def test_agents_that_watch_and_write_everything_leave_a_slot_its_time(core: rtl.RtlController) -> None:
    """Three agents watch all there is over the longest means, and write all their FastChannels before each tick."""
    core.words("temperature_mk")[:], core.words("capacitance_ff")[:] = 320_000, 1_000_000
    core.words("power_uw")[:] = 50_000_000
    random = np.random.default_rng(1)
    watched_by_all(core)
    spent = []
    for tick in range(48 * 4):
        if tick >= 40 * 4:
            flood(core, random)
        spent.append(core.tick())
    slots = np.array(spent).reshape(-1, 4).sum(axis=1)
    assert slots.max() < 0.6 * rtl.CLOCK_HZ / 2000


@pytest.mark.parametrize("name", CORES)
def test_model_core_and_emulator_count_the_same_instructions(name: str) -> None:
    """The model, from what it sees of the pipeline; the core's own counter; and Unicorn, for the same jobs."""
    flags = ["-DCOUNTERS=1"] if name == "cv32e40p" else []
    core = rtl.RtlController(images.image(*rtl.LINK_FLAGS, *flags), library(name))
    emulated = rv32.Rv32Controller(images.image(), count=True, time_mode=TIME_BY_WORD)
    at_start = core.counts().retired - core.counts().core_retired  # before the counter was switched on
    assert 0 <= at_start < 4
    for tick in range(4):
        before = core.counts().retired
        core.tick()
        emulated.words("ticks_given")[0] += 1
        expected = emulated.tick()
        if tick:  # the first one has a control job, which the timer interrupts on a core that takes its time
            assert abs(core.counts().retired - before - expected) <= 4  # where the interrupt meets the pipeline
    assert core.counts().retired - core.counts().core_retired == at_start
    core.close()


def test_idle_time_is_skipped_cycle_for_cycle(image: Path, tmp_path: Path) -> None:
    """Each instruction retires in the same cycle as without skipping."""
    traces = []
    for skips in (True, False):
        trace = tmp_path / f"trace-{skips}"
        core = rtl.RtlController(image, library("cv32e40p"), skips_idle=skips, trace=trace)
        core.words("temperature_mk")[:] = 320_000
        for _ in range(3):
            core.tick()
        counts = core.counts()
        core.close()
        assert (counts.skipped > 100_000) == skips
        traces.append(trace.read_text())
    assert traces[0] == traces[1]
    assert len(traces[0].splitlines()) > 60_000
    assert traces[0].split()[1] == "40000000"


def test_a_byte_on_the_line_takes_its_time_and_a_greeting_is_answered(line_image: Path) -> None:
    core = rtl.RtlController(line_image, library("cv32e40p"), TIME_BY_LINE)
    hello = pack_frame(FrameKind.HELLO, 0, greeting())
    began = core.counts().cycles
    core.put(hello)
    decoder, frames, seconds = FrameDecoder(), [], []
    while not frames and core.counts().cycles - began < 20 * rtl.TICK_CYCLES:
        core.run(rtl.TICK_CYCLES)
        if core.words("line_bytes")[0] == len(hello):
            seconds.append((core.counts().cycles - began) / rtl.CLOCK_HZ)
        frames += decoder.feed(core.get())
    core.close()
    assert [frame.kind for frame in frames] == [FrameKind.WELCOME]
    assert seconds[0] >= len(hello) * 10 / 921_600


@pytest.mark.parametrize("name", CORES)
def test_an_agent_at_the_pty_is_greeted_and_answered_within_fifty_slots(name: str, line_image: Path) -> None:
    """As a program opens it. Each answer comes in pieces, one a tick, so timeouts count the board's time."""
    board = RtlBoard(rtl.RtlController(line_image, library(name), TIME_BY_TIMER))
    port = BoardPort(board)
    began_s = board.now_s()
    line = SerialLine(port, name, BoardClock(board))
    line.greet()
    client = Client(line)
    assert client.request(DiscoverVendor()).name == "nodectl"
    assert board.now_s() - began_s < 50 * 500e-6
    assert (client.counts.timeouts, line.diagnosis()) == (0, "2 frames, 0 broken frames and 0 stray bytes came")
    board.step()
    assert board.has_settled() and port.in_waiting == 0
    port.close()
    board.close()


def test_a_watchdog_in_hardware_resets_a_core_that_hangs_with_its_interrupts_off(tmp_path: Path) -> None:
    """It is fed once a slot; 2 ms after the last slot the image starts again, at the lowest clocks."""
    sound = images.image(*rtl.LINK_FLAGS, *rtl.WATCHDOG_FLAGS)
    image = changed(sound, tmp_path / "hangs.elf", "lease_set", [MASK, HANG])
    core = rtl.RtlController(image, library("cv32e40p"), TIME_BY_TIMER, watchdog_cycles=16 * rtl.TICK_CYCLES)
    core.words("temperature_mk")[:], core.words("capacitance_ff")[:] = 320_000, 500_000
    core.words("power_uw")[:] = 20_000_000
    core.run(20 * rtl.TICK_CYCLES)
    assert (core.words("freq_khz") > 400_000).all() and core.counts().resets == 0
    SharedMemory.send(core, 0, encode(LeaseSet(0, 0), 0))
    core.run(32 * rtl.TICK_CYCLES, word="restarts", value=1)
    assert (core.counts().resets, core.words("restarts")[0]) == (1, 1)
    core.run(rtl.TICK_CYCLES // 2)
    assert (core.words("freq_khz") == 400_000).all() and (core.words("volt_mv") == 500).all()
    core.close()


def test_a_damaged_image_says_so_to_whoever_sends_something(line_image: Path, tmp_path: Path) -> None:
    damaged = bytearray(line_image.read_bytes())
    at = damaged.find(struct.pack("<2I", 15765, 20215))  # the table of leakage
    damaged[at] ^= 1
    (tmp_path / "damaged.elf").write_bytes(damaged)
    core = rtl.RtlController(tmp_path / "damaged.elf", library("vexriscv"), TIME_BY_LINE)
    assert core.has_refused
    core.run(8 * rtl.TICK_CYCLES)
    assert core.get() == b"image damaged\r\n"
    core.put(b"\0")
    core.run(8 * rtl.TICK_CYCLES)
    assert core.get() == b"image damaged\r\n"
    assert (core.words("freq_khz") == 400_000).all() and (core.words("volt_mv") == 500).all()
    core.close()
