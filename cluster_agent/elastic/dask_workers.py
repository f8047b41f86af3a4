"""Workers of Dask on a node: they get no more tasks, give away what they have in memory, and end.

A worker belongs to a node if it is called so (``n01``, or ``n01-2`` unless that is a node), or if its address is the
node's. It is retired twice: first it gets no more tasks and its results are copied to others; its running tasks have
their grace; then what they made is copied, too, and it ends. A task that is cut off is computed again elsewhere by
Dask.
Source: https://distributed.dask.org/en/stable/ (Client.retire_workers).
"""

from __future__ import annotations

import functools
import socket
import subprocess
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from cluster_agent.elastic.elastic_settings import DaskSettings
from cluster_agent.elastic.engines import Cleared, Deadline, EngineError

LOOK_S: Final = 0.1
STOP_S: Final = 1.0
"""Ours: so long before the limit the stop commands run at the latest."""
AT_ONCE: Final = 16
LAST_S: Final = 2.0
"""Ours: so long before the limit a worker ends, whatever it still computes."""


class DaskWorkers:
    """Connects when it is needed."""

    name = "dask"
    piece = "task"

    def __init__(self, settings: DaskSettings) -> None:
        self._settings = settings
        self._client: Any = None
        self._closed: set[str] = set()
        self._nodes: set[str] = set()
        self._addresses = functools.cache(_addresses)

    def is_open(self, node: str, deadline: Deadline) -> bool | None:
        """Whether it has a worker."""
        return True if self._workers([node], deadline)[node] else None

    def close(self, node: str, deadline: Deadline) -> None:
        """Its workers get no more tasks."""
        self._closed.add(node)
        self._retire(self._workers([node], deadline)[node], deadline, ends=False)

    def clear(self, nodes: Sequence[str], grace_s: float, deadline: Deadline) -> dict[str, Cleared]:
        """Wait for running tasks as long as their grace lasts, then end the workers, and those that came late. Then the
        command of the settings stops those that may still be starting, whatever failed before."""
        found: dict[str, Cleared] = {}
        try:
            self._end(nodes, grace_s, Deadline(max(deadline.left_s - STOP_S, 0.0)), found)
        finally:
            stopped = [node for node in nodes if node in found or node in self._closed] if self._settings.stop else []
            failed = self._run_all(self._settings.stop, stopped, deadline)
            for node in stopped:
                one = found.setdefault(node, Cleared())
                one.wrong = failed.get(node, "")
                one.left = one.left if one.wrong else 0
        return found

    def _end(self, nodes: Sequence[str], grace_s: float, deadline: Deadline, found: dict[str, Cleared]) -> None:
        grace = Deadline(min(grace_s, max(deadline.left_s - LAST_S, 0.0)))
        heard_s, cut = dict[str, float](), dict[str, tuple[str, int]]()
        while any((workers := self._workers(nodes, deadline)).values()):
            found |= {node: Cleared() for node, some in workers.items() if some}
            here = {url: (node, one) for node, some in workers.items() for url, one in some.items()}
            busy = [_is_busy(url, one, heard_s) for url, (_, one) in here.items()]
            if not (grace.left_s and any(busy)):
                cut |= {url: (node, _runs(one)) for url, (node, one) in here.items()}
                self._retire(here, deadline, ends=True)
            if deadline.left_s < LOOK_S:
                break
            time.sleep(LOOK_S)
        for node, tasks in cut.values():
            found[node].cut += tasks
        for node in found:
            found[node].left = len(workers[node])

    def open(self, nodes: Sequence[str], deadline: Deadline) -> dict[str, str]:
        """Start their workers again, by the command of the settings, and wait until each node has one: a prolog that
        looked before would find none, and they would come up next to its job."""
        if not self._settings.start:
            return dict.fromkeys(nodes, "[dask] has no start command: start the node's workers by hand")
        failed = self._run_all(self._settings.start, nodes, deadline)
        waits = [node for node in nodes if node not in failed]
        try:
            while waits := [node for node, some in self._workers(waits, deadline).items() if not some]:
                if deadline.left_s < LOOK_S:
                    return failed | dict.fromkeys(waits, "[dask] no worker has come after its start command")
                time.sleep(LOOK_S)
        except EngineError as error:
            failed |= dict.fromkeys(waits, str(error))
        return failed

    # --- requests

    def _scheduler(self, deadline: Deadline) -> Any:
        from distributed import Client

        if self._client is None:
            try:
                self._client = Client(
                    self._settings.scheduler, timeout=max(deadline.left_s / 2, 0.1), set_as_default=False
                )
            except (OSError, ValueError, TimeoutError) as error:
                raise EngineError(f"Dask at {self._settings.scheduler} does not answer: {error}") from None
        return self._client

    def _ask(self, deadline: Deadline, name: str, **given: Any) -> Any:
        client = self._scheduler(deadline)

        async def asks() -> Any:
            return await getattr(client.scheduler, name)(**given)

        try:
            return client.sync(asks, callback_timeout=max(deadline.left_s, 0.1))
        except (OSError, TimeoutError) as error:
            raise EngineError(f"Dask at {self._settings.scheduler} does not answer: {error}") from None

    def _workers(self, nodes: Sequence[str], deadline: Deadline) -> dict[str, dict[str, Any]]:
        """What the scheduler knows of each worker of each node, by its address."""
        known = self._ask(deadline, "identity", n_workers=-1)["workers"]
        self._nodes.update(nodes)
        return {node: {url: one for url, one in known.items() if self._is_of(node, url, one)} for node in nodes}

    def _is_of(self, node: str, url: str, worker: dict[str, Any]) -> bool:
        name = str(worker.get("name", ""))
        begin, _, number = name.rpartition("-")
        if name == node or (begin == node and number.isdecimal() and not self._is_other_node(name, node)):
            return True
        host = worker.get("host") or url.rpartition("/")[2].rpartition(":")[0]
        return host == node or host in self._addresses(node)

    def _is_other_node(self, name: str, node: str) -> bool:
        return name in self._nodes or self._addresses(name) not in ([], self._addresses(node))

    def _retire(self, workers: Iterable[str], deadline: Deadline, ends: bool) -> None:
        self._ask(deadline, "retire_workers", workers=list(workers), close_workers=ends, remove=ends)

    def _run_all(self, command: Sequence[str], nodes: Sequence[str], deadline: Deadline) -> dict[str, str]:
        """Those where the command failed, and why."""
        with ThreadPoolExecutor(AT_ONCE) as threads:
            said = threads.map(lambda node: self._run(command, node, deadline), nodes)
            return {node: why for node, why in zip(nodes, said, strict=True) if why}

    def _run(self, command: Sequence[str], node: str, deadline: Deadline) -> str:
        words = [word.replace("{node}", node) for word in command]
        try:
            done = subprocess.run(
                words, stdin=subprocess.DEVNULL, capture_output=True, timeout=max(deadline.left_s, 0.1)
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"`{' '.join(words)}`: {error}"
        if not done.returncode:
            return ""
        last = (done.stderr or done.stdout).decode(errors="replace").strip().rpartition("\n")[2]
        return f"`{' '.join(words)}` ended with {done.returncode}: {last[:200]}"


def _is_busy(url: str, worker: dict[str, Any], heard_s: dict[str, float]) -> bool:
    """Whether it computes a task, or has not been heard since the first look: what it said before is no answer."""
    return worker["last_seen"] == heard_s.setdefault(url, worker["last_seen"]) or _runs(worker) > 0


def _runs(worker: dict[str, Any]) -> int:
    """Tasks that it computed when it was heard last; those that wait there cost nothing."""
    return int(worker.get("metrics", {}).get("executing", 0))


def _addresses(node: str) -> list[str]:
    try:
        return socket.gethostbyname_ex(node)[2]
    except OSError:
        return []
