"""What is read from tables of Eurora's jobs, and what is said of damaged ones."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from cluster_agent.cluster import load_machine
from cluster_agent.errors import ClusterError
from cluster_agent.scheduler.power_cap import UNCAPPED, constant
from cluster_agent.scheduler.unlike_nodes.node_jobs import nodes_of
from cluster_agent.workloads.eurora import QUEUES, instances, read_cap_profile, read_jobs, read_nodes, read_queues
from cluster_agent.workloads.swf import TraceError
from tests.recorded import RECORDED, needs_recorded

DATA = RECORDED / "eurora"
EURORA = nodes_of(load_machine("eurora"))

HEADER = "job,queue,submit,start,end,req_nodes,req_cores,cores,gpus,mics,mem_kb,walltime_s,app,nodes,predicted_power_w"
TABLE = f"""{HEADER}
11,debug,2014-03-31 10:00:00,2014-03-31 10:01:00,2014-03-31 10:02:00,2,32,8,4,0,2048,1800,0,7 9,90.0
12,parallel,2014-03-31 09:59:00,2014-03-31 10:01:00,2014-03-31 11:01:00,1,1,1,0,1,1024,1800,1,7,
13,R99,2014-03-31 10:00:01,2014-03-31 10:01:00,2014-03-31 10:01:00,1,1,1,0,0,1024,60,1,7,0
14,debug,2014-03-31 10:00:02,2014-03-31 10:02:00,2014-03-31 10:01:00,1,1,1,0,0,1024,60,1,7,5
15,debug,yesterday,2014-03-31 10:02:00,2014-03-31 10:03:00,1,1,1,0,0,1024,60,1,7,5
16,debug,2014-03-31 10:00:02,2014-03-31 10:02:00,2014-03-31 10:03:00,1,1,many,0,0,1024,60,1,7,5
17,debug,2014-03-31 10:00:02,2014-03-31 10:02:00,2014-03-31 10:03:00,1,1,1,9,0,1024,60,1,7,5
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.csv"
    path.write_text(TABLE)
    return path


def test_a_job_has_a_unit_per_node_with_its_share_and_ends_at_its_request(table: Path) -> None:
    trace = read_jobs(str(table))
    jobs = trace.jobs
    assert jobs.name == ("12", "11", "13", "17")
    assert jobs.submit_s.tolist() == [0, 60, 61, 62]
    assert jobs.run_s.tolist() == [1800, 60, 1, 60]
    assert (jobs.units[1], jobs.need[1].tolist()) == (2, [4, 2, 0, 1024])
    assert trace.is_cut.tolist() == [True, False, False, False]
    assert jobs.max_wait_s.tolist() == [21600, 3600, 1800, 3600]


def test_everything_that_is_not_taken_as_it_stands_is_counted(table: Path) -> None:
    trace = read_jobs(str(table)).on(EURORA, UNCAPPED)
    assert {str(finding) for finding in trace.findings} == {
        "jobs that ran beyond their request: 1 ended at the request (first: line 3)",
        "jobs with a run time of 0: 1 taken as 1 s (first: line 4)",
        "jobs that end before they start: 1 dropped (first: line 5)",
        "rows with something that is no time: 1 dropped (first: line 6)",
        "rows with something that is no number: 1 dropped (first: line 7)",
        "jobs too large for the machine's nodes: 1 dropped (first: line 8)",
    }
    assert trace.dropped == 4


def test_unknown_watts_are_assumed_from_nodes_gpus_and_mics_and_zero_is_unknown(table: Path) -> None:
    jobs = read_jobs(str(table)).on(EURORA, UNCAPPED).jobs
    assert jobs.knows_watts.tolist() == [False, True, False]
    assert jobs.watts.tolist() == [40.0 + 115.0, 90.0, 40.0]


def test_a_job_that_draws_more_than_the_cap_ever_allows_is_dropped(table: Path) -> None:
    trace = read_jobs(str(table)).on(EURORA, constant(100.0))
    assert trace.jobs.name == ("11", "13")
    found = [str(finding) for finding in trace.findings]
    assert "jobs that draw more than the cap ever allows: 1 dropped (first: line 3)" in found


def test_an_instance_is_the_jobs_that_it_lists(table: Path) -> None:
    (table.parent / "instances.csv.gz").write_bytes(gzip.compress(b"instance,jobs,job_ids\nfew,2,11 13\n"))
    assert read_jobs(str(table), "few").jobs.name == ("11", "13")
    with pytest.raises(
        ClusterError, match=r"--instance fw: .*instances.csv.gz has no instance of that name \(nearest: few\)"
    ):
        read_jobs(str(table), "fw")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TABLE, r"jobs.csv:3: jobs that ran beyond their request: raise the request, or leave out --strict"),
        (HEADER + "\n", r"jobs.csv: no job in it \(it has no rows\); name another table"),
        (TABLE.replace(",walltime_s", ",wall"), r"jobs.csv:1: the column walltime_s is missing; add it to the header"),
        ("", r"jobs.csv: it is empty; fetch it again"),
    ],
)
def test_strict_stops_at_the_first_line_and_a_useless_table_is_refused(table: Path, text: str, message: str) -> None:
    table.write_text(text)
    with pytest.raises(TraceError, match=message) as caught:
        read_jobs(str(table), is_strict=True)
    assert "\n" not in str(caught.value)


def test_a_profile_of_caps_is_in_force_from_the_start_and_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "caps.csv"
    path.write_text("profile,offset_s,cap_w\na,100,2200\na,1000,4000\nb,5,1\n")
    cap = read_cap_profile(str(path), "a")
    assert [cap.at(now_s) for now_s in (0, 100, 999, 1000, 10**9)] == [2200, 2200, 2200, 4000, 4000]
    assert (cap.least(0, 1000), cap.least(999, 1001), cap.least(1000, 1001)) == (2200, 2200, 4000)


@pytest.mark.parametrize(
    ("rows", "profile", "message"),
    [
        ("a,100,2200\na,100,1\n", "a", "caps.csv:3: 100 s is not after 100 s; sort the profile by time"),
        ("a,100,low\n", "a", "caps.csv:2: a cap has profile,offset_s,cap_w; correct or delete it"),
        ("a,100,0\n", "a", "caps.csv:2: an offset that is no time, or a cap that is not above 0 W; correct the line"),
        (
            "a,1,1\nb,1,1\n",
            None,
            "caps.csv: it has several profiles; write --cap .*caps.csv:PROFILE with one of a, b",
        ),
        ("a,1,1\n", "c", "caps.csv: no profile is called 'c'; write --cap .*caps.csv:PROFILE with one of a"),
    ],
)
def test_wrong_caps_are_answered_in_one_line(tmp_path: Path, rows: str, profile: str | None, message: str) -> None:
    path = tmp_path / "caps.csv"
    path.write_text("profile,offset_s,cap_w\n" + rows)
    with pytest.raises(ClusterError, match=message) as caught:
        read_cap_profile(str(path), profile)
    assert "\n" not in str(caught.value)


@needs_recorded("eurora")
def test_the_shipped_machine_is_the_one_of_the_tables() -> None:
    listed = read_nodes(str(DATA / "nodes.csv"), "nodes_64")
    assert np.array_equal(EURORA.has, listed.has)
    assert (EURORA.unit_w, EURORA.gpu_w, EURORA.mic_w) == (listed.unit_w, listed.gpu_w, listed.mic_w) == (40, 62, 115)
    assert read_queues(str(DATA / "queues.csv")) == QUEUES


@needs_recorded("eurora")
def test_the_tables_have_what_their_description_says() -> None:
    trace = read_jobs(str(DATA / "jobs.csv.gz"))
    assert len(trace.jobs) == 5930
    assert trace.jobs.knows_watts.mean() == pytest.approx(0.80, abs=0.01)  # 81 % less those of 0 W
    assert len(instances(str(DATA / "jobs.csv.gz"))) == 206
    assert len(read_jobs(str(DATA / "jobs.csv.gz"), "hist_100_20140331_110904").jobs) == 100


@needs_recorded("eurora")
def test_a_synthetic_instance_is_read_from_parquet() -> None:
    pytest.importorskip("pyarrow.parquet", reason="pyarrow is missing: install pyarrow")
    table = str(DATA / "synthetic.parquet")
    assert len(instances(table)) == 130
    trace = read_jobs(table, "rndm_200_3600_0")
    assert len(trace.jobs) == 200
    assert trace.jobs.submit_s.max() <= 3600
    with pytest.raises(
        ClusterError, match=r"choose one with --instance NAME \(130 of them, such as rndm_1000_10800_0\)"
    ):
        read_jobs(table)
