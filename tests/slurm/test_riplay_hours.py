"""The hours of a log that a real Slurm is to replay: what they begin with, the replay next to it, what is refused."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from cluster_agent.cap_steps import Cap
from cluster_agent.cli import main
from cluster_agent.errors import WrongUseError
from cluster_agent.library import World, replay
from cluster_agent.replay.measures import joules_between
from cluster_agent.scheduler.power_cap import PowerCap
from cluster_agent.scheduler.power_phases import Off
from lab.riplay.log_part import Delays, Hours, LogPart
from lab.riplay.ran_jobs import Ran
from lab.riplay.riplay_result import Metrics, check_other, delays_of

NODES, FROM_S, HOURS = 8, 3000, 1.0


def small_log(path: Path, jobs: int = 300, seed: int = 3, shorter: int = 1) -> str:
    """Busy from the start; the last job comes long after the others. ``shorter``: how many times all times are."""
    drawn, at_s, lines = random.Random(seed), 0, [f"; MaxProcs: {NODES}"]
    for number in range(1, jobs + 1):
        at_s += drawn.randint(1, 60 // shorter)
        run_s, width = drawn.choice([20, 60, 200, 400]) // shorter, drawn.choice([1, 1, 2, 2, 3, 4, 8])
        request_s = run_s + drawn.randint(0, 300 // shorter)
        lines.append(f"{number} {at_s} -1 {run_s} {width} -1 -1 {width} {request_s} -1 1 {1 + number % 3}" + 6 * " -1")
    lines.append(f"{jobs + 1} 1000000 -1 5 1 -1 -1 1 5 -1 1 1" + 6 * " -1")
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    yield small_log(tmp_path_factory.mktemp("log") / "small.swf")


def quiet(line: str) -> None:
    pass


@pytest.mark.parametrize("policy", ["easy", "conservative", "easy-sjbf", "powercap:mode=idle", "powercap:mode=dvfs"])
def test_the_replay_next_to_a_riplay_is_that_of_the_command(log: str, policy: str, tmp_path: Path) -> None:
    full_w = NODES * 358
    cap = PowerCap.of([Cap(FROM_S + 1200, FROM_S + 2400, 0.6 * full_w)]) if policy.startswith("powercap") else None
    hours, state = Hours(log, FROM_S, HOURS, NODES, policy, cap), str(tmp_path / "state.json")
    whole = LogPart(hours, quiet)
    replay(World(log, machine=NODES), "easy", say=quiet, at_s=[FROM_S]).write_state(state, FROM_S)
    given = World(log, machine=whole.machine, cap=cap, state=state)
    theirs, ours, compared = replay(given, policy, say=quiet), whole.replayed(), 0
    for number, start_s, end_s in zip(
        theirs.jobs.number.tolist(), theirs.start_s.tolist(), theirs.end_s.tolist(), strict=True
    ):
        if start_s < hours.to_s:
            one = ours[whole.world.jobs.number.tolist().index(number)]
            assert one.start_s == start_s and one.end_s in (end_s, None)
            compared += 1
    assert compared > 20
    energy_j = whole.new()[1].measures(ours)["energy_j"]
    assert energy_j == pytest.approx(joules_between(theirs.schedule, FROM_S, hours.to_s), rel=1e-9)


def test_late_starts_and_late_ends_make_waits_longer_and_runs_no_longer(log: str) -> None:
    whole = LogPart(Hours(log, FROM_S, HOURS, NODES), quiet)
    part = whole.new()[1]
    plain, late = whole.replayed(), whole.replayed(Delays(7.0, 5.0))
    runs = [one.end_s - one.start_s for job, one in late.items() if job not in part.left_s and one.end_s]
    assert runs == [part.jobs.run_s[job] for job, one in late.items() if job not in part.left_s and one.end_s]
    assert part.measures(late)["mean_wait_s"] > part.measures(plain)["mean_wait_s"] + 7.0
    ends = sorted((one.end_s, one.start_s) for one in late.values() if one.end_s)
    assert ends and part.left_s and part.came > len(part.ended) + len(part.left_s), "jobs run and wait at the beginning"


def test_what_starts_in_the_first_second_is_of_the_hours_and_not_before_them(log: str) -> None:
    whole = replay(World(log, machine=NODES), "easy", say=quiet)
    from_s = int(whole.start_s[whole.start_s > FROM_S][0])
    part = LogPart(Hours(log, from_s, HOURS, NODES), quiet).new()[1]
    assert part.left_s and all(left_s < part.jobs.run_s[job] for job, left_s in part.left_s.items())


def test_nodes_that_are_off_save_what_jobs_leave_of_them(log: str) -> None:
    cap = PowerCap.of([Cap(FROM_S + 1200, FROM_S + 2400, 0.6 * NODES * 358)])
    whole = LogPart(Hours(log, FROM_S, HOURS, NODES, "powercap:mode=shut", cap), quiet)
    part, (off,) = whole.new()[1], whole.offs
    idle_w, off_w = part.machine.node.idle_w, part.machine.node.off_w
    assert off.nodes == 4 and part.machine.topology.nodes_per_chassis == 0
    nobody_j = part.measures({})["energy_j"]
    assert nobody_j == NODES * idle_w * 3600 - 4 * 1200 * (idle_w - off_w)


def test_watts_between_changes_and_what_is_above_the_cap(log: str) -> None:
    part = LogPart(Hours(log, FROM_S, HOURS, NODES), quiet).new()[1]
    window_s = FROM_S + 1200, FROM_S + 2400
    part = replace(part, offs=[Off(*window_s, NODES)], caps=[Cap(*window_s, 500.0)])
    job = part.jobs.width.tolist().index(3)
    found = part.measures({job: Ran(start_s=FROM_S - 60.0, end_s=FROM_S + 1800.0)})
    saved_j = (NODES - 3 + NODES) * 600 * (117 - 14)
    assert found["energy_j"] == NODES * 117 * 3600 + 3 * (358 - 117) * 1800 - saved_j
    assert found["over_cap_ws"] == (3 * 358 + (NODES - 3) * 14 - 500) * 600
    assert found["work_node_h"] == 3 * 0.5


REFUSED = [
    (["--nodes", "4"], "it is of 8 processors, and there are 4 nodes: give --nodes 8, or a log that is scaled"),
    (["--hours", "240", "--from", "900000"], "900000 s to 1764000 s is not within its submissions"),
    (["--policy", "no-such"], "no-such"),
    (["--policy", "fcfs-killer"], "it reacts to caps, and jobs of Slurm keep their clocks"),
    (["--policy", "powercap:idle_off_s=300"], "it boots nodes, and here they are on or off at once"),
    (["--machine", "taurus"], "its nodes boot, and here they are on or off at once"),
    (["--by-slurm", "--cap", "1000"], "Slurm's backfilling knows no watts"),
    (["--by-slurm", "--policy", "easy"], "Slurm's backfilling decides; leave one of them out"),
    (["--delays", "/no/such/folder"], "no folder of a riplay: metrics.json: No such file or directory"),
    (["--speed", "nan"], "Invalid value for '--speed': nan is not a number"),
    (["--hours", "nan"], "Invalid value for '--hours': nan is not a number"),
    (["--hours", "0"], "'--hours': 0.0 is not in the range"),
    (["--nodes", "1000000"], "'--nodes': 1000000 is not in the range"),
    (["--policy", ""], "--policy is empty: give a policy, or --by-slurm"),
    (["--machine", "curie:nodes=64"], "--machine curie:nodes=64: give a machine without options"),
    (["--machine", "no-such"], "--machine no-such: no machine is called 'no-such'"),
]


@pytest.mark.parametrize(("more", "line"), REFUSED, ids=lambda one: " ".join(one) if isinstance(one, list) else "")
def test_what_cannot_be_is_one_line(log: str, more: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["riplay", log, "--from", "3000", "--hours", "1", "--nodes", str(NODES), *more]
    assert main(given) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and line in said.err


@pytest.mark.parametrize(
    ("out", "line"), [("file", "Not a directory"), ("file/below", "Not a directory"), ("x" * 300, "File name too long")]
)
def test_a_folder_that_cannot_be_written_is_one_line_before_the_run(
    log: str, out: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    # a run that begins would end at these delays
    given = ["--from", "3000", "--hours", "1", "--nodes", str(NODES), "--delays", "/no/such/folder"]
    assert main(["riplay", log, *given, "--out", str(tmp_path / out)]) == 1
    assert capsys.readouterr().err == f"clusterctl riplay: {tmp_path / out}: {line}; choose another --out\n"
    assert main(["riplay", log, *given, "--out", str(tmp_path / "new" / "one")]) == 2
    assert not (tmp_path / "new").exists()


def test_sigterm_while_the_log_is_read_is_one_line_and_leaves_no_handler(
    log: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ignored(*_: object) -> None:
        """Instead of the end of this process."""

    monkeypatch.setattr("lab.riplay.riplay_run.LogPart", lambda *given: os.kill(os.getpid(), signal.SIGTERM))
    before = signal.signal(signal.SIGTERM, ignored)
    try:
        assert main(["riplay", log, "--from", "3000", "--hours", "1", "--nodes", str(NODES)]) == 130
        assert capsys.readouterr().err == "clusterctl riplay: stopped: nothing is written\n"
        assert signal.getsignal(signal.SIGTERM) is ignored
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_log_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["riplay", "/no/such.swf", "--from", "3000", "--hours", "1", "--nodes", "8"]) != 0
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and "No such file" in said.err


def test_delays_are_those_of_other_hours_at_the_same_speed(log: str, tmp_path: Path) -> None:
    hours = Hours(log, FROM_S, HOURS, NODES)
    numbers = (0,) * 8

    def other(from_s: int, sha256: str = "a") -> Metrics:
        return Metrics(
            log, sha256, from_s, from_s + 600, NODES, "easy", 10.0, *numbers, 1.0, (0.0, 0.0), (0.0, 0.0), 0.0
        )

    check_other("there", other(hours.to_s), hours, 10.0, "a")
    check_other("there", other(FROM_S, "another log"), hours, 10.0, "a")
    with pytest.raises(WrongUseError, match="it is of the same hours"):
        check_other("there", other(hours.to_s - 1), hours, 10.0, "a")
    with pytest.raises(WrongUseError, match="it went at speed 10, so its delays are not these; give --speed 10, or"):
        check_other("there", other(hours.to_s), hours, 20.0, "a")
    for at, wrong in enumerate([-1.0, 1e300]):
        folder = tmp_path / str(at)
        folder.mkdir()
        late = msgspec.structs.replace(other(hours.to_s), end_delay_s=wrong)
        (folder / "metrics.json").write_bytes(msgspec.json.encode(late))
        with pytest.raises(WrongUseError, match=r"no folder of a riplay: metrics.json: Expected `float` [<>]= "):
            delays_of(str(folder))
