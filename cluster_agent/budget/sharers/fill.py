"""Water-filling in whole milliwatts: one level for all, each within its own bounds."""

from __future__ import annotations

import numpy as np

from cluster_agent.budget.sharers.view import Ints


def fill(total_mw: int, low_mw: Ints, high_mw: Ints, weight: Ints, offset_mw: Ints) -> Ints:
    """Caps ``clip(offset + level * weight, low, high)`` with the one level at which they add up to ``total_mw``.

    They add up to it exactly if it lies between the sums of the bounds, else to the nearer of the two sums. Milliwatts
    that cannot be split go to the caps that lost most by rounding, the first ones first. All columns are equally long;
    weights
    above 0.
    """
    if total_mw >= int(high_mw.sum()):
        return high_mw.copy()
    if total_mw <= int(low_mw.sum()):
        return low_mw.copy()
    enters, leaves = (low_mw - offset_mw) / weight, (high_mw - offset_mw) / weight
    corners = np.concatenate((enters, leaves))
    order = np.argsort(corners, kind="stable")
    slope_change = np.concatenate((weight, -weight)).astype(np.float64)[order]
    corner = corners[order]
    slope = np.cumsum(slope_change)
    reached = int(low_mw.sum()) + np.concatenate(([0.0], np.cumsum(slope[:-1] * np.diff(corner))))
    at = int(np.searchsorted(reached, total_mw, side="right")) - 1
    level = corner[at] + (total_mw - reached[at]) / slope[at] if slope[at] > 0 else corner[at]
    exact = np.clip(offset_mw + level * weight, low_mw, high_mw)
    caps: Ints = np.floor(exact).astype(np.int64)
    rest = total_mw - int(caps.sum())
    while rest != 0:  # the rest is less than 1 mW for each cap: one round or two
        step = 1 if rest > 0 else -1
        most_cut = np.argsort(step * (caps - exact), kind="stable")
        movable = most_cut[(caps < high_mw)[most_cut] if step > 0 else (caps > low_mw)[most_cut]][: abs(rest)]
        caps[movable] += step
        rest -= step * len(movable)
    return caps
