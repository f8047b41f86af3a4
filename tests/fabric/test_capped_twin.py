"""The whole way, in real processes: a budget, CURVE, the real agent on a served twin, RAPL limits; and a kill."""

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from foundation.wire.keys import read_public
from tests.fabric.cluster import Cluster
from tests.twin.served_node import ServedNode, why_not_served

if why_not_served():
    pytest.skip(why_not_served(), allow_module_level=True)

TWO_STARTS_S = 120.0
"""Of an agent, one after the other, on a machine that is busy with other things."""

AWAY_S = 6.0
"""How long there is no agent."""

REST_W = 60.0

LIMIT = "/sys/class/powercap/intel-rapl:0/constraint_0_power_limit_uw"

KILLED_RUN = """
import json, os, pathlib, signal, subprocess, sys, time
config, limit = sys.argv[1], pathlib.Path(sys.argv[2])
free = limit.read_text()
agent = subprocess.Popen([sys.executable, "-m", "nodectl.cli", "run", "--config", config])
deadline = time.monotonic() + 180
while limit.read_text().strip() != "120000000" and agent.poll() is None and time.monotonic() < deadline:
    time.sleep(0.05)
time.sleep(float(sys.argv[3]))
capped = limit.read_text()
def child_of(pid):
    return int(pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text())
restorer = child_of(agent.pid)
processes = (agent.pid, restorer, child_of(restorer))
for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped first, so that none of them notices
    for pid in processes:
        os.kill(pid, number)
agent.wait()
print(json.dumps([free.strip(), capped.strip(), limit.read_text().strip()]))
"""


RESTARTED_RUN = """
import contextlib, os, pathlib, signal, subprocess, sys, time
config, at = sys.argv[1], pathlib.Path(sys.argv[2])
with contextlib.suppress(PermissionError):
    os.setpriority(os.PRIO_PROCESS, 0, -10)  # as the agent's unit does
(at / "agents-nice").write_text(str(os.getpriority(os.PRIO_PROCESS, 0)))
def start():
    return subprocess.Popen([sys.executable, "-m", "nodectl.cli", "run", "--config", config])
def wait(file):
    deadline = time.monotonic() + PATIENCE
    while not (at / file).exists() and time.monotonic() < deadline:
        time.sleep(0.05)
agent = start()
wait("began")
time.sleep(3)  # some of the job's energy is metered before the kill
agent.send_signal(signal.SIGKILL)
agent.wait()
time.sleep(AWAY)
agent = start()
wait("recorded")
agent.terminate()
agent.wait()
"""


def configure(cluster: Cluster, at: Path, jobs: bool = False) -> Path:
    """Settings of a node agent."""
    config = at / "node.toml"
    config.write_text(
        f'mode = "optimize"\nstate_dir = "{at}/state"\n[caps]\nrest_w = {REST_W}\n'
        '[cpu_policy]\nname = "none"\n[gpu_policy]\nname = "none"\n[cluster]\n'
        f'url = "{cluster.url}"\nkey = "{cluster.keys}/twin.key"\njobs = {str(jobs).lower()}\n'
        f"server_key = '{read_public(str(cluster.keys / 'cluster.key'))}'\n"
        'tdp_w = 500.0\nmop_w = 200.0\nsafe_w = 220.0\nboot_w = 220.0\nsettle_s = 0.5\nname = "another"\n'
        '[jobs]\nuser = "root"\n'
    )
    return config


def test_a_job_outlives_the_agent_that_started_it_and_is_reported_by_the_next(tmp_path):
    with Cluster(tmp_path, 500.0, jobs={}) as cluster, ServedNode("skylake-6146", "--workload", "hpl") as node:
        cluster.allow("twin")
        cluster.serve()
        cluster.until(lambda: cluster.ask("nodes"))
        look = "cat /sys/class/powercap/intel-rapl:?/energy_uj >>uj; date +%s.%N >>at; "
        text = look + "echo $NODECTL_NODE >>began; while [ ! -e go ]; do sleep 0.1; done; nice; echo over; " + look
        job = cluster.ask("submit", "-D", str(tmp_path), "--", "/bin/sh", "-c", text)["job"]

        shown_j: list[float] = []

        def counts() -> float:
            shown_j.append(cluster.ask("jobs", str(job))["row"]["energy_j"] or 0.0)
            return shown_j[-1]

        def record() -> None:
            cluster.until(counts, False, TWO_STARTS_S)
            first_s = time.monotonic()
            cluster.until(lambda: counts() and time.monotonic() > first_s + AWAY_S + 3, False, TWO_STARTS_S)
            silent_j = shown_j[-1]  # by now the agent has been away, or is
            cluster.until(lambda: counts() > silent_j, False, TWO_STARTS_S)
            (tmp_path / "go").touch()
            cluster.until(lambda: cluster.ask("jobs", str(job))["row"]["state"] == "done", is_kept=False)
            (tmp_path / "recorded").touch()

        with ThreadPoolExecutor(1) as recorder:
            recorded = recorder.submit(record)
            node.python(
                RESTARTED_RUN.replace("PATIENCE", str(TWO_STARTS_S)).replace("AWAY", str(AWAY_S)),
                str(configure(cluster, tmp_path, jobs=True)),
                str(tmp_path),
            )
            recorded.result()
        row = cluster.ask("jobs", str(job))["row"]
        assert (row["attempts"], row["node_names"], row["status"]) == (1, "twin", 0)
        assert shown_j == sorted(shown_j), "they never fall"
        part = cluster.ask("jobs", str(job))["job"]["parts"]["twin"]
        part_s = part["ended_s"] - part["started_s"]
        assert part_s > AWAY_S + 3
        assert part["energy"]["metered_ms"] == pytest.approx(1000 * part_s, rel=0.02, abs=300), "the gap, too, and once"
        uj, at_s = (list(map(float, (tmp_path / name).read_text().split())) for name in ("uj", "at"))
        true_w = (sum(uj[2:]) - sum(uj[:2])) / 1e6 / (at_s[1] - at_s[0]) + REST_W
        assert row["energy_j"] == pytest.approx(true_w * part_s, rel=0.05), "the job's own look, which begins later"
        assert row["measured"] == 1.0
        ordinary = max(int((tmp_path / "agents-nice").read_text()), 0)
        assert (tmp_path / f"job-{job}.out").read_text() == f"{ordinary}\nover\n", "not before other processes"


def test_a_served_twin_is_capped_over_the_wire_and_restore_keeps_the_safe_cap_after_kills(tmp_path):
    with Cluster(tmp_path, 300.0) as cluster, ServedNode("skylake-6146", "--workload", "hpl") as node:
        cluster.allow("twin")
        cluster.serve()
        config = configure(cluster, tmp_path)
        free, capped, left = json.loads(node.python(KILLED_RUN, str(config), LIMIT, "2.0"))
        assert (capped, left) == ("120000000", "120000000")
        (row,) = cluster.ask("nodes")
        assert (row["name"], row["in_force_w"], row["quality"]) == ("twin", 300.0, "measured")
        restore = (sys.executable, "-m", "nodectl.cli", "restore", "--state-dir", f"{tmp_path}/state", "--json")
        report = json.loads(node.output(*restore))
        assert report["complete"] and {one["status"] for one in report["outcomes"]} >= {"held"}
        assert node.read(LIMIT) == "80000000"
        assert json.loads(node.output(*restore))["complete"] and node.read(LIMIT) == "80000000"
        assert json.loads(node.output(*restore, "--leave-cluster"))["complete"]
        assert node.read(LIMIT) == free


RAISING_RUN = """
import json, pathlib, subprocess, sys, time
config, limit, at = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
agent = subprocess.Popen(
    [sys.executable, "-m", "nodectl.cli", "run", "--config", config], stdout=-3, stderr=open(at / "agent.log", "w")
)
def wait(is_so):
    deadline = time.monotonic() + PATIENCE
    while not is_so() and agent.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    return is_so()
def is_capped():
    return limit.read_text() == "120000000\\n"
assert wait(is_capped) and wait((at / "counted").exists)
raising = subprocess.Popen(["sh", "-c", f"echo 700000000 >{limit}; echo; read end"], stdin=-1, stdout=-1)
raising.stdout.readline()
began = time.monotonic()
assert wait(is_capped)
print(json.dumps([raising.pid, time.monotonic() - began]), flush=True)
assert wait((at / "seen").exists)
raising.communicate()
agent.terminate()
agent.wait()
"""


def test_a_single_write_of_a_job_above_the_cap_is_undone_named_and_counted(tmp_path):
    with Cluster(tmp_path, 300.0) as cluster, ServedNode("skylake-6146", "--workload", "hpl") as node:
        cluster.allow("twin")
        cluster.serve()
        seen: list[tuple[float, list[str]]] = []

        def counts_w() -> float:
            rows = cluster.ask("nodes")
            return rows[0]["counts_w"] if rows else 0.0

        def look() -> None:
            cluster.until(lambda: counts_w() == 300.0, False, TWO_STARTS_S)
            (tmp_path / "counted").touch()
            cluster.until(lambda: counts_w() > 300.0, False, TWO_STARTS_S)
            seen.append((counts_w(), cluster.ask("budget", "show")["alarms"]))
            cluster.until(lambda: counts_w() == 300.0, False, TWO_STARTS_S)
            (tmp_path / "seen").touch()

        with ThreadPoolExecutor(1) as looker:
            looked = looker.submit(look)
            code = RAISING_RUN.replace("PATIENCE", str(TWO_STARTS_S))
            found = node.python(code, str(configure(cluster, tmp_path)), LIMIT, str(tmp_path))
            looked.result()
        pid, took_s = json.loads(found)
        assert took_s < 2.0
        assert seen[0][0] == REST_W + 165 + 120, "what the hardware takes, and the other package's share"
        assert any(f"twin: sh (process {pid}" in alarm for alarm in seen[0][1])
        log = (tmp_path / "agent.log").read_text()
        assert f"ALARM: sh (process {pid}, user 0) set it to 700000000 uW, above the cap; set again" in log
