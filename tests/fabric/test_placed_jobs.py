"""Partitions of real processes: nodes that differ under `easy-capped`, with a kill and a lower budget; a job that runs
in one of its configurations."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fabric.cluster import Cluster, boottime_s

MACHINE = """
name = "site"
summary = "two plain nodes and one with a GPU"
[[nodes]]
count = 2
cores = 16
idle_w = 150
frequency_mhz = [2000, 1000]
busy_w = [300, 200]
[[nodes]]
hosts = ["g*"]
count = 1
cores = 8
gpus = 1
idle_w = 150
frequency_mhz = [2000, 1000]
busy_w = [300, 200]
gpu_w = 150
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """900 W: idle nodes take 450, a job without a GPU 150 more, one with a GPU 300 more."""
    jobs = {"policy": "easy-capped:rule=est", "machine": "site.toml"}
    (tmp_path / "site.toml").write_text(MACHINE)
    with Cluster(tmp_path, 900.0, jobs=jobs, sharer="none") as made:
        yield made


def submit(cluster: Cluster, *options: str) -> int:
    done = cluster.ctl("submit", "-D", str(cluster.at), "-o", "/dev/null", *options, "--", "/bin/sleep", "600")
    assert done.returncode == 0, done.stderr
    return int(done.stdout.removeprefix("job "))


def row(cluster: Cluster, job: int) -> dict[str, Any]:
    found = cluster.ask("jobs", str(job))
    return found["row"] if found else {"state": ""}


def caps_w(cluster: Cluster) -> dict[str, float]:
    return {name: cluster.cap_w(name) for name in cluster.names}


def replayed_export(cluster: Cluster) -> str:
    """By the command that `state export --replay` prints."""
    exported = cluster.ctl("state", "export", "--replay", str(cluster.at / "whole"))
    assert exported.returncode == 0, exported.stderr
    command = exported.stdout.partition("clusterctl ")[2].replace("...", "easy-capped:rule=est").split()
    replayed = cluster.plain(*command)
    assert replayed.returncode == 0, replayed.stderr
    return replayed.stdout


def test_jobs_are_placed_by_what_nodes_have_and_neither_a_kill_nor_a_lower_budget_exceeds_the_watts(
    cluster: Cluster,
) -> None:
    serve = cluster.serve()
    for name in ("g0", "n0", "n1"):
        cluster.node(name, cap_w=150.0)
    cluster.until(lambda: sum(one["jobs"] == "idle" for one in cluster.ask("nodes") or []) == 3)

    refused = cluster.ctl("submit", "--gpus", "2", "--", "true")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "1 node with 2 GPUs requested, but by its machine file the partition has 0" in refused.stderr

    plain, gpu = submit(cluster), submit(cluster, "--gpus", "1")
    cluster.until(lambda: caps_w(cluster) == {"g0": 450.0, "n0": 300.0, "n1": 150.0})
    assert (row(cluster, plain)["node_names"], row(cluster, gpu)["node_names"]) == ("n0", "g0")
    waiting = submit(cluster)
    cluster.until(lambda: "waits for watts" in row(cluster, waiting)["waits_for"])

    serve.send_signal(signal.SIGKILL)
    serve.wait()
    cluster.serve()
    cluster.until(lambda: row(cluster, gpu)["state"] == row(cluster, plain)["state"] == "running")
    cluster.until(lambda: caps_w(cluster) == {"g0": 450.0, "n0": 300.0, "n1": 150.0})
    assert (row(cluster, waiting)["state"], row(cluster, gpu)["attempts"]) == ("queued", 1)

    assert cluster.ctl("budget", "set", "800").returncode == 0
    cluster.until(lambda: (view := cluster.ask("budget", "show")) and view["over_w"] == 0)
    began_s, cluster.budget_w = boottime_s(), 800.0
    assert sum(caps_w(cluster).values()) <= 800.0
    assert row(cluster, gpu)["state"] == row(cluster, plain)["state"] == "running", "nobody is killed"
    assert cluster.ctl("cancel", str(gpu)).returncode == 0
    cluster.until(lambda: row(cluster, waiting)["state"] == "running")
    cluster.until(lambda: caps_w(cluster) == {"g0": 150.0, "n0": 300.0, "n1": 300.0})
    cluster.check(began_s)
    assert "3 of 3 jobs" in replayed_export(cluster), "what it exports can be replayed"


def test_a_job_runs_in_the_configuration_that_is_chosen_with_its_cores_and_its_caps(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text(MACHINE.replace("idle_w = 150", "idle_w = 150\nrest_w = 60", 1))
    table = "application,nodes,cores,cap_w,time_s,watts\nlu,2,16,115,100,480\nlu,2,8,65,160,300\n"
    (tmp_path / "table.csv").write_text(table)
    jobs = {"policy": "moldable:rule=energy,slowdown=2", "machine": "site.toml", "configurations": "table.csv"}
    with Cluster(tmp_path, 620.0, jobs=jobs, sharer="none") as cluster:
        serve = cluster.serve()
        for name in ("n0", "n1"):
            cluster.node(name, cap_w=150.0)
        cluster.until(lambda: sum(one["jobs"] == "idle" for one in cluster.ask("nodes") or []) == 2)
        text = "echo $NODECTL_CORES on $NODECTL_NODES > cores-$NODECTL_NODE; exec sleep 600"
        command = ["-D", str(tmp_path), "-J", "lu", "-N", "2", "--", "/bin/sh", "-c", text]
        job = int(cluster.ctl("submit", *command).stdout.removeprefix("job "))
        cluster.until(lambda: caps_w(cluster) == {"n0": 210.0, "n1": 210.0})
        written = [tmp_path / f"cores-{name}" for name in cluster.names]
        cluster.until(lambda: [path.read_text() for path in written if path.exists()] == ["8 on n0,n1\n"] * 2)
        serve.send_signal(signal.SIGKILL)
        serve.wait()
        cluster.serve()
        cluster.until(lambda: row(cluster, job)["state"] == "running")
        cluster.until(lambda: caps_w(cluster) == {"n0": 210.0, "n1": 210.0})
        stored = cluster.ask("jobs", str(job))["job"]["configured"]
        assert stored == {"nodes": 2, "cores": 8, "cap_w": 65.0, "length_s": 5760, "node_mw": 210_000}
