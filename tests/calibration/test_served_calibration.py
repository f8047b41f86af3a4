"""`nodectl calibrate run` on a served node, in real time: killed at any point, every clock limit is back."""

from __future__ import annotations

import pytest

from tests.twin.served_node import ServedNode, why_not_served
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.skipif(bool(why_not_served()), reason=why_not_served() or "served")

_LIMIT = "/sys/devices/system/cpu/cpufreq/policy0/scaling_max_freq"

_RUN = f"""
import os, signal, subprocess, sys, tempfile, time
from pathlib import Path
folder = Path(tempfile.mkdtemp())
table, partial = folder / "t.toml", folder / "t.toml.partial"
command = [sys.executable, "-m", "nodectl.cli", "calibrate", "run", "-o", str(table), "--kernel", "fma",
           "--time-budget", "16s"]
limit = lambda: Path("{_LIMIT}").read_text().strip()
def wait(is_true):
    end_s = time.monotonic() + {PATIENCE_S}
    while not is_true():
        assert time.monotonic() < end_s, (limit(), child.poll())
        time.sleep(0.05)
before = limit()
for number in (signal.SIGKILL, signal.SIGINT):
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    wait(lambda: limit() != before)
    child.send_signal(number)
    said = child.communicate()[1]
    wait(lambda: limit() == before)
    print(child.returncode, table.exists(), partial.exists(), "goes on from" in said)
child = subprocess.run(command, capture_output=True, text=True)
print(child.returncode, table.exists(), partial.exists(), "continues with" in child.stderr, limit() == before)
check = subprocess.run([*command[:4], "check", str(table)], capture_output=True, text=True)
print(check.returncode, "applies to this node" in check.stdout)
print(subprocess.run(command, capture_output=True, text=True).returncode)
"""


def test_a_run_that_is_killed_leaves_every_limit_as_it_was_and_the_next_one_goes_on() -> None:
    with ServedNode("taurus") as node:
        lines = node.python(_RUN).splitlines()
    assert lines == [
        "-9 False True False",
        "1 False True True",
        "0 True False True True",
        "0 True",
        "2",  # it is there already
    ]
