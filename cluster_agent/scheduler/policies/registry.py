"""Every policy by its name, imported only when it is asked for.

A choice is written ``NAME[:key=value,...]``.
"""

from __future__ import annotations

import importlib
from typing import Any, Final, cast, get_args

import msgspec

from cluster_agent.errors import WrongUseError
from cluster_agent.scheduler.node_aware import NodeComposition
from cluster_agent.scheduler.phases import Composition
from cluster_agent.scheduler.policies.api import Policy
from nodectl.errors import nearest

_MODULES: Final = {
    "fcfs": "cluster_agent.scheduler.policies.fcfs",
    "easy": "cluster_agent.scheduler.policies.easy",
    "easy-sjbf": "cluster_agent.scheduler.policies.easy_sjbf",
    "conservative": "cluster_agent.scheduler.policies.conservative",
    "wfp3": "cluster_agent.scheduler.policies.wfp3",
    "fcfs-killer": "cluster_agent.scheduler.policies.fcfs_killer",
    "eco": "cluster_agent.scheduler.policies.eco",
    "powercap": "cluster_agent.scheduler.policies.powercap",
    "prb": "cluster_agent.scheduler.policies.prb",
    "easy-capped": "cluster_agent.scheduler.policies.easy_capped",
    "easy-power": "cluster_agent.scheduler.policies.easy_power",
}


class Choice(msgspec.Struct, frozen=True):
    """A policy with its parameters, and what it is made of."""

    text: str
    policy: Policy
    params: msgspec.Struct
    composed: Composition | NodeComposition

    @property
    def composition(self) -> Composition:
        """For a machine that is a number of processors; ``WrongUseError`` if the policy needs to know its nodes."""
        if isinstance(self.composed, NodeComposition):
            raise WrongUseError(
                f"--policy {self.text}: {self.policy.name} places jobs on nodes, and this trace has processors only;"
                " choose another policy, or a trace with nodes"
            )
        return self.composed

    @property
    def node_composition(self) -> NodeComposition:
        """For a machine of unlike nodes; ``WrongUseError`` if the policy knows processors only."""
        if isinstance(self.composed, Composition):
            fitting = [name for name in names() if isinstance(choose(name).composed, NodeComposition)]
            raise WrongUseError(
                f"--policy {self.text}: {self.policy.name} counts processors, and this trace has nodes;"
                f" choose one of {', '.join(fitting)}"
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
    """For each parameter its possible values, the default first; the name of its type where there is no list."""
    defaults = policy.params()
    found: dict[str, list[str]] = {}
    for field in msgspec.structs.fields(policy.params):
        options = _options(field.type)
        default = getattr(defaults, field.name)
        shown = [str(option) for option in options] or [f"{default:g}" if isinstance(default, float) else str(default)]
        found[field.name] = sorted(shown, key=lambda option, default=default: option != str(default))  # type: ignore[misc]
    return found


def choose(text: str) -> Choice:
    """``NAME[:key=value,...]`` as a policy that is ready to run; ``WrongUseError`` in one line otherwise."""
    name, _, rest = text.partition(":")
    chosen = policy(name.strip())
    known = {field.name: field.type for field in msgspec.structs.fields(chosen.params)}
    given: dict[str, Any] = {}
    for part in rest.split(",") if rest else ():
        key, equals, value = (word.strip() for word in part.partition("="))
        if not equals or not key or not value:
            raise WrongUseError(f"--policy {text}: {part!r} is not key=value")
        if key not in known:
            raise WrongUseError(f"--policy {text}: {chosen.name} has no parameter {key!r}{nearest(key, known)}")
        if key in given:
            raise WrongUseError(f"--policy {text}: {key} is given twice")
        options = _options(known[key])
        if options and value not in options:
            raise WrongUseError(f"--policy {text}: {key} cannot be {value!r}: one of {', '.join(options)}")
        given[key] = value
    try:
        params = msgspec.convert(given, chosen.params, strict=False)
        return Choice(text, chosen, params, chosen.compose(params))
    except msgspec.ValidationError as error:
        key = str(error).rpartition("`$.")[2].rstrip("`")
        raise WrongUseError(f"--policy {text}: {key} cannot be {given[key]!r}: a number is needed") from None
    except ValueError as error:
        raise WrongUseError(f"--policy {text}: {error}") from None


def _options(kind: Any) -> list[str]:
    """The words of a ``Literal``, also inside an optional one."""
    words: list[str] = []
    for argument in get_args(kind):
        words += [argument] if isinstance(argument, str) else _options(argument)
    return words
