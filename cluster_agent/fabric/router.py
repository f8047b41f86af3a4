"""The cluster agent's end of the links to its nodes: one ROUTER socket, CURVE, and limits on all that a peer can do.

- libzmq runs in a process of its own (``front``), since a peer can make it abort. The next one takes over at once; its
  connections are new, everything else here stays.
- Keys are checked in the handshake (ZAP, answered here): a peer whose key is not on the list cannot send a message. The
  sender is known by the key of its connection; a name in the message is ignored. A key that is taken off the list is
  neither heard nor sent anything from then on.
- A message above ``LARGEST`` ends the connection; one above the limit of its kind is dropped, and so are more than
  ``RATE`` messages a second from one key. libzmq queues at most ``QUEUED`` in each direction per peer and reads peers
  in turn, so that one cannot crowd out another.
- A peer that reads slowly loses grants, which the ledger allows for, and delays nobody.
- Peers cannot choose the name of their connection: libzmq's own names begin with a zero byte; others are ignored.

Unknown kinds of message are logged and dropped: a newer node may send more kinds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import zmq

from cluster_agent.fabric.allowed import Allowed, Entry
from cluster_agent.fabric.front_pipe import Came, Handshake, Send, Welcome
from cluster_agent.fabric.front_supervisor import FrontSupervisor
from cluster_agent.fabric.people import ANSWER, ASK, LINK_REQUEST, NOBODY, AnswerEnvelope, Caller
from foundation.wire import phase_messages
from foundation.wire.addresses import is_ipv6, plain_address
from foundation.wire.job_messages import UP, JobQuery, Message, NodeJobs, kind_of, read_job_message
from foundation.wire.keys import KeyPair
from foundation.wire.link_options import PRESENCE, QUEUED, refuse_open_link
from foundation.wire.phase_messages import FromNode, ToNode, read_phase_message
from foundation.wire.power_messages import (
    MAX_BYTES,
    OLDEST,
    PROTOCOL,
    SPEAKS_JOBS,
    Envelope,
    Grant,
    Report,
    WireError,
    pack,
    read_report,
    unpack,
)

LARGER: Final = {**UP, **phase_messages.UP, ASK: LINK_REQUEST}
LARGEST: Final = max(MAX_BYTES, *LARGER.values())

RATE: Final = 20.0
"""Ours: messages per second and key, on average. A node sends its report and its jobs once a second, and once more for
each cap that it confirms and each change of its jobs."""

BURST: Final = 40.0
NOTIFIERS: Final = 25
"""Ours: a notifier's key may send so many times as much, since a job manager may start a thousand jobs at once."""

BACKLOG: Final = 1024
FORGET_S: Final = 60.0
"""Ours: a connection without a message for so long is forgotten."""

COMPLAINTS: Final = 20
"""Ours: how many kinds of complaint about one peer the log distinguishes."""


_READERS: Final[dict[str, Callable[[Envelope], Any]]] = {
    "report": read_report, "jobs": read_job_message, **dict.fromkeys(phase_messages.KINDS_UP, read_phase_message),
}  # fmt: skip
"""By kind, what decodes a message of a node."""


@dataclass(slots=True)
class _Speaker:
    """The message allowance of one key, and how many of its messages were dropped, by reason."""

    tokens: float = BURST
    filled_s: float = 0.0
    dropped: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Way:
    """How to reach a node: its last connection, and the newest protocol that it knows."""

    connection: bytes
    speaks: int


@dataclass(slots=True)
class _Connection:
    """One connection. ``name``: of its node; ``way``: to it."""

    public: str
    speaker: _Speaker
    heard_s: float
    way: _Way
    name: str = ""


@dataclass(frozen=True, slots=True)
class PeopleRequest:
    """A request by somebody with a key of role admin, notifier or viewer: an encoded ``people.RequestEnvelope``."""

    caller: Caller
    frame: bytes
    way: _Way


class Router:
    """Listens at ``url``; the loop polls ``interests`` and calls ``receive`` at least once a second. ``say`` logs.

    Without ``keys`` there is no protection at all. This is refused, except with ``is_insecure`` on loopback; then a
    node's name is taken from its messages.
    """

    def __init__(
        self,
        url: str,
        keys: KeyPair | None,
        allowed: Allowed,
        say: Callable[[str], None] = lambda line: None,
        is_insecure: bool = False,
    ) -> None:
        if keys is None:
            refuse_open_link(url, is_insecure)
        self._is_open = keys is None
        self._allowed, self._say = allowed, say
        self._connections: dict[bytes, _Connection] = {}
        self._speakers: dict[str, _Speaker] = {}
        self._ways: dict[str, _Way] = {}
        self._swept_s = 0.0
        self.unsent = 0
        """Messages that could not be queued: their node is gone, or reads too slowly."""
        self.dropped = 0
        """Messages that were invalid, too many, or not allowed for their sender."""
        self._job_news: list[NodeJobs] = []
        self._phase_news: list[FromNode] = []
        self._requests: list[PeopleRequest] = []
        if keys is not None:
            allowed.refresh()
        self._front = FrontSupervisor(url, *((keys.public, keys.secret) if keys else ("", "")), _options(url), say)
        self._generation = self._front.generation
        self.url = self._front.url

    @property
    def front_pid(self) -> int:
        """The process that has the sockets."""
        return self._front.pid

    @property
    def trouble(self) -> str:
        """Words for an alarm if that process has ended lately; else empty."""
        return self._front.trouble

    @property
    def gap_s(self) -> float:
        """Seconds for which nobody listened, when that process was replaced last."""
        return self._front.gap_s

    def interests(self) -> dict[int, bool]:
        """Descriptors to poll: True where something is to be written, else for reading."""
        return self._front.interests()

    def receive(self, now_s: float) -> list[Report]:
        """The reports that have arrived, each under the name of its key. Messages about jobs and phases
        are kept for ``job_news`` and ``phase_news``."""
        self._allowed.refresh()
        turns = self._front.receive()
        if self._front.generation != self._generation:  # all connections of the last one are gone
            self._generation = self._front.generation
            self._connections.clear()
            self._ways.clear()
        if now_s - self._swept_s > FORGET_S:
            self._forget(now_s)
        reports: list[Report] = []
        for turn in turns:
            for handshake in turn.handshakes:
                self._shake_hands(handshake)
            for lost in turn.lost:
                self._miss(lost.connection, lost.is_gone)
            for came in turn.came:
                report = self._take(now_s, came)
                if report is not None:
                    reports.append(report)
        return reports

    def send(self, grant: Grant) -> bool:
        """Queue a grant for its node; False if that is impossible, which is the same as lost on the way."""
        return self._send(grant.node, "grant", grant)

    def flush(self) -> None:
        """Let go of what was queued since the last time; ``receive`` does it, too."""
        self._front.flush()

    def job_news(self) -> list[NodeJobs]:
        """The messages about jobs that ``receive`` has read since the last call, in order, under the names of their
        keys."""
        found, self._job_news = self._job_news, []
        return found

    def phase_news(self) -> list[FromNode]:
        """The messages about phases of programs, in the same way."""
        found, self._phase_news = self._phase_news, []
        return found

    def requests(self) -> list[PeopleRequest]:
        """The requests of people that ``receive`` has read since the last call."""
        found, self._requests = self._requests, []
        return found

    def answer(self, request: PeopleRequest, answer: AnswerEnvelope) -> None:
        """Queue the answer; it is dropped if nobody waits for it any more."""
        self._front.send(Send(request.way.connection, pack(ANSWER, answer, request.way.speaks)))

    def send_job(self, node: str, message: Message | JobQuery) -> bool:
        """As ``send``. A node that is too old for messages about jobs gets none."""
        return self.speaks_jobs(node) and self._send(node, kind_of(message), message)

    def send_phases(self, node: str, message: ToNode) -> bool:
        """As ``send``."""
        return self._send(node, phase_messages.kind_of(message), message)

    def speaks_jobs(self, node: str) -> bool:
        """Whether the node's agent knows messages about jobs, by its last message."""
        way = self._ways.get(node)
        return way is not None and way.speaks >= SPEAKS_JOBS

    def _send(self, node: str, kind: str, message: msgspec.Struct) -> bool:
        way = self._ways.get(node)
        is_sent = (
            way is not None
            and self._is_still(node, way)
            and self._front.send(Send(way.connection, pack(kind, message, way.speaks)))
        )
        self.unsent += not is_sent
        return is_sent

    def _is_still(self, node: str, way: _Way) -> bool:
        """Whether the key of that connection is the node's, as of now: one that was revoked gets nothing any more."""
        known = self._connections.get(way.connection)
        entry = self._allowed.find(known.public) if known else None
        return self._is_open or (entry is not None and (entry.role, entry.name) == ("node", node))

    def close(self) -> None:
        """Stop listening at once."""
        self._front.close()

    def _miss(self, connection: bytes, is_gone: bool) -> None:
        """A message could not be queued for this connection."""
        self.unsent += 1
        known = self._connections.get(connection)
        if is_gone and known is not None and self._ways.get(known.name) is known.way:
            del self._ways[known.name]

    def _shake_hands(self, handshake: Handshake) -> None:
        """Say whether a key is allowed."""
        entry = self._allowed.find(handshake.public)
        if entry is None and self._allowed.refresh():
            entry = self._allowed.find(handshake.public)
        if entry is None:
            peer = plain_address(handshake.address.decode(errors="replace"))
            key = handshake.public or "(none)"
            self._complain("", f"a key that is not on {self._allowed.path}: {key} from {peer}")
        else:
            self._front.connected(entry.name)
        self._front.send(Welcome(handshake.asker, handshake.request, handshake.public if entry else ""))

    def _take(self, now_s: float, came: Came) -> Report | None:
        """The report in a message, if there is a valid one."""
        connection = self._connections.get(came.connection) or self._met(now_s, came.connection, came.public)
        connection.heard_s = now_s
        entry = Entry("node", "", "") if self._is_open else self._allowed.find(connection.public)
        if entry is None:
            self._complain("", f"a key that has been revoked: {connection.public}")
            return None
        if not _is_within_rate(now_s, connection.speaker, NOTIFIERS if entry.role == "notifier" else 1):
            self._complain(entry.name, f"more than {RATE:g} messages a second")
            return None
        if not came.is_plain:
            self._complain(entry.name, "a message in parts, or a connection with a name of its own")
            return None
        try:
            envelope = unpack(came.frame, LARGER)
            return self._read(connection, entry, envelope)
        except WireError as error:
            self._complain(entry.name, str(error))
            return None

    def _read(self, connection: _Connection, entry: Entry, envelope: Envelope) -> Report | None:
        way, speaks = connection.way, max(min(envelope.speaks, PROTOCOL), OLDEST)
        if way.speaks != speaks:
            connection.way = way = _Way(way.connection, speaks)
        if envelope.kind == ASK and entry.role != "node":
            caller = Caller(NOBODY, f"key {entry.name}", entry.role)
            self._requests.append(PeopleRequest(caller, bytes(envelope.body), way))
            return None
        if envelope.kind not in _READERS:
            self._complain(entry.name, f"kind {envelope.kind[:40]!r} is not known here")
            return None
        if entry.role != "node":
            self._complain(entry.name, f"a message of kind {envelope.kind!r} under a key of role {entry.role}")
            return None
        message: Report | NodeJobs | FromNode = _READERS[envelope.kind](envelope)
        if not self._is_open and message.node != entry.name:
            self._complain(entry.name, f"calls itself {message.node!r}: the name of its key is used", is_dropped=False)
            message = msgspec.structs.replace(message, node=entry.name)
        connection.name = message.node
        self._ways[message.node] = way
        if isinstance(message, Report):
            return message
        if isinstance(message, NodeJobs):
            self._job_news.append(message)
        else:
            self._phase_news.append(message)
        return None

    def _met(self, now_s: float, name: bytes, public: str) -> _Connection:
        """Note a new connection. Connections of one key share its allowance."""
        speaker = self._speakers.setdefault(public or name.hex(), _Speaker(filled_s=now_s))
        self._connections[name] = made = _Connection(public, speaker, now_s, _Way(name, OLDEST))
        return made

    def _complain(self, name: str, what: str, is_dropped: bool = True) -> None:
        """Count a dropped or odd message; log the first, then every tenfold number, so that a peer cannot fill the
        log."""
        self.dropped += 1
        dropped = self._speakers.setdefault(f"log {name}", _Speaker()).dropped
        if len(dropped) >= COMPLAINTS:
            what = "other things"
        dropped[what] = count = dropped.get(what, 0) + 1
        if str(count).strip("0") == "1":
            times = f" ({count} times)" if count > 1 else ""
            self._say(f"{name or 'somebody'}: {'dropped: ' if is_dropped else ''}{what}{times}")

    def _forget(self, now_s: float) -> None:
        """Forget connections without messages: they are gone, or recognised again by the key of their next message."""
        self._swept_s = now_s
        for name in [name for name, one in self._connections.items() if now_s - one.heard_s > FORGET_S]:
            gone = self._connections.pop(name)
            if self._ways.get(gone.name, _Way(b"", OLDEST)).connection == name:
                del self._ways[gone.name]
        heard = {id(one.speaker) for one in self._connections.values()}
        for key, one in list(self._speakers.items()):
            if not one.dropped and now_s - one.filled_s > FORGET_S and id(one) not in heard:
                del self._speakers[key]


def _options(url: str) -> list[tuple[int, int]]:
    """Of the socket that nodes connect to."""
    return [
        (zmq.LINGER, 0),
        (zmq.ROUTER_MANDATORY, 1),  # an error when a peer is gone or its queue is full
        (zmq.SNDHWM, QUEUED),
        (zmq.RCVHWM, QUEUED),
        (zmq.MAXMSGSIZE, LARGEST),
        (zmq.BACKLOG, BACKLOG),
        (zmq.IPV6, int(is_ipv6(url))),
        *PRESENCE,
    ]


def _is_within_rate(now_s: float, speaker: _Speaker, times: int) -> bool:
    """Whether this key may send a message now (a token bucket that fills at so many times ``RATE``)."""
    speaker.tokens = min(speaker.tokens + (now_s - speaker.filled_s) * times * RATE, times * BURST)
    speaker.filled_s = now_s
    if speaker.tokens < 1.0:
        return False
    speaker.tokens -= 1.0
    return True
