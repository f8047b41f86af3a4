"""``easy-capped`` with predicted watts: a job is admitted with the power of similar jobs, learned as jobs end.

A prediction can be too low, and then the cap is exceeded: the replay reports by how many watt-seconds. With
``meter=run`` a job counts with its measured power from the pass after its start on, so that errors do not add up; with
``meter=end`` its power is known only when it has ended. ``margin`` and ``of=maximum`` exceed the cap less, at some cost
of throughput.

On a log of processors it is EASY with power prediction (REGALE D2.3, §4.1): the queue in order of submission
(``rule=est``), and a job's prediction counts until its end (``meter=end``).
"""

from __future__ import annotations

from typing import Literal

import msgspec

from cluster_agent.scheduler.policies.api import Policy
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.power_phases import Admitted, Power
from cluster_agent.scheduler.unlike_nodes.node_aware import NodeComposition, Placing
from cluster_agent.scheduler.unlike_nodes.node_rules import RULES, RuleName


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``of``: the mean power of the nearest past jobs, or the highest."""

    rule: RuleName = "aged-energy"
    of: Admitted = "average"
    margin: float = 1.0
    meter: Literal["run", "end"] = "run"
    placing: Placing = "pack"


def compose(params: Params) -> NodeComposition:
    """``ValueError`` for a margin that admits everything."""
    if not params.margin > 0:
        raise ValueError(f"margin={params.margin:g} must be above 0")
    is_metered = params.meter == "run"
    return NodeComposition(RULES[params.rule], "easy", params.placing, params.of, params.margin, is_metered)


def compose_on_processors(params: Params) -> Composition:
    """The same on a log of processors, in order of submission."""
    if not params.margin > 0:
        raise ValueError(f"margin={params.margin:g} must be above 0")
    if params.rule not in ("est", Params().rule):
        raise ValueError(f"rule={params.rule} is for traces with nodes; a log of processors is served as submitted")
    return Composition(backfill="easy", power=Power(admitted=params.of, margin=params.margin))


POLICY = Policy(
    name="easy-power",
    summary="easy-capped, admitting by watts that are predicted from the submission and learned as jobs end.",
    source="after Borghesi et al., Predictive modeling for job power consumption in HPC systems, ISC 2016; ours",
    params=Params,
    compose=compose,
    on_processors=compose_on_processors,
)
