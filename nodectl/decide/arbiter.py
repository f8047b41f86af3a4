"""One value per knob: the lowest of the policy's request, the cap and the thermal limit.

Each of the three may be absent. The lowest wins, and the result says which one it was (the binding limit), so that a
slow job can be traced to its cause. A request is rounded *up* to a value that the hardware has, since the policy
guarantees a slowdown bound; a limit is rounded *down*, since it guarantees watts or a temperature.

A frequency domain may have several CPUs: it runs at the highest request of them, and a CPU without a request, or one
whose counters are missing, leaves the domain free. No clock is below the hardware's lowest, so only there a limit may
be exceeded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from nodectl.decide.decisions import BOUNDS
from pmu.layout import KnobRange
from pmu.readings import type_i64, type_u8

FREE, POLICY, CAP, THERMAL, MISSING = range(len(BOUNDS))

_FREE, _MISSING = np.uint8(FREE), np.uint8(MISSING)
_NO_LIMIT: Final = int(np.iinfo(np.int64).max)


class ClockTable:
    """The clocks that each of n knobs can have, one column per knob: ``low``, ``high`` and the steps between.

    Columns are padded at the end with a value no clock reaches, so that the number of entries below a clock *is* the
    index of the step above it: rounding all knobs is one comparison, no search. A knob without steps takes any value.
    """

    def __init__(self, low: list[int], high: list[int], steps: list[tuple[int, ...]]) -> None:
        self.low = np.array(low, np.int64)
        self.high = np.array(high, np.int64)
        inside = [[s for s in row if lo <= s <= hi] for row, lo, hi in zip(steps, low, high, strict=True)]
        self._steps = np.full((max(map(len, inside), default=0), len(low)), _NO_LIMIT, np.int64)
        for knob, values in enumerate(inside):
            self._steps[: len(values), knob] = sorted(values)
        self._last = np.array([len(values) - 1 for values in inside], np.int64)
        self._knobs = np.arange(len(low))
        self._has_steps = self._last >= 0
        self._all_have_steps = bool(self._has_steps.all())

    def __len__(self) -> int:
        return len(self.low)

    def up(self, clocks: type_i64) -> type_i64:
        """The lowest step not under each clock; the highest step for a clock above them all."""
        return self._pick(clocks, (self._steps < clocks).sum(axis=0))

    def down(self, clocks: type_i64) -> type_i64:
        """The highest step not over each clock; the lowest step for a clock below them all."""
        return self._pick(clocks, (self._steps <= clocks).sum(axis=0) - 1)

    def _pick(self, clocks: type_i64, index: npt.NDArray[np.int64]) -> type_i64:
        if self._all_have_steps:
            return np.asarray(self._steps[np.minimum(np.maximum(index, 0), self._last), self._knobs])
        between: type_i64 = np.minimum(np.maximum(clocks, self.low), self.high)
        if not len(self._steps):
            return between
        stepped = self._steps[np.minimum(np.maximum(index, 0), self._last), self._knobs]
        return np.where(self._has_steps, stepped, between)


def clocks_of(rows: Sequence[KnobRange]) -> ClockTable:
    """The table of some knobs, in their unit."""
    return ClockTable([row.low for row in rows], [row.high for row in rows], [row.steps for row in rows])


class SharedClocks:
    """Which CPUs share a clock, laid out once so that the highest request of each domain is one reduction."""

    def __init__(self, groups: Sequence[Sequence[int]], n_cpus: int) -> None:
        self._members = np.array([cpu for group in groups for cpu in group], np.int64)
        self._sizes = np.array([len(group) for group in groups], np.int64)
        self._starts = np.cumsum([0, *self._sizes])[:-1].astype(np.int64)
        self._n_cpus = n_cpus

    def fastest(self, cpu_khz: type_i64) -> type_i64:
        """The highest request in each domain; 0 (no request) as soon as one of its CPUs has none."""
        if not self._starts.size:
            return np.zeros(0, np.int64)
        requests = cpu_khz[self._members]
        highest = np.maximum.reduceat(np.where(requests > 0, requests, _NO_LIMIT), self._starts)
        return np.where(highest == _NO_LIMIT, 0, highest)

    def on_cpus(self, domain_khz: type_i64) -> type_i64:
        """For each CPU what its domain has; 0 for a CPU without one."""
        cpu_khz = np.zeros(self._n_cpus, np.int64)
        cpu_khz[self._members] = np.repeat(domain_khz, self._sizes)
        return cpu_khz

    def any_of(self, cpu_flag: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Whether any CPU of each domain carries the flag."""
        if not self._starts.size:
            return np.zeros(0, np.bool_)
        return np.logical_or.reduceat(cpu_flag[self._members], self._starts)


def arbitrate(
    clocks: ClockTable,
    request: type_i64 | None,
    cap: type_i64 | None,
    thermal: type_i64 | None,
    is_missing: npt.NDArray[np.bool_],
) -> tuple[type_i64, type_u8]:
    """Settle each knob: the lowest of request, cap and thermal limit, and which of them it was.

    All arrays are ``[n_knobs]`` in the table's unit; 0 means none, None that there is none for any knob. Where
    ``is_missing``, the request depends on a sensor that is missing and is dropped, while limits still apply. Returns
    the clocks (0: free) and the binding limits; where two are equal, the first of request, cap, thermal is named.
    """
    bound = np.where(is_missing, _MISSING, _FREE)
    if request is None:
        value = np.full(len(clocks), _NO_LIMIT)
    else:
        is_requested = (request > 0) & ~is_missing
        value = np.where(is_requested, clocks.up(request), _NO_LIMIT)
        bound[is_requested] = POLICY
    for limit, name in ((cap, CAP), (thermal, THERMAL)):
        if limit is not None:
            limited = np.where(limit > 0, clocks.down(limit), _NO_LIMIT)
            bound[limited < value] = name
            value = np.minimum(value, limited)
    return np.where(value == _NO_LIMIT, 0, value), bound
