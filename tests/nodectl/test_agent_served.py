"""The agent as a process of its own on a served node: real files, real NVML, real signals."""

import subprocess
import sys

import pytest

from cluster_agent.slurm.site_files import Choices, to_install
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


def test_a_job_of_slurm_has_its_mode_and_its_joules_by_the_prolog_and_the_epilog_of_its_node(tmp_path):
    """The scripts as `clusterctl slurm install --nodes` writes them, and the page as root's writer process does."""
    (tmp_path / "slurm.conf").touch()
    for change in to_install(tmp_path / "slurm.conf", Choices(with_nodes=True)):
        change.carry_out()
    hooks = {"SLURM_JOB_ID": "17", "SLURM_JOB_USER": "alice", "SLURM_JOB_COMMENT": "nodectl=monitor"}
    run = f"{PYTHON} -m nodectl.cli run --mode optimize --cpu-policy fixed:clock_khz=1500000 --state-dir {tmp_path}"
    done = on_served(
        "curie",
        f"""
        {PYTHON} - <<'END'
import os, subprocess, time
def until(holds):
    deadline = time.monotonic() + 180
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.05)
def limit():
    return open("{LIMIT}").read().strip()
def page():
    lines = open("/run/nodectl/job-joules").read().splitlines() if os.path.exists("/run/nodectl/job-joules") else []
    return next((line.split() for line in lines if line.startswith("17 ")), ["17", "", "0", "", "", "", "", "", ""])
os.environ.update({hooks!r})
agent = subprocess.Popen("exec {run}", shell=True, stdout=subprocess.DEVNULL)
until(lambda: limit() == "1500000")
subprocess.run(["{tmp_path}/nodectl/prolog-node"], check=True)
until(lambda: limit() == "2700000")
print(limit())
until(lambda: float(page()[2]) > 100)
subprocess.run(["{tmp_path}/nodectl/epilog-node"], check=True)
until(lambda: limit() == "1500000" and page()[8].endswith("Z"))
print(limit(), page()[1], page()[7], page()[8].endswith("Z"), float(page()[2]) > 100)
state = os.stat("/run/nodectl/job-joules")
print(state.st_uid, oct(state.st_mode & 0o777))
agent.terminate()
print(agent.wait(180), limit())
END
        """,
    )
    seen = ["2700000", "1500000 alice measured True True", "0 0o644", "0 2700000"]
    assert done.stdout.splitlines() == seen, done.stderr
    assert "job 17 of alice: start, mode monitor" in done.stderr
