"""Threads of one core have a cpufreq policy each and one clock, which follows the higher limit: they are one decision,
and each limit is put back as it was."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from nodectl.commands.doctor import grouped
from nodectl.journal import open_journal
from nodectl.knobs import find_knobs
from nodectl.knobs.registry import rows_of_several
from nodectl.loop.agent import Agent
from nodectl.writer_process.knob_ranges import ranges
from pmu.layout import FrequencyDomain
from pmu.node import discover
from tests.nodectl.test_agent import fixed, limit_khz, node, run, settings
from tests.nodectl.test_energy_preference import epp, preference
from tests.nodectl.test_knobs import bench as bench
from twin.in_process_node import InProcess
from twin.machine import MACHINES, load_machine
from twin.physics.model import Twin
from twin.programs.workload import load_workload

STEPS_KHZ = (1_500_000, 2_200_000, 2_800_000)
THREADS = 96  # of xh2415: CPUs 0 and 48 are the threads of core 0
MAX_FREQ = "/sys/devices/system/cpu/cpufreq/policy{}/scaling_max_freq"
FIRST, SECOND = "cpu/policy0/max_khz", "cpu/policy48/max_khz"


def limits(inside: InProcess) -> list[int]:
    return [limit_khz(inside, policy) for policy in range(THREADS)]


def test_both_limits_of_a_core_are_written_and_its_clock_follows(tmp_path):
    with node("xh2415", "hpl") as inside:
        agent = Agent.open(inside.ports, settings(tmp_path, cpu_policy=fixed(2_200_000)))
        assert (len(agent.layout.domains), agent.layout.domains[0].policies) == (48, (0, 48))
        agent.tick()
        assert limits(inside) == [2_200_000] * THREADS
        agent.tick()
        assert {inside.twin.cpu_khz(cpu) for cpu in range(THREADS)} == {2_200_000}
        agent.stop()
        assert limits(inside) == [2_800_000] * THREADS


@pytest.mark.parametrize("end", ["stopped", "killed"])
@pytest.mark.parametrize("clock_khz", STEPS_KHZ)
def test_whatever_limits_threads_have_they_are_kept_and_put_back_and_nothing_is_reported(tmp_path, clock_khz, end):
    chosen = random.Random(clock_khz)
    before = [chosen.choice(STEPS_KHZ) for _ in range(THREADS)]
    said: list[str] = []
    with node("xh2415", "hpl") as inside:
        for policy, khz in enumerate(before):
            inside.ports.files.write(MAX_FREQ.format(policy), str(khz))
        config = settings(tmp_path, cpu_policy=fixed(clock_khz))
        agent = Agent.open(inside.ports, config, said.append)
        for domain in agent.layout.domains:
            assert domain.max_khz == max(before[cpu] for cpu in domain.cpus)
        for _ in range(8):
            agent.tick()
        assert limits(inside) == [min(khz, clock_khz) for khz in before]
        if end == "killed":
            agent._actuation._lock.release()  # as the kernel does when a process dies
            agent = Agent.open(inside.ports, settings(tmp_path, cpu_policy=fixed(0)))
        agent.stop()
        assert limits(inside) == before
    assert [line for line in said if "no-effect" in line or "foreign" in line] == []


@contextmanager
def overwritten(tmp_path: Path, khz: int, said: list[str]) -> Iterator[tuple[InProcess, Agent]]:
    """An agent that has set all limits to 1.5 GHz, and looked at all of them since a program set that of CPU 48."""
    with node("xh2415", "hpl") as inside:
        agent = Agent.open(inside.ports, settings(tmp_path, cpu_policy=fixed(1_500_000)), said.append)
        for _ in range(3):
            agent.tick()
        inside.ports.files.write(MAX_FREQ.format(48), str(khz))
        for _ in range(THREADS):  # two knobs are looked at in each tick
            agent.tick()
        yield inside, agent


def test_a_program_that_puts_one_thread_back_is_noticed_and_the_thread_is_set_again(tmp_path):
    said: list[str] = []
    with overwritten(tmp_path, 2_800_000, said) as (inside, agent):
        assert limits(inside) == [1_500_000] * THREADS
        agent.stop()
        assert limits(inside) == [2_800_000] * THREADS
    (line,) = [line for line in said if line.startswith(SECOND)]
    assert line.startswith(f"{SECOND}: foreign (foreign writer): somebody else put it back to 2800000 kHz")


def test_a_program_that_raises_one_thread_is_noticed(tmp_path):
    said: list[str] = []
    with overwritten(tmp_path, 2_200_000, said) as (inside, agent):
        assert {inside.twin.cpu_khz(cpu) for cpu in (0, 48)} == {2_200_000}
        agent.stop()
        assert (limit_khz(inside, 0), limit_khz(inside, 48)) == (2_800_000, 2_200_000)
    (line, _) = [line for line in said if line.startswith(SECOND)]
    assert line.startswith(f"{SECOND}: foreign (foreign writer): somebody else set it to 2200000 kHz")


def test_a_clock_that_another_program_holds_up_by_the_other_thread_names_that_thread(bench):
    made = bench("xh2415", "hpl")
    made.set({FIRST: 1_500_000, SECOND: 1_500_000})
    made.ports.files.write(MAX_FREQ.format(48), "2800000")
    seen = {outcome.knob: outcome for outcome in made.see()}
    assert {outcome.reason for outcome in seen.values()} == {"foreign writer"} and set(seen) == {FIRST, SECOND}
    assert seen[FIRST].detail == (
        f"requested 1500000 kHz, 2800000 measured: {SECOND} has the same clock and allows 2800000 kHz, not set by this"
        " agent"
    )


def test_a_thread_that_was_never_lowered_is_named_too(bench):
    made = bench("xh2415", "hpl")
    made.set({FIRST: 1_500_000})
    (seen,) = made.see()
    assert (seen.knob, seen.status) == (FIRST, "no-effect") and SECOND in seen.detail


def test_a_thread_with_a_lower_limit_than_its_sibling_is_no_missing_effect(bench):
    made = bench("xh2415", "hpl")
    made.set({FIRST: 2_200_000, SECOND: 1_500_000})
    assert made.see() == []
    assert made.sample.cpu.frequency_khz[48] == pytest.approx(2_200_000, rel=0.01)


def test_a_clock_above_both_limits_is_still_a_missing_effect(bench):
    made = bench("xh2415", "hpl")
    for policy in (0, 48):
        made.fault("no-effect", MAX_FREQ.format(policy), value="shown")
    made.set({FIRST: 1_500_000, SECOND: 1_500_000})
    assert {(outcome.knob, outcome.reason) for outcome in made.see()} == {(FIRST, "firmware"), (SECOND, "firmware")}


@contextmanager
def machine_with(tmp_path: Path, policy: str) -> Iterator[InProcess]:
    text = (MACHINES / "xh2415.toml").read_text().replace('domain = "core"', f'domain = "core"\npolicy = "{policy}"')
    path = tmp_path / f"{policy}.toml"
    path.write_text(text)
    machine = load_machine(str(path))
    with InProcess(Twin(machine, load_workload("stream", machine, seed=3), seed=3)) as inside:
        yield inside


def test_a_run_is_the_same_with_a_policy_per_thread_as_with_one_per_core(tmp_path):
    reports, decisions = [], []
    for policy in ("cpu", "domain"):
        with machine_with(tmp_path, policy) as inside:
            run(inside, settings(tmp_path / policy), 6.0)
            reports.append(inside.twin.report())
        decisions.append([record.values.tolist() for record in open_journal(tmp_path / policy / "journal")])
    assert reports[0] == reports[1]
    assert decisions[0] == decisions[1] and any(any(values) for values in decisions[0])


def test_a_cap_in_watts_lowers_both_limits_of_a_core_and_ends_with_both_at_the_lowest(tmp_path):
    with node("xh2415", "hpl") as inside:
        none = {"name": "none"}
        config = settings(tmp_path, cpu_policy=none, gpu_policy=none, caps={"node_w": 700, "rest_w": 480})
        agent = Agent.open(inside.ports, config)
        for _ in range(30):
            agent.tick()
        lowered = limits(inside)
        assert lowered[:48] == lowered[48:] and max(lowered) < 2_800_000
        agent._actuation.limit_restores(700_000, 200_000, [300_000] * 4)
        ends = agent._actuation._writer.restore_limits
        assert [ends[f"cpu/policy{policy}/max_khz"] for policy in range(THREADS)] == [1_500_000] * THREADS
        agent._actuation.lift_restore_limits()
        agent.stop()


def test_the_writer_process_takes_the_same_range_for_both_threads():
    with node("xh2415", "hpl") as inside:
        layout, _ = discover(inside.ports)
        found = ranges(layout, find_knobs(inside.ports, layout)[0])
    assert found[FIRST] == found[SECOND] == (1_500_000, 2_800_000)


def test_every_thread_gets_the_energy_preference(tmp_path):
    with node("client", "stream") as inside:
        with Agent.open(inside.ports, epp(tmp_path, "power")) as agent:
            assert {row.cpus for row in agent.layout.ranges} == {(core, core + 4) for core in range(4)}
            agent.tick()
            assert [preference(inside, policy) for policy in range(8)] == ["power"] * 8
        assert [preference(inside, policy) for policy in range(8)] == ["balance_performance"] * 8


def test_doctor_says_that_limits_of_one_clock_are_set_together():
    with node("genoa-h100", "stream") as inside:
        layout, findings = discover(inside.ports)
        _, knob_rows = find_knobs(inside.ports, layout)
    (row,) = [row for row in findings if row.kind == "frequency"]
    assert row.name == "cpufreq policy 0-383" and "; 2 share a clock" in row.why
    assert "cpu/policy0..383/max_khz" in [row.name for row in grouped(knob_rows)]
    assert (len(layout.domains), len(rows_of_several(layout))) == (192, 384)


def test_a_layout_of_an_earlier_journal_has_one_policy_per_domain():
    recorded = {"policy": 3, "cpus": [3, 4], "min_khz": 1, "max_khz": 2, "base_khz": 2, "steps_khz": []}
    assert msgspec.convert(recorded, FrequencyDomain).policies == (3,)
