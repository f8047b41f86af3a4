"""Served counters read and switch as perf_event_open(2) documents, on a source whose counts the test sets."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import itertools
import mmap
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

if os.geteuid() != 0 or not os.access("/dev/fuse", os.R_OK | os.W_OK):
    pytest.skip("needs root and /dev/fuse", allow_module_level=True)

from twin._serve import ffi, lib

from tests.waiting import PATIENCE_S, within
from twin.serve.spare_counters import SpareCounters

CPUS, COLUMNS, REFERENCE = 4, 5, 1
ENABLED, RUNNING, ID, GROUP, LOST = 1, 2, 4, 8, 16
ENABLE, DISABLE, RESET = 0x2400, 0x2401, 0x2403
GET_ID = 0x80082407
ALL_OF_GROUP = 1
ENERGY_RANGE_UJ = 1_000_000


class Counters:
    """A table of events over counts that stand in ``counts[cpu][column]`` until the test changes them."""

    def __init__(self) -> None:
        self.counts = [[0] * COLUMNS for _ in range(CPUS)]
        self.zone_uj = 0
        self.traffic_gb = 0.0
        self._callbacks = (
            ffi.callback("void(void *, int64_t *)", self._read),
            ffi.callback("int64_t(void *, int32_t)", lambda _, zone: self.zone_uj),
            ffi.callback("double(void *, int32_t)", lambda _, package: self.traffic_gb),
        )
        source = dict(zip(("counters", "zone_uj", "traffic_gb"), self._callbacks, strict=True))
        size = {"n_cpus": CPUS, "n_columns": COLUMNS, "reference_column": REFERENCE, "reference_hz": 2e9}
        self.table = lib.events_new({**source, "model": ffi.NULL, **size})
        fds = ffi.new("int[2]")
        assert lib.fuse_mount(b"test", fds, fds + 1) == 0
        self.device_fd, self.mount_fd = fds[0], fds[1]
        threading.Thread(target=lib.fuse_serve, args=(self.table, self.device_fd), daemon=True).start()

    def _read(self, _: Any, out: Any) -> None:
        for cpu in range(CPUS):
            for column in range(COLUMNS):
                out[cpu * COLUMNS + column] = self.counts[cpu][column]

    def number(self, **spec: float) -> int:
        default = {"kind": lib.EVENT_COUNTER, "cpu": 0, "task": -1, "real_fd": -1}
        return int(lib.events_open(self.table, ffi.new("event_spec_t *", default | spec), 0))

    def open(self, **spec: float) -> int:
        number = self.number(**spec)
        assert number > 0, os.strerror(-number)
        return os.open(str(number), os.O_RDWR, dir_fd=self.mount_fd)

    def await_open(self, number: int) -> None:
        """The kernel announces a last close without waiting for us."""
        deadline = time.monotonic() + PATIENCE_S
        while lib.events_count(self.table) != number:
            assert time.monotonic() < deadline, lib.events_count(self.table)
            time.sleep(0.001)

    def advance(self, column: int, count: int, cpu: int = 0) -> None:
        self.counts[cpu][column] += count


@pytest.fixture(scope="module")
def counters() -> Iterator[Counters]:
    made = Counters()
    yield made
    os.close(made.mount_fd)


@pytest.fixture
def fds(counters: Counters) -> Iterator[list[int]]:
    opened: list[int] = []
    yield opened
    for fd in opened:
        os.close(fd)
    counters.await_open(0)


def words(fd: int) -> tuple[int, ...]:
    data = os.read(fd, 4096)
    return struct.unpack(f"={len(data) // 8}Q", data)


def identity(fd: int) -> int:
    return int(struct.unpack("=Q", fcntl.ioctl(fd, GET_ID, bytes(8)))[0])


def test_a_counter_counts_from_its_opening(counters: Counters, fds: list[int]) -> None:
    counters.advance(0, 1000)
    fds.append(counters.open(column=0))
    assert words(fds[0]) == (0,)
    counters.advance(0, 70)
    assert words(fds[0]) == (70,)


def test_each_read_format_has_the_words_the_manual_names(counters: Counters, fds: list[int]) -> None:
    fds += [counters.open(column=0, read_format=ENABLED | RUNNING | ID | LOST)]
    value, enabled_ns, running_ns, number, lost = words(fds[0])
    assert (value, number, lost) == (0, identity(fds[0]), 0)
    assert 0 < enabled_ns == running_ns


def test_a_group_reads_its_leader_and_members_in_order_of_opening(counters: Counters, fds: list[int]) -> None:
    fds.append(counters.open(column=0, read_format=GROUP | ID | ENABLED))
    leader = identity(fds[0])
    fds += [counters.open(column=column, leader=leader) for column in (1, 2)]
    for column in (0, 1, 2):
        counters.advance(column, 10 * (column + 1))
    size, _, *pairs = words(fds[0])
    assert (size, pairs) == (3, [10, leader, 20, identity(fds[1]), 30, identity(fds[2])])
    assert words(fds[2]) == (30,)


def test_a_member_counts_only_while_its_leader_is_enabled(counters: Counters, fds: list[int]) -> None:
    fds.append(counters.open(column=0, disabled=1))
    fds.append(counters.open(column=1, leader=identity(fds[0])))
    counters.advance(1, 5)
    assert words(fds[1]) == (0,)
    fcntl.ioctl(fds[0], ENABLE, 0)
    counters.advance(1, 7)
    fcntl.ioctl(fds[0], DISABLE, 0)
    counters.advance(1, 9)
    assert words(fds[1]) == (7,)


def test_a_switch_with_the_group_flag_reaches_every_member(counters: Counters, fds: list[int]) -> None:
    fds.append(counters.open(column=0, disabled=1))
    fds.append(counters.open(column=1, disabled=1, leader=identity(fds[0])))
    fcntl.ioctl(fds[0], ENABLE, 0)
    counters.advance(1, 5)
    assert words(fds[1]) == (0,)
    fcntl.ioctl(fds[1], ENABLE, ALL_OF_GROUP)
    counters.advance(1, 5)
    assert words(fds[1]) == (5,)


def test_reset_clears_the_count_and_leaves_the_times(counters: Counters, fds: list[int]) -> None:
    fds.append(counters.open(column=0, read_format=ENABLED))
    counters.advance(0, 5)
    before_ns = words(fds[0])[1]
    fcntl.ioctl(fds[0], RESET, 0)
    value, enabled_ns = words(fds[0])
    assert value == 0
    assert enabled_ns > before_ns


def test_a_disabled_counter_keeps_its_time(counters: Counters, fds: list[int]) -> None:
    fds.append(counters.open(column=0, read_format=ENABLED))
    fcntl.ioctl(fds[0], DISABLE, 0)
    first = words(fds[0])
    time.sleep(0.002)
    assert words(fds[0]) == first


def test_a_buffer_too_small_for_the_group_is_refused(counters: Counters, fds: list[int]) -> None:
    fds.append(counters.open(column=0, read_format=GROUP))
    fds.append(counters.open(column=1, leader=identity(fds[0])))
    with pytest.raises(OSError) as refused:
        os.read(fds[0], 16)
    assert refused.value.errno == errno.ENOSPC


def test_a_group_has_one_cpu_and_one_level(counters: Counters, fds: list[int]) -> None:
    fds.append(counters.open(column=0))
    leader = identity(fds[0])
    assert counters.number(column=1, cpu=1, leader=leader) == -errno.EINVAL
    fds.append(counters.open(column=1, leader=leader))
    assert counters.number(column=2, leader=identity(fds[1])) == -errno.EINVAL
    assert counters.number(column=2, leader=1 << 40) == -errno.EBADF


def test_members_live_on_alone_when_their_leader_is_closed(counters: Counters, fds: list[int]) -> None:
    leader = counters.open(column=0)
    fds.append(counters.open(column=1, leader=identity(leader), read_format=GROUP))
    os.close(leader)
    counters.advance(1, 4)
    counters.await_open(1)
    assert words(fds[0]) == (1, 4)


def test_a_copy_of_the_descriptor_keeps_the_counter_alive(counters: Counters, fds: list[int]) -> None:
    first = counters.open(column=0)
    fds.append(os.dup(first))
    os.close(first)
    counters.advance(0, 3)
    child = os.fork()
    if child == 0:
        os._exit(words(fds[0])[0])
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    assert words(fds[0]) == (3,)


def test_sampling_through_shared_memory_is_refused(counters: Counters, fds: list[int]) -> None:
    fds.append(counters.open(column=0))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    arguments = (None, 4096, mmap.PROT_READ, mmap.MAP_SHARED, fds[0], ctypes.c_long(0))
    assert libc.mmap(*arguments) == ctypes.c_void_p(-1).value
    assert ctypes.get_errno() == errno.ENODEV


def test_an_ioctl_about_samples_is_refused_and_an_unknown_one_is_no_ioctl(counters: Counters, fds: list[int]) -> None:
    fds.append(counters.open(column=0))
    for command, number in ((0x2402, errno.EINVAL), (0x24FF, errno.ENOTTY)):
        with pytest.raises(OSError) as refused:
            fcntl.ioctl(fds[0], command, 1)
        assert refused.value.errno == number


def test_an_energy_counter_goes_on_when_its_zone_wraps(counters: Counters, fds: list[int]) -> None:
    counters.zone_uj = ENERGY_RANGE_UJ - 1000
    fds.append(counters.open(kind=lib.EVENT_ENERGY, range_uj=ENERGY_RANGE_UJ))
    counters.zone_uj = 500
    assert words(fds[0])[0] * 2**-32 == pytest.approx(1500e-6, rel=1e-6)


def test_a_derived_counter_counts_in_proportion_to_its_source(counters: Counters, fds: list[int]) -> None:
    counters.advance(0, 1005)
    fds.append(counters.open(column=0, scale=0.1))
    counters.advance(0, 995)
    assert words(fds[0])[0] == pytest.approx(100, abs=1)


def test_a_traffic_counter_counts_its_share_of_lines(counters: Counters, fds: list[int]) -> None:
    counters.traffic_gb = 3.0
    fds.append(counters.open(kind=lib.EVENT_TRAFFIC, column=1, scale=0.25))
    counters.traffic_gb = 3.64
    assert words(fds[0])[0] == pytest.approx(0.25 * 10_000_000, abs=2)


def test_a_task_counts_what_a_busy_cpu_counts_while_it_runs(counters: Counters, fds: list[int]) -> None:
    """Even on CPUs that are nearly always idle: a tenth of a millisecond of reference cycles, half as many cycles."""
    clock = lib.perf_open_task_clock(ffi.new("perf_attr_t *"), 0, -1, -1, 0)
    assert clock >= 0
    spec = {"kind": lib.EVENT_TASK, "task": os.getpid(), "cpu": -1, "real_fd": clock, "read_format": RUNNING}
    fds.append(counters.open(column=0, **spec))
    shown = []
    for _ in range(3):
        sum(range(20_000))
        for cpu in range(CPUS):
            counters.advance(0, 100_000, cpu)
            counters.advance(REFERENCE, 200_000, cpu)
        shown.append(words(fds[0]))
    for (before, before_ns), (after, after_ns) in itertools.pairwise(shown):
        assert after - before == pytest.approx(after_ns - before_ns, rel=0.001)  # 2 GHz by half


@pytest.mark.parametrize(
    ("fault", "shown"),
    [
        ({"kind": lib.COUNTER_STUCK}, (5,)),
        ({"kind": lib.COUNTER_SHOWS, "shown": 1 << 60}, (1 << 60,)),
        ({"kind": lib.COUNTER_MISSING}, ()),
    ],
)
def test_a_faulty_counter_shows_its_fault_until_it_ends(
    counters: Counters, fds: list[int], fault: dict[str, int], shown: tuple[int, ...]
) -> None:
    fds.append(counters.open(column=0))
    counters.advance(0, 5)
    lib.events_set_fault(counters.table, 0, 0, fault)
    counters.advance(0, 5)
    assert words(fds[0]) == shown
    lib.events_set_fault(counters.table, 0, 0, {"kind": lib.COUNTER_WELL})
    assert words(fds[0]) == (10,)


def test_a_slow_counter_does_not_delay_the_others(counters: Counters, fds: list[int]) -> None:
    fds += [counters.open(column=0), counters.open(column=1)]
    lib.events_set_fault(counters.table, 0, 0, {"kind": lib.COUNTER_WELL, "delay_us": 1_500_000})
    slow = threading.Thread(target=words, args=(fds[0],))
    begin_s = time.monotonic()
    slow.start()
    for _ in range(5):
        words(fds[1])
    is_held_up = not slow.is_alive()
    slow.join()
    lib.events_set_fault(counters.table, 0, 0, {"kind": lib.COUNTER_WELL})
    assert not is_held_up and time.monotonic() - begin_s >= 1.5


def test_a_spare_counter_is_nobodys_until_it_is_opened_and_then_counts_from_zero() -> None:
    counters = Counters()
    spare = int(lib.events_spare(counters.table))
    fd = int(lib.fuse_open_counter(counters.mount_fd, spare))
    assert spare > 0 and fd >= 0 and lib.events_count(counters.table) == 0
    counters.advance(0, 1000)
    spec = ffi.new("event_spec_t *", {"kind": lib.EVENT_COUNTER, "cpu": 0, "task": -1, "real_fd": -1})
    assert lib.events_open(counters.table, spec, spare) == spare == os.fstat(fd).st_ino
    assert lib.events_count(counters.table) == 1
    counters.advance(0, 7)
    assert int.from_bytes(os.read(fd, 8), "little") == 7
    os.close(fd)
    counters.await_open(0)


def test_a_refused_call_leaves_its_spare_counter_for_the_next() -> None:
    counters = Counters()
    spare = int(lib.events_spare(counters.table))
    wrong = ffi.new("event_spec_t *", {"kind": lib.EVENT_COUNTER, "cpu": CPUS, "task": -1, "real_fd": -1})
    assert lib.events_open(counters.table, wrong, spare) == -errno.EINVAL
    right = ffi.new("event_spec_t *", {"kind": lib.EVENT_COUNTER, "cpu": 0, "task": -1, "real_fd": -1})
    assert lib.events_open(counters.table, right, spare) == spare


def test_spare_counters_are_opened_again_once_calls_have_ceased() -> None:
    counters = Counters()
    spare = SpareCounters(counters.table, counters.mount_fd)
    assert within(PATIENCE_S, lambda: len(spare) == spare.size > 0)
    taken = [spare.take() for _ in range(spare.size + 1)]
    assert len({number for number, _ in taken}) == spare.size + 1, "the last was opened at the call"
    assert within(PATIENCE_S, lambda: len(spare) == spare.size)
    for _, fd in taken:
        os.close(fd)


def test_a_server_that_is_killed_while_its_opener_waits_for_it_ends() -> None:
    """It has taken the opener's request and will never answer it."""
    program = """
import os, signal, struct, threading
from twin._serve import ffi, lib
fds = ffi.new("int[2]")
assert lib.fuse_mount(b"test", fds, fds + 1) == 0
request = os.read(fds[0], 65536)
unique = struct.unpack_from("<Q", request, 8)[0]
start = struct.pack("<IIIIHHIIHH32x", 7, 31, 0, 0, 16, 12, 4096, 1, 0, 0)
os.write(fds[0], struct.pack("<IiQ", 16 + len(start), 0, unique) + start)
opener = lib.opener_start(fds[1])
threading.Thread(target=lib.opener_open, args=(opener, 2)).start()
os.read(fds[0], 65536)
os.kill(os.getpid(), signal.SIGKILL)
"""
    server = subprocess.Popen([sys.executable, "-c", program])
    assert server.wait(timeout=PATIENCE_S) == -signal.SIGKILL
