"""A policy chosen by looking ahead: the waiting jobs are replayed under each member, and the best is in force.

Members are written ``NAME[:key=value;key=value]`` and separated by ``|``. All plan with the estimates of the portfolio,
so they have no such parameters of their own.
"""

from __future__ import annotations

from typing import Any, Final

from cluster_agent.errors import WrongUseError
from cluster_agent.scheduler.plans.looks import Arrivals, Objective, Portfolio
from cluster_agent.scheduler.policies.api import EstimateParams, Policy
from cluster_agent.scheduler.policy_phases import (
    CONFIGURATIONS,
    EARLY,
    ESTIMATES,
    NODES,
    PAST,
    REPLAY,
    RUN_TIMES,
    WATTS,
    Composition,
    Declared,
    clash,
)

A_LOOK: Final = Declared(
    "a look",
    takes={
        ESTIMATES: "takes those of the portfolio: give them to it",
        RUN_TIMES: "takes those of the portfolio: give them to it",
        EARLY: "has none: leave it out",
        PAST: "has only what waits and runs: choose another member",
        REPLAY: "is made in C: choose a member that ships, or a formula",
        WATTS: "counts none: choose another member",
        **dict.fromkeys((NODES, CONFIGURATIONS), "has none: choose another member"),
    },
)
"""What no member has."""


class Params(EstimateParams, frozen=True, forbid_unknown_fields=True):
    """``members``: policies, separated by ``|``, each ``NAME[:key=value;key=value]``. ``every``: passes from look to
    look, those in which two jobs wait and one may fit. ``hours``: how far a look goes. ``objective``: of its jobs.
    ``arrivals``: the jobs that come in it. ``draws``: futures of each member, with run times drawn with ``seed``; 0:
    one, as estimated. A member's own ``guard`` comes before that of the portfolio. The defaults had the least mean
    bounded slowdown on the first parts of seven logs (``benchmarks/portfolio.py``)."""

    members: str = "easy|easy-sjbf|score:lowest=saf|wfp3"
    every: int = 16
    hours: float = 24.0
    objective: Objective = "wait"
    arrivals: Arrivals = "none"
    draws: int = 0
    seed: int = 0


def compose(params: Params) -> Composition:
    """The first member, until a look finds a better one. ``ValueError`` for a member that cannot be looked at."""
    shared = params.phases()
    names = tuple(" ".join(text.split()) for text in params.members.split("|"))
    for name in names:
        if not name:
            raise ValueError("members: one is empty; write members=easy|score:lowest=saf")
        if names.count(name) > 1:
            raise ValueError(f"members: {name} is given twice")
    members = tuple(_member(name, shared) for name in names)
    judged = params.objective, params.arrivals, params.draws, params.seed
    portfolio = Portfolio(names, members, params.every, params.hours, *judged)
    return Composition(**shared, backfill="easy", portfolio=portfolio)


def _member(name: str, shared: dict[str, Any]) -> Composition:
    """With what all members share."""
    from cluster_agent.scheduler.policies import registry

    if ".py" in name:  # a file runs only if it is named alone: a record of this policy must start none
        raise ValueError(f"member {name}: names a file: choose a policy that ships, or one of an installed package")
    try:
        own = registry.choose(name.replace(";", ",")).composed
    except WrongUseError as error:
        raise ValueError(f"member {name}: {str(error).removeprefix('--policy ')}") from None
    if own.portfolio is not None:
        raise ValueError(f"member {name}: a portfolio has no portfolios")
    if own.order is not None:
        raise ValueError(f"member {name}: its order is in Python, and a look is made in C: choose a formula (score)")
    if reason := clash([*own.declared, A_LOOK]):
        raise ValueError(f"member {name}: {reason}")
    own_phases = {"score": own.score, "backfill": own.backfill, "scan": own.scan}
    guard = {} if own.guard is None else {"guard": own.guard}
    try:
        return Composition(**{**shared, **own_phases, **guard})
    except ValueError as error:
        raise ValueError(f"member {name}: {error}") from None


POLICY = Policy(
    name="portfolio",
    summary="Looks ahead under each of its members every so many passes; the best is in force until the next look.",
    source="Talby, Feitelson, IPDPS 2005; Deng, Song, Ren, Iosup, SC'13; the looks in C: ours",
    params=Params,
    compose=compose,
)
