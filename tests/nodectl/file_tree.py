"""A node made of plain files below some directory: real reads, writes and refusals, and no physics.

What a kernel would refuse is set per path in ``refusals`` (an errno), what it would swallow in ``deaf``.
"""

import os
import time
from pathlib import Path

from pmu.ports import Ports

CPUFREQ = "/sys/devices/system/cpu/cpufreq"
POWERCAP = "/sys/class/powercap"
MAX_KHZ = 3_200_000


class RootedFiles:
    """``pmu.ports.Files`` below ``root``; ``log`` lists what was written, in order."""

    def __init__(self, root) -> None:
        self.root = Path(root)
        self.refusals: dict[str, int] = {}
        self.deaf: set[str] = set()
        self.log: list[tuple[str, str]] = []

    def read(self, path):
        return (self.root / path.lstrip("/")).read_text()

    def keep(self, path):
        self.read(path)
        return ReadAgain(self, path)

    def write(self, path, text):
        if path in self.refusals:
            raise OSError(self.refusals[path], os.strerror(self.refusals[path]), path)
        file = self.root / path.lstrip("/")
        if not file.exists():
            raise FileNotFoundError(2, "No such file or directory", path)
        self.log.append((path, text))
        if path not in self.deaf:
            beside = file.with_name(f".{file.name}")  # a reader sees the old value or the new one, as in sysfs
            beside.write_text(text + "\n")
            beside.replace(file)

    def listdir(self, path):
        return os.listdir(self.root / path.lstrip("/"))

    def exists(self, path):
        return (self.root / path.lstrip("/")).exists()

    def writable(self, path):
        return os.access(self.root / path.lstrip("/"), os.W_OK)

    def put(self, path, text):
        """As somebody else, or the hardware, would."""
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")


class ReadAgain:
    """A file of a tree whose files are replaced, as one that is kept open."""

    def __init__(self, files, path) -> None:
        self._files, self._path = files, path

    def read(self):
        return self._files.read(self._path).encode()

    def close(self):
        """Nothing is open."""


class StillClock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.time_ns = 1_000_000_000_000

    def now_ns(self) -> int:
        return self.time_ns

    def sleep_until_ns(self, deadline_ns: int) -> None:
        self.time_ns = max(self.time_ns, deadline_ns)


class RealClock:
    """CLOCK_MONOTONIC."""

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def sleep_until_ns(self, deadline_ns: int) -> None:
        time.sleep(max(deadline_ns - time.monotonic_ns(), 0) / 1e9)


def limit_path(policy: int) -> str:
    return f"{CPUFREQ}/policy{policy}/scaling_max_freq"


def file_node(root, policies: int = 4, packages: int = 1, with_mmio: bool = False) -> Ports:
    """The ports of a new node of files; its ``files`` are a ``RootedFiles``."""
    files = RootedFiles(root)
    for policy in range(policies):
        base = f"{CPUFREQ}/policy{policy}"
        files.put(f"{base}/scaling_max_freq", MAX_KHZ)
        files.put(f"{base}/scaling_governor", "performance")
        files.put(f"{base}/scaling_driver", "acpi-cpufreq")
        files.put(f"{base}/cpuinfo_transition_latency", 10_000)
    for package in range(packages):
        for control in ("intel-rapl", "intel-rapl-mmio") if with_mmio else ("intel-rapl",):
            base = f"{POWERCAP}/{control}:{package}"
            files.put(f"{base}/name", f"package-{package}")
            files.put(f"{base}/enabled", 1)
            for number, (term, limit_uw, window_us) in enumerate(
                (("long_term", 150_000_000, 999_424), ("short_term", 180_000_000, 2_440))
            ):
                files.put(f"{base}/constraint_{number}_name", term)
                files.put(f"{base}/constraint_{number}_power_limit_uw", limit_uw)
                files.put(f"{base}/constraint_{number}_time_window_us", window_us)
    return reopen(files)


def reopen(files: RootedFiles) -> Ports:
    """The same node through fresh ports."""
    return Ports(files=files, counters=None, nvml=None, nvml_why="no GPU in this node", clock=StillClock())
