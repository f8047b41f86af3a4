"""The agent's side: a writer like ``nodectl.write.writer.Writer``, which runs in a process of its own.

A writer that this agent started is a child of the restorer (``nodectl/csrc/supervise.c``), which is the agent's child.
Both are in a session of their own: no signal of the terminal reaches them, and they outlive the agent for as long as it
takes to put the knobs back. The restorer takes the node's lock before the writer starts, puts the knobs back when the
writer dies, and kills a writer that is stopped for longer than a lease. The agent then starts both again. It does so
too where the writer does not answer or its restorer is gone. Where that happens again and again the run ends.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from foundation.shell.errors import NodectlError
from nodectl.knobs.api import Outcome, Raised
from nodectl.write.lock import LockError
from nodectl.write.many_files import as_written
from nodectl.write.restore import Restoration
from nodectl.write.saves import SaveError
from nodectl.writer_process.channel import ChannelError
from nodectl.writer_process.knob_leases import boottime_ns
from nodectl.writer_process.writer_link import Link, WriterLostError
from nodectl.writer_process.writer_protocol import (
    LEASE_S,
    LONGEST_LEASE_S,
    VERSION,
    Applied,
    Apply,
    Descriptors,
    Done,
    Failed,
    Hello,
    KnobEntry,
    LimitRestores,
    LookAgain,
    Outcomes,
    ProtocolError,
    PublishJoules,
    Restore,
    RestoreAll,
    SiteLocks,
    Start,
    Started,
    Welcome,
    decode_reply,
    encode,
    type_reply,
    type_request,
)

ANSWER_S: Final = 10.0
"""Ours: a writer that is silent for so long is killed and started again. It is below the watchdog of the unit, 15 s."""

START_S: Final = 60.0
"""Ours: finding the knobs of a large node on a busy machine, and waiting for a restore, take their time."""

RESTARTS, RESTARTS_WITHIN_S = 3, 60.0
"""Ours: after so many restarts in this time the run ends."""

LEASE_PERIODS: Final = 3
"""Ours: a lease lasts at least so many periods of the control loop, which renews it once per period."""

_ERRORS: Final[Mapping[str, type[NodectlError]]] = {"lock": LockError, "save": SaveError, "request": ProtocolError}

R = TypeVar("R")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class KnownCeilings:
    """``nodectl.write.ceilings.Ceilings`` as far as the writer has sent them."""

    values: dict[str, int] = field(default_factory=dict)
    site: dict[str, int] = field(default_factory=dict)


class RemoteWriter:
    """``Writer`` over a connection. ``opened``: descriptors of files that only root may read, by path; ``movable``:
    the files that the writer may write. ``while_waiting`` is called each second that an answer takes: whoever waits for
    a writer that starts again does not hang, and its own watchdog need not end it."""

    def __init__(self, connect: Callable[[], Link]) -> None:
        self._connect = connect
        self._restarts: list[float] = []
        self._notices: list[str] = []
        self._is_started = False
        self.while_waiting: Callable[[], object] = lambda: None
        self.captured: Mapping[str, str] = {}
        self.restore_limits: Mapping[str, int] = {}
        self.ceilings = KnownCeilings()
        self._raised: dict[str, Raised] = {}
        self._site_locks: dict[str, int] = {}
        self.lease_s = LEASE_S
        self.expired = 0
        self.answer_s = ANSWER_S
        self.opened: dict[str, int] = {}
        self.movable: frozenset[str] = frozenset()
        self._number_of: dict[str, int] = {}
        self._entries: list[KnobEntry] = []
        self._cards: dict[str, int] = {}
        self._name_of: list[str] = []
        self._others: frozenset[str] = frozenset()
        self._at_rest: list[Outcome] = []
        self._link: Link | None = None
        self._open()

    def start(self) -> Restoration:
        """Lock the node and restore what an earlier run left moved."""
        return self._started(self._ask(Start(), Started, START_S))

    def limit_restores(self, values: Mapping[str, int]) -> None:
        """``Writer.limit_restores``."""
        values = self._ours(values)
        if values != self.restore_limits:
            self._ask_now(lambda: LimitRestores(boottime_ns(), values), Done)
            self.restore_limits = values

    def apply(self, settings: Mapping[str, int], clocks_too: bool = False) -> list[Outcome]:
        """``Writer.apply``; it also renews the lease of each knob in ``settings``."""
        known = {name: number for name in settings if (number := self._number_of.get(name)) is not None}
        numbers, values = list(known.values()), [settings[name] for name in known]
        lease_ms = round(min(self.lease_s, LONGEST_LEASE_S) * 1000)
        applied = self._ask_now(lambda: Apply(boottime_ns(), lease_ms, numbers, values, clocks_too), Applied)
        self._lower_ceilings(applied)
        self._raised |= applied.raised
        if applied.expired:
            self.expired += applied.expired
            plural = "knobs were" if applied.expired > 1 else "knob was"
            self._notices.append(
                f"this agent was silent for longer than the lease of {lease_ms / 1000:g} s: {applied.expired} {plural}"
                " put back meanwhile"
            )
        outcomes = {name: self._at_rest[number] for name, number in known.items()}
        if len(known) < len(settings):
            outcomes = {name: outcomes.get(name) or _missing(name, value) for name, value in settings.items()}
        for number in applied.written:
            name = self._name_of[number]
            outcomes[name] = as_written(name, settings[name])
        outcomes |= {outcome.knob: outcome for outcome in applied.others}
        return list(outcomes.values())

    def take_raised(self) -> dict[str, Raised]:
        """``Writer.take_raised``."""
        found, self._raised = self._raised, {}
        return found

    def restore(self, names: Iterable[str]) -> list[Outcome]:
        """``Writer.restore``."""
        numbers = [self._number_of[name] for name in names if name in self._number_of]
        return self._ask(Restore(numbers), Outcomes, START_S).outcomes

    def restore_all(self) -> list[Outcome]:
        """``Writer.restore_all``."""
        return self._ask(RestoreAll(), Outcomes, START_S).outcomes if self._is_started else []

    def close(self) -> None:
        """Hang up; the writer process ends once every knob is back."""
        if self._link:
            self._link.close()
            self._link = None
        for descriptor in self.opened.values():
            os.close(descriptor)
        self.opened.clear()

    def know_site_locks(self, values: Mapping[str, int]) -> None:
        """What the site has locked its GPUs to (``nodectl.write.site_lock.SiteLocks.known``)."""
        values = self._ours(values)
        if values != self._site_locks:
            self._site_locks = values
            self._ask(SiteLocks(self._site_locks), Done, START_S)

    def publish_joules(self, page: str) -> None:
        """Write the page of what jobs have drawn; ``NodectlError`` if that is impossible."""
        self._ask(PublishJoules(page), Done, self.answer_s)

    def know_cards(self, numbers: Mapping[str, int]) -> None:
        """The numbers of this process's GPUs, by UUID. A knob of the writer whose card has another number there is not
        used: it would move another card. ``lacks`` then has it, and the next segment numbers alike."""
        self._cards = dict(numbers)
        self._take_names()

    def lacks(self, names: Iterable[str]) -> list[str]:
        """Which of these knobs the writer process does not have, or has for another card."""
        return [name for name in names if name not in self._number_of]

    def look_again(self) -> None:
        """Hardware has come: have the writer put every knob back and find all of this node again."""
        for descriptor in self.opened.values():
            os.close(descriptor)
        self.opened.clear()
        self._is_started = False
        self.captured, self.restore_limits, self.ceilings = {}, {}, KnownCeilings()
        self._site_locks, self._cards = {}, {}
        self._take_welcome(self._ask(LookAgain(), Welcome, START_S))

    def renew_every(self, period_ns: int) -> None:
        """The control loop renews leases once in this time."""
        self.lease_s = max(LEASE_S, LEASE_PERIODS * period_ns / 1e9)

    def notices(self) -> list[str]:
        """Lines for people since the last call."""
        found, self._notices = self._notices, []
        return found

    def _open(self) -> None:
        """Connect, and take what the writer has for us; descriptors that we have already are not replaced."""
        self._link = self._connect()
        try:
            welcome = self._exchange(Hello(VERSION), Welcome, START_S)
        except ChannelError:
            refused = self._link.why_refused()
            self._link.close()
            if refused:
                raise LockError(refused) from None
            raise
        self._link.accepted()
        if self._link.process:
            with contextlib.suppress(OSError):
                self._link.pidfd = os.pidfd_open(welcome.pid)
        self._take_welcome(welcome)

    def _take_welcome(self, welcome: Welcome) -> None:
        if welcome.version != VERSION:
            raise ProtocolError(f"the writer speaks version {welcome.version} of its protocol, this agent {VERSION}")
        self._entries = welcome.knobs
        self._take_names()
        self.movable = frozenset(entry.path for entry in welcome.knobs if entry.path)
        left = welcome.n_files
        while left > 0:
            left -= self._receive_files()

    def _take_names(self) -> None:
        self._name_of = [entry.name for entry in self._entries]
        self._number_of = {entry.name: number for number, entry in enumerate(self._entries) if self._is_same(entry)}
        self._others = frozenset(self._name_of) - self._number_of.keys()
        self._at_rest = [Outcome(name, "unchanged") for name in self._name_of]

    def _is_same(self, entry: KnobEntry) -> bool:
        """Whether a knob of the writer is the knob of that name here."""
        if not entry.card or not self._cards:
            return True
        return entry.name.startswith(f"gpu/{self._cards.get(entry.card, '-')}/")

    def _receive_files(self) -> int:
        assert self._link
        data, descriptors = self._link.channel.receive(START_S, self.while_waiting)
        found = decode_reply(data)
        if not isinstance(found, Descriptors) or not found.paths or sum(found.is_open) != len(descriptors):
            for descriptor in descriptors:
                os.close(descriptor)
            raise ProtocolError("the writer sent other descriptors than it announced")
        paths = [path for path, is_open in zip(found.paths, found.is_open, strict=True) if is_open]
        for path, descriptor in zip(paths, descriptors, strict=True):
            if path in self.opened:
                os.close(descriptor)
            else:
                self.opened[path] = descriptor
        return len(found.paths)

    def _started(self, started: Started) -> Restoration:
        self._is_started = True
        self.captured, self.restore_limits = self._ours(started.captured), self._ours(started.restore_limits)
        self._lower_ceilings(started)
        return Restoration(started.outcomes, started.remarks)

    def _lower_ceilings(self, news: Started | Applied) -> None:
        self.ceilings.values.update(self._ours(news.ceilings))
        self.ceilings.site.update(self._ours(news.site))

    def _ours(self, values: Mapping[str, T]) -> dict[str, T]:
        """The values without those of a knob that is another card's in the writer process."""
        return {name: value for name, value in values.items() if name not in self._others}

    def _ask(self, request: type_request, answer: type[R], patience_s: float) -> R:
        return self._ask_now(lambda: request, answer, patience_s)

    def _ask_now(self, request: Callable[[], type_request], answer: type[R], patience_s: float = 0.0) -> R:
        """Ask and wait for ``answer_s``, or longer where the request takes long. Ask again where the writer has to be
        started again, unless it is lost too often; the request is made again each time, with a new time."""
        if self._link is None:
            raise WriterLostError("the writer process is closed")
        while True:
            try:
                return self._exchange(request(), answer, patience_s or self.answer_s)
            except ChannelError as lost:
                self._start_again(str(lost))

    def _exchange(self, request: type_request, answer: type[R], patience_s: float) -> R:
        assert self._link
        try:
            self._link.channel.send(encode(request))
        except ChannelError:
            patience_s = 0.0  # it may have said why before it ended
        data, _ = self._link.channel.receive(patience_s, self.while_waiting)
        reply: type_reply = decode_reply(data)
        if isinstance(reply, Failed):
            if reply.kind == "stopped":
                self._is_started = False  # every knob is back
                raise WriterLostError(reply.message)
            raise _ERRORS.get(reply.kind, WriterLostError)(reply.message)
        if not isinstance(reply, answer):
            raise ProtocolError(f"the writer answered {type(reply).__name__}, not {answer.__name__}")
        return reply

    def _start_again(self, why: str) -> None:
        now_s = time.monotonic()
        self._restarts = [at_s for at_s in self._restarts if now_s - at_s < RESTARTS_WITHIN_S] + [now_s]
        if len(self._restarts) > RESTARTS:
            raise WriterLostError(f"the writer process was lost {RESTARTS} times within {RESTARTS_WITHIN_S:g} s: {why}")
        if self._link:
            self._link.kill()
        try:
            self._open()
            result = self._started(self._exchange(Start(), Started, START_S)) if self._is_started else Restoration()
            if self._site_locks:
                self._exchange(SiteLocks(self._site_locks), Done, START_S)
        except ChannelError as lost:
            raise WriterLostError(f"the writer process was lost ({why}), and another one as well: {lost}") from lost
        back = sum(outcome.status == "restored" for outcome in result.outcomes)
        done = f"{back} knobs put back from the save" if back else "every knob was back"
        self._notices.append(f"the writer process was lost ({why}): started again, {done}")


def _missing(name: str, value: int) -> Outcome:
    return Outcome(name, "unchanged" if value == 0 else "vanished", "this node has no such knob")
