"""``/api``: the structs that ``--json`` of the commands prints, of what the viewer may see."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from cluster_agent.page.snapshot import Snapshot

ANSWERS: Final[Mapping[str, Callable[[Snapshot], Any]]] = {
    "alarms": lambda snapshot: snapshot.alarms,
    "budget": lambda snapshot: snapshot.budget,
    "budget-log": lambda snapshot: snapshot.changes,
    "energy": lambda snapshot: snapshot.energy,
    "history": lambda snapshot: snapshot.ended,
    "jobs": lambda snapshot: snapshot.jobs,
    "nodes": lambda snapshot: snapshot.nodes,
    "power": lambda snapshot: [msgspec.structs.asdict(point) for point in snapshot.power],
    "starts": lambda snapshot: snapshot.predicted,
    "running": lambda snapshot: snapshot.running,
    "state": lambda snapshot: {
        "partition": snapshot.partition,
        "taken_s": snapshot.taken_s,
        "lost_since_s": snapshot.lost_since_s,
        "lost_why": snapshot.lost_why,
        "has_jobs": snapshot.has_jobs,
    },
}
"""What each address gives: ``clusterctl nodes``, ``jobs``, ``budget show``, ``budget log`` and ``history show``; jobs
of other managers that run; predicted starts of jobs that are not planned; alarms, power over time and energy by user as
the page shows them; and how old all is."""


def api(path: str, snapshot: Snapshot) -> bytes | None:
    """JSON for a path below ``/api``; None: there is none such. Of one node as ``clusterctl why``, of one job as
    ``clusterctl jobs ID``."""
    first, _, about = path.strip("/").partition("/")
    if first == "nodes" and about:
        return msgspec.json.encode(snapshot.why[about]) if about in snapshot.why else None
    if first == "jobs" and about:
        if snapshot.job is None or str(snapshot.job[0].job) != about:
            return None
        return msgspec.json.encode({"row": snapshot.job[0], "job": snapshot.job[1]})
    if about:
        return None
    if not first:
        return msgspec.json.encode({"answers": sorted(ANSWERS)})
    return msgspec.json.encode(ANSWERS[first](snapshot)) if first in ANSWERS else None
