"""Faults: their kinds, their targets, and their form in a machine file or on a command line.

A fault has a *kind* and a *target*, and is active from ``at_s`` for ``for_s`` seconds of the twin's own time. Targets
are

- a glob over paths in /sys (``*`` also crosses ``/``; naming a directory means every file below it),
- ``perf:EVENT`` or ``perf:EVENT:CPU``,
- ``gpu:N``, ``gpu:*`` or ``gpu:N:READING``; READING is a name of ``GPU_READINGS`` or a glob over them (``gpm-*``),
  and without one the whole GPU is meant.

``KINDS`` says what each kind does and what its ``value`` means; ``twin.faults.active`` implements it.
"""

from __future__ import annotations

import errno
import math
import shlex
import struct
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from foundation.shell.errors import nearest
from twin.errors import TwinError
from twin.machine import Machine
from twin.toml_table import key_and_problem

TARGETS = ("/sys/GLOB", "perf:EVENT[:CPU]", "gpu:N[:READING]")

GPU_READINGS = (
    "power",
    "energy",
    "temperature",
    "sm-clock",
    "gpu-utilization",
    "memory-utilization",
    "event-reasons",
    "gpm-graphics",
    "gpm-sm-active",
    "gpm-sm-occupancy",
    "gpm-dram-active",
    "gpm-fp64",
)
"""Readings of a GPU that can be missing, stuck or absurd one by one, in the order of twin_gpu_reading
(csrc/twin_gpu.h)."""

KINDS = {
    "missing": "no value: the read fails (value: ENODATA, EIO, ENOENT...; ENOENT also removes the file)",
    "stuck": "the value no longer changes (value: the number shown; default: the first one read)",
    "absurd": "a value that is impossible for this instrument (value: the number shown, of 64 bits; of GPM any)",
    "wrap": "energy_uj is `value` microjoules (default 1000000) below its range, so it wraps soon",
    "locked": "the limit's lock bit is set (value: known or late; default known when at_s is 0)",
    "refused": "the write fails (value: the errno's name)",
    "no-effect": "the write succeeds without effect on the machine (value: shown or dropped when read back)",
    "gpu-lost": "the GPU has fallen off the bus",
    "no-driver": "NVIDIA's driver is not loaded (target gpu:*); the cards are on the PCI bus",
    "foreign-writer": "something else writes `value` every `every_s` seconds",
    "slow": "each access takes `value` seconds, at most 2",
}

SLOWEST_S = 2.0
"""Ours: longest delay of a slow file, longer than any period and short enough for tests."""

_FILE_KINDS = ("missing", "stuck", "absurd", "wrap", "locked", "refused", "no-effect", "foreign-writer", "slow")
_COUNTER_KINDS = ("missing", "stuck", "absurd", "refused", "slow")
_GPU_KINDS = ("missing", "stuck", "absurd", "refused", "no-effect", "gpu-lost", "no-driver", "foreign-writer", "slow")
_SPOILED = ("missing", "stuck", "absurd")
_GPU_PARTS = {**dict.fromkeys(_SPOILED, GPU_READINGS), "foreign-writer": ("clock", "power-limit")}


class Fault(msgspec.Struct, frozen=True):
    """One fault, as in a ``[[fault]]`` table of a machine file; times are in seconds since the twin began."""

    kind: str
    target: str
    at_s: float = 0.0
    for_s: float = math.inf
    value: str | int | float | None = None
    every_s: float = 1.0

    def __str__(self) -> str:
        """The one-line form for ``parse_line``."""
        words = [self.kind, self.target, f"at={self.at_s:.9g}"]
        if self.for_s != math.inf:
            words.append(f"for={self.for_s:.9g}")
        if self.value is not None:
            words.append(f"value={self.value}")
        if self.kind == "foreign-writer":
            words.append(f"every={self.every_s:.9g}")
        return shlex.join(words)


def parse_table(table: Mapping[str, Any], where: str) -> Fault:
    """The fault of one ``[[fault]]`` table of a machine file; ``where`` names file and entry in errors."""
    for key in table:
        if key not in Fault.__struct_fields__:
            raise TwinError(f'{where}: unknown key "{key}"{nearest(key, Fault.__struct_fields__)}')
    try:
        fault = msgspec.convert(dict(table), Fault)
    except msgspec.ValidationError as error:
        raise TwinError(f"{where}: {key_and_problem(error)}") from None
    return checked(fault, where)


def parse_line(line: str, now_s: float = 0.0) -> Fault:
    """``KIND TARGET [at=S] [for=S] [value=V] [every=S]``, the form of the control command; ``at`` counts from now."""
    where = f"fault {line!r}"
    try:
        kind, target, *settings = shlex.split(line)
    except ValueError:
        raise TwinError(f"{where}: expected KIND TARGET [at=S] [for=S] [value=V] [every=S]") from None
    names = {"at": "at_s", "for": "for_s", "every": "every_s", "value": "value"}
    table: dict[str, Any] = {"kind": kind, "target": target, "at_s": 0.0}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if key not in names or not equals:
            raise TwinError(f'{where}: unknown setting "{setting}"{nearest(key, names)}')
        if key == "value":
            table["value"] = text
            continue
        try:
            table[names[key]] = float(text)
        except ValueError:
            raise TwinError(f"{where}: {key}={text!r} is not a number of seconds") from None
    table["at_s"] += now_s
    return parse_table(table, where)


def checked(fault: Fault, where: str) -> Fault:
    """``fault``, if its kind, target and value fit together; else TwinError."""
    if fault.kind not in KINDS:
        raise TwinError(f'{where}: unknown kind "{fault.kind}"{nearest(fault.kind, KINDS)}')
    scope, *rest = fault.target.split(":")
    kinds: tuple[str, ...]
    if scope == "perf" and len(rest) in (1, 2):
        kinds = _COUNTER_KINDS
    elif scope == "gpu" and len(rest) in (1, 2):
        kinds = _GPU_KINDS
        if len(rest) == 2:
            _check_gpu_part(fault, rest[1], where)
    elif is_path(fault.target):
        kinds = _FILE_KINDS
    else:
        raise TwinError(f'{where}: target "{fault.target}" is not one of {", ".join(TARGETS)}')
    if fault.kind not in kinds:
        raise TwinError(f'{where}: {fault.kind} cannot affect "{fault.target}"{nearest(fault.kind, kinds)}')
    if not (0 <= fault.at_s < math.inf and fault.for_s > 0 and 0 < fault.every_s < math.inf):
        raise TwinError(f"{where}: at_s must not be negative, for_s and every_s must be above 0")
    _check_value(fault, where)
    return fault


def check_target(fault: Fault, machine: Machine, files: Iterable[str] | None) -> None:
    """TwinError unless the target exists on this machine; ``files`` None: its files are not known yet."""
    where = f"fault {str(fault)!r}"
    scope, *rest = fault.target.split(":")
    if scope == "gpu":
        _check_gpu(rest, machine, where)
    if scope == "perf":
        _check_counter(rest, machine, where)
    if is_path(fault.target) and files is not None:
        _check_path(fault, where, list(files))


def _check_gpu(target: Sequence[str], machine: Machine, where: str) -> None:
    number, *reading = target
    if number != "*" and not (number.isdigit() and int(number) < machine.gpus):
        there = f"GPUs 0-{machine.gpus - 1}" if machine.gpus else "no GPU"
        raise TwinError(f"{where}: machine {machine.name} has {there}")
    if any(name.startswith("gpm") for name in reading) and machine.gpu and not machine.gpu.has_gpm:
        raise TwinError(f"{where}: the GPUs of machine {machine.name} have no GPM (Hopper on)")


def _check_counter(target: Sequence[str], machine: Machine, where: str) -> None:
    event, *cpu = target
    if not any(fnmatchcase(known, event) for known in machine.events):
        raise TwinError(f'{where}: machine {machine.name} has no event "{event}"{nearest(event, machine.events)}')
    if cpu and not (cpu[0].isdigit() and int(cpu[0]) < machine.cpus):
        raise TwinError(f"{where}: machine {machine.name} has CPUs 0-{machine.cpus - 1}")


def gpu_readings(target: str) -> tuple[str, ...]:
    """The readings of a GPU that a target names; all of them if it names only the GPU."""
    _, _, *reading = target.split(":")
    return tuple(name for name in GPU_READINGS if not reading or fnmatchcase(name, reading[0]))


def _check_gpu_part(fault: Fault, part: str, where: str) -> None:
    parts = _GPU_PARTS.get(fault.kind, ())
    if not parts:
        raise TwinError(f'{where}: {fault.kind} knows no GPU reading "{part}"; it applies to the whole GPU')
    found = gpu_readings(fault.target) if fault.kind in _SPOILED else [part] if part in parts else []
    if not found:
        raise TwinError(f'{where}: {fault.kind} knows no GPU reading "{part}"{nearest(part, parts)}')


def _check_value(fault: Fault, where: str) -> None:
    value = fault.value
    match fault.kind:
        case "missing" | "stuck" if fault.target.startswith("gpu:") and value is not None:
            raise TwinError(f"{where}: {fault.kind} takes no value on a GPU: NVML answers as its driver does")
        case "absurd" if fault.target.startswith("gpu:") and value is not None:
            for reading in gpu_readings(fault.target):
                if shown_bits(reading, value) is None:
                    raise TwinError(f"{where}: {reading} cannot show {value!r}: a whole number of 64 bits is needed")
        case "no-driver" if fault.target != "gpu:*":
            raise TwinError(f"{where}: one driver has all cards: the target is gpu:*")
        case "slow":
            if not _is_number(value, 0.0, SLOWEST_S):
                raise TwinError(f"{where}: slow needs a value of 0 to {SLOWEST_S:g} seconds")
        case "missing" | "refused" if value is not None and value not in errno.errorcode.values():
            raise TwinError(f'{where}: value "{value}" names no errno{nearest(str(value), errno.errorcode.values())}')
        case "locked" if value not in (None, "known", "late"):
            raise TwinError(f"{where}: locked takes the value known or late")
        case "no-effect" if value not in (None, "shown", "dropped"):
            raise TwinError(f"{where}: no-effect takes the value shown or dropped")
        case "foreign-writer" if value is None:
            raise TwinError(f"{where}: foreign-writer needs the value that it writes")
        case "foreign-writer" if fault.target.startswith("gpu:") and not _is_number(value, 0, math.inf):
            raise TwinError(f"{where}: foreign-writer on a GPU needs a number (MHz or watts)")
        case "wrap" if value is not None and not _is_number(value, 0, math.inf):
            raise TwinError(f"{where}: wrap takes the microjoules left before the wrap")
        case "stuck" | "absurd" if fault.target.startswith("perf:") and value is not None:
            if not _is_number(value, 0, 2.0**63):
                raise TwinError(f"{where}: a counter shows whole numbers below 2^63")


def _check_path(fault: Fault, where: str, names: list[str]) -> None:
    """TwinError unless the target names files that the fault can affect."""
    found = [name for name in names if matches(fault.target, name)]
    if not found:
        raise TwinError(f"{where}: no such file{_nearest_path(fault.target, names)}")
    if fault.kind == "wrap" and not any(name.endswith("/energy_uj") for name in found):
        raise TwinError(f"{where}: only energy_uj wraps")
    if fault.kind == "locked" and not any("/constraint_" in name and strikes(fault, (name,)) for name in names):
        raise TwinError(f"{where}: there is no power limit to lock (constraint_N_power_limit_uw of a powercap zone)")


def is_path(target: str) -> bool:
    """Whether the target is a glob over files."""
    return target.startswith(("/", "*"))


def matches(target: str, name: str) -> bool:
    """Whether the glob names this file or a directory above it."""
    return fnmatchcase(name, target) or fnmatchcase(name, target.rstrip("/") + "/*")


def is_below(target: str, name: str) -> bool:
    """Whether the glob names this directory, or one above it."""
    return not target.endswith("*") and matches(target, name)


def strikes(fault: Fault, names: Sequence[str]) -> bool:
    """Whether the fault affects the file with these names."""
    if fault.kind != "locked":
        return any(matches(fault.target, name) for name in names)
    # One lock bit covers the zone's whole limit register (Intel SDM, PKG_POWER_LIMIT bit 63), and no other zone's.
    folder, _, last = fault.target.rstrip("/").rpartition("/")
    zone = folder if last.startswith("constraint_") else fault.target.rstrip("/")
    return any(_is_limit(name) and fnmatchcase(name.rpartition("/")[0], zone) for name in names)


def is_counter(target: str, event: str, cpu: int) -> bool:
    """Whether the target names this counter of this CPU."""
    scope, *rest = target.split(":")
    return scope == "perf" and fnmatchcase(event, rest[0]) and (len(rest) == 1 or int(rest[1]) == cpu)


def _is_limit(path: str) -> bool:
    """Whether it is a field of a RAPL limit register."""
    name = path.rpartition("/")[2]
    return "powercap" in path and (name == "enabled" or name.endswith(("_power_limit_uw", "_time_window_us")))


def whole(value: str | int | float) -> int:
    """A fault's value as a whole number; exact if it is written as one."""
    try:
        return int(value)
    except ValueError:
        return int(float(value))


def shown_bits(reading: str, value: str | int | float) -> int | None:
    """The 64 bits by which a GPU shows this value: those of a double in percent for GPM, else of a whole number, two's
    complement below 0. None: it has none."""
    try:
        if reading.startswith("gpm"):
            return int.from_bytes(struct.pack("<d", float(value)), "little")
        number = int(value, 0) if isinstance(value, str) else int(value)
    except (ValueError, OverflowError):
        return None
    return number % 2**64 if -(2**63) <= number < 2**64 else None


def _is_number(value: str | int | float | None, low: float, high: float) -> bool:
    try:
        return value is not None and low <= float(value) <= high
    except ValueError:
        return False


def _nearest_path(target: str, names: Iterable[str]) -> str:
    """The existing path with the longest common beginning with ``target``, then the most similar one."""
    parts = target.split("/")
    known = [name.split("/") for name in names]
    for depth, part in enumerate(parts):
        there = {name[depth] for name in known if len(name) > depth}
        known = [name for name in known if len(name) > depth and fnmatchcase(name[depth], part)]
        if not known:
            near = get_close_matches(part, sorted(there), n=1, cutoff=0.4) or sorted(there)[:1]
            return f"; nearest: {'/'.join([*parts[:depth], *near])}"
    return ""
