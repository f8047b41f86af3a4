"""``clusterctl page`` and ``clusterctl open``: the partition in a browser.

``page`` is a process for all users of a machine or of a proxy; ``open`` is one's own. Both send requests to the cluster
agent as anybody may, and have no right to change anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import html
import os
import pwd
import secrets
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

import foundation.shell.single_thread  # noqa: F401  (before anything that imports numpy)
from cluster_agent.commands.nodes import socket_option
from cluster_agent.errors import WrongUseError
from cluster_agent.fabric.ask import Place
from foundation.shell.plain_text import echo, say

if TYPE_CHECKING:
    from cluster_agent.page.access import Sight
    from cluster_agent.page.entrances import Entrance
    from cluster_agent.page.page_server import Views

DEFAULT_PATH: Final = "/run/clusterctl-page/page.sock"
HEADER: Final = "X-Remote-User"
MOST_OF_ONE: Final = 50
"""Ours: connections of a page of one's own."""


_setting = partial(click.option, show_envvar=True)
"""An option of the service, which has it from /etc/nodectl/page.env."""

admins_option = _setting(
    "--admin", "admins", multiple=True, metavar="USER|@GROUP", envvar="CLUSTERCTL_PAGE_ADMINS",
    help="Who sees all jobs with their names, next to root. May be given several times.",
)  # fmt: skip
name_option = _setting(
    "--name", default="", envvar="CLUSTERCTL_PAGE_NAME", metavar="TEXT", help="What the partition is called."
)


@click.command()
@_setting(
    "--listen", default=DEFAULT_PATH, show_default=True, envvar="CLUSTERCTL_PAGE_LISTEN", metavar="PATH|HOST:PORT",
    help="A Unix socket, where the kernel says who looks, or a port of loopback, where nobody is known.",
)  # fmt: skip
@_setting(
    "--mode", default="660", show_default=True, envvar="CLUSTERCTL_PAGE_MODE", metavar="OCTAL",
    help="Of the Unix socket: who may connect. 666: every user of this machine.",
)  # fmt: skip
@_setting(
    "--proxy-socket", type=click.Path(path_type=Path), envvar="CLUSTERCTL_PAGE_PROXY_SOCKET", metavar="PATH",
    help="One more Unix socket, for a proxy that says in a header who looks.",
)  # fmt: skip
@_setting(
    "--proxy-user", default="www-data", show_default=True, envvar="CLUSTERCTL_PAGE_PROXY_USER", metavar="USER",
    help="Whom that proxy runs as. Nobody else may use its socket, but root.",
)  # fmt: skip
@_setting(
    "--user-header", default=HEADER, show_default=True, envvar="CLUSTERCTL_PAGE_USER_HEADER", metavar="NAME",
    help="That header. Only what comes by --proxy-socket is believed.",
)  # fmt: skip
@admins_option
@_setting(
    "--pseudonyms", type=click.Path(path_type=Path), envvar="CLUSTERCTL_PAGE_PSEUDONYMS", metavar="KEY",
    help="Show words in place of users' names, to everybody, made with the key of this file.",
)  # fmt: skip
@name_option
@_setting(
    "--most", default=200, show_default=True, type=click.IntRange(4, 10_000), envvar="CLUSTERCTL_PAGE_MOST",
    help="Connections at a time.",
)  # fmt: skip
@socket_option
def page(
    listen: str,
    mode: str,
    proxy_socket: Path | None,
    proxy_user: str,
    user_header: str,
    admins: tuple[str, ...],
    pseudonyms: Path | None,
    name: str,
    most: int,
    socket: Place,
) -> None:
    """Serve the partition as a page for people, until SIGTERM or Ctrl-C. It only reads."""
    from cluster_agent.page.access import Viewers
    from cluster_agent.page.entrances import (
        Loopback,
        PlainSocket,
        ProxySocket,
        listen_at_path,
        listen_on_loopback,
        loopback_of,
    )

    viewers, sight = Viewers(admins), _sight(pseudonyms)
    header, bits = _header(user_header), _mode(mode)
    proxy_uid = _uid(proxy_user) if proxy_socket is not None else 0
    with contextlib.ExitStack() as opened:
        entrances: list[Entrance] = []
        if "/" in listen:
            entrances.append(PlainSocket(listen_at_path(Path(listen), bits), viewers))
        else:
            entrances.append(Loopback(listen_on_loopback(*loopback_of(listen))))
        opened.callback(_close, entrances)
        if proxy_socket is not None:
            listening = listen_at_path(proxy_socket, 0o666)  # whoever connects is looked at
            entrances.append(ProxySocket(listening, viewers, header, frozenset({0, proxy_uid})))
        where = " and ".join([listen, *([str(proxy_socket)] if proxy_socket else [])])
        _serve(socket, name, entrances, sight, most, lambda: say(f"clusterctl page: {where}"))


@click.command("open")
@click.option("--port", default=0, type=click.IntRange(0, 65_535), help="A port of 127.0.0.1; 0: any that is free.")
@click.option("--no-browser", is_flag=True, help="Print the address alone.")
@admins_option
@name_option
@socket_option
def open_page(port: int, no_browser: bool, admins: tuple[str, ...], name: str, socket: Place) -> None:
    """Serve the page to yourself, at an address with a secret in it, and open it in a browser, until Ctrl-C, or the
    end of the connection of an ssh that started it."""
    from cluster_agent.page.access import Viewers
    from cluster_agent.page.entrances import Loopback, listen_on_loopback

    viewer = Viewers(admins).of_uid(os.geteuid())
    listening = listen_on_loopback("127.0.0.1", port)
    entrance = Loopback(listening, viewer, f"/{secrets.token_urlsafe(24)}")
    address = f"http://127.0.0.1:{listening.getsockname()[1]}{entrance.base}/"
    with contextlib.ExitStack() as opened:
        opened.callback(_close, [entrance])

        def show() -> None:
            echo(address)
            if not no_browser and (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
                opened.enter_context(_browser(address))

        _serve(socket, name, [entrance], _sight(None), MOST_OF_ONE, show, _pipe())


def _sight(pseudonyms: Path | None) -> Sight:
    from cluster_agent.history.job_history import Pseudonyms
    from cluster_agent.page.access import Sight

    return Sight(Pseudonyms.of(pseudonyms) if pseudonyms else None)


def _serve(
    place: Place,
    name: str,
    entrances: Sequence[Entrance],
    sight: Sight,
    most: int,
    ready: Callable[[], None],
    pipe: int | None = None,
) -> None:
    from cluster_agent.page.feed import Feed
    from cluster_agent.page.page_server import PageServer

    async def serve() -> None:
        await PageServer(Feed(place, name), sight, _views(), entrances, say, most).serve(ready, pipe)

    asyncio.run(serve())


def _pipe() -> int | None:
    """Standard input, where another program has its other end: ssh without a terminal sends no signal when it ends."""
    try:
        mode = os.fstat(0).st_mode
    except OSError:  # it was started without one
        return None
    return 0 if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) else None


def _views() -> Views:
    from cluster_agent.page import views

    return views


def _close(entrances: Sequence[Entrance]) -> None:
    from cluster_agent.page.entrances import stop_listening

    for entrance in entrances:
        stop_listening(entrance)


@contextlib.contextmanager
def _browser(address: str) -> Iterator[None]:
    """Open the address by a file that only this user may read: arguments of programs can be seen by everybody."""
    program = shutil.which("xdg-open")
    if program is None:
        yield
        return
    with tempfile.TemporaryDirectory(dir=os.environ.get("XDG_RUNTIME_DIR"), prefix="clusterctl-") as folder:
        path = Path(folder) / "page.html"
        path.write_text(f'<!doctype html><meta http-equiv="refresh" content="0; url={html.escape(address)}">')
        subprocess.Popen([program, str(path)], stdin=subprocess.DEVNULL, start_new_session=True)
        yield


def _mode(text: str) -> int:
    try:
        bits = int(text, 8)
    except ValueError:
        bits = -1
    if not 0 <= bits <= 0o777:
        raise WrongUseError(f"--mode {text}: give an octal mode, like 660")
    return bits


def _uid(user: str) -> int:
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        raise WrongUseError(f"--proxy-user {user}: no user is called that on this machine") from None


def _header(name: str) -> str:
    if not name or not all(char.isalnum() or char == "-" for char in name) or not name.isascii():
        raise WrongUseError(f"--user-header {name!r}: give the name of a header, like {HEADER}")
    return name.lower()
