"""Jobs as the records of the ring: numbers alone, with users and names as words of a hash that only its key gives."""

from __future__ import annotations

import functools
import hashlib
import math
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from cluster_agent.errors import ClusterError
from cluster_agent.history.job_history import HistoryRow
from cluster_agent.model_service.group_table import MOST_NODE_W
from cluster_agent.model_service.job_ring import RECORD, JobRing, Records
from cluster_agent.model_service.model_registry import own_content
from cluster_agent.prediction.job_power import Submission
from foundation.planted_links import replacing

KEY, RING = "key", "jobs.ring"
KEY_BYTES: Final = 32
OVERLAP: Final = 20_000
"""Ours: as many of the newest records are compared with what the agent answers, which has so many jobs at most."""
OVERLAP_S: Final = 3600.0
"""Ours: another manager's jobs may be reported so long after their ends."""

MOST_NODES: Final = 1_000_000
_MOST_U32: Final = (1 << 32) - 1
_NUMBER: Final = re.compile(r"\d+")


class EndedJob(NamedTuple):
    """A job with metered watts, of the whole job. ``key``: no other job has it."""

    key: str
    submission: Submission
    submitted_s: float
    ended_s: float
    watts: float
    maximum_w: float | None


class JobWords:
    """The same word for the same user or name, by the key of this folder."""

    def __init__(self, folder: Path, is_made: bool = False) -> None:
        """``is_made``: if there is no key, one is made. ``ClusterError`` in one line."""
        path = folder / KEY
        try:
            if is_made and not path.exists():
                if (folder / RING).exists() or any(folder.glob("*/*/card.toml")):
                    raise ClusterError(
                        f"{path}: is missing, and without it nothing here knows any user: restore it, or move {folder}"
                        " away and begin again"
                    )
                folder.mkdir(mode=0o755, parents=True, exist_ok=True)
                with replacing(path, 0o600) as file:
                    file.write(secrets.token_bytes(KEY_BYTES))
                    file.flush()
                    os.fsync(file.fileno())
            self._key = own_content(path)
        except OSError as error:
            raise ClusterError(f"{path}: cannot be used: {error.strerror}") from None
        if len(self._key) != KEY_BYTES:
            raise ClusterError(f"{path}: a key has {KEY_BYTES} bytes, and this {len(self._key)}: restore it")
        self.word = functools.lru_cache(1 << 16)(self._word)

    def _word(self, *parts: object) -> int:
        text = "\0".join(map(str, parts))
        found = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8, key=self._key).digest()
        return int.from_bytes(found, "little")

    def of(self, one: Submission) -> tuple[int, int, int, int, int]:
        """User, text, shape, nodes and request of a record. Numbers in a name count as one sign: ``run_9`` and
        ``run_10`` are one job. ``shape``: what a node of the job has."""
        units = min(max(one.units, 1), MOST_NODES)
        shape = (round(one.cores / units, 3), round(one.gpus / units, 3), round(one.mics / units, 3),
                 one.memory_kib // units >> 10)  # fmt: skip
        text = _NUMBER.sub("0", (one.title or one.text).lower())
        return (
            self.word("user", one.login or one.user), self.word("text", text), self.word("shape", *shape), units,
            min(max(one.request_s, 0), _MOST_U32),
        )  # fmt: skip

    def submitted(self, submissions: Sequence[Submission]) -> Records:
        """Records of jobs that have not run."""
        found = np.zeros(len(submissions), RECORD)
        found[["user", "text", "shape", "nodes", "request_s"]] = np.array(
            [self.of(one) for one in submissions],
            [("user", "<u8"), ("text", "<u8"), ("shape", "<u8"), ("nodes", "<u4"), ("request_s", "<u4")],
        )
        return found

    def records(self, jobs: Iterable[EndedJob]) -> Records:
        """Of jobs that have ended, in this order. What cannot be is left out: watts or times that are no numbers."""
        return np.array([row for job in jobs for row in self._rows(job)], RECORD)

    def _rows(self, job: EndedJob) -> Iterator[tuple[float, ...]]:
        user, text, shape, nodes, request_s = self.of(job.submission)
        node_w, times = job.watts / nodes, (job.submitted_s, job.ended_s)
        most_w = node_w if job.maximum_w is None else job.maximum_w / nodes
        if not (0 < node_w < MOST_NODE_W and all(map(math.isfinite, times))):
            return
        most_w = most_w if node_w <= most_w < MOST_NODE_W else node_w
        yield 0, self.word("job", job.key), user, text, shape, *times, node_w, most_w, nodes, request_s, 0


def open_ring(folder: Path, kept: int, hint: int = 0) -> JobRing:
    """The ring of a folder."""
    return JobRing(folder / RING, kept, hint)


def ended_job(row: HistoryRow, submission: Submission) -> EndedJob | None:
    """Of the history; None: its watts are not known."""
    if row.watts is None:
        return None
    highest_w = row.measured.highest_w
    maximum_w = None if highest_w is None else highest_w * row.nodes
    key = f"{row.manager}/{row.job}/{row.began_s:.3f}"
    return EndedJob(key, submission, row.submitted_s, row.ended_s, row.watts, maximum_w)


def missing_since(newest: Records, now_s: float) -> float:
    """From when on jobs may be missing in the ring; a clock that was ahead does not hide those that come."""
    ended_s = newest["ended_s"][newest["ended_s"] <= now_s]
    return float(ended_s.max()) - OVERLAP_S if len(ended_s) else 0.0


def unknown(found: Records, newest: Records) -> Records:
    """Those that the ring does not have, each once, in the order of their ends."""
    _, first = np.unique(found["job"], return_index=True)
    found = found[np.sort(first)]
    found = found[~np.isin(found["job"], newest["job"])]
    return found[np.argsort(found["ended_s"], kind="stable")]
