"""The settings of both programs: key, default, range, meaning, from the types that check them."""

from __future__ import annotations

import platform
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from cluster_agent.serve.config import DEFAULT_CONFIG, Settings
from docs.generator.page_text import literal, page, paragraph, table
from foundation.shell.settings import bare, bounds, range_in_words, table_of
from nodectl.config import DEFAULT_PATH, Config


@dataclass(frozen=True, slots=True)
class Setting:
    """One key, as people read it."""

    key: str
    default: str
    allowed: str
    meaning: str


@dataclass(frozen=True, slots=True)
class SettingsTable:
    """One table of a settings file; its name is empty for the keys above all tables."""

    name: str
    meaning: str
    settings: tuple[Setting, ...]


def tables(kind: type[msgspec.Struct], name: str = "") -> Iterator[SettingsTable]:
    """The tables of a settings file, outermost first."""
    fields = msgspec.structs.fields(kind)
    inner = {field.name: one for field in fields if _is_file_table(one := table_of(field.type))}
    lists = {field.name: one for field in fields if _is_file_table(one := _listed(field.type))}
    keys = tuple(_setting(field) for field in fields if field.name not in inner | lists)
    yield SettingsTable(name, paragraph(kind.__doc__ or ""), keys)
    for key, one in inner.items():
        yield from tables(one, f"{name}.{key}" if name else key)
    for key, one in lists.items():
        yield from tables(one, f"[{name}.{key}]" if name else f"[{key}]")


def settings_pages() -> dict[str, str]:
    """``reference/settings.md``."""
    parts = []
    for title, path, kind in (
        ("nodectl.toml", DEFAULT_PATH, Config),
        ("cluster.toml", DEFAULT_CONFIG, Settings),
    ):
        parts.append(f"## {title}")
        parts.append(f"By default `{path}`.")
        for one in tables(kind):
            parts.append(f"### {title}: {f'`[{one.name}]`' if one.name else 'above all tables'}")
            parts.append(one.meaning)
            rows = [(f"`{row.key}`", f"`{row.default}`", row.allowed, row.meaning) for row in one.settings]
            parts.append(table(("key", "default", "allowed", "meaning"), rows))
    head = (
        "Both files are TOML. The unit of a number is in its key. A wrong key, value or unit is reported as\n"
        "`FILE:LINE: ...` with the nearest valid name, exit status 2; `nodectl config check` and\n"
        "`clusterctl config check` try a file without starting anything. How to use the settings:\n"
        "[configuration.md](../configuration.md), [cluster.md](../cluster.md)."
    )
    return {"reference/settings.md": page("Settings", head, *parts)}


def _is_file_table(kind: Any) -> typing.TypeGuard[type[msgspec.Struct]]:
    """Whether a struct is a table of the file with keys of its own, and no value that is used in several places."""
    return kind is not None and kind.__name__ != "PolicyChoice"


def _listed(kind: Any) -> Any:
    """The struct of which a setting is a list, a table ``[[NAME]]`` each; None: it is none."""
    plain = bare(kind)
    return table_of(typing.get_args(plain)[0]) if typing.get_origin(plain) is list else None


def _setting(field: Any) -> Setting:
    meta = bounds(field.type)
    return Setting(
        key=field.name,
        default=_default(field),
        allowed=_allowed(field.type, meta),
        meaning=meta.description or "" if meta else "",
    )


def _default(field: Any) -> str:
    if field.name == "name" and field.default == (platform.node() or "node"):
        return "the host's name"
    if field.default is msgspec.NODEFAULT and field.default_factory is msgspec.NODEFAULT:
        return "must be given"
    value = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    return literal({"name": value.name} if hasattr(value, "params") else value)


def _allowed(kind: Any, meta: msgspec.Meta | None) -> str:
    plain = bare(kind)
    if typing.get_origin(plain) is Literal:
        return ", ".join(f"`{word}`" for word in typing.get_args(plain))
    return (range_in_words(meta) if meta else "") or {bool: "true, false", str: "text"}.get(plain, "")
