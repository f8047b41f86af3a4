"""A dashboard as Grafana reads it: panels in rows of 24 columns, variables, and no name of a site's own data source.

Source: grafana.com, "Dashboard JSON model". Schema 39 is Grafana 10.4's; later versions convert it when they load it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final, Literal

SCHEMA: Final = 39
COLUMNS: Final = 24
SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
"""The data source that the reader chooses."""

UNITS: Final = ("bytes", "dateTimeAsIso", "hertz", "joule", "kwatth", "none", "s", "short", "watt")
"""Those in use, by Grafana's names."""

Kind = Literal["stat", "state-timeline", "table", "timeseries"]


@dataclass(frozen=True, slots=True)
class Target:
    """One query of a panel. ``legend``: Grafana's, with labels in double braces; of a table the name of its column."""

    query: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """``links``: of a table, by column, the address that a click on a cell opens."""

    title: str
    kind: Kind
    unit: str
    targets: tuple[Target, ...]
    help: str = ""
    width: int = 12
    height: int = 8
    is_stacked: bool = False
    shows_legend: bool = False
    """Of a stat: its legend is what it shows, as where labels are the answer and the value is always 1."""
    links: dict[str, str] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)
    """Of a table's columns, where it is not ``unit``."""


@dataclass(frozen=True, slots=True)
class Variable:
    """What the reader chooses from the values of a label. ``of``: the series that have it. ``with_all``: also all."""

    name: str
    of: str
    label: str
    with_all: bool = False


@dataclass(frozen=True, slots=True)
class Dashboard:
    """One page. ``uid`` is its address, ``/d/UID``, which stays as it is."""

    uid: str
    title: str
    help: str
    variables: tuple[Variable, ...]
    panels: tuple[Panel, ...]


def dashboard_json(one: Dashboard) -> str:
    """The file that Grafana provisions or imports."""
    made = {
        "uid": one.uid,
        "title": one.title,
        "description": one.help,
        "tags": ["nodectl"],
        "schemaVersion": SCHEMA,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": []},
        "links": [
            {"type": "dashboards", "title": "nodectl", "tags": ["nodectl"], "asDropdown": True, "keepTime": True,
             "includeVars": True, "targetBlank": False, "icon": "external link", "tooltip": "", "url": ""},
        ],
        "templating": {"list": [_chosen_source(), *map(_chosen, one.variables)]},
        "panels": list(_placed(one.panels)),
    }  # fmt: skip
    return json.dumps(made, indent=2, ensure_ascii=False) + "\n"


def _chosen_source() -> dict[str, Any]:
    return {"type": "datasource", "name": "datasource", "label": "Prometheus", "query": "prometheus", "hide": 0,
            "current": {}, "includeAll": False, "multi": False, "refresh": 1, "regex": "", "options": []}  # fmt: skip


def _chosen(one: Variable) -> dict[str, Any]:
    query = f"label_values({one.of}, {one.label})"
    everything = {"text": "All", "value": "$__all"}
    return {
        "type": "query", "name": one.name, "label": one.name.capitalize(), "datasource": SOURCE, "definition": query,
        "query": {"query": query, "refId": one.name}, "refresh": 2, "sort": 1, "regex": "", "hide": 0, "multi": False,
        "includeAll": one.with_all, **({"allValue": ".*", "current": everything} if one.with_all else {"current": {}}),
        "options": [],
    }  # fmt: skip


def _placed(panels: tuple[Panel, ...]) -> list[dict[str, Any]]:
    """From left to right; one that finds no room begins a row below the highest of the row before."""
    made, x, y, row_height = [], 0, 0, 0
    for number, panel in enumerate(panels, start=1):
        if x + panel.width > COLUMNS:
            x, y, row_height = 0, y + row_height, 0
        made.append(_panel(number, panel) | {"gridPos": {"x": x, "y": y, "w": panel.width, "h": panel.height}})
        x, row_height = x + panel.width, max(row_height, panel.height)
    return made


def _panel(number: int, one: Panel) -> dict[str, Any]:
    is_table = one.kind == "table"
    defaults: dict[str, Any] = {"unit": one.unit}
    if one.kind == "timeseries":
        defaults["custom"] = {"fillOpacity": 20 if one.is_stacked else 0, "showPoints": "never", "spanNulls": False,
                              "stacking": {"mode": "normal" if one.is_stacked else "none", "group": "A"}}  # fmt: skip
    if one.kind == "state-timeline":
        steps = [{"color": "transparent", "value": None}, {"color": "orange", "value": 1}]
        defaults |= {"color": {"mode": "thresholds"}, "thresholds": {"mode": "absolute", "steps": steps}}
    made: dict[str, Any] = {
        "id": number, "title": one.title, "type": one.kind, "description": one.help, "datasource": SOURCE,
        "targets": [_target(at, target, one.kind) for at, target in enumerate(one.targets)],
        "fieldConfig": {"defaults": defaults, "overrides": _overrides(one)},
        "options": OPTIONS[one.kind] | ({"textMode": "name"} if one.shows_legend else {}),
    }  # fmt: skip
    if is_table:
        columns = {f"Value #{_letter(at)}": target.legend for at, target in enumerate(one.targets)}
        hidden = dict.fromkeys(("Time", "__name__", "instance", "job"), True)
        if len(one.targets) == 1:
            columns = {"Value": one.targets[0].legend}
        made["transformations"] = [
            {"id": "merge", "options": {}},
            {"id": "organize", "options": {"excludeByName": hidden, "renameByName": columns, "indexByName": {}}},
        ]
    return made


_LEGEND: Final = {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []}
_TOOLTIP: Final = {"mode": "multi", "sort": "desc"}
OPTIONS: Final[dict[Kind, dict[str, Any]]] = {
    "stat": {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}, "colorMode": "none",
             "graphMode": "none", "justifyMode": "auto", "textMode": "auto", "orientation": "auto"},
    "state-timeline": {"legend": _LEGEND, "tooltip": _TOOLTIP, "showValue": "never", "mergeValues": True,
                       "rowHeight": 0.9, "alignValue": "left"},
    "table": {"showHeader": True, "cellHeight": "sm", "footer": {"show": False, "reducer": ["sum"], "fields": ""}},
    "timeseries": {"legend": _LEGEND, "tooltip": _TOOLTIP},
}  # fmt: skip


def _letter(at: int) -> str:
    return chr(ord("A") + at)


def _target(at: int, one: Target, kind: Kind) -> dict[str, Any]:
    is_instant = kind in ("stat", "table")
    return {
        "refId": _letter(at), "datasource": SOURCE, "expr": one.query, "legendFormat": one.legend or "__auto",
        "instant": is_instant, "range": not is_instant, "format": "table" if kind == "table" else "time_series",
        "editorMode": "code",
    }  # fmt: skip


def _overrides(one: Panel) -> list[dict[str, Any]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for column, unit in one.units.items():
        found.setdefault(column, []).append({"id": "unit", "value": unit})
    for column, url in one.links.items():
        link = {"title": "${__value.text}", "url": url, "targetBlank": False}
        found.setdefault(column, []).append({"id": "links", "value": [link]})
    return [
        {"matcher": {"id": "byName", "options": column}, "properties": properties}
        for column, properties in found.items()
    ]
