"""The restorer on a served node with its NVML: after ``kill -9`` of the agent it puts everything back."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from nodectl.build_restorer import build
from tests.nodectl.test_restore_served import CLOCK, KILLED_RUN, LIMIT
from tests.twin.served_node import ServedNode, why_not_served

if why_not_served():
    pytest.skip(why_not_served(), allow_module_level=True)

STOPPED_RUN = """
import json, os, pathlib, signal, subprocess, sys, time
restorer, state, limit = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
free = limit.read_text()
agent = subprocess.Popen(
    [restorer, "run", "--lease", "0.5", "--", sys.executable, "-m", "nodectl.cli", "run", "--mode", "optimize",
     "--state-dir", state, "--cpu-policy", "fixed-cpu:clock_khz=2000000", "--gpu-policy", "fixed-gpu:clock_mhz=1095"],
    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
)
def wait(holds):
    deadline = time.monotonic() + 180
    while not holds() and agent.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert holds()
wait(lambda: limit.read_text() != free)
time.sleep(0.7)
moved = limit.read_text()
child = int(pathlib.Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text())
os.kill(child, signal.SIGSTOP)
wait(lambda: limit.read_text() == free)
os.kill(child, signal.SIGCONT)
time.sleep(1)
after = limit.read_text()
os.kill(agent.pid, signal.SIGTERM)
agent.wait(180)
print(json.dumps([free, moved, after, limit.read_text()]))
"""


def test_after_a_kill_the_restorer_puts_clocks_and_gpu_locks_back(tmp_path: Path) -> None:
    restorer = str(build(tmp_path / "nodectl-restorer"))
    with ServedNode("xh2415", "--workload", "qe-pw") as node:
        free, moved = json.loads(node.python(KILLED_RUN, str(tmp_path / "state"), LIMIT))
        assert int(moved) < int(free) and int(node.python(CLOCK)) == 1095
        done = node.output(restorer, "restore")
        rows = [line.split("  ", 2) for line in done.splitlines()]
        assert {status for _, status, _ in rows} == {"restored"}
        names = {name for name, _, _ in rows}
        assert "cpu/policy0/max_khz" in names
        assert len([name for name in names if name.startswith("gpu/GPU-") and name.endswith("/sm_clock_mhz")]) == 4
        assert node.read(LIMIT) == free and int(node.python(CLOCK)) > 1095
        assert node.output(restorer, "restore") == "nothing to restore\n"
        nodectl = (sys.executable, "-m", "nodectl.cli")
        assert "nothing to restore" in node.output(*nodectl, "restore")


def test_an_agent_that_is_stopped_below_the_restorer_loses_the_node(tmp_path: Path) -> None:
    restorer = str(build(tmp_path / "nodectl-restorer"))
    with ServedNode("xh2415", "--workload", "qe-pw") as node:
        free, moved, after, end = json.loads(node.python(STOPPED_RUN, restorer, str(tmp_path / "state"), LIMIT))
        assert int(moved) < int(free) and after == end == free
        assert int(node.python(CLOCK)) > 1095
