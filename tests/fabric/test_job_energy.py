"""A job's joules when the network is cut and the cluster agent is killed, on emulated nodes that know the truth."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest

from tests.fabric.cluster import Cluster
from tests.fabric.relay import Relay

CUT_S, AWAY_S = 5.0, 9.0
WITHIN = 0.05
"""Of the true energy: what an agent cannot measure of a node (memory, fans, board) counts as constant."""


def true_j(trace: Path, begin_s: float, end_s: float) -> float:
    """What the node drew between two instants of the wall clock, by its own truth."""
    lines = [json.loads(line) for line in trace.read_text().splitlines()]
    offset_s = time.time() - time.monotonic()
    at_s = np.array([line["at_s"] for line in lines]) + offset_s
    node_j = np.array([line["node_j"] for line in lines])
    assert at_s[0] < begin_s and end_s < at_s[-1]
    begin_j, end_j = np.interp([begin_s, end_s], at_s, node_j)
    return float(end_j - begin_j)


def test_a_jobs_joules_are_what_its_nodes_drew_whatever_became_of_the_link_and_the_cluster_agent(tmp_path):
    names = ["n0", "n1"]
    with Cluster(tmp_path, 900.0, jobs={}) as cluster, Relay(int(cluster.url.rpartition(":")[2])) as relay:
        for name in names:
            cluster.allow(name)
        serve = cluster.serve()
        none = tmp_path / "node.toml"
        none.write_text('[cpu_policy]\nname = "none"\n[gpu_policy]\nname = "none"\n')
        url = f"tcp://127.0.0.1:{relay.port}"
        trace = tmp_path / "trace"
        nodes = cluster.start(
            "-m", "nodectl.cli", "twin", "node", "--cluster", url, "--keys", str(cluster.keys), "--config", str(none),
            "--trace", str(trace), *names, log="nodes.log",
        )  # fmt: skip
        cluster.until(lambda: sum(row["jobs"] == "idle" for row in cluster.ask("nodes") or []) == 2, is_kept=False)
        command = ("submit", "-N", "2", "-D", str(tmp_path), "--time", "10min", "--", "twin-workload", "stream", "27s")
        job = str(cluster.ask(*command)["job"])
        shown: list[float] = []

        def look(seconds: float) -> None:
            """For so long, or until it has ended."""
            end_s = time.monotonic() + seconds
            while time.monotonic() < end_s:
                found = cluster.ask("jobs", job)
                if found:
                    shown.append(found["row"]["energy_j"] or 0.0)
                    if found["row"]["state"] == "done":
                        return
                time.sleep(0.2)

        look(3.0)
        relay.cut()
        look(CUT_S)
        relay.mend()
        look(3.0)
        serve.kill()
        serve.wait()
        time.sleep(AWAY_S)
        serve = cluster.serve()
        look(300.0)
        found = cluster.ask("jobs", job)
        row, parts = found["row"], found["job"]["parts"]
        assert row["state"] == "done" and row["attempts"] == 1
        assert shown == sorted(shown), "they never fall"
        time.sleep(1.0)
        assert cluster.end(nodes) == 0
        expected_j = sum(
            true_j(trace / f"{name}.jsonl", parts[name]["started_s"], parts[name]["ended_s"]) for name in names
        )  # fmt: skip
        assert row["energy_j"] == pytest.approx(expected_j, rel=WITHIN)
        took_ms = sum(1000 * (parts[name]["ended_s"] - parts[name]["started_s"]) for name in names)
        assert sum(parts[name]["energy"]["metered_ms"] for name in names) == pytest.approx(took_ms, rel=0.01)
        print(f"{row['energy_j']:.0f} J of {expected_j:.0f} J in {len(shown)} looks")
