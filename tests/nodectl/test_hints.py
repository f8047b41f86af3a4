"""Programs that say what they do now: the real header, module and page, and the way of a hint to a clock."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from lab.node_demo.emulated_hints import EmulatedHints
from lab.node_demo.experiment import Experiment, run
from nodectl.config import Budget, Caps, Config, GpuSettings, JournalSettings, PolicyChoice
from nodectl.jobs.hint_page import make_hint_page
from nodectl.jobs.hint_watch import BURST_S, SHARE, HintWatch
from nodectl.journal import JournalWriter, open_journal
from nodectl.journal.decide_again import replay
from nodectl.journal.export import export
from nodectl.loop.agent import Agent
from nodectl.loop.interruptions import Interruptions
from nodectl.loop.pace import Pace
from pmu.decode import decode
from pmu.instruments.job_hints import PAGE, HintFile
from pmu.readings import NO_HINTS, NO_RAW_HINTS, Hint, HintSample, PmuError, Quality, RawHints, RawProgress
from tests.nodectl.c_program import HEADERS, compiled
from tests.nodectl.test_agent_pace import SteppedClock
from tests.nodectl.test_journal import Source, small_layout
from tests.pmu.test_decode import LAYOUT, first, later
from tests.waiting import PATIENCE_S
from twin.in_process_node import InProcess
from twin.machine import load_machine
from twin.physics.model import Twin

RUN = [sys.executable, "-m", "nodectl.cli", "run"]
ME = os.geteuid()


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("program")
    each = """
        nodectl_hints_copy(NODECTL_HINTS_BIG_COPY);
        nodectl_hints_copy(NODECTL_HINTS_BIG_COPY - 1);
        nodectl_hints_kernel();
        nodectl_hints_wait_begin();
        nodectl_hints_wait_end();
    """
    return compiled(place, "nodectl_hints.h", "nodectl_hints_phase(7);", each, "-std=gnu11")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "hints"
    make_hint_page(made)
    return made


# --- programs ---


def test_no_hint_of_any_thread_or_process_is_lost(program: Path, path: Path) -> None:
    subprocess.run([program, "20000"], env={"NODECTL_HINTS": str(path)}, check=True)
    found = HintFile(path, ME).read(1)
    assert found[2:] == (7, found.last, 100_000, 100_000, 100_000, 100_000, 1)
    assert 1 < found.news <= 200_001


@pytest.mark.parametrize("standard", ["c99", "gnu99", "c11", "gnu17", "c++11", "gnu++17"])
def test_the_header_is_c_and_c_plus_plus_with_and_without_extensions(tmp_path: Path, standard: str) -> None:
    compiler, name = ("c++", "app.cc") if "++" in standard else ("cc", "app.c")
    text = '#include "nodectl_hints.h"\nint main(void) { nodectl_hints_kernel(); return 0; }\n'
    (tmp_path / name).write_text(text)
    flags = [f"-std={standard}", "-pedantic", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
    done = subprocess.run([compiler, *flags, f"-I{HEADERS}", tmp_path / name], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("where", [None, "/not/there", "/dev/null", "short", "other-version", "link", "pipe"])
def test_a_program_that_nobody_asks_runs_as_if_it_gave_no_hints(
    program: Path, path: Path, tmp_path: Path, where: str | None
) -> None:
    (tmp_path / "short").write_bytes(bytes(63))
    (tmp_path / "other-version").write_bytes(b"\2" + bytes(63))
    (tmp_path / "link").symlink_to(path)
    os.mkfifo(tmp_path / "pipe")
    environment = {} if where is None else {"NODECTL_HINTS": str(tmp_path / where)}
    assert subprocess.run([program, "10"], env=environment, timeout=PATIENCE_S).returncode == 0
    assert (tmp_path / "short").read_bytes() == bytes(63)
    assert (tmp_path / "other-version").read_bytes()[1:] == bytes(63)
    assert not any(HintFile(path, ME).read(1)[1:])


def test_python_programs_give_hints_by_the_same_header(path: Path) -> None:
    script = """
from nodectl import hints
hints.copy(10**10)
hints.copy(10**10 - 1)
hints.kernel()
with hints.phase(3):
    with hints.phase(4):
        pass
    with hints.waiting:
        pass
hints.phase(9).__enter__()
"""
    subprocess.run([sys.executable, "-c", script], env={**os.environ, "NODECTL_HINTS": str(path)}, check=True)
    assert HintFile(path, ME).read(1) == RawHints(1, 7, 9, Hint.KERNEL, 1, 1, 1, 1, 5)


# --- the agent's loop ---


def test_a_tick_that_comes_early_leaves_the_next_deadline_where_it_was() -> None:
    clock = SteppedClock()
    woken_at = iter([3_000_000, 7_000_000])

    def wait(deadline_ns: int) -> None:
        clock.time_ns = min(next(woken_at, deadline_ns - begin_ns) + begin_ns, deadline_ns)

    begin_ns = clock.now_ns()
    pace = Pace(clock, 10.0, Budget(), wait)
    seen = []
    for _ in range(4):
        pace.sleep()
        seen.append((clock.now_ns() - begin_ns) / 1e6)
    assert seen == [3.0, 7.0, 10.0, 20.0]
    assert pace.missed == 0 and pace.lateness.count == 2


def sample_with(hints: HintSample, elapsed_s: float = 0.1):  # type: ignore[no-untyped-def]
    before = first()
    return replace(decode(LAYOUT, before, later(before)), hints=hints, elapsed_s=elapsed_s)


@contextlib.contextmanager
def watching(path: Path, wanted: bool = True) -> Iterator[HintWatch]:
    page = HintFile(path, ME)
    with contextlib.closing(HintWatch(lambda: page)) as watch:
        watch.read()
        watch.want(wanted)
        yield watch
    page.close()


GIVE = "import sys\nfrom nodectl import hints\nfor n in range(1, int(sys.argv[1]) + 1): hints.phase(n).__enter__()\n"


def give(path: Path, changes: int) -> None:
    subprocess.run(
        [sys.executable, "-c", GIVE, str(changes)], env={**os.environ, "NODECTL_HINTS": str(path)}, check=True
    )


def is_woken(watch: HintWatch, within_s: float = PATIENCE_S) -> bool:
    return bool(select.select([watch.descriptor], [], [], within_s)[0])


@pytest.mark.parametrize("wanted", [True, False])
def test_a_hint_wakes_the_loop_of_an_agent_whose_policy_wants_it(path: Path, wanted: bool) -> None:
    with watching(path, wanted) as watch:
        assert watch.look(sample_with(NO_HINTS), 0.0) == []
        time.sleep(0.05)
        give(path, 1)
        assert is_woken(watch, PATIENCE_S if wanted else 0.2) == wanted
        assert watch.read().phase == 1


def test_a_flood_of_hints_wakes_the_loop_no_more_often_than_its_share_allows_and_is_said_once(path: Path) -> None:
    tick_s, lines, woken = 0.01, [], 0
    with watching(path, wanted=False) as watch:
        begin_s = time.monotonic()
        for tick in range(400):  # each would take a whole CPU
            with path.open("r+b") as file:
                file.write(PAGE.pack(1, 0, tick + 1, tick + 1, 0, 0, 0, 0, 0, 0, tick + 1))
            watch.read()
            with path.open("r+b") as file:
                file.write(PAGE.pack(1, 0, tick + 9, tick + 1, 0, 0, 0, 0, 0, 0, tick + 1))
            if tick == 0:  # not sooner: write(2) wakes nobody who sleeps already
                watch.want(True)
            lines += watch.look(sample_with(NO_HINTS, 0.01), tick_s)
            woken += is_woken(watch, 0.002)
        assert time.monotonic() - begin_s < PATIENCE_S
    allowed_s = SHARE * (400 * 0.01 + BURST_S)
    assert 10 * tick_s <= woken * tick_s <= allowed_s + 2 * tick_s
    assert len(lines) == 1 and "faster than 5% of a CPU" in lines[0] and str(path) in lines[0]


def test_what_is_wrong_with_a_page_is_said_once_for_each_job(path: Path) -> None:
    with watching(path) as watch:
        doubted = sample_with(replace(NO_HINTS, quality=Quality.CLIPPED))
        assert len(watch.look(doubted, 0.0)) == 1 and watch.look(doubted, 0.0) == []
        os.truncate(path, 3)
        assert watch.read() == NO_RAW_HINTS
        (line,) = watch.look(sample_with(NO_HINTS), 0.0)
        assert "cut short" in line and watch.look(sample_with(NO_HINTS), 0.0) == []

    def odd() -> HintFile:
        raise PmuError("/job/hints: belongs to user 1, not to 2: no hints are read")

    with contextlib.closing(HintWatch(odd)) as watch:
        assert watch.read() == watch.read() == NO_RAW_HINTS
        assert watch.look(sample_with(NO_HINTS), 0.0) == ["/job/hints: belongs to user 1, not to 2: no hints are read"]
        assert watch.look(sample_with(NO_HINTS), 0.0) == []


def test_another_job_is_another_source(tmp_path: Path) -> None:
    for name in "ab":
        make_hint_page(tmp_path / name)
    pages = [HintFile(tmp_path / name, ME) for name in "ab"]
    with contextlib.closing(HintWatch(lambda: pages[0])) as watch:
        assert watch.read().source == 1
        pages.reverse()
        assert watch.read().source == 2


BROKEN = """
import os, time
path = os.environ["NODECTL_HINTS"]
def put(data):
    with open(path, "r+b") as file: file.write(data)
put(b"\\xff" * 64); time.sleep(0.2)
os.truncate(path, 0); time.sleep(0.2)
os.truncate(path, 1 << 40); time.sleep(0.2)
os.unlink(path); os.mkfifo(path); time.sleep(0.2)
os.unlink(path); os.rmdir(os.path.dirname(path)); time.sleep(0.2)
"""


def test_no_page_however_broken_harms_the_agent(tmp_path: Path) -> None:
    state = ["--json", "--period", "50ms", "--state-dir", str(tmp_path / "state")]
    done = subprocess.run(
        [*RUN, *state, "--", sys.executable, "-c", BROKEN], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    notices = [line for line in msgspec.json.decode(done.stderr.splitlines()[-1])["notices"] if "hints" in line]
    assert len(notices) == 2 and "not used" in notices[0] and "cut short" in notices[1]
    assert replay(open_journal(tmp_path / "state" / "journal")).is_equal


# --- journal ---


def hinted_journal(directory: Path, hinted: list[RawHints], max_bytes: int = 10**9) -> None:
    source = Source(small_layout())
    writer = JournalWriter(directory, source.layout, Config(), max_bytes)
    for hints in hinted:
        writer.append(replace(source.sweep(), hints=hints), source.decisions(), [], 0, 0)
    writer.close()


def test_every_hint_comes_back_from_the_journal_and_each_segment_stands_alone(tmp_path: Path) -> None:
    hinted = [NO_RAW_HINTS, *(RawHints(1, k, k, 1, k, 2**62, 3, 2, k) for k in range(1, 41)), NO_RAW_HINTS]
    hinted_journal(tmp_path, hinted, max_bytes=60_000)
    records = list(open_journal(tmp_path))
    assert [record.raw.hints for record in records] == hinted[-len(records) :]
    assert len(list(tmp_path.glob("*.seg"))) > 1
    for segment in sorted(tmp_path.glob("*.seg"))[1:]:
        head = next(iter(open_journal(segment)))
        assert head.previous is not None and head.previous.hints == hinted[head.sequence - 1]


def test_a_journal_without_hints_is_written_as_before_there_were_any(tmp_path: Path) -> None:
    from nodectl.journal.format import Keyframe, ProgressRecord, decode_record, encode_keyframe, encode_record

    old = encode_record(ProgressRecord(5, 6, 7, True, b"row", [], 0, True, RawProgress(1, 9)))
    assert decode_record(old).hinted == NO_RAW_HINTS and decode_record(old).told == RawProgress(1, 9)
    hinted_journal(tmp_path, [NO_RAW_HINTS] * 3)
    keyframe = next(iter(open_journal(tmp_path))).keyframe
    fields = {name: getattr(keyframe, name) for name in keyframe.__struct_fields__ if name != "hinted"}
    import zlib

    assert b"hinted" not in zlib.decompress(encode_keyframe(Keyframe(**fields)))


# --- from a hint to a clock ---


def test_a_hint_moves_the_clock_of_an_emulated_card_at_once_and_the_journal_decides_the_same(
    path: Path, tmp_path: Path
) -> None:
    """In real time, at a period of a second: a program of its own gives a hint, and the clock follows in far less."""
    twin = Twin(load_machine("xh2415"))
    config = Config(
        mode="optimize", period_ms=1000.0, gpu_policy=PolicyChoice("gpu-events"), cpu_policy=PolicyChoice("none"),
        state_dir=str(tmp_path / "state"), journal=JournalSettings(), gpu=GpuSettings(0), calibration="",
    )  # fmt: skip
    seen: list[tuple[float, int]] = []

    def lock_mhz() -> int:
        return int(twin.gpus.gpu[0].lock_max_mhz)

    def each_tick() -> None:
        if not seen or seen[-1][1] != lock_mhz():
            seen.append((time.monotonic(), lock_mhz()))

    script = """
import time
from nodectl import hints
hints.phase(1).__enter__()
for _ in range(2):
    time.sleep(0.6); print(time.monotonic()); hints.copy(10**10)
    time.sleep(0.3); print(time.monotonic()); hints.kernel()
time.sleep(0.3)
"""
    with watching(path) as watch, InProcess(twin, is_realtime=True) as node, Interruptions(node.ports.clock) as waits:
        waits.also = watch.descriptor
        with Agent.open(node.ports, config, wait=waits.wait, hints=watch) as agent:
            child = subprocess.Popen(
                [sys.executable, "-c", script], env={**os.environ, "NODECTL_HINTS": str(path)},
                stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            waits.watch(child)
            agent.run(is_over=waits.is_over, each_tick=each_tick)
            ticks = agent.summary().ticks
        given = [float(line) for line in child.communicate()[0].split()]
    assert [mhz for _, mhz in seen[:5]] == [seen[0][1], *[1005, seen[0][1]] * 2]
    delays = sorted(at - when for (at, _), when in zip(seen[1:5], given, strict=True))
    assert 0.0 <= delays[1] < 0.1, delays
    assert ticks > 5
    journal = open_journal(config.journal_dir)
    records = list(journal)
    assert max(record.raw.hints.copies for record in records) == 2
    assert min(b.raw.time_ns - a.raw.time_ns for a, b in pairwise(records)) < 0.5e9
    assert replay(journal).is_equal
    export(journal, str(tmp_path / "table.csv"))
    lines = (tmp_path / "table.csv").read_text().splitlines()
    column = lines[0].split(",").index("reading")
    copies = [float(line.split(",")[column]) for line in lines if ",hints/copies,measured," in line]
    assert sum(copies) == 2.0


def test_a_hint_wakes_nobody_before_the_knobs_have_followed_their_last_write(path: Path) -> None:
    with watching(path) as watch:
        give(path, 1)
        assert is_woken(watch)
        watch.read()
        begin_s = time.monotonic()
        watch.look(sample_with(NO_HINTS), 0.0, least_s=2.0)
        give(path, 3)
        assert is_woken(watch)
        assert time.monotonic() - begin_s >= 2.0
        watch.read()
        watch.look(sample_with(NO_HINTS), 0.0, least_s=1000.0)
        give(path, 3)
        assert not is_woken(watch, 0.2)
    until_s = time.monotonic() + PATIENCE_S
    while [thread for thread in threading.enumerate() if thread.name == "hints"]:
        assert time.monotonic() < until_s, "closing ends a sleep that has been held"
        time.sleep(0.01)


def test_no_thread_is_left_when_the_watch_is_closed(path: Path) -> None:
    with watching(path) as watch:
        watch.look(sample_with(NO_HINTS), 0.0)
        assert [thread for thread in threading.enumerate() if thread.name == "hints"]
    until_s = time.monotonic() + PATIENCE_S
    while [thread for thread in threading.enumerate() if thread.name == "hints"]:
        assert time.monotonic() < until_s
        time.sleep(0.01)


def test_a_sleeper_that_ends_while_it_is_closed_keeps_its_descriptors_until_then(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closed between its wake-up and its look at whether it is over: the descriptor that ``close`` writes to must not
    be closed, or another file's, by then."""
    write, read, page, news = os.eventfd_write, os.eventfd_read, HintFile(path, ME), os.eventfd(0)
    written: list[bool] = []

    def slow_write(descriptor: int, value: int) -> None:
        if threading.current_thread() is threading.main_thread() and written:
            time.sleep(0.4)
        written.append(True)
        write(descriptor, value)

    def slow_read(descriptor: int) -> int:
        found = read(descriptor)
        time.sleep(0.1)
        return found

    monkeypatch.setattr(os, "eventfd_write", slow_write)
    monkeypatch.setattr(os, "eventfd_read", slow_read)
    sleeper = page.sleeper(news)
    sleeper.sleep(0)
    sleeper.close()
    sleeper.close()
    page.close()
    os.close(news)
    assert len(written) == 2


def test_gpu_events_saves_on_an_emulated_card_only_what_its_program_hints() -> None:
    with_hints, without = (
        run(Experiment("spr-h100", "hpcg", duration_s=12.0, gpu_policy="gpu-events"), hints=hints)
        for hints in (EmulatedHints, None)
    )
    assert 1.0 - with_hints.joules("gpu") / without.joules("gpu") > 0.05
    assert with_hints.slowdown_against(without.time_s) < 0.001
    assert with_hints.ticks > without.ticks


@pytest.mark.parametrize("cap_mhz", [0, 1110, 900])
def test_a_cap_holds_whatever_clock_hints_ask_for(path: Path, tmp_path: Path, cap_mhz: int) -> None:
    """A job hints a kernel and a copy in turn, which asks for the highest clock and for a low one."""
    twin = Twin(load_machine("xh2415"))
    config = Config(
        mode="optimize", gpu_policy=PolicyChoice("gpu-events"), cpu_policy=PolicyChoice("none"), calibration="",
        caps=Caps(gpu_max_mhz=cap_mhz), state_dir=str(tmp_path / "state"), gpu=GpuSettings(0), budget=Budget(0.0),
    )  # fmt: skip
    seen: dict[Hint, set[int]] = {Hint.KERNEL: set(), Hint.COPY: set()}
    with watching(path) as watch, InProcess(twin) as node, Agent.open(node.ports, config, hints=watch) as agent:
        for count in range(1, 11):
            last = Hint.COPY if count % 2 else Hint.KERNEL
            path.write_bytes(PAGE.pack(1, 0, count, 0, last, 0, (count + 1) // 2, count // 2, 0, 0, 0))
            agent.tick()
            seen[last].add(int(twin.gpus.gpu[0].lock_max_mhz))
    high = cap_mhz or 1410
    assert seen == {Hint.KERNEL: {high}, Hint.COPY: {min(1005, high)}}
