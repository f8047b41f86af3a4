"""The messages of Batsim 3 and 4, in JSON: what a simulator says, and what its scheduler answers.

A message is a time and events, each with its own time and type: ``{"now": 12.0, "events": [{"timestamp": 12.0, "type":
"EXECUTE_JOB", "data": {"job_id": "w0!7", "alloc": "0-3 7"}}]}``. The times of events ascend, and none is after ``now``.
Sources: Batsim's docs/protocol.rst, and what pybatsim 3.2.1 sends and expects (batsim/batsim.py).
"""

from __future__ import annotations

import re
from typing import Any, Final, TypeAlias

import msgspec

from cluster_agent.errors import SchedulerError
from cluster_agent.workloads.job_log import LONGEST_S

WORKLOAD: Final = "w0"
"""A job is called ``w0!7`` there: a workload, and the number of the job in it."""
PROFILE: Final = "log"
"""What a job does, in Batsim's terms. Here it runs for as long as the log says, which a scheduler does not learn."""
LONGEST_QUOTE: Final = 200

Intervals: TypeAlias = list[tuple[int, int]]
"""Processors from one to another, both included."""


class Event(msgspec.Struct):
    """One event of an answer."""

    timestamp: float
    type: str
    data: dict[str, Any] = {}

    def wrong(self, why: str) -> SchedulerError:
        """The error for it, with its text."""
        text = msgspec.json.encode(self).decode()
        if len(text) > LONGEST_QUOTE:
            text = f"{text[:LONGEST_QUOTE]}… ({len(text)} characters)"
        return SchedulerError(f"the scheduler's {self.type} cannot be carried out: {why}: {text}")

    def value(self, key: str, kind: Any) -> Any:
        """Of its data. ``SchedulerError`` if it is missing, or of another type."""
        found = self.data.get(key, msgspec.UNSET)
        if type(found) is kind:
            return found
        try:
            return msgspec.convert(found, kind)
        except msgspec.ValidationError:
            names = {str: "a text", float: "a number", dict[str, Any]: "an object"}
            raise self.wrong(f"{key} is {names.get(kind, 'a list of texts')}, and must be there") from None


class Answer(msgspec.Struct):
    """What the scheduler decides in answer to one message."""

    now: float
    events: list[Event]


class Said(msgspec.Struct):
    """One event of ours."""

    timestamp: float
    type: str
    data: dict[str, Any]


class Message(msgspec.Struct):
    """What is sent."""

    now: float
    events: list[Said]


_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(Answer)


def encoded(now: float, events: list[Said]) -> bytes:
    """A message."""
    return _ENCODER.encode(Message(now, events))


def decoded(content: bytes, now: float) -> Answer:
    """The answer to a message of ``now``. ``SchedulerError`` if it is none, or its times go back."""
    try:
        answer = _DECODER.decode(content)
    except msgspec.ValidationError as error:
        raise SchedulerError(f"the scheduler's answer is no message of Batsim's: {error}: {_quoted(content)}") from None
    except RecursionError:
        raise SchedulerError(f"the scheduler's answer is nested too deeply: {_quoted(content)}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SchedulerError(
            f"the scheduler's answer is not JSON ({error}), which Batsim 3 and 4 speak and Batsim 5 does not:"
            f" {_quoted(content)}"
        ) from None
    last = now
    for event in answer.events:
        if not event.timestamp >= last:
            raise event.wrong(f"its time is {event.timestamp:g} s, and it is {last:.10g} s already")
        last = event.timestamp
    if not answer.now >= last:
        raise SchedulerError(f"the scheduler's answer is of {answer.now:g} s, and it is {last:.10g} s already")
    if answer.now > LONGEST_S:
        raise SchedulerError(
            f"the scheduler's answer is of {answer.now:g} s, and no replay is longer than {LONGEST_S} s"
        )
    return answer


def _quoted(content: bytes) -> str:
    text = repr(content[:LONGEST_QUOTE])[2:-1]
    return text if len(content) <= LONGEST_QUOTE else f"{text}… ({len(content)} bytes)"


_PROCSET: Final = re.compile(r"\d{1,9}(-\d{1,9})?( \d{1,9}(-\d{1,9})?)*")


def intervals(text: str) -> Intervals | None:
    """``0-3 7`` as intervals; None: it is no such text."""
    if not _PROCSET.fullmatch(text):
        return None
    found = []
    for part in text.split(" "):
        ends = part.split("-")
        first, last = int(ends[0]), int(ends[-1])
        if first > last:
            return None
        found.append((first, last))
    return found


def in_order(given: Intervals) -> Intervals:
    """The same in ascending order, those that touch as one. They do not overlap."""
    if len(given) == 1:
        return given
    found: Intervals = []
    for first, last in sorted(given):
        if found and found[-1][1] == first - 1:
            first = found.pop()[0]
        found.append((first, last))
    return found


def procset(given: Intervals) -> str:
    """The same as text."""
    return " ".join([str(first) if first == last else f"{first}-{last}" for first, last in given])


def beginning(processors: int, path: str) -> Said:
    """SIMULATION_BEGINS for a machine of equal processors."""
    resources = [
        {"id": one, "name": f"processor{one}", "state": "idle", "properties": {}, "zone_properties": {}}
        for one in range(processors)
    ]
    config = {
        "redis-enabled": False,
        "profiles-forwarded-on-submission": False,
        "dynamic-jobs-enabled": False,
        "dynamic-jobs-acknowledged": False,
        "profile-reuse-enabled": False,
        "forward-unknown-events": False,
    }
    data = {
        "nb_resources": processors,
        "nb_compute_resources": processors,
        "nb_storage_resources": 0,
        "allow_compute_sharing": False,
        "allow_storage_sharing": False,
        "config": config,
        "compute_resources": resources,
        "storage_resources": [],
        "workloads": {WORKLOAD: path},
        "profiles": {WORKLOAD: {PROFILE: {}}},
    }
    return Said(0.0, "SIMULATION_BEGINS", data)
