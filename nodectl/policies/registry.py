"""Every policy by its name, imported only when it is needed.

A name that exists on both sides of the node carries the side as suffix; in a place that is about one side
(``cpu_policy``, ``--gpu-policy``) the suffix may be left out: ``fixed`` is ``fixed-gpu`` there.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from typing import Any, Final, Literal, cast

import msgspec

from nodectl.policies.api import Policy
from nodectl.shell.errors import UsageError, nearest, plain_reason

type_domain = Literal["cpu", "gpu"]
DOMAINS: Final[tuple[type_domain, ...]] = ("cpu", "gpu")

NONE: Final = "none"
"""The choice of no policy: that side of the node is left alone."""

_WHERE: Final[dict[str, tuple[type_domain, str, str]]] = {
    "bdpo-cpu": ("cpu", "nodectl.policies.bdpo_cpu", "POLICY"),
    "bdpo-cpu-bounded": ("cpu", "nodectl.policies.bdpo_cpu_bounded", "POLICY"),
    "fixed-cpu": ("cpu", "nodectl.policies.fixed", "CPU_POLICY"),
    "bdpo-gpu": ("gpu", "nodectl.policies.bdpo_gpu", "POLICY"),
    "gpu-ladder": ("gpu", "nodectl.policies.gpu_ladder", "POLICY"),
    "fixed-gpu": ("gpu", "nodectl.policies.fixed", "GPU_POLICY"),
    "firmware": ("gpu", "nodectl.policies.firmware", "POLICY"),
}
_LIMITS: Final[dict[str, tuple[type_domain, str, str]]] = {
    "gpu-thermal": ("gpu", "nodectl.decide.temperature_limit", "POLICY")
}
"""Limits in the form of policies: a replay finds them by name, but nobody chooses them as a policy."""


class PolicyError(UsageError):
    """A policy or parameter does not exist or does not fit. ``key`` is what is wrong below the policy's setting."""

    def __init__(self, message: str, *key: str) -> None:
        super().__init__(message)
        self.key = key


def names(domain: type_domain | None = None) -> list[str]:
    """The registered names, of one side or of both."""
    return [name for name, (side, _, _) in _WHERE.items() if domain in (None, side)]


def policy(name: str, domain: type_domain) -> Policy:
    """The policy called ``name`` for that side of the node; ``PolicyError`` with the nearest name if there is none."""
    full = name if name in _WHERE else f"{name}-{domain}"
    side, module, attribute = _WHERE.get(full, (None, "", ""))
    if side is None and full in _LIMITS:
        side, module, attribute = _LIMITS[full]
    if side != domain:
        problem = f"{name!r} is a {side} policy" if side else f"no {domain} policy is called {name!r}"
        raise PolicyError(problem + nearest(name, [*names(domain), NONE]), "name")
    try:
        return cast(Policy, getattr(importlib.import_module(module), attribute))
    except ModuleNotFoundError as error:
        raise PolicyError(f"{full}: its module cannot be imported: {error}", "name") from None


def params(chosen: Policy, given: Mapping[str, Any]) -> msgspec.Struct:
    """The policy's parameters with ``given`` over its defaults; ``PolicyError`` on an unknown name or a wrong type."""
    known = chosen.params.__struct_fields__
    for key in given:
        if key not in known:
            raise PolicyError(f"{chosen.name} has no parameter {key!r}{nearest(key, known)}", "params", key)
    try:
        return msgspec.convert(dict(given), chosen.params)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at `$.")
        if not place:  # a check in the parameters' own __post_init__, which names them in its message
            named = next((word for word in re.findall(r"\w+", reason) if word in given), "")
            raise PolicyError(f"{chosen.name}: {reason}", "params", *([named] if named else [])) from None
        key = place.rstrip("`")
        raise PolicyError(f"{chosen.name}: {key}: {plain_reason(reason)}", "params", key) from None


def check(name: str, domain: type_domain, given: Mapping[str, Any]) -> None:
    """Raise ``PolicyError`` unless this choice can run."""
    if name == NONE:
        return
    if name in _LIMITS:
        raise PolicyError(f"{name!r} is a limit, set under [caps], not a policy", "name")
    params(policy(name, domain), given)
