"""Every policy by its name, imported only when it is chosen.

A choice is written ``NAME[:key=value,...]``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import msgspec

from cluster_agent import choosing
from cluster_agent.errors import WrongUseError
from cluster_agent.scheduler.configurations.moldable_scheduler import MoldableComposition
from cluster_agent.scheduler.policies.api import Policy
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.unlike_nodes.node_aware import NodeComposition
from nodectl.shell.errors import nearest

_MODULES: Final = {
    "fcfs": "cluster_agent.scheduler.policies.fcfs",
    "easy": "cluster_agent.scheduler.policies.easy",
    "easy-sjbf": "cluster_agent.scheduler.policies.easy_sjbf",
    "conservative": "cluster_agent.scheduler.policies.conservative",
    "multifactor": "cluster_agent.scheduler.policies.multifactor",
    "rule-based": "cluster_agent.scheduler.policies.rule_based",
    "wfp3": "cluster_agent.scheduler.policies.wfp3",
    "fcfs-killer": "cluster_agent.scheduler.policies.power_aware.fcfs_killer",
    "eco": "cluster_agent.scheduler.policies.power_aware.eco",
    "rmap": "cluster_agent.scheduler.policies.power_aware.rmap",
    "moldable": "cluster_agent.scheduler.policies.moldable",
    "powercap": "cluster_agent.scheduler.policies.power_aware.powercap",
    "energy-budget": "cluster_agent.scheduler.policies.power_aware.energy_budget",
    "prb": "cluster_agent.scheduler.policies.power_aware.prb",
    "easy-capped": "cluster_agent.scheduler.policies.power_aware.easy_capped",
    "easy-power": "cluster_agent.scheduler.policies.power_aware.easy_power",
}


_Composed = TypeVar("_Composed", bound=Composition | NodeComposition | MoldableComposition)


class Choice(msgspec.Struct, frozen=True):
    """A policy with its parameters, and what it is made of."""

    text: str
    policy: Policy
    params: msgspec.Struct
    composed: Composition | NodeComposition | MoldableComposition

    @property
    def composition(self) -> Composition:
        """For a machine that is a number of processors; ``WrongUseError`` if the policy needs to know its nodes."""
        composed = self._as_asked()
        if isinstance(composed, NodeComposition):
            if self.policy.on_processors is not None:
                return _composed(self.text, self.policy.on_processors, self.params)
            raise WrongUseError(
                f"--policy {self.text}: {self.policy.name} places jobs on nodes, and this trace has processors only;"
                " choose another policy, or a trace with nodes"
            )
        return composed

    @property
    def node_composition(self) -> NodeComposition:
        """For a machine of unlike nodes; ``WrongUseError`` if the policy knows processors only."""
        composed = self._as_asked()
        if isinstance(composed, Composition):
            fitting = [name for name in names() if isinstance(choose(name).composed, NodeComposition)]
            raise WrongUseError(
                f"--policy {self.text}: {self.policy.name} counts processors, and this trace has nodes;"
                f" choose one of {', '.join(fitting)}"
            )
        return composed

    @property
    def has_configurations(self) -> bool:
        """Whether the policy chooses among configurations of each job."""
        return isinstance(self.composed, MoldableComposition)

    @property
    def moldable_composition(self) -> MoldableComposition:
        """For jobs with configurations; ``WrongUseError`` if the policy runs jobs as requested."""
        if not isinstance(self.composed, MoldableComposition):
            raise WrongUseError(f"--policy {self.text}: {self.policy.name} does not choose configurations of jobs")
        return self.composed

    def _as_asked(self) -> Composition | NodeComposition:
        if isinstance(self.composed, MoldableComposition):
            raise WrongUseError(
                f"--policy {self.text}: {self.policy.name} chooses among configurations of each job, and a trace with"
                " nodes has none; choose another policy, or a log of processors"
            )
        return self.composed


def names() -> list[str]:
    """The registered names, simplest first."""
    return list(_MODULES)


def policy(name: str) -> Policy:
    """The policy called ``name``; ``WrongUseError`` with the nearest name if there is none."""
    if name not in _MODULES:
        raise WrongUseError(f"no policy is called {name!r}{nearest(name, _MODULES)}; see `clusterctl policies`")
    return cast(Policy, importlib.import_module(_MODULES[name]).POLICY)


def values(policy: Policy) -> dict[str, list[str]]:
    """For each parameter its possible values, the default first; the default alone where there is no list."""
    return choosing.values(policy.params)


def choose(text: str) -> Choice:
    """``NAME[:key=value,...]`` as a policy that is ready to run; ``WrongUseError`` in one line otherwise."""
    chosen = policy(text.partition(":")[0].strip())
    params = choosing.read_params("--policy", text, chosen.name, chosen.params)
    return Choice(text, chosen, params, _composed(text, chosen.compose, params))


def _composed(text: str, compose: Callable[[Any], _Composed], params: msgspec.Struct) -> _Composed:
    try:
        return compose(params)
    except ValueError as error:
        raise WrongUseError(f"--policy {text}: {error}") from None
