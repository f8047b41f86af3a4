"""``NAME[:key=value,...]`` on a command line or in a file: the parameters of something that is chosen by name.

What a site adds may be chosen by its file instead of a name: ``FILE.py[:NAME][:key=value,...]``.
"""

from __future__ import annotations

from typing import Any, TypeVar, get_args

import msgspec

from cluster_agent.errors import WrongUseError
from nodectl.shell.errors import nearest
from nodectl.shell.extension import located, split

_Params = TypeVar("_Params", bound=msgspec.Struct)


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
