"""Replays of journals that the real agent wrote on the emulated node, in virtual time."""

import csv
import dataclasses
import json
import os
import re
import resource
import shutil
import time
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest

from nodectl.cli import main
from nodectl.config import Config, GpuSettings, JournalSettings, PolicyChoice
from nodectl.journal import open_journal
from nodectl.journal.decide_again import replay
from nodectl.journal.export import COLUMNS
from nodectl.journal.format import HEADER, MAGIC
from nodectl.loop.agent import Agent
from nodectl.policies import bdpo_cpu_bounded, registry
from nodectl.policies.api import Request
from tests.nodectl.altered_journal import alter
from twin.in_process_node import InProcess
from twin.machine import load_machine
from twin.physics.model import Twin
from twin.programs.workload import load_workload

SECONDS = 12


def record(state_dir, machine="xh2415", workload="easywave", seconds=SECONDS, mode="optimize", max_bytes=10**9):
    """One run of the agent; returns its journal's directory."""
    loaded = load_machine(machine)
    twin = Twin(loaded, load_workload(workload, loaded, duration_s=seconds / 2))
    config = Config(
        mode=mode,
        state_dir=str(state_dir),
        gpu_policy=PolicyChoice("bdpo-gpu" if loaded.gpus else registry.NONE),
        gpu=GpuSettings(0),
        journal=JournalSettings(max_bytes=max_bytes),
    )
    with InProcess(twin) as node, Agent.open(node.ports, config) as agent:
        agent.run(until_ns=node.ports.clock.now_ns() + seconds * 10**9)
    return config.journal_dir


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    return record(tmp_path_factory.mktemp("state"))


@pytest.fixture
def journal(recorded, tmp_path):
    return shutil.copytree(recorded, tmp_path / "journal")


def test_a_journal_replays_to_the_same_bytes(journal):
    report = replay(open_journal(journal))
    assert report.is_equal and report.problems == []
    assert report.records == SECONDS * 10 + 1
    assert report.decided == SECONDS * 10 - 1  # the first sweep closes no interval, the last interval decides nothing
    assert set(report.policies) == {"bdpo-cpu-bounded", "bdpo-gpu"}
    assert report.recorded_s == pytest.approx(SECONDS, rel=0.01)


def test_decisions_did_move_clocks_or_the_test_above_says_little(journal):
    values = np.array([record.values for record in open_journal(journal) if record.has_decided])
    assert (values != values[0]).any()


def test_every_segment_replays_on_its_own(tmp_path):
    segments = sorted(record(tmp_path, seconds=20, max_bytes=120_000).glob("*.seg"))
    assert len(segments) > 2
    for segment in segments:
        report = replay(open_journal(segment))
        assert report.is_equal and report.decided > 10


def test_a_journal_that_lost_its_beginning_and_a_piece_still_replays(tmp_path):
    directory = record(tmp_path, seconds=20, max_bytes=120_000)
    segments = sorted(directory.glob("*.seg"))
    segments[0].unlink()
    with segments[1].open("r+b") as file:
        file.seek(segments[1].stat().st_size * 2 // 3)
        file.write(b"\0" * 64)
    report = replay(open_journal(directory))
    assert report.is_equal and report.decided > 20
    assert len(report.problems) == 1


def test_two_runs_in_one_journal_are_distinguished(tmp_path):
    for _ in range(2):
        directory = record(tmp_path, machine="curie", workload="nas", seconds=5)
    runs = {entry.keyframe.run for entry in open_journal(directory)}
    report = replay(open_journal(directory))
    assert len(runs) == 2 and report.is_equal and report.decided == 2 * 49


def test_another_decision_is_found_at_its_record_and_field(journal, monkeypatch):
    decide = bdpo_cpu_bounded.POLICY.decide
    calls = []

    def changed(params, layout, state, sample):
        calls.append(sample)
        state, request = decide(params, layout, state, sample)
        if len(calls) == 41:
            target = request.target.copy()
            target[5] = 1_234_000
            request = dataclasses.replace(request, target=target)
        return state, request

    monkeypatch.setattr(bdpo_cpu_bounded, "POLICY", dataclasses.replace(bdpo_cpu_bounded.POLICY, decide=changed))
    report = replay(open_journal(journal))
    assert report.differing == 1
    assert (report.first.record, report.first.field) == (41, "bdpo-cpu-bounded.target[5]")
    assert report.first.replayed == "1234000"


def test_one_bit_of_a_nan_is_a_difference(journal, monkeypatch):
    decide = bdpo_cpu_bounded.POLICY.decide

    def changed(params, layout, state, sample):
        state, request = decide(params, layout, state, sample)
        saved_w = request.saved_w.copy()
        saved_w.view(np.uint64)[-1] ^= 1
        return state, dataclasses.replace(request, saved_w=saved_w)

    monkeypatch.setattr(bdpo_cpu_bounded, "POLICY", dataclasses.replace(bdpo_cpu_bounded.POLICY, decide=changed))
    report = replay(open_journal(journal))
    assert report.differing == report.decided
    assert report.first.field.startswith("bdpo-cpu-bounded.saved_w[")


def test_a_replay_is_at_least_fifty_times_faster_than_the_run(journal):
    replay(open_journal(journal))  # imports are not part of it
    costs_s = []
    for _ in range(5):  # what else runs on this machine is not part of it either
        begin = time.process_time()
        report = replay(open_journal(journal))
        costs_s.append(time.process_time() - begin)
    assert report.recorded_s / min(costs_s) > 50


def test_the_command_says_that_all_is_equal(journal, capsys):
    assert main(["replay", str(journal)]) == 0
    out = capsys.readouterr().out
    assert "bdpo-cpu-bounded" in out and "byte for byte" in out
    assert main(["replay", str(journal), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["equal"] and report["decided"] == SECONDS * 10 - 1


def test_the_command_fails_and_names_the_first_difference(journal, monkeypatch, capsys):
    stubborn = dataclasses.replace(
        bdpo_cpu_bounded.POLICY, decide=lambda params, layout, state, sample: (state, Request.free(len(layout.cpus)))
    )
    monkeypatch.setattr(bdpo_cpu_bounded, "POLICY", stubborn)
    assert main(["replay", str(journal)]) == 1
    assert "decisions differ; the first: record " in capsys.readouterr().out


def test_a_monitor_journal_has_no_decisions_and_says_so(tmp_path, capsys):
    directory = record(tmp_path, machine="curie", workload="nas", seconds=3, mode="monitor")
    assert main(["replay", str(directory)]) == 0
    assert "monitor mode" in capsys.readouterr().out


def test_a_place_without_a_journal_is_one_line(tmp_path, capsys):
    assert main(["replay", str(tmp_path)]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_a_recorded_policy_that_is_not_here_is_named(journal, monkeypatch, capsys):
    where = {name: place for name, place in registry._WHERE.items() if name != "bdpo-cpu-bounded"}
    monkeypatch.setattr(registry, "_WHERE", where)
    assert main(["replay", str(journal)]) != 0
    error = capsys.readouterr().err
    assert "bdpo-cpu-bounded" in error and error.count("\n") == 1


def set_to(*place):
    """A change of a keyframe (in which policies decide): the last of ``place`` belongs where the others lead."""

    def change(tree):
        *way, last, value = place
        if tree["policies"]:
            for step in way:
                tree = tree[step]
            tree[last] = value

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (set_to("config", "cpu_policy", "name", "../.."), "no cpu policy is called '../..'"),
        (set_to("config", "cpu_policy", "params", {"": 1}), "bdpo-cpu-bounded has no parameter ''"),
        (set_to("config", "gpu_policy", "params", {"threshold": 7}), "bdpo-gpu: threshold must be in [0, 1]"),
        (set_to("config", "mode", "sleep"), "invalid enum value 'sleep'"),
        (set_to("policies", 0, 3, ["object", "os", "stat_result", []]), "a recorded state is of class os.stat_result"),
        (set_to("layout", "package_of", 0, 2**40), "cannot be decided again: ValueError"),
    ],
)  # fmt: skip
def test_what_a_journal_cannot_be_decided_again_for_is_one_line_that_names_it(journal, capsys, change, said):
    alter(journal, change)
    with little_memory():
        assert main(["replay", str(journal)]) == 1
    shown = capsys.readouterr()
    assert shown.err.startswith(f"nodectl replay: {journal}/journal-00000001.seg: ") and shown.err.count("\n") == 1
    assert said in shown.err and shown.out == ""


@contextmanager
def little_memory():
    """At most a gigabyte more than this process has: else a number that is believed takes all of the machine's."""
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + (1 << 30), limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (set_to("layout", "domains", 0, "max_khz", 2**53), "no processor has clocks from 1500000 to 9007199254740992"),
        (set_to("layout", "domains", 0, "min_khz", -(2**62)), "no processor has clocks from -4611686018427387904 to"),
        (set_to("layout", "gpus", 0, "clocks_mhz", [1000] * 2**18), "no node has"),
        (set_to("layout", "events", ["cycles"] * 2**16), "no tick has"),
        (set_to("policies", [["one", 2**17, {}, None]] * 2**10), "no tick has"),
        (set_to("policies", 0, 1, -1), "no tick has"),
        (set_to("config", "padding", "0" * 2**25), "it does not end within 33554432 bytes"),
    ],
)  # fmt: skip
def test_numbers_of_a_journal_that_no_node_has_are_not_believed(journal, change, said):
    alter(journal, change)
    recorded = open_journal(journal)
    with little_memory():
        assert replay(recorded).decided == 0
    (problem,) = recorded.problems
    assert problem.startswith(f"{journal}/journal-00000001.seg: {said}") and len(problem) < 300


def test_csv_has_a_row_per_part_and_no_zero_for_what_is_missing(journal, tmp_path, capsys):
    target = tmp_path / "run.csv"
    assert main(["replay", str(journal), "--export", str(target)]) == 0
    with target.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS
    entries = list(open_journal(journal))
    layout = entries[0].keyframe.layout
    cpu0 = [row for row in rows if row["part"] == "cpu/0"]
    assert len(cpu0) == len(entries) - 1
    assert [int(row["target"]) for row in cpu0[:-1]] == [int(e.requests[0].target[0]) for e in entries[1:-1]]
    assert all(row["power_w"] == "" for row in cpu0)
    assert {row["part"] for row in rows} >= {f"gpu/{gpu.index}" for gpu in layout.gpus} | {"agent", "package-0"}
    assert all(row["sm_active"] == "" for row in rows if row["part"] == "gpu/0")  # no GPM before Hopper
    written = [row for row in rows if row["outcome"] == "written"]
    assert written and all(row["part"].endswith(("_khz", "_mhz")) for row in written)
    assert sum(row["part"] == "agent" for row in rows) == len(entries)


def test_parquet_has_the_same_as_csv(journal, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is missing: install nodectl[export]")
    for name in ("run.csv", "run.parquet"):
        assert main(["replay", str(journal), "--export", str(tmp_path / name)]) == 0
    table = parquet.read_table(tmp_path / "run.parquet").to_pylist()
    with (tmp_path / "run.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(table) == len(rows)
    for cells, row in zip(table[:3000], rows, strict=False):
        assert {name: "" if value is None else str(value) for name, value in cells.items()} == row


def test_an_export_elsewhere_than_to_a_known_kind_is_wrong_use(journal, capsys):
    assert main(["replay", str(journal), "--export", "run.xlsx"]) == 2
    assert ".csv or .parquet" in capsys.readouterr().err


def test_an_agent_of_another_version_still_reads_the_settings(journal):
    keyframe = next(iter(open_journal(journal))).keyframe
    assert msgspec.convert(keyframe.config, Config).period_ms == 100.0


def test_a_file_that_is_no_journal_is_one_line(tmp_path, capsys):
    for path in (__file__, "/dev/null", str(tmp_path / "nowhere")):
        assert main(["replay", path]) == 1
        shown = capsys.readouterr()
        assert shown.out == "" and shown.err.count("\n") == 1
        assert shown.err.startswith(f"nodectl replay: {path}: is no")
    assert main(["replay", str(tmp_path / "nowhere"), "--export", str(tmp_path / "run.csv")]) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_journal_that_may_not_be_read_is_one_line(journal, capsys):
    journal.chmod(0o700)
    os.seteuid(65534)
    try:
        assert main(["replay", str(journal)]) == 1
    finally:
        os.seteuid(0)
    assert capsys.readouterr().err == f"nodectl replay: {journal}: cannot read: Permission denied\n"


def test_a_damaged_journal_says_first_what_is_lost_and_fails(journal, tmp_path, capsys):
    (segment,) = journal.glob("*.seg")
    data, end = segment.read_bytes(), len(MAGIC)
    while end < len(data) * 2 // 3:
        end += HEADER.size + HEADER.unpack_from(data, end)[0]
    with segment.open("r+b") as file:
        file.seek(end - 64)  # within one record, since two records damaged in one place are counted as one
        file.write(b"\xff" * 64)
    assert main(["replay", str(journal)]) == 1
    headline, _, rest = capsys.readouterr().out.partition("\n")
    assert re.fullmatch(r"the journal is damaged: \d+ bytes and \d+ records lost", headline)
    assert "are the same, byte for byte" in rest
    assert main(["replay", str(journal), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["equal"] and report["loss"]["is_damage"]
    assert report["records"] + report["loss"]["records"] == SECONDS * 10 + 1
    assert main(["replay", str(journal), "--export", str(tmp_path / "run.csv")]) == 1
    assert "the journal is damaged" in capsys.readouterr().out


def test_the_end_of_a_killed_run_is_reported_and_is_no_failure(journal, capsys):
    (segment,) = journal.glob("*.seg")
    os.truncate(segment, segment.stat().st_size - 20)
    assert main(["replay", str(journal)]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("the end of a run is cut short: ") and "cut short" in shown.err


@pytest.mark.parametrize("name", ["run.csv", "run.parquet"])
def test_an_export_to_a_full_disk_is_one_line(journal, tmp_path, capsys, name):
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow.parquet", reason="pyarrow is missing: install nodectl[export]")
    os.symlink("/dev/full", tmp_path / name)
    assert main(["replay", str(journal), "--export", str(tmp_path / name)]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"nodectl replay: {tmp_path / name}: cannot write: ") and error.count("\n") == 1
    assert "No space left on device" in error
