"""What a policy file exports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from cluster_agent.scheduler.node_aware import NodeComposition
from cluster_agent.scheduler.phases import Composition, Correction, Estimate


@dataclass(frozen=True, slots=True)
class Policy:
    """A published algorithm: what it is, where it comes from, its parameters, and the phases that make it.

    ``compose`` may raise ``ValueError`` for parameters that do not fit together; the message ends in front of the user.
    """

    name: str
    summary: str
    source: str
    params: type[msgspec.Struct]
    compose: Callable[[Any], Composition | NodeComposition]


def correction(estimate: Estimate, correct: Correction | None) -> Correction:
    """The correction to use; only an estimate that a job can outlive has one."""
    if estimate == "mean2":
        return correct or "requested"
    if correct is not None:
        raise ValueError(f"correct={correct} needs an estimate that a job can outlive: estimate=mean2")
    return "requested"
