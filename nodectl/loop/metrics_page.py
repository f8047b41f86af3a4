"""The run as Prometheus reads it, once a second in a file; ``nodectl metrics`` serves that file.

The agent reaches what moves knobs and has no network, so it listens nowhere: it replaces one small file that everybody
may read, and a process without any right answers Prometheus. Joules are counters since the start of the run, by
instrument and quality; Prometheus knows that a counter starts again with its process. Dashboards and rules are made
from these names (``docs.generator.monitoring``): one that is renamed here must be renamed there.
Source of the format: prometheus.io, "Text-based format", version 0.0.4.
"""

from __future__ import annotations

import contextlib
import os
import platform
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from foundation import __version__
from foundation.planted_links import open_new
from nodectl.decide.decisions import BOUNDS, Decisions
from nodectl.loop.pace import Pace
from nodectl.loop.summary import RunAccount
from pmu.layout import Layout
from pmu.readings import Quality, Sample, type_f64

EVERY_NS: Final = 1_000_000_000
"""Ours: sites scrape every 15 s or so."""

STALE_S, STALE_PERIODS = 10.0, 3
"""Ours: an agent that has not replaced its page for so long, and for so many of its periods, is down. Its watchdog ends
one that hangs after 15 s."""

WRITTEN: Final = "# written at boottime "
"""A remark for the reader of the page: CLOCK_BOOTTIME in seconds. The time of the file is of the wall clock, which
anybody may set."""

Row = tuple[dict[str, str], float]

FAMILIES: Final = {
    "up": ("gauge", "Whether the agent runs.", ""),
    "build_info": ("gauge", "1; the agent's version and mode.", "version, python, mode"),
    "energy_joules_total": ("counter", "Energy since the start of the run.", "instrument, side, quality"),
    "energy_missing_seconds_total": ("counter", "Time without any reading of energy.", "instrument"),
    "cap_watts": ("gauge", "The cap on the whole node; none: no cap.", ""),
    "packages_cap_watts": ("gauge", "What of it the processor packages get.", ""),
    "cpu_clock_hertz": ("gauge", "Clocks of the CPUs in the last period.", "statistic"),
    "gpu_clock_hertz": ("gauge", "SM clock.", "gpu, model"),
    "gpu_power_watts": ("gauge", "Board power.", "gpu, model"),
    "knobs": ("gauge", "Knobs by the limit that binds them.", "domain, bound"),
    "readings": ("gauge", "Readings of the last period by their quality.", "quality"),
    "periods_total": ("counter", "Periods of the loop.", ""),
    "missed_periods_total": ("counter", "Periods missed.", ""),
    "period_seconds": ("gauge", "The period now.", ""),
}
"""Each metric without its prefix ``nodectl_``: kind, meaning, labels. The first is of whoever serves the page."""


@dataclass(frozen=True, slots=True)
class Period:
    """What one period adds to the page. ``cap_w``: the cap on the whole node; 0: none."""

    sample: Sample
    decisions: Decisions
    cap_w: float
    account: RunAccount
    pace: Pace


class MetricsPage:
    """The file at ``path``, replaced as a whole, so that nobody reads half a page."""

    def __init__(self, path: str, layout: Layout, mode: str) -> None:
        self._path, self._layout, self._mode = path, layout, mode
        self._due_ns = 0
        self._ticks = 0

    def update(self, now_ns: int, period: Period) -> None:
        """Count a period, and replace the file if it is time; ``OSError`` if it cannot be written."""
        self._ticks += 1
        if now_ns < self._due_ns:
            return
        self._due_ns = now_ns + EVERY_NS
        os.makedirs(os.path.dirname(self._path), mode=0o755, exist_ok=True)
        replacement = f"{self._path}.new"
        with open(open_new(replacement), "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), 0o644)
            file.write("".join(self._families(period)))
            file.write(f"{WRITTEN}{time.clock_gettime(time.CLOCK_BOOTTIME)}\n")
        os.replace(replacement, self._path)

    def close(self) -> None:
        """Remove the file: this run has ended."""
        os.unlink(self._path)
        with contextlib.suppress(OSError):  # a service's folder goes with the service
            os.rmdir(os.path.dirname(self._path))

    def _families(self, period: Period) -> Iterator[str]:
        sample, decisions = period.sample, period.decisions
        gpus = [{"gpu": str(gpu.index), "model": gpu.name} for gpu in self._layout.gpus]
        build = {"version": __version__, "python": platform.python_version(), "mode": self._mode}
        yield _family("build_info", [(build, 1.0)])
        yield _family("energy_joules_total", self._joules(period))
        missing = [({"instrument": one.name}, one.missing_s) for one in period.account.energy()]
        yield _family("energy_missing_seconds_total", missing)
        yield _family("cap_watts", _if_any(period.cap_w))
        packages_w = decisions.cap.packages_mw / 1000
        yield _family("packages_cap_watts", _if_any(packages_w))
        yield _family("cpu_clock_hertz", _spread(sample))
        yield _family("gpu_clock_hertz", _by_gpu(gpus, sample.gpu.sm_clock_mhz * 1e6))
        yield _family("gpu_power_watts", _by_gpu(gpus, sample.gpu.power_w))
        bound_by = zip(decisions.knobs, decisions.bound.tolist(), strict=True)
        bounds = Counter((name.partition("/")[0], BOUNDS[bound]) for name, bound in bound_by)
        knobs = [({"domain": domain, "bound": bound}, float(n)) for (domain, bound), n in sorted(bounds.items())]
        yield _family("knobs", knobs)
        qualities = Counter(_qualities(sample))
        shares = [({"quality": quality.name.lower()}, float(qualities[quality])) for quality in Quality]
        yield _family("readings", shares)
        yield _family("periods_total", [({}, float(self._ticks))])
        yield _family("missed_periods_total", [({}, float(period.pace.missed))])
        yield _family("period_seconds", [({}, period.pace.period_ns / 1e9)])

    @staticmethod
    def _joules(period: Period) -> Iterator[Row]:
        for one in period.account.energy():
            for quality, joules in one.by_quality.items():
                yield {"instrument": one.name, "side": one.side, "quality": quality}, joules


def metrics_path(lock_path: str) -> str:
    """Where the agent of this node publishes its page: below the directory of the node's lock, in a folder of its own,
    since that directory belongs to the writer; "" where nobody else can reach it."""
    directory, name = os.path.split(lock_path)
    return os.path.join(directory, "agent", f"metrics{name.removeprefix('lock')}.prom") if lock_path else ""


def _spread(sample: Sample) -> list[Row]:
    """Least, mean and most: one series per CPU would be more than all else together."""
    khz = sample.cpu.frequency_khz[~np.isnan(sample.cpu.frequency_khz)]
    if not khz.size:
        return []
    least, mean, most = float(khz.min()), float(khz.mean()), float(khz.max())
    return [({"statistic": name}, value * 1000) for name, value in (("least", least), ("mean", mean), ("most", most))]


def _by_gpu(gpus: list[dict[str, str]], values: type_f64) -> list[Row]:
    return [(labels, value) for labels, value in zip(gpus, values.tolist(), strict=True) if value == value]


def _if_any(watts: float) -> list[Row]:
    return [({}, watts)] if watts else []


def _qualities(sample: Sample) -> Iterator[Quality]:
    for column in (sample.cpu.quality, sample.energy_quality, sample.gpu.quality, sample.columns.quality):
        yield from map(Quality, column.tolist())


def _family(name: str, rows: Iterable[Row]) -> str:
    """One metric with its rows; without rows nothing, since a value that is not known is left out."""
    kind, help_, _ = FAMILIES[name]
    lines = [f"nodectl_{name}{_labels(labels)} {value!r}\n" for labels, value in rows]
    return f"# HELP nodectl_{name} {help_}\n# TYPE nodectl_{name} {kind}\n{''.join(lines)}" if lines else ""


def _labels(labels: dict[str, str]) -> str:
    inner = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items())
    return f"{{{inner}}}" if inner else ""


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
