"""Every policy by its name, imported only when it is needed; those that a site adds, also by their file.

A policy serves one domain of knobs (``nodectl.knobs.registry``): "cpu", "gpu", or any other that is registered. A name
that exists in several domains carries the domain as suffix; in a place that is about one domain (``cpu_policy``,
``--gpu-policy``) the suffix may be left out: ``fixed`` is ``fixed-gpu`` there.
Packages announce policies of theirs in the group ``nodectl.policies``; ``FILE.py[:NAME]`` is one of a file.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec
import numpy as np

from foundation.shell.errors import UsageError, nearest, plain_reason
from foundation.shell.extension import Extension, ExtensionError, Extensions, is_file, located, misfit, misfit_params
from nodectl.knobs import registry as knobs
from nodectl.policies.api import Policy, Request
from pmu.layout import Layout

DOMAINS: Final[tuple[str, ...]] = tuple(knobs.DOMAINS)

NONE: Final = "none"
"""The choice of no policy: those knobs are left alone."""


def _of_other_domains() -> Iterator[tuple[str, tuple[str, str, str]]]:
    """A fixed value for each domain that the layout does not describe, and the policies that come with its knob."""
    for domain in knobs.DOMAINS.values():
        if domain.range_of:
            yield f"fixed-{domain.name}", (domain.name, "nodectl.policies.fixed", "of_ranges")
        for name, place in domain.policies.items():
            module, _, attribute = place.partition(":")
            yield name, (domain.name, module, attribute)


_WHERE: Final[dict[str, tuple[str, str, str]]] = {
    "bdpo-cpu": ("cpu", "nodectl.policies.bdpo_cpu", "POLICY"),
    "bdpo-cpu-bounded": ("cpu", "nodectl.policies.bdpo_cpu_bounded", "POLICY"),
    "mpi-waits": ("cpu", "nodectl.policies.mpi_waits", "POLICY"),
    "phase-levels": ("cpu", "nodectl.policies.phase_levels", "POLICY"),
    "fixed-cpu": ("cpu", "nodectl.policies.fixed", "CPU_POLICY"),
    "bdpo-gpu": ("gpu", "nodectl.policies.bdpo_gpu", "POLICY"),
    "gpu-events": ("gpu", "nodectl.policies.gpu_events", "POLICY"),
    "gpu-ladder": ("gpu", "nodectl.policies.gpu_ladder", "POLICY"),
    "fixed-gpu": ("gpu", "nodectl.policies.fixed", "GPU_POLICY"),
    "firmware": ("gpu", "nodectl.policies.firmware", "POLICY"),
    **dict(_of_other_domains()),
}


def _limits() -> dict[str, Policy]:
    """Limits in the form of policies: a replay finds them by name, but nobody chooses them as a policy."""
    module = importlib.import_module("nodectl.decide.temperature_limit")
    return {limit.policy.name: limit.policy for limit in module.LIMITS}


class PolicyError(UsageError):
    """A policy or parameter does not exist or does not fit. ``key`` is what is wrong below the policy's setting."""

    def __init__(self, message: str, *key: str) -> None:
        super().__init__(message)
        self.key = key


def names(domain: str | None = None) -> list[str]:
    """The names of the policies that ship, of one domain or of all."""
    return [name for name, (side, _, _) in _WHERE.items() if domain in (None, side)]


def added() -> list[Extension[Policy]]:
    """The policies of installed packages, by name."""
    return [extension for name in _ADDED.names() if (extension := _ADDED.find(name))]


def policy(name: str, domain: str) -> Policy:
    """The policy called ``name`` for that domain; ``PolicyError`` with the nearest name if there is none."""
    return find(name, domain).value


def recorded(name: str, domain: str) -> Policy:
    """The same for a name that a journal gives: a record starts no code, so a file is no policy here."""
    if is_file(name):
        raise PolicyError(f"{name!r} is a file, which a journal does not start", "name")
    return policy(name, domain)


def find(name: str, domain: str) -> Extension[Policy]:
    """As ``policy``, with where it came from; ``name`` may be a file."""
    full = name if name in _WHERE else f"{name}-{domain}"
    extension = _found(name) or (None if is_file(name) else _found(full))
    if extension:
        side: str | None = extension.value.domain
    else:
        side, module, attribute = _WHERE.get(full, (None, "", ""))
        if side is None and (limit := _limits().get(full)) and limit.domain == domain:
            return Extension(limit)
    if side != domain:
        problem = f"{name!r} is a {side} policy" if side else f"no {domain} policy is called {name!r}"
        known = [] if is_file(name) else [*names(domain), *_ADDED.names(), NONE]
        raise PolicyError(problem + nearest(name, known), "name")
    if extension:
        return _guarded(extension)
    try:
        found: Policy | Callable[[str], Policy] = getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise PolicyError(f"{full}: its module cannot be imported: {error}", "name") from None
    return Extension(found if isinstance(found, Policy) else found(domain))


def _found(name: str) -> Extension[Policy] | None:
    try:
        return _ADDED.find(name)
    except ExtensionError as error:
        raise PolicyError(str(error), "name") from None


def _misfit(policy: Policy) -> str:
    """What is wrong with a policy that was added; empty: nothing that can be seen before it runs."""
    if policy.domain not in DOMAINS:
        return f"domain: {policy.domain!r} is none of {', '.join(DOMAINS)}"
    if problem := misfit_params(policy.params):
        return f"params: {problem}"
    for name, parameters in _CALLED_WITH.items():
        if problem := misfit(getattr(policy, name), *parameters):
            return f"{name}: {problem}"
    return ""


_CALLED_WITH: Final = {"initial": ("params", "layout"), "decide": ("params", "layout", "state", "sample")}
_SHORT: Final = [name.removesuffix(f"-{side}") for name, (side, _, _) in _WHERE.items()]
_ADDED: Final = Extensions("nodectl.policies", Policy, "POLICY", {*_WHERE, *_SHORT, *_limits(), NONE}, _misfit)


def _guarded(extension: Extension[Policy]) -> Extension[Policy]:
    """The policy, whose errors and wrong answers end the run in one line rather than reach the arbiter."""
    policy = extension.value

    def decide(params: Any, layout: Layout, state: Any, sample: Any) -> Any:
        domain = knobs.DOMAINS[policy.domain]
        size = len(layout.cpus if domain.is_per_cpu else domain.rows(layout))
        check = functools.partial(_wrong, size=size, n_reasons=len(policy.reasons))
        return extension.guarded(policy.decide, check)(params, layout, state, sample)

    initial = extension.guarded(policy.initial, lambda state: "")
    return msgspec.structs.replace(extension, value=dataclasses.replace(policy, initial=initial, decide=decide))


def _wrong(answer: Any, size: int, n_reasons: int) -> str:
    """What is wrong with an answer of ``decide``; empty: nothing."""
    if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], Request)):
        return "decide did not return (state, Request)"
    for name, kind in _REQUEST_KINDS.items():
        column = getattr(answer[1], name)
        if not (isinstance(column, np.ndarray) and column.dtype == kind and column.shape == (size,)):
            given = f"{column.dtype} of shape {column.shape}" if isinstance(column, np.ndarray) else repr(column)
            return f"decide returned a {name} that is no array of {size} {kind.__name__}: {given}"
    if size and answer[1].target.min() < 0:
        return f"decide returned a target below 0: {answer[1].target.min()}"
    if size and answer[1].reason.max() >= n_reasons:
        return f"decide returned the reason {answer[1].reason.max()}, and there are {n_reasons}"
    return ""


_REQUEST_KINDS: Final = {"target": np.int64, "reason": np.uint8, "loss": np.float64, "saved_w": np.float64}


def params(chosen: Policy, given: Mapping[str, Any]) -> msgspec.Struct:
    """The policy's parameters with ``given`` over its defaults; ``PolicyError`` on an unknown name or a wrong type."""
    known = chosen.params.__struct_fields__
    for key in given:
        if key not in known:
            raise PolicyError(f"{chosen.name} has no parameter {key!r}{nearest(key, known)}", "params", key)
        if given[key] != given[key]:
            raise PolicyError(f"{chosen.name}: {key} is nan, which is no number", "params", key)
    try:
        return msgspec.convert(dict(given), chosen.params)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at `$.")
        if not place:  # a check in the parameters' own __post_init__, which names them in its message
            named = next((word for word in re.findall(r"\w+", reason) if word in given), "")
            raise PolicyError(f"{chosen.name}: {reason}", "params", *([named] if named else [])) from None
        key = place.rstrip("`")
        raise PolicyError(f"{chosen.name}: {key}: {plain_reason(reason)}", "params", key) from None
    except (ArithmeticError, LookupError, AttributeError) as error:  # in the __post_init__ of one that was added
        raise PolicyError(located(error), "params") from None


def check(name: str, domain: str, given: Mapping[str, Any]) -> None:
    """Raise ``PolicyError`` unless this choice can run."""
    if name == NONE:
        return
    if name in _limits():
        raise PolicyError(f"{name!r} is a limit, set under [caps], not a policy", "name")
    params(policy(name, domain), given)
