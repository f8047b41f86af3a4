"""The real agent, killed on the served node: ``nodectl restore`` puts clocks and locks back, the journal replays."""

import json
import sys

import pytest

from tests.twin.served_node import ServedNode, why_not_served

if why_not_served():
    pytest.skip(why_not_served(), allow_module_level=True)

LIMIT = "/sys/devices/system/cpu/cpufreq/policy0/scaling_max_freq"

KILLED_RUN = """
import json, os, pathlib, signal, subprocess, sys, time
state, limit = sys.argv[1], pathlib.Path(sys.argv[2])
free = limit.read_text()
agent = subprocess.Popen(
    [sys.executable, "-m", "nodectl.cli", "run", "--mode", "optimize", "--state-dir", state,
     "--cpu-policy", "fixed-cpu:clock_khz=2000000", "--gpu-policy", "fixed-gpu:clock_mhz=1095", "--gpu-locked-mhz", "0"]
)
deadline = time.monotonic() + 180
import pynvml
pynvml.nvmlInit()
card = pynvml.nvmlDeviceGetHandleByIndex(0)
def is_moved():
    return limit.read_text() != free and pynvml.nvmlDeviceGetClockInfo(card, pynvml.NVML_CLOCK_SM) == 1095
def is_recorded():  # what was decided is recorded after it was done
    return any(segment.stat().st_size for segment in pathlib.Path(state, "journal").glob("*.seg"))
while not (is_moved() and is_recorded()) and agent.poll() is None and time.monotonic() < deadline:
    time.sleep(0.05)
def child_of(pid):
    return int(pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text())
restorer = child_of(agent.pid)
processes = (agent.pid, restorer, child_of(restorer))
for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped first, so that none of them notices
    for pid in processes:
        os.kill(pid, number)
agent.wait()
print(json.dumps([free.strip(), limit.read_text().strip()]))
"""

CLOCK = """
import pynvml, time
pynvml.nvmlInit()
time.sleep(0.7)
print(pynvml.nvmlDeviceGetClockInfo(pynvml.nvmlDeviceGetHandleByIndex(0), pynvml.NVML_CLOCK_SM))
"""


def test_an_agent_killed_with_its_restorer_and_writer_leaves_a_node_that_restore_puts_right(tmp_path):
    state = str(tmp_path)
    with ServedNode("xh2415", "--workload", "qe-pw") as node:
        free, moved = json.loads(node.python(KILLED_RUN, state, LIMIT))
        assert int(moved) < int(free)
        assert int(node.python(CLOCK)) == 1095
        nodectl = (sys.executable, "-m", "nodectl.cli")
        report = json.loads(node.output(*nodectl, "restore", "--state-dir", state, "--json"))
        assert report["complete"] and {outcome["status"] for outcome in report["outcomes"]} == {"restored"}
        names = {outcome["knob"] for outcome in report["outcomes"]}
        assert "cpu/policy0/max_khz" in names
        assert len([name for name in names if name.startswith("gpu/GPU-") and name.endswith("/sm_clock_mhz")]) == 4
        assert node.read(LIMIT) == free
        assert int(node.python(CLOCK)) > 1095
        again = json.loads(node.output(*nodectl, "restore", "--state-dir", state, "--json"))
        assert again["outcomes"] == []
        replayed = json.loads(node.output(*nodectl, "replay", f"{state}/journal", "--json"))
        assert replayed["equal"] and replayed["decided"] >= 1
