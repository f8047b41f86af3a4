"""Workers of Dask on a node: they get no more tasks, give away what they have in memory, and end.

A worker belongs to a node if it is called so (``n01``, ``n01-2``), or if its address is the node's. It is retired
twice: first it gets no more tasks and its results are copied to others; its running tasks have their grace; then what
they made is copied, too, and it ends. A task that is cut off is computed again elsewhere by Dask.
Source: https://distributed.dask.org/en/stable/ (Client.retire_workers).
"""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

from cluster_agent.elastic.elastic_settings import DaskSettings
from cluster_agent.elastic.engines import Cleared, Deadline, EngineError

LOOK_S: Final = 0.1
LAST_S: Final = 2.0
"""Ours: so long before the limit a worker ends, whatever it still computes."""


class DaskWorkers:
    """Connects when it is needed."""

    name = "dask"
    piece = "task"

    def __init__(self, settings: DaskSettings) -> None:
        self._settings = settings
        self._client: Any = None

    def is_open(self, node: str, deadline: Deadline) -> bool | None:
        """Whether it has a worker."""
        return True if self._workers([node], deadline)[node] else None

    def close(self, node: str, deadline: Deadline) -> None:
        """Its workers get no more tasks."""
        self._retire(self._workers([node], deadline)[node], deadline, ends=False)

    def clear(self, nodes: Sequence[str], grace_s: float, deadline: Deadline) -> dict[str, Cleared]:
        """Wait for running tasks as long as their grace lasts, then end the workers, and those that came late."""
        found: dict[str, Cleared] = {}
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
            self._run(self._settings.stop, node, deadline)
            found[node].left = 0 if self._settings.stop else len(workers[node])
        return found

    def open(self, node: str, deadline: Deadline) -> None:
        """Start its workers again, by the command of the settings."""
        if not self._settings.start:
            raise EngineError("[dask] has no start command: start the node's workers by hand")
        self._run(self._settings.start, node, deadline)

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
        return {node: {url: one for url, one in known.items() if _is_of(node, url, one)} for node in nodes}

    def _retire(self, workers: Iterable[str], deadline: Deadline, ends: bool) -> None:
        self._ask(deadline, "retire_workers", workers=list(workers), close_workers=ends, remove=ends)

    def _run(self, command: Sequence[str], node: str, deadline: Deadline) -> None:
        if not command:
            return
        words = [word.replace("{node}", node) for word in command]
        try:
            done = subprocess.run(
                words, stdin=subprocess.DEVNULL, capture_output=True, timeout=max(deadline.left_s, 0.1)
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise EngineError(f"`{' '.join(words)}`: {error}") from None
        if done.returncode:
            last = (done.stderr or done.stdout).decode(errors="replace").strip().rpartition("\n")[2]
            raise EngineError(f"`{' '.join(words)}` ended with {done.returncode}: {last[:200]}")


def _is_busy(url: str, worker: dict[str, Any], heard_s: dict[str, float]) -> bool:
    """Whether it computes a task, or has not been heard since the first look: what it said before is no answer."""
    return worker["last_seen"] == heard_s.setdefault(url, worker["last_seen"]) or _runs(worker) > 0


def _runs(worker: dict[str, Any]) -> int:
    """Tasks that it computed when it was heard last; those that wait there cost nothing."""
    return int(worker.get("metrics", {}).get("executing", 0))


def _is_of(node: str, url: str, worker: dict[str, Any]) -> bool:
    name = str(worker.get("name", ""))
    if name == node or name.startswith(f"{node}-"):
        return True
    host = worker.get("host") or url.rpartition("/")[2].rpartition(":")[0]
    return host == node or host in _addresses(node)


def _addresses(node: str) -> list[str]:
    try:
        return socket.gethostbyname_ex(node)[2]
    except OSError:
        return []
