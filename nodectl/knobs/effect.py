"""Did clock or power follow a write? The third step after set and read back.

A register with the new limit proves little: a governor, a locked second interface, temperature or the firmware may keep
the clock where it was. So after each write, the first sample that lies wholly after the knob's latency is checked:

- a limit is kept if the clock (or power) is not above it;
- a raised clock limit is followed if a busy domain runs at least at the lower of the limit and its nominal clock, less
  what a driver without a table of clocks may round down. A clock above nominal is turbo, which no limit can demand.

An idle domain shows nothing and is checked again at the next sample. No instrument is read here; only where an effect
is missing does the knob look for the cause.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from nodectl.knobs.api import SIGNS, Knob, KnobError, Outcome, Reason
from pmu.layout import Layout
from pmu.readings import Sample, type_f64

TOLERANCE = 0.05
"""Ours: clocks are means over an interval and power is averaged by the instrument; 5 % is beyond both."""

ROUNDING_KHZ = 100_000
"""The steps of drivers that take any limit and list none: intel_pstate's are 100 MHz, others' finer."""

BUSY_SHARE = 0.5
"""Ours: a domain or GPU less busy than this may rest at any clock below its limit."""


class EffectWatch:
    """Keeps for each knob the last value written and since when, until a sample shows whether it was followed."""

    def __init__(self, knobs: Sequence[Knob], layout: Layout) -> None:
        self._knobs = list(knobs)
        self._row = {knob.name: row for row, knob in enumerate(knobs)}
        self._latency_ns = np.array([knob.latency_s * 1e9 for knob in knobs]).astype(np.int64)
        self._asked = np.zeros(len(knobs))
        self._since_ns = np.zeros(len(knobs), np.int64)
        self._pending = np.zeros(len(knobs), np.bool_)
        self._signals = _Signals(self._row, layout)

    def wrote(self, outcomes: Iterable[Outcome], settings: Mapping[str, int], now_ns: int) -> None:
        """Take note of what the writer has just done with ``settings`` at ``now_ns`` (CLOCK_MONOTONIC)."""
        for outcome in outcomes:
            if outcome.status == "unchanged" or (row := self._row.get(outcome.knob)) is None:
                continue
            value = settings.get(outcome.knob, 0)
            self._pending[row] = outcome.status == "written" and value > 0
            self._asked[row] = value
            self._since_ns[row] = now_ns

    def judge(self, sample: Sample) -> list[Outcome]:
        """Knobs whose effect this sample shows to be missing; each written value is judged once."""
        if not self._pending.any():
            return []
        start_ns = sample.time_ns - round(sample.elapsed_s * 1e9)
        is_due = self._pending & (start_ns >= self._since_ns + self._latency_ns)
        if not is_due.any():
            return []
        seen, floor = self._signals.of(sample)
        with np.errstate(invalid="ignore"):
            is_above = seen > self._asked * (1 + TOLERANCE)
            is_below = seen < (np.minimum(floor, self._asked) - self._signals.rounding) * (1 - TOLERANCE)
        self._pending &= ~(is_due & ~np.isnan(seen))
        return [
            self._missing_effect(int(row), float(seen[row])) for row in np.flatnonzero(is_due & (is_above | is_below))
        ]

    def _missing_effect(self, row: int, seen: float) -> Outcome:
        knob, asked = self._knobs[row], int(self._asked[row])
        try:
            held = knob.read_back()
            if held is not None and not knob.holds(asked, held):
                reason, text = knob.explain(asked, held)
                return self._outcome(knob, asked, seen, reason or "foreign writer", text or f"it is at {held} now")
            reason, text = knob.explain(asked, None)
        except KnobError as error:
            return Outcome(knob.name, error.status, str(error), error.reason)
        return self._outcome(knob, asked, seen, reason, text)

    def _outcome(self, knob: Knob, asked: int, seen: float, reason: Reason, text: str) -> Outcome:
        detail = f"requested {asked} {SIGNS[knob.unit]}, {seen:.0f} measured: {text}"
        return Outcome(knob.name, "no-effect", detail, reason)


class _Signals:
    """What a sample shows of each knob, in the knob's unit; laid out once, so that a tick costs few operations.
    ``rounding`` [n_knobs]: by how much the hardware may stay below the requested value."""

    def __init__(self, row_of: Mapping[str, int], layout: Layout) -> None:
        self._size = len(row_of)
        domains = [(row_of.get(f"cpu/policy{d.policy}/max_khz"), d) for d in layout.domains]
        known = [(row, domain) for row, domain in domains if row is not None]
        self._domain_rows = np.array([row for row, _ in known], np.int64)
        self._base_khz = np.array([domain.base_khz or np.inf for _, domain in known])
        self.rounding = np.zeros(self._size)
        self.rounding[self._domain_rows] = [0 if domain.steps_khz else ROUNDING_KHZ for _, domain in known]
        self._members = np.array([cpu for _, domain in known for cpu in domain.cpus], np.int64)
        self._starts = np.cumsum([0, *(len(domain.cpus) for _, domain in known)])[:-1].astype(np.int64)
        self._clock_rows = _pairs(row_of, [f"gpu/{gpu.index}/sm_clock_mhz" for gpu in layout.gpus])
        self._board_rows = _pairs(row_of, [f"gpu/{gpu.index}/power_limit_mw" for gpu in layout.gpus])
        packages = [zone.name if zone.kind == "package" else "" for zone in layout.zones]
        self._zone_rows = [_pairs(row_of, [f"rapl/{p}/{term}_term_uw" for p in packages]) for term in ("long", "short")]

    def of(self, sample: Sample) -> tuple[type_f64, type_f64]:
        """``seen``, the measured values, and ``floor``, what clocks of busy parts should reach; both [n_knobs], NaN
        where there is nothing to compare."""
        seen, floor = np.full(self._size, np.nan), np.full(self._size, np.nan)
        if self._domain_rows.size:
            is_busy = sample.cpu.busy[self._members] >= BUSY_SHARE
            clocks = np.where(is_busy, sample.cpu.frequency_khz[self._members], np.nan)
            seen[self._domain_rows] = np.fmax.reduceat(clocks, self._starts)
            floor[self._domain_rows] = self._base_khz
        rows, gpus = self._clock_rows
        is_busy = sample.gpu.gpu_utilization[gpus] >= BUSY_SHARE
        seen[rows] = np.where(is_busy, sample.gpu.sm_clock_mhz[gpus], np.nan)
        floor[rows] = np.inf  # a busy card runs at its lock, whatever its nominal clock
        rows, gpus = self._board_rows
        seen[rows] = sample.gpu.power_w[gpus] * 1e3
        if sample.elapsed_s > 0:
            for rows, zones in self._zone_rows:
                seen[rows] = sample.energy_j[zones] / sample.elapsed_s * 1e6
        return seen, floor


def _pairs(row_of: Mapping[str, int], names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the knobs in ``names`` that exist, and their positions in ``names``."""
    found = [(row_of[name], position) for position, name in enumerate(names) if name in row_of]
    rows, positions = zip(*found, strict=True) if found else ((), ())
    return np.array(rows, np.int64), np.array(positions, np.int64)
