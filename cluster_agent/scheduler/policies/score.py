"""The queue in the order of a formula, EASY backfilling behind the head.

Shortest, smallest and least first, the slowdown so far, UNICEP of Cobalt, and the four functions that
Carastan-Santos and de Camargo fitted to simulated schedules (F1 is their best).
"""

from __future__ import annotations

from typing import Final

from cluster_agent.scheduler.orders.score_formula import score
from cluster_agent.scheduler.policies.api import EstimateParams, Policy
from cluster_agent.scheduler.policy_phases import Composition

RULES: Final = {
    "sjf": "estimate",
    "saf": "estimate * width",
    "sqf": "width",
    "lxf": "-(wait + estimate) / estimate",
    "unicep": "-wait / (log2(width + 1) * estimate)",
    "f1": "log10(estimate) * width + 870 * log10(max(submit, 1))",
    "f2": "sqrt(estimate) * width + 25600 * log10(max(submit, 1))",
    "f3": "estimate * width + 6860000 * log10(max(submit, 1))",
    "f4": "estimate * sqrt(width) + 530000 * log10(max(submit, 1))",
}


class Params(EstimateParams, frozen=True, forbid_unknown_fields=True):
    """``lowest``: a rule by its name, or a formula (``scheduler.orders.score_formula``)."""

    lowest: str = "sjf"


def compose(params: Params) -> Composition:
    """Lowest value first, equal ones in order of submission; EASY behind that. ``ValueError`` if it is no formula."""
    return Composition(**params.phases(), score=score(RULES.get(params.lowest, params.lowest)), backfill="easy")


POLICY = Policy(
    name="score",
    summary="Serves the lowest value of a formula first (sjf, saf, sqf, lxf, unicep, f1-f4, or your own).",
    source="Tang et al., CLUSTER 2009 (UNICEP); Carastan-Santos, de Camargo, SC'17 (SAF, F1-F4)",
    params=Params,
    compose=compose,
)
