"""Reads TOML files into typed structs, with errors that name file, line and key.

``msgspec`` validates. This module adds the line of the key and the name that was probably meant.
"""

from __future__ import annotations

import math
import re
import tomllib
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from foundation.foreign_text import foreign_text
from foundation.shell.errors import nearest
from twin.errors import TwinError

_T = TypeVar("_T")

Positive = Annotated[float, msgspec.Meta(gt=0.0)]
NotNegative = Annotated[float, msgspec.Meta(ge=0.0)]
Share = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
Count = Annotated[int, msgspec.Meta(ge=1)]
"""Limits of numbers for the fields of a ``kind``."""


def read_toml(path: Path, kind: type[_T]) -> _T:
    """The file as a ``kind``; TwinError with file, line and key if it is invalid."""
    try:
        text = _text(path)
    except OSError as error:
        raise TwinError(f"{path}: {error.strerror}") from None
    try:
        given = tomllib.loads(text)
        for steps in _endless(given, []):
            raise TwinError(f'{place(path, *steps)}: key "{".".join(steps)}": is not a finite number')
        return msgspec.convert(given, kind)
    except tomllib.TOMLDecodeError as error:
        raise TwinError(f"{path}: {error}") from None
    except RecursionError:
        raise TwinError(f"{path}: tables or lists are nested too deeply") from None
    except msgspec.ValidationError as error:
        raise TwinError(_explain(path, text, kind, str(error))) from None


def place(path: Path, *steps: str) -> str:
    """``FILE:LINE`` of the key at the end of the steps, for errors that concern several keys."""
    return f"{path}:{_line(_text(path), list(steps[:-1]), steps[-1])}"


def _text(path: Path) -> str:
    return foreign_text(path.read_bytes())


def _endless(given: Any, steps: list[str]) -> Iterator[list[str]]:
    """Steps to numbers that are infinite or NaN. Faults are exempt: one may last for ever, and checks its own
    fields."""
    if isinstance(given, dict):
        for key, value in given.items():
            if key != "fault":
                yield from _endless(value, [*steps, key])
    elif isinstance(given, list):
        for value in given:
            yield from _endless(value, steps)
    elif isinstance(given, float) and not math.isfinite(given):
        yield steps


_NAMES = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
    "null": "nothing",
}
_LIMITS = {">=": "of at least", "<=": "of at most", ">": "above", "<": "below"}


def in_plain_words(problem: str) -> str:
    """A validation error of ``msgspec`` without its names of types: "expected a number above 0, got text"."""
    problem = re.sub(r"^Object missing required field `(.+)`", r'key "\1" is missing', problem)
    problem = re.sub(
        r"`([a-z |]+)`", lambda m: " or ".join(_NAMES.get(name, name) for name in m[1].split(" | ")), problem
    )
    problem = re.sub(r"(>=|<=|>|<) ([0-9.e+-]+)", lambda m: f"{_LIMITS[m[1]]} {m[2].removesuffix('.0')}", problem)
    return problem[:1].lower() + problem[1:]


def key_and_problem(error: msgspec.ValidationError) -> str:
    """The same with the key before it: "beta: expected a number of at most 1"."""
    what, _, where = str(error).partition(" - at `$.")
    return f"{where.rstrip('`')}: {in_plain_words(what)}" if where else in_plain_words(what)


def _explain(path: Path, text: str, kind: type, message: str) -> str:
    what, _, where = message.partition(" - at `")
    steps = re.findall(r"[A-Za-z_][A-Za-z_0-9]*", where)
    unknown = re.search(r"unknown field `(.+)`", what)
    if unknown:
        key = unknown.group(1)
        return f'{path}:{_line(text, steps, key)}: unknown key "{key}"{nearest(key, _fields(kind, steps))}'
    missing = re.search(r"missing required field `(.+)`", what)
    if missing:
        table = ".".join(steps) or "top level"
        return f'{path}:{_line(text, steps, "")}: key "{missing.group(1)}" is missing ({table})'
    key = steps[-1] if steps else ""
    return f'{path}:{_line(text, steps[:-1], key)}: key "{".".join(steps)}": {in_plain_words(what)}'


def _line(text: str, tables: list[str], key: str) -> int:
    """Line of ``key`` at or after the header of its innermost table; of the header when the key is not found."""
    lines = text.splitlines()
    start = 0
    for table in tables:
        for number in range(start, len(lines)):
            if re.match(rf"\s*(\[+[\w.]*\b{re.escape(table)}\]+|{re.escape(table)}\s*=)", lines[number]):
                start = number
                break
    if key:
        for number in range(start, len(lines)):
            if re.search(rf"(^|[{{,\s]){re.escape(key)}\s*=", lines[number]) or f"{key}]" in lines[number]:
                return number + 1
    return start + 1


def _fields(kind: Any, steps: list[str]) -> list[str]:
    """Names of the fields of the struct that ``steps`` lead to."""
    for step in steps:
        kind = _struct_in(typing.get_type_hints(kind).get(step, kind))
    return [field.encode_name for field in msgspec.structs.fields(_struct_in(kind))]


def _struct_in(kind: Any) -> Any:
    """The struct type inside ``tuple[X, ...]``, ``dict[str, X]`` or ``X | None``."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is not None:
        for inner in typing.get_args(kind):
            found = _struct_in(inner)
            if isinstance(found, type) and issubclass(found, msgspec.Struct):
                return found
    return kind
