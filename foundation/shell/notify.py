"""What a service reports to systemd: ready, still alive, stopping.

The protocol is one datagram of ``KEY=value`` lines to the socket named in ``NOTIFY_SOCKET`` (an ``@`` stands for the
abstract namespace's NUL byte); ``WATCHDOG_USEC`` is how long the service may stay silent. Source: sd_notify(3).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from typing import Final

from foundation.shell.plain_text import plain

FEEDS: Final = 10
"""Ours: how often a watchdog is fed within its time-out. sd_notify(3) recommends twice; but then a single tick may take
only half of the time-out, and a node whose sensors take two seconds each would be restarted for it."""

PATIENCE_S: Final = 5.0
"""Ours: how long a service waits for systemd to take what is not repeated, such as ``READY=1``."""

STATUS_EVERY_NS: Final = 5_000_000_000
"""Ours: people look at a status, and each one costs systemd a message on its bus."""


class Notifier:
    """Sends notifications to systemd; does nothing where this process is not one of its services."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        is_ours = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self._every_ns = int(environment.get("WATCHDOG_USEC", "0")) * 1000 // FEEDS if is_ours else 0
        self._due_ns = 0
        self._status, self._status_due_ns = "", 0

    def send(self, *lines: str) -> None:
        """Send ``READY=1``, ``STOPPING=1`` or ``STATUS=`` and text, which may be from elsewhere and begins no line of
        its own: ``MAINPID=`` would be believed."""
        self._send(PATIENCE_S, *lines)

    def _send(self, patience_s: float, *lines: str) -> bool:
        """Whether it was taken. systemd may be late to read, and a notification must never stop the agent for long."""
        if not self._address:
            return False
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.settimeout(patience_s)
            try:
                sender.sendto("\n".join(map(plain, lines)).encode(), address)
            except (BlockingIOError, TimeoutError):
                return False
            except OSError:
                self._address = ""  # nobody listens any more: a notification must never end the agent
                return False
        return True

    def alive(self, now_ns: int) -> None:
        """Feed the watchdog, if it is time."""
        is_due = self._every_ns and now_ns >= self._due_ns
        if is_due and self._send(0.0, "WATCHDOG=1"):  # else again at the next call
            self._due_ns = now_ns + self._every_ns

    @property
    def sleep_ns(self) -> int | None:
        """The longest that a service may sleep between two calls of ``alive``; None: as long as it likes."""
        return self._every_ns * FEEDS // 2 or None

    def status(self, now_ns: int, text: Callable[[], str]) -> None:
        """Send ``STATUS=`` and the text, if it is time and there is another text than before; ``systemctl status``
        shows it. Where nobody listens ``text`` is not called."""
        if not self._address or now_ns < self._status_due_ns:
            return
        self._status_due_ns = now_ns + STATUS_EVERY_NS
        found = text()
        if found != self._status and self._send(0.0, f"STATUS={found}"):
            self._status = found
