"""Every sharer by its name, imported only when it is chosen. A choice is written ``NAME[:key=value,...]``."""

from __future__ import annotations

import importlib
from typing import Final, cast

import msgspec

from cluster_agent.budget.sharers.api import Method, Sharer
from cluster_agent.choosing import read_params
from cluster_agent.errors import WrongUseError
from nodectl.shell.errors import nearest

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


def names() -> list[str]:
    """The registered names, simplest first."""
    return list(_MODULES)


def method(name: str) -> Method:
    """The method called ``name``; ``WrongUseError`` with the nearest name if there is no such sharer."""
    if name not in _MODULES:
        raise WrongUseError(f"no sharer is called {name!r}{nearest(name, _MODULES)}; one of {', '.join(_MODULES)}")
    return cast(Method, importlib.import_module(_MODULES[name]).METHOD)


def choose(text: str) -> Choice:
    """``NAME[:key=value,...]`` as a sharer; ``WrongUseError`` in one line otherwise."""
    chosen = method(text.partition(":")[0].strip())
    params = read_params("sharer", text, chosen.name, chosen.params)
    try:
        return Choice(text, chosen, params, chosen.compose(params))
    except ValueError as error:
        raise WrongUseError(f"sharer {text}: {error}") from None
