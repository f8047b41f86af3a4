"""``easy-capped`` with predicted watts: a job is admitted with what its kind has drawn, learned as jobs end.

A prediction can be too low, and then the cap does not hold: the replay says by how many watt-seconds. With
``meter=run`` a job counts with what it is metered to draw from the pass after its start on, so that errors do not pile
up; with ``meter=end`` its draw is known only when it has ended. ``margin`` and ``of=maximum`` buy safety with
throughput.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from cluster_agent.scheduler.node_aware import Admitted, NodeComposition, Placing
from cluster_agent.scheduler.node_rules import RULES, RuleName
from cluster_agent.scheduler.policies.api import Policy


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``of``: the mean of what the nearest past jobs drew, or the highest of them."""

    rule: RuleName = "aged-energy"
    of: Admitted = "average"
    margin: float = 1.0
    meter: Literal["run", "end"] = "run"
    placing: Placing = "pack"


def compose(params: Params) -> NodeComposition:
    """``ValueError`` for a margin that admits everything."""
    if not params.margin > 0:
        raise ValueError(f"margin={params.margin:g} has to be above 0")
    is_metered = params.meter == "run"
    return NodeComposition(RULES[params.rule], "easy", params.placing, params.of, params.margin, is_metered)


POLICY = Policy(
    name="easy-power",
    summary="easy-capped, admitting by watts that are predicted from the submission and learned as jobs end.",
    source="after Borghesi et al., Predictive modeling for job power consumption in HPC systems, ISC 2016; ours",
    params=Params,
    compose=compose,
)
