"""Schedulers that speak Batsim's protocol: one that is written out here, and pybatsim's own, driven without a socket.

This file is run by the Python that has pybatsim, too: ``python foreign_schedulers.py NAME < jobs.json`` prints what
pybatsim's class decides when a plain loop calls it.
"""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from importlib import import_module
from typing import Any

Event = dict[str, Any]


class InTurn:
    """First come, first served, on the free processors with the lowest numbers; ``consecutive``: on the first ones that
    have no gap. ``told`` is all that it was told."""

    def __init__(self, consecutive: bool = False) -> None:
        self.told: list[Event] = []
        self._consecutive = consecutive
        self._queue: deque[tuple[str, int]] = deque()
        self._free: set[int] = set()
        self._busy: dict[str, list[int]] = {}

    def ask(self, message: bytes) -> bytes:
        given = json.loads(message)
        self.told += given["events"]
        starts: list[Event] = []
        for event in given["events"]:  # one by one, as pybatsim does: what a later one frees may have lower numbers
            self._hear(event["type"], event["data"])
            starts += self._starts(given["now"])
        return json.dumps({"now": given["now"], "events": starts}).encode()

    def _hear(self, kind: str, data: Any) -> None:
        if kind == "SIMULATION_BEGINS":
            self._free = set(range(data["nb_resources"]))
        elif kind == "JOB_SUBMITTED":
            self._queue.append((data["job_id"], data["job"]["res"]))
        elif kind == "JOB_COMPLETED":
            self._free |= set(self._busy.pop(data["job_id"]))

    def _starts(self, now: float) -> list[Event]:
        starts = []
        while self._queue and (place := self._place(self._queue[0][1])):
            name, _ = self._queue.popleft()
            self._busy[name] = place
            self._free -= set(place)
            data = {"job_id": name, "alloc": " ".join(map(str, place))}
            starts.append({"timestamp": now, "type": "EXECUTE_JOB", "data": data})
        return starts

    def _place(self, width: int) -> list[int] | None:
        free = sorted(self._free)
        for first in range(len(free) - width + 1):
            if not self._consecutive or free[first + width - 1] == free[first] + width - 1:
                return free[first : first + width]
        return None


# --- with pybatsim


class Loop:
    """What pybatsim's classes see of Batsim: ``scheduler.bs``."""

    def __init__(self, scheduler: Any, processors: int) -> None:
        self.nb_resources = self.nb_compute_resources = processors
        self.started: list[tuple[str, int, str]] = []
        self._now_s = 0
        self._begin: Callable[[str], None] = lambda name: None
        scheduler.bs = self
        self._scheduler = scheduler
        scheduler.onAfterBatsimInit()

    def time(self) -> float:
        return float(self._now_s)

    def execute_jobs(self, jobs: list[Any]) -> None:
        for job in jobs:
            self.started.append((job.id, self._now_s, str(job.allocation)))
            self._begin(job.id)

    def run(self, job_type: Any, jobs: list[dict[str, Any]]) -> None:
        """All jobs: at each instant first the ends, in the order of the starts, then the submissions."""
        coming = deque(jobs)
        ends: list[tuple[int, int, str]] = []
        made: dict[str, Any] = {}
        by_name = {job["id"]: job for job in jobs}
        self._begin = lambda name: heappush(ends, (self._now_s + by_name[name]["run_s"], len(self.started), name))
        while coming or ends:
            self._now_s = min([job["subtime"] for job in list(coming)[:1]] + [end[0] for end in ends[:1]])
            happens = []
            while ends and ends[0][0] == self._now_s:
                happens.append((self._scheduler.onJobCompletion, made[heappop(ends)[2]]))
            while coming and coming[0]["subtime"] == self._now_s:
                job = coming.popleft()
                made[job["id"]] = job_type.from_json_dict(job)
                happens.append((self._scheduler.onJobSubmission, made[job["id"]]))
            for call, one in happens:
                call(one)


def main() -> None:
    """``easyBackfill EasyBackfill``: module and class."""
    given, job_type = json.load(sys.stdin), import_module("batsim.batsim").Job
    scheduler = getattr(import_module(f"schedulers.{sys.argv[1]}"), sys.argv[2])({})
    loop = Loop(scheduler, given["processors"])
    loop.run(job_type, given["jobs"])
    print(json.dumps(loop.started))


if __name__ == "__main__":
    main()
