"""Programs that say how far they have come: the real header, module and file, and the way of a count to the journal."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pytest

from nodectl.config import Config, JournalSettings
from nodectl.jobs.progress_file import make_progress_file
from nodectl.journal import JournalWriter, open_journal
from nodectl.journal.decide_again import replay
from nodectl.journal.export import export
from nodectl.loop.agent import Agent
from pmu.instruments.job_progress import CounterFile, progress_of
from pmu.readings import NO_RAW_PROGRESS, RawProgress
from tests.nodectl.c_program import HEADERS, compiled
from tests.nodectl.test_journal import Source, small_layout
from tests.waiting import PATIENCE_S
from twin.errors import TwinError
from twin.in_process_node import InProcess
from twin.machine import load_machine
from twin.physics.model import Twin
from twin.programs.workload import load_workload
from twin.serve import host_needs

RUN = [sys.executable, "-m", "nodectl.cli", "run"]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("program")
    first, each = "nodectl_progress_tick(0);", "nodectl_progress_tick(1);"
    return compiled(place, "nodectl_progress.h", first, each, "-std=c11", "-D_POSIX_C_SOURCE=200809L")


@pytest.fixture
def counter(tmp_path: Path) -> Iterator[tuple[Path, CounterFile]]:
    path = tmp_path / "progress"
    make_progress_file(path)
    yield path, CounterFile(path)


def test_no_tick_of_any_thread_or_process_is_lost(program: Path, counter: tuple[Path, CounterFile]) -> None:
    path, count = counter
    subprocess.run([program, "100000"], env={"NODECTL_PROGRESS": str(path)}, check=True)
    assert count.read() == 5 * 100_000
    assert path.read_bytes()[8:] == bytes(56)


def test_the_header_is_c_plus_plus_as_well(tmp_path: Path) -> None:
    (tmp_path / "app.cc").write_text('#include "nodectl_progress.h"\nint main() { nodectl_progress_tick(1); }\n')
    compiler = ["c++", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", f"-I{HEADERS}", tmp_path / "app.cc"]
    assert subprocess.run(compiler, capture_output=True, text=True).stderr == ""


@pytest.mark.parametrize("where", [None, "/not/there", "/dev/null", "short"])
def test_a_program_that_nobody_asks_runs_as_if_it_did_not_tell(
    program: Path, tmp_path: Path, where: str | None
) -> None:
    (tmp_path / "short").write_bytes(b"\0" * 8)
    environment = {} if where is None else {"NODECTL_PROGRESS": str(tmp_path / where)}
    assert subprocess.run([program, "10"], env=environment, timeout=PATIENCE_S).returncode == 0
    assert (tmp_path / "short").read_bytes() == b"\0" * 8


def test_python_programs_tell_by_the_same_header(counter: tuple[Path, CounterFile]) -> None:
    path, count = counter
    script = "from nodectl.progress import tick\nfor _ in range(3): tick()\ntick(40)"
    subprocess.run([sys.executable, "-c", script], env={**os.environ, "NODECTL_PROGRESS": str(path)}, check=True)
    assert count.read() == 43
    printed = subprocess.run([sys.executable, "-m", "nodectl.progress"], capture_output=True, text=True, check=True)
    assert Path(printed.stdout.strip()) == HEADERS


def test_a_run_around_a_program_counts_what_it_reports_and_leaves_no_file(program: Path, tmp_path: Path) -> None:
    script = f"echo $NODECTL_PROGRESS; for i in 1 2 3 4; do {program} 100; sleep 0.15; done"
    run = [*RUN, "--json", "--state-dir", str(tmp_path / "state"), "--", "sh", "-c", script]
    done = subprocess.run(run, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    told = json.loads(done.stderr.splitlines()[-1])["progress"]
    assert told["units"] == 4 * 500 and told["told_s"] > 0.3 and told["doubted_s"] == 0
    path = Path(done.stdout.strip())
    assert path.name == "progress" and not path.parent.exists()
    records = list(open_journal(tmp_path / "state" / "journal"))
    assert records[-1].raw.progress == RawProgress(1, 2000)
    assert replay(open_journal(tmp_path / "state" / "journal")).is_equal


def test_a_program_that_reports_nothing_leaves_no_word_about_progress(tmp_path: Path) -> None:
    run = [*RUN, "--json", "--state-dir", str(tmp_path / "state"), "--", "sleep", "0.3"]
    done = subprocess.run(run, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert json.loads(done.stderr.splitlines()[-1])["progress"] is None


BROKEN = """
import os, struct, time
path = os.environ["NODECTL_PROGRESS"]
def put(data):
    with open(path, "r+b") as file: file.write(data)
put(struct.pack("<Q", 1000)); time.sleep(0.2)
put(struct.pack("<Q", 10)); time.sleep(0.2)
put(b"\\xff" * 8); time.sleep(0.2)
os.truncate(path, 0); time.sleep(0.2)
os.truncate(path, 1 << 40); time.sleep(0.2)
os.unlink(path); os.mkfifo(path); time.sleep(0.2)
os.unlink(path); os.rmdir(os.path.dirname(path)); time.sleep(0.2)
"""


def test_no_counter_however_broken_harms_the_agent(tmp_path: Path) -> None:
    run = [
        *RUN,
        "--json",
        "--period",
        "50ms",
        "--state-dir",
        str(tmp_path / "state"),
        "--",
        sys.executable,
        "-c",
        BROKEN,
    ]
    done = subprocess.run(run, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stderr.splitlines()[-1])
    assert summary["progress"]["units"] <= 1000 and summary["progress"]["doubted_s"] > 0.1
    assert not [line for line in summary["notices"] if "progress" in line]
    assert replay(open_journal(tmp_path / "state" / "journal")).is_equal


# --- journal ---


def told_journal(directory: Path, told: list[RawProgress], max_bytes: int = 10**9) -> None:
    source = Source(small_layout())
    writer = JournalWriter(directory, source.layout, Config(), max_bytes)
    for progress in told:
        writer.append(replace(source.sweep(), progress=progress), source.decisions(), [], 0, 0)
    writer.close()


def test_every_count_comes_back_from_the_journal_and_each_segment_stands_alone(tmp_path: Path) -> None:
    told = [NO_RAW_PROGRESS, *(RawProgress(1, 7 * k) for k in range(40)), NO_RAW_PROGRESS, RawProgress(2, 2**62)]
    told_journal(tmp_path, told, max_bytes=60_000)
    records = list(open_journal(tmp_path))
    assert [record.raw.progress for record in records] == told[-len(records) :]
    assert len(list(tmp_path.glob("*.seg"))) > 1
    for segment in sorted(tmp_path.glob("*.seg"))[1:]:
        head = next(iter(open_journal(segment)))
        assert head.previous is not None
        assert head.previous.progress == told[head.sequence - 1]


def test_a_journal_in_which_nobody_reports_is_written_as_before_there_was_progress(tmp_path: Path) -> None:
    from nodectl.journal.format import CappedRecord, HintRecord, PackedRecord, decode_record, encode_record

    old = encode_record(CappedRecord(5, 6, 7, True, b"row", [], 240_000, False))
    now = decode_record(old)
    assert now == HintRecord(5, 6, 7, True, b"row", [], 240_000, False, NO_RAW_PROGRESS)
    plain = encode_record(PackedRecord(5, 6, 7, True, b"row", []))
    assert decode_record(plain).told == NO_RAW_PROGRESS
    told_journal(tmp_path, [NO_RAW_PROGRESS] * 3)
    for record in open_journal(tmp_path):
        assert record.raw.progress == NO_RAW_PROGRESS


def test_a_keyframe_of_an_older_journal_says_that_nothing_was_reported(tmp_path: Path) -> None:
    from nodectl.journal.format import Keyframe, decode_keyframe, encode_keyframe

    told_journal(tmp_path, [RawProgress(1, 5)])
    keyframe = next(iter(open_journal(tmp_path))).keyframe
    fields = msgspec.to_builtins(keyframe)
    del fields["told"]
    older = msgspec.convert(fields, Keyframe)
    assert decode_keyframe(encode_keyframe(older)).told == NO_RAW_PROGRESS


# --- on the emulated node ---


def test_what_an_emulated_program_reports_reaches_sample_journal_and_table(tmp_path: Path) -> None:
    machine = load_machine("curie")
    twin = Twin(machine, load_workload("nas", machine, duration_s=30, progress_s=0.02))
    config = Config(mode="optimize", state_dir=str(tmp_path), journal=JournalSettings())
    path = tmp_path / "progress"
    make_progress_file(path)

    def told() -> RawProgress:
        path.write_bytes(struct.pack("<Q", twin.progress_units() or 0).ljust(64, b"\0"))
        return progress_of(CounterFile(path))()

    with InProcess(twin) as node:
        agent = Agent.open(node.ports, config, progress=told)
        agent.run(until_ns=node.ports.clock.now_ns() + 8 * 10**9)
        agent.stop()
    summary = agent.summary()
    assert summary.progress is not None and summary.progress.units == twin.progress_units()
    assert f"progress reported: {twin.progress_units()} units" in summary.line()
    journal = open_journal(config.journal_dir)
    units = [record.raw.progress.units for record in journal]
    assert all(before <= after for before, after in pairwise(units)) and units[-1] == twin.progress_units()
    assert replay(journal).is_equal
    export(journal, str(tmp_path / "table.csv"))
    lines = (tmp_path / "table.csv").read_text().splitlines()
    column = lines[0].split(",").index("units")
    rows = [line.split(",")[column] for line in lines if ",progress,measured," in line]
    assert len(rows) >= 79 and np.sum([float(row) for row in rows]) == units[-1]


def test_on_a_served_node_the_waiting_program_reports_what_the_emulated_load_has_done(tmp_path: Path) -> None:
    try:
        host_needs.require()
    except TwinError as missing:
        pytest.skip(f"no served node here: {missing}")
    served = [sys.executable, "-m", "nodectl.cli", "twin", "run", "--machine", "curie", "--workload", "nas"]
    served += ["--duration", "120s", "--progress", "20ms", "--"]
    run = [*RUN, "--json", "--state-dir", str(tmp_path), "--"]
    wait = [sys.executable, "-m", "nodectl.cli", "twin", "wait", "--timeout", "3"]
    begin_s = time.monotonic()
    done = subprocess.run([*served, *run, *wait], capture_output=True, text=True, timeout=PATIENCE_S)
    took_s = time.monotonic() - begin_s
    assert done.returncode == 1, done.stderr  # it gave up waiting
    units = json.loads(done.stderr.splitlines()[-1])["progress"]["units"]
    records = list(open_journal(tmp_path / "journal"))
    reported = [record.raw.progress.units for record in records]
    assert reported == sorted(reported) and len(set(reported)) > 5
    assert reported[-1] <= units < took_s / 0.01, "a unit takes 20 ms, some take half of that"
