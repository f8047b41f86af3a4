"""``clusterctl generate``: jobs as Bridi's thesis describes them, the same for a seed, and read as any other table."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from cluster_agent.cli import main
from cluster_agent.cluster import load_machine
from cluster_agent.scheduler.power_cap import UNCAPPED
from cluster_agent.scheduler.unlike_nodes.node_jobs import Nodes, nodes_of
from cluster_agent.workloads.eurora import read_jobs
from cluster_agent.workloads.generated import bridi

EURORA = nodes_of(load_machine("eurora"))


def test_jobs_have_the_shares_widths_and_walltimes_of_the_thesis() -> None:
    rows = bridi.generate(8_000, 7, EURORA)
    of_queue = {one.queue: [row for row in rows if row["queue"] == one.queue] for one in bridi.CLASSES}
    assert {name: len(found) / 8_000 for name, found in of_queue.items()} == pytest.approx(
        {"debug": 0.27, "parallel": 0.72, "np_longpar": 0.01}, abs=0.01
    )
    by_day = [row for row in rows if "08" <= row["submit"][11:13] < "18"]
    assert len(by_day) / 8_000 == pytest.approx(0.89, abs=0.01)
    assert max(int(row["req_nodes"]) for row in of_queue["debug"]) == 2
    assert {int(row["req_nodes"]) for row in of_queue["parallel"]} == set(range(1, 33))
    assert {int(row["req_cores"]) for row in rows} == set(range(1, 17))
    for one in bridi.CLASSES:
        found = of_queue[one.queue]
        gpus = Counter(int(row["gpus"]) // int(row["req_nodes"]) for row in found)
        assert [gpus[cards] / len(found) for cards in (0, 1, 2)] == pytest.approx(one.gpus, abs=0.12)
        for row in found:
            volume = int(row["req_nodes"]) * int(row["req_cores"]) * int(row["walltime_s"])
            assert one.core_s <= volume < one.core_s + int(row["cores"])
            assert row["gpus"] == "0" or row["mics"] == "0"
            assert int(row["max_wait_s"]) == one.promise_s


def test_a_fifth_of_the_jobs_runs_to_its_walltime_and_others_for_a_fifth_of_it_or_more(tmp_path: Path) -> None:
    bridi.write(tmp_path / "jobs.csv", bridi.generate(3_000, 3, EURORA))
    jobs = read_jobs(str(tmp_path / "jobs.csv"), is_strict=True).on(EURORA, UNCAPPED).jobs
    share = jobs.run_s / jobs.request_s
    assert len(jobs) == 3_000 and (np.diff(jobs.submit_s) >= 0).all()
    assert (share == 1).mean() == pytest.approx(0.2, abs=0.02)
    assert share.min() >= 0.19 and share[share < 1].mean() == pytest.approx(0.6, abs=0.02)
    assert set(jobs.max_wait_s.tolist()) == {3600, 18_000, 86_400}


def test_equal_seeds_give_equal_tables_and_others_do_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / f"{name}.csv" for name in "abc"]
    for file, seed in zip(files, (1, 1, 2), strict=True):
        assert main(["generate", "bridi", "--jobs", "30", "--seed", str(seed), "--out", str(file)]) == 0
    assert f"30 jobs in {files[0]}" in capsys.readouterr().out
    assert files[0].read_bytes() == files[1].read_bytes() != files[2].read_bytes()
    assert main(["replay", str(files[0]), "--strict", "--policy", "planned:decoder=serial,iterations=9"]) == 0


def test_no_job_is_wider_than_the_nodes_that_have_what_it_needs() -> None:
    four = Nodes(EURORA.has[[0, 1, 62, 63]])
    rows = bridi.generate(2_000, 1, four)
    assert {int(row["req_nodes"]) for row in rows if row["gpus"] != "0"} == {1, 2}
    assert {int(row["req_nodes"]) for row in rows if row["gpus"] == row["mics"] == "0"} == {1, 2, 3, 4}


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        (("--jobs", "3"), 2, "--seed"),
        (("--seed", "3"), 2, "--jobs"),
        (("--jobs", "0", "--seed", "3"), 2, "--jobs"),
        (("--jobs", "3", "--seed", "-1"), 2, "--seed"),
        (("--jobs", "3", "--seed", "3", "--machine", "curie"), 2, "no node of the machine has 16 cores, 1 GPUs"),
        (("--jobs", "3", "--seed", "3", "--out", "{folder}/no/a.csv"), 1, "No such file or directory"),
    ],
)
def test_what_cannot_be_drawn_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], status: int, said: str
) -> None:
    given = [one.replace("{folder}", str(tmp_path)) for one in options]
    out = [] if "--out" in given else ["--out", str(tmp_path / "a.csv")]
    assert main(["generate", "bridi", *given, *out]) == status
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("clusterctl")]
    assert len(lines) == 1 and said in lines[0]
