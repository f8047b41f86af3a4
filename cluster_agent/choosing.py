"""``NAME[:key=value,...]`` on a command line or in a file: the parameters of something that is chosen by name.

What a site adds may be chosen by its file instead of a name: ``FILE.py[:NAME][:key=value,...]``.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
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
    known = {field.name: field.type for field in msgspec.structs.fields(kind)}
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
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).rpartition("`$.")
        if not reason:  # of the parameters' own __post_init__
            raise WrongUseError(f"{option} {text}: {error}") from None
        key = place.rstrip("`")
        raise WrongUseError(f"{option} {text}: {key} cannot be {given[key]!r}: a number is needed") from None
    except (ArithmeticError, LookupError, AttributeError) as error:  # the same, of parameters that a site adds
        raise WrongUseError(f"{option} {text}: {located(error)}") from None


def values(kind: type[msgspec.Struct]) -> dict[str, list[str]]:
    """For each parameter its possible values, the default first; the default alone where there is no list."""
    defaults = kind()
    found: dict[str, list[str]] = {}
    for field in msgspec.structs.fields(kind):
        default = getattr(defaults, field.name)
        words = [str(option) for option in options(field.type)]
        shown = words or [f"{default:g}" if isinstance(default, float) else str(default)]
        found[field.name] = sorted(shown, key=lambda option, default=default: option != str(default))  # type: ignore[misc]
    return found


def options(kind: Any) -> list[str]:
    """The words of a ``Literal``, also inside an optional one."""
    words: list[str] = []
    for argument in get_args(kind):
        words += [argument] if isinstance(argument, str) else options(argument)
    return words
