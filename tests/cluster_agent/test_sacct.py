"""What is read from the text of ``sacct --parsable2``."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster_agent.cluster import load_machine
from cluster_agent.scheduler.power_cap import UNCAPPED
from cluster_agent.scheduler.unlike_nodes.node_jobs import nodes_of
from cluster_agent.workloads.sacct import read_sacct
from cluster_agent.workloads.swf import TraceError

HEADER = (
    "JobID|JobName|User|Account|Partition|Submit|Start|End|Timelimit|State|NNodes|NCPUS|ReqMem|AllocTRES"
    "|ConsumedEnergyRaw"
)
DAY = "2026-03-01T"


def line(
    job: str,
    *,
    submit: str = "10:00:00",
    start: str = "10:00:10",
    end: str = "10:10:10",
    limit: str = "01:00:00",
    state: str = "COMPLETED",
    nodes: int = 2,
    cores: int = 32,
    memory: str = "",
    tres: str = "",
    joules: str = "",
    user: str = "ada",
) -> str:
    times = [value if value in ("None", "Unknown") else DAY + value for value in (submit, start, end)]
    return "|".join(
        [job, "cfd_017", user, "phys", "batch", *times, limit, state, str(nodes), str(cores), memory, tres, joules]
    )


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return tmp_path / "history.txt"


def written(path: Path, *lines: str) -> str:
    path.write_text("\n".join([HEADER, *lines]) + "\n")
    return str(path)


def test_jobs_have_nodes_cores_memory_and_cards_and_joules_become_watts(text: Path) -> None:
    tres = "billing=32,cpu=32,energy=120000,gres/gpu:a100=4,gres/gpu=4,mem=64G,node=2"
    trace = read_sacct(written(text, line("100", tres=tres, joules="120000")))
    jobs = trace.jobs
    assert (int(jobs.units[0]), jobs.need[0].tolist()) == (2, [16, 2, 0, 32 << 20])
    assert jobs.watts.tolist() == [200.0]
    assert (jobs.jobs.request_s.tolist(), trace.user, trace.text) == ([3600], ("ada",), ("cfd_017 phys batch",))


def test_joules_of_steps_count_where_the_job_has_none_and_extern_does_not_count_twice(text: Path) -> None:
    steps = [line("100", joules="0"), line("100.batch", joules="30000"), line("100.0", joules="60000")]
    trace = read_sacct(written(text, *steps, line("100.extern", joules="90000"), line("101", joules="")))
    assert trace.jobs.name == ("100", "101")
    assert trace.jobs.watts[0] == 150.0
    assert trace.jobs.knows_watts.tolist() == [True, False]


@pytest.mark.parametrize(
    ("memory", "tres", "each_kib"),
    [("4Gn", "", 4 << 20), ("1000Mc", "", 16 * 1000 << 10), ("64G", "", 32 << 20), ("64G", "mem=2048M", 1 << 20)],
)
def test_memory_is_taken_as_each_version_of_slurm_writes_it(text: Path, memory: str, tres: str, each_kib: int) -> None:
    assert read_sacct(written(text, line("1", memory=memory, tres=tres))).jobs.need[0, 3] == each_kib


def test_array_tasks_and_the_runs_of_a_requeued_job_are_jobs_of_their_own(text: Path) -> None:
    rows = [line("7_1"), line("7_2"), line("8", state="NODE_FAIL"), line("8", submit="10:20:00", start="10:30:00",
            end="10:40:00")]  # fmt: skip
    assert read_sacct(written(text, *rows)).jobs.name == ("7_1", "7_2", "8", "8")


def test_what_did_not_run_or_has_not_ended_is_counted_and_limits_are_completed(text: Path) -> None:
    rows = [
        line("1", limit="1-00:00:00"),
        line("2", limit="UNLIMITED"),
        line("3", state="CANCELLED by 1000", start="None"),
        line("4", state="RUNNING", end="Unknown"),
        line("5_[1-9]", state="PENDING", start="Unknown", end="Unknown"),
        line("6", limit="05:00"),
        "7|broken",
    ]
    trace = read_sacct(written(text, *rows))
    assert trace.jobs.jobs.request_s.tolist() == [86400, 86400, 300]
    assert {str(finding) for finding in trace.findings} == {
        "jobs that did not run: 2 dropped (first: line 4)",
        "jobs that have not ended: 1 dropped (first: line 5)",
        "jobs without a requested time: 1 taken as the longest (first: line 3)",
        "jobs that ran beyond their request: 1 ended at the request (first: line 7)",
        "lines with another number of columns than the first: 1 dropped (first: line 8)",
    }


def test_unknown_power_is_that_of_busy_nodes(text: Path) -> None:
    nodes = nodes_of(load_machine("taurus"))
    trace = read_sacct(written(text, line("1", nodes=2, cores=24))).on(nodes, UNCAPPED)
    assert trace.jobs.watts.tolist() == [2 * 203.12]


def test_missing_columns_and_strictness_are_answered_with_line_and_fix(text: Path) -> None:
    text.write_text("JobID|User|Submit|Start|End\n")
    with pytest.raises(TraceError, match=r"history.txt:1: no column NNodes, NCPUS; add it to sacct's --format"):
        read_sacct(str(text))
    with pytest.raises(TraceError, match=r"history.txt:3: jobs that did not run: leave them out with sacct --state"):
        read_sacct(written(text, line("1"), line("2", start="None")), is_strict=True)
