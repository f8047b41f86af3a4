"""What a replay refuses before it runs, in one line that says what to do: one row for each sentence of its world."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from cluster_agent.cli import main
from cluster_agent.cluster import load_machine
from cluster_agent.errors import ClusterError
from cluster_agent.jobs.owned_watts.live_configurations import MOST_APPLICATIONS, check_configurations
from cluster_agent.replay import compare, plan_file
from cluster_agent.replay.event_log import EventLog, Setting
from cluster_agent.scheduler.native.governor import Watts
from cluster_agent.workloads.eurora import read_jobs, read_nodes, read_queues
from cluster_agent.workloads.job_log import prepare
from cluster_agent.workloads.job_watts import read_job_watts
from cluster_agent.workloads.moldable_trace import read_tables
from cluster_agent.workloads.parquet_tables import read_columns
from cluster_agent.workloads.rte import rte_caps
from cluster_agent.workloads.swf import read_swf

SAMPLES = Path(__file__).parents[2] / "cluster_agent" / "samples"
LOG, NODES, WAYS = (str(SAMPLES / name) for name in ("generated-500.swf", "eurora-100.csv", "cab-30.swf"))
ANNOUNCED = "from_s,to_s,watts,announced_s\n100,200,5000,50\n"
SACCT = "JobID|Submit|Start|End|NNodes|NCPUS\n1|2026-01-01T00:00:00|2026-01-01T00:00:00|2026-01-01T01:00:00|1|4\n"
DARK = 'name = "dark"\nsummary = ""\n[[nodes]]\ncount = 4\ncores = 16\nidle_w = 50\n'


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in (("caps.csv", ANNOUNCED), ("history.txt", SACCT), ("dark.toml", DARK)):
        Path(name).write_text(text)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([WAYS, "--policy", "rmap", "--instance", "x"], "not with rmap, which chooses configurations; leave it out"),
        ([WAYS, "--policy", "rmap", "--job-watts", "x"], "not with rmap, which chooses configurations; leave it out"),
        ([LOG, "--configurations", "cab"], "easy runs jobs as requested; leave it out, or choose rmap or moldable"),
        ([NODES, "--policy", "prb", "--job-watts", "x"], "a trace with nodes has its own; leave it out"),
        ([LOG, "--instance", "x"], "only for traces with nodes; leave it out for a log of processors"),
        ([NODES, "--policy", "prb", "--swf", "x"], "a schedule on nodes does not fit that format; use --out"),
        ([LOG, "--machine", "0"], "--machine 0: give a number of processors, 1 to 2147483647"),
        ([LOG, "--machine", "curie", "--cap", "-1"], "--cap -1: give watts above 0, or a file"),
        (
            [LOG, "--machine", "32", "--job-watts", "generated"],
            "needs a machine that has watts, such as --machine curie",
        ),
        (
            [LOG, "--policy", "powercap"],
            "needs watts, and a number of processors has none: give a machine such as curie",
        ),
        (
            [NODES, "--policy", "prb", "--cap", "caps.csv"],
            "this policy knows all caps from the start: remove announced_s",
        ),
        (
            [WAYS, "--policy", "rmap", "--machine", "cab64", "--cap", "caps.csv"],
            "this policy knows all caps from the start: remove announced_s",
        ),
        (
            ["history.txt", "--policy", "prb", "--instance", "x", "--machine", "eurora"],
            "only Eurora's tables have instances",
        ),
        (
            ["history.txt", "--policy", "prb"],
            "sacct's text does not describe the machine; give --machine NAME or FILE.toml",
        ),
        (
            [NODES, "--policy", "easy:guard=3"],
            "guard needs a number of processors, and a trace with nodes has nodes that",
        ),
        ([LOG, "--policy", "prb"], "placing=first needs nodes, and a log of processors has none"),
        ([WAYS, "--policy", "rmap"], "nodes are needed; give a machine that has them, such as --machine cab64"),
        ([WAYS, "--policy", "rmap", "--machine", "eurora"], "configurations are for machines of one kind of nodes"),
        ([WAYS, "--policy", "rmap", "--machine", "dark.toml"], "the machine has no watts; give --cap WATTS"),
        (
            [WAYS, "--policy", "rmap", "--machine", "cab64", "--cap", "10"],
            "jobs whose share of the watts is too small for any configuration (first of 30): give a higher --cap",
        ),
        ([LOG, "--policy", "conservative:rule=printed"], "conservative has no parameter 'rule'"),
        (
            [LOG, "--policy", "powercap:rule=printed,mode=idle"],
            "rule=printed needs mode=mix, the only one that chooses",
        ),
        ([LOG, "--policy", "wfp3:loss=linear-linear"], "loss=linear-linear needs estimate=learned"),
        ([LOG, "--policy", "conservative:history=similar"], "history=similar needs estimate=mean2"),
        (
            [LOG, "--policy", "score:shadow=2"],
            "shadow=2 needs an estimate that can be too short: estimate=mean2|learned",
        ),
        ([LOG, "--policy", "easy:idle_off_s=0"], "idle_off_s=0: give 1 second or more"),
        ([LOG, "--policy", "multifactor:age=inf"], "age, size, cpu and energy must be finite"),
        ([LOG, "--policy", "powercap:mode=idle,floor_mhz=1000"], "floor_mhz=1000 needs mode=dvfs or mix"),
        ([LOG, "--policy", "easy:guard=0"], "guard=0 is not a bounded slowdown: a number above 0"),
        (
            [LOG, "--policy", "energy-budget:ties=sc15"],
            "ties=sc15 needs processors that are free before their job has ended",
        ),
    ],
)
@pytest.mark.usefixtures("there")
def test_a_world_that_cannot_be_is_refused_in_one_line(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", *arguments]) == 2
    error = capsys.readouterr().err
    assert sentence in error and error.count("\n") == 1


def test_a_state_after_which_nothing_is_left_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for trace, machine, policy in ((LOG, "32", "easy"), (NODES, "eurora", "prb"), (WAYS, "cab64", "rmap")):
        state, given = str(tmp_path / policy), ["replay", trace, "--machine", machine, "--policy", policy]
        assert main([*given, "--state-at", str(10**9), "--state-out", state]) == 0
        capsys.readouterr()
        assert main([*given, "--state", state]) == 1
        assert "all its jobs had ended before: give a log of later ones" in capsys.readouterr().err


def parquet(path: str, columns: dict[str, list[object]]) -> str:
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return path


def written(path: str, text: str) -> str:
    Path(path).write_text(text)
    return path


def of_an_instance() -> str:
    written("instances.csv", "instance\none\n")
    return written("jobs.csv", "job\n1\n")


def rte_of(load_mw: int) -> str:
    day: dict[str, list[object]] = {"local_date": ["2026-01-01"], "local_time": ["00:00:00"], "load_mw": [load_mw]}
    return f"rte:{parquet('load.parquet', day)}:begin=2026-01-01,least_w=1,most_w=2"


WATTS = Watts.of(load_machine("curie"), None)
CONFIGURED = dict.fromkeys(map(str, range(MOST_APPLICATIONS + 1)), ())


@pytest.mark.parametrize(
    ("read", "sentence"),
    [
        (lambda: read_swf("none.swf"), "none.swf: No such file or directory; name a readable .swf or .swf.gz file"),
        (lambda: read_columns("none.parquet", ["job"]), "No such file or directory; name a readable table"),
        (
            lambda: read_job_watts(parquet("watts.parquet", {"watts": [1.0]}), prepare(read_swf(LOG), 256), WATTS),
            "watts.parquet: no column job or job_id; name one so",
        ),
        (
            lambda: read_tables(written("ways.csv", "application,nodes,cores,cap_w,time_s,watts\n")),
            "ways.csv: no configuration in it; add lines below application,nodes,cores,cap_w,time_s,watts",
        ),
        (lambda: rte_caps(rte_of(2_000_000)), "row 1 has a load of 2000000 MW, which no country draws; correct it"),
        (
            lambda: read_nodes(written("nodes.csv", "system,cores,gpus,mics,mem_kb\na,1,0,0,1\n"), "b"),
            "nodes.csv: no system is called 'b'",
        ),
        (
            lambda: read_queues(written("queues.csv", "queue,max_wait_s\na,x\n")),
            "queues.csv:2: a queue has queue,max_wait_s",
        ),
        (
            lambda: read_jobs(of_an_instance(), "one"),
            "instances.csv:2: columns instance and job_ids are needed; fetch the table again",
        ),
        (
            lambda: EventLog(
                written("old.log", '{"event_log":1,"setting":{"trace":"x","policy":"easy"},"sha256":""}\n')
            ),
            "old.log:1: event log version 1, but this clusterctl reads 2",
        ),
        (
            lambda: plan_file.read(
                written("plan", '{"plan":9,"sha256":"","policy":"x","machine":null,"cap":null,"instance":null}\n'),
                Setting(trace="x", policy="x"),
                "",
            ),
            "--plan-from plan: version 9, but this clusterctl reads 1",
        ),
        (
            lambda: compare.read(Path("nowhere")),
            "nowhere/manifest.json: No such file or directory; replay again with --out",
        ),
        (
            lambda: check_configurations(load_machine("cab64"), CONFIGURED),
            "10001 applications have configurations: give at most 10000",
        ),
    ],
)
@pytest.mark.usefixtures("there")
def test_a_file_that_cannot_be_used_is_refused_in_one_line(read: Callable[[], object], sentence: str) -> None:
    with pytest.raises(ClusterError) as error:
        read()
    assert sentence in str(error.value) and "\n" not in str(error.value)
