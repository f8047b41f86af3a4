"""`clusterctl demo`: a partition of emulated nodes from nothing, what it counts, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest

from cluster_agent.cli import main
from cluster_agent.errors import ClusterError
from cluster_agent.jobs.owned_watts.live_owner import Owner
from cluster_agent.serve.config import read_settings
from lab.cluster_demo.account import NodeTrace, Over, Steps, over_budget, over_limits, read_trace, work_of
from lab.cluster_demo.course import Scene
from lab.cluster_demo.emulated_partition import EmulatedPartition
from lab.cluster_demo.folder import LOCK, PREFIX, PROCESSES, clear_dead, note_process
from lab.commands.cluster_demo import POLICIES
from lab.emulated.emulated_node import Truth
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]


def trace(name: str, watts: list[float], limit_w: float, tag: str = "memory", speed: float = 1.0) -> NodeTrace:
    """A node that draws these watts, each for a second, and works at this speed."""
    at_s = np.arange(len(watts) + 1.0)
    joules = np.concatenate([[0.0], np.cumsum(watts)])
    limit = np.full(len(at_s), limit_w)
    return NodeTrace(name, at_s, joules, limit, limit, {tag: (at_s, at_s * speed)})


def test_watts_above_the_budget_are_counted_when_their_mean_over_the_window_is_above_its_mean() -> None:
    budget = Steps(np.array([-100.0, 10.0]), np.array([500.0, 300.0]))
    nodes = [trace("a", [250.0] * 10 + [150.0] * 10, 250.0), trace("b", [250.0] * 10 + [150.0] * 10, 250.0)]
    assert over_budget(nodes, budget, 0.0, 20.0, window_s=5.0) == Over(0.0, 0.0)
    late = [nodes[0], trace("b", [250.0] * 11 + [150.0] * 9, 250.0)]  # one second too late: 100 W too much
    over = over_budget(late, budget, 0.0, 20.0, window_s=5.0)
    assert over.most_w == pytest.approx(20.0)  # of its five seconds one
    assert over.ws == pytest.approx(100.0, rel=0.02)  # each moment is in five seconds' worth of windows
    assert over_budget(late, budget, 0.0, 10.0, window_s=5.0).ws == 0.0


def test_a_node_is_compared_with_the_highest_cap_that_may_be_in_force_on_it() -> None:
    good, bad = trace("a", [200.0] * 20, 200.0), trace("b", [201.0] * 20, 200.0)
    assert over_limits([good], 0.0, 20.0, 5.0).ws == 0.0
    assert over_limits([good, bad], 0.0, 20.0, 5.0).most_w == pytest.approx(1.0)


def test_slowdown_is_of_the_work_between_two_times_whatever_ends_in_between() -> None:
    nodes = [trace("a", [1.0] * 20, 1.0, speed=0.8), trace("b", [1.0] * 20, 1.0, tag="compute")]
    work = work_of(nodes, 5.0, 15.0)
    assert work["memory"].slowdown == pytest.approx(0.25)
    assert work["compute"].slowdown == pytest.approx(0.0)


def test_a_trace_whose_last_line_was_cut_off_is_read_and_an_empty_one_is_refused(tmp_path: Path) -> None:
    line = msgspec.json.encode(Truth(1.0, 100.0, None, None, {}))
    (tmp_path / "n1.jsonl").write_bytes(line + b"\n" + line[:9])
    assert read_trace(tmp_path / "n1.jsonl").node_j.tolist() == [100.0]
    (tmp_path / "n2.jsonl").write_bytes(line[:9])
    with pytest.raises(ClusterError, match="wrote no trace"):
        read_trace(tmp_path / "n2.jsonl")


def test_every_sharer_gets_the_same_backlog_and_it_outlasts_the_run() -> None:
    scene = Scene("curie", 16, 110.0, 378.0, 223.0, 10.0)
    jobs = scene.backlog()
    assert jobs == scene.backlog()
    work_s = sum(job.nodes * float(job.command[2].rstrip("s")) for job in jobs)
    assert work_s > 1.4 * 16 * 110
    tags = [job.tag for job in jobs]
    assert tags.count("memory") == tags.count("mixed") == tags.count("compute")


@pytest.mark.parametrize("policy", POLICIES)
def test_the_second_act_has_settings_for_policies_that_own_the_watts(tmp_path: Path, policy: str) -> None:
    scene = Scene("curie", 4, 20.0, 378.0, 223.0, 10.0)
    made = EmulatedPartition(tmp_path, scene.names, scene.machine, 378.0, 900.0, "none", policy, scene.levels_w)
    (tmp_path / "site.toml").write_text(made._machine_file())
    (tmp_path / "cluster.toml").write_text(made._settings())
    jobs = read_settings(tmp_path / "cluster.toml").jobs
    assert jobs is not None and jobs.live_machine is not None
    watts = Owner(jobs.composition, jobs.live_machine)
    assert watts.idle_mw == 223_000, "a job at the lowest level costs no more than an idle node"


def test_a_quick_demo_keeps_its_budget_and_leaves_plot_and_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(["demo", "--quick", "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    assert "EMULATED" in printed and "clusterctl why n01" in printed
    assert (tmp_path / "demo-cluster.png").read_bytes().startswith(b"\x89PNG")
    content = json.loads((tmp_path / "demo-cluster.json").read_text())
    assert content["emulated"] is True
    (course,) = content["courses"]
    assert status == 0 or course["timing"]["missed"] > 0.05, printed
    assert course["over"] == {"ws": 0.0, "most_w": 0.0}
    assert course["failed"] == 0 and course["ended"] > 0
    assert course["throughput"] > 0.5
    # caps go below what the budget will be before it is
    dropped = [line for line in course["lines"] if line["budget_w"] < content["budget_w"] - 1]
    # the last line's second ends in the instant in which the budget and the caps rise again
    assert len(dropped) > 3 and all(sum(line["caps_w"]) <= line["budget_w"] + 0.01 for line in dropped[:-1])
    assert min(line["power_w"] for line in dropped) > 0.5 * content["budget_w"]


def test_a_quick_demo_of_dispatch_loses_no_job_while_its_head_is_gone_and_counts_them_when_it_is_back(
    tmp_path: Path,
) -> None:
    """It takes over ten seconds, since leases must lapse while jobs are dispatched; 12 s of processor time."""
    assert main(["demo", "--dardis", "--quick", "--out", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "demo-dardis.json").read_text())
    assert [(one["name"], one["dispatched"], one["ran"]) for one in found["phases"]] == [
        ("with the head", 2, 2), ("head gone", 2, 2), ("head back", 1, 1)
    ]  # fmt: skip
    assert found["counted"] == found["running"] > 0 and found["hungry_s"] > 0
    assert (found["twice"], found["over_ws"]) == (0, 0.0)


def started(tmp_path: Path) -> tuple[subprocess.Popen[bytes], list[psutil.Process]]:
    """A demo whose nodes are there, and all its processes."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    demo = subprocess.Popen(
        [sys.executable, "-m", "cluster_agent.cli", "demo", "--quick", "--out", str(tmp_path / "out")],
        env=environment, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    ours = psutil.Process(demo.pid)
    deadline_s = time.monotonic() + PATIENCE_S
    while len(children := ours.children(recursive=True)) < 6:  # serve, the parent of the nodes, four nodes
        assert demo.poll() is None and time.monotonic() < deadline_s
        time.sleep(0.05)
    return demo, children


def test_a_demo_that_gets_sigterm_leaves_no_process_and_no_file(tmp_path: Path) -> None:
    demo, children = started(tmp_path)
    demo.send_signal(signal.SIGINT)
    assert demo.wait(PATIENCE_S) == 130
    _, alive = psutil.wait_procs(children, timeout=PATIENCE_S)
    assert alive == []
    assert list(tmp_path.glob("nodectl-*")) == []


def test_a_demo_that_is_killed_takes_its_nodes_along_and_the_next_one_removes_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    demo, children = started(tmp_path)
    (folder,) = tmp_path.glob(f"{PREFIX}*")
    clear_dead()
    assert demo.poll() is None and folder.exists(), "one that lives is left alone"
    demo.kill()
    demo.wait()
    _, alive = psutil.wait_procs(children, timeout=PATIENCE_S)
    assert alive == []
    clear_dead()
    assert not folder.exists()


def test_what_the_end_of_a_demo_did_not_reach_is_ended_with_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    course = tmp_path / f"{PREFIX}x" / "0"
    course.mkdir(parents=True)
    (course.parent / LOCK).touch()
    with subprocess.Popen(["sleep", "60"]) as left, subprocess.Popen(["sleep", "60"]) as another:
        note_process(course, left.pid)
        (course / PROCESSES).open("a").write(f"{another.pid} 1\n")  # a number that was given again since
        clear_dead()
        assert left.wait(PATIENCE_S) == -signal.SIGKILL and another.poll() is None
        another.kill()
    assert not course.parent.exists()


@pytest.mark.parametrize(
    ("arguments", "status", "why"),
    [
        (("--machine", "curry", "n1"), 2, 'unknown machine "curry" (nearest: curie)'),
        (("--keys", "{tmp}", "n1"), 1, "cannot read the key"),
        (("--config", "{tmp}/none.toml", "n1"), 2, "cannot read the settings"),
    ],
)
def test_a_node_that_cannot_be_emulated_is_one_line(
    tmp_path: Path, arguments: tuple[str, ...], status: int, why: str
) -> None:
    given = [argument.replace("{tmp}", str(tmp_path)) for argument in arguments]
    done: Any = subprocess.run(
        [sys.executable, "-m", "nodectl.cli", "twin", "node", *given], capture_output=True, text=True,
        timeout=PATIENCE_S, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip
    lines = [line for line in done.stderr.splitlines() if "EMULATED" not in line]
    assert done.returncode == status
    assert why in lines[0] and "Traceback" not in done.stderr


def test_a_policy_that_leaves_the_watts_to_nobody_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--policy", "easy", "--quick"]) == 2
    assert "to nobody: choose a sharer" in capsys.readouterr().err


@pytest.mark.parametrize("policy", ["moldable", "powercap:mode=shut"])
def test_a_policy_that_cannot_start_here_is_one_line_and_nothing_is_started(
    policy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--sharer", "fspc", "--policy", policy, "--out", str(tmp_path / "out")]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert err.startswith(f"clusterctl demo: {policy} cannot run here: jobs.policy: ")
    assert not (tmp_path / "out").exists()


def test_a_sharer_that_there_is_not_is_one_line_and_nothing_is_started(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--sharer", "aapcc", "--quick"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
