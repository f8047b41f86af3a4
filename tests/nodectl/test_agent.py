"""The whole agent on emulated nodes, in virtual time: real readers, policies, knobs, writer and journal."""

import csv
import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from foundation.shell.errors import NodectlError
from nodectl.config import Config, build_config
from nodectl.journal import open_journal
from nodectl.journal.decide_again import replay
from nodectl.journal.export import export
from nodectl.knobs import Outcome
from nodectl.loop.agent import Agent
from nodectl.loop.notices import CALM_NS, Notices
from twin.faults.active import Fault, Faults
from twin.in_process_node import InProcess
from twin.machine import load_machine
from twin.physics.model import Twin
from twin.programs.workload import load_workload

MAX_FREQ = "/sys/devices/system/cpu/cpufreq/policy{}/scaling_max_freq"
CURIE_MAX_KHZ = 2_700_000


@contextmanager
def node(machine: str, workload: str, *faults: Fault) -> Iterator[InProcess]:
    made = load_machine(machine)
    twin = Twin(made, load_workload(workload, made, seed=3), seed=3)
    with InProcess(twin, Faults(twin, faults) if faults else None) as inside:
        yield inside


def settings(tmp_path, **given) -> Config:
    gpu = {"locked_clock_mhz": 0}
    given = {"mode": "optimize", "state_dir": str(tmp_path), "budget": {"core_share": 0.0}, "gpu": gpu, **given}
    return build_config(given, lambda key: ".".join(key))


def run(inside: InProcess, config: Config, seconds: float) -> tuple[Agent, list[str]]:
    said: list[str] = []
    with Agent.open(inside.ports, config, said.append) as agent:
        agent.run(until_ns=inside.twin.time_ns + round(seconds * 1e9))
    return agent, said


def limit_khz(inside: InProcess, policy: int = 0) -> int:
    return int(inside.ports.files.read(MAX_FREQ.format(policy)))


def lock_mhz(inside: InProcess, gpu: int = 0) -> int:
    return int(inside.twin.gpus.gpu[gpu].lock_max_mhz)


def fixed(clock_khz: int) -> dict[str, object]:
    return {"name": "fixed", "params": {"clock_khz": clock_khz}}


def fixed_gpu(clock_mhz: int) -> dict[str, object]:
    return {"name": "fixed", "params": {"clock_mhz": clock_mhz}}


def test_clocks_are_lowered_while_the_agent_runs_and_are_as_before_when_it_stops(tmp_path):
    with node("curie", "stream") as inside:
        agent = Agent.open(inside.ports, settings(tmp_path, cpu_policy=fixed(1_800_000)))
        agent.tick()
        assert (limit_khz(inside, 0), limit_khz(inside, 8)) == (1_800_000, 1_800_000)
        agent.stop()
        assert (limit_khz(inside, 0), limit_khz(inside, 8)) == (CURIE_MAX_KHZ, CURIE_MAX_KHZ)
        assert not (tmp_path / "captured.jsonl").exists()


def test_an_export_shows_one_sample_on_its_way_from_the_counter_to_the_clock(tmp_path):
    with node("skylake-6146", "stream") as inside:
        run(inside, settings(tmp_path, cpu_policy=fixed(2_100_000)), 1.0)
    export(open_journal(tmp_path / "journal"), str(tmp_path / "walk.csv"))
    with open(tmp_path / "walk.csv", newline="") as file:
        rows = {(row["part"], int(row["record"])): row for row in csv.DictReader(file)}
    seen, knob, after = rows["cpu/7", 1], rows["cpu/policy7/max_khz", 1], rows["cpu/7", 3]
    assert (seen["quality"], float(seen["frequency_khz"]), seen["target"]) == ("measured", 3_200_000, "2100000")
    assert (knob["value"], knob["bound"], knob["outcome"]) == ("2100000", "policy", "written")
    assert float(after["frequency_khz"]) == pytest.approx(2_100_000, rel=0.01)


def test_a_memory_bound_job_saves_package_energy_at_a_small_loss(tmp_path):
    with node("curie", "stream") as inside:
        agent, _ = run(inside, settings(tmp_path), 20.0)
        drawn = agent.summary().joules("cpu")
        slowdown = inside.twin.report().slowdown
    with node("curie", "stream") as inside:
        agent, _ = run(inside, settings(tmp_path, mode="monitor"), 20.0)
        assert drawn < 0.97 * agent.summary().joules("cpu")
    assert slowdown < 0.035


def test_a_gpu_is_locked_while_the_agent_runs_and_unlocked_when_it_stops(tmp_path):
    with node("xh2415", "easywave") as inside:
        agent = Agent.open(inside.ports, settings(tmp_path, gpu_policy=fixed_gpu(1095)))
        for _ in range(5):
            agent.tick()
        assert [lock_mhz(inside, gpu) for gpu in range(4)] == [1095] * 4
        agent.stop()
        assert [lock_mhz(inside, gpu) for gpu in range(4)] == [0] * 4


def test_an_administrators_limit_is_the_highest_clock_and_is_what_comes_back(tmp_path):
    with node("curie", "hpl") as inside:
        inside.ports.files.write(MAX_FREQ.format(0), "2200000")
        agent = Agent.open(inside.ports, settings(tmp_path, cpu_policy=fixed(0)))
        agent.tick()
        assert agent.layout.domains[0].max_khz == 2_200_000
        assert agent.layout.domains[1].max_khz == CURIE_MAX_KHZ
        assert limit_khz(inside) == 2_200_000
        agent.stop()
        assert limit_khz(inside) == 2_200_000


def test_what_a_killed_agent_left_is_restored_before_the_next_one_looks_at_limits(tmp_path):
    with node("curie", "hpl") as inside:
        killed = Agent.open(inside.ports, settings(tmp_path, cpu_policy=fixed(1_500_000)))
        killed.tick()
        killed._actuation._lock.release()  # as the kernel does when a process dies
        assert limit_khz(inside) == 1_500_000
        agent = Agent.open(inside.ports, settings(tmp_path, cpu_policy=fixed(0)))
        assert agent.layout.domains[0].max_khz == CURIE_MAX_KHZ
        agent.stop()
        assert limit_khz(inside) == CURIE_MAX_KHZ


def test_a_node_has_one_agent(tmp_path):
    with node("curie", "hpl") as inside:
        first = Agent.open(inside.ports, settings(tmp_path))
        with pytest.raises(NodectlError, match="already runs this node"):
            Agent.open(inside.ports, settings(tmp_path))
        Agent.open(inside.ports, settings(tmp_path, mode="monitor"))  # looking is free
        first.stop()


@pytest.mark.parametrize("given", [{"mode": "monitor"}, {"dry_run": True}])
def test_neither_monitor_nor_a_dry_run_writes_anything(tmp_path, given):
    with node("curie", "stream") as inside:
        tried: list[str] = []
        write = inside.tree.write
        inside.tree.write = lambda path, data: tried.append(path) or write(path, data)
        run(inside, settings(tmp_path, cpu_policy=fixed(1_200_000), **given), 2.0)
        assert tried == []


def test_a_dry_run_journals_what_it_would_do(tmp_path):
    with node("curie", "stream") as inside:
        run(inside, settings(tmp_path, cpu_policy=fixed(1_200_000), dry_run=True), 1.0)
    records = list(open_journal(tmp_path / "journal"))
    assert [record.has_decided for record in records] == [False, *[True] * 9, False]
    assert records[5].values.tolist() == [1_200_000, 1_200_000]


def test_a_cap_is_kept_whatever_the_policy_requests(tmp_path):
    with node("curie", "hpl") as inside:
        capped = settings(tmp_path, cpu_policy=fixed(0), caps={"cpu_max_khz": 2_050_000})
        agent = Agent.open(inside.ports, capped)
        agent.tick()
        assert limit_khz(inside) == 2_000_000
        agent.stop()


def test_a_cap_alone_is_enough_to_run_and_no_policy_and_no_cap_is_not(tmp_path):
    nothing = {"cpu_policy": {"name": "none"}, "gpu_policy": {"name": "none"}}
    with node("curie", "hpl") as inside:
        with pytest.raises(NodectlError, match="nothing to optimize: no policy and no cap"):
            Agent.open(inside.ports, settings(tmp_path, **nothing))
        agent = Agent.open(inside.ports, settings(tmp_path, caps={"cpu_max_khz": 1_500_000}, **nothing))
        agent.tick()
        assert limit_khz(inside) == 1_500_000
        agent.stop()
        assert limit_khz(inside) == CURIE_MAX_KHZ


def test_the_same_node_and_job_give_the_same_decisions_and_a_replay_repeats_them(tmp_path):
    runs = []
    for name in ("a", "b"):
        with node("xh2415", "easywave") as inside:
            run(inside, settings(tmp_path / name), 15.0)
        runs.append([record.values.tobytes() for record in open_journal(tmp_path / name / "journal")])
    assert runs[0] == runs[1]
    report = replay(open_journal(tmp_path / "a" / "journal"))
    assert (report.decided, report.differing) == (149, 0)


def test_a_lost_gpu_is_reported_and_the_rest_goes_on(tmp_path):
    with node("xh2415", "easywave", Fault("gpu-lost", "gpu:1", at_s=2.0)) as inside:
        agent, said = run(inside, settings(tmp_path, gpu_policy=fixed_gpu(1095)), 4.0)
        assert "readings of GPU 1 went missing" in said
        assert [lock_mhz(inside, gpu) for gpu in (0, 2, 3)] == [0, 0, 0]
    energy = {part.name: part for part in agent.summary().energy}
    assert energy["gpu-1"].missing_s == pytest.approx(2.0, abs=0.15)
    assert energy["gpu-0"].missing_s == 0
    records = list(open_journal(tmp_path / "journal"))
    gpu_values = records[-2].values[-4:].tolist()
    assert gpu_values == [1095, 0, 1095, 1095], "no request for the one that is gone"


def test_a_gpu_that_ceases_to_tell_its_power_is_reported_and_unlocked_while_its_policy_needs_that(tmp_path):
    gone = Fault("missing", "gpu:1:power", at_s=20.0, for_s=20.0)
    with node("xh2415", "easywave", gone) as inside:
        said: list[str] = []
        with Agent.open(inside.ports, settings(tmp_path), said.append) as agent:
            agent.run(until_ns=inside.ports.clock.now_ns() + 30_000_000_000)
            assert lock_mhz(inside, 1) == 0 != lock_mhz(inside, 0)
            agent.run(until_ns=inside.ports.clock.now_ns() + 20_000_000_000)
    assert said == ["power readings of GPU 1 went missing", "power readings of GPU 1 are back"]


def test_a_cpu_whose_counters_go_gets_its_captured_limit_back_and_the_others_go_on(tmp_path):
    with node("curie", "stream", Fault("missing", "perf:instructions:3", at_s=1.0, for_s=1.0)) as inside:
        said: list[str] = []
        agent = Agent.open(inside.ports, settings(tmp_path, cpu_policy=fixed(1_500_000)), said.append)
        seen = {}
        for tick in range(1, 30):
            agent.tick()
            seen[tick] = (limit_khz(inside, 0), limit_khz(inside, 8))
        agent.stop()
    assert seen[5] == (1_500_000, 1_500_000)
    assert seen[15] == (CURIE_MAX_KHZ, 1_500_000)
    assert seen[25] == (1_500_000, 1_500_000)
    assert said[-2:] == ["counters of CPU 3 went missing", "counters of CPU 3 are back"]


def test_an_energy_zone_that_goes_is_missing_and_not_zero(tmp_path):
    zone = "/sys/devices/virtual/powercap/intel-rapl/intel-rapl:0/energy_uj"
    with node("curie", "hpl", Fault("missing", zone, at_s=1.0)) as inside:
        agent, said = run(inside, settings(tmp_path, mode="monitor"), 3.0)
    assert "energy of package-0 went missing" in said
    lost = next(part for part in agent.summary().energy if part.name == "package-0")
    assert lost.missing_s == pytest.approx(2.0, abs=0.15)
    assert "package-0 for" in agent.summary().line()


def test_without_sensors_optimize_refuses_with_the_reasons_and_monitor_says_what_it_lacks(tmp_path):
    with node("curie", "hpl", Fault("missing", "perf:instructions")) as inside:
        with pytest.raises(NodectlError) as refused:
            Agent.open(inside.ports, settings(tmp_path))
        assert re.match(
            r"cannot optimize this node: CPU counters \(instructions\): .*perf_event_open", str(refused.value)
        )
        assert "GPUs: machine curie has no GPU" in str(refused.value)
        agent, said = run(inside, settings(tmp_path, mode="monitor"), 1.0)
    assert any(line.startswith("no CPU counters (instructions)") for line in said), said
    assert agent.summary().joules("cpu") > 100, "what is there is read"


def test_without_knobs_optimize_refuses_with_the_reason_and_a_dry_run_runs(tmp_path):
    with node("curie", "hpl", Fault("missing", "/sys/devices/system/cpu/cpufreq/*/scaling_max_freq")) as inside:
        with pytest.raises(NodectlError, match=r"no CPU clock limits to move: .*scaling_max_freq"):
            Agent.open(inside.ports, settings(tmp_path))
        run(inside, settings(tmp_path, dry_run=True), 1.0)


def test_a_refused_write_is_said_once_and_the_run_goes_on(tmp_path):
    with node("curie", "hpl", Fault("refused", MAX_FREQ.format(8), value="EBUSY")) as inside:
        agent, said = run(inside, settings(tmp_path, cpu_policy=fixed(1_500_000)), 3.0)
    refusals = [line for line in said if line.startswith("cpu/policy8/max_khz: refused")]
    assert len(refusals) == 1
    assert agent.summary().ticks == 30


def test_an_exception_in_the_loop_still_restores(tmp_path):
    with node("curie", "stream") as inside:
        config = settings(tmp_path, cpu_policy=fixed(1_200_000))
        with pytest.raises(ZeroDivisionError), Agent.open(inside.ports, config) as agent:
            agent.tick()
            assert limit_khz(inside) == 1_200_000
            raise ZeroDivisionError
        assert limit_khz(inside) == CURIE_MAX_KHZ


def test_a_period_of_10_ms_is_kept(tmp_path):
    with node("curie", "stream") as inside:
        agent, _ = run(inside, settings(tmp_path, period_ms=10), 2.0)
    assert (agent.summary().ticks, agent.summary().missed_periods) == (200, 0)


def test_the_energy_of_a_run_is_that_of_the_node(tmp_path):
    with node("xh2415", "easywave") as inside:
        begin = inside.twin.report().energy_j
        agent, _ = run(inside, settings(tmp_path, mode="monitor"), 10.0)
        end = inside.twin.report().energy_j
    truth = {name: joules - begin[name] for name, joules in end.items()}
    sensors = inside.twin.machine.gpu.sensors  # the agent knows what the cards' own sensors show
    for gpu in range(4):
        truth[f"gpu-{gpu}"] = sensors.power_gain * truth[f"gpu-{gpu}"] + sensors.power_offset_w * 10.0
    for part in agent.summary().energy:
        name = part.name.replace("package-0/dram", "dram-0").replace("package-1/dram", "dram-1")
        if name in truth:
            assert part.joules == pytest.approx(truth[name], rel=0.03), part.name


def test_a_journal_that_cannot_be_kept_is_an_error_only_when_it_was_requested(tmp_path):
    (tmp_path / "journal").write_text("in the way")
    with node("curie", "hpl") as inside:
        _, said = run(inside, settings(tmp_path, mode="monitor"), 0.5)
        assert any(line.startswith("no journal: ") for line in said)
        with pytest.raises(NodectlError, match="cannot keep a journal"):
            run(inside, settings(tmp_path, mode="monitor", journal={"dir": str(tmp_path / "journal")}), 0.5)


def kill(agent: Agent) -> None:
    """What is left of an agent after SIGKILL: the kernel has dropped its locks, and nobody has restored."""
    agent._actuation._lock.release()
    agent._journal.close()


def test_what_a_killed_agent_left_is_restored_even_if_the_next_one_is_refused(tmp_path):
    with node("curie", "hpl") as inside:
        killed = Agent.open(inside.ports, settings(tmp_path, cpu_policy=fixed(1_500_000)))
        killed.tick()
        kill(killed)
        nothing = {"cpu_policy": {"name": "none"}, "gpu_policy": {"name": "none"}}
        said: list[str] = []
        with pytest.raises(NodectlError, match="nothing to optimize"):
            Agent.open(inside.ports, settings(tmp_path, **nothing), said.append)
        assert said == ["put back 2 knobs that a killed run had left moved"]
        assert (limit_khz(inside, 0), limit_khz(inside, 8)) == (CURIE_MAX_KHZ, CURIE_MAX_KHZ)
        Agent.open(inside.ports, settings(tmp_path))  # the refused one has given up the node


@pytest.mark.parametrize("given", [{"mode": "monitor"}, {"dry_run": True}])
def test_a_run_that_only_looks_says_what_a_killed_one_left_and_not_what_a_running_one_has_moved(tmp_path, given):
    with node("curie", "hpl") as inside:
        first = Agent.open(inside.ports, settings(tmp_path, cpu_policy=fixed(1_500_000)))
        first.tick()
        for left in (
            [],
            [f"a killed run has left 2 knobs moved: `nodectl restore --state-dir {tmp_path}` puts them back"],
        ):
            said: list[str] = []
            agent = Agent.open(inside.ports, settings(tmp_path, **given), said.append)
            agent.stop()
            assert [line for line in said if "killed" in line] == left
            if not left:
                kill(first)
        assert limit_khz(inside) == 1_500_000


def test_a_second_run_into_the_same_journal_goes_without_or_is_refused_if_it_was_named(tmp_path):
    named = {"dir": str(tmp_path / "journal")}
    with node("curie", "hpl") as inside:
        first = Agent.open(inside.ports, settings(tmp_path, mode="monitor", journal=named))
        said: list[str] = []
        second = Agent.open(inside.ports, settings(tmp_path, mode="monitor"), said.append)
        second.stop()
        assert [line for line in said if "already writes a journal in this directory" in line]
        with pytest.raises(NodectlError, match=r"cannot keep a journal: pid \d+ already writes a journal"):
            Agent.open(inside.ports, settings(tmp_path, mode="monitor", journal=named))
        first.stop()
        third = Agent.open(inside.ports, settings(tmp_path, mode="monitor", journal=named))
        third.stop()


def test_trouble_that_comes_and_goes_or_changes_its_figures_is_said_once_until_it_has_been_calm():
    with node("curie", "hpl") as inside:
        said: list[str] = []
        notices = Notices(inside.ports.clock, said.append)
        for seen in range(100):
            notices.report([Outcome("cpu/policy0/max_khz", "no-effect", f"{seen} kHz seen", "thermal")])
            notices.report([Outcome("cpu/policy0/max_khz", "written", "1500000")])
        assert said == ["cpu/policy0/max_khz: no-effect (thermal): 0 kHz seen"]
        notices.report([Outcome("cpu/policy0/max_khz", "no-effect", "another cause", "firmware")])
        assert said[1:] == ["cpu/policy0/max_khz: no-effect (firmware): another cause"]
        inside.ports.clock.sleep_until_ns(inside.ports.clock.now_ns() + CALM_NS + 1)
        notices.report([Outcome("cpu/policy0/max_khz", "no-effect", "again", "thermal")])
        assert said[2:] == ["cpu/policy0/max_khz: no-effect (thermal): again"]


def test_knobs_that_fare_alike_share_a_line():
    with node("curie", "hpl") as inside:
        said: list[str] = []
        notices = Notices(inside.ports.clock, said.append)
        notices.report([Outcome(f"cpu/policy{n}/max_khz", "refused", f"policy{n} is busy") for n in range(192)])
    (line,) = said
    assert line == "cpu/policy0..191/max_khz: refused: policy0..191 is busy"


def test_a_gpu_that_was_lost_at_the_start_is_among_what_is_not_known(tmp_path):
    with node("xh2415", "easywave", Fault("gpu-lost", "gpu:1")) as inside:
        agent, _ = run(inside, settings(tmp_path, mode="monitor"), 1.0)
    unknown = agent.summary().line().partition("not known: ")[2]
    assert "gpu-1 (it does not answer: " in unknown
    assert [part.name for part in agent.summary().energy if part.side == "gpu"] == ["gpu-0", "gpu-2", "gpu-3"]


def test_a_policy_that_estimates_nothing_is_named_in_the_closing_line(tmp_path):
    with node("curie", "hpl") as inside:
        agent, _ = run(inside, settings(tmp_path, cpu_policy=fixed(0)), 1.0)
    assert "CPU packages and DRAM: fixed-cpu gives no estimate of saving or slowdown;" in agent.summary().line()
