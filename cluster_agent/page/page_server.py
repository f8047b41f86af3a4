"""The page's process: connections, and what each gets.

One loop, one task for each connection, and sockets without buffers of ours: what is sent to a reader is one answer,
which the kernel takes as fast as it is read. A reader who takes none of it for ``WRITE_S`` is dropped. A stream of
updates has no queue either: whoever reads slowly misses what was in between and gets the newest.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from http import HTTPStatus
from typing import Final, Protocol, TypeVar, cast

import msgspec
from msgspec.structs import replace

from cluster_agent.page.access import Sight
from cluster_agent.page.entrances import Entrance, ProxySocket
from cluster_agent.page.feed import Feed, NotNowError
from cluster_agent.page.http_messages import (
    MOST_BYTES,
    MOST_LINE,
    HttpRequest,
    RefusedRequestError,
    answer,
    event,
    events_begin,
    refusal,
    request_of,
)
from cluster_agent.page.page_api import api
from cluster_agent.page.snapshot import Snapshot, Viewer

MOST: Final = 200
SHARE: Final = 4
"""Ours: one user of a plain socket may have a fourth of all connections, and one behind a proxy as many streams."""

HEAD_S: Final = 10.0
WRITE_S: Final = 20.0
IDLE_S: Final = 30.0
"""Ours: how long a request may take to arrive, an answer to be taken, and a connection to be without both."""

HEARTBEAT_S: Final = 15.0
"""Ours: a stream without news gets an event without any that often: the server finds those who are gone, and the page
(``live.js``) a connection that is."""

LONGEST_STREAM_S: Final = 3600.0
"""Ours: then it is closed, and the browser connects again: whoever is no administrator any more becomes none."""

FIRST_S: Final = 0.7
"""Ours: the first page after a while without viewers waits so long for what is new."""

KEPT_PAGES: Final = 64

OF_ALL: Final = ("/", "/nodes", "/budget", "/alarms")
"""Views of the partition and of no person: their updates are made once for all users, with nobody's own jobs."""

OF_BUDGET: Final = ("/", "/budget", "/alarms")
"""Views that change with the budget. The others wait for rows of nodes or of jobs, and say of when they are."""

HTML: Final = "text/html; charset=utf-8"
JSON: Final = "application/json"
TEXT: Final = "text/plain; charset=utf-8"


Made = TypeVar("Made")


class Views(Protocol):
    """What makes HTML of a snapshot (``page.views``)."""

    def pages(self, path: str, query: Mapping[str, str], snapshot: Snapshot, viewer: Viewer) -> tuple[int, str] | None:
        """A whole page: its status and HTML; None: there is none such."""

    def fragments(self, view: str, snapshot: Snapshot, viewer: Viewer) -> dict[str, str]:
        """What changes on the page at this address, by the id of the element."""

    def assets(self) -> dict[str, tuple[str, bytes]]:
        """Files by their path: content type and bytes."""


class PageServer:
    """``serve`` until SIGTERM or SIGINT."""

    def __init__(
        self,
        feed: Feed,
        sight: Sight,
        views: Views,
        entrances: Sequence[Entrance],
        say: Callable[[str], None],
        most: int = MOST,
    ) -> None:
        self._feed, self._sight, self._views, self._say = feed, sight, views, say
        self._entrances, self._most = entrances, most
        self._assets = views.assets()
        self._open: dict[socket.socket, int | str | None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._made: dict[tuple[object, ...], object] = {}
        self._made_of = -1
        self._failed: set[str] = set()

    async def serve(self, ready: Callable[[], None], pipe: int | None = None) -> None:
        """Answer until a signal comes, or ``pipe`` is closed at its other end. ``ready`` is called once signals are
        heard."""
        loop, stopped = asyncio.get_running_loop(), asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopped.set)
        if pipe is not None:
            loop.add_reader(pipe, lambda: None if os.read(pipe, 4096) else stopped.set())
        ready()
        await self.serve_until(stopped)

    async def serve_until(self, stopped: asyncio.Event) -> None:
        """Answer until then. Without its feed or an entrance it ends, too: systemd starts it again."""
        must_run = [self._start(self._feed.run()), *(self._start(self._accept(one)) for one in self._entrances)]
        stop = self._start(_until(stopped))
        await asyncio.wait([stop, *must_run], return_when=asyncio.FIRST_COMPLETED)
        ended = [task for task in must_run if task.done()]
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for task in ended:
            task.result()

    def _start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # --- connections

    async def _accept(self, entrance: Entrance) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                peer, _ = await loop.sock_accept(entrance.listening)
                peer.setblocking(False)
                owner = entrance.owner(peer)
            except OSError:  # out of descriptors: those that are open end some day
                await asyncio.sleep(0.2)
                continue
            if len(self._open) >= self._most or self._has_its_share(owner):
                _turn_away(peer)
                continue
            self._open[peer] = owner
            self._start(self._converse(peer, entrance))

    def _has_its_share(self, owner: int | str | None) -> bool:
        return owner is not None and Counter(self._open.values())[owner] >= max(self._most // SHARE, 1)

    async def _converse(self, peer: socket.socket, entrance: Entrance) -> None:
        """One request after the other, until either end has enough."""
        got = bytearray()
        try:
            while await self._one(peer, entrance, got):
                pass
        except (OSError, TimeoutError):
            pass  # gone, or too slow
        except Exception as error:
            self._tell("of a viewer", error)
        finally:
            self._open.pop(peer, None)
            peer.close()

    async def _one(self, peer: socket.socket, entrance: Entrance, got: bytearray) -> bool:
        """Answer a request; whether another one may follow."""
        try:
            head = await _head(peer, got)
            if not head:
                return False
            request = request_of(head)
            viewer = self._sight.viewer(entrance.viewer(peer, request))
            path = _below(entrance.base, request.path)
            if path == "/updates" and request.method == "GET":
                if isinstance(entrance, ProxySocket):  # all its connections are the proxy's; a stream is one user's
                    if self._has_its_share(viewer.user):
                        raise _too_many()
                    self._open[peer] = viewer.user
                await self._stream(peer, request.query.get("view", "/"), viewer)
                return False
            found = await self._answer(path, request, viewer)
        except RefusedRequestError as error:
            await _send(peer, refusal(error))
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_WR)
            return False
        await _send(peer, found)
        return request.is_kept_alive

    # --- answers

    async def _answer(self, path: str, request: HttpRequest, viewer: Viewer) -> bytes:
        is_whole, with_body = request.is_kept_alive, request.method == "GET"
        if path in self._assets:
            kind, body = self._assets[path]
            return answer(HTTPStatus.OK, kind, body, is_whole, with_body=with_body)
        await self._feed.look(FIRST_S)
        snapshot = await self._about(path.removeprefix("/api"), viewer)
        if path == "/api" or path.startswith("/api/"):
            found = self._kept((path, viewer), snapshot, lambda: api(path.removeprefix("/api"), snapshot))
            if found is None and _is_there(path.removeprefix("/api"), snapshot, viewer):
                raise _not_now()
            if found is not None:
                return answer(HTTPStatus.OK, JSON, found, is_whole, with_body=with_body)
        else:
            made = self._kept(
                (path, tuple(sorted(request.query.items())), viewer),
                snapshot,
                lambda: self._page(path, request.query, snapshot, viewer),
            )
            if made is not None:
                return answer(HTTPStatus(made[0]), HTML, made[1], is_whole, with_body=with_body)
        return answer(HTTPStatus.NOT_FOUND, TEXT, b"404 Not Found: no such page\n", is_whole, with_body=with_body)

    def _page(
        self, path: str, query: Mapping[str, str], snapshot: Snapshot, viewer: Viewer
    ) -> tuple[int, bytes] | None:
        try:
            made = self._views.pages(path, query, snapshot, viewer)
        except Exception as error:
            self._tell(path, error)
            raise RefusedRequestError(
                HTTPStatus.INTERNAL_SERVER_ERROR, "this page cannot be made: the log of this process says why"
            ) from None
        return None if made is None else (made[0], made[1].encode(errors="replace"))

    async def _about(self, path: str, viewer: Viewer) -> Snapshot:
        """What the viewer may see, with more about the node or the job that the path is about, as far as it is known
        now; ``RefusedRequestError`` if nothing is."""
        first, _, about = path.strip("/").partition("/")
        shown = self._sight.of(self._feed.snapshot, viewer)
        if first == "nodes" and any(row.name == about for row in shown.nodes):
            try:
                why = await self._feed.why(about)
            except NotNowError:
                why = None
            return replace(shown, why={about: self._sight.of_why(why, shown, viewer)}) if why else shown
        if first == "jobs" and about.isascii() and about.isdecimal() and 0 < len(about) < 19 and viewer.user:
            return await self._about_job(about, shown, viewer)
        return shown

    async def _about_job(self, about: str, shown: Snapshot, viewer: Viewer) -> Snapshot:
        """With all about a job; of another's in the queue nothing is requested."""
        number = int(about)
        row = next((row for row in shown.jobs if row.job == number), None)
        if row is not None and not viewer.is_own(row.user):
            return shown
        try:
            return replace(shown, job=self._sight.of_job(await self._feed.job(number), viewer))
        except NotNowError:
            if row is None and not any(job.job == about for job in shown.running):
                raise _not_now() from None
            return shown

    def _kept(self, key: tuple[object, ...], snapshot: Snapshot, make: Callable[[], Made | None]) -> Made | None:
        """What was made of this snapshot, once for all who see the same."""
        if snapshot.why or snapshot.job:
            return make()
        if self._made_of != self._feed.version:
            self._made_of = self._feed.version
            self._made.clear()
        if key not in self._made:
            made = make()
            if len(self._made) >= KEPT_PAGES:
                return made
            self._made[key] = made
        return cast("Made | None", self._made[key])

    # --- updates

    async def _stream(self, peer: socket.socket, view: str, viewer: Viewer) -> None:
        """Parts of a page, whenever they change."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + LONGEST_STREAM_S
        await _send(peer, events_begin())
        sent: dict[str, str] = {}
        rows_version, sent_s = -1, loop.time()
        while loop.time() < until_s:
            await self._feed.look(0.0)
            version, changed = self._feed.version, dict[str, str]()
            is_of_nodes = view.partition("?")[0].startswith("/nodes")
            newest = self._feed.nodes_version if is_of_nodes else self._feed.rows_version
            if rows_version != newest or view.partition("?")[0] in OF_BUDGET:
                rows_version = newest
                parts = await self._parts(view, viewer)
                changed, sent = {name: part for name, part in parts.items() if sent.get(name) != part}, parts
            if changed or loop.time() >= sent_s + HEARTBEAT_S:
                await _send(peer, event(msgspec.json.encode(changed)))
                sent_s = loop.time()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._feed.changed(version), HEARTBEAT_S)

    async def _parts(self, view: str, viewer: Viewer) -> dict[str, str]:
        """The parts of a view by the id of their element; none of a view that cannot be made."""
        path = view.partition("?")[0]
        if path in OF_ALL and viewer.user is not None:
            viewer = Viewer("", viewer.sees_all)
        try:
            snapshot = await self._about(path, viewer)
        except RefusedRequestError:
            return {}
        try:
            made = self._kept((view, viewer), snapshot, lambda: self._views.fragments(view, snapshot, viewer))
        except Exception as error:
            self._tell(path, error)
            made = None
        return made or {}

    def _tell(self, path: str, error: Exception) -> None:
        """Log what went wrong in a view, once for each kind of it."""
        where = error.__traceback__
        while where is not None and where.tb_next is not None:
            where = where.tb_next
        place = f"{where.tb_frame.f_code.co_filename}:{where.tb_lineno}" if where else ""
        line = f"{type(error).__name__}: {error} ({place})"
        if place not in self._failed:
            self._failed.add(place)
            self._say(f"the page {path} cannot be made: {line}")


def _is_there(path: str, snapshot: Snapshot, viewer: Viewer) -> bool:
    """Whether this is the path of a node, or of a job of the viewer's that waits or runs."""
    first, _, about = path.strip("/").partition("/")
    if first == "nodes":
        return any(row.name == about for row in snapshot.nodes)
    return first == "jobs" and any(str(row.job) == about and viewer.is_own(row.user) for row in snapshot.jobs)


def _not_now() -> RefusedRequestError:
    return RefusedRequestError(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "this is not known now: the cluster agent does not answer, or many look at once; try again in some seconds",
    )


async def _until(stopped: asyncio.Event) -> None:
    await stopped.wait()


async def _head(peer: socket.socket, got: bytearray) -> bytes:
    """The next request up to its empty line, which is taken from ``got``; nothing if the peer has no more."""
    loop = asyncio.get_running_loop()
    if not got:
        async with asyncio.timeout(IDLE_S):
            got += await loop.sock_recv(peer, 4096)
    async with asyncio.timeout(HEAD_S):
        while (end := got.find(b"\r\n\r\n")) < 0:
            if b"\r\n" not in got and len(got) > MOST_LINE + 32:
                raise RefusedRequestError(HTTPStatus.REQUEST_URI_TOO_LONG, f"an address has {MOST_LINE} characters")
            if len(got) > MOST_BYTES:
                raise RefusedRequestError(
                    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"headers have {MOST_BYTES} bytes at most"
                )
            part = await loop.sock_recv(peer, 4096)
            if not part:
                return b""
            got += part
    head = bytes(got[: end + 4])
    del got[: end + 4]
    return head


async def _send(peer: socket.socket, content: bytes) -> None:
    """All of it, or ``TimeoutError``."""
    async with asyncio.timeout(WRITE_S):
        await asyncio.get_running_loop().sock_sendall(peer, content)


def _too_many() -> RefusedRequestError:
    return RefusedRequestError(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections at once: try again")


def _turn_away(peer: socket.socket) -> None:
    """One too many."""
    with contextlib.suppress(OSError):
        peer.send(refusal(_too_many()))
        peer.shutdown(socket.SHUT_WR)
    peer.close()


def _below(base: str, path: str) -> str:
    """The path without what all addresses of an entrance begin with."""
    if base and not path.startswith(f"{base}/"):
        raise RefusedRequestError(HTTPStatus.NOT_FOUND, "no such page")
    return path.removeprefix(base)
