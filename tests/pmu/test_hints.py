"""Hints of a job: a page that belongs to someone else, read, slept on, and believed only so far."""

from __future__ import annotations

import os
import select
import struct
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from nodectl.jobs.hint_page import hint_page, make_hint_page
from pmu.decode import MOST_WAITING, decode
from pmu.instruments.job_hints import PAGE, HintFile, Sleeper
from pmu.readings import NO_HINTS, NO_RAW_HINTS, RAW_HIGHEST, Hint, HintSample, PmuError, Quality, RawHints
from tests.pmu.test_decode import LAYOUT, first, later
from tests.waiting import PATIENCE_S

ME = os.geteuid()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "hints"
    make_hint_page(made)
    return made


def put(path: Path, news: int, phase: int = 0, last: int = 0, *counts: int, version: int = 1) -> None:
    counts = (*counts, *[0] * (5 - len(counts)))
    with path.open("r+b") as file:
        file.write(PAGE.pack(version, 0, news, phase, last, 0, *counts))


def test_the_page_is_private_and_begins_without_a_hint(path: Path) -> None:
    assert path.read_bytes() == struct.pack("<I", 1) + bytes(60)
    assert path.stat().st_mode & 0o777 == 0o600
    with hint_page() as own:
        assert own is not None and own.parent.stat().st_mode & 0o777 == 0o700
    assert not own.parent.exists()


def test_a_page_is_read_as_it_is_now(path: Path) -> None:
    page = HintFile(path, ME)
    assert page.read(4) == RawHints(4, *[0] * 8)
    put(path, 7, 3, 2, 10, 11, 12, 13, 2**64 - 1)
    assert page.read(4) == RawHints(4, 7, 3, 2, 10, 11, 12, 13, RAW_HIGHEST)
    put(path, 7, version=9)
    assert page.read(4).last == -1
    page.close()
    assert page.read(4) == NO_RAW_HINTS


def test_what_is_not_the_page_of_the_jobs_user_is_refused_in_one_line(tmp_path: Path, path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(path)
    (tmp_path / "short").write_bytes(bytes(63))
    (tmp_path / "long").write_bytes(bytes(65))
    for name, problem in (
        ("pipe", "not a plain file"), ("link", "symbolic links"), ("/dev/zero", "not a plain file"),
        ("short", "has 63 bytes, not 64"), ("long", "has 65 bytes, not 64"),
    ):  # fmt: skip
        with pytest.raises(PmuError, match=problem) as refused:
            HintFile(tmp_path / name, ME)
        assert str(tmp_path / name) in str(refused.value) and "\n" not in str(refused.value)
    with pytest.raises(PmuError, match=f"belongs to user {ME}, not to {ME + 1}"):
        HintFile(path, ME + 1)
    os.link(path, tmp_path / "second")
    with pytest.raises(PmuError, match="several names"):
        HintFile(path, ME)
    with pytest.raises(FileNotFoundError):
        HintFile(tmp_path / "none", ME)


# --- sleeping on it ---


@pytest.fixture
def slept(path: Path) -> Iterator[tuple[Path, HintFile, Sleeper, int]]:
    page, news = HintFile(path, ME), os.eventfd(0, os.EFD_NONBLOCK)
    sleeper = page.sleeper(news)
    yield path, page, sleeper, news
    sleeper.close()
    sleeper._thread.join(PATIENCE_S)
    assert not sleeper._thread.is_alive()


def is_woken(news: int, within_s: float) -> bool:
    return bool(select.select([news], [], [], within_s)[0])


def test_a_change_before_the_sleep_is_not_slept_through(slept: tuple[Path, HintFile, Sleeper, int]) -> None:
    path, _, sleeper, news = slept
    put(path, 5)
    sleeper.sleep(4)
    assert is_woken(news, PATIENCE_S)


def test_each_sleep_ends_once_however_often_the_page_changes(slept: tuple[Path, HintFile, Sleeper, int]) -> None:
    path, _, sleeper, news = slept
    for change in range(1, 50):
        put(path, change)
    assert not is_woken(news, 0.05), "nobody sleeps yet"
    sleeper.sleep(0)
    assert is_woken(news, PATIENCE_S)
    assert os.eventfd_read(news) == 1
    assert not is_woken(news, 0.05), "the loop has not sent it back to sleep"


def test_a_page_that_is_cut_short_while_it_is_slept_on_kills_nobody(slept: tuple[Path, HintFile, Sleeper, int]) -> None:
    path, page, sleeper, _ = slept
    sleeper.sleep(0)
    time.sleep(0.05)
    for size in (0, 7, 1 << 30, 0):
        os.truncate(path, size)
    assert page.read(1) == NO_RAW_HINTS
    sleeper.close()
    sleeper._thread.join(PATIENCE_S)
    assert not sleeper._thread.is_alive()


def test_a_page_that_cannot_be_written_is_not_slept_on_and_says_why(tmp_path: Path) -> None:
    make_hint_page(tmp_path / "hints")
    reads_only, news = os.open(tmp_path / "hints", os.O_RDONLY), os.eventfd(0, os.EFD_NONBLOCK)
    sleeper = Sleeper(reads_only, news)
    sleeper.sleep(0)
    assert is_woken(news, PATIENCE_S)
    assert sleeper.why_not == os.strerror(9)
    sleeper.close()


# --- what is believed ---

BEFORE = RawHints(1, 5, 2, Hint.COPY, 3, 100, 8, 7, 2)


def decoded(before: RawHints, now: RawHints) -> HintSample:
    sweep = replace(first(), hints=before)
    return decode(LAYOUT, sweep, replace(later(sweep), hints=now)).hints


def test_counts_are_those_of_the_interval_and_the_rest_is_as_at_its_end() -> None:
    now = RawHints(1, 9, 3, Hint.KERNEL, 4, 150, 9, 9, 3)
    assert decoded(BEFORE, now) == HintSample(Hint.KERNEL, 3, 1, 50, 1, 0, Quality.MEASURED, 0)
    assert decoded(BEFORE, BEFORE) == HintSample(Hint.COPY, 2, 0, 0, 0, 1, Quality.MEASURED, 1)


def test_the_count_of_changes_may_start_again_from_zero() -> None:
    before = BEFORE._replace(news=2**32 - 1)
    assert decoded(before, before._replace(news=0, copies=4)).quality == Quality.MEASURED


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (NO_RAW_HINTS, BEFORE),  # nothing to count from
        (BEFORE, NO_RAW_HINTS),
        (BEFORE, BEFORE._replace(source=2)),  # another program's
        (RawHints(1, *[0] * 8), RawHints(1, *[0] * 8)),  # a program without hints looks so
    ],
)
def test_hints_that_nobody_gave_are_missing(before: RawHints, now: RawHints) -> None:
    assert decoded(before, now) == NO_HINTS


@pytest.mark.parametrize(
    "change",
    [
        {"last": 3}, {"last": -1}, {"copies": 2}, {"kernels": RAW_HIGHEST}, {"kernels": 10**15}, {"phases": 0},
        {"waits": 7 + MOST_WAITING + 1}, {"waited": 8 + MOST_WAITING + 1},
    ],
)  # fmt: skip
def test_a_page_that_no_program_of_ours_writes_is_not_believed(change: dict[str, int]) -> None:
    found = decoded(BEFORE, BEFORE._replace(**change))
    assert found.quality == Quality.CLIPPED and found.last == Hint.NONE and found.waiting == 0
