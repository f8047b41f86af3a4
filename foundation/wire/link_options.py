"""What both ends of a link have in common: when a connection counts as lost, how much may wait, why one is refused."""

from __future__ import annotations

from typing import Final

import zmq

from foundation.shell.errors import UsageError
from foundation.wire.addresses import is_loopback

RECONNECT_MS: Final = 200
LAST_RECONNECT_MS: Final = 5_000
"""Ours: the delay before a reconnection, from a fifth of a second, doubling, to half a lease; libzmq adds jitter of up
to the first to each."""

SILENT_MS: Final = 4_000
"""Ours: a connection is opened again when nothing that was sent on it was acknowledged for so long (TCP_USER_TIMEOUT).
Something is sent every second, except during the handshake, in which one end waits: there TCP keepalive finds a dead
connection. libzmq's heartbeats are not used: version 4.3.5 aborts the process when a heartbeat is due, or arrives, on a
connection that is gone while its messages wait to be read."""

HANDSHAKE_MS: Final = 30_000
"""Ours: how long a handshake may take. It costs either end about a millisecond of processor time, and a cluster agent
that starts has to do it with all its nodes. With a shorter limit the nodes at the end of that queue would give up and
begin again at its end, and each try costs as much as the first."""

PRESENCE: Final = (
    (zmq.TCP_MAXRT, SILENT_MS),
    (zmq.TCP_KEEPALIVE, 1),
    (zmq.TCP_KEEPALIVE_IDLE, SILENT_MS // 2000),
    (zmq.TCP_KEEPALIVE_INTVL, 1),
    (zmq.HANDSHAKE_IVL, HANDSHAKE_MS),
)
"""Socket options of both ends: when a connection counts as lost."""

QUEUED: Final = 4
"""Ours: messages waiting in libzmq in each direction; one that does not fit is dropped, since a later one replaces
it."""

HANDSHAKES: Final = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)
"""Events by which libzmq reports a handshake that failed."""


def why_refused(event: int) -> str:
    """One of ``HANDSHAKES`` in words; "" for another event."""
    if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
        return "our key is not on its list (`clusterctl keys allow`)"
    return "the handshake failed: is its public key the one given here?" if event & HANDSHAKES else ""


def refuse_open_link(url: str, is_insecure: bool) -> None:
    """``UsageError`` unless an unencrypted link was requested (``insecure``) and cannot leave this machine."""
    if not is_insecure:
        raise UsageError(
            f"{url}: no keys given, and nothing is sent unencrypted (make keys: `clusterctl keys new`; docs/cluster.md)"
        )
    if not is_loopback(url.replace(":*", ":0")):
        raise UsageError(f"{url}: without keys only this machine itself (tcp://127.0.0.1:PORT) may be reached")
