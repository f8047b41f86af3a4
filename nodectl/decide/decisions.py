"""What one tick of the loop decided: each policy's request, and what the arbiter settled.

This is the part of a tick that a journal records and a replay must reproduce, so it has what the replay needs: the
parameters, and the state from *before* each policy decided.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from nodectl.decide.node_cap import NO_CAP, PackageCap
from nodectl.policies.api import Request
from pmu.readings import type_i64, type_u8

BOUNDS = ("free", "policy", "cap", "thermal", "missing")
"""The binding limit of a knob: none (released), a policy's request, a cap, the thermal limit; or none because the
sensor that the policy's request depends on is missing."""


@dataclass(frozen=True, slots=True)
class PolicyDecision:
    """One policy's request at one tick. ``state``: the state *before* this decision, as it was passed to ``decide``."""

    policy: str
    params: msgspec.Struct
    state: Any
    request: Request


@dataclass(frozen=True, slots=True)
class Decisions:
    """All decisions of one tick. ``knobs`` names the rows of ``values`` (the knob's unit; 0 = release to the captured
    value) and of ``bound`` (index into ``BOUNDS``). ``cap``: the input in addition to the sample. A tick without a
    previous sweep decides nothing: ``Decisions()``.
    """

    policies: tuple[PolicyDecision, ...] = ()
    knobs: tuple[str, ...] = ()
    values: type_i64 = field(default_factory=lambda: np.zeros(0, np.int64))
    bound: type_u8 = field(default_factory=lambda: np.zeros(0, np.uint8))
    cap: PackageCap = NO_CAP

    def settings(self) -> dict[str, int]:
        """What the writer is to set: ``{knob name: value}``."""
        return dict(zip(self.knobs, self.values.tolist(), strict=True))
