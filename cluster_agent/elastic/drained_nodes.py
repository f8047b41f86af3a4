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
AT_ONCE: Final = 256
"""Ours: locks of so many nodes are files that one command may have open."""
AGAIN_S: Final = 2.0
"""Ours: so long an epilog tries for nodes that an earlier one could not open."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")


class Record(msgspec.Struct):
    """Of one node: the jobs that have it, and the engines that closed it for us."""

    jobs: list[str] = []
    closed: list[str] = []


class BusyError(ClusterError):
    """Another command has the node."""


class NodeDrain:
    """``say``: a line for the log of the prolog."""

    def __init__(self, settings: ElasticSettings, engines: Sequence[Engine], say: Callable[[str], None]) -> None:
        self._settings, self._engines, self._say = settings, engines, say
        self._state = Path(settings.state)

    def drain(self, job: str, nodes: Sequence[str]) -> bool:
        """Close and clear these nodes within the limit; whether nothing of any engine is left on them."""
        deadline, recorded, is_clear = Deadline(self._settings.limit_s), list[str](), True
        for node in nodes:
            is_clear &= self._prepare(job, node, deadline, recorded)
        for engine in self._engines:
            try:
                cleared = engine.clear(recorded, self._settings.grace_s, deadline)
            except EngineError as error:
                self._say(str(error))
                is_clear = False
                continue
            for node, found in cleared.items():
                self._say(_in_words(engine, node, found, deadline))
                is_clear &= not (found.left or found.wrong)
        return is_clear

    def undrain(self, job: str, nodes: Sequence[str] = ()) -> bool:
        """Open the nodes that were closed for this job, unless another one has them now; ``nodes``: only these. Nodes
        that could not be opened before are tried again, last. Whether all could be: one that is damaged or that another
        command has keeps no other one closed."""
        deadline = Deadline(self._settings.limit_s)
        records, all_open = self._readable()
        own = [node for node, one in records.items() if job in one.jobs and (not nodes or node in nodes)]
        busy = list[str]()
        all_open &= self._leave(job, own, Deadline(0.0), deadline, busy)
        late = list[str]()
        for node in busy:
            all_open &= self._leave(job, [node], deadline, deadline, late)
        for node in late:
            self._say(f"{node}: another prolog or epilog has the node for too long")
        again = [node for node, one in records.items() if not one.jobs]
        rest = Deadline(min(deadline.left_s, AGAIN_S)) if job else deadline
        all_open &= self._leave(job, again, Deadline(0.0), rest, [])  # a busy one: another command sees to it
        return all_open and not late

    def undrain_all(self) -> bool:
        """Open whatever was closed, for whichever job."""
        records, _ = self._readable()
        done = [self.undrain(job) for job in sorted({job for one in records.values() for job in one.jobs})]
        return self.undrain("") and all(done)

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

    def _prepare(self, job: str, node: str, deadline: Deadline, recorded: list[str]) -> bool:
        """Close a node, if that can be recorded; then it is one of ``recorded``."""
        try:
            with self._locked(node, deadline) as record:
                record.jobs = [*dict.fromkeys((*record.jobs, job))]
                self._keep(node, record)
                recorded.append(node)
                is_closed = True
                for engine in self._engines:
                    is_closed &= self._try(engine, node, self._close, record, deadline)
                return is_closed
        except WrongUseError:
            raise
        except (ClusterError, OSError) as error:
            self._say(f"{node}: {error}")
            return False

    def _close(self, engine: Engine, node: str, record: Record, deadline: Deadline) -> None:
        is_open = engine.is_open(node, deadline)
        if engine.name not in record.closed:
            if not is_open:
                return  # closed by an administrator, or none of its nodes
            record.closed.append(engine.name)
            self._keep(node, record)
        elif is_open is False:
            return  # closed by us for another job
        engine.close(node, deadline)

    def _leave(self, job: str, nodes: Sequence[str], wait: Deadline, deadline: Deadline, busy: list[str]) -> bool:
        """Open these nodes for the last job that leaves them; all are locked until the engines have opened all, since
        that may take long. Those that another command has longer than ``wait`` are put into ``busy``."""
        if len(nodes) > AT_ONCE:
            is_good = self._leave(job, nodes[:AT_ONCE], wait, deadline, busy)
            return self._leave(job, nodes[AT_ONCE:], wait, deadline, busy) and is_good
        is_good, locked = True, dict[str, Record]()
        with contextlib.ExitStack() as locks:
            for node in nodes:
                try:
                    locked[node] = record = locks.enter_context(self._locked(node, wait))
                except BusyError:
                    busy.append(node)
                except (ClusterError, OSError) as error:
                    self._say(f"{node}: {error}")
                    is_good = False
                else:
                    record.jobs = [one for one in record.jobs if one != job]
            for engine in self._engines:
                is_good &= self._open(engine, {node: one for node, one in locked.items() if not one.jobs}, deadline)
            for node, record in locked.items():
                try:
                    self._keep(node, record)
                except OSError as error:
                    self._say(f"{node}: {error}")
                    is_good = False
        return is_good

    def _open(self, engine: Engine, locked: dict[str, Record], deadline: Deadline) -> bool:
        closed = [node for node, record in locked.items() if engine.name in record.closed]
        failed = engine.open(closed, deadline) if closed else {}
        for node, why in failed.items():
            self._say(f"{node}: {why}")
        for node in closed:
            if node not in failed:
                locked[node].closed.remove(engine.name)
        return not failed

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

    def _readable(self) -> tuple[dict[str, Record], bool]:
        """All records that can be read, and whether those are all."""
        found, are_all = dict[str, Record](), True
        for node in self.nodes():
            try:
                found[node] = self.read(node)
            except ClusterError as error:
                self._say(f"{node}: {error}")
                are_all = False
        return found, are_all

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
                    raise BusyError(f"{path}: another prolog or epilog has the node for too long")
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
    parts += [found.wrong] if found.wrong else []
    return f"{node}: {engine.piece}s: {', '.join(parts)}, after {deadline.took_s:.1f} s"
