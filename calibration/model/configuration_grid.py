"""The configurations of which some are measured and all are predicted: nodes x cores x package caps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from calibration.model.observations import AXES, ModelError, type_f64


class Grid:
    """All combinations of levels. ``points[n, 3]``: nodes, cores per node, cap in watts per package, in that order of
    loops. ``packages``: of a node.

    Coordinates of a point are its logarithms, mapped so that the grid spans -1 to 1 in each.
    """

    def __init__(self, nodes: Sequence[int], cores: Sequence[int], caps_w: Sequence[float], packages: int = 2) -> None:
        for name, levels in zip(AXES, (nodes, cores, caps_w), strict=True):
            if len(set(levels)) < 2:
                raise ModelError(f"the grid has {len(set(levels))} level(s) of {name}: it needs two or more")
            if not all(np.isfinite(level) and level > 0 for level in levels):
                raise ModelError(f"the grid's {name} {list(levels)} are not all finite and above 0")
        if packages < 1:
            raise ModelError(f"a node has {packages} packages: it needs one or more")
        self.packages = packages
        self.points: type_f64 = np.array(list(product(*(sorted(set(each)) for each in (nodes, cores, caps_w)))), float)
        logs = np.log(self.points)
        self._low, self._high = logs.min(axis=0), logs.max(axis=0)

    def __len__(self) -> int:
        return len(self.points)

    def coordinates(self, points: type_f64) -> type_f64:
        """``[n, 3]``: -1 to 1 within the grid."""
        return np.asarray((2 * np.log(points) - self._low - self._high) / (self._high - self._low))


def quadratic(coordinates: type_f64) -> type_f64:
    """Terms of a polynomial of degree 2, ``[n, terms]``: 1, each coordinate, each product of two."""
    count = coordinates.shape[1]
    products = [coordinates[:, i] * coordinates[:, j] for i in range(count) for j in range(i, count)]
    return np.column_stack([np.ones(len(coordinates)), coordinates, *products])
