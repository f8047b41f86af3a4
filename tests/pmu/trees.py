"""Small trees of sysfs files on disk, for the readers that take a root, and the other ports of such a node."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pmu.ports import Ports
from pmu.readings import type_i64
from pmu.system import OsFiles

CPU = "/sys/devices/system/cpu"
POWERCAP = "/sys/class/powercap"
HWMON = "/sys/class/hwmon"
EVENT_SOURCE = "/sys/bus/event_source/devices"

type_tree = dict[str, str | int]
"""Path and content of each file."""


def grow(root: Path, contents: type_tree) -> OsFiles:
    """Write each file, and open the tree as the real machine's files are opened."""
    for path, content in contents.items():
        place = root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f"{content}\n")
    return OsFiles(str(root))


def package(entry: str, name: str, **more: str | int) -> type_tree:
    """A RAPL zone with a plausible counter; ``more`` names further files."""
    base = f"{POWERCAP}/{entry}"
    files: type_tree = {"name": name, "energy_uj": 1_000_000, "max_energy_range_uj": 262_143_328_850}
    return {f"{base}/{key}": value for key, value in (files | more).items()}


def limit(index: int, name: str, limit_uw: int) -> type_tree:
    """Files of one constraint, as keywords for ``package``."""
    stem = f"constraint_{index}"
    return {f"{stem}_name": name, f"{stem}_power_limit_uw": limit_uw, f"{stem}_time_window_us": 999_424}


class CountsAsTold:
    """``pmu.ports.Counters`` that counts what a test says; no reference cycles and no more, as some Arm servers."""

    def __init__(self) -> None:
        self.counts: type_i64 = np.zeros((1, 1), np.int64)

    def why_not(self, event: str) -> str | None:
        return None if event in ("cycles", "instructions") else f"perf_event_open({event}) gives ENOENT"

    def open(self, cpus: tuple[int, ...], events: tuple[str, ...]) -> CountsAsTold:
        return self

    def sweep(self, out: type_i64) -> None:
        out[...] = self.counts

    def close(self) -> None:
        pass


class SetClock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.time_ns = 0

    def now_ns(self) -> int:
        return self.time_ns

    def sleep_until_ns(self, deadline_ns: int) -> None:
        self.time_ns = deadline_ns


def ports_of(files: OsFiles, clock: SetClock) -> Ports:
    """A node that has these files and hardly anything else."""
    return Ports(files, CountsAsTold(), None, "no GPU", clock)
