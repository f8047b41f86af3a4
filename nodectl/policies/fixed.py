"""One fixed value: the reference that savings are compared with, and what calibration steps through.

REGALE D2.3 §3.4 compares everything with the highest clock locked (A100-80: 1410 MHz), and its best EasyWave run is a
fixed 1095 MHz. A clock of 0 means the highest. Between steps of the hardware the arbiter takes the next one up.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

from foundation.shell.errors import UsageError
from nodectl.policies.api import Policy, Request
from pmu.layout import KnobRange, Layout
from pmu.readings import Sample, type_i64


class FixedCpuParams(msgspec.Struct, frozen=True):
    """``clock_khz`` for every CPU; 0 = the highest of its domain."""

    clock_khz: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.clock_khz < 2**31:
            raise ValueError("clock_khz must be 0 or a clock in kHz, below 2147483648")


class FixedGpuParams(msgspec.Struct, frozen=True):
    """``clock_mhz`` for every GPU; 0 = the highest of its ladder."""

    clock_mhz: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.clock_mhz < 2**31:
            raise ValueError("clock_mhz must be 0 or a clock in MHz, below 2147483648")


class FixedParams(msgspec.Struct, frozen=True):
    """``value`` of every knob of the domain, in the knob's unit or as its word; 0 = the highest, "" = no request."""

    value: int | str = 0

    def __post_init__(self) -> None:
        if isinstance(self.value, int) and not 0 <= self.value < 2**53:
            raise ValueError("value must be 0 or above, and below 9007199254740992")


class FixedState(msgspec.Struct, frozen=True):
    """The fixed value of each CPU, GPU or range."""

    target: type_i64


def initial_cpu(params: FixedCpuParams, layout: Layout) -> FixedState:
    """Work out each CPU's clock once. No request for a CPU outside every domain."""
    target = np.zeros(len(layout.cpus), np.int64)
    for domain in layout.domains:
        target[list(domain.cpus)] = params.clock_khz or domain.max_khz
    return FixedState(target)


def initial_gpu(params: FixedGpuParams, layout: Layout) -> FixedState:
    """Work out each GPU's clock once. No request for a GPU that lists no clocks."""
    return FixedState(
        np.array([(params.clock_mhz or gpu.clocks_mhz[-1]) if gpu.clocks_mhz else 0 for gpu in layout.gpus], np.int64)
    )


def of_ranges(domain: str) -> Policy:
    """The policy of a domain whose knobs are ranges of the layout."""

    def initial(params: FixedParams, layout: Layout) -> FixedState:
        rows = [row for row in layout.ranges if row.domain == domain]
        return FixedState(np.array([_value(params.value, row) for row in rows], np.int64))

    return Policy(
        name=f"fixed-{domain}",
        domain=domain,
        summary="one value for every knob of this domain, from start to end",
        source="ours",
        reasons=("fixed value",),
        params=FixedParams,
        initial=initial,
        decide=decide,
    )


def _value(value: int | str, row: KnobRange) -> int:
    if not value:
        return 0 if row.words else row.high
    if isinstance(value, int) and not row.words:
        return value
    if value not in row.words:
        takes = ", ".join(row.words) if row.words else f"numbers from {row.low} to {row.high}"
        raise UsageError(f"fixed-{row.domain}: {row.name} cannot be set to {value!r}; it takes {takes}")
    return 1 + row.words.index(str(value))


def decide(params: msgspec.Struct, layout: Layout, state: FixedState, sample: Sample) -> tuple[FixedState, Request]:
    """Request the same clocks again; what they cost or save is not estimated."""
    free = Request.free(len(state.target))
    return state, Request(state.target, free.reason, free.loss, free.saved_w)


CPU_POLICY: Final = Policy(
    name="fixed-cpu",
    domain="cpu",
    summary="one clock on every CPU, from start to end",
    source="reference of REGALE D2.3 §3.4",
    reasons=("fixed clock",),
    params=FixedCpuParams,
    initial=initial_cpu,
    decide=decide,
)

GPU_POLICY: Final = Policy(
    name="fixed-gpu",
    domain="gpu",
    summary="one locked clock on every GPU, from start to end",
    source="reference of REGALE D2.3 §3.4 (fixed 1410 and 1095 MHz)",
    reasons=("fixed clock",),
    params=FixedGpuParams,
    initial=initial_gpu,
    decide=decide,
)
