"""The picture of all parts in docs/architecture.md: an SVG of our own, drawn from the tables below.

It is 360 units wide, so that on a screen of 390 pixels its smallest letters have ten of them, and it has a background
of its own, so that it reads the same in a light and in a dark theme. A part is a folder of this repository;
``tests/test_pages.py`` fails when there is none of its name.
"""

from __future__ import annotations

from html import escape
from typing import Final, NamedTuple

WIDTH: Final = 360
HEIGHT: Final = 638
STYLE: Final = (
    "text{font-family:'DejaVu Sans',Verdana,sans-serif;fill:#1b2733}"
    ".name{font-size:11px;font-weight:bold}.what{font-size:10px}.way{font-size:10px;font-style:italic;fill:#33475b}"
    ".group{fill:#e6edf3;stroke:#5b7285}.part{fill:#ffffff;stroke:#5b7285}.outside{fill:#f7efdc;stroke:#9a7b33}"
    "line{stroke:#1b2733;stroke-width:1.4}"
)


class Box(NamedTuple):
    """A part: where, how large, what it is called, and what it does, one line each."""

    x: int
    y: int
    width: int
    height: int
    kind: str
    name: str
    lines: tuple[str, ...] = ()


class Arrow(NamedTuple):
    """From one part to another, horizontally or vertically, with what goes that way next to it."""

    from_x: int
    from_y: int
    to_x: int
    to_y: int
    label: str = ""
    label_x: int = 0
    label_y: int = 0


KERNEL: Final = ("perf, RAPL, NVML, hwmon,", "cpufreq; the same from", "the twin (pmu/ports.py)")
FIRMWARE: Final = ("SCMI; ControlPULP firmware", "in C: caps to clocks", "each 500 us, to the PLL")

BOXES: Final = (
    Box(8, 8, 166, 46, "outside", "people, job scripts", ("clusterctl submit, budget,", "why, top")),
    Box(186, 8, 166, 46, "outside", "administrators", ("clusterctl budget, keys;", "nodectl doctor, restore")),
    Box(8, 80, 344, 146, "group", "cluster_agent/: next to the scheduler"),
    Box(16, 100, 160, 34, "part", "cluster_agent/jobs", ("live jobs, their states",)),
    Box(184, 100, 160, 34, "part", "cluster_agent/serve", ("joins budget, jobs, people",)),
    Box(16, 142, 160, 34, "part", "cluster_agent/scheduler", ("which job starts when",)),
    Box(184, 142, 160, 34, "part", "cluster_agent/budget", ("sharers, then ledger",)),
    Box(16, 184, 160, 34, "part", "cluster_agent/replay", ("job logs, without nodes",)),
    Box(184, 184, 160, 34, "part", "cluster_agent/store", ("what must survive",)),
    Box(8, 268, 344, 188, "group", "nodectl/: one compute node"),
    Box(16, 288, 160, 34, "part", "nodectl/jobs", ("processes, joules, progress",)),
    Box(184, 288, 160, 34, "part", "nodectl/member", ("lease on a cap, reports",)),
    Box(16, 334, 100, 46, "part", "pmu", ("instruments,", "read only: sample")),
    Box(130, 334, 100, 46, "part", "nodectl/policies", ("pure functions:", "request")),
    Box(244, 334, 100, 46, "part", "nodectl/decide", ("arbiter: one", "value per knob")),
    Box(16, 396, 100, 52, "part", "nodectl/journal", ("enough to", "decide again")),
    Box(130, 396, 100, 52, "part", "nodectl/controller", ("knobs behind", "SCMI")),
    Box(244, 396, 100, 52, "part", "nodectl/write", ("save, write,", "read back, restore")),
    Box(8, 490, 166, 56, "outside", "kernel and driver", KERNEL),
    Box(186, 490, 166, 56, "part", "firmware_bridge", FIRMWARE),
    Box(8, 562, 166, 34, "part", "twin", ("emulated node, one model",)),
    Box(186, 562, 166, 34, "part", "hil_tests", ("firmware on every target",)),
    Box(8, 602, 166, 30, "part", "lab", ("demonstrations",)),
    Box(186, 602, 166, 30, "part", "calibration", ("measures a node",)),
)  # fmt: skip

ARROWS: Final = (
    Arrow(91, 54, 91, 80),
    Arrow(326, 54, 326, 80),
    Arrow(96, 226, 96, 268, "job starts", 30, 250),
    Arrow(222, 226, 222, 268, "grants of watts", 130, 250),
    Arrow(300, 268, 300, 226, "reports", 306, 250),
    Arrow(116, 357, 130, 357),
    Arrow(230, 357, 244, 357),
    Arrow(294, 380, 294, 396),
    Arrow(66, 380, 66, 396),
    Arrow(264, 322, 264, 334),
    Arrow(244, 422, 230, 422),
    Arrow(40, 490, 40, 456, "counters", 46, 477),
    Arrow(150, 456, 150, 490, "knobs", 112, 477),
    Arrow(206, 456, 206, 490, "caps, levels", 212, 477),
    Arrow(91, 562, 91, 546),
    Arrow(268, 562, 268, 546),
)


def _text(x: float, y: float, kind: str, words: str) -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{escape(words)}</text>'


def _box(box: Box) -> list[str]:
    frame = f'<rect class="{box.kind}" x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}" rx="4"/>'
    lines = [_text(box.x + 6, box.y + 26 + 12 * number, "what", line) for number, line in enumerate(box.lines)]
    shown = box.name.rpartition("/")[2] if box.kind == "part" else box.name
    return [frame, _text(box.x + 6, box.y + 14, "name", shown), *lines]


def _arrow(arrow: Arrow) -> list[str]:
    way = f'<line x1="{arrow.from_x}" y1="{arrow.from_y}" x2="{arrow.to_x}" y2="{arrow.to_y}" marker-end="url(#tip)"/>'
    return [way, _text(arrow.label_x, arrow.label_y, "way", arrow.label)] if arrow.label else [way]


def picture_pages() -> dict[str, str]:
    """``pictures/parts.svg``."""
    parts = [part for box in BOXES for part in _box(box)] + [part for arrow in ARROWS for part in _arrow(arrow)]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH * 3 // 2}">'
    tip = (
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
        '<path d="M0 0 8 4 0 8Z" fill="#1b2733"/></marker></defs>'
    )
    ground = f'<rect width="{WIDTH}" height="{HEIGHT}" rx="6" fill="#f4f7f9"/>'
    title = "<title>All parts of nodectl, from people and administrators to clocks</title>"
    return {
        "pictures/parts.svg": "\n".join([head, title, f"<style>{STYLE}</style>", tip, ground, *parts, "</svg>", ""])
    }
