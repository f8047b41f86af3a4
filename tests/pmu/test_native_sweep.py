"""The native sweeps, on counters that every kernel has and on real files."""

from __future__ import annotations

import errno
import mmap
import os
import resource
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pmu._native import ffi, lib

from pmu.descriptors import raise_descriptor_limit
from pmu.instruments.event_source import PERF_TYPE_SOFTWARE
from pmu.instruments.kept import NativeIntegers
from pmu.instruments.perf_groups import PerfGroups, Source, try_open
from pmu.readings import RAW_MISSING, PmuError, type_i64
from pmu.system import OsFiles
from pmu.topology import online_cpus
from tests.open_files import n_open

# enum perf_sw_ids (include/uapi/linux/perf_event.h)
CPU_CLOCK = Source(PERF_TYPE_SOFTWARE, 0, "cpu-clock")
PAGE_FAULTS = Source(PERF_TYPE_SOFTWARE, 2, "page-faults")
CONTEXT_SWITCHES = Source(PERF_TYPE_SOFTWARE, 3, "context-switches")
MINOR_FAULTS = Source(PERF_TYPE_SOFTWARE, 5, "minor-faults")
NO_SUCH_EVENT = Source(PERF_TYPE_SOFTWARE, 999, "no-such-event")

CPUS = online_cpus(OsFiles())

FAULTS_UNDER_WAY = 100  # at most, at one moment, on the whole machine


_refusal = try_open(CPU_CLOCK, CPUS[0])
counting = pytest.mark.skipif(
    _refusal != 0, reason=f"system-wide counting is not allowed here: {errno.errorcode.get(_refusal)} (root may)"
)


@pytest.fixture
def groups() -> Iterator[PerfGroups]:
    opened = PerfGroups(CPUS, [[CPU_CLOCK, PAGE_FAULTS, CONTEXT_SWITCHES, MINOR_FAULTS]] * len(CPUS))
    yield opened
    opened.close()


def swept(groups: PerfGroups, columns: int) -> type_i64:
    out = np.zeros((len(CPUS), columns), np.int64)
    groups.sweep(out)
    return out


def touch(pages: int) -> None:
    with mmap.mmap(-1, pages * mmap.PAGESIZE) as memory:
        for page in range(pages):
            memory[page * mmap.PAGESIZE] = 1


@counting
def test_one_sweep_reads_all_events_of_all_cpus(groups: PerfGroups) -> None:
    before, begin_ns = swept(groups, 4), time.monotonic_ns()
    touch(500)
    time.sleep(0.02)
    after, elapsed_ns = swept(groups, 4), time.monotonic_ns() - begin_ns
    step = after - before
    assert (before != RAW_MISSING).all() and (step >= 0).all()
    assert step[:, 1].sum() >= 500, "page faults"
    assert step[:, 3].sum() >= 500, "minor faults"
    # A fault is counted when it begins, a minor one when it ends: one under way at the first sweep is in one step only.
    assert step[:, 3].sum() <= step[:, 1].sum() + FAULTS_UNDER_WAY, "minor faults are page faults"
    assert (step[:, 0] > 0).all() and (step[:, 0] < 10 * elapsed_ns).all(), "cpu-clock counts nanoseconds"
    assert groups.errors() == [0] * len(CPUS)


@counting
def test_events_of_a_cpu_share_one_descriptor_to_read(groups: PerfGroups) -> None:
    assert len(groups._groups) == len(CPUS)
    assert len(groups._descriptors) == 4 * len(CPUS)


@counting
def test_totals_never_run_backwards(groups: PerfGroups) -> None:
    before = swept(groups, 4)
    for _ in range(200):
        now = swept(groups, 4)
        assert (now >= before).all()
        before = now


@counting
def test_a_sweep_right_after_another_still_gives_values(groups: PerfGroups) -> None:
    for _ in range(50):
        assert (swept(groups, 4) != RAW_MISSING).all()


@counting
def test_an_event_refused_on_a_cpu_leaves_the_others_of_that_cpu() -> None:
    groups = PerfGroups(CPUS, [[CPU_CLOCK, NO_SUCH_EVENT, PAGE_FAULTS]] * len(CPUS))
    out = swept(groups, 3)
    assert (out[:, 1] == RAW_MISSING).all()
    assert (out[:, [0, 2]] != RAW_MISSING).all()
    assert groups.errors()[0] == errno.ENOENT
    groups.close()


@counting
def test_a_cpu_that_does_not_exist_is_missing_and_the_rest_goes_on() -> None:
    absent = max(CPUS) + 4096
    groups = PerfGroups((*CPUS, absent), [[CPU_CLOCK]] * (len(CPUS) + 1))
    out = np.zeros((len(CPUS) + 1, 1), np.int64)
    groups.sweep(out)
    assert out[-1, 0] == RAW_MISSING and (out[:-1] != RAW_MISSING).all()
    assert groups.errors()[-1] in (errno.ENODEV, errno.EINVAL)
    groups.close()


@counting
def test_cells_without_a_source_stay_missing() -> None:
    groups = PerfGroups(CPUS, [[None, CPU_CLOCK]] * len(CPUS))
    out = swept(groups, 2)
    assert (out[:, 0] == RAW_MISSING).all() and (out[:, 1] != RAW_MISSING).all()
    groups.close()


@counting
def test_more_events_than_fit_a_group_are_merged_into_the_same_row() -> None:
    groups = PerfGroups(CPUS, [[CPU_CLOCK] * 11] * len(CPUS))
    assert len(groups._groups) == 2 * len(CPUS)
    assert (swept(groups, 11) != RAW_MISSING).all()
    groups.close()


@counting
def test_closed_groups_give_no_values(groups: PerfGroups) -> None:
    groups.close()
    assert (swept(groups, 4) == RAW_MISSING).all()
    assert groups.errors() == [errno.EBADF] * len(CPUS)


@counting
def test_an_array_of_another_shape_is_refused(groups: PerfGroups) -> None:
    with pytest.raises(ValueError, match="shape"):
        groups.sweep(np.zeros((1, 1, 1), np.int64))
    with pytest.raises(ValueError, match="contiguous"):
        groups.sweep(np.zeros((4, len(CPUS)), np.int64).T)


def test_the_soft_descriptor_limit_is_raised_to_the_hard_one() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
    try:
        raise_descriptor_limit(10, "this test")
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_too_few_descriptors_say_how_many_are_needed() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        pytest.skip("the descriptor limit is infinite here")
    with pytest.raises(PmuError, match=rf"counting needs {hard} file descriptors.*hard limit is {hard}.*LimitNOFILE="):
        raise_descriptor_limit(hard, "counting")


class ScriptedGroup:
    """A group of two events whose next readings a test writes, as read(2) of the kernel would give them."""

    def __init__(self) -> None:
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        self.native: Any = ffi.new("perf_group_t[]", 1)
        self.native[0].fd, self.native[0].n_events = self._read_end, 2
        self.native[0].column[0:2] = [1, 0]
        self.native[0].moved_ns = time.monotonic_ns()

    def sweep(self, *record: int) -> list[int]:
        """``record``: number of events, time enabled, time running, values; the row that comes of it."""
        os.write(self._write_end, struct.pack(f"{len(record)}Q", *record))
        out = np.zeros((1, 2), np.int64)
        lib.sweep_groups(self.native, 1, ffi.from_buffer("int64_t[]", out), 1, 2, RAW_MISSING)
        return [int(value) for value in out[0]]

    @property
    def error(self) -> int:
        return int(self.native[0].error)

    def end(self) -> None:
        os.close(self._write_end)

    def close(self) -> None:
        os.close(self._read_end)


@pytest.fixture
def scripted() -> Iterator[ScriptedGroup]:
    group = ScriptedGroup()
    yield group
    group.close()


def test_an_interval_in_which_a_group_ran_half_the_time_is_extrapolated_by_itself(scripted: ScriptedGroup) -> None:
    assert scripted.sweep(2, 1000, 1000, 50, 7) == [7, 50]
    assert scripted.sweep(2, 2000, 1500, 60, 8) == [9, 70], "10 and 1 counted in half of the interval"
    assert scripted.native[0].is_scaled == 1
    assert scripted.sweep(2, 3000, 2500, 70, 9) == [10, 80], "a full interval again: the total does not fall back"
    assert scripted.native[0].is_scaled == 0
    scripted.end()


def test_a_group_that_did_not_run_at_all_is_missing_and_the_next_interval_covers_it(scripted: ScriptedGroup) -> None:
    scripted.sweep(2, 1000, 1000, 50, 7)
    assert scripted.sweep(2, 2000, 1000, 50, 7) == [RAW_MISSING] * 2
    assert scripted.error == errno.EAGAIN
    assert scripted.sweep(2, 3000, 2000, 60, 8) == [9, 70], "1000 ns run of 2000 enabled"
    scripted.end()


def test_counts_whose_time_stands_still_belong_to_an_offline_cpu(scripted: ScriptedGroup) -> None:
    assert scripted.sweep(2, 1000, 1000, 50, 7) == [7, 50]
    scripted.native[0].moved_ns += 10**12
    assert scripted.sweep(2, 1000, 1000, 50, 7) == [7, 50], "two sweeps within one tick of the clock"
    scripted.native[0].moved_ns -= 10**12 + 6_000_000
    assert scripted.sweep(2, 1000, 1000, 50, 7) == [RAW_MISSING] * 2
    assert scripted.error == errno.ENODEV
    assert scripted.sweep(2, 2000, 2000, 51, 8) == [8, 51], "online again"
    scripted.end()


def test_a_record_of_another_form_is_an_error_and_no_value(scripted: ScriptedGroup) -> None:
    assert scripted.sweep(3, 1000, 1000, 1, 2, 3) == [RAW_MISSING] * 2
    assert scripted.error == errno.EIO
    assert scripted.sweep(2, 1000) == [RAW_MISSING] * 2
    assert scripted.error == errno.EIO
    scripted.end()
    out = np.zeros((1, 2), np.int64)
    lib.sweep_groups(scripted.native, 1, ffi.from_buffer("int64_t[]", out), 1, 2, RAW_MISSING)
    assert scripted.error == errno.ENODATA, "end of file: the kernel gave the group up"


def kept_numbers(folder: Path, *texts: str) -> tuple[NativeIntegers, type_i64]:
    paths = []
    for i, text in enumerate(texts):
        paths.append(folder / f"file{i}")
        paths[-1].write_text(text)
    kept = NativeIntegers([str(path) for path in paths])
    out = np.zeros(len(texts), np.int64)
    kept.sweep(out)
    return kept, out


def test_numbers_in_kept_files_are_parsed_natively(tmp_path: Path) -> None:
    largest, smallest = 2**63 - 1, -(2**63 - 1)
    kept, out = kept_numbers(tmp_path, "0\n", "42", "-7\n", f"{largest}\n", f"{smallest}", "12 \n")
    assert out.tolist() == [0, 42, -7, largest, smallest, 12]
    assert kept.errors() == [0] * 6
    kept.close()


def test_text_that_is_no_number_is_missing_and_keeps_its_error(tmp_path: Path) -> None:
    kept, out = kept_numbers(tmp_path, "", "\n", "junk", "12x", "-", "9223372036854775808", "1" * 60, "0x10")
    assert (out == RAW_MISSING).all()
    assert kept.errors() == [errno.ENODATA, *[errno.EINVAL] * 4, errno.ERANGE, errno.ERANGE, errno.EINVAL]
    kept.close()


def test_kept_files_are_read_again_at_each_sweep(tmp_path: Path) -> None:
    kept, out = kept_numbers(tmp_path, "1\n", "2\n")
    (tmp_path / "file1").write_text("300\n")
    kept.sweep(out)
    assert out.tolist() == [1, 300]
    kept.close()
    kept.sweep(out)
    assert (out == RAW_MISSING).all()


def test_some_of_the_kept_files_are_read_in_the_order_of_the_request(tmp_path: Path) -> None:
    kept, _ = kept_numbers(tmp_path, "0", "10", "junk", "30")
    for number in range(4):
        (tmp_path / f"file{number}").write_text(f"{number + 1}")
    (tmp_path / "file2").write_text("junk")
    assert kept.read_some([3, 2, 0, 3]) == [4, RAW_MISSING, 1, 4]
    assert kept.read_some([]) == []
    for beyond in (4, -1):
        with pytest.raises(ValueError, match="there are 4 files"):
            kept.read_some([0, beyond])
    kept.close()


def test_a_file_that_is_not_there_is_missing_and_the_others_are_read(tmp_path: Path) -> None:
    (tmp_path / "here").write_text("5")
    kept = NativeIntegers([str(tmp_path / "gone"), str(tmp_path / "here"), str(tmp_path)])
    out = np.zeros(3, np.int64)
    kept.sweep(out)
    assert out.tolist() == [RAW_MISSING, 5, RAW_MISSING]
    assert kept.errors() == [errno.ENOENT, 0, errno.EISDIR]
    kept.close()


@counting
def test_closing_gives_every_descriptor_back(tmp_path: Path) -> None:
    before = n_open()
    groups = PerfGroups(CPUS, [[CPU_CLOCK, PAGE_FAULTS]] * len(CPUS))
    kept, _ = kept_numbers(tmp_path, "1", "2", "3")
    assert n_open() == before + 2 * len(CPUS) + 3
    groups.close()
    kept.close()
    assert n_open() == before
