"""The report as one HTML file: no other file, nothing from elsewhere, and a script that the page can do without.

The policy of its content allows the style and the script that it was written with, by their hashes, and nothing else: a
name in a log cannot bring a script along.
"""

from __future__ import annotations

import base64
import hashlib
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from cluster_agent.replay.compare import Run
from cluster_agent.reports import over_time, tables
from cluster_agent.reports.conditions import Comparison, Condition
from cluster_agent.reports.html_parts import escape, lane_of, tick
from cluster_agent.reports.lanes import Lane
from cluster_agent.reports.row_pictures import Row, RowPicture, pictures, round_values
from cluster_agent.reports.tables import Table

MOST_BYTES: Final = 1_000_000
TABLE_BYTES: Final = 300_000
GANTT_BYTES: Final = 550_000
"""Ours: a page is no larger; so much of it may be tables of conditions; after so many bytes of replays over time, the
others come without the chart of their jobs."""
OPEN_ROWS: Final = 24
"""Ours: longer tables wait for a click."""


class Packed(msgspec.Struct, frozen=True):
    """A replay that the script can show: lanes as JSON, deflated, in base64."""

    name: str
    span: float
    data: str


def page(found: Comparison, notes: Sequence[str], said: str) -> str:
    """``said``: the result in a sentence; ``notes``: what to know about all figures. Both come first."""
    here = Path(__file__).parent
    style, script = ((here / name).read_text() for name in ("page.css", "page.js"))
    shown = pictures(found)
    body = ["<h1>Replays of a job log (simulated)</h1>", f"<p class=said>{escape(said)}</p>"]
    body += [_row_picture(one) for one in shown[:1]]
    body += [f"<p class=note>{escape(line)}</p>" for line in notes]
    body += [_overall(found)] if len(found.conditions) > 1 else []
    body += [f"<h2>{escape(one.title)}</h2>{_row_picture(one)}" for one in shown[1:]]
    tail = _conditions(found)
    room = MOST_BYTES - sum(len(one.encode()) for one in (style, script, tail, *body)) - 4000
    body += [_runs(found, room), tail]
    policy = "; ".join(
        [
            "default-src 'none'", f"style-src '{_hash(style)}'", f"script-src '{_hash(script)}'",
            "base-uri 'none'", "form-action 'none'",
        ]
    )  # fmt: skip
    head = (
        f'<meta charset=utf-8><meta http-equiv=Content-Security-Policy content="{policy}">'
        "<meta name=viewport content='width=device-width, initial-scale=1'>"
        f"<title>Replays (simulated)</title><style>{style}</style>"
    )
    content = f"{''.join(body)}<script>{script}</script>"
    return f"<!doctype html><html lang=en><head>{head}</head><body>{content}</body></html>\n"


def _parts(name: str) -> str:
    """A policy's name, which breaks behind a colon or a comma if it can."""
    return "".join(f"<span class=part>{escape(part)}</span>" for part in re.findall(r"[^:,]*[:,]?", name) if part)


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _row_picture(one: RowPicture) -> str:
    ticks = "".join(tick(one.place(at), tables.number(at)) for at in one.ticks)
    axis = f"<svg class=axis aria-hidden=true>{ticks}<text x=0 y=33>{escape(one.axis)}</text></svg>"
    rows = "".join(_row(one, row) for row in one.rows)
    packed = base64.b64encode(one.csv().encode()).decode()
    link = f'<a class=data download="{one.key}.csv" href="data:text/csv;base64,{packed}">numbers (CSV)</a>'
    return (
        f"<figure id={one.key}><div class=rows>{rows}<div class='row head'><span class=name></span>{axis}"
        f"<span class=value></span></div></div><figcaption>{escape(one.says)} {link}</figcaption></figure>"
    )


def _at(one: RowPicture, value: float) -> str:
    return f"{100 * one.place(value):.2f}%"


def _row(one: RowPicture, row: Row) -> str:
    marks = []
    for at in (_at(one, value) for value in one.ticks):
        marks.append(f"<line class=grid x1={at} x2={at} y1=0 y2=26 />")
    if one.reference is not None:
        at = _at(one, one.reference)
        marks.append(f"<line class=reference x1={at} x2={at} y1=0 y2=26 />")
    shown = [mark for mark in row.marks if mark <= one.most]
    marks += [f"<line class=mark x1={at} x2={at} y1=17 y2=25 />" for at in (_at(one, mark) for mark in shown)]
    if row.low is not None and row.high is not None:
        marks.append(f"<line class=bar x1={_at(one, row.low)} x2={_at(one, row.high)} y1=13 y2=13 />")
    if row.value <= one.most:
        marks.append(f"<circle class=dot cx={_at(one, row.value)} cy=13 r=5 />")
    else:
        marks.append("<svg x=100% y=13 overflow=visible><path class=dot d='M-9-6V6L0 0z'/></svg>")
    if row.published is not None and row.published <= one.most:
        diamond = "<path class=published d='M-7 0L0-7 7 0 0 7z'/>"
        marks.append(f"<svg x={_at(one, row.published)} y=13 overflow=visible>{diamond}</svg>")
    published = (
        "" if row.published is None else f"<br><small>{escape(f'published {tables.change(row.published)}')}</small>"
    )
    label = escape(f"{row.name}: {row.text}")
    picture = f'<svg class="{row.verdict}" role=img aria-label="{label}">{"".join(marks)}</svg>'
    return (
        f"<div class=row><span class=name>{_parts(row.name)}</span>{picture}"
        f"<span class=value>{escape(row.text)}{published}</span></div>"
    )


def _overall(found: Comparison) -> str:
    rows = tables.overall(found)
    return _folded("All conditions together", [rows]) if len(rows) > 1 else ""


def _conditions(found: Comparison) -> str:
    parts = ["<h2>Condition by condition</h2>"]
    rows = 0
    for one in found.conditions:
        both = [tables.results(found, one), tables.differences(found, one)]
        rows += sum(map(len, both))
        notes = "".join(f"<p class=note>{escape(line)}</p>" for line in tables.left_out(one))
        made = _folded(one.name, both, is_open=rows <= OPEN_ROWS, before=notes)
        if sum(map(len, [*parts, made])) > TABLE_BYTES:
            parts.append(f"<p class=note>{len(parts) - 1} of {len(found.conditions)} conditions are in this page.</p>")
            break
        parts.append(made)
    return "".join(parts)


def _folded(name: str, found: Sequence[Table], is_open: bool = True, before: str = "") -> str:
    shown = "".join(_table(rows) for rows in found if len(rows) > 1)
    is_open = is_open and sum(map(len, found)) <= OPEN_ROWS
    return f"<details{' open' if is_open else ''}><summary>{escape(name)}</summary>{before}{shown}</details>"


def _table(rows: Table) -> str:
    titles = [escape(title) for title in rows[0]]
    lines = []
    for row in rows[1:]:
        name, *others = zip(titles, row, strict=True)
        line = [f"<td>{_parts(name[1])}</td>"]
        lines.append("".join(line + [f'<td data-title="{title}">{escape(cell)}</td>' for title, cell in others]))
    caption = f"<caption>{titles[0]}</caption>"  # where the titles have no room
    head = "".join(f"<th scope=col>{title}</th>" for title in titles)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _runs(found: Comparison, room: int) -> str:
    """Two replays over time, and the script's choice among as many as there is room for."""
    ordered = _in_order(found)
    if not ordered:
        return ""
    shown = ordered[:2]
    lanes = [over_time.lanes(run, over_time.span_s(one.all_runs), True) for one, _, run in shown]
    tops: dict[str, float] = {}
    for lane in (each for of_run in lanes for each in of_run):
        tops[lane.name] = max(lane.top, tops.get(lane.name, 0.0))
    panels = [
        f'<div data-span="{over_time.span_s(one.all_runs)}"><h3>{escape(name)}</h3>'
        + "".join(lane_of(name, lane, tops[lane.name], tables.number(tops[lane.name])) for lane in of_run)
        + f"{_time(over_time.span_s(one.all_runs))}</div>"
        for (one, name, _), of_run in zip(shown, lanes, strict=True)
    ]
    room -= len("".join(panels).encode())
    packed: list[Packed] = []
    used = charts = 0
    for one, name, run in ordered:
        whole_s = over_time.span_s(one.all_runs)
        of_run = over_time.lanes(run, whole_s, used < GANTT_BYTES)
        made = _packed(name, whole_s, of_run)
        used += len(_json(made)) + 2 * len(f"<option value=1000 selected>{escape(name)}</option>".encode())
        if used > room:
            break
        packed.append(made)
        charts += any(lane.boxes for lane in of_run)
    note = f"{len(packed)} of {len(ordered)} replays are in this page. " if len(packed) < len(ordered) else ""
    note += f"{charts} of {len(packed)} have a chart of which job is where. " if 0 < charts < len(packed) else ""
    note += "Each lane starts at 0, and both replays have the same scale."
    note += " With a script: choose others, drag over a lane to magnify it, click twice to see all again."
    data = ",".join(map(_json, packed))
    choices = "".join(_choice(packed, at) for at in range(len(shown)))
    controls = f"<div class=controls hidden>{choices}{_buttons()}</div>" if len(packed) >= len(shown) else ""
    return (
        f"<h2>Over time</h2>{controls}<p class=note>{note}</p><div class=runs>{''.join(panels)}</div>"
        f"<script type=application/json id=runs>[{data}]</script>"
    )


def _json(one: Packed) -> str:
    """Without a sign that could end the element it is in."""
    return msgspec.json.encode(one).decode().replace("<", "\\u003c")


def _in_order(found: Comparison) -> list[tuple[Condition, str, Run]]:
    """The baseline and the best policy first, then one seed of each policy and condition after another."""
    best = min(found.against, key=lambda policy: found.against[policy].slowdown.value, default="")
    order = list(dict.fromkeys([found.baseline, *([best] if best else []), *found.policies]))
    ranked = []
    for number, one in enumerate(found.conditions):
        for policy, of_policy in one.runs.items():
            place = order.index(policy) if policy in order else len(order)
            for turn, (seed, run) in enumerate(of_policy.items()):
                name = f"{policy}, {one.name}" + (f", seed {seed}" if len(of_policy) > 1 else "")
                if run.job:
                    ranked.append(((turn, number, place), one, name, run))
    return [(one, name, run) for _, one, name, run in sorted(ranked, key=lambda row: row[0])]


def _packed(name: str, whole_s: float, lanes: Sequence[Lane]) -> Packed:
    return Packed(name, whole_s, base64.b64encode(zlib.compress(msgspec.json.encode(lanes), 9)).decode())


def _choice(packed: Sequence[Packed], chosen: int) -> str:
    options = "".join(
        f"<option value={at}{' selected' if at == chosen else ''}>{escape(one.name)}</option>"
        for at, one in enumerate(packed)
    )
    which = ("first", "second")[chosen]
    return f'<select aria-label="{which} replay">{options}</select>'


def _buttons() -> str:
    moves = {"nearer": "+", "further": "−", "earlier": "←", "later": "→", "whole": "whole"}
    return "".join(f'<button data-move={key} aria-label="{key}">{sign}</button>' for key, sign in moves.items())


def _time(span_s: float) -> str:
    unit, word = (86_400, " days") if span_s > 3 * 86_400 else (3600, " h")
    values = round_values(0, span_s / unit)
    ticks = (tick(value * unit / span_s, f"{value:g}{'' if value else word}") for value in values)
    return f"<svg class=time aria-hidden=true>{''.join(ticks)}</svg>"
