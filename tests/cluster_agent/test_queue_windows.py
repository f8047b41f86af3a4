"""Windows of queues: how they are written, the engine against a plain machine, and the option of a replay."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from cluster_agent.errors import WrongUseError
from cluster_agent.scheduler.job_columns import Jobs
from cluster_agent.scheduler.native.native_replay import NativeReplay
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.switches.limits import CLimits
from cluster_agent.scheduler.switches.queue_windows import OpenQueues, Span, as_shown, longest_s, spans, windows_of
from cluster_agent.scheduler.switches.queue_windows import opened as opened_spans
from cluster_agent.scheduler.switches.reservations import DAY_S, Reserved
from tests.cluster_agent.replay_by_command import replayed
from tests.cluster_agent.test_reservations import COMPOSITIONS, limits_of, reservations
from tests.cluster_agent.traces import EVERYTHING_ENDED, PROCESSORS, SCORES, jobs_of, traces
from tests.oracle.reserved_machine import ReservedMachine

HOUR_S = 3600
WINTER_S, SUMMER_S = (int(datetime(2030, month, 7, tzinfo=UTC).timestamp()) for month in (1, 7))


def hours(text: str, from_s: int = WINTER_S) -> list[tuple[float, float]]:
    """Hours of the week that begins on Monday, 7 January 2030."""
    windows = windows_of(f"q={text}")["q"]
    found = spans(windows, from_s, from_s + 7 * DAY_S, UTC)
    return [((one.from_s - from_s) / HOUR_S, (one.to_s - from_s) / HOUR_S) for one in found]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sat-sun", [(120, 168)]),
        ("wed", [(48, 72)]),
        ("wed@09:30-12:00", [(57.5, 60)]),
        ("fri@18:00-24:00,sat-sun,mon@00:00-06:00", [(-54, 6), (114, 174)]),
        ("18:00-08:00", [(-6, 8), *((day * 24 + 18, day * 24 + 32) for day in range(7))]),
        ("sun-mon@20:00-02:00", [(-4, 2), (20, 26), (164, 170)]),
        ("tue@08:00-08:00", [(32, 56)]),
    ],
)
def test_windows_are_days_hours_or_hours_of_days_and_are_one_where_they_touch(
    text: str, expected: list[tuple[float, float]]
) -> None:
    assert hours(text) == expected
    assert hours(as_shown(windows_of(f"q={text}")).removeprefix("q=")) == expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("night", "night: give QUEUE=WINDOW,..., such as night=18:00-08:00,sat-sun"),
        ("n=18-08", "n=18-08: '18-08' is no window; give HH:MM-HH:MM, DAY, DAY-DAY or DAY-DAY@HH:MM-HH:MM"),
        ("n=sat,", "'' is no window"),
        ("n=@18:00-20:00", "is no window"),
        ("n=sat@", "is no window"),
        ("n=25:00-26:00", "n=25:00-26:00: 25:00 is no time of the day"),
        ("n=24:00-02:00", "begins at 24:00, which is 00:00 of the next day"),
        ("n=sat n=sun", "n=sun: the windows of queue n are there twice"),
        ("n=mon-sun", "these windows are the whole week; leave the queue out"),
        ("n=18:00-08:00,08:00-18:00", "these windows are the whole week"),
    ],
)
def test_what_is_no_window_is_one_line(text: str, problem: str) -> None:
    with pytest.raises(WrongUseError) as error:
        windows_of(text)
    assert problem in str(error.value)


def test_a_window_stays_at_its_hours_where_clocks_change() -> None:
    windows, zone = windows_of("night=18:00-08:00")["night"], ZoneInfo("Europe/Rome")
    for at_s, hour in ((WINTER_S, 17), (SUMMER_S, 16)):
        assert spans(windows, at_s + 12 * HOUR_S, at_s + DAY_S, zone)[0].from_s == at_s + hour * HOUR_S
    assert longest_s(windows) == 14 * HOUR_S


def test_the_week_that_is_taken_again_has_no_change_of_clocks() -> None:
    """Wherever the last one ends: the windows of the week after it are those a week before, and lap over none."""
    windows, zone = windows_of("night=18:00-08:00"), ZoneInfo("Europe/Berlin")
    from_s = int(datetime(2026, 3, 5, tzinfo=zone).timestamp())
    for day in range(14, 40):
        found = opened_spans(windows, from_s, from_s + day * DAY_S, zone).windows
        starts_s = [one.from_s for one in found]
        assert np.diff(starts_s[-8:]).tolist() == [DAY_S] * 7, day


def replay_in_windows(jobs: Jobs, windows: list[Span], queue_of: list[int], ended: int) -> NativeReplay:
    """Under EASY, with one queue, until so many have ended."""
    limits = replace(limits_of(jobs, [], [0] * len(jobs)), switches=("windows",),
                     queues=OpenQueues(np.array([0, len(windows)], np.int32), windows),
                     open=np.array(queue_of, np.int32))  # fmt: skip
    replay = NativeReplay(Composition(backfill="easy"), jobs, PROCESSORS, limits=CLimits(limits))
    replay.run(ended)
    return replay


def test_a_job_that_has_no_place_keeps_none_from_the_next_one_of_its_queue() -> None:
    """The first is wider than the machine, as one of a live partition is that has lost nodes; the third would delay the
    second."""
    jobs = jobs_of([(0, 50, 50, PROCESSORS + 1, 0), (0, 50, 50, PROCESSORS, 0), (0, 150, 150, 1, 0)])
    found = replay_in_windows(jobs, [Span(100, 200)], [1, 1, 0], ended=2)
    assert found.start_s.tolist() == [-1, 100, 150]


def test_weeks_that_lap_over_one_another_end_a_replay_all_the_same() -> None:
    """The last of these nights is an hour earlier, as after a change to summer time, so the week taken again has one
    that begins before the last has ended."""
    nights = [Span(day * DAY_S + 18 * HOUR_S, day * DAY_S + 32 * HOUR_S) for day in range(14)]
    nights[-1] = Span(nights[-1].from_s - HOUR_S, nights[-1].to_s - HOUR_S)
    length_s = 13 * HOUR_S
    jobs = jobs_of([(0, length_s, length_s, PROCESSORS, 0)] * 16)
    replay = replay_in_windows(jobs, nights, [1] * len(jobs), EVERYTHING_ENDED)
    again_s = [one.from_s + 7 * DAY_S for one in nights[7:9]]
    assert replay.start_s.tolist() == [one.from_s for one in nights] + again_s


@st.composite
def opened(draw: st.DrawFn, jobs: Jobs) -> tuple[list[list[Span]], list[int]]:
    """Two queues at most, each with windows of some seconds until long after the trace, and the queue of each job
    (0: none) that some window of it is long enough for."""
    queues = []
    for _ in range(draw(st.integers(1, 2))):
        length_s, gap_s = draw(st.integers(3, 30)), draw(st.integers(1, 20))
        queues.append([Span(at_s, at_s + length_s) for at_s in range(draw(st.integers(0, 9)), 4000, length_s + gap_s)])
    fits = [[0, *(at for at, each in enumerate(queues, 1) if request_s <= each[0].to_s - each[0].from_s)]
            for request_s in jobs.request_s.tolist()]  # fmt: skip
    return queues, [draw(st.sampled_from(each)) for each in fits]


@settings(max_examples=80, deadline=None)
@given(jobs=traces(12), composition=COMPOSITIONS, reserved=reservations(), data=st.data())
def test_the_engine_and_the_plain_machine_start_the_same_jobs_around_reservations_and_in_windows(
    jobs: Jobs, composition: Composition, reserved: list[Reserved], data: st.DataObject
) -> None:
    if composition.priority is not None:
        composition = Composition(backfill=composition.backfill, score=SCORES[0])
    drawn = [data.draw(st.integers(0, 2 * len(reserved))) for _ in range(len(jobs))]
    pool = [at if at <= len(reserved) else 0 for at in drawn]
    queues, queue_of = data.draw(opened(jobs))
    windows = [queues[at - 1] if at else None for at in queue_of]
    expected = ReservedMachine(composition, jobs, PROCESSORS, reserved, pool, windows, queue_of).replay()
    limits = limits_of(jobs, reserved, pool)
    opens = np.cumsum([0, *map(len, queues)]).astype(np.int32)
    limits = replace(limits, switches=("reservations", "windows"),
                     queues=OpenQueues(opens, [one for each in queues for one in each]),
                     open=np.array(queue_of, np.int32))  # fmt: skip
    c_limits = CLimits(limits)
    replay, free = (NativeReplay(composition, jobs, PROCESSORS, **more) for more in ({"limits": c_limits}, {}))
    replay.run(EVERYTHING_ENDED)
    found = {job: at_s for job, at_s in enumerate(replay.start_s.tolist()) if at_s >= 0}
    assert found == expected
    for job, at_s in found.items():  # whatever the policy is
        for number, one in enumerate(reserved, 1):
            if pool[job] == number:
                last_s = one.next_from_s(at_s)
                assert last_s is not None and last_s <= at_s and at_s + jobs.request_s[job] <= last_s + one.length_s
        if (each := windows[job]) is not None and not pool[job]:
            assert any(one.from_s <= at_s and at_s + jobs.request_s[job] <= one.to_s for one in each)
    if not any(c_limits.switches.values()) and composition.backfill == "none":
        free.run(EVERYTHING_ENDED)
        assert free.start_s.tolist() == replay.start_s.tolist(), "what counts 0 has changed nothing"


# --- the option


def write_log(path: Path, *jobs: str, head: str = "; TimeZoneString: Europe/Rome\n") -> Path:
    """Of ten processors, from midnight in Greenwich of Monday, 7 January 2030; a job is submission, run time, walltime,
    processors, queue."""
    text = f"; UnixStartTime: {WINTER_S}\n; MaxProcs: 10\n{head}"
    for number, job in enumerate(jobs, 1):
        submit_s, run_s, request_s, width, queue = job.split()
        text += f"{number} {submit_s} -1 {run_s} {width} -1 -1 {width} {request_s} -1 1 1 1 -1 {queue} 1 -1 -1\n"
    path.write_text(text)
    return path


def starts(folder: Path) -> list[int]:
    return [start_s for _, start_s in rows(folder)]


def rows(folder: Path) -> list[tuple[int, int]]:
    """The number and the start of each job."""
    table = [row.split(",") for row in (folder / "jobs.csv").read_text().splitlines()[1:]]
    return [(int(row[0]), int(row[8])) for row in table]


def test_jobs_of_a_queue_start_and_end_in_its_windows_and_keep_their_places(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Queue 2 has the nights from 18:00 to 08:00 in Rome, an hour before Greenwich, and queue 3 the weekend. Job 3
    waits for the whole machine in the night, job 4 is too long for the rest of the first one, and job 5 would delay
    job 3."""
    log = write_log(
        tmp_path / "site.swf",
        "0 3600 7200 4 2", "0 3600 7200 1 3", "21600 3600 36000 10 2", "21600 3600 50400 1 2", "57600 3600 10800 2 1",
        "57600 3600 3600 2 1", "61000 9000000 9000000 5 1", "61000 10 50400 8 2",
    )  # fmt: skip
    out = tmp_path / "out"
    status, found, _ = replayed(capsys, log, "--windows", "2=18:00-08:00 3=sat-sun", "--out", out)
    assert status == 0
    night_s, saturday_s = 17 * HOUR_S, 5 * DAY_S - HOUR_S
    assert starts(out)[:4] == [0, saturday_s, night_s, night_s + DAY_S]
    assert starts(out)[4:7] == [night_s + HOUR_S, 57600, night_s + HOUR_S]
    ends_s = starts(out)[6] + 9_000_000
    assert starts(out)[7] == night_s + (ends_s - night_s + DAY_S - 1) // DAY_S * DAY_S, "long after the log"
    assert found["switches"] == {"windows": 4}


@pytest.mark.parametrize(
    ("text", "more", "head", "problem"),
    [
        ("2=18-08", "", "", "--windows 2=18-08: '18-08' is no window"),
        ("7=sat", "", "", "has no job of queue 7; correct it, or leave its windows out"),
        ("2=sat", "", "; TimeZoneString: Nowhere/At_all\n", "the time zone 'Nowhere/At_all', which is unknown"),
        ("2=sat", "--memory 1", "", "does not go with --partitions and --memory"),
        ("2=sat", "--policy conservative:ends=compress", "", "backfill=compress does not go with windows"),
        ("2=sat", "--policy fcfs-killer --machine curie", "", "a reaction to caps does not go with windows"),
        ("2=sat", "--policy planned", "", ""),
        ("2=sat", "--log events.jsonl", "", "windows are not in an event log; leave one of them out"),
        (" ", "", "", "--windows is empty: leave it out"),
        ("2=sat", "--strict", "", "jobs longer than any window of their queue"),
    ],
)
def test_what_does_not_go_with_windows_is_one_line(
    text: str, more: str, head: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = write_log(tmp_path / "site.swf", "0 60 60 1 2", "0 60 90000 1 2", head=head)
    status, _, err = replayed(capsys, log, "--windows", text, *more.split())
    assert status and problem in err and len(err.splitlines()) == 1


def test_jobs_that_no_window_fits_are_dropped_and_a_log_without_a_date_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = write_log(tmp_path / "site.swf", "0 60 60 1 2", "0 60 90000 1 2")
    status, found, err = replayed(capsys, log, "--windows", "2=sat")
    assert (status, found["ended"]) == (0, 1) and "longer than any window of their queue: 1 dropped" in err
    log.write_text(log.read_text().replace("UnixStartTime", "Note"))
    status, _, err = replayed(capsys, log, "--windows", "2=sat")
    assert status == 2 and "does not say when it begins: add a line `; UnixStartTime: SECONDS`" in err


def test_a_state_goes_on_with_its_windows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = [f"{600 * at} 3600 {3600 + 600 * (at % 5)} {1 + at % 7} {1 + at % 3}" for at in range(200)]
    log, state = write_log(tmp_path / "site.swf", *jobs), tmp_path / "state.json"
    given = log, "--windows", "2=18:00-08:00 3=tue-wed@10:00-16:00,sun"
    cut = "--state-at", 70_000, "--state-out", state
    assert replayed(capsys, *given, "--out", tmp_path / "whole", *cut)[0] == 0
    assert replayed(capsys, *given, "--state", state, "--out", tmp_path / "rest")[0] == 0
    whole, rest = (dict(rows(tmp_path / name)) for name in ("whole", "rest"))
    assert 50 < len(rest) < 200 and rest.items() <= whole.items()
