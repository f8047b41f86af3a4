"""REGALE's interception prototype: LOW from a big copy on, HIGH at once when a kernel is launched (D2.3 §3.4).

    on cudaMemcpy(size): if size >= 10 GB and sm_occupancy < 10 %: clock = LOW
    on cuKernelLaunch:   if clock != HIGH: clock = HIGH

The prototype ran inside the application and set the clock from there, which takes rights that users lack. Here the
application gives hints (docs/hints.md) and the agent decides, once a period and as soon as a hint comes. Three readings
are ours. Occupancy is that of the latest interval, and is looked at until the kernel comes: the interval in which a
copy begins still has the kernels before it. While occupancy is 10 % or more, or missing, the clock is HIGH, so a
program that announces its copies and not its kernels is not left at LOW. And without hints that are believed it is
HIGH. Hints are the node's: each card gets LOW by its own occupancy.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from nodectl.policies.api import Policy, Request
from nodectl.policies.bdpo_gpu import Params, State, clocks, initial
from pmu.layout import Layout
from pmu.readings import Hint, Quality, Sample

COPY, BUSY, KERNEL, NO_HINT = range(4)
REASONS: Final = (
    "a big copy, occupancy under the threshold",
    "a big copy, occupancy at or over the threshold, or missing",
    "a kernel was launched",
    "no hint",
)


def decide(params: Params, layout: Layout, state: State, sample: Sample) -> tuple[State, Request]:
    """LOW or HIGH for each GPU, from the last hint and its occupancy; what that costs is not estimated."""
    if not layout.gpus:
        return state, Request.free(0)
    last = sample.hints.last if sample.hints.quality == Quality.MEASURED else Hint.NONE
    low, high = np.array([clocks(params, gpu) for gpu in layout.gpus], np.int64).T
    if last == Hint.COPY:
        reason = np.where(sample.gpu.sm_occupancy < params.threshold, COPY, BUSY)  # NaN compares false: HIGH
    else:
        reason = np.full(len(layout.gpus), KERNEL if last == Hint.KERNEL else NO_HINT)
    free = Request.free(len(layout.gpus))
    return state, Request(np.where(reason == COPY, low, high), reason.astype(np.uint8), free.loss, free.saved_w)


POLICY: Final = Policy(
    name="gpu-events",
    domain="gpu",
    summary="two clocks, by hints of the job: LOW from a big copy on, HIGH from the next kernel on",
    source="REGALE D2.3 §3.4, prototype 10",
    reasons=REASONS,
    params=Params,
    initial=initial,
    decide=decide,
    is_woken=True,
)
