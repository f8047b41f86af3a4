"""The 76-state thermal network of the ControlPULP plant, discretised once.

36 tiles of 1.5 x 3.3 mm in six rows of six, each a silicon and a copper node; above them an aluminium heat sink, below
them the package board and the motherboard, and around all the air in the case. Dimensions, materials and the
integration (forward Euler at 50 us) are the published ones (pulp-platform, pulp_hpc_cosim, the C plant of the
ControlPULP papers). Ours are the thermal interface between copper and sink and the two air flows, chosen so that 250 W
settle at about 80 C; with the published flows the die stays above 100 C at that power.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

ROWS = COLUMNS = 6
CORES = ROWS * COLUMNS
SINK, BOARD, MOTHERBOARD, AIR = range(2 * CORES, 2 * CORES + 4)
STATES = AIR + 1
STEP_S = 50e-6

TILE_M = (1.5e-3, 3.3e-3)
"""Width and height of a core's tile."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A material of the stack: thickness in m, conductivity in W/(m K), heat capacity in J/(m3 K)."""

    thickness_m: float
    conductivity: float
    capacity: float

    def capacity_j_per_k(self, area_m2: float) -> float:
        """Heat capacity of a slab of this layer."""
        return self.capacity * area_m2 * self.thickness_m

    def across(self, area_m2: float) -> float:
        """Resistance of half the thickness, K/W."""
        return self.thickness_m / 2 / (self.conductivity * area_m2)


SILICON = Layer(0.5e-3, 127.0, 1.7243e6)
COPPER = Layer(1e-3, 398.5, 3.4794e6)
ALUMINIUM = Layer(15e-3, 225.94, 921 * 2698)
PACKAGE = Layer(1e-3, 3.096, 753 * 2900)
FIBRE = Layer(2e-3, 0.167, 795 * 1900)

SINK_M2, PACKAGE_M2, MOTHERBOARD_M2 = 0.0416**2, 0.0366**2, 0.10**2
AIR_J_PER_K = 1004 * 1.29 * 1.5 * 0.20 * 0.20 * 0.10
INTERFACE_K_PER_W = 2.0  # ours: a tile's copper to the sink
SINK_FAN_W_PER_K = 10.0  # published
CASE_FAN_W_PER_K = 20.0  # ours (published 0.25 of the air per second: 2 W/K)
SILICON_TO_BOARD_SHARE = 0.1  # published: solder balls cover a part of the die
MOTHERBOARD_TO_AIR_W_PER_K = 0.5  # ours, of the order of the published natural convection


def conductances() -> NDArray[np.float64]:
    """Symmetric matrix of W/K between the nodes; ambient is not a node."""
    g = np.zeros((STATES, STATES))

    def join(a: int, b: int, w_per_k: float) -> None:
        g[a, b] += w_per_k
        g[b, a] += w_per_k

    width, height = TILE_M
    tile = width * height
    for core in range(CORES):
        row, column = divmod(core, COLUMNS)
        join(core, CORES + core, 1 / (SILICON.across(tile) + COPPER.across(tile)))
        join(CORES + core, SINK, 1 / (COPPER.across(tile) + INTERFACE_K_PER_W))
        join(core, BOARD, SILICON_TO_BOARD_SHARE / (SILICON.across(tile) + PACKAGE.across(tile)))
        for first, layer in ((0, SILICON), (CORES, COPPER)):
            if column + 1 < COLUMNS:
                join(first + core, first + core + 1, layer.conductivity * layer.thickness_m * height / width)
            if row + 1 < ROWS:
                join(first + core, first + core + COLUMNS, layer.conductivity * layer.thickness_m * width / height)
    join(SINK, AIR, SINK_FAN_W_PER_K)
    join(BOARD, MOTHERBOARD, 1 / (PACKAGE.across(PACKAGE_M2) + FIBRE.across(PACKAGE_M2)))
    join(MOTHERBOARD, AIR, MOTHERBOARD_TO_AIR_W_PER_K)
    return g


def capacities() -> NDArray[np.float64]:
    """Heat capacity of each node, J/K."""
    tile = TILE_M[0] * TILE_M[1]
    c = np.empty(STATES)
    c[:CORES] = SILICON.capacity_j_per_k(tile)
    c[CORES : 2 * CORES] = COPPER.capacity_j_per_k(tile)
    c[SINK] = ALUMINIUM.capacity_j_per_k(SINK_M2)
    c[BOARD] = PACKAGE.capacity_j_per_k(PACKAGE_M2)
    c[MOTHERBOARD] = FIBRE.capacity_j_per_k(MOTHERBOARD_M2)
    c[AIR] = AIR_J_PER_K
    return c


def discrete(cooling: float = 1.0) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """State matrix of one step, temperature per watt and step of each core, and the gain of ambient on the air.

    ``cooling`` scales both air flows.
    """
    g, c = conductances(), capacities()
    g[SINK, AIR] *= cooling
    g[AIR, SINK] *= cooling
    to_ambient = np.zeros(STATES)
    to_ambient[AIR] = CASE_FAN_W_PER_K * cooling
    flow = (g - np.diag(g.sum(axis=1) + to_ambient)) / c[:, np.newaxis]
    return np.eye(STATES) + STEP_S * flow, STEP_S / c[:CORES], float(STEP_S * to_ambient[AIR] / c[AIR])


def steady(power_w: NDArray[np.float64], ambient_c: float, cooling: float = 1.0) -> NDArray[np.float64]:
    """Steady temperatures of the network under constant core powers."""
    matrix, per_w, ambient_gain = discrete(cooling)
    source = np.zeros(STATES)
    source[:CORES] = per_w * power_w
    source[AIR] = ambient_gain * ambient_c
    return np.asarray(np.linalg.solve(np.eye(STATES) - matrix, source))
