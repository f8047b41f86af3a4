"""All measurements that publish rows, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from benchmarks.publishing import ahead, causes, cluster, controller, node, peers, room, scheduler, stepped
from benchmarks.publishing.rows import Measurement

MEASUREMENTS: Final[Mapping[str, Measurement]] = {
    one.name: one
    for room in (ahead, causes, node, peers, scheduler, stepped, cluster, room, controller)
    for one in room.MEASUREMENTS
}
