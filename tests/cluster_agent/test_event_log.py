"""An event log gives the same decisions again, whatever the trace and the policy; another policy is found out."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster_agent.cap_steps import Cap
from cluster_agent.cli import main
from cluster_agent.cluster import Machine
from cluster_agent.errors import ClusterError
from cluster_agent.replay.event_log import VERSION, EventLog, Header, Setting, write_log
from cluster_agent.replay.simulated import SimulatedMachine
from cluster_agent.scheduler.job_columns import Jobs
from cluster_agent.scheduler.native.governor import Watts
from cluster_agent.scheduler.native.native_replay import NativeReplay
from cluster_agent.scheduler.native.native_scheduler import NativeScheduler
from cluster_agent.scheduler.policies import registry
from cluster_agent.scheduler.policy_phases import Composition
from tests.cluster_agent.power_traces import cap_lists, machines
from tests.cluster_agent.power_traces import compositions as power_compositions
from tests.cluster_agent.traces import EVERYTHING_ENDED, PROCESSORS, compositions, counts_processors, jobs_of, traces
from tests.oracle.scheduler import ReferenceScheduler

SAMPLES = Path(__file__).parents[2] / "cluster_agent" / "samples"


def logged(
    directory: str, composition: Composition, jobs: Jobs, watts: Watts | None = None, caps: tuple[Cap, ...] = ()
) -> EventLog:
    whole = NativeReplay(composition, jobs, PROCESSORS, watts, caps)
    whole.run(EVERYTHING_ENDED)
    scheduler = NativeScheduler(composition, jobs, PROCESSORS, watts, caps)
    machine = SimulatedMachine(jobs, composition.ties, *((watts.slowdown, watts.requeues) if watts else ()))
    path = str(Path(directory) / "log")
    write_log(path, Header(VERSION, Setting("trace", "policy"), ""), scheduler, machine, whole.start_s)
    return EventLog(path)


@settings(max_examples=40)
@given(jobs=traces(), composition=compositions())
def test_the_plain_python_scheduler_decides_what_the_native_ones_log_says(jobs: Jobs, composition: Composition) -> None:
    with tempfile.TemporaryDirectory() as directory:
        log = logged(directory, composition, jobs)
        assert log.check(ReferenceScheduler(composition, jobs, PROCESSORS), len(jobs)) >= 2 * len(jobs)


@settings(max_examples=40)
@given(jobs=traces(), composition=power_compositions, caps=cap_lists(), on=machines)
def test_with_watts_kills_and_frequencies_too_a_log_gives_the_same_decisions(
    jobs: Jobs, composition: Composition, caps: list[Cap], on: Machine
) -> None:
    watts = Watts.of(on, composition.power)
    with tempfile.TemporaryDirectory() as directory:
        log = logged(directory, composition, jobs, watts, tuple(caps))
        assert log.check(NativeScheduler(composition, jobs, PROCESSORS, watts, caps), len(jobs)) >= 2 * len(jobs)


PLAIN = [
    name for name in registry.names() if counts_processors(name) and registry.choose(name).composition.power is None
]


@pytest.mark.parametrize("name", PLAIN)
@settings(max_examples=10)
@given(data=st.data())
def test_every_policys_log_gives_the_same_decisions(name: str, data: st.DataObject) -> None:
    jobs, composition = data.draw(traces()), registry.choose(name).composition
    with tempfile.TemporaryDirectory() as directory:
        log = logged(directory, composition, jobs)
        assert log.check(NativeScheduler(composition, jobs, PROCESSORS), len(jobs)) >= 2 * len(jobs)


THREE = jobs_of([(0, 9, 9, 6, 0), (1, 9, 9, 6, 0), (2, 3, 3, 2, 0)])


def test_another_policy_is_found_out_at_its_first_other_decision(tmp_path: Path) -> None:
    log = logged(str(tmp_path), Composition(backfill="easy"), THREE)
    with pytest.raises(
        ClusterError, match=r"log:7: at 2 s the log has pass \[\[\[2,0,5\]\]\], this scheduler \[\[\]\]"
    ):
        log.check(NativeScheduler(Composition(), THREE, PROCESSORS), 3)


@pytest.mark.parametrize("line", ["[]", "{", '["end",0,2]', '["submit",5,0,true]', '["pass","x"]', '["end",0,77]'])
def test_a_damaged_line_is_named(tmp_path: Path, line: str) -> None:
    log = logged(str(tmp_path), Composition(backfill="easy"), THREE)
    path = Path(log.path)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:4], line, *lines[4:]]))
    with pytest.raises(ClusterError, match=r"log:5: damaged line"):
        EventLog(log.path).check(NativeScheduler(Composition(backfill="easy"), THREE, PROCESSORS), 3)


def test_the_commands_log_and_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, cap, log = SAMPLES / "eurora-100.csv", SAMPLES / "falling-cap.csv", tmp_path / "log.gz"
    command = ["replay", str(trace), "--policy", "easy-power", "--cap", str(cap), "--log", str(log)]
    assert main(command) == 0
    capsys.readouterr()
    assert main(["check-log", str(log)]) == 0
    assert capsys.readouterr().out.endswith("events and decisions of 100 jobs under easy-power, all the same\n")
    assert main(["check-log", str(log), "--trace", str(cap)]) == 1
    assert "not the trace that" in capsys.readouterr().err


@pytest.mark.parametrize("rule", ["energybud", "reducepc"])
def test_a_log_has_what_the_meter_of_a_budget_read(
    rule: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "events.log"
    policy = f"energy-budget:rule={rule},joules=2.2e8,from_s=20000,to_s=100000,tick_s=600"
    given = ["--machine", "generic:nodes=16,cores=16", "--policy", policy, "--log", str(path)]
    assert main(["replay", str(SAMPLES / "generated-500.swf"), *given]) == 0
    lines = path.read_text().splitlines()
    readings = [at for at, line in enumerate(lines) if line.startswith('["meter"')]
    assert len(readings) > 100
    assert main(["check-log", str(path)]) == 0
    capsys.readouterr()
    del lines[readings[50]]
    path.write_text("\n".join(lines))
    assert main(["check-log", str(path)]) == 1
    assert f"events.log:{readings[50] + 1}: damaged line, or one out of order" in capsys.readouterr().err
