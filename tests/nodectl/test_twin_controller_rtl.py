"""``nodectl twin controller --rtl``: a controller on a core in RTL, reached over its serial line."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from firmware_bridge.controlpulp import rtl
from tests.waiting import PATIENCE_S
from twin.rtl import missing

COMMAND = (sys.executable, "-m", "nodectl.cli", "twin", "controller")
WHY_NOT = rtl.missing() or missing("cv32e40p")


@pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
def test_a_controller_in_rtl_has_a_line_and_leaves_a_trace_until_it_is_stopped(tmp_path: Path) -> None:
    folder, trace = tmp_path / "controller", tmp_path / "trace"
    command = [*COMMAND, "--rtl", "cv32e40p", "--trace", str(trace), str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as served:
        try:
            assert served.stdout is not None
            assert served.stdout.readline().startswith("EMULATED controlpulp on cv32e40p in RTL")
            assert served.stdout.readline() == f"ospm: scmi+serial://{folder}/line?baud=921600&slowdown=500\n"
            assert (folder / "line").is_char_device()
        finally:
            served.send_signal(signal.SIGTERM)
            _, remarks = served.communicate(timeout=PATIENCE_S)
    assert (served.returncode, remarks) == (0, "")
    assert not (folder / "line").exists()
    assert trace.read_text().split("\n", 1)[0].split()[1] == "40000000"


@pytest.mark.parametrize("options", [("--rtl", "vexriscv", "--fifo", "try"), ("--trace", "file")])
def test_options_that_do_not_fit_together_are_refused(options: tuple[str, ...], tmp_path: Path) -> None:
    ended = subprocess.run([*COMMAND, *options, str(tmp_path)], capture_output=True, text=True)
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1
