"""Every sharer by its name, imported only when it is chosen; those that a site adds, also by their file.

A choice is written ``NAME[:key=value,...]``. Packages announce sharers of theirs in the group ``clusterctl.sharers``;
``FILE.py[:NAME][:key=value,...]`` is one of a file.
"""

from __future__ import annotations

import dataclasses
from typing import Final

import msgspec

from cluster_agent.budget.sharers.api import Method, Sharer
from cluster_agent.choosing import find_named, read_params
from cluster_agent.errors import WrongUseError
from foundation.shell.extension import (
    Extension,
    ExtensionFailedError,
    Extensions,
    Origin,
    misfit,
    misfit_params,
    split,
    where_defined,
)

_MODULES: Final = {
    "fspc": "cluster_agent.budget.sharers.fspc",
    "aapc": "cluster_agent.budget.sharers.aapc",
    "minimal-slowdown": "cluster_agent.budget.sharers.minimal_slowdown",
}


class Choice(msgspec.Struct, frozen=True):
    """A sharer with its parameters, ready to use."""

    text: str
    method: Method
    params: msgspec.Struct
    share: Sharer
    origin: Origin | None = None
    """None: it ships with nodectl."""


def names() -> list[str]:
    """The names of the sharers that ship, simplest first."""
    return list(_MODULES)


def added() -> list[Extension[Method]]:
    """The sharers of installed packages, by name."""
    return [find(name) for name in _ADDED.names()]


def method(name: str) -> Method:
    """The method called ``name``; ``WrongUseError`` with the nearest name if there is none."""
    return find(name).value


def find(name: str) -> Extension[Method]:
    """The same with where it came from; ``name`` may be a file."""
    return find_named(name, "sharer", "one of {known}", _ADDED, _MODULES, "METHOD")


def _misfit(method: Method) -> str:
    """What is wrong with a sharer that was added; empty: nothing that can be seen before it runs."""
    if problem := misfit_params(method.params):
        return f"params: {problem}"
    for name in ("compose", "models"):
        if problem := misfit(getattr(method, name), "params"):
            return f"{name}: {problem}"
    return ""


_ADDED: Final = Extensions("clusterctl.sharers", Method, "METHOD", _MODULES.keys(), _misfit)


def choose(text: str) -> Choice:
    """``NAME[:key=value,...]`` as a sharer; ``WrongUseError`` in one line otherwise."""
    found = find(split(text)[0])
    chosen = found.value
    if found.origin:
        own = {"compose": found.guarded(chosen.compose), "models": found.guarded(chosen.models)}
        chosen = dataclasses.replace(chosen, **own)
    params = read_params("sharer", text, chosen.name, chosen.params)
    try:
        share = chosen.compose(params)
        if problem := misfit(share, "view", "available_mw"):
            raise ExtensionFailedError(f"{where_defined(chosen.compose)}: what it returned {problem}")
        share = found.guarded(share, lambda shares: "") if found.origin else share
        return Choice(text, chosen, params, share, found.origin)
    except ValueError as error:
        raise WrongUseError(f"sharer {text}: {error}") from None
