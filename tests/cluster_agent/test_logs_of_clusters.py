"""Logs that come with a table of their clusters, and say which nodes their jobs requested."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest

from cluster_agent.cli import main
from cluster_agent.workloads.clusters.node_requests import (
    ALONE,
    PROPERTIES,
    SINGLE_NODES,
    UNLIKE_UNITS,
    Requested,
    parsed,
)
from tests.recorded import RECORDED, needs_recorded

CLUSTERS = "id\tcluster\tnodes\tcores_per_node\tspeed\tmem_kb\n0\tbig\t1\t8\t1\t16777216\n1\tsmall\t2\t2\t1\t4194304\n"
GIB = 1 << 30


def job(number: int, submit_s: int, width: int, request: str, gib: int = 1) -> str:
    numbers = f"{number} {submit_s} 0 100 {width} 1 1 {width} 100 {gib * GIB} 1 7 1 1 -1 1 1 1"
    return f"{numbers} {{{','.join(['9'] * width)}}} q_1d {request}\n"


def written(folder: Path, *jobs: str, table: str = CLUSTERS) -> Path:
    (folder / "two.machines.tsv").write_text(table)
    log = folder / "two.swf"
    log.write_text("".join(jobs))
    return log


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = main(["replay", *map(str, arguments)])
    said = capsys.readouterr()
    return status, said.out, said.err


def test_a_log_with_a_table_of_clusters_is_replayed_without_a_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = written(tmp_path, job(1, 0, 2, "1:ppn=2:cl_small"), job(2, 0, 4, "2:ppn=2:cl_small"), job(3, 0, 8, "1:ppn=8"))
    status, out, _ = run(capsys, log, "--json", "--out", tmp_path / "out")
    metrics = json.loads(out)
    assert (status, metrics["ended"], metrics["switches"]) == (0, 3, {"clusters": 2}), "both would be on the big node"
    rows = (tmp_path / "out/jobs.csv").read_text().splitlines()[1:]
    assert {row.split(",")[0]: row.split(",")[14] for row in rows} == {"1": "1", "2": "1-2", "3": "0"}
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    table = tmp_path / "two.machines.tsv"
    mark = hashlib.sha256(table.read_bytes()).hexdigest()
    assert manifest["machine"] == {"nodes": 3, "given_by": str(table), "sha256": mark}
    assert metrics["energy_j"] is None, "nobody knows the watts"


def test_two_tables_of_one_path_are_not_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for at, table in enumerate((CLUSTERS, CLUSTERS.replace("16777216", "8388608"))):
        log = written(tmp_path, job(1, 0, 2, "1:ppn=2:cl_small"), table=table)
        for policy in ("easy", "fcfs"):
            assert run(capsys, log, "--policy", policy, "--out", tmp_path / f"{at}-{policy}")[0] == 0
    assert main(["report", *(str(tmp_path / f"{at}-{policy}") for at in (0, 1) for policy in ("easy", "fcfs"))]) == 0
    titles = re.findall(r"^## two, machine 3, two.machines.tsv ([0-9a-f]{8})$", capsys.readouterr().out, re.MULTILINE)
    assert len(set(titles)) == 2


def test_a_switch_that_changes_nothing_counts_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = written(tmp_path, job(1, 0, 2, "1:ppn=2:cl_big"), job(2, 0, 1, "1:ppn=1"))
    assert json.loads(run(capsys, log, "--json")[1])["switches"] == {"clusters": 0}
    log = written(tmp_path, job(1, 0, 2, "1:ppn=2"))
    assert "switches" not in json.loads(run(capsys, log, "--json")[1]), "no job says where it may run"


def test_memory_of_the_nodes_keeps_a_job_waiting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = written(tmp_path, job(1, 0, 1, "1:ppn=1:cl_big", 10), job(2, 0, 1, "1:ppn=1:cl_big", 10))
    assert json.loads(run(capsys, log, "--json")[1])["wait_s"]["max"] == 100


def test_with_a_number_of_processors_the_table_is_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = written(tmp_path, job(1, 0, 2, "1:ppn=2:cl_big"), table="broken")
    assert run(capsys, log, "--machine", 12)[0] == 0


def test_what_a_request_says() -> None:
    both = ("big", "small")
    assert parsed("2:ppn=4:x86_64:cl_small", 8, both) == Requested(2, 4, 2, ("small",), (PROPERTIES,))
    assert parsed("1:ppn=8:^cl_small#excl", 8, both) == Requested(1, 8, 1, ("big",), (ALONE,))
    assert parsed("1:ppn=8:host=big3.site.cz", 8, both) == Requested(1, 8, 1, ("big",), (SINGLE_NODES,))
    assert parsed("1:ppn=8:^big3.site.cz", 8, both) == Requested(1, 8, 1, both, (SINGLE_NODES,))
    assert parsed("1:ppn=1+2:ppn=2", 5, both) == Requested(5, 1, 2, both, (UNLIKE_UNITS,))
    assert parsed("2", 2, both) == Requested(2, 1, 2, both, ())
    assert parsed("", 3, both) == Requested(1, 3, 1, both, ())
    assert (
        parsed("9" * 5000, 3, both)
        == parsed("3:ppn=" + "9" * 5000, 3, both)
        == Requested(3, 1, 3, both, (UNLIKE_UNITS,))
    )
    assert parsed("0" * 5000 + "2", 2, both) == Requested(2, 1, 2, both, ())
    assert parsed("1:cl_small:^cl_small", 1, both).within == ()


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ("cluster nodes\n", "two.machines.tsv:1: no column cluster; name the columns, separated by tabs"),
        ("cluster\tnodes\tcores_per_node\n", "two.machines.tsv: no cluster in it; add a line for each"),
        ("cluster\tnodes\tcores_per_node\na\tx\t2\n", ".tsv:2: nodes cannot be 'x': give a whole number from 1 to"),
        ("cluster\tnodes\tcores_per_node\na\t1\n", ".tsv:2: it has 2 of 3 columns: complete it, separated by tabs"),
        ("cluster\tnodes\tcores_per_node\na\t90000000\t2\n", "two.machines.tsv: 90000000 nodes are more than 1048576"),
        (CLUSTERS.replace("small", "big"), "the cluster 'big' is there twice"),
        (CLUSTERS.replace("2\t1\t4", "2\t1.5\t4"), ".tsv:3: speed 1.5: clusters of other speeds are not modelled"),
    ],
)
def test_a_broken_table_is_one_line(
    table: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = written(tmp_path, job(1, 0, 1, "1"), table=table)
    status, _, err = run(capsys, log)
    assert status != 0
    assert problem in err
    assert len(err.splitlines()) == 1


def test_a_plan_does_not_say_where_jobs_may_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = written(tmp_path, job(1, 0, 2, "1:ppn=2:cl_small"))
    status, _, err = run(capsys, log, "--policy", "planned")
    assert status == 2
    assert "planned: it plans with all nodes" in err


@needs_recorded("swf/MetaCentrum-wagap-2013.machines.tsv")
def test_metacentrum_is_replayed_on_its_two_clusters(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, RECORDED / "swf/MetaCentrum-wagap-2013.swf.gz", "--policy", "fcfs", "--json")
    metrics = json.loads(out)
    assert (status, metrics["jobs"], metrics["dropped"]) == (0, 17_897, 3)
    assert metrics["switches"]["clusters"] > 0
    assert "not modelled: 231 jobs request nodes for themselves alone" in err
