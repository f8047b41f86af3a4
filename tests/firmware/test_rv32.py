"""One firmware: the rv32 image, run in Unicorn, decides and answers as the host board does, bit for bit."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from benchmarks.firmware_lockstep import run
from benchmarks.firmware_rig import Rig, command, mixed_load
from firmware_bridge.controlpulp import rv32
from firmware_bridge.controlpulp.host import HostOptions
from tests.firmware import stack_bound

pytestmark = pytest.mark.skipif(rv32.missing() is not None, reason=str(rv32.missing()))


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rv32.build(tmp_path_factory.mktemp("rv32") / "controlpulp.elf")


def test_host_and_rv32_decide_and_answer_alike(image: Path) -> None:
    rig = Rig.start(HostOptions(), mixed_load(3), seed=3, noisy=True)
    controller = rv32.Rv32Controller(image)
    run(rig, controller, 1000, seed=3)  # compares each tick and each answer
    assert controller.words("freq_khz").tolist() == rig.host.wires["freq_khz"].tolist()


def test_the_published_build_is_alike_too(tmp_path: Path) -> None:
    image = rv32.build(tmp_path / "published.elf", "-DPUBLISHED=1")
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


def test_an_image_with_one_wrong_word_stays_at_the_lowest_point_and_says_so(image: Path, tmp_path: Path) -> None:
    damaged = bytearray(image.read_bytes())
    at = damaged.find(struct.pack("<2I", 15765, 20215))  # the table of leakage
    assert at > 0
    damaged[at] ^= 1
    (tmp_path / "damaged.elf").write_bytes(damaged)
    for file, is_safe in ((image, False), (tmp_path / "damaged.elf", True)):
        controller = rv32.Rv32Controller(file)
        controller.words("temperature_mk")[:] = 320_000
        controller.words("capacitance_ff")[:] = 500_000
        controller.words("power_uw")[:] = 20_000_000
        for _ in range(12):
            controller.tick()
        assert (controller.words("freq_khz").max() == 400_000) == is_safe
        controller.send(0, command(0x80, 0x3))
        answer = controller.poll(0)
        assert answer is not None
        assert struct.unpack_from("<I", answer, 28)[0] == (4 if is_safe else 0)  # STATUS: failed self-checks


def test_an_idle_image_waits(image: Path) -> None:
    controller = rv32.Rv32Controller(image, count=True)
    controller.tick()
    assert controller.tick() < 10_000, "between ticks there is nothing but WFI"
