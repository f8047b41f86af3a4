"""``nodectl writer``: the process that may write. ``nodectl run`` starts one for itself; an agent of another user needs
one that runs as a service (``nodectl-writer.service``, with a socket of systemd's, so that an agent that connects while
the writer starts again waits for it)."""

from __future__ import annotations

import os
import pwd
import select
import socket
import time
from pathlib import Path
from typing import Final

import click

from foundation.shell.errors import NodectlError
from foundation.shell.log import logger
from foundation.shell.notify import Notifier
from foundation.shell.settings import line_of, read_toml
from nodectl.commands import config_option
from nodectl.config import DEFAULT_PATH, Config, build_config
from nodectl.loop.interruptions import Interruptions
from nodectl.writer_process.channel import Channel
from nodectl.writer_process.writer_server import Served, Session
from pmu.system import system_ports

_log: Final = logger("nodectl writer")


@click.command()
@config_option
@click.option("--descriptor", type=int, help="A socket that this process was started with, connected or listening.")
@click.option("--socket", "path", metavar="PATH", help="Listen at this path.")
@click.option("--user", metavar="NAME", help="The user that agents run as, if not root.")
@click.option("--state-dir", metavar="DIR", default=Config().state_dir, show_default=True, help="Where the save is.")
def writer(file: Path | None, descriptor: int | None, path: str | None, user: str | None, state_dir: str) -> int:
    """Write knobs for an agent, and put them back when it is gone or does not renew their leases.

    `nodectl run` starts one by itself. Run this by hand, or as a service, for an agent that is not root:
    `nodectl run --writer PATH`. Of the settings it takes `may_raise` and `[foreign]`.
    """
    if (descriptor is None) == (path is None):
        raise click.UsageError("one of --descriptor and --socket is needed")
    config = _settings(file)
    agent_uid = _uid_of(user) if user else os.geteuid()
    if path is not None:
        listener: socket.socket | None = _listen(path, agent_uid)
        connection = None
    else:
        assert descriptor is not None
        given = socket.socket(fileno=descriptor)
        given.set_inheritable(False)
        is_listening = given.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        listener, connection = (given, None) if is_listening else (None, given)
    ports = system_ports()
    with Interruptions(ports.clock) as stop:
        served = Served(ports, state_dir, may_raise=config.may_raise, foreign=config.foreign)
        if connection:
            Session(served, _log).serve(Channel(connection), stop)
            connection.close()
        if listener:
            _serve_all(served, listener, {0, os.geteuid(), agent_uid}, stop)
    return 0


def _settings(file: Path | None) -> Config:
    """What a writer takes of the settings. The rest is the agent's: a policy's file is not even read here, as root."""
    if file is None and Path(DEFAULT_PATH).exists():
        file = Path(DEFAULT_PATH)
    if file is None:
        return Config()
    text, settings = read_toml(file)
    ours = {key: value for key, value in settings.items() if key in ("may_raise", "foreign")}
    return build_config(ours, lambda path: f"{file}:{line_of(text, path)}")


def _serve_all(served: Served, listener: socket.socket, allowed: set[int], stop: Interruptions) -> None:
    """One agent after the other."""
    notifier = Notifier()
    notifier.send("READY=1", "STATUS=no agent is connected")
    while not stop.is_over():
        notifier.alive(time.monotonic_ns())
        wait_s = notifier.sleep_ns / 1e9 if notifier.sleep_ns else None
        ready, _, _ = select.select([listener.fileno(), stop.descriptor], [], [], wait_s)
        if listener.fileno() not in ready:
            continue
        connection, _ = listener.accept()
        channel = Channel(connection)
        uid = channel.peer_uid()
        if uid in allowed:
            notifier.send(f"STATUS=writes for an agent of uid {uid}, {len(served.knobs)} knobs")
            Session(served, _log).serve(channel, stop, notifier)
            notifier.send("STATUS=no agent is connected")
        else:
            _log(f"refused a connection of uid {uid}")
        channel.close()
    notifier.send("STOPPING=1")


def _listen(path: str, agent_uid: int) -> socket.socket:
    """A socket that only the agent's user may connect to."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        if os.path.exists(path):
            os.unlink(path)
        before = os.umask(0o177)
        try:
            listener.bind(path)
        finally:
            os.umask(before)
        if agent_uid != os.geteuid():
            os.chown(path, agent_uid, -1)
        listener.listen(4)
    except OSError as error:
        raise NodectlError(f"{path}: cannot listen there: {error.strerror}") from error
    return listener


def _uid_of(name: str) -> int:
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        raise NodectlError(f"--user: there is no user {name}") from None
