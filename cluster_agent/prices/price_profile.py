"""A profile of watts from prices: many watts while power is cheap or clean, few while it is not.

A price gives watts by its rank: the share of the time in which power is cheaper. The cheapest time gets ``most_w``, the
dearest ``least_w``, and what is between is linear in the share. So one hour of an extreme price, or a negative one,
leaves the others as they are. No standard says how a tariff maps to watts: the line is ours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec

from cluster_agent.errors import WrongUseError
from cluster_agent.prices.price_table import Spell

MOST_STEPS: Final = 10_000
"""Ours: a schedule under more would take long."""


class Step(msgspec.Struct, frozen=True):
    """From then on so many watts, and so many cores (None: nothing is said of cores)."""

    from_s: int
    watts: float
    cores: int | None = None


class Bounds(msgspec.Struct, frozen=True):
    """Of a profile. ``gap_w``: where the price is unknown; None: that is an error. ``cores``: of the machine, of which
    a step has the share that its watts have of ``most_w``."""

    least_w: float
    most_w: float
    gap_w: float | None = None
    cores: int | None = None


def cut(spells: Sequence[Spell], begin_s: int | None, length_s: int | None) -> list[Spell]:
    """What lies in the window, with its times counted from ``begin_s``; None: everything, in Unix seconds."""
    first_s = spells[0].from_s if begin_s is None else begin_s
    last_s = spells[-1].to_s if length_s is None else first_s + length_s
    zero_s = begin_s or 0
    return [
        Spell(max(one.from_s, first_s) - zero_s, min(one.to_s, last_s) - zero_s, one.value)
        for one in spells
        if one.to_s > first_s and one.from_s < last_s
    ]


def steps_of(where: str, spells: Sequence[Spell], bounds: Bounds) -> list[Step]:
    """The profile; at its end it goes on with ``most_w``, since nothing is known then. ``WrongUseError`` for a gap."""
    known = [one for one in spells if not math.isnan(one.value)]
    if not known:
        raise WrongUseError(f"{where}: no value in this window; choose another --begin or --days")
    if bounds.gap_w is None and len(known) < len(spells):
        gap = next(one for one in spells if math.isnan(one.value))
        raise WrongUseError(
            f"{where}: no value from {gap.from_s} to {gap.to_s} s: complete the table, or give watts for it with --gap"
        )
    share = _dearness(known)
    steps: list[Step] = []
    for one in spells:
        watts = bounds.gap_w if math.isnan(one.value) else _between(bounds, share[one.value])
        assert watts is not None
        steps.append(_step(one.from_s, watts, bounds))
    steps.append(_step(spells[-1].to_s, bounds.most_w, bounds))
    merged = [step for at, step in enumerate(steps) if not at or step.watts != steps[at - 1].watts]
    if merged[-1].from_s != spells[-1].to_s:
        merged.append(steps[-1])
    if len(merged) > MOST_STEPS:
        raise WrongUseError(f"{where}: {len(merged)} steps, and a profile has at most {MOST_STEPS}; give fewer --days")
    return merged


def written(steps: Sequence[Step], remarks: Sequence[str] = ()) -> str:
    """The file: ``from_s,watts`` and, if steps have them, cores. Remarks are comments above."""
    names = "from_s,watts" if steps[0].cores is None else "from_s,watts,cores"
    rows = [f"{step.from_s},{step.watts:.12g}" + ("" if step.cores is None else f",{step.cores}") for step in steps]
    return "\n".join([*(f"# {remark}" for remark in remarks), names, *rows, ""])


def _dearness(known: Sequence[Spell]) -> dict[float, float]:
    """Of each price: the share of the other time in which power is cheaper, 0 to 1."""
    lasts: dict[float, int] = {}
    for one in known:
        lasts[one.value] = lasts.get(one.value, 0) + one.to_s - one.from_s
    total, cheaper_s, share = sum(lasts.values()), 0, {}
    for value in sorted(lasts):
        share[value] = cheaper_s / max(total - lasts[value], 1)
        cheaper_s += lasts[value]
    return share


def _between(bounds: Bounds, dearness: float) -> float:
    return round(bounds.most_w - (bounds.most_w - bounds.least_w) * dearness)


def _step(from_s: int, watts: float, bounds: Bounds) -> Step:
    if bounds.cores is None:
        return Step(from_s, watts)
    return Step(from_s, watts, math.floor(bounds.cores * min(watts / bounds.most_w, 1.0)))
