"""Which nodes were drained of elastic work, for which jobs, and whether by us: only that is undone.

A node has a file of its own, locked while the node is closed or opened, so that the epilog of one job and the prolog of
the next cannot pass each other. It is written before the node is closed: whoever is killed in between leaves a record
that the epilog, or `clusterctl elastic undrain --all`, undoes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from cluster_agent.elastic.elastic_settings import ElasticSettings
from cluster_agent.elastic.engines import Cleared, Deadline, Engine, EngineError
from cluster_agent.errors import ClusterError, WrongUseError
from foundation.directories import make_directory
from foundation.planted_links import write_durably

NOOP: Final = "BEBIDA_NOOP"
"""A job of this name is a placeholder of elastic work: nothing is drained for it (REGALE D2.3 §2.3)."""
LOOK_S: Final = 0.05
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")


class Record(msgspec.Struct):
    """Of one node: the jobs that have it, and the engines that closed it for us."""

    jobs: list[str] = []
    closed: list[str] = []


class NodeDrain:
    """``say``: a line for the log of the prolog."""

    def __init__(self, settings: ElasticSettings, engines: Sequence[Engine], say: Callable[[str], None]) -> None:
        self._settings, self._engines, self._say = settings, engines, say
        self._state = Path(settings.state)

    def drain(self, job: str, nodes: Sequence[str]) -> bool:
        """Close and clear these nodes within the limit; whether nothing of any engine is left on them."""
        deadline, is_clear = Deadline(self._settings.limit_s), True
        for node in nodes:
            with self._locked(node, deadline) as record:
                record.jobs = [*dict.fromkeys((*record.jobs, job))]
                self._keep(node, record)
                for engine in self._engines:
                    is_clear &= self._try(engine, node, self._close, record, deadline)
        for engine in self._engines:
            try:
                cleared = engine.clear(nodes, self._settings.grace_s, deadline)
            except EngineError as error:
                self._say(str(error))
                is_clear = False
                continue
            for node, found in cleared.items():
                self._say(_in_words(engine, node, found, deadline))
                is_clear &= not found.left
        return is_clear

    def undrain(self, job: str, nodes: Sequence[str] = ()) -> bool:
        """Open the nodes that were closed for this job, unless another one has them now; ``nodes``: only these. Nodes
        that could not be opened before are tried again. Whether all could be."""
        deadline, all_open = Deadline(self._settings.limit_s), True
        for node in self.nodes():
            known = self.read(node).jobs
            if known and (job not in known or (nodes and node not in nodes)):
                continue
            with self._locked(node, deadline) as record:
                if job in record.jobs:
                    record.jobs.remove(job)
                for engine in [] if record.jobs else self._engines:
                    all_open &= self._try(engine, node, self._open, record, deadline)
                self._keep(node, record)
        return all_open

    def undrain_all(self) -> bool:
        """Open whatever was closed, for whichever job."""
        done = [self.undrain(job) for job in {job for node in self.nodes() for job in self.read(node).jobs}]
        return all(done) and self.undrain("")

    def nodes(self) -> list[str]:
        """Those with a record."""
        return sorted(path.stem for path in self._state.glob("*.json"))

    def read(self, node: str) -> Record:
        """The record of a node, an empty one if there is none. ``ClusterError`` if it is damaged."""
        path = self._path(node)
        try:
            return msgspec.json.decode(path.read_bytes(), type=Record)
        except FileNotFoundError:
            return Record()
        except (OSError, msgspec.MsgspecError, ValueError) as error:
            raise ClusterError(
                f"{path}: cannot be read ({error}): open the node by hand, and remove the file"
            ) from None

    # --- one node

    def _close(self, engine: Engine, node: str, record: Record, deadline: Deadline) -> None:
        if not engine.is_open(node, deadline) or engine.name in record.closed:
            return  # closed by an administrator, none of its nodes, or closed by us for another job
        record.closed.append(engine.name)
        self._keep(node, record)
        engine.close(node, deadline)

    def _open(self, engine: Engine, node: str, record: Record, deadline: Deadline) -> None:
        if engine.name in record.closed:
            engine.open(node, deadline)
            record.closed.remove(engine.name)

    def _try(
        self, engine: Engine, node: str, does: Callable[[Engine, str, Record, Deadline], None], *given: Any
    ) -> bool:
        try:
            does(engine, node, *given)
        except EngineError as error:
            self._say(f"{node}: {error}")
            return False
        return True

    # --- files

    def _path(self, node: str) -> Path:
        if not _NAME.fullmatch(node):
            raise WrongUseError(f"{node!r} is no name of a node")
        return self._state / f"{node}.json"

    def _keep(self, node: str, record: Record) -> None:
        if record.closed:
            write_durably(self._path(node), msgspec.json.encode(record))
        else:
            self._path(node).unlink(missing_ok=True)

    @contextlib.contextmanager
    def _locked(self, node: str, deadline: Deadline) -> Iterator[Record]:
        path = self._path(node).with_suffix(".lock")
        try:
            make_directory(os.fspath(self._state))
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise ClusterError(f"{path}: {error.strerror}: what is drained cannot be recorded, so nothing is") from None
        try:
            while not _lock(lock):
                if not deadline.left_s:
                    raise ClusterError(f"{path}: another prolog or epilog has the node for too long")
                time.sleep(LOOK_S)
            yield self.read(node)
        finally:
            os.close(lock)


def _lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _in_words(engine: Engine, node: str, found: Cleared, deadline: Deadline) -> str:
    parts = [f"{found.ended} ended"] if found.ended else []
    parts.append(f"{found.cut or 'none'} cut off")
    parts += [f"{found.left} are still there"] if found.left else []
    return f"{node}: {engine.piece}s: {', '.join(parts)}, after {deadline.took_s:.1f} s"
