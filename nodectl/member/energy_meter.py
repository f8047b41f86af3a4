"""Energy counters of this node and of the job parts on it, which lose nothing while nobody reads them.

The node's counter is a function of time, E(t), extended by every tick of the loop. A part's counter is E(t) minus E at
its start, up to its end; between two ticks E is taken as straight. Counters only grow. So a report that is lost, or a
cluster agent that is away, costs nothing: the next report has it all. Two parts on the halves of the node divide what
is drawn while both run (``half_joules``): of each counter what is the other's is taken off.

An agent that is killed is replaced, and the jobs go on. The next agent starts from what this one has kept on the disk:
the counters, and the readings of the hardware's own counters at that instant. These went on counting meanwhile, so
their difference closes the gap; where they could have wrapped, they give a lower bound (STALE, ``pmu.instruments
.rapl``), and where there are none, the last power times the time does (ESTIMATED). What an agent that was killed had
reported, the next one does not fall below.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeAlias

import msgspec
import numpy as np

from foundation.steady_clock import steady_time
from foundation.wire.job_messages import JobPart, PartEnergy
from nodectl.decide.shares import NodeShares
from pmu.decode import decode
from pmu.layout import Layout
from pmu.readings import GPU_FIELDS, RAW_MISSING, Quality, RawSweep

Totals: TypeAlias = tuple[float, ...]
"""Joules by quality, in the order of ``QUALITIES``; last, seconds that were metered."""

QUALITIES: Final = tuple(quality.name.lower() for quality in Quality if quality != Quality.MISSING)
ZERO: Final[Totals] = (0.0,) * (len(QUALITIES) + 1)

POINTS: Final = 1200
"""Ours: how much of E(t) is remembered, two minutes of ticks. A part is seen within a second of its start and end."""

HOLE_S: Final = 0.05
"""Ours: a longer time between two intervals was not metered; shorter ones are the jitter of ticks."""

WAIT_S: Final = 2.0
"""Ours: for so long the end of a part is delayed until E has passed it."""

_ENERGY: Final = GPU_FIELDS.index("energy_mj")


class Kept(msgspec.Struct):
    """What the next agent starts from. ``at_ns``: CLOCK_BOOTTIME of ``totals``, when the hardware's counters were read:
    ``sweep_ns`` of CLOCK_MONOTONIC, ``zones_uj`` and ``gpus_mj`` by name. Parts by ``JOB.ATTEMPT``; ``others``:
    what was drawn while each ran and is not its own; ``parts``: how the last interval was divided."""

    boot_id: str
    at_ns: int
    totals: list[float]
    power_w: float = 0.0
    sweep_ns: int = 0
    zones_uj: dict[str, int] = {}
    gpus_mj: dict[str, int] = {}
    starts: dict[str, list[float]] = {}
    ends: dict[str, list[float]] = {}
    others: dict[str, list[float]] = {}
    parts: dict[str, float] = {}


@dataclass(frozen=True, slots=True)
class Interval:
    """What was metered from ``end_ns`` (CLOCK_BOOTTIME) back; NaN joules: nothing was."""

    end_ns: int
    elapsed_s: float
    joules: float
    quality: str


class _Curve:
    """Counters as a function of time (CLOCK_BOOTTIME, ns): straight between two points, constant outside of them."""

    def __init__(self) -> None:
        self._points: deque[tuple[int, Totals]] = deque(maxlen=POINTS)

    @property
    def last(self) -> Totals:
        """The newest."""
        return self._points[-1][1] if self._points else ZERO

    @property
    def last_ns(self) -> int:
        """When that was; -1: never."""
        return self._points[-1][0] if self._points else -1

    def extend(self, begin_ns: int, end_ns: int, totals: Totals) -> None:
        """It grows to these from the first time to the second."""
        if not self._points or begin_ns - self.last_ns > HOLE_S * 1e9:
            self._points.append((begin_ns, self.last))
        self._points.append((end_ns, totals))

    def cut(self, at_ns: int) -> None:
        """It does not grow after this time."""
        totals = self.at(at_ns)
        while self.last_ns > at_ns:
            self._points.pop()
        self._points.append((at_ns, totals))

    def at(self, at_ns: int) -> Totals:
        """At this time."""
        points = self._points
        after = bisect_right(points, at_ns, key=lambda point: point[0])
        if after == 0 or after == len(points):
            return points[0][1] if after == 0 and points else self.last
        (before_ns, before), (after_ns, later) = points[after - 1], points[after]
        share = (at_ns - before_ns) / (after_ns - before_ns)
        return tuple(a + share * (b - a) for a, b in zip(before, later, strict=True))


class EnergyMeter:
    """The counters of one boot. Not for several threads. ``unix_s`` and ``now_ns``: the two clocks of parts and of E;
    the first one too is one that nobody sets, or a part would begin or end where it did not."""

    def __init__(
        self, boot_id: str, kept: bytes = b"", unix_s: Callable[[], float] | None = None,
        now_ns: Callable[[], int] = lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME),
    ) -> None:  # fmt: skip
        self._boot_id, self._unix_s, self._now_ns = boot_id, unix_s or steady_time(), now_ns
        self._node = _Curve()
        self._starts: dict[str, Totals] = {}
        self._ends: dict[str, Totals] = {}
        self._others: dict[str, _Curve] = {}
        self._parts: Mapping[str, float] = {}
        self._power_w = 0.0
        self._layout: Layout | None = None
        self._sweep: RawSweep | None = None
        self._before: Kept | None = None
        self._load(kept)

    @property
    def totals(self) -> Totals:
        """The node's counters, in this boot."""
        return self._node.last

    @property
    def joules(self) -> float:
        """The node's energy of all qualities."""
        return sum(self.totals[:-1])

    def resume(self, layout: Layout, shares: NodeShares, first: RawSweep) -> None:
        """The first sweep of this agent: add what was drawn since the sweep of the agent before, if there was one."""
        before, self._before = self._before, None
        if before is None and self._sweep is not None:  # another segment of the same run
            before = _KEPT.decode(self.keep())
        self._layout, self._sweep = layout, first
        if before is None:
            return
        elapsed_ns = first.time_ns - before.sweep_ns if before.sweep_ns else self._now_ns() - before.at_ns
        joules, quality = _since(before, layout, shares, first)
        if math.isnan(joules) and before.power_w > 0:
            joules, quality = before.power_w * elapsed_ns / 1e9, "estimated"
        self.add(Interval(before.at_ns + elapsed_ns, elapsed_ns / 1e9, joules, quality), parts=before.parts)

    def add(
        self, interval: Interval, sweep: RawSweep | None = None, parts: Mapping[str, float] = MappingProxyType({})
    ) -> None:
        """Extend E by this interval. ``sweep``: the hardware's counters at its end. ``parts``: how much of it is whose,
        where two runs have the halves of the node."""
        totals, begin_ns = self.totals, interval.end_ns - round(interval.elapsed_s * 1e9)
        joules = interval.joules
        if math.isfinite(joules) and joules >= 0 and interval.quality in QUALITIES and interval.elapsed_s > 0:
            at = QUALITIES.index(interval.quality)
            totals = (*totals[:at], totals[at] + joules, *totals[at + 1 : -1], totals[-1] + interval.elapsed_s)
            for name, part in parts.items():
                curve = self._others.setdefault(name, _Curve())
                own = curve.last
                other_j = own[at] + (1 - part) * joules
                curve.extend(begin_ns, interval.end_ns, (*own[:at], other_j, *own[at + 1 :]))
            self._parts = parts
            self._power_w = joules / interval.elapsed_s
        self._node.extend(begin_ns, interval.end_ns, totals)
        self._sweep = sweep or self._sweep

    def metered(self, parts: Iterable[JobPart]) -> list[JobPart]:
        """These parts with their energy. One that has ended before E has passed its end still runs here."""
        found, names = [], set()
        for part in parts:
            name = f"{part.job}.{part.attempt}"
            names.add(name)
            if not part.is_over or part.started_s:
                found.append(self._metered(name, part))
            else:
                found.append(part)  # it was refused, or is lost: kept energy is all that there is
        for known in (self._starts, self._ends, self._others):
            for name in known.keys() - names:
                del known[name]
        return found

    def keep(self) -> bytes:
        """The record for the next agent."""
        sweep, layout = self._sweep, self._layout
        at_ns = self._node.last_ns if self._node.last_ns >= 0 else self._now_ns()
        kept = Kept(self._boot_id, at_ns, list(self.totals), self._power_w)
        if sweep is not None and layout is not None:
            kept.sweep_ns = sweep.time_ns
            kept.zones_uj = {zone.name: int(uj) for zone, uj in zip(layout.zones, sweep.energy_uj, strict=True)}
            gpus = zip(layout.gpus, sweep.gpu[:, _ENERGY], strict=True)
            kept.gpus_mj = {gpu.uuid: int(mj) for gpu, mj in gpus}
        kept.starts = {name: list(totals) for name, totals in self._starts.items()}
        kept.ends = {name: list(totals) for name, totals in self._ends.items()}
        kept.others = {name: list(curve.last) for name, curve in self._others.items()}
        kept.parts = dict(self._parts)
        return msgspec.json.encode(kept)

    # --- inside

    def _load(self, kept: bytes) -> None:
        try:
            before = _KEPT.decode(kept)
        except (msgspec.DecodeError, ValueError):
            return  # there is none, or the disk was full: counters begin at 0
        starts, ends, others = map(_all_totals, (before.starts, before.ends, before.others))
        totals = tuple(before.totals)
        if starts is None or ends is None or others is None or not _are_totals(totals):
            return
        if not all(0 <= part <= 1 for part in before.parts.values()):
            return
        self._ends = ends
        for name, of_others in others.items():
            self._others[name] = curve = _Curve()
            curve.extend(before.at_ns, before.at_ns, of_others)
        if before.boot_id != self._boot_id:  # the machine went down, and its jobs with it
            self._ends |= {
                name: _difference(_difference(totals, start), others.get(name, ZERO))
                for name, start in starts.items() if name not in ends
            }  # fmt: skip
            return
        self._starts, self._before, self._power_w = starts, before, before.power_w
        self._node.extend(before.at_ns, before.at_ns, totals)

    def _metered(self, name: str, part: JobPart) -> JobPart:
        """E is known up to the last tick, which may be long ago: a start and an end later than that must wait."""
        if name not in self._ends:
            start = self._start(name, part)
            end_ns = min(self._boottime_ns(part.ended_s), self._now_ns()) if part.is_over else 0
            so_far = ZERO if start is None else self._own(name, start, self._node.last_ns)
            if not part.is_over:
                return msgspec.structs.replace(part, energy=_on_the_wire(so_far))
            if (start is None or self._node.last_ns < end_ns) and self._now_ns() - end_ns < WAIT_S * 1e9:
                energy = _on_the_wire(so_far)
                return JobPart(part.job, part.attempt, "running", started_s=part.started_s, energy=energy)
            self._ends[name] = ZERO if start is None else self._own(name, start, end_ns)
            if name in self._others:  # from its end on it draws nothing, however late that was seen
                for other in self._others.keys() - self._ends.keys():
                    self._others[other].cut(end_ns)
        return msgspec.structs.replace(part, energy=_on_the_wire(self._ends[name]))

    def _own(self, name: str, start: Totals, at_ns: int) -> Totals:
        """Of what the node drew until then, the part's own."""
        drawn = _difference(self._node.at(at_ns), start)
        return _difference(drawn, self._others[name].at(at_ns)) if name in self._others else drawn

    def _start(self, name: str, part: JobPart) -> Totals | None:
        """E at the start of the part; None: not known yet."""
        if name not in self._starts:
            if not part.started_s:  # it was accepted, and its job step has not begun
                return None
            start_ns = self._boottime_ns(part.started_s)
            if self._node.last_ns < start_ns:
                return None
            self._starts[name] = self._node.at(start_ns)
        return self._starts[name]

    def _boottime_ns(self, unix_s: float) -> int:
        return self._now_ns() - round((self._unix_s() - unix_s) * 1e9)


def _since(before: Kept, layout: Layout, shares: NodeShares, current: RawSweep) -> tuple[float, str]:
    """What the hardware's counters show since they were kept, and how far that can be trusted."""
    if not before.sweep_ns or current.time_ns <= before.sweep_ns:
        return math.nan, "missing"
    gpu = np.full(current.gpu.shape, RAW_MISSING, np.int64)
    gpu[:, _ENERGY] = [before.gpus_mj.get(one.uuid, RAW_MISSING) for one in layout.gpus]
    previous = RawSweep(
        before.sweep_ns,
        np.full(current.counters.shape, RAW_MISSING, np.int64),
        np.array([before.zones_uj.get(zone.name, RAW_MISSING) for zone in layout.zones], np.int64),
        gpu,
        columns=np.full(current.columns.shape, RAW_MISSING, np.int64),
    )
    return shares.node_energy(decode(layout, previous, current))


def _on_the_wire(totals: Totals) -> PartEnergy:
    joules = {f"{quality}_mj": int(1e3 * one) for quality, one in zip(QUALITIES, totals, strict=False)}
    return PartEnergy(**joules, metered_ms=int(1e3 * totals[-1]))


def _difference(later: Totals, before: Totals) -> Totals:
    return tuple(max(a - b, 0.0) for a, b in zip(later, before, strict=True))


def _are_totals(totals: tuple[float, ...]) -> bool:
    return len(totals) == len(ZERO) and all(0 <= one < math.inf for one in totals)


def _all_totals(kept: dict[str, list[float]]) -> dict[str, Totals] | None:
    found = {name: tuple(totals) for name, totals in kept.items()}
    return found if all(map(_are_totals, found.values())) else None


_KEPT: Final = msgspec.json.Decoder(Kept)
