"""``clusterctl campaign`` and ``clusterctl report`` as a user runs them."""

from __future__ import annotations

import csv
import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cluster_agent.campaigns.campaign_folder import STATE
from cluster_agent.campaigns.campaign_grid import SHIPPED, Campaign, grid, read_campaign
from cluster_agent.cli import main
from cluster_agent.replay.compare import find
from cluster_agent.reports.conditions import published_figures
from cluster_agent.scheduler.policies import fcfs, registry

SAMPLE = Path(__file__).parents[2] / "cluster_agent" / "samples" / "generated-500.swf"

SJBF = "easy-sjbf:estimate=mean2,correct=incremental"
TOML = """\
policies = ["easy", "easy-sjbf:estimate=mean2,correct=incremental"]
traces = ["log.swf"]
[[published]]
trace = "log"
policy = "easy:estimate=requested"
AVEbsld = 12.5
"""


@pytest.fixture
def campaign(tmp_path: Path) -> Path:
    (tmp_path / "log.swf").write_bytes(SAMPLE.read_bytes())
    (tmp_path / "c.toml").write_text(TOML)
    return tmp_path / "c.toml"


def test_a_campaign_resumes_and_its_report_compares(campaign: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, page = campaign.parent / "out", campaign.parent / "page.html"
    command = ["campaign", str(campaign), "--out", str(out)]
    assert main(command) == 0
    assert capsys.readouterr().err.startswith("2 replays, 0 done before")
    kept = (out / "log__easy" / "jobs.csv").stat().st_mtime_ns
    (out / "log__easy-sjbf-estimate=mean2,correct=incremental" / "campaign.json").unlink()
    assert main(command) == 0
    assert capsys.readouterr().err.startswith("2 replays, 1 done before")
    assert (out / "log__easy" / "jobs.csv").stat().st_mtime_ns == kept
    assert len((out / "campaign.csv").read_text().splitlines()) == 3

    assert main(["report", str(out), "--baseline", "easy"]) == 0
    text = capsys.readouterr().out
    assert "Simulated" in text
    assert re.search(r"\| easy \| [\d.,]+ \| 12\.5 \|", text)
    assert re.search(r"\| easy-sjbf:\S+ \| [+-][\d.]+ \|  \| [+-][\d.,]+ \|  \| 500 \|", text)
    assert "Intervals: none, from 1 log, 1 week, 1 seed: it takes 5 logs, 24 weeks of each log or 5 seeds" in text

    assert main(["report", str(out), "--html", str(page)]) == 0
    assert "<figure id=effect>" in page.read_text() and "class=published" not in page.read_text(), "easy's alone"
    (campaign.parent / "both.toml").write_text(TOML + TOML[TOML.index("[[") :].replace("easy:estimate=requested", SJBF))
    assert main(["campaign", str(campaign.parent / "both.toml"), "--out", str(out)]) == 0
    assert main(["report", str(out), "--html", str(page)]) == 0
    assert page.read_text().count("class=published") == 1
    assert "published +0.0" in page.read_text(), "12.5 for both"
    capsys.readouterr()
    assert main(["report", str(out), "--html", str(page)]) == 0
    assert capsys.readouterr().out == ""


def test_a_table_that_cannot_be_written_whole_leaves_the_one_before(
    campaign: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = campaign.parent / "out"
    command = ["campaign", str(campaign), "--out", str(out), "--policy"]
    assert main([*command, "fcfs"]) == 0
    before = (out / "campaign.csv").read_bytes()
    whole = Path.write_text

    def on_a_full_disk(path: Path, text: str) -> int:
        whole(path, text[: len(text) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", on_a_full_disk)
    capsys.readouterr()
    assert main([*command, "easy"]) == 1
    assert f"{out}: No space left on device; choose another --out" in capsys.readouterr().err
    assert (out / "campaign.csv").read_bytes() == before
    assert sorted(path.name for path in out.glob(".*")) == [STATE]


def test_a_changed_trace_is_replayed_again(campaign: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = read_campaign(campaign)
    before = grid(asked, campaign.parent, ())
    log = campaign.parent / "log.swf"
    log.write_text(log.read_text() + "; a remark\n")
    after = grid(asked, campaign.parent, ())
    assert list(before) == list(after)
    assert all(before[name] != after[name] for name in before)


@pytest.mark.parametrize(
    ("key", "given"),
    [
        ("machines", "site.toml"),
        ("caps", "given.csv"),
        ("caps", "rte:given.csv:begin=2010-11-01,least_w=1e3,most_w=2e3"),
        ("configurations", "given.csv:model=regression"),
        ("job_watts", "given.csv"),
        ("failures", "given.csv"),
        ("policies", "multifactor:users={folder}/given.csv"),
    ],
)
def test_whatever_file_a_replay_is_made_from_a_change_of_it_replays_it_again(
    campaign: Path, key: str, given: str
) -> None:
    """It is looked for next to the campaign; a policy's own is named as for the command."""
    folder = campaign.parent
    for name in ("site.toml", "given.csv"):
        (folder / name).write_text("user,share\n1,2\n")
    policies = "" if key == "policies" else 'policies = ["easy"]\n'
    campaign.write_text(f'{policies}traces = ["log.swf"]\n{key} = ["{given.format(folder=folder)}"]\n')
    asked = read_campaign(campaign)
    (before,) = grid(asked, folder, ()).values()
    assert (before,) == tuple(grid(asked, folder, ()).values())
    changed = folder / ("site.toml" if key == "machines" else "given.csv")
    changed.write_text("user,share\n1,3\n")
    (after,) = grid(asked, folder, ()).values()
    assert before.arguments == after.arguments and before.sha256 != after.sha256
    assert str(changed) in after.sha256 and str(changed) in " ".join(after.arguments)


def test_a_changed_table_of_the_logs_clusters_replays_it_again(campaign: Path) -> None:
    table = campaign.parent / "log.machines.tsv"
    asked = read_campaign(campaign)
    seen = []
    for nodes in ("4", "5"):
        table.write_text(f"cluster\tnodes\tcores_per_node\nbig\t{nodes}\t64\n")
        seen.append([cell.sha256[str(table)] for cell in grid(asked, campaign.parent, ()).values()])
    assert len(seen[0]) == 2 and not set(seen[0]) & set(seen[1])


def test_a_policy_whose_file_has_changed_is_replayed_again(campaign: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = campaign.parent / "mine_of_a_test.py"
    file.write_text(Path(fcfs.__file__).read_text())
    monkeypatch.syspath_prepend(campaign.parent)
    monkeypatch.setitem(registry._MODULES, "mine", "mine_of_a_test")
    asked = Campaign(policies=("mine", "easy"))
    log = [str(campaign.parent / "log.swf")]
    before = grid(asked, campaign.parent, log)
    file.write_text(file.read_text() + "# another rule\n")
    after = grid(asked, campaign.parent, log)
    assert [name for name in before if before[name] != after[name]] == ["log__mine"]


def test_a_part_of_a_campaign_can_be_run_with_a_policy_of_ones_own(
    campaign: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = campaign.parent / "out"
    command = ["campaign", str(campaign), "--out", str(out), "--policy", "easy", "--policy"]
    assert main([*command, "esy"]) == 2
    assert "no policy is called 'esy' (nearest: easy)" in capsys.readouterr().err
    assert main([*command, "fcfs"]) == 0
    assert {one.name for one in out.iterdir() if one.is_dir()} == {STATE, "log__easy", "log__fcfs"}
    assert main(["report", str(out)]) == 0
    assert re.search(r"\| easy \| [\d.,]+ \| 12\.5 \|", capsys.readouterr().out), "published figures stay"


@pytest.mark.parametrize(
    ("listed", "is_shown"),
    [
        ("", True),
        ("jobs = 500\n", True),
        ("jobs = 501\n", False),
        ('machines = ["32"]\n', False),
        ('closed_loops = ["think=log"]\n', False),
    ],
)
def test_a_published_figure_stands_next_to_a_replay_of_that_log_as_it_is_alone(
    campaign: Path, capsys: pytest.CaptureFixture[str], listed: str, is_shown: bool
) -> None:
    text = TOML + listed if listed.startswith("jobs") else listed + TOML
    campaign.write_text(text)
    out = campaign.parent / "out"
    assert main(["campaign", str(campaign), "--out", str(out)]) == 0
    assert main(["report", str(out)]) == 0
    assert ("| 12.5 |" in capsys.readouterr().out) == is_shown


def test_a_policy_of_a_file_is_the_baseline_by_its_printed_name(
    campaign: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = campaign.parent / "mine.py"
    file.write_text(Path(fcfs.__file__).read_text().replace('name="fcfs"', 'name="mine"'))
    for policy in (str(file), "easy"):
        assert (
            main(["replay", str(SAMPLE), "--policy", policy, "--out", str(campaign.parent / f"out/{policy[-4:]}")]) == 0
        )
    (printed,) = {run.policy for run in find([str(campaign.parent / "out")])} - {"easy"}
    assert printed.startswith("mine@")
    capsys.readouterr()
    assert main(["report", str(campaign.parent / "out"), "--baseline", printed]) == 0
    assert re.search(r"\| easy \| [+-][\d.]+ \|", capsys.readouterr().out)


def test_a_campaign_or_trace_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["campaign", "sc16", "--out", str(tmp_path)]) == 2
    assert "sc16: cannot read the campaign" in (complaint := capsys.readouterr().err)
    assert "or one that ships (nearest: sc15)" in complaint
    assert main(["campaign", "sc15", "--trace", "none.swf", "--out", str(tmp_path)]) == 2
    assert "--trace none.swf: there is no such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("policies = [", "c.toml:"),
        ("policy = []", "Unknown key `policy`"),
        ('policies = ["easi"]', "policies: no policy is called 'easi' (nearest: easy)"),
        ("policies = []", "policies: the list is empty"),
        ('policies = ["easy"]', "traces: none are listed"),
        ('policies = ["easy"]\ntraces = ["none.swf"]', "none.swf: traces: there is no such file"),
        (TOML.replace("12.5", "nan"), "published: AVEbsld nan: a mean bounded slowdown is 1 or more"),
        (TOML.replace("12.5", "1e400"), "published: AVEbsld inf: a mean bounded slowdown is 1 or more"),
        (TOML.replace("12.5", "0.5"), "published: AVEbsld 0.5: a mean bounded slowdown is 1 or more"),
    ],
)
def test_what_is_wrong_with_a_campaign_is_one_line_with_file_and_key(
    campaign: Path, capsys: pytest.CaptureFixture[str], text: str, what: str
) -> None:
    campaign.write_text(text)
    assert main(["campaign", str(campaign), "--out", str(campaign.parent / "out")]) == 2
    complaint = capsys.readouterr().err
    assert complaint.count("\n") == 1
    assert what in complaint


def test_a_replay_that_fails_is_named_and_the_others_go_on(campaign: Path, capsys: pytest.CaptureFixture[str]) -> None:
    campaign.write_text('policies = ["fcfs", "powercap"]\ntraces = ["log.swf"]')
    assert main(["campaign", str(campaign), "--out", str(campaign.parent / "out")]) == 1
    printed = capsys.readouterr()
    assert "campaign.csv: 1 replays" in printed.out
    assert "log__powercap: clusterctl replay: --policy powercap: a policy that knows watts needs watts" in printed.err
    sizes = [str(size) for size in range(32, 39)]
    campaign.write_text(f'policies = ["powercap"]\ntraces = ["log.swf"]\nmachines = {sizes}')
    assert main(["campaign", str(campaign), "--out", str(campaign.parent / "alike")]) == 1
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0].rpartition("/")[2] for line in said[1:]] == [
        *(f"log__powercap__{size}" for size in sizes[:5]),
        "and 2 more replays, for the same reason",
    ]


ENDS = """\
import os, traceback
import msgspec
from cluster_agent.scheduler.policies.api import Policy
from cluster_agent.scheduler.policy_phases import Composition

class Params(msgspec.Struct, frozen=True): ...

def compose(params):
    if any(one.name == "replayed" for one in traceback.extract_stack()):
        os._exit(0)
    return Composition()

POLICY = Policy(name="ends", summary="Ends its process.", source="", params=Params, compose=compose)
"""


def test_a_policy_that_ends_its_worker_without_an_error_is_left_out_and_named(
    campaign: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (campaign.parent / "ends.py").write_text(ENDS)
    campaign.write_text('policies = ["ends.py:POLICY", "fcfs"]\ntraces = ["log.swf"]')
    assert main(["campaign", str(campaign), "--out", str(campaign.parent / "out"), "-j", "2"]) == 1
    printed = capsys.readouterr()
    assert "campaign.csv: 1 replays" in printed.out
    assert "log__ends.py-POLICY: its worker has ended 5 times; it is left out" in printed.err


@pytest.mark.parametrize("lease", ["nan", "inf", "1e308", "0"])
def test_a_lease_that_cannot_be_waited_for_is_refused(
    campaign: Path, capsys: pytest.CaptureFixture[str], lease: str
) -> None:
    out = campaign.parent / "out"
    assert main(["campaign", str(campaign), "--out", str(out), "--lease", lease]) == 2
    assert "--lease" in capsys.readouterr().err and not out.exists()


def test_campaigns_that_ship_can_be_read() -> None:
    for path in SHIPPED.glob("*.toml"):
        asked = read_campaign(path)
        assert {one.policy for one in asked.published} <= set(asked.policies)
        assert grid(asked, path.parent, ())


def test_a_report_of_nothing_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 2
    assert "no replay in it" in capsys.readouterr().err


def test_a_damaged_folder_is_named(campaign: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = campaign.parent / "run"
    assert main(["replay", str(campaign.parent / "log.swf"), "--out", str(out)]) == 0
    assert find([str(out)])[0].policy == "easy"
    (out / "manifest.json").write_text("{}")
    capsys.readouterr()
    assert main(["report", str(out)]) == 1
    assert "manifest.json: not as a replay writes it" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", [{"bsld_tau_s": None}, {"energy_j": "many"}])
def test_numbers_that_are_none_are_said_in_one_line(
    campaign: Path, capsys: pytest.CaptureFixture[str], wrong: dict[str, object]
) -> None:
    out = campaign.parent / "run"
    assert main(["replay", str(campaign.parent / "log.swf"), "--out", str(out)]) == 0
    (out / "metrics.json").write_text(json.dumps(json.loads((out / "metrics.json").read_text()) | wrong))
    capsys.readouterr()
    assert main(["report", str(out)]) == 1
    error = capsys.readouterr().err
    assert "metrics.json: not as a replay writes it" in error and error.count("\n") == 1


@pytest.mark.parametrize("content", ["nonsense", "[{}]", '[{"trace":"log","policy":"esy","AVEbsld":1}]', "\xff"])
def test_damaged_published_figures_are_said_in_one_line(
    campaign: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    out = campaign.parent / "out"
    assert main(["campaign", str(campaign), "--out", str(out)]) == 0
    (out / "published.json").write_bytes(content.encode("latin-1"))
    capsys.readouterr()
    assert main(["report", str(out)]) == 1
    error = capsys.readouterr().err
    assert "published.json: not as a campaign writes it" in error and error.count("\n") == 1


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_stopped_campaign_starts_nothing_more_and_goes_on_when_it_is_called_again(
    campaign: Path, capsys: pytest.CaptureFixture[str], workers: str
) -> None:
    """Ctrl-C as a terminal sends it: to the command and to the replay that runs."""
    sizes = [str(size) for size in range(32, 132)]
    campaign.write_text(f'policies = ["easy", "fcfs"]\ntraces = ["log.swf"]\nmachines = {sizes}')
    out = campaign.parent / "out"
    command = [sys.executable, "-m", "cluster_agent.cli", "campaign", str(campaign), "--out", str(out), "-j", workers]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as running:
        while running.poll() is None and not list(out.glob("*/campaign.json")):
            time.sleep(0.01)
        os.killpg(running.pid, signal.SIGINT)
        assert running.stderr is not None
        said = running.stderr.read()
        assert running.wait() == 130
    assert "stopped with" in said.splitlines()[-1] and "Traceback" not in said
    done = len(list(out.glob("*/campaign.json")))
    assert 1 <= done < 200 and f"stopped with {200 - done} replays to do" in said
    assert len((out / "campaign.csv").read_text().splitlines()) == done + 1
    assert main(["campaign", str(campaign), "--out", str(out)]) == 0
    assert f"{done} done before" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"x,y\n1,2\n", b"folder\n\xff\x00\n", b"\x81"])
def test_a_damaged_table_of_a_campaign_is_said_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    (tmp_path / "campaign.csv").write_bytes(content)
    assert main(["report", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert "campaign.csv: not as a campaign writes it" in error and error.count("\n") == 1


@pytest.mark.parametrize("bytes_left", [0, 1, 400])
def test_a_table_of_jobs_that_lacks_its_end_is_said_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], bytes_left: int
) -> None:
    log = Path(__file__).parents[2] / "cluster_agent" / "samples" / "generated-500.swf"
    assert main(["replay", str(log), "--out", str(tmp_path)]) == 0
    jobs = tmp_path / "jobs.csv"
    jobs.write_bytes(jobs.read_bytes()[:bytes_left])
    capsys.readouterr()
    assert main(["report", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert "jobs.csv: not as a replay writes it" in error and error.count("\n") == 1


def test_a_report_starts_no_file_that_a_record_of_published_figures_names(tmp_path: Path) -> None:
    mine, mark = tmp_path / "mine.py", tmp_path / "has-run"
    mine.write_text(f"open({str(mark)!r}, 'w')\n")
    figures = [{"trace": "a", "policy": one, "AVEbsld": 1.0} for one in (str(mine), "easy")]
    (tmp_path / "published.json").write_text(json.dumps(figures))
    assert list(published_figures([str(tmp_path)])) == [("a", "easy")] and not mark.exists()


def test_a_folder_spelled_in_two_ways_counts_once_and_one_without_replays_is_named(
    campaign: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(campaign.parent)
    assert main(["campaign", "c.toml", "--out", "out"]) == 0
    (campaign.parent / "link").symlink_to("out")
    (campaign.parent / "empty").mkdir()
    capsys.readouterr()
    assert main(["report", "out"]) == 0
    once = capsys.readouterr().out
    assert main(["report", "out", "./out/../out", "link", str(campaign.parent / "out" / "log__easy")]) == 0
    assert capsys.readouterr().out == once
    for absent, why in (("absent", "there is no such folder"), ("empty", "no replay in it (metrics.json)")):
        assert main(["report", "out", absent]) == 2
        assert capsys.readouterr().err.startswith(f"clusterctl report: {absent}: {why}")
    assert main(["report", "out", "--baseline", "nonsense"]) == 2
    assert f"--baseline nonsense: no replay of it here; there are easy, {SJBF}" in capsys.readouterr().err


def test_a_report_of_two_campaigns_keeps_them_apart_by_their_folders(
    campaign: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All seeds of a campaign are one policy, though each of them has a folder."""
    loop = 'traces = ["log.swf"]\nmachines = ["32"]\nclosed_loops = ["think=600"]\n'
    for name, rest in (
        ("a", 'policies = ["easy", "fcfs"]\nseeds = [1, 2]'),
        ("b", 'policies = ["fcfs"]\nseeds = [1, 2]'),
    ):
        campaign.write_text(loop + rest)
        assert main(["campaign", str(campaign), "--out", str(campaign.parent / name)]) == 0
    both = [str(campaign.parent / name) for name in "ab"]
    capsys.readouterr()
    assert main(["report", *both]) == 0
    rows = re.findall(r"^\| (\S.*?) \| (\d) \|", capsys.readouterr().out, re.MULTILINE)
    assert rows == [("easy", "2"), ("fcfs", "2"), (f"fcfs ({both[1]})", "2")]
    assert main(["report", f"{both[0]}/log__easy__32__think=600__seed=1", both[1]]) == 0
    assert re.search(r"^\| fcfs \| \+.* \| 500 \|$", capsys.readouterr().out, re.MULTILINE), "jobs of one seed"


def test_a_device_or_a_link_that_gets_a_report_stays_what_it_is(
    campaign: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = campaign.parent
    assert main(["replay", str(here / "log.swf"), "--out", str(here / "run")]) == 0
    os.mkfifo(here / "pipe")
    (here / "link").symlink_to("linked.md")
    reader = os.open(here / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    assert main(["report", str(here / "run"), "--markdown", str(here / "pipe")]) == 0
    assert os.read(reader, 9) == b"# Replays"
    os.close(reader)
    assert (here / "pipe").is_fifo()
    assert main(["report", str(here / "run"), "--markdown", str(here / "link")]) == 0
    assert (here / "link").is_symlink() and (here / "linked.md").read_text().startswith("# Replays")
    capsys.readouterr()
    assert main(["report", str(here / "run"), "--markdown", str(here / "x"), "--html", f"{here}/./x"]) == 2
    assert "give each a file of its own" in capsys.readouterr().err and not (here / "x").exists()


def test_logs_of_one_name_and_machines_of_one_size_are_not_compared(
    campaign: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = campaign.parent
    (here / "other").mkdir()
    (here / "other" / "log.swf").write_text((here / "log.swf").read_text().replace("1 165 ", "1 166 ", 1))
    for at, (log, policy, machine) in enumerate(
        [
            ("log.swf", "easy", "generic:nodes=8,cores=16"),
            ("log.swf", "fcfs", "generic:nodes=8,cores=16"),
            ("log.swf", "wfp3", "curie:nodes=8,cores=16"),
            ("other/log.swf", "easy-sjbf", "generic:nodes=8,cores=16"),
        ]
    ):
        command = ["replay", str(here / log), "--policy", policy, "--machine", machine, "--cap", "2500"]
        assert main([*command, "--out", str(here / f"run{at}")]) == 0
    runs = [str(here / f"run{at}") for at in range(4)]
    capsys.readouterr()
    assert main(["report", *runs[:2]]) == 0
    assert "## log, machine 128, cap 2500\n" in capsys.readouterr().out
    assert main(["report", *runs]) == 0
    text = capsys.readouterr().out
    assert text.count("against easy | bounded slowdown") == 1 and "\n| fcfs | +" in text
    assert re.search(r"^## log [0-9a-f]{8}, machine 128, cap 2500, curie:nodes=8,cores=16$", text, re.MULTILINE)
    assert len(set(re.findall(r"^## log ([0-9a-f]{8}),", text, re.MULTILINE))) == 2
    assert main(["report", runs[0], runs[3]]) == 0
    assert "No other policy started jobs where easy did" in capsys.readouterr().out


def test_replays_that_differ_in_a_switch_are_not_compared(campaign: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here, log = campaign.parent, str(campaign.parent / "log.swf")
    failures = "mtbf=100,repair=4,processors=16"
    switches = {
        "plain": [],
        "limits": ["--limit", "user:jobs=1"],
        "partitions": ["--partitions", "queue:0=64,1=192"],
        "memory": ["--memory", "1.5"],
        "failures": ["--failures", failures],
    }
    for name, options in switches.items():
        assert main(["replay", log, *options, "--out", str(here / "out" / name)]) == 0
    assert main(["replay", log, "--limit", "user:jobs=1", "--policy", "fcfs", "--out", str(here / "out" / "fcfs")]) == 0
    capsys.readouterr()
    assert main(["report", str(here / "out")]) == 0
    text = capsys.readouterr().out
    assert set(re.findall("^## (log, .*)$", text, re.MULTILINE)) == {
        "log, machine 256",
        "log, machine 256, limits user:jobs=1",
        "log, machine 256, partitions queue:0=64,1=192",
        "log, machine 256, memory 1.5",
        f"log, machine 256, failures {failures}",
    }
    assert text.count("against easy | bounded slowdown") == 1 and str(here) not in text
    assert {run.folder.name for run in find([str(here / "out")]) if run.is_plain} == {"plain"}


def test_a_campaign_has_the_switches_of_a_site_and_draws_failures_from_its_seeds(
    campaign: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = campaign.parent / "out"
    campaign.write_text(
        'policies = ["easy", "fcfs"]\ntraces = ["log.swf"]\nlimits = ["", "user:jobs=3,processors=256"]\n'
        'partitions = ["", "queue:0=64,1=192"]\nmemory = ["", 1.5]\n'
    )
    assert main(["campaign", str(campaign), "--out", str(out)]) == 0
    campaign.write_text(
        'policies = ["easy", "fcfs"]\ntraces = ["log.swf"]\nfailures = ["mtbf=40,repair=4,processors=16"]\n'
        "seeds = [1, 2, 3, 4, 5]\n"
    )
    assert main(["campaign", str(campaign), "--out", str(out / "failures")]) == 0
    with (out / "campaign.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [len({row[name] for row in rows}) for name in ("folder", "limits", "partitions", "memory")] == [16, 2, 2, 2]
    assert all((row["switches_memory"] == "") == (row["memory"] == "") for row in rows)
    record = json.loads((out / rows[-1]["folder"] / "manifest.json").read_text())
    assert main([*record["command"][1:-1], str(out / "alone")]) == 0
    assert (out / "alone" / "jobs.csv").read_bytes() == (out / rows[-1]["folder"] / "jobs.csv").read_bytes()
    capsys.readouterr()
    assert main(["report", str(out / "failures")]) == 0
    text = capsys.readouterr().out
    assert re.findall("^## (log, .*)$", text, re.MULTILINE) == [
        "log, machine 256, failures mtbf=40,repair=4,processors=16"
    ]
    runs = find([str(out / "failures")])
    assert sorted(run.seed for run in runs if run.policy == "easy") == [1, 2, 3, 4, 5]
    assert len({run.metrics["kills"] for run in runs}) > 2, "seeds draw other failures"


def test_copies_of_a_log_are_one_draw(campaign: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Five names of one log gave an interval over five logs, of no width."""
    names = [f"copy{at}.swf" for at in range(5)]
    for name in names:
        (campaign.parent / name).write_bytes(SAMPLE.read_bytes())
    campaign.write_text(f'policies = ["easy", "fcfs"]\nmachines = ["32"]\ntraces = {names}')
    assert main(["campaign", str(campaign), "--out", str(campaign.parent / "out")]) == 0
    capsys.readouterr()
    assert main(["report", str(campaign.parent / "out")]) == 0
    text = capsys.readouterr().out
    assert "conditions: 5, logs: 1," in text and "Intervals: none, from 1 log," in text


def test_a_report_has_what_was_recorded_after_the_table_and_names_what_is_gone(
    campaign: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As after a campaign that was killed while it worked on a second part."""
    out = campaign.parent / "out"
    assert main(["campaign", str(campaign), "--out", str(out), "--policy", "easy"]) == 0
    kept = (out / "campaign.csv").read_bytes()
    assert main(["campaign", str(campaign), "--out", str(out)]) == 0
    (out / "campaign.csv").write_bytes(kept)
    capsys.readouterr()
    assert main(["report", str(out)]) == 0
    assert "Replays: 2, policies: 2," in capsys.readouterr().out
    (out / "log__easy").rename(out / STATE / "superseded" / "log__easy")
    assert main(["report", str(out)]) == 1
    error = capsys.readouterr().err
    assert "log__easy: campaign.csv lists it, but it is not there; run the campaign again" in error
