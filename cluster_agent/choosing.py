"""``NAME[:key=value,...]`` on a command line or in a file: the parameters of something that is chosen by name.

What a site adds may be chosen by its file instead of a name: ``FILE.py[:NAME][:key=value,...]``.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar, cast, get_args

import msgspec

from cluster_agent.errors import WrongUseError
from foundation.shell.errors import nearest
from foundation.shell.extension import Extension, ExtensionError, Extensions, located, split

_Params = TypeVar("_Params", bound=msgspec.Struct)
_Found = TypeVar("_Found")


def find_named(
    name: str, what: str, hint: str, added: Extensions[_Found], shipped: Mapping[str, str], attribute: str
) -> Extension[_Found]:
    """What is called ``name`` (or is in that file), and where it came from: one of ``added``, else the ``attribute`` of
    a module of ``shipped``. ``WrongUseError`` with the nearest name and ``hint``, in which ``{known}`` is all names."""
    try:
        if found := added.find(name):
            return found
        if name not in shipped:
            known = [*shipped, *added.names()]
            advice = hint.format(known=", ".join(known))
            raise WrongUseError(f"no {what} is called {name!r}{nearest(name, known)}; {advice}")
    except ExtensionError as error:
        raise WrongUseError(str(error)) from None
    return Extension(cast(_Found, getattr(importlib.import_module(shipped[name]), attribute)))


def read_params(option: str, text: str, name: str, kind: type[_Params]) -> _Params:
    """What follows the name in ``text``, as ``kind``; ``WrongUseError`` in one line that begins with ``option`` and the
    text."""
    rest = split(text)[1]
    known = _known(kind)
    given: dict[str, Any] = {}
    for part in rest.split(",") if rest else ():
        key, equals, value = (word.strip() for word in part.partition("="))
        if not equals or not key or not value:
            raise WrongUseError(f"{option} {text}: {part!r} is not key=value")
        if key not in known:
            raise WrongUseError(f"{option} {text}: {name} has no parameter {key!r}{nearest(key, known)}")
        if key in given:
            raise WrongUseError(f"{option} {text}: {key} is given twice")
        words = options(known[key])
        if words and value not in words:
            raise WrongUseError(f"{option} {text}: {key} cannot be {value!r}: one of {', '.join(words)}")
        given[key] = value
    try:
        return msgspec.convert(_nested(given, kind), kind, strict=False)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).rpartition("`$.")
        if not reason:  # of the parameters' own __post_init__
            raise WrongUseError(f"{option} {text}: {error}") from None
        key = place.rstrip("`").rpartition(".")[2]
        raise WrongUseError(f"{option} {text}: {key} cannot be {given[key]!r}: a number is needed") from None
    except (ArithmeticError, LookupError, AttributeError) as error:  # the same, of parameters that a site adds
        raise WrongUseError(f"{option} {text}: {located(error)}") from None


def groups_of(kind: type[msgspec.Struct]) -> dict[str, type[msgspec.Struct]]:
    """The fields that are groups of parameters, whose keys stand among the others in text."""
    types = _types(kind).items()
    return {name: one for name, one in types if isinstance(one, type) and issubclass(one, msgspec.Struct)}


def _fields(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The types of its own parameters, without groups."""
    groups = groups_of(kind)
    return {name: one for name, one in _types(kind).items() if name not in groups}


def flat(params: msgspec.Struct) -> dict[str, Any]:
    """Each parameter by its key in text."""
    found: dict[str, Any] = {}
    for name in groups_of(type(params)):
        found |= msgspec.structs.asdict(getattr(params, name))
    return found | {key: getattr(params, key) for key in _fields(type(params))}


def _nested(given: Mapping[str, Any], kind: type[msgspec.Struct]) -> dict[str, Any]:
    """What was given, the keys of groups below the names of these. A policy's own key comes before a group's."""
    own, found = _fields(kind), dict[str, Any]()
    for name, group in groups_of(kind).items():
        found[name] = {key: value for key, value in given.items() if key in _fields(group) and key not in own}
    return found | {key: value for key, value in given.items() if key in own}


def _known(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The types of all parameters, by their keys in text."""
    found: dict[str, Any] = {}
    for group in groups_of(kind).values():
        found |= _fields(group)
    return found | _fields(kind)


def values(kind: type[msgspec.Struct]) -> dict[str, list[str]]:
    """For each parameter its possible values, the default first; the default alone where there is no list. Those of
    groups are left out."""
    defaults = kind()
    found: dict[str, list[str]] = {}
    for name, types in _fields(kind).items():
        default = getattr(defaults, name)
        words = [str(option) for option in options(types)]
        shown = words or [f"{default:g}" if isinstance(default, float) else str(default)]
        found[name] = sorted(shown, key=lambda option, default=default: option != str(default))  # type: ignore[misc]
    return found


@cache
def _types(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The type of each field; ``msgspec`` evaluates all annotations each time it is called."""
    return {field.name: field.type for field in msgspec.structs.fields(kind)}


def options(kind: Any) -> list[str]:
    """The words of a ``Literal``, also inside an optional one."""
    words: list[str] = []
    for argument in get_args(kind):
        words += [argument] if isinstance(argument, str) else options(argument)
    return words
