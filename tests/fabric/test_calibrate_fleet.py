"""`clusterctl calibrate`: emulated nodes with the real agent, measured one after the other within the budget."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from calibration.table.table_file import read_table
from lab.emulated.watts import node_watts
from tests.fabric.cluster import Cluster
from tests.waiting import PATIENCE_S
from twin.machine import load_machine

MACHINE = "taurus"
WATTS = node_watts(load_machine(MACHINE))
ONE_AT_FULL_POWER_W = WATTS.tdp_w + WATTS.mop_w + 20.0
NONE_AT_FULL_POWER_W = 2 * WATTS.mop_w + 40.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), ONE_AT_FULL_POWER_W, jobs={}) as made:
        made.serve()
        for name in ("n0", "n1"):
            made.allow(name)
        nodes = ["--machine", MACHINE, "--cluster", made.url, "--keys", str(made.keys), "n0", "n1"]
        made.start("-m", "nodectl.cli", "twin", "node", *nodes, log="nodes.log")
        made.until(lambda: [row["jobs"] for row in made.ask("nodes") or []] == ["idle", "idle"], is_kept=False)
        yield made


def granted_w(cluster: Cluster, name: str) -> float:
    return next(row["granted_w"] or 0.0 for row in cluster.ask("nodes") if row["name"] == name)


def test_nodes_get_full_power_one_after_the_other_and_a_grant_lost_midway_pauses(cluster: Cluster) -> None:
    options = ["-o", str(cluster.at), "--kernel", "stream", "--time-budget", "13s", "--socket", str(cluster.socket)]
    running = cluster.start("-m", "cluster_agent.cli", "calibrate", "n[0-1]", *options, log="calibrate.log")
    log = cluster.at / "calibrate.log"
    cluster.until(lambda: granted_w(cluster, "n0") == WATTS.tdp_w, is_kept=False)
    assert granted_w(cluster, "n1") < WATTS.tdp_w, "the other one has to wait for its turn"
    assert "its highest cap, since its job measures the node" in cluster.ctl("why", "n0").stdout
    cluster.until(lambda: (cluster.at / "n0.toml.partial").exists(), is_kept=False)
    assert cluster.ctl("budget", "set", str(NONE_AT_FULL_POWER_W)).returncode == 0
    cluster.until(lambda: f"{WATTS.tdp_w:g} W are needed" in log.read_text(), is_kept=False)
    assert cluster.ctl("budget", "set", str(ONE_AT_FULL_POWER_W)).returncode == 0
    assert running.wait(PATIENCE_S) == 0, log.read_text()
    text = log.read_text()
    assert text.index("n0: done") < text.index("n1: running") < text.index("n1: done")
    assert "n0: full power again: goes on" in text
    first, second = (read_table(cluster.at / f"n{n}.toml") for n in (0, 1))
    top = [table.of("stream", "all")[-1] for table in (first, second)]
    # the same machine twice, with other meters: what was measured under the lower cap is in neither
    assert top[0].units_per_s == pytest.approx(top[1].units_per_s, rel=0.01)
    assert first.conditions.is_emulated
    again = cluster.ctl("calibrate", "n0", "-o", str(cluster.at))
    assert again.returncode == 0 and again.stdout == "n0: has a table (--again measures it again)\n"
    factors = cluster.at / "factors.toml"
    done = cluster.plain(
        "calibration", "compare", *(str(cluster.at / f"n{n}.toml") for n in (0, 1)), "-o", str(factors)
    )
    assert done.returncode == 0 and '["n1"]' in factors.read_text()


def test_a_node_with_a_job_is_left_alone_and_wrong_requests_are_one_line(cluster: Cluster) -> None:
    job = cluster.ctl("submit", "-D", str(cluster.at), "--", "twin-workload", "hpl", "60s").stdout.split()[-1]
    cluster.until(lambda: any(row["job"] == job for row in cluster.ask("nodes")), is_kept=False)
    busy = next(row["name"] for row in cluster.ask("nodes") if row["job"] == job)
    out = cluster.at / "tables"
    out.mkdir()
    done = cluster.ctl("calibrate", busy, "-o", str(out))
    assert done.returncode == 1
    assert done.stdout == f"{busy}: has job {job}: not measured\nwithout a table: {busy}\n"
    other = "n1" if busy == "n0" else "n0"
    assert cluster.ctl("notify", "start", "77", other).returncode == 0
    done = cluster.ctl("calibrate", other, "-o", str(out))
    why = "has job 77 of another manager: not measured (of Slurm: --slurm reservation)"
    assert done.stdout == f"{other}: {why}\nwithout a table: {other}\n"
    assert cluster.ctl("notify", "end", "77").returncode == 0
    for words, message in ((["n7"], "nearest: n"), (["n[0-"], "is no list of nodes such as n[0-3,7]")):
        wrong = cluster.ctl("calibrate", *words, "-o", str(out))
        assert wrong.returncode == 2 and message in wrong.stderr and wrong.stderr.count("\n") == 1
    refused = cluster.ctl("calibrate", "n0", "-o", str(out / "no"))
    assert refused.returncode == 2 and "there is no such folder" in refused.stderr
    assert cluster.ctl("cancel", job).returncode == 0
    cluster.until(lambda: all(row["jobs"] == "idle" for row in cluster.ask("nodes")), is_kept=False)
    failed = cluster.ctl("calibrate", busy, "-o", str(out), "--kernel", "fam")
    assert failed.returncode == 1 and "no kernel is called 'fam' (nearest: fma)" in failed.stdout
