"""``clusterctl campaign`` and ``clusterctl report`` as a user runs them."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from cluster_agent.cli import main
from cluster_agent.commands.replays.campaign import SHIPPED, Campaign, grid, read_campaign
from cluster_agent.replay.compare import find, interval, paired
from cluster_agent.scheduler.policies import fcfs, registry

SAMPLE = Path(__file__).parents[2] / "cluster_agent" / "samples" / "generated-500.swf"

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
    assert re.search(r"\| easy-sjbf:\S+ \| [+-][\d.]+ \| [+-][\d.]+ to [+-][\d.]+ \|.*\| 500 \|", text)

    pytest.importorskip("matplotlib", reason="matplotlib is missing: install nodectl[plots]")
    assert main(["report", str(out), "--html", str(page)]) == 0
    html = page.read_text()
    assert html.count('src="data:image/png;base64,iVBOR') == 3
    assert "http" not in html.replace("data:", "")  # self-contained


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
    assert sorted(path.name for path in out.glob(".*")) == []


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
    assert {one.name for one in out.iterdir() if one.is_dir()} == {"log__easy", "log__fcfs"}
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


def test_campaigns_that_ship_can_be_read() -> None:
    for path in SHIPPED.glob("*.toml"):
        asked = read_campaign(path)
        assert {one.policy for one in asked.published} <= set(asked.policies)
        assert grid(asked, path.parent, ())


def test_paired_differences_are_over_the_jobs_of_both() -> None:
    found = paired(np.array([5.0, 1.0, 9.0]), ["a", "b", "x"], np.array([1.0, 2.0, 0.0]), ["b", "a", "y"])
    assert found is not None
    assert (found.mean, found.jobs) == (1.5, 2)


def test_the_interval_of_alike_stretches_is_narrow_and_of_one_odd_stretch_wide() -> None:
    alike = np.tile([0.0, 2.0], 500)
    assert interval(alike) == pytest.approx((1.0, 1.0))
    odd = alike.copy()
    odd[:20] += 100
    low, high = interval(odd)
    assert low < odd.mean() < high
    assert high - low > 5


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


def test_a_stopped_campaign_starts_nothing_more_and_goes_on_when_it_is_called_again(
    campaign: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C as a terminal sends it: to the command and to the replay that runs."""
    campaign.write_text('policies = ["easy", "fcfs", "easy-sjbf", "conservative"]\ntraces = ["log.swf"]')
    out = campaign.parent / "out"
    command = [sys.executable, "-m", "cluster_agent.cli", "campaign", str(campaign), "--out", str(out)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as running:
        while running.poll() is None and not list(out.glob("*/campaign.json")):
            time.sleep(0.01)
        os.killpg(running.pid, signal.SIGINT)
        assert running.stderr is not None
        said = running.stderr.read()
        assert running.wait() == 130
    assert "stopped with" in said.splitlines()[-1] and "Traceback" not in said
    done = len(list(out.glob("*/campaign.json")))
    assert done >= 1
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
