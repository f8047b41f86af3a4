"""Files of settings: TOML read into checked types, and one clear line when something is set wrongly.

A mistake is reported as ``FILE:LINE: what is wrong with KEY (nearest: NAME)``. ``tomllib`` gives no line numbers for
keys, so the line is found by scanning the text for the table and key that the message is about.
"""

from __future__ import annotations

import datetime
import math
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import msgspec

from foundation.shell.errors import UsageError, nearest, plain_reason
from foundation.shell.plain_text import read_text

T = TypeVar("T", bound=msgspec.Struct)
Value = TypeVar("Value")

DEEPEST: Final = 16
"""Ours: tables and lists inside each other. Settings need four; the parser and our checks call themselves per level."""


class ConfigError(UsageError):
    """A setting is wrong; the message names file, line, key and the nearest valid name."""


type_where = Callable[[tuple[str, ...]], str]
"""Gives, for a key path, the place that a message about it starts with: ``FILE:LINE`` or a command line option."""


def read_toml(path: Path) -> tuple[str, dict[str, Any]]:
    """The text of a TOML file and its unchecked contents."""
    try:
        text = read_text(path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the settings: {error.strerror}") from None
    try:
        settings = decode_toml(text, dict[str, Any])
    except NestingError as error:
        raise ConfigError(f"{path}:{_deep_line(text)}: {error}") from None
    except msgspec.DecodeError as error:
        raise ConfigError(_toml_error(path, text, str(error))) from None
    return text, settings


class NestingError(msgspec.DecodeError):
    """Tables or lists of a TOML text are nested more than ``DEEPEST`` deep."""


def decode_toml(text: str | bytes, kind: type[Value]) -> Value:
    """``msgspec.toml.decode``, but a text that is nested too deeply is a ``DecodeError`` like any other mistake."""
    try:
        plain = msgspec.toml.decode(text)
    except RecursionError:
        plain = None
    if plain is None or _depth(plain) > DEEPEST:
        raise NestingError(f"tables or lists are nested more than {DEEPEST} deep")
    return msgspec.convert(plain, kind, builtin_types=_TIMES, str_keys=True)


def checked(settings: Mapping[str, Any], kind: type[T], where: type_where) -> T:
    """Settings of type ``kind`` from plain values; ``ConfigError`` for an unknown key, a wrong type or word, and for a
    number outside the bounds of its field (``Annotated[float, msgspec.Meta(ge=1, le=60)]``)."""
    given = list(_given(settings, kind, ()))
    for path, _, expected, known in given:
        if expected is None:
            raise ConfigError(f"{where(path)}: unknown key {'.'.join(path)!r}{_hint(path[-1], known, kind)}")
    for path in _oversized(settings, ()):
        raise ConfigError(f"{where(path)}: {'.'.join(path)}: needs more than 64 bits")
    for path, word, expected, _ in given:
        words = typing.get_args(bare(expected)) if typing.get_origin(bare(expected)) is Literal else ()
        if words and word not in words:
            raise ConfigError(f"{where(path)}: no {'.'.join(path)} is called {word!r}{nearest(str(word), words)}")
    for path, value, expected, _ in given:
        if problem := _out_of_bounds(path[-1], value, expected):
            raise ConfigError(f"{where(path)}: {'.'.join(path)}: {problem}")
    try:
        return msgspec.convert(settings, kind)
    except msgspec.ValidationError as error:
        reason, path = _split_path(str(error))
        raise ConfigError(f"{where(path)}: {'.'.join(path)}: {plain_reason(reason)}") from None


def line_of(text: str, path: tuple[str, ...]) -> int:
    """The line on which ``path`` is set in a TOML text, or that of its nearest table; 1 if neither is there. Of a list
    of tables ``name[1]`` is the second one, and ``name`` the first."""
    best_line, best_depth = 1, 0
    for number, found in _keys_by_line(text):
        depth = next(
            (i for i, (a, b) in enumerate(zip(found, path, strict=False)) if not _is_same(a, b)),
            min(len(found), len(path)),
        )
        if depth > best_depth:
            best_line, best_depth = number, depth
    return best_line


def cannot_keep_files(directory: str) -> str:
    """Why no file can be kept in this directory, which need not exist yet; empty: nothing is known against it."""
    path = Path(directory).absolute()
    there = next(one for one in (path, *path.parents) if one.exists())
    if not there.is_dir():
        return f"{there} is not a directory"
    if set(there.resolve().parts[:2]) & {"proc", "sys"}:
        return f"{there} is a file system of the kernel, which keeps no files"
    return ""


def host_and_port(text: str) -> tuple[str, int]:
    """``HOST:PORT`` as its parts; ``UsageError`` for anything else. An IPv6 address stands in brackets."""
    found = _HOST_PORT.fullmatch(text)
    if found is None or not 0 < int(found["port"]) < 65536:
        brackets = ", in brackets like [::1]:9742 for an IPv6 address" if text.count(":") > 1 else ""
        raise UsageError(f"{text!r} is not HOST:PORT, like 127.0.0.1:9742{brackets}")
    return found["literal"] or found["name"], int(found["port"])


def is_address(text: str) -> bool:
    """Whether this is an address of a cluster agent: tcp://HOST:PORT, or ipc://PATH. An IPv6 address stands in
    brackets."""
    return tcp_address(text) is not None or (text.startswith("ipc://") and len(text) > len("ipc://"))


def tcp_address(url: str) -> tuple[str, int] | None:
    """Host and port of tcp://HOST:PORT; None for anything else. Port 0 and ``*`` are those that a listener may have."""
    found = _HOST_PORT.fullmatch(url.removeprefix("tcp://")) if url.startswith("tcp://") else None
    if found is None or int(found["port"]) > 65535:
        return None
    return found["literal"] or found["name"], int(found["port"])


_HOST_PORT: Final = re.compile(
    r"(?:\[(?P<literal>[0-9A-Fa-f:.]+(?:%[\w.-]+)?)\]|(?P<name>[^/\s:\[\]@?#]+)):(?P<port>[0-9]{1,5})"
)
_TIMES: Final = (datetime.datetime, datetime.date, datetime.time)
"""TOML has values of these types."""

_UNITS: Final = (
    "ns", "us", "ms", "s", "khz", "mhz", "ghz", "hz", "c", "k", "w", "mw", "kw", "bytes", "kb", "mb", "gb", "share",
    "pct",
)  # fmt: skip
_SYMBOLS: Final = {"w": " W", "s": " s", "ms": " ms", "mhz": " MHz", "khz": " kHz", "c": " C", "bytes": " bytes"}
"""Units that a key ends in, as messages write them."""

_ENTRY: Final = re.compile(r"\[[0-9]+\]$")
_BARE: Final = r"[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*'"
_TABLE: Final = re.compile(rf"^\s*\[+\s*((?:{_BARE})(?:\s*\.\s*(?:{_BARE}))*)\s*\]+")
_KEY: Final = re.compile(rf"(?:^|[{{,])\s*((?:{_BARE})(?:\s*\.\s*(?:{_BARE}))*)\s*=")


def _keys_by_line(text: str) -> Iterator[tuple[int, tuple[str, ...]]]:
    """The line and the path of each table and key; tables of a list have their numbers: ``name[1]``."""
    table: tuple[str, ...] = ()
    last: dict[tuple[str, ...], int] = {}  # by the path of a list, the number of its last table until here
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _TABLE.match(line):
            names, table = _dotted(header[1]), ()
            for at, name in enumerate(names, start=1):
                path = (*table, name)
                if at == len(names) and line.lstrip().startswith("[["):
                    last[path] = last.get(path, -1) + 1
                table = (*table, f"{name}[{last[path]}]") if path in last else path
            yield number, table
            continue
        outer = table
        for position, key in enumerate(_KEY.finditer(line.split("#", 1)[0])):
            names = _dotted(key[1])
            yield number, (*outer, *names)
            if position == 0:
                outer = (*table, *names)  # what follows on the line is inside its inline table


def _is_same(found: str, wanted: str) -> bool:
    """Whether these are the same part of a path; a list that is written in its line has no numbers there."""
    return found in (wanted, _ENTRY.sub("", wanted)) or _ENTRY.sub("", found) == wanted


def _dotted(text: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in re.findall(_BARE, text))


def _depth(value: Any) -> int:
    """How many tables and lists are inside each other."""
    depth, level = 0, [value]
    while level := [one for one in level if isinstance(one, (dict, list))]:
        depth += 1
        level = [inner for one in level for inner in (one.values() if isinstance(one, dict) else one)]
    return depth


def _deep_line(text: str) -> int:
    """The first line with more than ``DEEPEST`` brackets open; 1 where tables are nested by dotted names."""
    opened = 0
    for number, line in enumerate(text.splitlines(), start=1):
        for sign in line:
            opened += (sign in "[{") - (sign in "]}")
            if opened > DEEPEST:
                return number
    return 1


def _given(
    settings: Mapping[str, Any], kind: type[msgspec.Struct], path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Any, Any, tuple[str, ...]]]:
    """Every key that is given, its value, its type (None: there is no such key), and the keys that its table has."""
    fields = _fields(kind)
    for key, value in settings.items():
        yield (*path, key), value, fields.get(key), tuple(fields)
        if (table := table_of(fields.get(key))) and isinstance(value, Mapping):
            yield from _given(value, table, (*path, key))


@cache
def _fields(kind: type[msgspec.Struct]) -> dict[str, Any]:
    return {field.name: field.type for field in msgspec.structs.fields(kind)}


def bounds(kind: Any) -> msgspec.Meta | None:
    """What the type of a field says of its values beyond their type: ``ge``, ``le``, ``lt``, ``description``."""
    marks = kind.__metadata__ if typing.get_origin(kind) is typing.Annotated else ()
    return next((mark for mark in marks if isinstance(mark, msgspec.Meta)), None)


def bare(kind: Any) -> Any:
    """The type of a field without what is said of its values."""
    return typing.get_args(kind)[0] if typing.get_origin(kind) is typing.Annotated else kind


def range_in_words(meta: msgspec.Meta) -> str:
    """The range of a field as people write it; empty: any."""
    least, most = meta.ge, meta.le
    if least is None:
        return "" if most is None else f"at most {most:g}"
    return f"{least:g} or more" if most is None else f"{least:g} to {most:g}"


def _out_of_bounds(key: str, value: Any, kind: Any) -> str:
    """What is wrong with a number by the bounds of its field; empty: nothing, or it is no number."""
    meta = bounds(kind)
    if meta is None or isinstance(value, bool) or not isinstance(value, int | float):
        return ""
    if math.isfinite(value) and (meta.ge is None or meta.ge <= value) and (meta.le is None or value <= meta.le):
        return ""
    unit = _SYMBOLS.get(key.rpartition("_")[2], "")
    fix = (meta.extra or {}).get("fix", "")
    return f"{value:g}{unit} {_wrong(value, meta)}" + (f"; {fix}" if fix else "")


def _wrong(value: float, meta: msgspec.Meta) -> str:
    """What is wrong with a number that its bounds exclude."""
    if not math.isfinite(value):
        return "is not a number" if math.isnan(value) else "is not finite"
    if meta.le is not None:
        return f"is outside {meta.ge:g}..{meta.le:g}"
    return "is negative" if meta.ge == 0 else f"is less than {meta.ge:g}"


def table_of(kind: Any) -> type[msgspec.Struct] | None:
    """The struct type of a field, whether it may be left out or not; None for a field that is no table."""
    kind = bare(kind)
    choices = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    return next((one for one in choices if isinstance(one, type) and issubclass(one, msgspec.Struct)), None)


def _tables(kind: type[msgspec.Struct], path: tuple[str, ...] = ()) -> Iterator[tuple[str, frozenset[str]]]:
    """All tables by name ("" for the keys above all tables), and their keys."""
    fields = _fields(kind)
    yield ".".join(path), frozenset(fields)
    for key, inner in fields.items():
        if table := table_of(inner):
            yield from _tables(table, (*path, key))


def _oversized(settings: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Paths of whole numbers that do not fit into 64 bits, as arrays and journals need."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _oversized(value, (*path, key))
        elif isinstance(value, int) and not -(2**63) <= value < 2**63:
            yield (*path, key)


def _hint(key: str, known: tuple[str, ...], kind: type[msgspec.Struct]) -> str:
    """For a key that is right but for its unit, the unit; for a key of another table, the table; else the nearest
    name."""
    stem, _, unit = key.rpartition("_")
    for name in known:
        known_stem, _, known_unit = name.rpartition("_")
        if known_unit in _UNITS and ((stem == known_stem and unit in _UNITS) or key == known_stem):
            return f": it is given in {known_unit} (nearest: {name})"
    others = [table for table, keys in _tables(kind) if key in keys]
    if others:
        return f": it belongs {f'into [{others[0]}]' if others[0] else 'above all tables'}"
    return nearest(key, known)


def _split_path(message: str) -> tuple[str, tuple[str, ...]]:
    reason, _, place = message.partition(" - at `$")
    place = place.replace("[...]", "")  # an entry of a table or list, which msgspec does not name
    return reason, tuple(part for part in place.rstrip("`").split(".") if part)


def _toml_error(file: Path, text: str, message: str) -> str:
    place = re.search(r"\(at line (\d+), column \d+\)", message)
    line = int(place[1]) if place else max(len(text.splitlines()), 1)  # else "(at end of document)"
    reason = re.sub(r"\s*\(at [^)]*\)", "", message)
    return f"{file}:{line}: not TOML: {reason[:1].lower()}{reason[1:]}"
