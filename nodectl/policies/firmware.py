"""The GPU left to its own firmware: no lock, so the board's clock policy decides.

"No constraints" is a baseline of every comparison in REGALE D2.3 §3.4, as is the fixed highest clock: on A100-80 the
firmware alone saved 5 to 6 % on memory-bound codes, and NVIDIA says that it reads hundreds of metrics that no
interface shows.
"""

from __future__ import annotations

from typing import Final

import msgspec

from nodectl.policies.api import Policy, Request
from pmu.layout import Layout
from pmu.readings import Sample


class FirmwareParams(msgspec.Struct, frozen=True):
    """Nothing to set."""


class FirmwareState(msgspec.Struct, frozen=True):
    """Nothing to remember."""


def initial(params: FirmwareParams, layout: Layout) -> FirmwareState:
    """The only state there is."""
    return FirmwareState()


def decide(
    params: FirmwareParams, layout: Layout, state: FirmwareState, sample: Sample
) -> tuple[FirmwareState, Request]:
    """No request for any GPU."""
    return state, Request.free(len(layout.gpus))


POLICY: Final = Policy(
    name="firmware",
    domain="gpu",
    summary="no clock lock: the board's firmware decides",
    source="REGALE D2.3 §3.4, the 'no constraints' baseline",
    reasons=("left to the firmware",),
    params=FirmwareParams,
    initial=initial,
    decide=decide,
)
