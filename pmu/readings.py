"""What a reading is: a value with unit, time and quality, and the arrays that one sweep of a node yields.

An agent that treats a missing value as zero lowers clocks on a dead sensor. So a missing integer is the sentinel
``RAW_MISSING``, and a missing float is NaN with quality ``MISSING``; neither can pass as data in arithmetic.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

type_f64 = npt.NDArray[np.float64]
type_i64 = npt.NDArray[np.int64]
type_u8 = npt.NDArray[np.uint8]

RAW_MISSING = int(np.iinfo(np.int64).min)
"""Sentinel in raw integer arrays: the instrument gave no value at this sweep."""


RAW_HIGHEST = int(np.iinfo(np.int64).max)
"""The highest raw integer; what an instrument reports beyond that is not believed."""


class PmuError(Exception):
    """An instrument cannot be used as requested; the message names the file or device, and what to do."""


class Quality(enum.IntEnum):
    """How far a reading can be trusted; a sum of joules is split by it."""

    MEASURED = 0
    ESTIMATED = 1  # derived from another quantity, or from a weaker source than the proper one
    STALE = 2  # older than the interval it should describe
    WRAPPED = 3  # a counter passed its range once and was unwrapped
    CLIPPED = 4  # outside what the instrument can show; set to that bound
    MISSING = 5  # no value: the value is NaN


@dataclass(frozen=True, slots=True)
class Reading:
    """One value from one instrument.

    ``value`` is NaN when quality is MISSING; ``time_ns`` is CLOCK_MONOTONIC; ``why`` says what is wrong, if anything.
    """

    name: str
    value: float
    unit: str
    time_ns: int
    quality: Quality
    why: str = ""


GPU_FIELDS = (
    "sm_clock_mhz",
    "memory_clock_mhz",
    "power_mw",
    "energy_mj",
    "temperature_c",
    "gpu_utilization_pct",
    "memory_utilization_pct",
    "sm_occupancy_ppm",
    "sm_active_ppm",
    "dram_active_ppm",
    "throttle_reasons",
)
"""Columns of ``RawSweep.gpu``. The ``_ppm`` columns come from GPM (Hopper on) and are missing before it."""


class RawProgress(NamedTuple):
    """The count of the application (``pmu.instruments.job_progress``). ``source``: numbers the runs of programs that
    report, from 1; another number means another count, in other units. ``units``: finished since its start, or
    ``RAW_MISSING``."""

    source: int
    units: int


NO_RAW_PROGRESS = RawProgress(0, RAW_MISSING)
"""No program reports progress."""


class RawHints(NamedTuple):
    """What the application has hinted (``pmu.instruments.job_hints``), as it was read. ``source`` as in
    ``RawProgress``. ``news``: changes so far, modulo 2^32. ``phase``: the present one, by its own number; 0: none.
    ``last``: what came last, as in ``Hint``, or any number that the application wrote. The rest are counts since its
    start: big copies, kernels launched, waits begun and ended, changes of phase."""

    source: int
    news: int
    phase: int
    last: int
    copies: int
    kernels: int
    waits: int
    waited: int
    phases: int


NO_RAW_HINTS = RawHints(*[0] * 9)
"""No program gives hints."""


@dataclass(slots=True)
class RawSweep:
    """Integers as the instruments returned them at one instant.

    ``counters`` is int64 ``[n_cpus, n_events]``, cumulative, already scaled for multiplexing by the sweep;
    ``energy_uj`` int64 ``[n_zones]``, cumulative, wrapping at the zone's range;
    ``gpu`` int64 ``[n_gpus, len(GPU_FIELDS)]``; ``columns`` int64 ``[n_columns]``, those of ``Layout.columns``.
    ``RAW_MISSING`` marks what could not be read.
    """

    time_ns: int
    counters: type_i64
    energy_uj: type_i64
    gpu: type_i64
    progress: RawProgress = NO_RAW_PROGRESS
    columns: type_i64 = field(default_factory=lambda: np.empty(0, np.int64))
    hints: RawHints = NO_RAW_HINTS


@dataclass(frozen=True, slots=True)
class CpuSample:
    """What the logical CPUs did since the previous sweep; every array is ``[n_cpus]`` float64.

    ``ipc`` is instructions per *reference* cycle of busy time (NaN when idle or missing); ``busy`` the share of
    the interval not idle; ``stall`` the share of busy core cycles in which nothing retired for want of data
    (NaN where the machine has no such event); ``frequency_khz`` the mean busy clock.
    """

    instructions: type_f64
    cycles: type_f64
    reference_cycles: type_f64
    ipc: type_f64
    busy: type_f64
    stall: type_f64
    llc_misses: type_f64
    frequency_khz: type_f64
    quality: type_u8


@dataclass(frozen=True, slots=True)
class GpuSample:
    """What each GPU did since the previous sweep; every array is ``[n_gpus]`` float64.

    ``energy_j`` over the interval, ``power_w`` as the driver averages it, shares (``sm_occupancy``, ``sm_active``,
    ``dram_active``, ``gpu_utilization``, ``memory_utilization``) in 0..1. Before Hopper ``sm_occupancy`` is
    ``utilization.gpu`` and ``occupancy_quality`` says ESTIMATED: a weaker signal.
    """

    sm_clock_mhz: type_f64
    memory_clock_mhz: type_f64
    power_w: type_f64
    energy_j: type_f64
    temperature_c: type_f64
    gpu_utilization: type_f64
    memory_utilization: type_f64
    sm_occupancy: type_f64
    sm_active: type_f64
    dram_active: type_f64
    throttle_reasons: type_i64
    occupancy_quality: type_u8
    quality: type_u8


@dataclass(frozen=True, slots=True)
class ProgressSample:
    """The progress that the application reported since the previous sweep.

    ``units``: finished units of its own, of any size; 0 may just mean that one is in progress. NaN unless ``quality``
    is MEASURED: MISSING where none is reported or its program has changed, CLIPPED where a count is not believed.
    ``source`` as in ``RawProgress``: units of one source cannot be compared with those of another.
    """

    units: float
    source: int
    quality: Quality


NO_PROGRESS = ProgressSample(float("nan"), 0, Quality.MISSING)
"""No program reports progress."""


class Hint(enum.IntEnum):
    """What a program that uses GPUs has hinted last."""

    NONE = 0
    COPY = 1
    KERNEL = 2


@dataclass(frozen=True, slots=True)
class HintSample:
    """What the application hinted. ``last`` and ``phase`` are those at the end of the interval; ``copies``, ``kernels``
    and ``phases`` (changes of phase) were counted in it; ``waiting``: at least so many threads waited for other ranks
    all through it; ``pending``: so many waited at its end.

    All are 0 unless ``quality`` is MEASURED: MISSING where no hint was ever given or its program has changed, CLIPPED
    where the page has values that no program with our library writes.
    """

    last: Hint
    phase: int
    copies: int
    kernels: int
    phases: int
    waiting: int
    quality: Quality
    pending: int = 0


NO_HINTS = HintSample(Hint.NONE, 0, 0, 0, 0, 0, Quality.MISSING)
"""No program gives hints."""


@dataclass(frozen=True, slots=True)
class ColumnSample:
    """What the instruments that register columns showed; both arrays are ``[n_columns]``, as ``Layout.columns``.

    ``value`` in the column's unit: of a counter since the previous sweep, else now; NaN where there is none.
    """

    value: type_f64
    quality: type_u8


NO_COLUMNS = ColumnSample(np.empty(0), np.empty(0, np.uint8))
"""Of a node without such instruments."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One interval of a node: the only thing a policy sees.

    ``energy_j`` ``[n_zones]`` joules of each RAPL zone in the interval, with ``energy_quality``.
    """

    time_ns: int
    elapsed_s: float
    cpu: CpuSample
    gpu: GpuSample
    energy_j: type_f64
    energy_quality: type_u8
    progress: ProgressSample = NO_PROGRESS
    columns: ColumnSample = NO_COLUMNS
    hints: HintSample = NO_HINTS
