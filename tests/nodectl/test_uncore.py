"""The uncore's clock limit: found, captured, moved within what was found, put back, and listed with its reason."""

import csv

import msgspec
import pytest

from foundation.boot import boot_id
from foundation.shell.errors import NodectlError
from nodectl.config import PolicyChoice
from nodectl.journal import open_journal
from nodectl.journal.decide_again import replay
from nodectl.journal.export import export
from nodectl.knobs import KnobError, find_knobs, open_knob
from nodectl.loop.agent import Agent
from nodectl.loop.survey import at_present_limits
from nodectl.write.restore import restore_saved, save_path
from nodectl.write.saves import node_id, read_save
from nodectl.write.writer import Writer
from pmu.node import discover
from tests.nodectl.file_tree import file_node
from tests.nodectl.small_node import layout
from tests.nodectl.test_agent import node, run, settings

UNCORE = "/sys/devices/system/cpu/intel_uncore_frequency"
FIRST = "uncore/package_00_die_00/max_khz"
BOTH = [FIRST, "uncore/package_01_die_00/max_khz"]
HIGH_KHZ = 2_400_000

GENEROUS = {"bound": 0.1, "memory": 0.8}
"""The twin's Skylake has no stall event, and by its instructions alone this HPL may wait for half of its time."""


def uncore(tmp_path, policy="uncore-bounded", **params):
    none = {"name": "none"}
    chosen = {"uncore": {"name": policy, "params": params}}
    return settings(tmp_path, cpu_policy=none, gpu_policy=none, policies=chosen)


def limit_khz(inside, package: int = 0) -> int:
    return int(inside.ports.files.read(f"{UNCORE}/package_{package:02d}_die_00/max_freq_khz"))


def clusters(tmp_path, **agents):
    """Files as the TPMI driver shows them: a folder per cluster, and one per package that sets all of them."""
    ports = file_node(tmp_path)
    for folder in ("package_00_die_00", *agents):
        base = f"{UNCORE}/{folder}"
        ports.files.put(f"{base}/max_freq_khz", 2_200_000)
        ports.files.put(f"{base}/min_freq_khz", 800_000)
        ports.files.put(f"{base}/package_id", 0)
        if agents.get(folder):
            ports.files.put(f"{base}/agent_types", agents[folder])
    return ports


def test_every_die_of_a_skylake_has_a_limit_that_can_be_moved():
    with node("skylake-6146", "hpl") as inside:
        knobs, rows = find_knobs(inside.ports, discover(inside.ports)[0])
        assert [knob.name for knob in knobs if knob.name.startswith("uncore/")] == BOTH
        assert [row.writable for row in rows if row.name in BOTH] == [True, True]


def test_a_node_without_the_driver_says_so_in_one_row():
    with node("curie", "hpl") as inside:
        _, rows = find_knobs(inside.ports, discover(inside.ports)[0])
        (row,) = [row for row in rows if row.name.startswith("uncore/")]
        assert row.name == "uncore/*/max_khz" and not row.present
        assert "intel_uncore_frequency is not loaded" in row.why


def test_where_clusters_have_folders_of_their_own_the_package_is_left_alone(tmp_path):
    ports = clusters(tmp_path, uncore00="core cache memory", uncore01="io", uncore02="")
    knobs, rows = find_knobs(ports, layout())
    found = {row.name: row for row in rows if row.name.startswith("uncore/")}
    assert list(found) == [f"uncore/uncore0{number}/max_khz" for number in (0, 1, 2)]
    assert not found["uncore/uncore01/max_khz"].writable
    assert "input and output alone" in found["uncore/uncore01/max_khz"].why
    ranges = at_present_limits(layout(), knobs, uncore(tmp_path)).ranges
    assert [(row.name, row.low, row.high, row.cpus) for row in ranges] == [
        (f"uncore/uncore0{number}/max_khz", 800_000, 2_200_000, (0, 1, 2, 3)) for number in (0, 2)
    ]


def test_a_limit_is_captured_before_it_is_written_and_put_back_after_a_kill(tmp_path):
    with node("skylake-6146", "hpl") as inside:
        path, ports = save_path(str(tmp_path)), inside.ports
        writer = Writer([open_knob(ports, name) for name in BOTH], path, boot_id(), ports.clock)
        writer.start()
        outcomes = writer.apply(dict.fromkeys(BOTH, 1_800_000))
        assert [outcome.status for outcome in outcomes] == ["written", "written"]
        assert {name: saved.value for name, saved in read_save(path).knobs.items()} == dict.fromkeys(
            BOTH, str(HIGH_KHZ)
        )
        writer.close()  # killed: nothing is restored
        ports.files.write(f"{UNCORE}/package_01_die_00/max_freq_khz", "2000000")
        restored = restore_saved(path, boot_id(), lambda name: open_knob(ports, name))
        assert [(one.knob, one.status) for one in restored.outcomes] == [(BOTH[1], "left"), (BOTH[0], "restored")]
        assert (limit_khz(inside, 0), limit_khz(inside, 1)) == (HIGH_KHZ, 2_000_000)


def test_the_kernel_rounds_a_limit_down_and_refuses_one_that_is_no_clock():
    with node("skylake-6146", "hpl") as inside:
        knob = open_knob(inside.ports, FIRST)
        knob.set(1_850_000)
        assert knob.read_back() == 1_800_000 and knob.matches(1_850_000, 1_800_000)
        assert not knob.matches(1_850_000, 1_900_000)
        for nonsense in (99_999, 12_800_000):
            with pytest.raises(KnobError, match="out of range"):
                knob.set(nonsense)


def test_a_lower_limit_above_ours_is_in_force_and_named():
    with node("skylake-6146", "hpl") as inside:
        inside.ports.files.write(f"{UNCORE}/package_00_die_00/min_freq_khz", "2000000")
        assert open_knob(inside.ports, FIRST).overruled(1_800_000) == ("firmware", "min_freq_khz is 2000000 kHz")
        assert open_knob(inside.ports, FIRST).overruled(2_000_000) == ("", "")


def test_a_run_never_raises_a_limit_above_the_one_it_found(tmp_path):
    with node("skylake-6146", "hpl") as inside:
        inside.ports.files.write(f"{UNCORE}/package_00_die_00/max_freq_khz", "1900000")
        agent = Agent.open(inside.ports, uncore(tmp_path, "fixed", value=2_300_000))
        agent.tick()
        assert (limit_khz(inside, 0), limit_khz(inside, 1)) == (1_900_000, 2_300_000)
        agent.stop()
        assert (limit_khz(inside, 0), limit_khz(inside, 1)) == (1_900_000, HIGH_KHZ)


def test_a_clock_bound_job_runs_with_a_slower_uncore_and_the_limit_comes_back(tmp_path):
    with node("skylake-6146", "hpl") as inside:
        seen = []
        agent = Agent.open(inside.ports, uncore(tmp_path, **GENEROUS))
        agent.run(inside.twin.time_ns + 5 * 10**9, each_tick=lambda: seen.append(limit_khz(inside)))
        agent.stop()
        assert min(seen) < HIGH_KHZ and limit_khz(inside) == HIGH_KHZ
        said = agent.summary().others["uncore"]
        assert said.slowdown is not None and 0.0 < said.slowdown < GENEROUS["bound"]
        assert "uncore: saving not known, estimated slowdown" in agent.summary().line()


def test_a_memory_bound_job_keeps_its_uncore(tmp_path):
    with node("skylake-6146", "stream") as inside:
        seen = []
        agent = Agent.open(inside.ports, uncore(tmp_path))
        agent.run(inside.twin.time_ns + 5 * 10**9, each_tick=lambda: seen.append(limit_khz(inside)))
        agent.stop()
        assert set(seen) == {HIGH_KHZ}


def test_a_cpu_policy_that_spends_the_bound_leaves_the_uncore_nothing(tmp_path):
    with node("skylake-6146", "hpl") as inside:
        seen = []
        config = uncore(tmp_path, **GENEROUS)
        slow = PolicyChoice("fixed", {"clock_khz": 2_400_000})  # of 3.2 GHz
        agent = Agent.open(inside.ports, msgspec.structs.replace(config, cpu_policy=slow))
        agent.run(inside.twin.time_ns + 5 * 10**9, each_tick=lambda: seen.append(limit_khz(inside)))
        agent.stop()
        assert set(seen) == {HIGH_KHZ}


def test_a_journal_with_uncore_decisions_replays_to_the_same_bytes(tmp_path):
    with node("skylake-6146", "hpl") as inside:
        run(inside, uncore(tmp_path, **GENEROUS), 5.0)
    journal = open_journal(tmp_path / "journal")
    report = replay(journal)
    assert report.is_equal and report.decided > 40 and report.policies == ("uncore-bounded",)
    table = tmp_path / "run.csv"
    export(journal, str(table))
    rows = [row for row in csv.DictReader(table.open()) if row["part"] == "uncore/package_00_die_00" and row["reason"]]
    assert len(rows) == report.decided and {row["reason"] for row in rows} >= {"dwell", "bounded"}
    (last,) = [record for record in journal if record.has_decided][-1:]
    assert list(last.keyframe.knobs[-2:]) == BOTH and 0 < last.values[-1] < HIGH_KHZ


def test_a_run_without_an_uncore_policy_has_no_uncore_rows(tmp_path):
    with node("skylake-6146", "hpl") as inside:
        run(inside, settings(tmp_path), 1.0)
    for record in open_journal(tmp_path / "journal"):
        assert not any(name.startswith("uncore/") for name in record.keyframe.knobs)
        assert record.keyframe.layout.ranges == ()


def test_a_node_without_the_knob_names_it_when_its_policy_is_requested(tmp_path):
    with node("curie", "hpl") as inside, pytest.raises(NodectlError, match=r"no uncore clock limits to move: .*driver"):
        Agent.open(inside.ports, uncore(tmp_path))


def test_every_limit_of_the_node_is_found_by_a_restore_on_another_start(tmp_path):
    with node("skylake-6146", "hpl") as inside:
        killed = Agent.open(inside.ports, uncore(tmp_path, "fixed", value=1_500_000))
        killed.tick()
        killed._actuation._lock.release()  # as the kernel does when a process dies
        assert limit_khz(inside) == 1_500_000
        left = restore_saved(
            save_path(str(tmp_path)), node_id(inside.ports.lock_path), lambda name: open_knob(inside.ports, name)
        )
        assert left.is_complete and (limit_khz(inside, 0), limit_khz(inside, 1)) == (HIGH_KHZ, HIGH_KHZ)
