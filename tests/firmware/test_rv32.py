"""One firmware: the rv32 image, run in Unicorn, decides and answers as the host board does, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.firmware_lockstep import run
from benchmarks.firmware_rig import Rig, mixed_load
from firmware_bridge.controlpulp import rv32
from firmware_bridge.controlpulp.host import HostOptions

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


def test_an_idle_image_waits(image: Path) -> None:
    controller = rv32.Rv32Controller(image, count=True)
    controller.tick()
    assert controller.tick() < 10_000, "between ticks there is nothing but WFI"
