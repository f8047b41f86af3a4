"""What ``clusterctl models`` does with inlet temperatures: it keeps them, trains from them, and says what is predicted
to the cluster agent, which may lower the budget."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cluster_agent.errors import ClusterError
from cluster_agent.fabric.ask import Place, ask
from cluster_agent.model_service.hazard_run import run_hazard, train_hazard
from cluster_agent.model_service.model_registry import Registry
from cluster_agent.model_service.model_run import ModelState
from cluster_agent.serve.people_protocol import ListNodes, LowerBudget, NodeRow
from cluster_agent.thermal_hazard.inlet_days import keep, kept
from cluster_agent.thermal_hazard.inlet_tables import read_inlets
from foundation.shell.plain_text import say

INLETS: Final = "inlets"
FRESH_S: Final = 120.0
"""Ours: a node that was silent for longer has no reading now."""

JUDGED_DAYS: Final = 30.0
"""Ours: of the readings kept, by so many a run judges: of 3,312 nodes 0.6 GB and 2 s of a processor."""

LOWERED_H: Final = 1.0
"""Ours: requested at each run that predicts a hazard, so the budget rises by itself when no run does any more."""


def train_room(registry: Registry, inlets: Path, share: float) -> list[str]:
    """Train a version from Parquet files, or from what runs have kept; what came of it."""
    if any(inlets.glob("????-??-??.npz")):
        readings, nodes, damaged = kept(inlets, time.time())
        left_out = [f"{inlets}: damaged and left out: {', '.join(damaged)}"] if damaged else []
    else:
        readings, nodes, values = read_inlets(inlets)
        left_out = [f"{inlets}: {values} values that no room has were left out"] if values else []
    version = train_hazard(registry, readings, nodes, share)
    metrics = version.metrics
    return [
        *left_out,
        f"{registry.path / str(version.card.version)}: trained on {version.card.jobs} hours of {len(nodes)} nodes",
        f"on the last {metrics.judged}, unseen: wrong in {metrics.error:.4f} of them, the last value in"
        f" {metrics.nearest_error:.4f}",
    ]


def run_rooms(rooms: Sequence[Registry], folder: Path, socket: Place, lowers: bool) -> list[ModelState]:
    """Keep the inlet temperatures of now, run these models, and have the budget lowered where a hazard is predicted.
    What goes wrong is said, and lowers nothing."""
    now_s, inlets = time.time(), folder / INLETS
    try:
        _keep(inlets, now_s, ask(socket, ListNodes()))
    except ClusterError as error:
        if rooms:
            say(f"{error}: no inlet temperatures of now")
    if not rooms:
        return []
    readings, nodes, damaged = kept(inlets, now_s, JUDGED_DAYS)
    if damaged:
        say(f"{inlets}: damaged and left out: {', '.join(damaged)}")
    found = [run_hazard(one, readings, nodes) for one in rooms]
    for one in found:
        if one.hazard is not None and one.hazard.is_alarm:
            say(f"{one.name}: ALARM: {one.hazard.words}")
            if lowers:
                _lower(socket, one.name, one.hazard.words)
    return found


def _keep(inlets: Path, now_s: float, rows: Sequence[NodeRow]) -> None:
    fresh = [row for row in rows if row.heard_s_ago is not None and row.heard_s_ago <= FRESH_S]
    inlet_c = {row.name: row.inlet_c for row in fresh if row.inlet_c is not None}
    if inlet_c:
        keep(inlets, now_s, inlet_c, sum(row.draws_w or 0.0 for row in fresh))


def _lower(socket: Place, name: str, words: str) -> None:
    try:
        answer = ask(socket, LowerBudget(LOWERED_H, f"model {name}: {words}"[:1000]))
        say(f"{name}: {'; '.join(answer)}")
    except ClusterError as error:
        say(f"{name}: {error}")
