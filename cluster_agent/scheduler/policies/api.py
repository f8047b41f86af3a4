"""What a policy file exports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from cluster_agent.scheduler.policy_phases import (
    Composition,
    Correction,
    Estimate,
    Fixed,
    History,
    Learning,
    Loss,
    Model,
    Weight,
)


@dataclass(frozen=True, slots=True)
class Policy:
    """A published algorithm: what it is, where it comes from, its parameters, and the phases that make it.

    ``compose`` may raise ``ValueError`` for parameters that do not fit together; the user is shown its message.
    """

    name: str
    summary: str
    source: str
    params: type[msgspec.Struct]
    compose: Callable[[Any], Composition]
    on_processors: Callable[[Any], Composition] | None = None
    """If ``compose`` is for nodes: the policy for a log of processors, if there is one."""


class EstimateParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The parameters of every policy that plans with run times: ``Composition(**params.phases(), ...)``.

    ``correct`` and ``shadow`` go with estimates that can be too short, ``history`` and ``fixed`` with ``mean2``,
    ``loss``, ``weight`` and ``model`` with ``learned``. ``guard`` is a bounded slowdown, ``idle_off_s`` a time (see
    ``Composition``).
    """

    estimate: Estimate = "requested"
    history: History | None = None
    fixed: Fixed | None = None
    correct: Correction | None = None
    shadow: float | None = None
    loss: Loss | None = None
    weight: Weight | None = None
    model: Model | None = None
    guard: float | None = None
    idle_off_s: int | None = None

    def phases(self) -> dict[str, Any]:
        """The estimate's fields of ``Composition``; parameters that were not given keep their defaults there."""
        can_be_outlived = self.estimate in ("mean2", "learned")
        if self.correct is not None and not can_be_outlived:
            raise ValueError(f"correct={self.correct} needs an estimate that can be too short: estimate=mean2|learned")
        if self.shadow is not None and not can_be_outlived:
            raise ValueError(f"shadow={self.shadow:g} needs an estimate that can be too short: estimate=mean2|learned")
        for key, value in self._given("history", "fixed").items():
            if self.estimate != "mean2":
                raise ValueError(f"{key}={value} needs estimate=mean2")
        learning = self._given("loss", "weight", "model")
        if self.guard is not None and not self.guard > 0:
            raise ValueError(f"guard={self.guard:g} is not a bounded slowdown: a number above 0")
        for key, value in learning.items():
            if self.estimate != "learned":
                raise ValueError(f"{key}={value} needs estimate=learned")
        given = self._given("estimate", "history", "fixed", "correct", "shadow", "guard", "idle_off_s")
        return {**given, "learning": Learning(**learning)}

    def _given(self, *keys: str) -> dict[str, Any]:
        return {key: value for key in keys if (value := getattr(self, key)) is not None}
