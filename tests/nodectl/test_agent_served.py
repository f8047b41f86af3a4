"""The agent as a process of its own on a served node: real files, real NVML, real signals."""

import subprocess
import sys

import pytest

from tests.waiting import PATIENCE_S
from twin.errors import TwinError
from twin.serve import host_needs

PYTHON = sys.executable
LIMIT = "/sys/devices/system/cpu/cpufreq/policy0/scaling_max_freq"

try:
    host_needs.require()
except TwinError as missing:
    pytest.skip(f"no served node here: {missing}", allow_module_level=True)


def on_served(machine: str, script: str) -> subprocess.CompletedProcess[str]:
    twin = [PYTHON, "-m", "nodectl.cli", "twin", "run", "--machine", machine, "--workload", "hpl"]
    return subprocess.run([*twin, "--", "sh", "-c", script], capture_output=True, text=True, timeout=3 * PATIENCE_S)


@pytest.mark.parametrize("name", ["TERM", "INT", "HUP"])
def test_a_signal_ends_the_service_and_every_knob_is_back(tmp_path, name):
    run = f"{PYTHON} -m nodectl.cli run --mode optimize --cpu-policy fixed:clock_khz=1500000 --state-dir {tmp_path}"
    done = on_served(
        "curie",
        f"""
        {PYTHON} - <<'END'
import signal, subprocess, sys, time
agent = subprocess.Popen("exec {run}", shell=True, stdout=subprocess.DEVNULL)
deadline = time.monotonic() + 180
while open("{LIMIT}").read().strip() != "1500000" and time.monotonic() < deadline:
    time.sleep(0.05)
print(open("{LIMIT}").read().strip())
agent.send_signal(signal.SIG{name})
print(agent.wait(180), open("{LIMIT}").read().strip())
END
        """,
    )
    assert done.stdout.split("\n")[:2] == ["1500000", "0 2700000"], done.stderr
    assert not (tmp_path / "captured.jsonl").exists()


def test_around_a_command_knobs_move_only_while_it_runs(tmp_path):
    run = f"{PYTHON} -m nodectl.cli run --mode optimize --cpu-policy fixed:clock_khz=1500000 --state-dir {tmp_path}"
    done = on_served("curie", f"{run} -- sh -c 'sleep 0.5; cat {LIMIT}; exit 5'; echo $?; cat {LIMIT}")
    assert done.stdout.split() == ["1500000", "5", "2700000"], done.stderr
    closing = done.stderr.splitlines()[-1]
    assert "CPU packages and DRAM" in closing and "J (measured)" in closing


def test_a_second_agent_on_the_node_is_refused_whatever_its_state_directory(tmp_path):
    run = f"{PYTHON} -m nodectl.cli run --mode optimize --cpu-policy fixed:clock_khz=1500000 --state-dir {tmp_path}"
    done = on_served("curie", f"{run}/a -- sh -c '{run}/b --duration 1s; echo $?; cat {LIMIT}'; cat {LIMIT}")
    assert done.stdout.split() == ["1", "1500000", "2700000"], done.stderr
    refusal = next(line for line in done.stderr.splitlines() if "already runs this node" in line)
    assert refusal.startswith("nodectl run: pid ") and "/run/nodectl/lock-" in refusal


def test_the_command_gets_the_descriptor_limit_that_the_agent_was_started_with(tmp_path):
    limits = 'grep "open files" /proc/$PPID/limits; ulimit -Sn; ulimit -Hn'
    run = f"{PYTHON} -m nodectl.cli run --state-dir {tmp_path}"
    done = on_served("curie", f"ulimit -Sn 1000; {run} -- sh -c '{limits}'")
    agent, soft, hard = done.stdout.splitlines()
    assert agent.split()[3:5] == [hard, hard], "the agent needs more for itself"
    assert soft == "1000" and hard != "1000"
