"""Ended jobs and what models say of others, as messages of MQTT in ExaMon's naming (``foundation.mqtt``).

A job that has ended is the metric ``ended_job``, a text: JSON with the keys of ``JobMessage``. ``clusterctl mqtt``
publishes them, and so may any program of a site whose nodes others meter. What comes is bounded, and what is left out
is counted by reason.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Annotated, Final

import msgspec
import numpy as np
from msgspec import Meta

from cluster_agent.history.job_history import HistoryRow
from cluster_agent.model_service.job_records import (
    MOST_NODES,
    OVERLAP,
    EndedJob,
    JobWords,
    ended_job,
    unknown,
)
from cluster_agent.model_service.job_ring import JobRing
from cluster_agent.model_service.model_run import ModelState, figures_of
from cluster_agent.prediction.job_power import Submission
from foundation.mqtt.examon_topics import Message, Source, payload, read_payload
from foundation.mqtt.fetching import LARGEST, Received

PLUGIN: Final = "clusterctl_pub"
METRIC: Final = "ended_job"
PREDICTIONS: Final = "clusterctl_model_predictions"
MOST_S: Final = (1 << 32) - 1

AHEAD_S: Final = 60.0
"""Ours: by so much the clock of whoever sends a job may be ahead of ours."""

type_text = Annotated[str, Meta(max_length=256)]
type_time = Annotated[float, Meta(ge=0)]


class JobMessage(msgspec.Struct, frozen=True):
    """``job``: no other job has it. Times are Unix seconds; ``watts`` and ``maximum_w`` are of the whole job."""

    job: Annotated[str, Meta(min_length=1, max_length=256)]
    user: type_text
    name: type_text
    nodes: Annotated[int, Meta(ge=1, le=MOST_NODES)]
    request_s: Annotated[int, Meta(ge=0, le=MOST_S)]
    submitted_s: type_time
    ended_s: type_time
    watts: Annotated[float, Meta(gt=0)]
    maximum_w: Annotated[float, Meta(gt=0)] | None = None


def message_of(row: HistoryRow, submission: Submission, source: Source) -> Message | None:
    """A job of the history; None: its watts are not known."""
    found = ended_job(row, submission)
    if found is None:
        return None
    said = JobMessage(
        found.key[-256:], row.user[:256], row.application[:256], min(max(row.nodes, 1), MOST_NODES),
        min(max(row.request_s, 0), MOST_S), row.submitted_s, row.ended_s, found.watts, found.maximum_w,
    )  # fmt: skip
    return Message(source.topic(METRIC), payload(msgspec.json.encode(said).decode(), row.ended_s))


class JobsOfTopic:
    """Puts jobs that come as messages into the ring. ``left_out``: how many, by reason."""

    def __init__(self, ring: JobRing, words: JobWords) -> None:
        self._ring, self._words = ring, words
        newest = ring.last(OVERLAP)
        self._known = newest
        self._oldest_s = float(newest["ended_s"].min()) if len(newest) == OVERLAP else 0.0
        self.new = 0
        self.left_out: Counter[str] = Counter()

    def keep(self, received: Sequence[Received]) -> None:
        """Those that are new go to the disk. ``ClusterError`` if they cannot."""
        found = self._words.records(job for one in received for job in self._jobs(one))
        new = unknown(found, self._known)
        self.left_out["known already"] += len(found) - len(new)
        if len(new):
            self._ring.append(new)
            self._known = np.concatenate([self._known, new])[-2 * OVERLAP :]
            self.new += len(new)

    def _jobs(self, one: Received) -> Iterator[EndedJob]:
        """The job of a message, if it is one that can be true and new."""
        value = None if len(one.payload) > LARGEST else read_payload(one.payload)
        try:
            said = None if value is None else msgspec.json.decode(value.text, type=JobMessage)
        except (msgspec.MsgspecError, RecursionError):
            said = None
        if why := _problem(one, said, self._oldest_s):
            self.left_out[why] += 1
        elif said is not None:
            submission = Submission(said.user, said.name, said.nodes, said.nodes, 0, 0, 0, said.request_s)
            yield EndedJob(said.job, submission, said.submitted_s, said.ended_s, said.watts, said.maximum_w)

    def in_words(self) -> str:
        """What was left out, for people; empty: nothing."""
        return ", ".join(f"{count} {why}" for why, count in sorted(self.left_out.items()) if count)


def _problem(one: Received, said: JobMessage | None, oldest_s: float) -> str:
    if one.is_old:
        return "retained by the broker"
    if said is None:
        return "malformed"
    if said.ended_s > time.time() + AHEAD_S:
        return "that end later than now"
    if said.submitted_s > said.ended_s:
        return "that end before their submission"
    return "older than the last jobs of the ring" if said.ended_s < oldest_s else ""


def results(models: Sequence[ModelState], source: Source) -> Iterator[Message]:
    """What a run has found, to be kept by the broker: figures, and what was predicted for jobs that wait and run. An
    empty message has the broker forget the predictions of a champion that is none any more."""
    now_s = time.time()
    for one in models:
        for name, labels, value in figures_of(one):
            topic = source.topic(f"clusterctl_model_{name}", {"model": one.name, **labels})
            yield Message(topic, payload(value, now_s), is_kept=True)
        text = "" if one.published is None else payload(msgspec.json.encode(one.published).decode(), now_s)
        yield Message(source.topic(PREDICTIONS, {"model": one.name}), text, is_kept=True)
