"""The page's server in a thread of its own, with views that show their snapshot as JSON, and a client that is rude."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from http.client import HTTPResponse
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from cluster_agent.history.job_history import Pseudonyms
from cluster_agent.page.access import Sight, Viewers
from cluster_agent.page.entrances import (
    Entrance,
    Loopback,
    PlainSocket,
    ProxySocket,
    listen_at_path,
    listen_on_loopback,
    stop_listening,
)
from cluster_agent.page.feed import Feed
from cluster_agent.page.page_server import PageServer
from cluster_agent.page.snapshot import Snapshot, Viewer

PATIENCE_S = 20.0
TOKEN = "/token"
Place: TypeAlias = Path | int | None
"""A Unix socket or a port; None: the open port."""
Answer: TypeAlias = tuple[int, Mapping[str, str], bytes]


class JsonViews:
    """Each page is what its view was given. ``/crash`` fails."""

    def __init__(self) -> None:
        self.made = 0

    def pages(self, path: str, query: Mapping[str, str], snapshot: Snapshot, viewer: Viewer) -> tuple[int, str] | None:
        self.made += 1
        if path == "/crash":
            raise ValueError("a view with a mistake")
        if path not in ("/", "/jobs/1", "/nodes/r000n00"):
            return None
        return 200, msgspec.json.encode({"path": path, "query": query, "viewer": viewer, "snapshot": snapshot}).decode()

    def fragments(self, view: str, snapshot: Snapshot, viewer: Viewer) -> dict[str, str]:
        if view == "/large":
            return {"large": f"{snapshot.taken_s}" + "x" * 3_000_000}
        watts = snapshot.budget.budget_w if snapshot.budget else None
        return {"budget": f"{watts}", "lost": f"{snapshot.lost_since_s}", "same": "same", "view": view}

    def assets(self) -> dict[str, tuple[str, bytes]]:
        return {"/page.css": ("text/css", b"p {}")}


class Served:
    """``with`` the block, the page of the cluster agent at ``head``: on a plain socket, a proxy's and loopback."""

    def __init__(
        self, at: Path, head: Path, most: int = 40, admins: tuple[str, ...] = (), key: bytes = b"", **clocks: Any
    ) -> None:
        viewers = Viewers(admins)
        self.plain, self.proxy, self.said = at / "page.sock", at / "proxy.sock", list[str]()
        self.open, self.owned = listen_on_loopback("127.0.0.1"), listen_on_loopback("127.0.0.1")
        self.port: int = self.open.getsockname()[1]
        self.own_port: int = self.owned.getsockname()[1]
        self._entrances: list[Entrance] = [
            PlainSocket(listen_at_path(self.plain, 0o666), viewers),
            ProxySocket(listen_at_path(self.proxy, 0o666), viewers, "x-remote-user", frozenset({os.geteuid()})),
            Loopback(self.open),
            Loopback(self.owned, Viewer("alice", False), TOKEN),
        ]
        self._head, self._most, self._key, self._clocks = head, most, key, clocks
        self.views = JsonViews()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.errors: list[str] = []
        self.ended_by: list[Exception] = []

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception as error:
            self.ended_by.append(error)

    async def _serve(self) -> None:
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        self._loop.set_exception_handler(lambda _, about: self.errors.append(str(about)))
        self.feed = Feed(self._head, "main", **self._clocks)
        sight = Sight(Pseudonyms(self._key) if self._key else None)
        self.server = PageServer(self.feed, sight, self.views, self._entrances, self.said.append, self._most)
        self._loop.call_soon(self._ready.set)
        await self.server.serve_until(self._stopped)

    def __enter__(self) -> Served:
        self._thread.start()
        assert self._ready.wait(PATIENCE_S)
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(RuntimeError):  # it has ended by itself
            self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        for entrance in self._entrances:
            stop_listening(entrance)
        assert self.errors == []

    def connected(self, to: Place = None) -> socket.socket:
        """To a Unix socket or a port; to the open port if nothing is given."""
        if isinstance(to, Path):
            peer = socket.socket(socket.AF_UNIX)
            peer.settimeout(PATIENCE_S)
            peer.connect(str(to))
            return peer
        return socket.create_connection(("127.0.0.1", to or self.port), PATIENCE_S)

    def get(
        self,
        path: str = "/",
        to: Place = None,
        user: str = "",
        method: str = "GET",
        host: str = "localhost",
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Status, headers and body."""
        lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", "Connection: close"]
        if user:
            lines.append(f"X-Remote-User: {user}")
        return self.raw("\r\n".join(lines).encode() + b"\r\n\r\n", to, method)

    def raw(self, sent: bytes, to: Place = None, method: str = "GET") -> tuple[int, Mapping[str, str], bytes]:
        """The answer to these bytes."""
        with self.connected(to) as peer:
            with contextlib.suppress(BrokenPipeError):  # refused before all of it was there
                peer.sendall(sent)
            answer = HTTPResponse(peer, method=method)
            answer.begin()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()

    def page(self, path: str = "/", to: Place = None, user: str = "") -> dict[str, Any]:
        """What the view of a page was given."""
        status, _, body = self.get(path, to, user)
        assert status == 200, body
        found: dict[str, Any] = msgspec.json.decode(body)
        return found

    def shown(self, to: Place = None, user: str = "") -> dict[str, Any]:
        """The snapshot as this viewer sees it."""
        found: dict[str, Any] = self.page("/", to, user)["snapshot"]
        return found

    def until(self, holds: Callable[[], object]) -> None:
        """Wait for it."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
