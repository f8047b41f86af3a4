"""A core in RTL from outside: its line, as ``nodectl twin controller --rtl`` serves it to another program, and its
waveforms."""

from __future__ import annotations

import math
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from firmware_bridge.controlpulp import rtl
from hil_tests.rtl_rigs import why_not
from tests.waiting import PATIENCE_S
from twin.rtl import CORES, LITEX, library

NODECTL = (sys.executable, "-m", "nodectl.cli")


@pytest.mark.parametrize("core", [*CORES, LITEX])
def test_scmi_discover_is_answered_on_the_line_of_a_core_in_rtl(core: str, tmp_path: Path) -> None:
    reason = why_not(core)
    if reason:
        pytest.skip(reason)
    serve = [*NODECTL, "twin", "controller", "--rtl", core, str(tmp_path)]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True) as served:
        try:
            assert served.stdout is not None
            lines = [served.stdout.readline(), served.stdout.readline()]
            url = lines[1].removeprefix("ospm: ").strip()
            discover = [*NODECTL, "scmi", "discover", url]
            found = subprocess.run(discover, capture_output=True, text=True, timeout=5 * PATIENCE_S)
        finally:
            served.send_signal(signal.SIGTERM)
            served.communicate(timeout=PATIENCE_S)
    assert (found.returncode, found.stderr) == (0, "")
    assert "nodectl controlpulp 0x10000, seen as agent 1 (ospm) of ospm, runtime, bmc" in found.stdout
    assert "3            voltage domain 3  yes       400 to 3660 MHz, 17 levels" in found.stdout
    assert served.returncode == 0


@pytest.mark.parametrize("core", CORES)
def test_waveforms_are_written_on_request(core: str, tmp_path: Path) -> None:
    """By a model of its own. A viewer (gtkwave) knows an FST by its header: kind 0, 329 bytes, e as a double."""
    reason = why_not(core)
    if reason:
        pytest.skip(reason)
    wave = tmp_path / "core.fst"
    controller = rtl.RtlController(rtl.build(tmp_path / "image.elf"), library(core, "wave"), wave=wave)
    controller.tick()
    cycles = controller.counts().cycles
    controller.close()
    header = wave.read_bytes()[:330]
    kind, size, _, end = struct.unpack_from(">BQQQ", header)
    assert (kind, size, struct.unpack_from("=d", header, 25)) == (0, 329, (math.e,))
    assert end == 2 * cycles - 1, "in half cycles, those skipped included, as in the trace"
