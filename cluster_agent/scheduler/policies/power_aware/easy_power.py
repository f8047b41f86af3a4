"""``easy-capped`` with predicted watts: a job is admitted with the power of similar jobs, learned as jobs end.

A prediction can be too low, and then the cap is exceeded: the replay reports by how many watt-seconds. With
``meter=run`` a job counts with its measured power from the pass after its start on, so that errors do not add up; with
``meter=end`` its power is known only when it has ended. ``margin`` and ``of=maximum`` exceed the cap less, at some cost
of throughput. ``violation`` states how often: at most this share of jobs draws more than it was admitted with; with
``table``, the P-state table of a node, from the first job on.

On a log of processors it is EASY with power prediction (REGALE D2.3, §4.1): the queue in order of submission
(``rule=est``), and a job's prediction counts until its end (``meter=end``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

import msgspec

from cluster_agent.prediction.admitted_power import Guard
from cluster_agent.prediction.models import Model, find_model
from cluster_agent.prediction.node_watts import node_watts
from cluster_agent.scheduler.policies.api import Policy
from cluster_agent.scheduler.policy_phases import Composition, Placing
from cluster_agent.scheduler.power_phases import Admitted, Levels, Power
from cluster_agent.scheduler.rules import RULES, RuleName
from foundation.shell.extension import Extension

MOST_VIOLATION: Final = 0.5
"""Ours: above it a prediction is closer to the truth than what is admitted."""


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``of``: of the nearest past jobs the geometric mean (average), the mean (expected), which is right for the sum
    that a cap limits, or the highest. ``model``: who predicts in their place, such as FILE.py. ``violation``: 0 is the
    prediction itself. ``levels``: live, whether jobs may run below the highest caps of their nodes; with ``all`` no job
    is admitted with more than its nodes draw at their lowest frequency. A replay has one level."""

    rule: RuleName = "aged-energy"
    of: Admitted = "average"
    margin: float = 1.0
    meter: Literal["run", "end"] = "run"
    placing: Placing = "pack"
    violation: float = 0.0
    table: str = ""
    model: str = ""
    levels: Levels = "all"


def compose(params: Params) -> Composition:
    """``ValueError`` for a margin that admits everything, and for what cannot go together."""
    power = Power(
        admitted=params.of, margin=params.margin, guard=_guard(params), is_metered=params.meter == "run",
        model=_model(params), lowers_caps=params.levels == "all",
    )  # fmt: skip
    return Composition(order=RULES[params.rule], backfill="easy", placing=params.placing, power=power)


def compose_on_processors(params: Params) -> Composition:
    """The same on a log of processors, in order of submission."""
    guard = _guard(params)
    if params.rule not in ("est", Params().rule):
        raise ValueError(f"rule={params.rule} is for traces with nodes; a log of processors is served as submitted")
    power = Power(
        admitted=params.of, margin=params.margin, guard=guard, model=_model(params),
        lowers_caps=params.levels == "all",
    )  # fmt: skip
    return Composition(backfill="easy", power=power)


def _model(params: Params) -> Extension[Model] | None:
    return find_model(params.model) if params.model else None


def _guard(params: Params) -> Guard | None:
    if not params.margin > 0:
        raise ValueError(f"margin={params.margin:g} must be above 0")
    if not params.violation:
        if params.table:
            raise ValueError("table= needs violation=, the share of jobs that may draw more than admitted")
        return None
    if not 0 < params.violation <= MOST_VIOLATION:
        raise ValueError(f"violation={params.violation:g} must be above 0 and at most {MOST_VIOLATION:g}")
    if params.of != "average" or params.margin != 1.0:
        raise ValueError("violation= takes the place of of= and margin=: leave them out")
    return Guard(params.violation, node_watts(Path(params.table)) if params.table else None)


POLICY = Policy(
    name="easy-power",
    summary="easy-capped, admitting by watts that are predicted from the submission and learned as jobs end.",
    source="after Borghesi et al., Predictive modeling for job power consumption in HPC systems, ISC 2016; ours",
    params=Params,
    compose=compose,
    on_processors=compose_on_processors,
)
