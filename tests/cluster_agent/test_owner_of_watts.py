"""Per partition one owner of watts."""

from __future__ import annotations

import pytest

from cluster_agent.budget.sharers import registry as sharers
from cluster_agent.errors import WrongUseError
from cluster_agent.scheduler.owner import NO_SHARER, check_owner
from cluster_agent.scheduler.policies import registry

KNOW_NO_WATTS = {"fcfs", "easy", "easy-sjbf", "conservative", "wfp3"}


@pytest.mark.parametrize("name", registry.names())
def test_a_policy_and_a_sharer_go_together_only_if_the_policy_knows_no_watts(name: str) -> None:
    check_owner(name, None)
    owns = registry.choose(name).composed.owns_watts
    assert not (name in KNOW_NO_WATTS and owns)
    assert registry.owns_watts(registry.policy(name)) == owns
    for sharer in sharers.names():
        if not owns:
            check_owner(name, sharer)
            continue
        with pytest.raises(WrongUseError) as caught:
            check_owner(name, sharer)
        assert str(caught.value).startswith(f"policy {name} and sharer {sharer} would both own the partition's watts")
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("policy", ["powercap:mode=shut", "eco:share=0", "easy-capped:rule=est", "rmap:th=0.1"])
def test_parameters_change_nothing_about_who_owns(policy: str) -> None:
    with pytest.raises(WrongUseError, match="would both own"):
        check_owner(policy, "aapc")


@pytest.mark.parametrize("name", registry.names())
def test_without_a_sharer_the_policy_must_own_the_watts(name: str) -> None:
    """The remedy that is printed for two owners works; without any the budget would be nobody's."""
    if registry.choose(name).composed.owns_watts:
        with pytest.raises(WrongUseError, match='set sharer = "none"'):
            check_owner(name, "fspc")
        check_owner(name, NO_SHARER)
    else:
        with pytest.raises(WrongUseError, match="would leave the partition's watts to nobody: choose a sharer"):
            check_owner(name, NO_SHARER)


def test_an_unknown_sharer_is_named_with_the_nearest() -> None:
    with pytest.raises(WrongUseError, match=r"no sharer is called 'aacp' \(nearest: aapc\)"):
        check_owner("easy", "aacp")
