"""What truly happened in an emulated partition: figures from the nodes' traces, which neither agent nor sharer sees.

Power is compared with the budget as means over the averaging window of the caps (RAPL's long-term window on the
emulated nodes), since a cap limits only mean power. The budget is averaged over the same window.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from cluster_agent.errors import ClusterError
from lab.emulated.emulated_jobs import Work
from lab.emulated.emulated_node import Truth

Floats: TypeAlias = npt.NDArray[np.float64]

STEP_S: Final = 0.1
"""The time step of all integrals: a tick of the agents."""

ROUNDING_W: Final = 1e-3
"""Caps and budgets are whole milliwatts."""


@dataclass(frozen=True, slots=True)
class NodeTrace:
    """Columns over the lines of one trace. ``cap_w`` and ``limit_w``: NaN before the first grant; ``work``: by tag,
    seconds that jobs ran and that their work takes at the highest clock."""

    name: str
    at_s: Floats
    node_j: Floats
    cap_w: Floats
    limit_w: Floats
    work: dict[str, tuple[Floats, Floats]]


@dataclass(frozen=True, slots=True)
class Steps:
    """A budget as a step function of time."""

    at_s: Floats
    w: Floats

    def mean(self, times_s: Floats, window_s: float) -> Floats:
        """Over the window that ends at each of the times."""
        whole = np.concatenate([[0.0], np.cumsum(self.w[:-1] * np.diff(self.at_s))])

        def integral(at_s: Floats) -> Floats:
            row = np.clip(np.searchsorted(self.at_s, at_s, side="right") - 1, 0, len(self.at_s) - 1)
            found: Floats = whole[row] + self.w[row] * (at_s - self.at_s[row])
            return found

        mean: Floats = (integral(times_s) - integral(times_s - window_s)) / window_s
        return mean


class Over(msgspec.Struct, frozen=True):
    """By how much means over the window exceeded the limit: watts times seconds, and the highest excess."""

    ws: float
    most_w: float


def read_trace(path: Path) -> NodeTrace:
    """Read a trace; ``ClusterError`` if it is empty. An incomplete last line is ignored."""
    lines = path.read_bytes().split(b"\n")[:-1]
    rows = [msgspec.json.decode(line, type=Truth) for line in lines]
    if not rows:
        raise ClusterError(f"{path}: the node wrote no trace")
    tags = sorted({tag for row in rows for tag in row.work})

    def column(values: list[float | None]) -> Floats:
        return np.array([np.nan if value is None else value for value in values], np.float64)

    work = {
        tag: (
            column([row.work.get(tag, (0.0, 0.0))[0] for row in rows]),
            column([row.work.get(tag, (0.0, 0.0))[1] for row in rows]),
        )
        for tag in tags
    }
    return NodeTrace(
        path.stem, column([row.at_s for row in rows]), column([row.node_j for row in rows]),
        column([row.cap_w for row in rows]), column([row.limit_w for row in rows]), work,
    )  # fmt: skip


def grid(begin_s: float, end_s: float) -> Floats:
    """The times at which power is evaluated."""
    return np.arange(begin_s, end_s, STEP_S)


def joules(traces: list[NodeTrace], times_s: Floats) -> Floats:
    """Energy of all nodes since their beginnings."""
    total: Floats = np.sum([np.interp(times_s, one.at_s, one.node_j) for one in traces], axis=0)
    return total


def mean_w(traces: list[NodeTrace], times_s: Floats, window_s: float) -> Floats:
    """True power of all nodes, averaged over the window that ends at each time."""
    mean: Floats = (joules(traces, times_s) - joules(traces, times_s - window_s)) / window_s
    return mean


def over_budget(traces: list[NodeTrace], budget: Steps, begin_s: float, end_s: float, window_s: float) -> Over:
    """Excess of the partition. Windows that began before every node was there are left out."""
    times_s = grid(max(begin_s, max(one.at_s[0] for one in traces) + window_s), end_s)
    return _over(mean_w(traces, times_s, window_s) - budget.mean(times_s, window_s))


def over_limits(traces: list[NodeTrace], begin_s: float, end_s: float, window_s: float) -> Over:
    """Excess of single nodes, each over the highest cap that may be in force there; summed."""
    found = [_over_limit(one, begin_s, end_s, window_s) for one in traces]
    return Over(sum(one.ws for one in found), max(one.most_w for one in found))


def work_of(traces: list[NodeTrace], begin_s: float, end_s: float) -> dict[str, Work]:
    """Work by tag, between the two times."""
    ends = np.array([begin_s, end_s])
    found: dict[str, Work] = {}
    for tag in sorted({tag for one in traces for tag in one.work}):
        ran_s = done_s = 0.0
        for one in traces:
            if tag in one.work:
                ran, done = (np.diff(np.interp(ends, one.at_s, column))[0] for column in one.work[tag])
                ran_s, done_s = ran_s + float(ran), done_s + float(done)
        found[tag] = Work(ran_s, done_s)
    return found


def caps_w(traces: list[NodeTrace], times_s: Floats) -> Floats:
    """The cap that should be in force, ``[n_nodes, n_times]``."""
    return np.array([one.cap_w[_row(one, times_s)] for one in traces])


def _over_limit(one: NodeTrace, begin_s: float, end_s: float, window_s: float) -> Over:
    is_capped = ~np.isnan(one.limit_w)
    if not is_capped.any():
        raise ClusterError(f"{one.name}: the node was never capped")
    limits = Steps(one.at_s[is_capped], one.limit_w[is_capped])
    times_s = grid(max(begin_s, limits.at_s[0] + window_s), end_s)
    return _over(mean_w([one], times_s, window_s) - limits.mean(times_s, window_s))


def _over(excess_w: Floats) -> Over:
    if not excess_w.size:
        raise ClusterError("the run was shorter than the window that caps are averaged over")
    counted_w = np.where(excess_w > ROUNDING_W, excess_w, 0.0)
    return Over(float(counted_w.sum() * STEP_S), float(counted_w.max()))


def _row(one: NodeTrace, times_s: Floats) -> npt.NDArray[np.intp]:
    return np.clip(np.searchsorted(one.at_s, times_s, side="right") - 1, 0, len(one.at_s) - 1)
