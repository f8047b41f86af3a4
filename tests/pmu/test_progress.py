"""The application's own count: read from a file that belongs to someone else, and believed only so far."""

from __future__ import annotations

import math
import os
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from nodectl.jobs.progress_file import SIZE, make_progress_file, progress_file
from pmu.decode import decode
from pmu.instruments.job_progress import CounterFile
from pmu.readings import NO_RAW_PROGRESS, RAW_HIGHEST, RAW_MISSING, Quality, RawProgress, Sample
from tests.pmu.test_decode import first, later


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "progress"
    make_progress_file(made)
    return made


def put(path: Path, units: int) -> None:
    with path.open("r+b") as file:
        file.write(struct.pack("<Q", units))


def test_the_file_is_private_small_and_all_zero(path: Path) -> None:
    assert path.read_bytes() == bytes(SIZE) == bytes(64)
    assert path.stat().st_mode & 0o777 == 0o600
    with progress_file() as own:
        assert own is not None and own.parent.stat().st_mode & 0o777 == 0o700
    assert not own.parent.exists()


def test_a_count_is_read_as_it_is_now(path: Path) -> None:
    counter = CounterFile(path)
    assert counter.read() == 0
    put(path, 2**40 + 7)
    assert counter.read() == 2**40 + 7
    counter.close()
    assert counter.read() == RAW_MISSING


@pytest.mark.parametrize("units", [2**63 - 1, 2**63, 2**64 - 1])
def test_a_count_beyond_what_can_be_kept_stays_at_the_end_of_the_range(path: Path, units: int) -> None:
    put(path, units)
    assert CounterFile(path).read() == RAW_HIGHEST


def test_a_file_that_its_job_cuts_short_grows_or_removes_harms_nobody(path: Path) -> None:
    put(path, 9)
    counter = CounterFile(path)
    for size, units in ((0, RAW_MISSING), (7, RAW_MISSING), (8, 0), (1 << 40, 0)):
        os.truncate(path, 0)
        os.truncate(path, size)
        assert counter.read() == units
    path.unlink()
    assert counter.read() == 0


def test_what_is_not_a_plain_file_is_not_opened_and_not_waited_for(tmp_path: Path, path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(path)
    for name in ("pipe", "link", "/dev/zero", "not-there"):
        with pytest.raises(OSError):
            CounterFile(tmp_path / name)


def decoded(before: RawProgress, now: RawProgress) -> Sample:
    sweep = first()
    return decode_of(replace(sweep, progress=before), now)


def decode_of(sweep, now):  # type: ignore[no-untyped-def]
    from tests.pmu.test_decode import LAYOUT

    return decode(LAYOUT, sweep, replace(later(sweep), progress=now))


def test_units_are_those_finished_since_the_sweep_before() -> None:
    told = decoded(RawProgress(1, 40), RawProgress(1, 43)).progress
    assert (told.units, told.source, told.quality) == (3.0, 1, Quality.MEASURED)
    told = decoded(RawProgress(1, 0), RawProgress(1, 1)).progress
    assert (told.units, told.quality) == (1.0, Quality.MEASURED)
    told = decoded(RawProgress(1, 43), RawProgress(1, 43)).progress
    assert (told.units, told.quality) == (0.0, Quality.MEASURED)  # one is under way


def test_units_are_believed_up_to_the_fastest_loop() -> None:
    most = 10**11  # in a tenth of a second
    assert decoded(RawProgress(1, 5), RawProgress(1, 5 + most)).progress.quality == Quality.MEASURED
    assert decoded(RawProgress(1, 5), RawProgress(1, 6 + most)).progress.quality == Quality.CLIPPED


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (NO_RAW_PROGRESS, NO_RAW_PROGRESS),
        (NO_RAW_PROGRESS, RawProgress(1, 5)),  # nothing to count from
        (RawProgress(1, 5), NO_RAW_PROGRESS),
        (RawProgress(1, 0), RawProgress(1, 0)),  # a program that does not tell looks so
        (RawProgress(1, 5), RawProgress(2, 9)),  # another program's
        (RawProgress(1, 5), RawProgress(1, RAW_MISSING)),
    ],
)
def test_progress_that_nobody_reported_is_missing(before: RawProgress, now: RawProgress) -> None:
    told = decoded(before, now).progress
    assert math.isnan(told.units) and told.quality == Quality.MISSING


@pytest.mark.parametrize(
    ("before", "now"),
    [(5, 4), (5, 0), (0, 10**12), (5, RAW_HIGHEST), (RAW_HIGHEST, RAW_HIGHEST)],
)
def test_a_count_that_runs_backwards_or_beyond_reason_is_not_believed(before: int, now: int) -> None:
    told = decoded(RawProgress(1, before), RawProgress(1, now)).progress
    assert math.isnan(told.units) and told.quality == Quality.CLIPPED and told.source == 1
