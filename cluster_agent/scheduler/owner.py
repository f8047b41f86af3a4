"""One owner of watts per partition.

A policy that decides about watts and a sharer that divides a budget among nodes exclude each other: the policy would
admit jobs with watts that the sharer has given to others (REGALE D2.3 §5: 4.1 and 4.2 exclude each other). Every
composition says whether it owns watts; sharers always do.
"""

from __future__ import annotations

from typing import Final

from cluster_agent.budget.sharers import registry as sharers
from cluster_agent.errors import WrongUseError
from cluster_agent.scheduler.policies import registry

NO_SHARER: Final = "none"
"""As a sharer: the watts of the partition are the policy's."""


def check_owner(policy: str, sharer: str | None) -> None:
    """``WrongUseError`` in one line if a partition with this policy and this sharer would have two owners of watts.

    ``policy`` is ``NAME[:key=value,...]``, ``sharer`` a sharer's name or file, ``none`` where the
    policy is to own the budget's watts, or None where there is no budget.
    """
    choice = registry.choose(policy)
    if sharer is None:
        return
    if sharer == NO_SHARER:
        if not choice.composed.owns_watts:
            raise WrongUseError(
                f"policy {policy} and no sharer would leave the partition's watts to nobody: choose a sharer"
                f" ({', '.join(sharers.names())}), or a policy that owns watts, such as powercap"
            )
        return
    sharers.method(sharer)
    if choice.composed.owns_watts:
        raise WrongUseError(
            f'policy {policy} and sharer {sharer} would both own the partition\'s watts; set sharer = "{NO_SHARER}", or'
            " choose a policy that knows no watts, such as easy"
        )
