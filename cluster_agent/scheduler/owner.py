"""One owner of watts per partition.

A policy that decides about watts and a sharer that divides a budget among nodes exclude each other: the policy would
admit jobs with watts that the sharer has given to others (REGALE D2.3 §5: 4.1 and 4.2 exclude each other). Every
composition says whether it owns watts; sharers always do.
"""

from __future__ import annotations

from cluster_agent.budget.sharers.registry import method
from cluster_agent.errors import WrongUseError
from cluster_agent.scheduler.policies import registry


def check_owner(policy: str, sharer: str | None) -> None:
    """``WrongUseError`` in one line if a partition with this policy and this sharer would have two owners of watts.

    ``policy`` is ``NAME[:key=value,...]``, ``sharer`` a sharer's name or file, or None where no budget is shared.
    """
    choice = registry.choose(policy)
    if sharer is None:
        return
    method(sharer)
    if choice.composed.owns_watts:
        raise WrongUseError(
            f"policy {policy} and sharer {sharer} would both own the partition's watts; leave out the sharer, or choose"
            " a policy that knows no watts, such as easy"
        )
