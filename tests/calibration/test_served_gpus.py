"""`nodectl calibrate gpus` on a served node: killed at any point, the site's lock is back and its work has ended."""

from __future__ import annotations

import importlib.util

import pytest

from tests.twin.served_node import ServedNode, why_not_served
from tests.waiting import PATIENCE_S

pytestmark = [
    pytest.mark.skipif(bool(why_not_served()), reason=why_not_served() or "served"),
    pytest.mark.skipif(importlib.util.find_spec("pynvml") is None, reason="pip install nvidia-ml-py"),
]

SITE_MHZ = 1005

_RUN = f"""
import os, signal, subprocess, sys, tempfile, time
from pathlib import Path
import psutil, pynvml
pynvml.nvmlInit()
card = pynvml.nvmlDeviceGetHandleByIndex(0)
clock_mhz = lambda: pynvml.nvmlDeviceGetClockInfo(card, pynvml.NVML_CLOCK_SM)
pynvml.nvmlDeviceSetGpuLockedClocks(card, {SITE_MHZ}, {SITE_MHZ})
folder = Path(tempfile.mkdtemp())
table, again = folder / "gpus.toml", folder / "again"
busy = lambda: pynvml.nvmlDeviceGetUtilizationRates(card).gpu > 0
work = f"sh -c 'test -e {{again}} && exec sleep 3601; touch {{again}}; exec sleep 5.5'"  # its second run does not end
common = [sys.executable, "-m", "nodectl.cli", "calibrate", "gpus", "-o", str(table), "--gpu-locked-mhz",
          "{SITE_MHZ}", "--clocks", "3", "--state-dir", str(folder / "state")]
def programs():
    return [one for one in psutil.process_iter(["cmdline"]) if one.info["cmdline"] == ["sleep", "3601"]]
def wait(is_true):
    end_s = time.monotonic() + {PATIENCE_S}
    while not is_true():
        assert time.monotonic() < end_s, (clock_mhz(), programs(), child.poll())
        time.sleep(0.05)
wait(lambda: clock_mhz() == {SITE_MHZ})
for number in (signal.SIGKILL, signal.SIGINT):
  for more, works in ((["--command", work], programs), (["--seconds", "6"], busy)):
    child = subprocess.Popen([*common, *more], stderr=subprocess.PIPE, text=True)
    wait(lambda: clock_mhz() < {SITE_MHZ} and works())  # the first run has the site's own clock
    child.send_signal(number)
    said = child.communicate()[1]
    wait(lambda: clock_mhz() == {SITE_MHZ} and not works())
    again.unlink(missing_ok=True)
    print(child.returncode, table.exists(), "stopped: nothing is written, and every lock is back" in said)
"""


def test_a_sweep_that_is_killed_leaves_the_lock_of_the_site_and_no_program_or_kernel() -> None:
    with ServedNode("v100") as node:
        lines = node.python(_RUN).splitlines()
    assert lines == ["-9 False False"] * 2 + ["1 False True"] * 2
