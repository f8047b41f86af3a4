"""Drivers that answer what nobody expects: every call of NVML, every file of the kernel, with values that cannot be.

An input is a seed. It decides at which calls the driver answers oddly, and what: 2^63, all ones, NaN, 1e300, negative
numbers, text, nothing, structures with such members, errors with and without a name. The readers must then have no
reading, or refuse in their own way; any other exception is a finding, and so is a value that is infinite, a layout that
cannot be stored, a knob that shows or captures a number that no hardware can be at.

    python -m tests.fuzzing.odd_drivers 1000000|60s [SEED]
"""

from __future__ import annotations

import ctypes
import errno
import math
import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, Final

import msgspec
import numpy as np

from nodectl.knobs import KnobError, find_knobs
from nodectl.knobs.api import Knob
from nodectl.knobs.gpu_limits import BoardLimit, ClockLock
from nodectl.write.ceilings import Ceilings
from pmu import inventory
from pmu.decode import decode
from pmu.driver_values import MOST_BOARD_MW, MOST_CLOCK_MHZ, MOST_KHZ, MOST_LIMIT_UW
from pmu.instruments import gpu
from pmu.instruments.gpu import Gpus
from pmu.instruments.rapl import PEAK_OVER_LIMIT
from pmu.layout import Gpu, Layout
from pmu.node import Instruments, discover
from pmu.ports import KeptFile, Ports
from pmu.readings import GPU_FIELDS, RAW_MISSING, PmuError, RawSweep, Sample
from tests.fuzzing.goal import Goal
from twin.faults.active import Faults
from twin.in_process_node import InProcess
from twin.machine import load_machine
from twin.physics.model import Twin
from twin.programs.workload import load_workload

NUMBERS: Final[tuple[Any, ...]] = (
    -1, 0, 1, 255, 2**31, 2**32 - 1, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, -(2**63), -(2**63) - 1, 10**30,
    math.nan, math.inf, -math.inf, 1e300, -1e300, -0.0, 1e-320, True, np.float64(1e300), np.uint64(2**64 - 1),
)  # fmt: skip
OTHERS: Final[tuple[Any, ...]] = (
    None, "", "x", "é\x1b[2J\n", "9" * 5000, b"", b"\xff\xfe", (), [], [None], [2**64 - 1, -1, "x"], (math.nan, 1), {},
    object(),
)  # fmt: skip
TEXTS: Final = (
    "", "\n", " ", "nan", "inf", "1e300", "-1", "-0", "0", str(2**31), str(2**32 - 1), str(2**63), str(2**64 - 1),
    "9" * 5000,
    "²", "٣", "0x10", "1_000", "1,2", "0-4294967295", "5-1", "x", "a\x00b", "unknown", "<unsupported>", "3.5",
    "\ufffd" * 40,
    "18446744073709551615 18446744073709551615", "config:0-4294967295", "event=0xffffffffffffffffffff", "10000000000",
    "9" * 18,
)  # fmt: skip
NAMES: Final = (
    "policy99999999999", "policy", "policy-1", "hwmonX", "hwmon4294967296", "intel-rapl:99999999999999999999",
    "intel-rapl",
    "temp99999999999_input", "energy1_input", "constraint_9_power_limit_uw", "uncore", "package_99_die_0", "x" * 200,
    "0000:zz:00.0", "ffffffff:ff:1f.7",
)  # fmt: skip
ERRORS: Final = (errno.EIO, errno.ENODEV, errno.ENODATA, errno.EINVAL, errno.EACCES, errno.ENOENT, errno.ETIMEDOUT)
SHARES: Final = (0.02, 0.1, 0.5)
"""Of the calls that are answered oddly."""

CARDS, SMALL = "spr-h100", "taurus"
"""A machine with GPUs that have every reading, and one of few CPUs, of which a look at all files is quick."""


class OddNvml:
    """``pynvml`` with some answers replaced, of a driver that shows a few of its cards: the others are alike."""

    def __init__(self, nvml: Any, chance: random.Random, share: float) -> None:
        self._nvml, self._chance, self._share = nvml, chance, share
        self._cards = chance.choice((1, 1, 2, 4))

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._nvml, name)
        if not name.startswith("nvml") or not callable(found):
            return found

        def call(*arguments: Any) -> Any:
            if self._chance.random() < self._share:
                return self._odd(name, found, arguments)
            return min(found(), self._cards) if name == "nvmlDeviceGetCount" else found(*arguments)

        setattr(self, name, call)  # found at once the next time
        return call

    def _odd(self, name: str, found: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        chance = self._chance
        if name == "nvmlGpmSampleFree":
            found(*arguments)  # whatever it answers: the library has few buffers, for every test of this process
        if chance.random() < 0.25:
            raise self._nvml.NVMLError(chance.choice((*range(1, 31), 99, 999)))
        if chance.random() < 0.1:
            raise chance.choice(
                (
                    ctypes.ArgumentError("odd"),
                    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "odd"),
                    MemoryError(),
                    ValueError("odd"),
                )
            )
        if name == "nvmlGpmMetricsGet":
            found(*arguments)
            for metric in arguments[0].metrics[:3]:
                metric.value = chance.choice((math.nan, math.inf, 1e300, -1e300, -5.0, 65535.0, 2.0**64))
            return None
        members = {one: odd_value(chance) for one in ("gpu", "memory", "busId", "isSupportedDevice")}
        return chance.choice((odd_value(chance), SimpleNamespace(**members)))


class KnownFiles:
    """The files of a tree that stays as it is: which there are is looked up once."""

    def __init__(self, files: Any) -> None:
        self._files = files
        self.keep = files.keep
        self.read, self.write = files.read, files.write
        self.realpath, self.writable = cache(files.realpath), cache(files.writable)
        self.exists, self._names = cache(files.exists), dict[str, list[str] | OSError]()

    def listdir(self, path: str) -> list[str]:
        """Names in a directory."""
        if path not in self._names:
            try:
                self._names[path] = self._files.listdir(path)
            except OSError as error:
                self._names[path] = error
        found = self._names[path]
        if isinstance(found, OSError):
            raise found
        return list(found)


class OddFiles:
    """The kernel's files with some answers replaced."""

    def __init__(self, files: Any, chance: random.Random, share: float) -> None:
        self._files, self._chance, self._share = files, chance, share

    def read(self, path: str) -> str:
        return str(self._odd_text()) if self._is_odd() else str(self._files.read(path))

    def write(self, path: str, text: str) -> None:
        if self._is_odd():
            raise self._error(path)

    def keep(self, path: str) -> KeptFile:
        if self._is_odd():
            raise self._error(path)
        return _OddKept(self, self._files.keep(path))

    def listdir(self, path: str) -> list[str]:
        if self._is_odd() and self._chance.random() < 0.3:
            raise self._error(path)
        more = self._chance.sample(NAMES, 3) if self._is_odd() else []
        return [*self._files.listdir(path), *more]

    def exists(self, path: str) -> bool:
        return bool(self._files.exists(path)) != self._is_odd()

    def writable(self, path: str) -> bool:
        return bool(self._files.writable(path)) != self._is_odd()

    def realpath(self, path: str) -> str:
        return str(self._files.realpath(path))

    def _is_odd(self) -> bool:
        return self._chance.random() < self._share

    def _odd_text(self) -> str:
        if self._chance.random() < 0.2:
            raise self._error("")
        return self._chance.choice(TEXTS)

    def _error(self, path: str) -> OSError:
        number = self._chance.choice(ERRORS)
        return OSError(number, os.strerror(number), path)


class _OddKept:
    def __init__(self, files: OddFiles, kept: Any) -> None:
        self._files, self._kept = files, kept

    def read(self) -> bytes:
        if self._files._is_odd():
            return self._files._odd_text().encode()
        return bytes(self._kept.read())

    def close(self) -> None:
        self._kept.close()


def odd_value(chance: random.Random) -> Any:
    """A number or anything else."""
    return chance.choice(NUMBERS) if chance.random() < 0.7 else chance.choice(OTHERS)


@contextmanager
def emulated(name: str) -> Iterator[Ports]:
    """The ports of a node."""
    machine = load_machine(name)
    twin = Twin(machine, load_workload("easywave" if machine.gpus else "hpl", machine, seed=1), seed=1)
    with InProcess(twin, Faults(twin, [])) as node:
        node.ports.clock.sleep_until_ns(twin.time_ns + 1_000_000_000)
        yield replace(node.ports, files=KnownFiles(node.ports.files))


def problem_with_nvml(ports: Ports, seed: int) -> str:
    """All that this program asks of NVML, with a driver that answers oddly; "" or what is wrong."""
    chance = random.Random(seed)
    odd = OddNvml(ports.nvml, chance, chance.choice(SHARES))
    try:
        _use_gpus(replace(ports, nvml=odd), chance)
    except _FindingError as found:
        return f"seed {seed}: {found}"
    except Exception as error:
        return f"seed {seed}: {error!r}"
    return ""


def problem_with_files(ports: Ports, seed: int) -> str:
    """All that this program reads of the kernel's files, with a kernel that answers oddly; "" or what is wrong."""
    chance = random.Random(seed)
    odd = replace(ports, files=OddFiles(ports.files, chance, chance.choice((0.002, 0.02, 0.2))))
    try:
        _use_node(odd, chance)
    except _FindingError as found:
        return f"seed {seed}: {found}"
    except Exception as error:
        return f"seed {seed}: {error!r}"
    return ""


class _FindingError(Exception):
    pass


def _check(holds: bool, what: str, *values: Any) -> None:
    if not holds:
        raise _FindingError(what.format(*values))


def _use_gpus(ports: Ports, chance: random.Random) -> None:
    gpus, _ = gpu.find(ports.nvml, ports.nvml_why)
    if not gpus:
        gpus = _whole_gpus(ports.nvml._nvml)[:2]  # type: ignore[union-attr]
    _check_gpus(gpus)
    sensors = Gpus(ports.nvml, gpus)
    try:
        raw = [_swept(sensors, gpus, at_s * 1_000_000_000) for at_s in (1, 7, 14)]
    finally:
        sensors.close()
    layout = Layout((), (), (), (), 0, (), (), gpus)
    for before, now in pairwise(raw):
        _check_sample(decode(layout, before, now))
    for kind in (ClockLock, BoardLimit):
        for number in ("0", str(chance.randrange(4)), gpus[0].uuid):
            try:
                knob = kind(ports.nvml, number)
            except KnobError:
                continue
            _use_knob(knob)


@cache
def _whole_gpus(nvml: Any) -> tuple[Gpu, ...]:
    """As a driver shows them that answers as it should."""
    return gpu.find(nvml, "")[0]


def _swept(sensors: Gpus, gpus: tuple[Gpu, ...], time_ns: int) -> RawSweep:
    table = np.zeros((len(gpus), len(GPU_FIELDS)), np.int64)
    sensors.sweep(time_ns, table)
    lowest = np.where(np.arange(len(GPU_FIELDS)) == GPU_FIELDS.index("temperature_c"), -55, 0)
    negative = table[(table < lowest) & (table != RAW_MISSING)]
    _check(negative.size == 0, "readings below zero: {}", negative)
    return RawSweep(time_ns, np.zeros((0, 0), np.int64), np.zeros(0, np.int64), table)


def _check_gpus(gpus: tuple[Gpu, ...]) -> None:
    _check(len(gpus) <= 1024, "{} GPUs", len(gpus))
    _check(msgspec.json.decode(msgspec.json.encode(gpus), type=tuple[Gpu, ...]) == gpus, "GPUs that cannot be stored")
    for card in gpus:
        _check(
            bool(card.uuid) and card.uuid.isprintable() and card.name.isprintable(), "{!r} {!r}", card.uuid, card.name
        )
        _check(all(0 < clock <= 10_000 for clock in card.clocks_mhz), "clocks {}", card.clocks_mhz)
        _check(0 <= card.min_power_limit_w <= card.max_power_limit_w <= MOST_BOARD_MW / 1e3, "limits of {}", card)


def _check_sample(sample: Sample) -> None:
    for values in (sample.gpu.power_w, sample.gpu.energy_j, sample.gpu.sm_clock_mhz, sample.gpu.temperature_c,
                   sample.gpu.sm_occupancy, sample.energy_j, sample.columns.value):  # fmt: skip
        _check(not np.isinf(values).any(), "infinite: {}", values)
        _check(not (np.abs(values) > 1e9).any(), "beyond any hardware: {}", values)
    shares = (sample.gpu.gpu_utilization, sample.gpu.memory_utilization, sample.gpu.sm_occupancy, sample.cpu.busy)
    for values in shares:
        _check(not ((values < 0) | (values > 1)).any(), "shares outside of 0 to 1: {}", values)


def _use_knob(knob: Knob) -> None:
    for use in (knob.read, knob.read_back, lambda: knob.explain(1000, None), lambda: knob.overruled(200_000),
                lambda: knob.set(1000), lambda: knob.restore(knob.read()), knob.recipe):  # fmt: skip
        try:
            found = use()
        except KnobError:
            continue
        if (
            isinstance(found, str | int)
            and (number := found if isinstance(found, int) else knob.number(found)) is not None
        ):
            _check(0 <= number <= MOST.get(knob.name.rpartition("_")[2], 2**53), "{} is at {}", knob.name, number)
    msgspec.json.encode(knob.recipe())
    Ceilings([knob]).start({})


def _use_node(ports: Ports, chance: random.Random) -> None:
    try:
        layout, _ = discover(ports)
    except PmuError:
        return
    _check(
        msgspec.msgpack.decode(msgspec.msgpack.encode(layout), type=Layout) == layout, "a layout that cannot be stored"
    )
    _check(len(layout.cpus) <= 65_536, "{} CPUs", len(layout.cpus))
    for zone in layout.zones:
        _check(0 <= zone.max_power_uw <= MOST_LIMIT_UW * PEAK_OVER_LIMIT, "{}", zone)
    inventory.take(ports.files, inventory.take(ports.files))
    knobs, _ = find_knobs(ports, layout)
    for knob in chance.sample(knobs, min(len(knobs), 12)):
        _use_knob(knob)
    try:
        instruments = Instruments(ports, layout)
    except PmuError:
        return
    try:
        first = instruments.sweep()
        later = replace(instruments.sweep(), time_ns=first.time_ns + 100_000_000)
        _check_sample(decode(layout, first, later))
        instruments.vanished()
    finally:
        instruments.close()


MOST: Final = {"uw": 10**18, "khz": MOST_KHZ, "mhz": MOST_CLOCK_MHZ, "mw": MOST_BOARD_MW}
"""What a knob can be at, by the unit at the end of its name. A package's limit above any hardware's means none, and is
put back as it was found."""

FILES_IN_A_TURN, CARDS_IN_A_TURN = 3, 10


def run(goal: Goal, seed: int) -> list[str]:
    """Until the goal is reached; what was found, at most ten."""
    found: list[str] = []
    done = 0
    with emulated(CARDS) as cards, emulated(SMALL) as small:
        turn = [(problem_with_nvml, cards)] * CARDS_IN_A_TURN + [(problem_with_files, small)] * FILES_IN_A_TURN
        while not goal.is_reached(done) and len(found) < 10:
            for problem_with, ports in turn:
                if problem := problem_with(ports, seed + done):
                    found.append(f"{problem_with.__name__}: {problem}")
                done += 1
    print(f"odd_drivers: {done} inputs from seed {seed}, {len(found)} findings")
    return found


if __name__ == "__main__":
    problems = run(*Goal.of_command(sys.argv[1:]))
    print("\n".join(problems))
    sys.exit(bool(problems))
