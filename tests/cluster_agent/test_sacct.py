"""What is read from the text of ``sacct --parsable2``."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster_agent.cluster import load_machine
from cluster_agent.scheduler.power_cap import UNCAPPED
from cluster_agent.scheduler.unlike_nodes.node_jobs import nodes_of
from cluster_agent.workloads.node_trace import NodeTrace
from cluster_agent.workloads.sacct import read_sacct
from cluster_agent.workloads.swf import TraceError
from cluster_agent.workloads.text_tables import is_sacct

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
    assert (jobs.request_s.tolist(), trace.user, trace.text) == ([3600], ("ada",), ("cfd_017 phys batch",))


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
    assert trace.jobs.request_s.tolist() == [86400, 86400, 300]
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


# --- what Slurm means

FULL = (
    "JobID|JobName|User|Account|Partition|Submit|Start|End|ElapsedRaw|TimelimitRaw|State|NNodes|NCPUS|ReqMem|AllocTRES"
    "|ConsumedEnergyRaw"
)


def row(job: str = "1", **given: str) -> str:
    """A line of ``FULL``: a job of one node and an hour."""
    cells = {
        "JobID": job, "JobName": "a", "User": "ana", "Account": "p1", "Partition": "batch",
        "Submit": "2025-06-01T10:00:00", "Start": "2025-06-01T10:00:10", "End": "2025-06-01T11:00:10",
        "ElapsedRaw": "3600", "TimelimitRaw": "120", "State": "COMPLETED", "NNodes": "1", "NCPUS": "16",
        "ReqMem": "64G", "AllocTRES": "cpu=16,mem=64G,node=1", "ConsumedEnergyRaw": "720000",
    }  # fmt: skip
    return "|".join((cells | given).values())


def read(path: Path, *rows: str, header: str = FULL) -> NodeTrace:
    path.write_bytes("\n".join([header, *rows, ""]).encode())
    return read_sacct(str(path))


def said(trace: NodeTrace) -> list[str]:
    return [str(finding) for finding in trace.findings]


def test_elapsed_raw_decides_over_suspensions_and_changes_of_the_clock(text: Path) -> None:
    suspended = row("1", End="2025-06-02T10:00:10")
    autumn = row("2", Submit="2025-10-26T02:40:00", Start="2025-10-26T02:50:00", End="2025-10-26T02:20:00",
                 ElapsedRaw="1800")  # fmt: skip
    spring = row("3", Start="2025-06-01T10:00:10", End="2025-06-01T12:00:10", TimelimitRaw="60")
    trace = read(text, suspended, autumn, spring)
    assert (trace.jobs.name, trace.jobs.run_s.tolist()) == (("1", "3", "2"), [3600, 3600, 1800])
    assert (said(trace), trace.wait_s.tolist()) == ([], [10, 10, 600])
    assert trace.jobs.watts.tolist() == [200.0, 200.0, 400.0]


def test_without_elapsed_raw_elapsed_decides_and_then_start_and_end(text: Path) -> None:
    header = "JobID|Submit|Start|End|Elapsed|NNodes|NCPUS"
    times = "2025-06-01T10:00:00|2025-06-01T10:00:10|2025-06-03T10:00:10"
    trace = read(text, f"1|{times}|1-01:02:03|1|16", f"2|{times}||1|16", f"3|{times}|INVALID|1|16", header=header)
    assert trace.jobs.run_s.tolist() == [90123, 2 * 86400, 2 * 86400]


def test_offsets_and_unix_seconds_are_moments_and_local_times_are_not_mixed_with_them(text: Path) -> None:
    times = {"Submit": "2025-10-26T02:40:00+0200", "Start": "2025-10-26T02:50:00+0200"}
    first = row("1", Submit="2025-10-26T01:00:00+0200", Start="2025-10-26T01:30:00+0200",
                End="2025-10-26T02:30:00+0100", ElapsedRaw="")  # fmt: skip
    second = row("2", **times, End="2025-10-26T02:20:00+0100", ElapsedRaw="")
    third = row("3", Submit="1761440400", Start="1761440460", End="1761444060")
    trace = read(text, first, second, third, row("4"))
    assert trace.jobs.submit_s.tolist() == [0, 6000, 7200]
    assert (trace.jobs.run_s.tolist(), trace.wait_s.tolist()) == ([7200, 1800, 3600], [1800, 600, 60])
    what = "jobs with a time that has no offset from UTC, unlike others, or only it has one"
    assert said(trace) == [f"{what}: 1 dropped (first: line 5)"]


def test_a_local_start_in_the_hour_before_its_submission_is_after_a_change_of_the_clock(text: Path) -> None:
    trace = read(text, row(Submit="2025-10-26T02:58:00", Start="2025-10-26T02:05:00", End="2025-10-26T03:05:00"))
    assert trace.wait_s.tolist() == [420]
    assert said(trace) == [
        "jobs that start in the hour before their submission: 1 taken as started an hour later (first: line 2)"
    ]


@pytest.mark.parametrize(
    ("own", "steps", "watts"),
    [
        ("1460000", {"batch": 20000, "extern": 720000, "0": 720000}, 200.0),  # the job's line is the sum of all
        ("", {"batch": 458000, "extern": 458000, "0": 457000}, 458000 / 3600),
        ("720000", {}, 200.0),  # sacct -X
        ("", {"batch": 720000, "0": 700000}, 200.0),  # no extern without PrologFlags=contain
        ("", {"interactive": 720000, "0": 1000, "1": 1000}, 200.0),
        ("720000", {"extern": 720000, "0": 10**13}, 200.0),  # what a step read wrongly is not in the job's line
        ("", {"extern": 2**64 - 2, "0": 360000}, 100.0),
    ],
)
def test_joules_of_steps_that_overlap_count_once(text: Path, own: str, steps: dict[str, int], watts: float) -> None:
    lines = [row(f"1.{step}", ConsumedEnergyRaw=str(joules)) for step, joules in steps.items()]
    assert read(text, row(ConsumedEnergyRaw=own), *lines).jobs.watts.tolist() == [pytest.approx(watts)]


def test_joules_of_steps_one_after_the_other_are_summed_and_of_those_at_once_the_most_count(text: Path) -> None:
    spans = {"0": ("10:00:10", 1200, 100000), "1": ("10:20:10", 1200, 200000), "2": ("10:10:10", 1200, 250000),
             "3": ("10:40:10", 600, 60000)}  # fmt: skip
    lines = [
        row(f"1.{step}", Start=f"2025-06-01T{start}", ElapsedRaw=str(seconds), ConsumedEnergyRaw=str(joules))
        for step, (start, seconds, joules) in spans.items()
    ]
    assert read(text, row(ConsumedEnergyRaw=""), *lines).jobs.watts.tolist() == [360000 / 3600]


@pytest.mark.parametrize(
    ("joules", "what"),
    [
        *((str(2**bits - less), "joules that no meter gives") for bits in (32, 64) for less in (1, 2, 3)),
        ("18446744073000000000", "joules that no meter gives"),  # a counter that went backwards
        ("-5", "joules that no meter gives"),
        ("nan", "joules that no meter gives"),
        ("1,234", "joules that no meter gives"),
        ("1e999", "joules that no meter gives"),
        ("72000001", "more than 20 kW a node"),
    ],
)
def test_joules_that_no_meter_gives_are_unmeasured_and_counted(text: Path, joules: str, what: str) -> None:
    trace = read(text, row(ConsumedEnergyRaw=joules))
    assert trace.jobs.knows_watts.tolist() == [False]
    (line,) = said(trace)
    assert what in line and line.endswith("1 taken as unmeasured (first: line 2)")


def test_joules_may_have_a_suffix_and_0_is_unmeasured_without_a_word(text: Path) -> None:
    header = FULL.replace("ConsumedEnergyRaw", "ConsumedEnergy")
    rows = [row("1", ConsumedEnergyRaw="720K"), row("2", ConsumedEnergyRaw="1.44M"), row("3", ConsumedEnergyRaw="0")]
    trace = read(text, *rows, header=header)
    assert (trace.jobs.watts[:2].tolist(), trace.jobs.knows_watts.tolist()) == ([200.0, 400.0], [True, True, False])
    assert said(trace) == []


def test_watts_above_the_machines_highest_are_unmeasured_where_the_machine_file_has_it(text: Path) -> None:
    nodes = nodes_of(load_machine("taurus"))
    assert nodes.highest_w is not None
    watts = [nodes.highest_w - 1, nodes.highest_w + 1]
    tres = "cpu=12,node=1"
    rows = [row(str(n), NCPUS="12", ReqMem="", AllocTRES=tres, ConsumedEnergyRaw=f"{w * 3600:.0f}")
            for n, w in enumerate(watts)]  # fmt: skip
    trace = read(text, *rows).on(nodes, UNCAPPED)
    assert trace.jobs.knows_watts.tolist() == [True, False]
    assert "W a node: 1 taken as unmeasured (first: line 3)" in said(trace)[-1]
    with pytest.raises(TraceError, match=r"history.txt:3: jobs with more than the machine's .* or leave out --strict"):
        read(text, *rows).on(nodes, UNCAPPED, is_strict=True)


@pytest.mark.parametrize(
    ("tres", "gpus"),
    [
        ("gres/gpu=2", 2), ("gres/gpu:a100=2,gres/gpu=2", 2), ("gres/gpu:a100=2", 2), ("gpu:2", 2), ("gpu:a100:2", 2),
        ("gres/gpu:4090=2", 2), ("gpu:4090:2", 2), ("gpu:1g.5gb:2", 2), ("gres/gpu:1g.5gb=3", 3), ("gpu:1g.5gb", 1),
        ("gpu(IDX:0-3)", 4), ("gpu:a100(IDX:0,2,5-6)", 4), ("gpu:a100:4(IDX:0-3)", 4), ("gpu:4090(IDX:1)", 1),
        ("gpu:2(S:0-1)", 2), ("gpu:a100:2(IDX:0,1),gpu:v100:1(IDX:2)", 3), ("gres:gpu:2", 2), ("gpu", 1),
        ("gres/gpu:nvidia_a100-sxm4-80gb=4", 4), ("gres/gpumem=80G,gres/gpuutil=99", 0), ("gres/shard=4", 0),
    ],
)  # fmt: skip
def test_gpus_count_whatever_their_type_is_called(text: Path, tres: str, gpus: int) -> None:
    trace = read(text, row(AllocTRES=f"cpu=16,{tres},node=1"))
    assert (int(trace.jobs.need[0, 1]), said(trace)) == (gpus, [])


def test_runs_that_were_requeued_count_and_what_never_started_does_not(text: Path) -> None:
    nothing = {"ElapsedRaw": "0", "AllocTRES": "", "ConsumedEnergyRaw": "0"}
    at = {"Start": "2025-06-01T10:30:00", "End": "2025-06-01T10:30:00"}
    rows = [
        row("1", State="REQUEUED"),
        row("2", State="RESIZING"),
        row("3", State="PREEMPTED"),
        row("4", State="CANCELLED by 1000", **at, **nothing),
        row("5", State="DEADLINE", **at, **nothing),
        row("6", State="CA", ElapsedRaw="60"),
        row("7", State="FAILED", **at, ElapsedRaw="0"),  # within its first second
        row("8", State="RUNNING"),
        row("9", State="PENDING", Start="Unknown", End="Unknown", **nothing),
    ]
    trace = read(text, *rows)
    assert trace.jobs.name == ("1", "2", "3", "6", "7")
    assert said(trace) == [
        "jobs that did not run: 3 dropped (first: line 5)",
        "jobs with a run time of 0: 1 taken as 1 s (first: line 8)",
        "jobs that have not ended: 1 dropped (first: line 9)",
    ]


def test_the_components_of_a_heterogeneous_job_are_one_job(text: Path) -> None:
    rows = [row("399"), row("400+0", NNodes="1", NCPUS="4"), row("400+0.0"), row("400+1", NNodes="2", NCPUS="32")]
    trace = read(text, *rows, row("400+0", NNodes="1", NCPUS="4"), row("400+1", NNodes="2", NCPUS="32"))
    assert trace.not_modelled() == {"are later runs of a requeued job": 1}
    assert trace.jobs.name == ("399", "400", "400"), "the second is its second run"
    assert trace.jobs.components is not None
    assert trace.jobs.components.count.tolist() == [1, 2, 2]
    assert trace.jobs.components.units.tolist()[1:] == [1, 2] * 2
    assert trace.jobs.components.need[1:3, 0].tolist() == [4, 16]


HOUR = "2025-06-01T10:00:00|2025-06-01T10:00:10|2025-06-01T11:00:10"
NARROW = "JobID|JobName|Submit|Start|End|NNodes|NCPUS"


@pytest.mark.parametrize(
    ("odd", "jobs", "finding"),
    [
        (f"1|a\rb|{HOUR}|1|16", 2, "jobs with control characters in a name: 1 taken as spaces (first: line 2)"),
        (f"1|a\0\tb|{HOUR}|1|16", 2, "jobs with control characters in a name: 1 taken as spaces (first: line 2)"),
        (f"1|a\nb|{HOUR}|1|16", 2, "jobs with control characters in a name: 1 taken as spaces (first: line 2)"),
        (f'1|"a|{HOUR}|1|16', 2, ""),
        (f"1|{'x' * 140_000}|{HOUR}|1|16", 2, ""),
        (f"1|a|{HOUR}|1|99999999999999999999", 1, "jobs with something that is no number: 1 dropped (first: line 2)"),
        (f"1|a|{HOUR}|1|{'9' * 5000}", 1, "jobs with something that is no number: 1 dropped (first: line 2)"),
        (f"1|a|{HOUR}|1|1e3", 1, "jobs with something that is no number: 1 dropped (first: line 2)"),
        (f"1|a|{HOUR}|1|-16", 1, "jobs with something that is no number: 1 dropped (first: line 2)"),
        (f"1|a|{HOUR}|1|1,024", 1, "jobs with something that is no number: 1 dropped (first: line 2)"),
        (f"1|a|{HOUR}|1", 1, "lines with another number of columns than the first: 1 dropped (first: line 2)"),
        (f"1|a|b|{HOUR}|1|16", 1, "lines with another number of columns than the first: 1 dropped (first: line 2)"),
        (f"1|a|{HOUR[:-3]}x|1|16", 1, "jobs with something that is no time: 1 dropped (first: line 2)"),
        ("", 1, ""),
        (NARROW, 1, ""),  # two exports in one file
        (f"\ufeff1|a|{HOUR}|1|16", 2, ""),
    ],
)
def test_odd_text_costs_one_line_at_most_and_is_named_with_it(text: Path, odd: str, jobs: int, finding: str) -> None:
    trace = read(text, odd, f"2|ok|{HOUR}|1|16", header=NARROW)
    assert len(trace.jobs) == jobs and trace.jobs.name[-1] == "2"
    assert [one for one in said(trace) if "without a requested time" not in one] == ([finding] if finding else [])
    assert all(one.isprintable() for one in trace.text)


def test_limits_that_are_none_are_no_request_and_do_not_become_that_of_others(text: Path) -> None:
    limits = ("60", "4294967295", "999999999999999999999", "UNLIMITED", "6000000000")
    trace = read(text, *(row(str(n), TimelimitRaw=limit) for n, limit in enumerate(limits)))
    assert trace.jobs.request_s.tolist() == [3600] * 5
    assert "jobs with a time limit that is none: 2 taken as without (first: line 4)" in said(trace)


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (f"{NARROW}|NCPUS", ":1: the column NCPUS occurs twice; name it once in sacct's --format"),
        (f"1|a|{HOUR}|1|16", ":1: it does not name the columns of sacct; export it again without --noheader"),
        (NARROW.replace("|", ","), ":1: its columns are not separated by '|'; export it with sacct --parsable2"),
        (NARROW.replace("|", "   "), ":1: its columns are not separated by '|'; export it with sacct --parsable2"),
    ],
)
def test_a_header_that_is_none_is_refused_with_what_to_do(text: Path, header: str, reason: str) -> None:
    text.write_text(f"{header}\n2|ok|{HOUR}|1|16\n")
    assert is_sacct(str(text))
    with pytest.raises(TraceError) as refused:
        read_sacct(str(text))
    assert str(refused.value) == f"{text}{reason}"


@pytest.mark.parametrize("mark", ["|", ";", "\t", "^^"])
def test_other_delimiters_and_names_of_columns_are_read(text: Path, mark: str) -> None:
    lines = ["jobidraw|NodeList|Submit|Start|End|AllocNodes|AllocCPUS|", f"1|n1|{HOUR}|1K|2048|"]
    text.write_text("\n".join(lines).replace("|", mark))
    trace = read_sacct(str(text))
    assert (trace.jobs.name, trace.jobs.units.tolist(), trace.jobs.need[0, 0]) == (("1",), [1024], 2)


# --- what is around a table, or instead of it


def test_messages_above_the_columns_are_left_out_and_counted(text: Path) -> None:
    """``sacct > file 2>&1``, and what a login says."""
    path = written(text, line("1"), line("2"))
    said = "Last login: Mon Jun  2 09:00:01\nConflicting JOB_TERMINATED and DB entries, or a job without an end\n\n"
    text.write_text(said + text.read_text())
    assert is_sacct(path)
    trace = read_sacct(path)
    assert len(trace.jobs) == 2 and trace.line.tolist() == [5, 6]
    (found,) = (str(one) for one in trace.findings if "above" in one.what)
    assert found == "lines above the names of the columns: 2 left out (first: line 1)"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"jobs": [{"job_id": 1, "time": {"elapsed": 1200}}], "meta": {}}\n', "it is JSON or YAML"),
        ("---\njobs:\n- job_id: 1\n", "it is JSON or YAML"),
        ("jobs:\n- job_id: 1\n", "it is JSON or YAML"),
        (f'"{HEADER}"\n'.replace("|", '"|"'), "its columns are in quotes"),
        (f"{HEADER}\n{line('1').replace(DAY, '01 Jun ')}\n", "export it with SLURM_TIME_FORMAT=standard"),
    ],
)
def test_what_cannot_be_read_is_named_with_what_to_do(text: Path, content: str, said: str) -> None:
    text.write_text(content)
    with pytest.raises(TraceError, match=said):
        assert is_sacct(str(text))
        read_sacct(str(text))
