"""Every policy by its name, imported only when it is chosen; those that a site adds, also by their file.

A choice is written ``NAME[:key=value,...]``. Packages announce policies of theirs in the group ``clusterctl.policies``;
``FILE.py[:NAME][:key=value,...]`` is one of a file.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final

import msgspec

from cluster_agent import choosing
from cluster_agent.errors import WrongUseError
from cluster_agent.scheduler.policies.api import Policy
from cluster_agent.scheduler.policy_phases import A_LOG, A_TRACE_WITH_NODES, LIVE, Composition, Declared, clash
from cluster_agent.scheduler.power_phases import Power
from foundation.shell.extension import (
    Extension,
    ExtensionFailedError,
    Extensions,
    Origin,
    is_file,
    misfit,
    misfit_params,
    split,
    where_defined,
)

_MODULES: Final = {
    "fcfs": "cluster_agent.scheduler.policies.fcfs",
    "easy": "cluster_agent.scheduler.policies.easy",
    "easy-sjbf": "cluster_agent.scheduler.policies.easy_sjbf",
    "conservative": "cluster_agent.scheduler.policies.conservative",
    "multifactor": "cluster_agent.scheduler.policies.multifactor",
    "rule-based": "cluster_agent.scheduler.policies.rule_based",
    "wfp3": "cluster_agent.scheduler.policies.wfp3",
    "score": "cluster_agent.scheduler.policies.score",
    "portfolio": "cluster_agent.scheduler.policies.portfolio",
    "fcfs-killer": "cluster_agent.scheduler.policies.power_aware.fcfs_killer",
    "eco": "cluster_agent.scheduler.policies.power_aware.eco",
    "rmap": "cluster_agent.scheduler.policies.power_aware.rmap",
    "moldable": "cluster_agent.scheduler.policies.moldable",
    "powercap": "cluster_agent.scheduler.policies.power_aware.powercap",
    "energy-budget": "cluster_agent.scheduler.policies.power_aware.energy_budget",
    "prb": "cluster_agent.scheduler.policies.power_aware.prb",
    "easy-capped": "cluster_agent.scheduler.policies.power_aware.easy_capped",
    "easy-power": "cluster_agent.scheduler.policies.power_aware.easy_power",
    "planned": "cluster_agent.scheduler.policies.power_aware.planned",
    "shared": "cluster_agent.scheduler.policies.shared",
}


class Choice(msgspec.Struct, frozen=True):
    """A policy with its parameters, and what it is made of."""

    text: str
    policy: Policy
    params: msgspec.Struct
    composed: Composition
    origin: Origin | None = None
    """None: it ships with nodectl."""

    @property
    def model_origin(self) -> Origin | None:
        """Where the model comes from that predicts watts; None: there is none of a site's own."""
        power = self.composed.power
        return None if power is None or power.model is None else power.model.origin

    @property
    def profile_origin(self) -> Origin | None:
        """The file that a budget's joules come from, or that says how many nodes stay on; None: there is none."""
        power, kept = self.composed.power, self.composed.kept
        if kept.origin is not None:
            return kept.origin
        return None if power is None or power.budget is None else power.budget.profile

    @property
    def parameters(self) -> dict[str, Any]:
        """All of them, by name."""
        return choosing.flat(self.params)

    def on(self, kind: str) -> Composition:
        """For a kind of resources (``scheduler.world.Kind``); ``WrongUseError`` as below."""
        return {"processors": lambda: self.composition, "nodes": lambda: self.on_nodes}.get(
            kind, lambda: self.composed
        )()

    @property
    def composition(self) -> Composition:
        """For a log of processors; ``WrongUseError`` if the policy needs what such a log has not."""
        alike = self.policy.on_processors
        return self._on(self.composed if alike is None else _composed(self.text, alike, self.params), A_LOG)

    @property
    def on_nodes(self) -> Composition:
        """For a trace with nodes, which may differ; ``WrongUseError`` as above."""
        return self._on(self.composed, A_TRACE_WITH_NODES)

    @property
    def live(self) -> Composition:
        """For a live partition; ``WrongUseError`` if the policy needs what no such partition has."""
        composed = self.composed if self.policy.on_processors is None else self.composition
        if reason := clash([*composed.declared, LIVE]):
            raise WrongUseError(reason)
        return composed

    @property
    def has_configurations(self) -> bool:
        """Whether the policy chooses among configurations of each job."""
        return self.composed.choose is not None

    def _on(self, composed: Composition, resources: Declared) -> Composition:
        if reason := clash([*composed.declared, resources]):
            raise WrongUseError(f"--policy {self.text}: {reason}")
        return composed


def names() -> list[str]:
    """The names of the policies that ship, simplest first."""
    return list(_MODULES)


def added() -> list[Extension[Policy]]:
    """The policies of installed packages, by name."""
    return [find(name) for name in _ADDED.names()]


def policy(name: str) -> Policy:
    """The policy called ``name``; ``WrongUseError`` with the nearest name if there is none."""
    return find(name).value


def find(name: str) -> Extension[Policy]:
    """The same with where it came from; ``name`` may be a file."""
    return choosing.find_named(name, "policy", "see `clusterctl policies`", _ADDED, _MODULES, "POLICY")


def _misfit(policy: Policy) -> str:
    """What is wrong with a policy that was added; empty: nothing that can be seen before it runs."""
    if problem := misfit_params(policy.params):
        return f"params: {problem}"
    if problem := misfit(policy.compose, "params"):
        return f"compose: {problem}"
    if policy.on_processors is not None and (problem := misfit(policy.on_processors, "params")):
        return f"on_processors: {problem}"
    return ""


_ADDED: Final = Extensions("clusterctl.policies", Policy, "POLICY", _MODULES.keys(), _misfit)


def values(policy: Policy) -> dict[str, list[str]]:
    """For each parameter its possible values, the default first; the default alone where there is no list."""
    return choosing.values(policy.params)


def runs_live(policy: Policy) -> bool:
    """Whether a live partition runs the policy with its default parameters; one that owns watts needs `machine`, one
    that chooses configurations `configurations`, one that switches nodes off for a cap [jobs.power]."""
    composed = _by_default(policy)
    return composed is not None and clash([*composed.declared, LIVE]) is None


def owns_watts(policy: Policy) -> bool | None:
    """Whether the policy decides about watts, so that no sharer may; None: its parameters have no defaults."""
    composed = _by_default(policy)
    return None if composed is None else composed.owns_watts


def _by_default(policy: Policy) -> Composition | None:
    try:
        return (policy.on_processors or policy.compose)(policy.params())
    except (TypeError, ValueError):  # parameters without defaults
        return None


def choose(text: str) -> Choice:
    """``NAME[:key=value,...]`` as a policy that is ready to run; ``WrongUseError`` in one line otherwise."""
    found = _guarded(find(split(text)[0]))
    chosen = found.value
    params = choosing.read_params("--policy", text, chosen.name, chosen.params)
    return Choice(text, chosen, params, _composed(text, chosen.compose, params), found.origin)


def in_place_of(recorded: str, given: str | None) -> str:
    """The choice that was recorded, where a file counts only if the caller names it (``FILE.py[:NAME]``): what was
    recorded is data, and must not decide what is run."""
    choice, rest = split(recorded)
    if is_file(choice) and given is None:
        raise WrongUseError(f"{choice} is a file, which a log does not start by itself: --policy {choice}")
    if given is None:
        return recorded
    if not is_file(choice):
        raise WrongUseError(f"--policy {given}: the log was made with {choice}, which is no file; leave it out")
    if split(given)[1] or not is_file(given):
        raise WrongUseError(f"--policy {given}: not FILE.py[:NAME]; the parameters are those of the log")
    return f"{given}:{rest}" if rest else given


def _guarded(found: Extension[Policy]) -> Extension[Policy]:
    """The policy; if it was added, errors of its functions are one line that names theirs."""
    if found.origin is None:
        return found
    chosen = found.value

    def guarded(compose: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def composed(params: Any) -> Any:
            made = found.guarded(compose)(params)
            if not isinstance(made, Composition):
                raise ExtensionFailedError(f"{where_defined(compose)}: compose did not return a Composition")
            return _with_guarded_phases(found, made)

        return composed

    on_processors = guarded(chosen.on_processors) if chosen.on_processors else None
    guarded_policy = msgspec.structs.replace(chosen, compose=guarded(chosen.compose), on_processors=on_processors)
    return msgspec.structs.replace(found, value=guarded_policy)


def _with_guarded_phases(found: Extension[Policy], made: Any) -> Any:
    """A composition, or what it does with watts, whose functions are guarded."""
    own: dict[str, Any] = {}
    for name in made.__struct_fields__:
        phase = getattr(made, name)
        if inspect.isfunction(phase):
            own[name] = found.guarded(phase, _any)
        elif isinstance(phase, Power):
            own[name] = _with_guarded_phases(found, phase)
    return msgspec.structs.replace(made, **own)


def _any(answer: Any) -> str:
    """An order is checked where it is used (``scheduler.queue``)."""
    return ""


def _composed(text: str, compose: Callable[[Any], Composition], params: msgspec.Struct) -> Composition:
    try:
        return compose(params)
    except ValueError as error:
        raise WrongUseError(f"--policy {text}: {error}") from None
