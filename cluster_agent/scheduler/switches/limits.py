"""Limits, partitions, memory, reservations and windows of queues as columns of jobs, and as the engine takes them
(``csrc/resources/site_limits.h``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from cluster_agent._native import ffi, lib
from cluster_agent.scheduler.job_columns import Bools, Int32s, Int64s
from cluster_agent.scheduler.native.native_tables import pointer
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.power_phases import Power
from cluster_agent.scheduler.switches.queue_windows import NOWHERE, OpenQueues
from cluster_agent.scheduler.switches.reservations import Reserved

UNCOUNTED: Final = np.iinfo(np.int64).max
"""Memory of a machine whose memory is not counted."""

CHANGED: Final = {
    "partitions": lib.CHANGED_BY_PARTITIONS,
    "limits": lib.CHANGED_BY_LIMITS,
    "memory": lib.CHANGED_BY_MEMORY,
    "reservations": lib.CHANGED_BY_RESERVATIONS,
    "windows": lib.CHANGED_BY_WINDOWS,
}


class Limits(msgspec.Struct, frozen=True):
    """Of the jobs of a world. Empty columns: there is no such switch."""

    switches: tuple[str, ...]
    """Which there are, of ``CHANGED``."""
    has: Int64s
    """``has[partition]``: processors, and KiB of memory."""
    partition: Int32s
    memory_kib: Int64s
    most: Int64s
    """Of each counter: how many jobs of the same user or queue may run at once, or their processors."""
    counts_jobs: Bools
    counter: Int32s
    """``counter[job, key]``: where the job counts; -1: nowhere."""
    reserved: Sequence[Reserved] = ()
    pool: Int32s = np.zeros(0, np.int32)
    """Of each job, only with reservations: 1 + its place in ``reserved``; 0: it has none."""
    reserved_sha256: str = ""
    """Of the file that they are in."""
    queues: OpenQueues = NOWHERE
    """Those that have windows."""
    open: Int32s = np.zeros(0, np.int32)
    """Of each job, only with such queues: 1 + its place among them; 0: it may run at any time."""

    def only(self, rows: Int64s | Bools) -> Limits:
        """Those of the jobs ``rows``."""
        return self._each(lambda column: column[rows])

    def _each(self, of: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]) -> Limits:
        some = {"pool": bool(self.reserved), "open": bool(self.queues.windows)}
        names = ("partition", "memory_kib", "counter", *(name for name, is_there in some.items() if is_there))
        columns = {name: of(getattr(self, name)) for name in names}
        return msgspec.structs.replace(self, **columns)


class CLimits:
    """``limits_t``, with the columns that it points to. ``table`` turns a column of the jobs into one that is filled in
    as they come."""

    def __init__(
        self, limits: Limits, table: Callable[[npt.NDArray[Any]], npt.NDArray[Any]] = lambda column: column
    ) -> None:
        limits = limits._each(table)
        self._switches = limits.switches
        self._changed = np.zeros(len(limits.counter), np.uint8)
        has_partitions = bool({"partitions", "memory"} & set(limits.switches))
        columns = {
            "has": ("int64_t", limits.has),
            "partition": ("int32_t", limits.partition),
            "memory_kib": ("int64_t", limits.memory_kib),
            "most": ("int64_t", limits.most),
            "counts_jobs": ("uint8_t", limits.counts_jobs),
            "counter": ("int32_t", limits.counter),
            "changed": ("uint8_t", self._changed),
            "pool": ("int32_t", limits.pool),
            "open": ("int32_t", limits.open),
        }
        counts = {
            "n_partitions": len(limits.has) if has_partitions else 0,
            "n_counters": len(limits.most),
            "n_keys": limits.counter.shape[1],
        }
        self._pointers = {name: pointer(kind, np.ascontiguousarray(column)) for name, (kind, column) in columns.items()}
        """These keep the columns that are copies."""
        self._reserved = ffi.new("booking_t[]", limits.reserved)
        reserved = {"n_reserved": len(limits.reserved), "reserved": self._reserved}
        self.c = ffi.new("limits_t *", counts | reserved | self._pointers)
        self.open(limits.queues)

    def reserve(self, reserved: Sequence[Reserved]) -> None:
        """The reservations that there are now; those before keep their places."""
        self._reserved = ffi.new("booking_t[]", reserved)
        self.c.reserved, self.c.n_reserved = self._reserved, len(reserved)
        self._switches = tuple(dict.fromkeys((*self._switches, "reservations")))

    def open(self, queues: OpenQueues) -> None:
        """These are the windows of the same queues from now on."""
        self._opens, self._windows = ffi.new("int32_t[]", queues.opens.tolist()), ffi.new("window_t[]", queues.windows)
        self.c.opens, self.c.windows = self._opens, self._windows
        self.c.n_open = max(len(queues.opens) - 1, 0)

    @property
    def switches(self) -> dict[str, int]:
        """How many jobs each switch has changed so far."""
        return {name: int((self._changed & CHANGED[name] > 0).sum()) for name in self._switches}


def clash_of(composition: Composition, switches: tuple[str, ...]) -> str | None:
    """Why the policy does not go with these switches; None: it does."""
    can_plan_all = set(switches) <= {"reservations", "windows", "best_effort"}
    backfills = ("none", "easy", "list", *(["conservative"] if can_plan_all else []))
    reasons = {
        f"backfill={composition.backfill}": composition.backfill not in backfills,
        "ties=sc15": composition.ties == "sc15",
        "guard": composition.guard is not None,
        "a portfolio": composition.portfolio is not None,
        "a plan": composition.plan is not None,
        "a policy that knows watts": composition.power is not None and (not can_plan_all or "best_effort" in switches),
        **_of_watts(composition.power),
        "idle_off_s": composition.idle_off_s is not None,
    }
    return next((f"{name} does not go with {', '.join(switches)}" for name, is_so in reasons.items() if is_so), None)


def _of_watts(power: Power | None) -> dict[str, bool]:
    """What a policy may do with watts that makes jobs end later than planned, or takes nodes that are reserved."""
    if power is None:
        return {}
    return {
        "a reaction to caps": power.react is not None,
        "a mode that switches nodes off": power.idle is not None,
        "a budget of joules": power.budget is not None,
        "metered=true": power.meters,
    }
