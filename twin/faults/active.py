"""Faults on demand: what real instruments and knobs do wrong, at a chosen time, in the emulated node.

Faults follow the twin's own time, so a run with faults is as reproducible as one without. This module serves nothing
itself: ``twin.files.sysfs_tree`` serves files, ``twin.in_process_node`` or the perf service serve counters, and the
NVML library serves GPUs, by the fault bits of ``twin_gpu.h``. All of them get the values to show from here.
"""

from __future__ import annotations

import enum
import errno
import math
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pmu.readings import RAW_MISSING, type_i64
from twin._model import lib
from twin.errors import TwinError
from twin.faults.fault import (
    Fault,
    check_target,
    checked,
    gpu_readings,
    is_below,
    is_counter,
    is_path,
    matches,
    parse_line,
    parse_table,
    shown_bits,
    strikes,
    whole,
)
from twin.physics.model import Twin

__all__ = ["Effect", "Fault", "Faults", "parse_line", "parse_table"]

_GPU_BITS = {
    "gpu-lost": lib.TWIN_GPU_LOST,
    "refused": lib.TWIN_GPU_SET_REFUSED,
    "no-effect": lib.TWIN_GPU_SET_NO_EFFECT,
    "slow": lib.TWIN_GPU_SLOW,
}
_READING_BITS = {
    "power": lib.TWIN_READING_POWER,
    "energy": lib.TWIN_READING_ENERGY,
    "temperature": lib.TWIN_READING_TEMPERATURE,
    "sm-clock": lib.TWIN_READING_SM_CLOCK,
    "gpu-utilization": lib.TWIN_READING_GPU_UTILIZATION,
    "memory-utilization": lib.TWIN_READING_MEMORY_UTILIZATION,
    "event-reasons": lib.TWIN_READING_EVENT_REASONS,
    "gpm-graphics": lib.TWIN_READING_GPM_GRAPHICS,
    "gpm-sm-active": lib.TWIN_READING_GPM_SM_ACTIVE,
    "gpm-sm-occupancy": lib.TWIN_READING_GPM_SM_OCCUPANCY,
    "gpm-dram-active": lib.TWIN_READING_GPM_DRAM_ACTIVE,
    "gpm-fp64": lib.TWIN_READING_GPM_FP64,
}

_FOREVER_NS = 1 << 62
_DEFAULT_MARGIN_UJ = 1_000_000  # ours: one joule, which a busy package draws in a hundredth of a second


class Effect(enum.Enum):
    """The effect of a write that the kernel accepted."""

    FULL = "the machine follows"
    SHOWN = "the file shows the new value, the machine does not follow"
    DROPPED = "the register ignored it: the file still shows the old value"


@dataclass(slots=True, eq=False)
class _Standing:
    """An added fault: its start and end, and its state for each reading that it affects."""

    number: int
    fault: Fault
    begin_ns: int
    end_ns: int
    memory: dict[str, Any] = field(default_factory=dict)

    def stands(self, now_ns: int) -> bool:
        return self.begin_ns <= now_ns < self.end_ns


type_standing = tuple[_Standing, ...]


@dataclass(slots=True)
class _GpuFaults:
    """The fault fields of one twin_gpu_t."""

    faults: int = 0
    missing: int = 0
    stuck: int = 0
    absurd: int = 0
    chosen: dict[int, int] = field(default_factory=dict)  # by the number of the reading: the bits that it shows

    def spoil(self, fault: Fault) -> None:
        """Add the readings that a fault of kind missing, stuck or absurd affects."""
        bits = 0
        for reading in gpu_readings(fault.target):
            bits |= _READING_BITS[reading]
        match fault.kind:
            case "missing":
                # the energy counter integrates the power sensor, so without power there is no energy
                self.missing |= bits | (lib.TWIN_READING_ENERGY if bits & lib.TWIN_READING_POWER else 0)
            case "stuck" if fault.target.count(":") == 1:
                self.faults |= lib.TWIN_GPU_STUCK  # the card stops publishing, even its time
            case "stuck":
                self.stuck |= bits
            case "absurd":
                self.absurd |= bits
                for reading in gpu_readings(fault.target):
                    if fault.value is not None and (shown := shown_bits(reading, fault.value)) is not None:
                        self.chosen[_READING_BITS[reading].bit_length() - 1] = shown


class Faults:
    """The faults of one twin, by the twin's time. They may be added and removed while it runs.

    ``faults`` are the initial faults; None takes those of the machine file.
    """

    def __init__(self, twin: Twin, faults: Iterable[Fault] | None = None) -> None:
        self.generation = 0
        self.is_virtual = False  # nothing waits in virtual time, so slow GPUs, which wait in their library, must not
        self._twin = twin
        self._standing: type_standing = ()
        self._next_number = 1
        self._files: Callable[[], Mapping[str, str]] | None = None
        self._gpus = [_GpuFaults() for _ in range(twin.machine.gpus)]
        self._lock = threading.Lock()
        if faults is None:
            path = twin.machine.path
            faults = [parse_table(table, f"{path}: [[fault]] {i + 1}") for i, table in enumerate(twin.machine.faults)]
        for fault in faults:
            self.add(fault)

    @property
    def now_s(self) -> float:
        """Seconds of the twin's time since it was made, as in ``at_s``."""
        return self._twin.age_ns / 1e9

    def know_files(self, names: Callable[[], Mapping[str, str]]) -> None:
        """Set the existing files (name: path without links). From now on a target that matches none of them is
        refused."""
        self._files = names
        for standing in self._standing:
            check_target(standing.fault, self._twin.machine, names())

    def add(self, fault: Fault) -> int:
        """Add ``fault`` and return its number, for ``remove``. TwinError if this machine cannot have it."""
        checked(fault, f"fault {str(fault)!r}")
        check_target(fault, self._twin.machine, self._files() if self._files else None)
        begin_ns = round(fault.at_s * 1e9)
        end_ns = _FOREVER_NS if fault.for_s == math.inf else begin_ns + round(fault.for_s * 1e9)
        with self._lock:
            number = self._next_number
            self._next_number += 1
            self._standing += (_Standing(number, fault, begin_ns, end_ns),)
            self.generation += 1
        self._mark_gpus()
        return number

    def add_line(self, line: str) -> int:
        """Add a fault written on one line (``parse_line``); its times count from now."""
        return self.add(parse_line(line, self.now_s))

    def remove(self, number: int) -> None:
        """End the fault with this number."""
        with self._lock:
            kept = tuple(standing for standing in self._standing if standing.number != number)
            if len(kept) == len(self._standing):
                numbers = ", ".join(str(standing.number) for standing in self._standing) or "none"
                raise TwinError(f"there is no fault number {number}; faults now: {numbers}")
            self._standing = kept
            self.generation += 1
        self._mark_gpus()

    def clear(self) -> None:
        """End all faults."""
        with self._lock:
            self._standing = ()
            self.generation += 1
        self._mark_gpus()

    def listing(self) -> list[tuple[int, Fault, bool]]:
        """Number and fault, and whether it is active now."""
        now_ns = self._twin.age_ns
        return [(standing.number, standing.fault, standing.stands(now_ns)) for standing in self._standing]

    # ---- files -------------------------------------------------------------------------------------------------

    def on_file(self, names: Sequence[str]) -> type_standing:
        """The faults on a file known under ``names``; valid until ``generation`` changes."""
        return tuple(s for s in self._standing if is_path(s.fault.target) and strikes(s.fault, names))

    def is_absent(self, standing: type_standing) -> bool:
        """Whether a fault ``missing`` with ENOENT has removed the file."""
        now_ns = self._twin.age_ns
        return any(s.fault.kind == "missing" and s.fault.value == "ENOENT" and s.stands(now_ns) for s in standing)

    @property
    def removes_files(self) -> bool:
        """Whether any fault removes files, now or later."""
        return any(s.fault.value == "ENOENT" for s in self._standing)

    def is_removed(self, names: Sequence[str]) -> bool:
        """Whether a fault ``missing`` with ENOENT has removed the directory with these names: its target is the
        directory or one above it, not only files in it."""
        now_ns = self._twin.age_ns
        return any(
            s.fault.kind == "missing" and s.fault.value == "ENOENT" and s.stands(now_ns) and is_path(s.fault.target)
            and any(is_below(s.fault.target, name) for name in names)
            for s in self._standing
        )  # fmt: skip

    def shown(self, standing: type_standing, path: str, show: Callable[[], str], wraps_at: int) -> str:
        """What a read of ``path`` returns instead of ``show()``; OSError if it fails."""
        now_ns = self._twin.age_ns
        active = [s for s in standing if s.stands(now_ns)]
        for s in active:
            if s.fault.kind == "missing":
                raise _os_error(s.fault.value, _read_errno(path), path)
        text = show()
        for s in active:
            text = _spoiled(s, text, path, wraps_at)
        return text

    def written(self, standing: type_standing, path: str) -> Effect:
        """The effect of a valid write to ``path``; OSError if the kernel refuses it.

        A lock bit found set when the driver was loaded makes intel_rapl refuse each store, which the powercap core
        eports as ENODATA (ENOSYS for ``enabled``). If the bit is set later, the driver does not notice: the register
        ignores writes (Intel SDM vol. 3B §15.10.3, "until next RESET"), the store succeeds, and the old value is read
        back.
        """
        now_ns = self._twin.age_ns
        effect = Effect.FULL
        for s in standing:
            if not s.stands(now_ns):
                continue
            match s.fault.kind:
                case "refused":
                    raise _os_error(s.fault.value, _write_errno(path), path)
                case "locked" if _lock_is_known(s.fault):
                    raise _os_error(None, "ENOSYS" if path.endswith("/enabled") else "ENODATA", path)
                case "locked":
                    effect = Effect.DROPPED
                case "no-effect" if effect is Effect.FULL:
                    effect = Effect.DROPPED if s.fault.value == "dropped" else Effect.SHOWN
        return effect

    def delay_s(self, standing: type_standing) -> float:
        """Delay of each access now, in seconds."""
        now_ns = self._twin.age_ns
        return max((_delay_s(s.fault) for s in standing if s.fault.kind == "slow" and s.stands(now_ns)), default=0.0)

    # ---- counters ----------------------------------------------------------------------------------------------

    def counter(self, event: str, cpu: int) -> Fault | None:
        """The active fault of this counter; if there are several, the last one added."""
        found = self._on_counter(event, cpu)
        return found[-1].fault if found else None

    def counter_errno(self, event: str, cpu: int) -> int:
        """The errno with which perf_event_open fails now, or 0.

        ``missing`` gives ENOENT (no such event), ``refused`` EBUSY (all counters are in use), unless ``value`` names
        another.
        """
        fault = self.counter(event, cpu)
        if fault is None or fault.kind not in ("missing", "refused"):
            return 0
        return int(getattr(errno, str(fault.value or ("ENOENT" if fault.kind == "missing" else "EBUSY"))))

    def counted(self, event: str, cpu: int, count: int) -> int | None:
        """What an open counter shows instead of ``count``; None while it has no value."""
        found = self._on_counter(event, cpu)
        if not found:
            return count
        fault, memory = found[-1].fault, found[-1].memory
        match fault.kind:
            case "missing":
                return None
            case "stuck":
                return int(memory.setdefault(f"{event}:{cpu}", count if fault.value is None else whole(fault.value)))
            case "absurd":
                return (1 << 60) if fault.value is None else whole(fault.value)
        return count

    def spoil(self, events: Sequence[str], cpus: Sequence[int], table: type_i64) -> None:
        """Apply ``counted`` to a whole sweep in place. ``table`` is ``[n_cpus, n_events]``; None becomes
        RAW_MISSING."""
        if not any(s.fault.target.startswith("perf:") for s in self._standing):
            return
        for column, event in enumerate(events):
            for row, cpu in enumerate(cpus):
                shown = self.counted(event, cpu, int(table[row, column]))
                table[row, column] = RAW_MISSING if shown is None else shown

    def counter_delay_s(self, event: str, cpu: int) -> float:
        """Delay of each read of this counter now, in seconds."""
        return max((_delay_s(s.fault) for s in self._on_counter(event, cpu) if s.fault.kind == "slow"), default=0.0)

    def _on_counter(self, event: str, cpu: int) -> list[_Standing]:
        now_ns = self._twin.age_ns
        return [s for s in self._standing if s.stands(now_ns) and is_counter(s.fault.target, event, cpu)]

    # ---- what happens by itself --------------------------------------------------------------------------------

    def next_ns(self, until_ns: int) -> int:
        """The next age of the twin at which ``act`` is due, at most ``until_ns``."""
        now_ns = self._twin.age_ns
        for s in self._standing:
            if s.fault.target.startswith("gpu:"):
                until_ns = min([until_ns, *(edge for edge in (s.begin_ns, s.end_ns) if edge > now_ns)])
            if s.fault.kind == "foreign-writer":
                due_ns = s.memory.get("due_ns", s.begin_ns)
                if now_ns < due_ns < s.end_ns:
                    until_ns = min(until_ns, due_ns)
        return until_ns

    def act(self, write: Callable[[str, bytes], int]) -> None:
        """Apply all that is due by now: set the GPUs' fault bits, let foreign writers write through ``write``.

        Call it repeatedly: the virtual clock does so at ``next_ns``, the served twin every few milliseconds.
        """
        if not self._standing:
            return
        self._mark_gpus()
        now_ns = self._twin.age_ns
        for s in self._standing:
            if s.fault.kind == "foreign-writer" and s.stands(now_ns) and s.memory.get("due_ns", s.begin_ns) <= now_ns:
                every_ns = round(s.fault.every_s * 1e9)
                s.memory["due_ns"] = now_ns - (now_ns - s.begin_ns) % every_ns + every_ns
                self._write_as_stranger(s.fault, write)

    def _write_as_stranger(self, fault: Fault, write: Callable[[str, bytes], int]) -> None:
        if fault.target.startswith("gpu:"):
            for index in self._gpus_of(fault.target):
                if fault.target.endswith(":power-limit"):
                    gpu = self._twin.gpus.gpu[index]
                    gpu.power_limit_mw = int(float(fault.value or 0) * 1000)
                    gpu.limit_seq += 1
                else:
                    self._twin.lock_gpu(index, 0, whole(fault.value or 0))
            return
        names = self._files() if self._files else {}
        for path in sorted({path for name, path in names.items() if matches(fault.target, name)}):
            try:
                write(path, f"{fault.value}\n".encode())
            except OSError:
                continue  # the foreign writer uses the same kernel as we do; its errors are ignored

    def _mark_gpus(self) -> None:
        now_ns = self._twin.age_ns
        found = [_GpuFaults() for _ in self._gpus]
        standing = [s.fault.kind for s in self._standing if s.stands(now_ns)]
        self._twin.gpus.no_driver = "no-driver" in standing
        for s in self._standing:
            if not s.fault.target.startswith("gpu:") or not s.stands(now_ns):
                continue
            if s.fault.kind == "slow":
                if self.is_virtual:
                    continue
                self._twin.gpus.slow_ms = round(_delay_s(s.fault) * 1000)
            for index in self._gpus_of(s.fault.target):
                found[index].spoil(s.fault)
                found[index].faults |= _GPU_BITS.get(s.fault.kind, 0)
        with self._lock:
            for index, (before, now) in enumerate(zip(self._gpus, found, strict=True)):
                if before != now:
                    gpu = self._twin.gpus.gpu[index]
                    for reading, shown in now.chosen.items():
                        gpu.value[reading] = shown
                    gpu.chosen = sum(1 << reading for reading in now.chosen)
                    gpu.faults, gpu.missing, gpu.stuck, gpu.absurd = now.faults, now.missing, now.stuck, now.absurd
            self._gpus = found

    def _gpus_of(self, target: str) -> Iterable[int]:
        index = target.split(":")[1]
        return range(len(self._gpus)) if index == "*" else (int(index),)


# ---- what kernels answer, and what registers show ------------------------------------------------------------------


def _lock_is_known(fault: Fault) -> bool:
    return fault.value == "known" or (fault.value is None and fault.at_s == 0)


def _delay_s(fault: Fault) -> float:
    return float(fault.value or 0.0)


def _read_errno(path: str) -> str:
    """The kernel's errno when the hardware behind a file has no value.

    powercap_sys.c: EINVAL for a zone's own values, ENODATA for a constraint's; cpufreq.c show(): EBUSY while the
    policy is inactive; hwmon drivers pass on the bus error, EIO.
    """
    if "/powercap/" in path:
        return "ENODATA" if "/constraint_" in path else "EINVAL"
    return "EBUSY" if "/cpufreq/" in path else "EIO"


def _write_errno(path: str) -> str:
    """The kernel's errno when it refuses a valid value: ENODATA from powercap, EINVAL from a cpufreq driver."""
    if "/powercap/" in path:
        return "ENOSYS" if path.endswith("/enabled") else "ENODATA"
    return "EINVAL" if "/cpufreq/" in path else "EIO"


def _spoiled(standing: _Standing, text: str, path: str, wraps_at: int) -> str:
    """What a read shows under this fault instead of ``text``."""
    fault, memory = standing.fault, standing.memory
    match fault.kind:
        case "stuck":
            text = memory.setdefault(path, text if fault.value is None else f"{fault.value}\n")
        case "absurd":
            text = f"{_absurd(path) if fault.value is None else fault.value}\n"
        case "wrap" if wraps_at:
            margin = _DEFAULT_MARGIN_UJ if fault.value is None else whole(fault.value)
            offset = memory.setdefault(path, wraps_at - margin - int(text))
            text = f"{(int(text) + offset) % wraps_at}\n"
        case "locked" if path.endswith("/enabled") and _lock_is_known(fault):
            text = "0\n"  # intel_rapl_common.c get_domain_enable: a domain locked by the BIOS reads disabled
    return text


def _absurd(path: str) -> int:
    """Ours: the value of a register full of ones, in the unit of the file."""
    name = path.rpartition("/")[2]
    if name.endswith("_freq"):
        return (1 << 32) - 1
    return 255_000 if name.startswith("temp") else (1 << 63) - 1


def _os_error(name: str | int | float | None, default: str, path: str) -> OSError:
    number = getattr(errno, str(name or default))
    return OSError(number, os.strerror(number), path)
