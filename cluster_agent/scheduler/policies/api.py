"""What a policy file exports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from cluster_agent.kept_on import kept
from cluster_agent.scheduler.policy_phases import (
    Composition,
    Correction,
    Estimate,
    Fixed,
    History,
    Learning,
    Loss,
    Model,
    Ties,
    Weight,
)


class Policy(msgspec.Struct, frozen=True):
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


class NoParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of a policy that has none."""


class Estimates(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What every policy may be given that plans with run times. ``correct`` and ``shadow`` go with estimates that can
    be too short, ``history`` and ``fixed`` with ``mean2``. ``guard`` is a bounded slowdown, ``idle_off_s`` a time,
    ``keep_idle`` a number
    of nodes or a profile ``from_s,watts,cores``, and ``keep_on`` such a profile (see ``Composition``)."""

    estimate: Estimate = "requested"
    history: History | None = None
    fixed: Fixed | None = None
    correct: Correction | None = None
    shadow: float | None = None
    guard: float | None = None
    idle_off_s: int | None = None
    keep_idle: str | None = None
    keep_on: str | None = None


class Published(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Switches that only repeat what a paper's simulator did (docs/notes/policy-readings.md). ``model``, ``loss`` and
    ``weight`` go with ``estimate=learned``."""

    ties: Ties = "instant"
    model: Model | None = None
    loss: Loss | None = None
    weight: Weight | None = None


class EstimateParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Two groups of parameters of every policy that plans with run times: ``Composition(**params.phases(), ...)``. In
    text their keys stand among the policy's own, and ``clusterctl policies`` lists a group once."""

    estimate: Estimates = Estimates()
    published: Published = Published()

    def phases(self) -> dict[str, Any]:
        """The groups' fields of ``Composition``; parameters that were not given keep their defaults there."""
        given = _given(self.estimate, *self.estimate.__struct_fields__)
        kind = self.estimate.estimate
        if kind not in ("mean2", "learned"):
            for key in ("correct", "shadow"):
                if key in given:
                    needs = "needs an estimate that can be too short: estimate=mean2|learned"
                    raise ValueError(f"{key}={_said(given[key])} {needs}")
        learning = _given(self.published, "model", "loss", "weight")
        for of, keys in (("mean2", given.keys() & {"history", "fixed"}), ("learned", learning.keys())):
            for key in sorted(keys) if kind != of else ():
                raise ValueError(f"{key}={(given | learning)[key]} needs estimate={of}")
        if (guard := self.estimate.guard) is not None and not guard > 0:
            raise ValueError(f"guard={guard:g} is not a bounded slowdown: a number above 0")
        given["kept"] = kept(given.pop("keep_idle", None), given.pop("keep_on", None))
        return {**given, "ties": self.published.ties, "learning": Learning(**learning)}


def _given(group: msgspec.Struct, *keys: str) -> dict[str, Any]:
    return {key: value for key in keys if (value := getattr(group, key)) is not None}


def _said(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
