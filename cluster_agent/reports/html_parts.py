"""Parts of HTML that a replay's report and the page of a live partition have in common, so that they look alike.

``page.css`` is their style. Texts are HTML or SVG text in CSS pixels, never scaled; what is stretched to the width of
the screen has no text in it.
"""

from __future__ import annotations

import html

from cluster_agent.reports.lanes import HEIGHT, WIDTH, Lane


def escape(text: str) -> str:
    """For HTML; a number and its % stay on one line."""
    return html.escape(text).replace(" %", "\u00a0%")


def lane_of(name: str, lane: Lane, top: float, most: str) -> str:
    """``top``: the highest value of this lane in any of the pictures that are shown, ``most`` the same as text."""
    paths = [f"<path class=area d='{lane.line}'/>"] if lane.line else []
    paths += [f"<path class=cap d='{lane.second}'/>"] if lane.second else []
    paths += [f"<path class='job job{at}' d='{box}'/>" for at, box in enumerate(lane.boxes)]
    kind = " class=gantt" if lane.boxes else ""
    label = escape(f"{name}: {lane.name}")
    high = HEIGHT * top / lane.top
    box = f'viewBox="0 {HEIGHT - high:g} {WIDTH} {high:g}"'
    said = escape(f"{lane.name}, to {most}{lane.unit}")
    picture = f'<svg{kind} preserveAspectRatio=none {box} role=img aria-label="{label}">{"".join(paths)}</svg>'
    return f"<div class=lane>{said}{picture}</div>"


def tick(share: float, text: str) -> str:
    """On an axis; at its ends the text is next to the line, not below it."""
    anchor = "start" if share < 0.05 else "end" if share > 0.9 else "middle"
    at = f"{100 * share:.2f}%"
    return f"<line x1={at} x2={at} y1=0 y2=5 /><text x={at} y=18 text-anchor={anchor}>{escape(text)}</text>"
