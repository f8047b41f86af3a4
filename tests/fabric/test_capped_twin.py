"""The whole way, in real processes: a budget, CURVE, the real agent on a served twin, RAPL limits; and a kill."""

import json
import sys

import pytest

from nodectl.keys import read_public
from tests.fabric.cluster import Cluster
from tests.twin.served_node import ServedNode, why_not_served

if why_not_served():
    pytest.skip(why_not_served(), allow_module_level=True)

LIMIT = "/sys/class/powercap/intel-rapl:0/constraint_0_power_limit_uw"

KILLED_RUN = """
import json, pathlib, signal, subprocess, sys, time
config, limit = sys.argv[1], pathlib.Path(sys.argv[2])
free = limit.read_text()
agent = subprocess.Popen([sys.executable, "-m", "nodectl.cli", "run", "--config", config])
deadline = time.monotonic() + 40
while limit.read_text().strip() != "120000000" and agent.poll() is None and time.monotonic() < deadline:
    time.sleep(0.05)
time.sleep(float(sys.argv[3]))
capped = limit.read_text()
agent.send_signal(signal.SIGKILL)
agent.wait()
print(json.dumps([free.strip(), capped.strip(), limit.read_text().strip()]))
"""


def test_a_served_twin_is_capped_over_the_wire_and_restore_keeps_the_safe_cap_after_a_kill(tmp_path):
    with Cluster(tmp_path, 300.0) as cluster, ServedNode("skylake-6146", "--workload", "hpl") as node:
        cluster.allow("twin")
        cluster.serve()
        config = tmp_path / "node.toml"
        config.write_text(
            f'mode = "optimize"\nstate_dir = "{tmp_path}/state"\n[caps]\nrest_w = 60.0\n'
            '[cpu_policy]\nname = "none"\n[gpu_policy]\nname = "none"\n[cluster]\n'
            f'url = "{cluster.url}"\nkey = "{cluster.keys}/twin.key"\n'
            f"server_key = '{read_public(str(cluster.keys / 'cluster.key'))}'\n"
            'tdp_w = 500.0\nmop_w = 200.0\nsafe_w = 220.0\nboot_w = 220.0\nsettle_s = 0.5\nname = "another"\n'
        )
        free, capped, left = json.loads(node.python(KILLED_RUN, str(config), LIMIT, "2.0"))
        assert (capped, left) == ("120000000", "120000000")
        (row,) = cluster.ask("nodes")
        assert (row["name"], row["limit_w"], row["quality"]) == ("twin", 300.0, "measured")
        restore = (sys.executable, "-m", "nodectl.cli", "restore", "--state-dir", f"{tmp_path}/state", "--json")
        report = json.loads(node.output(*restore))
        assert report["complete"] and {one["status"] for one in report["outcomes"]} >= {"held"}
        assert node.read(LIMIT) == "80000000"
        assert json.loads(node.output(*restore))["complete"] and node.read(LIMIT) == "80000000"
        assert json.loads(node.output(*restore, "--leave-cluster"))["complete"]
        assert node.read(LIMIT) == free
