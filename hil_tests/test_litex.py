"""A LiteX SoC in RTL: decisions as on the host, and its watchdog. EMULATED: nobody has run the image on a board."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.firmware_lockstep import run
from benchmarks.firmware_rig import Rig, mixed_load
from firmware_bridge.controlpulp.host import HostOptions
from firmware_bridge.controlpulp.rtl import TICK_CYCLES
from firmware_bridge.controlpulp.rtl_litex import LitexController
from firmware_bridge.controlpulp.shared_memory import TIME_BY_TIMER, SharedMemory
from firmware_bridge.scmi.messages.codec import encode
from firmware_bridge.scmi.protocols.telemetry import LeaseSet
from hil_tests.rtl_rigs import litex_image, why_not
from tests.firmware.seal import HANG, MASK, changed
from tests.firmware.test_boards import SAMPLE
from twin.rtl import LITEX, library, litex_headers

SLOTS = 100
WATCHDOG_MS = 2


@pytest.fixture(autouse=True)
def litex() -> Iterator[None]:
    reason = why_not(LITEX)
    if reason:
        pytest.skip(reason)
    yield


def test_a_litex_soc_decides_and_answers_as_the_host_does() -> None:
    rig = Rig.start(HostOptions(), mixed_load(7), seed=7, noisy=True)
    core = LitexController(litex_image(), library(LITEX))
    worst = run(rig, core, SLOTS, seed=7)  # compares each tick and each answer
    counts = core.counts()
    core.close()
    assert 0 < worst["fast and control"] < 4 * TICK_CYCLES
    assert abs(counts.retired - counts.core_retired) < 4
    assert counts.bus_errors == 0


def test_the_watchdog_of_litex_resets_a_core_that_hangs_with_its_interrupts_off(tmp_path: Path) -> None:
    """It starts again at the lowest clocks, within the watchdog's time and that of a start."""
    image = changed(litex_image(f"-DWATCHDOG_MS={WATCHDOG_MS}u"), tmp_path / "hangs.elf", "lease_set", [MASK, HANG])
    core = LitexController(image, library(LITEX), TIME_BY_TIMER)
    core.words("temperature_mk")[:], core.words("capacitance_ff")[:] = 320_000, 500_000
    core.words("power_uw")[:] = 20_000_000
    core.run(20 * TICK_CYCLES)
    assert (core.words("freq_khz") > 400_000).all() and core.words("restarts")[0] == 0
    SharedMemory.send(core, 0, encode(LeaseSet(0, 0), 0))
    core.run(4 * TICK_CYCLES)
    assert not core.is_answered(0), "it hangs"
    core.run((WATCHDOG_MS + 2) * 8 * TICK_CYCLES, word="restarts", value=1)
    assert core.words("restarts")[0] == 1
    core.run(TICK_CYCLES // 4)
    assert (core.words("freq_khz") == 400_000).all() and (core.words("volt_mv") == 500).all()
    core.run(12 * TICK_CYCLES)
    assert (core.words("freq_khz") > 400_000).all(), "and it controls again"
    core.close()


def test_the_sample_of_litex_headers_is_what_litex_generates() -> None:
    for name in ("csr.h", "soc.h", "mem.h"):
        generated, kept = ((folder / "generated" / name).read_text() for folder in (litex_headers(), SAMPLE))
        without_date = [line for line in generated.splitlines() if not line.startswith("// Auto-generated")]
        assert kept.splitlines() == without_date
