"""A listening Unix socket that only its owner can connect to."""

from __future__ import annotations

import errno
import os
import socket
import stat

from firmware_bridge.errors import LinkError


def listen(path: str, kind: socket.SocketKind) -> socket.socket:
    """A non-blocking listener with mode 0600. Replaces the socket of a server that was killed, but no other file."""
    listener = socket.socket(socket.AF_UNIX, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    os.fchmod(listener.fileno(), 0o600)  # before bind, so that others can never open the socket file
    try:
        try:
            listener.bind(path)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not _is_abandoned(path, kind):
                raise
            os.unlink(path)
            listener.bind(path)
        listener.listen()
    except OSError as error:
        listener.close()
        raise LinkError(f"{path}: cannot listen there: {error.strerror or error}") from None
    return listener


def _is_abandoned(path: str, kind: socket.SocketKind) -> bool:
    """Whether it is a socket without a listener. Any other file may be in use."""
    if not stat.S_ISSOCK(os.stat(path).st_mode):
        return False
    with socket.socket(socket.AF_UNIX, kind) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False
