"""Inlet temperatures of the racks of a room, from their watts, the weather and the state of the cooling units.

A zone's supply air S stores heat: ``C dS/dt = P + k (mean S - S) - Q``. Its unit removes Q, which is what brings S to
the set point, and at most what its coil and the chiller can. A rack's inlet is supply air with some exhaust in it,
``T_in = S + A (T_out - S)`` with ``T_out = T_in + P / (m c)``, so ``T_in - S = (I - A)^-1 A P / (m c)`` (the heat
recirculation of Tang et al., IEEE TPDS 19(11), 2008). Lost air of a unit lets more exhaust come back.

A step is minutes, in which the air of a rack has long settled, so S alone has a past. EMULATED: no room was measured.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from twin.errors import TwinError
from twin.room.room_failures import Conditions, Floats
from twin.room.room_load import wandering
from twin.room.room_spec import RoomSpec

HOTTEST_C = 60.0
"""Ours: at such a supply the racks have switched themselves off long since."""


@dataclass(frozen=True)
class RoomRecord:
    """A room over time: degrees ``[steps, sensors]`` (racks one after the other, each from the bottom up), outdoors
    ``[steps]``, the supply of zones ``[steps, units]`` and watts ``[steps, racks]``."""

    inlet_c: Floats
    outdoor_c: Floats
    supply_c: Floats
    rack_w: Floats


class RoomAir:
    """The state of a room's air. One call of ``step`` is ``spec.step_s``."""

    def __init__(self, spec: RoomSpec) -> None:
        self.spec = spec
        random = np.random.default_rng(spec.seed)
        self._back = _recirculation(spec, random)
        self._heights = np.asarray(spec.racks.heights)
        self._offset_c = random.normal(0.0, spec.racks.offset_c, spec.n_racks * len(self._heights))
        self.supply_c = np.full(spec.cooling.units, spec.cooling.supply_c)

    def step(self, rack_w: Floats, outdoor_c: float, capacity: Floats, drift_c: float) -> Floats:
        """The supply of each zone after a step at these watts ``[racks]``; ``capacity`` as a share, ``[units]``."""
        of, supply_c = self.spec.cooling, self.supply_c
        heat_w = rack_w.reshape(of.units, -1).sum(1) + of.exchange_w_per_k * (supply_c.mean() - supply_c)
        wanted_c = of.supply_c + drift_c + of.approach * max(outdoor_c - of.mild_c, 0.0)
        needed_w = heat_w + of.zone_j_per_k / of.control_s * (supply_c - wanted_c)
        chiller = max(1.0 - of.derate_per_k * max(outdoor_c - of.derate_from_c, 0.0), 0.0)
        most_w = of.unit_w * capacity * chiller * np.maximum(1.0 + of.gain_per_k * (supply_c - of.supply_c), 0.0)
        removed_w = np.minimum(np.maximum(needed_w, 0.0), most_w)
        warmer_c = supply_c + self.spec.step_s * (heat_w - removed_w) / of.zone_j_per_k
        self.supply_c = np.minimum(warmer_c, HOTTEST_C)
        return self.supply_c

    def inlets(self, supply_c: Floats, rack_w: Floats, air: Floats) -> Floats:
        """True inlet temperatures ``[..., sensors]`` for supplies and air ``[..., units]``, watts ``[..., racks]``."""
        per_unit = self.spec.racks.per_unit
        back_c = rack_w @ self._back.T * (1.0 + self.spec.cooling.bypass * (1.0 - np.repeat(air, per_unit, -1)))
        found = np.repeat(supply_c, per_unit, -1)[..., None] + back_c[..., None] * self._heights
        return np.asarray(found.reshape(*found.shape[:-2], -1))

    def sensed(self, inlet_c: Floats, random: np.random.Generator) -> Floats:
        """What the sensors show, ``[steps, sensors]``, in tenths of a degree."""
        of = self.spec.racks
        wander_c = wandering(
            random, len(inlet_c), of.wander_c, of.wander_h * 3600 / self.spec.step_s, inlet_c.shape[1:]
        )
        noise_c = random.normal(0.0, of.noise_c, inlet_c.shape)
        return np.asarray(np.round(inlet_c + self._offset_c + wander_c + noise_c, 1))


def run(spec: RoomSpec, rack_w: Floats, outdoor_c: Floats, found: Conditions, seed: int) -> RoomRecord:
    """A room under these watts ``[steps, racks]``, weather ``[steps]`` and conditions; ``seed``: of the noise."""
    if rack_w.shape != (len(outdoor_c), spec.n_racks) or not (np.isfinite(rack_w).all() and (rack_w >= 0).all()):
        raise TwinError(f"watts of {spec.n_racks} racks for each of {len(outdoor_c)} steps: finite, from 0 on")
    air = RoomAir(spec)
    outdoor_c = outdoor_c + found.heat_c
    capacity = found.capacity * found.air
    supply_c = np.empty((len(outdoor_c), spec.cooling.units))
    for step, (degrees, drift_c) in enumerate(zip(outdoor_c.tolist(), found.drift_c.tolist(), strict=True)):
        supply_c[step] = air.step(rack_w[step], degrees, capacity[step], drift_c)
    inlet_c = air.sensed(air.inlets(supply_c, rack_w, found.air), np.random.default_rng(seed))
    return RoomRecord(inlet_c, outdoor_c, supply_c, rack_w)


def _recirculation(spec: RoomSpec, random: np.random.Generator) -> Floats:
    """Kelvins at the middle of each rack per watt of each rack, ``[racks, racks]``."""
    of, place = spec.racks, np.arange(spec.n_racks)
    row, column = place // of.per_unit, place % of.per_unit
    apart = np.abs(column[:, None] - column)
    shares = np.where(row[:, None] == row, of.neighbour * np.exp(-(apart - 1.0) / of.reach), of.other_row)
    shares[place, place] = of.own
    shares *= np.exp(random.normal(0.0, of.spread, shares.shape))
    if shares.sum(1).max() >= 0.9:
        raise TwinError("more than nine tenths of a rack's air is exhaust: lower own, neighbour or other_row")
    return np.asarray(np.linalg.solve(np.eye(len(place)) - shares, shares) / of.air_w_per_k)
