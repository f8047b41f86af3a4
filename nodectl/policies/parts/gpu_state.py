"""What ``gpu-ladder`` remembers from one sample to the next: plain numbers and arrays, one row per GPU."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from nodectl.policies.parts.gpu_choice import BASELINE, Params
from nodectl.policies.parts.gpu_curves import LEVELS
from nodectl.policies.parts.gpu_phases import COLUMNS, FACTS, PHASES, SEEN_S, Sight
from pmu.layout import Layout
from pmu.readings import type_f64, type_i64

LONGEST_WINDOW_S: Final = 1.0
"""NVML averages utilisation over 1/6 to 1 s "depending on the product" (nvml.h, nvmlUtilization_t)."""

LIKENESS: Final = 2
"""Columns of ``State.alike``: means of power and of traffic over some seconds; NaN before the first."""

SETTLED_WINDOWS: Final = 1.5
"""Ours: after so many windows a reading, which is up to one window old, shows next to nothing of the clock before a
change. A change of phase is larger and waits for two."""

READINGS: Final = 6
"""Seconds, the integrals over them of traffic, watts and utilisation; units of progress, and the seconds they took."""

(
    PULSES,
    BLOCK_SECONDS,
    BLOCK_RATE,
    RATE_SQUARES,
    BLOCK_WATTS,
    WATTS_SQUARES,
    BLOCK_UTILIZATION,
    BLOCK_UNITS,
    BLOCK_UNITS_S,
) = range(9)
SUMS: Final = 9


class State(msgspec.Struct, frozen=True, eq=False):
    """What is known of each group of GPUs and where it stands. A group's row is that of its first GPU, ``leader``.

    ``table`` ``[n_gpus, PHASES, COLUMNS, LEVELS]`` and ``facts`` ``[n_gpus, PHASES, FACTS]`` are the phases. ``phase``
    is the current one (-1 = not known), ``level`` the requested clock, ``reason`` why, ``blocks`` for how many more
    blocks it is kept (negative during a search: how often that began again).

    ``sums`` ``[n_gpus, SUMS]`` adds up the current block; ``last`` ``[n_gpus, fields of Sight]`` is the block
    before, taken at ``last_level`` and not yet learned (-1 = none).
    ``moved_s``: time since clock or phase changed; ``since_s``: time at this level since the table was last written.
    ``window_s``: estimate of the averaging window of the traffic reading, which has been ``reading`` for ``stood_s``.
    ``power_w`` ± ``range_w`` is expected (NaN = anything), ``odd`` counts pulses outside it. ``doubted``: a phase that
    was recalled by mistake just now, else -1. ``limbo_s`` ``[n_gpus, LEVELS]``: time in a phase that is not recognised
    yet; ``forgotten_s``: seconds lost in phases that were forgotten; ``time_s``: length of the run. Per GPU: ``pulse``
    ``[n_gpus, READINGS]`` adds up the current pulse; ``alike`` ``[n_gpus, LIKENESS]``: the readings that decide about
    groups; ``idle_s``: for how long nothing has run. ``source``: the program whose progress was counted last.

    ``shift`` ``[n_gpus, 2]``: cumulated sums, up and down, of how far traffic is from the phase's since it is at this
    level. ``is_apart``: 1 until units have been counted in this stretch.

    Of phases that were recalled from an earlier run (``gpu_memory``): ``share`` ``[n_gpus, PHASES]``, their shares of
    that run's time, and ``settled`` ``[n_gpus, PHASES, LEVELS]``, whether it has measured enough at a clock; None where
    nothing was recalled. ``after`` ``[n_gpus, PHASES, PHASES]``: how often each phase came after each, ``came_from``:
    the last one that a block has shown, -1 = none; None in older journals.
    """

    table: type_f64
    facts: type_f64
    phase: type_i64
    level: type_i64
    reason: type_i64
    blocks: type_i64
    sums: type_f64
    last: type_f64
    last_level: type_i64
    moved_s: type_f64
    since_s: type_f64
    window_s: type_f64
    reading: type_f64
    stood_s: type_f64
    power_w: type_f64
    range_w: type_f64
    odd: type_i64
    doubted: type_i64
    limbo_s: type_f64
    forgotten_s: type_f64
    time_s: float
    pulse: type_f64
    leader: type_i64
    alike: type_f64
    idle_s: type_f64
    shift: type_f64
    is_apart: type_i64
    source: int
    share: type_f64 | None = None
    settled: type_f64 | None = None
    after: type_f64 | None = None
    came_from: type_i64 | None = None


def initial(params: Params, layout: Layout) -> State:
    """Nothing known, every GPU at its highest clock."""
    n_gpus = len(layout.gpus)
    facts = np.zeros((n_gpus, PHASES, FACTS))
    facts[:, :, SEEN_S] = -1.0
    zero = np.zeros(n_gpus)
    return State(
        table=np.zeros((n_gpus, PHASES, COLUMNS, LEVELS)),
        facts=facts,
        phase=np.full(n_gpus, -1),
        level=np.zeros(n_gpus, np.int64),
        reason=np.full(n_gpus, BASELINE),
        blocks=np.full(n_gpus, -1),
        sums=np.zeros((n_gpus, SUMS)),
        last=np.zeros((n_gpus, len(Sight._fields))),
        last_level=np.full(n_gpus, -1),
        moved_s=np.asarray(-0.1 * (np.arange(n_gpus) % 8), np.float64),  # so that not all blocks end at one tick
        since_s=zero,
        window_s=np.full(n_gpus, LONGEST_WINDOW_S),
        reading=zero,
        stood_s=zero,
        power_w=np.full(n_gpus, np.nan),
        range_w=np.full(n_gpus, np.nan),
        odd=np.zeros(n_gpus, np.int64),
        doubted=np.full(n_gpus, -1),
        limbo_s=np.zeros((n_gpus, LEVELS)),
        forgotten_s=zero,
        time_s=0.0,
        pulse=np.zeros((n_gpus, READINGS)),
        leader=first_of_kind(layout),
        alike=np.full((n_gpus, LIKENESS), np.nan),
        idle_s=zero,
        shift=np.zeros((n_gpus, 2)),
        is_apart=np.ones(n_gpus, np.int64),
        source=0,
        after=np.zeros((n_gpus, PHASES, PHASES)),
        came_from=np.full(n_gpus, -1),
    )


def writable(state: State) -> State:
    """A copy whose arrays may be changed; the given state stays unchanged."""
    fields = {name: getattr(state, name) for name in State.__struct_fields__}
    copies: dict[str, Any] = {name: value.copy() for name, value in fields.items() if isinstance(value, np.ndarray)}
    return replace(state, **copies)


def first_of_kind(layout: Layout) -> type_i64:
    """For each GPU the first one of the same model."""
    kinds = [(gpu.name, gpu.clocks_mhz, gpu.has_gpm) for gpu in layout.gpus]
    return np.array([kinds.index(kind) for kind in kinds], np.int64)
