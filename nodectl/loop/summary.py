"""A run in figures: joules by instrument and quality, time, estimated saving and slowdown, and what is not known.

Joules are summed per instrument and per quality, so that the summary shows how much of a figure was measured. Only
zones that do not contain each other are added up: packages and DRAM. ``psys`` includes them and ``core`` is part of a
package, so both are shown but never added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from nodectl.decide.decisions import Decisions
from nodectl.loop.loss import Estimate, LossAccount
from pmu.layout import Layout
from pmu.readings import Quality, Sample

ADDED_KINDS: Final = ("package", "dram")
"""Zone kinds that make up the CPU side's energy."""

THROTTLED: Final = 0x04 | 0x08 | 0x20 | 0x40 | 0x80
"""nvmlClocksEventReasons: power cap, hardware slowdown, thermal (software, hardware), power brake. Source: nvml.h."""


class Energy(msgspec.Struct, frozen=True):
    """Joules of one instrument over the run; ``by_quality`` splits them; ``missing_s`` had no reading at all."""

    name: str
    side: str  # "cpu" | "gpu" | "other": what it counts towards; "other" is contained in, or contains, the rest
    joules: float
    by_quality: dict[str, float]
    missing_s: float


class Timing(msgspec.Struct, frozen=True):
    """Median and 99th percentile, milliseconds; None before the first tick."""

    p50_ms: float | None
    p99_ms: float | None


class Progress(msgspec.Struct, frozen=True):
    """What the application reported: units of its own, finished in ``told_s`` seconds; ``doubted_s``: seconds in which
    its count was not believed."""

    units: int
    told_s: float
    doubted_s: float


class Summary(msgspec.Struct, frozen=True):
    """One run of the agent."""

    mode: str
    elapsed_s: float
    ticks: int
    missed_periods: int
    period_ms: float
    energy: list[Energy]
    cpu: Estimate | None
    gpu: Estimate | None
    gpu_held_back_s: float
    lateness: Timing
    sweep: Timing
    own_code: Timing
    notices: list[str]
    not_read: list[str] = []  # instruments that were there but gave nothing from the start, and why
    policies: dict[str, str] = {}  # the policy that decided for each domain ("cpu", "gpu", "uncore", ...)
    progress: Progress | None = None  # None: none was reported
    others: dict[str, Estimate] = {}  # by domain: estimates of the policies of other domains than cpu and gpu

    def joules(self, side: str) -> float:
        """The energy of one side: "cpu" (packages and DRAM) or "gpu" (boards)."""
        return sum(part.joules for part in self.energy if part.side == side)

    def quality(self, side: str) -> str:
        """The quality of one side's joules: "measured", or shares ("92 % measured, 8 % stale")."""
        sums: dict[str, float] = {}
        for part in self.energy:
            for name, joules in part.by_quality.items() if part.side == side else ():
                sums[name] = sums.get(name, 0.0) + joules
        total = sum(sums.values())
        if len(sums) == 1:
            return next(iter(sums))
        ordered = sorted(sums.items(), key=lambda item: -item[1])
        return ", ".join(f"{joules / total:.1%} {name}" for name, joules in ordered) if total > 0 else "missing"

    def line(self) -> str:
        """The run in one line, for the end of ``nodectl run -- CMD``."""
        sides = [("gpu", "GPU boards", self.gpu), ("cpu", "CPU packages and DRAM", self.cpu)]
        present = [(side, label, estimate) for side, label, estimate in sides if self._has(side)]
        parts = [f"time {self.elapsed_s:.2f} s"]
        parts += [f"{label} {self.joules(side):.1f} J ({self.quality(side)})" for side, label, _ in present]
        for side, label, estimate in present:
            if estimate is not None:
                policy = self.policies.get(side, "its policy")
                parts.append(f"{label}: {_in_words(estimate, self.joules(side), policy)}")
        for domain, estimate in self.others.items():
            parts.append(f"{domain}: {_in_words(estimate, self.joules('cpu'), self.policies[domain])}")
        if self.gpu_held_back_s > 0:
            parts.append(f"firmware throttled GPU clocks (power, heat) for {self.gpu_held_back_s:.1f} GPU seconds")
        if self.progress:
            parts.append(_progress_in_words(self.progress))
        unknown = self._unknown()
        if unknown:
            parts.append("not known: " + ", ".join(unknown))
        return "; ".join(parts)

    def _has(self, side: str) -> bool:
        return any(part.side == side for part in self.energy)

    def _unknown(self) -> list[str]:
        unknown = [] if self._has("cpu") else ["CPU energy (no RAPL)"]
        unknown += [f"{part.name} for {part.missing_s:.1f} s" for part in self.energy if part.missing_s > 0]
        unknown += self.not_read
        unknown.append("the rest of the node")
        return unknown


def joined(parts: Sequence[Summary]) -> Summary:
    """The segments of one run as one. Sums are added; times of the loop are the last segment's, since percentiles do
    not add up, and so are notices, which one log has for all. Estimates are weighted by the time of their segments."""
    last = parts[-1]
    if len(parts) == 1:
        return last
    return msgspec.structs.replace(
        last,
        elapsed_s=sum(part.elapsed_s for part in parts),
        ticks=sum(part.ticks for part in parts),
        missed_periods=sum(part.missed_periods for part in parts),
        energy=_joined_energy(parts),
        cpu=_joined_estimates([(part.cpu, part.elapsed_s) for part in parts]),
        gpu=_joined_estimates([(part.gpu, part.elapsed_s) for part in parts]),
        gpu_held_back_s=sum(part.gpu_held_back_s for part in parts),
        policies={domain: policy for part in parts for domain, policy in part.policies.items()},
        progress=_joined_progress([part.progress for part in parts if part.progress]),
        others=_joined_others(parts),
    )


def _joined_others(parts: Sequence[Summary]) -> dict[str, Estimate]:
    domains = dict.fromkeys(domain for part in parts for domain in part.others)
    found = {name: _joined_estimates([(part.others.get(name), part.elapsed_s) for part in parts]) for name in domains}
    return {name: estimate for name, estimate in found.items() if estimate}


def _joined_energy(parts: Sequence[Summary]) -> list[Energy]:
    """By instrument. One that a segment did not have has no reading for that time."""
    energy: dict[str, Energy] = {}
    whole_s = sum(part.elapsed_s for part in parts)
    for one in (one for part in parts for one in part.energy):
        before = energy.get(one.name)
        if before:
            joules = dict(before.by_quality)
            for quality, amount in one.by_quality.items():
                joules[quality] = joules.get(quality, 0.0) + amount
            one = Energy(
                one.name, one.side, before.joules + one.joules, joules, before.missing_s + one.missing_s
            )  # fmt: skip
        energy[one.name] = one
    read_s = {
        name: sum(part.elapsed_s for part in parts if any(one.name == name for one in part.energy)) for name in energy
    }
    return [
        msgspec.structs.replace(one, missing_s=one.missing_s + whole_s - read_s[name]) for name, one in energy.items()
    ]


def _joined_estimates(parts: Sequence[tuple[Estimate | None, float]]) -> Estimate | None:
    known = [(estimate, seconds) for estimate, seconds in parts if estimate]
    if not known:
        return None
    whole_s = sum(seconds for _, seconds in parts)
    worst = [one.worst_slowdown for one, _ in known if one.worst_slowdown is not None]
    saved = [one.saved_j for one, _ in known if one.saved_j is not None]
    return Estimate(
        slowdown=_mean_slowdown(known),
        worst_slowdown=max(worst, default=None),
        saved_j=sum(saved) if saved else None,
        coverage=sum(one.coverage * seconds for one, seconds in known) / whole_s if whole_s > 0 else 0.0,
    )


def _mean_slowdown(known: Sequence[tuple[Estimate, float]]) -> float | None:
    """Weighted by the time that each has an estimate for."""
    slowdowns = [(one.slowdown, one.coverage * seconds) for one, seconds in known if one.slowdown is not None]
    covered_s = sum(seconds for _, seconds in slowdowns)
    return sum(slowdown * seconds for slowdown, seconds in slowdowns) / covered_s if covered_s > 0 else None


def _joined_progress(parts: Sequence[Progress]) -> Progress | None:
    if not parts:
        return None
    return Progress(
        sum(one.units for one in parts), sum(one.told_s for one in parts), sum(one.doubted_s for one in parts)
    )


class RunAccount:
    """Sums what a summary needs, a few array operations per tick."""

    def __init__(self, layout: Layout) -> None:
        self._names = [zone.name for zone in layout.zones] + [f"gpu-{gpu.index}" for gpu in layout.gpus]
        self._sides = ["cpu" if zone.kind in ADDED_KINDS else "other" for zone in layout.zones]
        self._sides += ["gpu"] * len(layout.gpus)
        self._rows = np.arange(len(self._names))
        self._joules = np.zeros((len(self._names), len(Quality)))
        self._missing_s = np.zeros(len(self._names))
        self._cpu, self._gpu = LossAccount(len(layout.cpus)), LossAccount(len(layout.gpus))
        self._others: dict[str, LossAccount] = {}
        self.policies: dict[str, str] = {}
        self._gpu_ones = np.ones(len(layout.gpus))
        self.gpu_held_back_s = 0.0
        self.elapsed_s = 0.0
        self._units, self._reported_s, self._doubted_s = 0.0, 0.0, 0.0

    def add_sample(self, sample: Sample) -> None:
        """Count one interval's energy."""
        self.elapsed_s += sample.elapsed_s
        joules = np.concatenate((sample.energy_j, sample.gpu.energy_j))
        quality = np.concatenate((sample.energy_quality, sample.gpu.quality))
        is_missing = np.isnan(joules)
        self._joules[self._rows, quality] += np.where(is_missing, 0.0, joules)
        self._missing_s += is_missing * sample.elapsed_s
        is_throttled = (sample.gpu.throttle_reasons > 0) & (sample.gpu.throttle_reasons & THROTTLED > 0)
        self.gpu_held_back_s += float(is_throttled.sum()) * sample.elapsed_s
        progress = sample.progress
        if progress.quality == Quality.MEASURED:
            self._units += progress.units
            self._reported_s += sample.elapsed_s
        elif progress.quality != Quality.MISSING:
            self._doubted_s += sample.elapsed_s

    def add_decisions(self, sample: Sample, decisions: Decisions, sides: Mapping[str, str]) -> None:
        """Count the policies' estimates of that interval; ``sides`` maps the name of a policy to its domain."""
        for decision in decisions.policies:
            side = sides.get(decision.policy)
            if side == "cpu":
                self.policies["cpu"] = decision.policy
                self._cpu.add(decision.request, np.fmax(sample.cpu.busy, 0.0) * sample.elapsed_s)
                self._cpu.add_saving(decision.request, sample.elapsed_s)
            elif side == "gpu":
                self.policies["gpu"] = decision.policy
                self._gpu.add(decision.request, self._gpu_ones * sample.elapsed_s)
                self._gpu.add_saving(decision.request, sample.elapsed_s)
            elif side:
                self.policies[side] = decision.policy
                size = decision.request.target.size
                account = self._others.setdefault(side, LossAccount(size))
                account.add(decision.request, np.full(size, sample.elapsed_s))
                account.add_saving(decision.request, sample.elapsed_s)

    def energy(self) -> list[Energy]:
        """Joules by instrument, including those that never gave a reading."""
        return [
            Energy(name, side, float(row.sum()), _named(row.tolist()), float(missing_s))
            for name, side, row, missing_s in zip(self._names, self._sides, self._joules, self._missing_s, strict=True)
        ]

    def others(self) -> dict[str, Estimate]:
        """What policies of other domains than "cpu" and "gpu" say."""
        return {domain: account.estimate() for domain, account in self._others.items()}

    def progress(self) -> Progress | None:
        """The progress that the application reported; None if it reported none."""
        is_reported = self._reported_s > 0 or self._doubted_s > 0
        return Progress(round(self._units), self._reported_s, self._doubted_s) if is_reported else None

    def estimates(self) -> tuple[Estimate | None, Estimate | None]:
        """CPU and GPU side; None where no policy decided."""
        return (
            self._cpu.estimate() if "cpu" in self.policies else None,
            self._gpu.estimate() if "gpu" in self.policies else None,
        )


def _named(by_quality: list[float]) -> dict[str, float]:
    return {Quality(q).name.lower(): joules for q, joules in enumerate(by_quality) if joules}


def _progress_in_words(progress: Progress) -> str:
    words = f"progress reported: {progress.units} units"
    if progress.units:
        words += f", {progress.units / progress.told_s:.3g} a second"
    return words + (f" (its count not believed for {progress.doubted_s:.1f} s)" if progress.doubted_s else "")


def _in_words(estimate: Estimate, energy_j: float, policy: str) -> str:
    if estimate.slowdown is None and estimate.saved_j is None:
        return f"{policy} gives no estimate of saving or slowdown"
    saving = estimate.saving(energy_j)
    words = [f"estimated saving {saving:.1%}" if saving is not None else "saving not known"]
    if estimate.slowdown is None or estimate.worst_slowdown is None:
        words.append("slowdown not known")
    else:
        words.append(f"estimated slowdown {estimate.slowdown:.1%} (worst clock {estimate.worst_slowdown:.1%})")
        if estimate.coverage < 0.995:
            words.append(f"from {estimate.coverage:.0%} of the time")
    return ", ".join(words)
