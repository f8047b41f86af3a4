"""``clusterctl replay`` and its kin with a policy of a site's own file."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from cluster_agent.cli import main
from tests.fabric.cluster import ROOT

LOG = "; MaxProcs: 10\n" + "".join(
    f"{n} {n} -1 100 {width} -1 -1 {width} 100 -1 1 3 -1 -1 -1 -1 -1 -1\n" for n, width in enumerate((9, 8, 1, 4, 2), 1)
)
MINE = """
import msgspec
import numpy as np
from cluster_agent.scheduler.policies.api import Policy
from cluster_agent.scheduler.policy_phases import Composition

class Params(msgspec.Struct, frozen=True):
    sign: int = 1
    def __post_init__(self):
        if self.sign not in (1, -1):
            raise ValueError("sign has to be 1 or -1")

def compose(params):
    def order(queue, now_s):
        return np.argsort(params.sign * queue.width, kind="stable")
    return Composition(order=order, backfill="none")

POLICY = Policy("narrow", "a policy", "ours", Params, compose)
"""


def write(folder: Path, text: str = MINE) -> Path:
    path = folder / "mine.py"
    path.write_text(text)
    path.chmod(0o644)
    return path


def instead(old: str, new: str) -> str:
    assert MINE.count(old) == 1
    return MINE.replace(old, new)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "small.swf"
    path.write_text(LOG)
    return path


def starts(folder: Path) -> list[str]:
    header, *rows = (folder / "jobs.csv").read_text().splitlines()
    at = header.split(",").index("starting_time")
    return [row.split(",")[at] for row in rows]


@pytest.mark.parametrize(
    ("text", "choice", "status", "said"),
    [
        (None, "", 2, "mine.py: cannot read it: No such file or directory"),
        ("def f(:\n", "", 2, "mine.py:1: invalid syntax"),
        (MINE, ":POLIC", 2, "mine.py: defines no POLIC (nearest: POLICY)"),
        (MINE, ":compose", 2, "mine.py:13: compose is no cluster_agent.scheduler.policies.api.Policy"),
        (instead('"narrow"', '"easy"'), "", 2, "mine.py:18: POLICY is called 'easy', which ships with nodectl"),
        (instead("def compose(params)", "def compose()"), "", 2, "mine.py:18: POLICY: compose: cannot be called with"),
        (MINE, ":sgn=1", 2, "narrow has no parameter 'sgn' (nearest: sign)"),
        (MINE, ":POLICY:sign=0", 2, "mine.py:POLICY:sign=0: sign has to be 1 or -1"),
        (instead('raise ValueError("sign has to be 1 or -1")', "{}[0]"), ":sign=0", 2, "mine.py:11: KeyError: 0"),
        (instead("return Composition(", "return dict("), "", 1, "mine.py:13: compose did not return a Composition"),
        (instead("queue.width", "queue.prices"), "", 1,
         "mine.py:15: AttributeError: 'Queue' object has no attribute 'prices'"),
        (instead("order(queue, now_s)", "order(queue)"), "", 1, "mine.py:14: TypeError: "),
    ],
)  # fmt: skip
def test_a_wrong_file_is_one_line_and_leaves_nothing_behind(
    log: Path, capsys: pytest.CaptureFixture[str], text: str | None, choice: str, status: int, said: str
) -> None:
    path = log.with_name("mine.py") if text is None else write(log.parent, text)
    out = log.with_name("out")
    assert main(["replay", str(log), "--policy", f"{path}{choice}", "--out", str(out)]) == status
    shown = capsys.readouterr()
    assert said in shown.err
    assert shown.err.count("\n") == 1 and shown.out == ""
    assert not out.exists()


def test_a_replay_with_a_file_is_recorded_checked_and_compared_with_another_version(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = log.parent
    path, events = write(folder), folder / "events.log"
    for name, sign in (("up", 1), ("down", -1)):
        chosen = f"{path}:sign={sign}"
        arguments = ["--policy", chosen, "--out", str(folder / "out" / name), "--log", str(events)]
        assert main(["replay", str(log), *arguments]) == 0
    assert starts(folder / "out" / "up") == ["1", "201", "3", "101", "101"]
    assert starts(folder / "out" / "down") == ["1", "101", "201", "201", "201"]

    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    made_from = json.loads((folder / "out" / "down" / "manifest.json").read_text())
    assert made_from["policy"] == {
        "name": "narrow", "parameters": {"sign": -1}, "origin": {"file": str(path), "sha256": sha256},
    }  # fmt: skip
    header = json.loads(events.read_text().splitlines()[0])
    assert header["origin"] == {"file": str(path), "sha256": sha256}

    capsys.readouterr()
    assert main(["report", str(folder / "out")]) == 0
    shown = capsys.readouterr().out
    assert f"narrow@{sha256[:8]}:sign=-1" in shown and f"narrow@{sha256[:8]}:sign=1" in shown

    assert main(["check-log", str(events)]) == 2
    assert capsys.readouterr().err.endswith(f"which a log does not start by itself: --policy {path}\n")
    assert main(["check-log", str(events), "--policy", str(path)]) == 0
    assert capsys.readouterr().err == ""
    (folder / "new").mkdir()
    other = write(folder / "new", instead("params.sign * queue", "queue"))
    assert main(["check-log", str(events), "--policy", str(other)]) == 1
    made_with, differs = capsys.readouterr().err.splitlines()
    assert "made with other code" in made_with and str(path) in made_with and str(other) in made_with
    assert "this scheduler" in differs


def test_a_replay_with_a_policy_that_ships_records_no_file(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = log.parent
    assert main(["replay", str(log), "--out", str(folder / "out"), "--log", str(folder / "events.log")]) == 0
    assert json.loads((folder / "out" / "manifest.json").read_text())["policy"].keys() == {"name", "parameters"}
    header = json.loads((folder / "events.log").read_text().splitlines()[0])
    assert list(header) == ["event_log", "setting", "sha256"]
    capsys.readouterr()
    assert main(["check-log", str(folder / "events.log"), "--policy", str(write(folder))]) == 2
    assert "the log was made with easy, which is no file; leave it out" in capsys.readouterr().err


def test_a_campaign_takes_a_file_next_to_it_and_replays_again_when_that_changes(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = log.parent
    path = write(folder)
    campaign = folder / "campaign.toml"
    campaign.write_text("policies = ['mine.py:sign=-1', 'easy']\ntraces = ['small.swf']\n")
    arguments = ["campaign", str(campaign), "--out", str(folder / "out")]
    for done_before in (0, 2):
        assert main(arguments) == 0
        assert f"2 replays, {done_before} done before" in capsys.readouterr().err
    assert (folder / "out" / "small__mine.py-sign=-1" / "jobs.csv").exists()
    path.write_text(MINE + "# another version\n")
    assert main(arguments) == 0
    assert "2 replays, 1 done before" in capsys.readouterr().err


def test_the_power_aware_policy_of_the_page_works_as_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its file, its test by hand, and its command, with a cap below what idle nodes draw."""
    page = (ROOT / "docs" / "policies.md").read_text().partition("## How to add a power-aware policy")[2]
    file, test, *_ = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    path = tmp_path / "newest_first.py"
    path.write_text(file)
    path.chmod(0o644)
    monkeypatch.chdir(tmp_path)
    known: dict[str, Any] = {}
    exec(test, known)  # the page's own, as it stands there
    known["test_the_newest_job_is_killed_when_a_cap_begins"]()

    [command] = re.findall(r"clusterctl (replay LOG .*newest_first.*)", page)
    samples = ROOT / "cluster_agent" / "samples"
    command = command.replace("LOG", str(samples / "generated-500.swf"))
    assert main([*command.replace("CAPS.csv", str(samples / "falling-cap.csv")).split(), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["over_cap_ws"] == 0 < found["kills"]
    assert main(command.replace("CAPS.csv", "800").split()) == 1
    said = capsys.readouterr().err
    assert "the lowest cap is 800 W, and the idle machine draws 800 W: it cannot be kept with all nodes on" in said


BY_WATTS = """
import msgspec
from cluster_agent.scheduler.policies.api import Policy
from cluster_agent.scheduler.policy_phases import WATTS, Composition

class Params(msgspec.Struct, frozen=True):
    pass

def by_watts(queue, now_s):
    return queue.watts

POLICY = Policy(
    "frugal",
    "Fewest watts first; EASY behind the head.",
    "ours",
    Params,
    lambda params: Composition(order=by_watts, needs=(WATTS,), backfill="easy"),
)
"""


def test_an_order_by_watts_is_one_file_and_runs_on_processors_and_on_nodes(
    tmp_path: Path, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy, watts = write(tmp_path, BY_WATTS), tmp_path / "watts.csv"
    watts.write_text("job,watts\n1,500\n2,400\n3,30\n4,90\n5,80\n")
    options = ["--machine", "generic:nodes=10,cores=1", "--job-watts", str(watts), "--out", str(tmp_path / "out")]
    assert main(["replay", str(log), "--policy", str(policy), *options]) == 0, capsys.readouterr().err
    # job 1 has all but one processor until 101 s, and 3 fits at once; then 5 draws least, and 4 less than 2
    assert starts(tmp_path / "out") == ["1", "201", "3", "101", "101"]
    assert main(["replay", str(log), "--policy", str(policy)]) == 2
    refused = "an order by a rule needs watts, and a number of processors has none: give a machine such as curie"
    assert refused in capsys.readouterr().err
    group = "[[nodes]]\nname = '{}'\ncount = 2\ncores = 16\n{} = 2\nmemory_gb = 32\nidle_w = 40\n"
    machine = tmp_path / "four.toml"
    machine.write_text("name = 'four'\nsummary = ''\n" + group.format("a", "mics") + group.format("b", "gpus"))
    trace, found = str(ROOT / "cluster_agent" / "samples" / "eurora-100.csv"), {}
    for name, chosen in (("frugal", str(policy)), ("easy", "easy"), ("est", "easy-capped:rule=est,placing=first")):
        on_four = ["--machine", str(machine), "--out", str(tmp_path / name)]
        assert main(["replay", trace, "--policy", chosen, *on_four]) == 0, capsys.readouterr().err
        found[name] = starts(tmp_path / name)
    assert found["frugal"] != found["easy"] == found["est"]
