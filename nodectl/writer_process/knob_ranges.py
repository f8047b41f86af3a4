"""The range of each knob, found once at the writer's start: no request is written outside of it.

It is the hardware's own range. That a limit is never written looser than it was found is the writer's rule, whoever
requests it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from nodectl.knobs import Knob, KnobError
from nodectl.knobs.package_power_limit import PackageLimit
from nodectl.knobs.registry import DOMAINS, domain_of
from nodectl.writer_process.writer_protocol import MOST_VALUE
from pmu.layout import Layout

type_range = tuple[int, int]

LEAST_PACKAGE_UW: Final = 1_000_000
"""Ours: no package works below a watt, and the register's 0 means "no limit" to some firmware."""


def ranges(layout: Layout, knobs: Iterable[Knob]) -> dict[str, type_range]:
    """Lowest and highest value of each knob; a knob without a range of its own takes any positive number."""
    rows = [row for domain in DOMAINS.values() for row in domain.rows(layout)]
    known = {name: (row.low, row.high) for row in rows for name in row.names}
    for gpu in layout.gpus:
        low, high = _milliwatts(gpu.min_power_limit_w), _milliwatts(gpu.max_power_limit_w)
        known[f"gpu/{gpu.index}/power_limit_mw"] = low, high
    return {knob.name: _sound(_range(layout, knob) or known.get(knob.name) or (1, MOST_VALUE)) for knob in knobs}


def _range(layout: Layout, knob: Knob) -> type_range | None:
    domain = DOMAINS.get(domain_of(knob.name))
    if domain and domain.range_of:
        try:
            row = domain.range_of(knob, layout)
        except KnobError:
            return None
        return row.low, row.high
    if isinstance(knob, PackageLimit):
        return LEAST_PACKAGE_UW, knob.highest() or MOST_VALUE
    return None


def path_of(knob: Knob) -> str:
    """The file that a knob is, "" where it is none."""
    path = getattr(knob, "path", "")
    return path if isinstance(path, str) else ""


def card_of(knob: Knob) -> str:
    """The UUID of the GPU that a knob belongs to, "" where it is none's."""
    uuid = getattr(knob, "uuid", "")
    return uuid if isinstance(uuid, str) else ""


def _milliwatts(watts: float) -> int:
    return round(watts * 1000) if 0 < watts < 1e6 else 0


def _sound(found: type_range) -> type_range:
    """0 stands for a bound that the hardware does not tell."""
    low, high = found
    return max(low, 1), high if high >= max(low, 1) else MOST_VALUE
