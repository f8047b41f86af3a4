"""Profit, by Bridi's model (PhD thesis, Bologna 2018, ch. 6): G - (W + J).

G   what is earned: the core-hours that jobs get within the window, times a price
W   what the jobs' energy costs
J   what cooling it costs: in each segment of time W x (PUE - 1), PUE at the segment's mean IT power and temperature

Times outside of the window earn and cost nothing. His segments are spans within 5 degrees; ours are hours, and end
where the price of power changes. He leaves out what nodes draw without jobs, and their boots: these are counted apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from cluster_agent.errors import WrongUseError
from cluster_agent.prices.cooling import PueTable, Temperatures
from cluster_agent.prices.price_table import Spell
from cluster_agent.scheduler.job_columns import Float64s, Int64s

HOUR_S: Final = 3600
J_PER_KWH: Final = 3.6e6

CHEAP, EXPENSIVE = 0.013, 0.10
"""EUR per core-hour (thesis, ch. 6)."""

POWER: Final = 0.13
"""EUR per kWh (thesis, ch. 6)."""


class Tariff(msgspec.Struct, frozen=True):
    """``core_hour``: EUR that a job pays. ``kwh``: EUR for power; ``spells`` instead if it changes (seconds of the
    log)."""

    core_hour: float = EXPENSIVE
    kwh: float = POWER
    spells: tuple[Spell, ...] = ()


class Site(msgspec.Struct, frozen=True):
    """What decides costs, other than jobs."""

    tariff: Tariff
    pue: PueTable
    temperatures: Temperatures


class Window(msgspec.Struct, frozen=True):
    """Segments ``edges[k]`` to ``edges[k + 1]``, with the price and the temperature of each."""

    edges: Int64s
    kwh: Float64s
    celsius: Float64s
    core_hour: float
    pue: PueTable

    def cooling_kwh(self, kwh: Float64s) -> Float64s:
        """What cooling takes for so much IT energy, per segment."""
        mean_w = kwh * J_PER_KWH / np.diff(self.edges)
        share: list[float] = [self.pue.at(*one) - 1 for one in zip(self.celsius.tolist(), mean_w.tolist(), strict=True)]
        cooling: Float64s = kwh * np.array(share)
        return cooling


class Profit(msgspec.Struct, frozen=True):
    """EUR in a window."""

    earned: float  # G
    power: float  # W
    cooling: float  # J

    @property
    def total(self) -> float:
        """G - (W + J)."""
        return self.earned - self.power - self.cooling

    def __add__(self, other: Profit) -> Profit:
        return Profit(self.earned + other.earned, self.power + other.power, self.cooling + other.cooling)


NONE: Final = Profit(0.0, 0.0, 0.0)


def window(site: Site, from_s: int, to_s: int) -> Window:
    """The segments from ``from_s`` to ``to_s``; ``WrongUseError`` if a price or a temperature is missing there."""
    spells = site.tariff.spells
    changes = [one.from_s for one in spells if from_s < one.from_s < to_s]
    edges = np.unique([from_s, *range(from_s - from_s % HOUR_S + HOUR_S, to_s, HOUR_S), *changes, to_s])
    begins = edges[:-1].tolist()
    celsius = [site.temperatures.at(begin) for begin in begins]
    kwh = [_price(spells, begin) if spells else site.tariff.kwh for begin in begins]
    return Window(edges, np.array(kwh), np.array(celsius), site.tariff.core_hour, site.pue)


def profit(of: Window, start_s: Int64s, run_s: Int64s, cores: Int64s, watts: Float64s) -> Profit:
    """Of jobs with these starts, per job; one that starts after the window counts nothing."""
    gone_s = np.clip(of.edges[:, None] - start_s, 0, run_s)
    kwh = np.diff(gone_s @ watts) / J_PER_KWH
    core_h = float((gone_s[-1] - gone_s[0]) @ cores) / HOUR_S
    return Profit(core_h * of.core_hour, float(kwh @ of.kwh), float(of.cooling_kwh(kwh) @ of.kwh))


def idle(of: Window, without_j: npt.NDArray[np.float64], jobs_kwh: Float64s) -> Profit:
    """What joules without jobs, per segment, cost on top of those of jobs."""
    kwh = without_j / J_PER_KWH
    more = of.cooling_kwh(jobs_kwh + kwh) - of.cooling_kwh(jobs_kwh)
    return Profit(0.0, float(kwh @ of.kwh), float(more @ of.kwh))


def _price(spells: Sequence[Spell], at_s: int) -> float:
    for one in spells:
        if one.from_s <= at_s < one.to_s and one.value == one.value:  # NaN: unknown
            return one.value
    raise WrongUseError(f"no price of power at second {at_s}: complete --prices, or choose other days")
