"""The writer's side: serve one agent at a time, and put its knobs back when a lease is over or the agent is gone.

The loop sleeps in poll(2): without leases until somebody speaks, else at most until the first lease ends. Whatever
wakes it, leases come first and requests second. So a writer that was stopped for longer than a lease puts the knobs
back before it reads what has been waiting for it, and what it reads then is too old to be written.

The node is locked by this process, not by the agent: while its agent is dead and the knobs are not back yet, no other
agent may capture them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from foundation.shell.notify import Notifier
from nodectl.config import Foreign
from nodectl.knobs import KnobError, Outcome, find_knobs
from nodectl.knobs.gpu_limits import ClockLock
from nodectl.loop.interruptions import Interruptions
from nodectl.site_jobs.joules_page import joules_path, write_page
from nodectl.write.lock import LEAVING_S, LockError, NodeLock
from nodectl.write.many_files import ManyFiles, as_written
from nodectl.write.places import save_places
from nodectl.write.saves import SaveError, node_id
from nodectl.write.writer import YIELD, Writer
from nodectl.writer_process.channel import MOST_DESCRIPTORS, Channel, ChannelError
from nodectl.writer_process.knob_leases import LeasedKnob, Leases, Permission, boottime_ns
from nodectl.writer_process.knob_ranges import card_of, path_of, ranges
from nodectl.writer_process.root_files import find_root_files, open_root_files
from nodectl.writer_process.writer_protocol import (
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
    decode_request,
    encode,
    type_reply,
    type_request,
)
from pmu import inventory
from pmu.instruments import pci_gpus
from pmu.node import discover
from pmu.ports import CounterSet, Ports
from pmu.system import begin_again

BACK: Final = frozenset({"restored", "left", "held", "unchanged", "foreign", "vanished"})
"""Outcomes of a restore or release after which trying again soon is of no use."""

RETRY_S, RETRIES = 1.0, 10
"""Ours: how often a knob that could not be put back is tried again before it is left to the save."""


class Served:
    """What this node has for agents: knobs with their ranges, and files that only root may read. Found at the start,
    and again for an agent where there is other hardware by then."""

    def __init__(
        self,
        ports: Ports,
        state_dir: str,
        root: str = "",
        may_raise: Sequence[str] = (),
        foreign: Foreign = YIELD,
    ) -> None:
        """``root``: the directory that the paths of ``ports`` are below. The rest is as ``Writer`` takes it; it comes
        from the settings and never from an agent."""
        self.ports, self.state_dir, self.root = ports, state_dir, root
        self.may_raise, self.foreign = may_raise, foreign
        self._find()

    def look_again(self) -> None:
        """Hardware may have come, or gone and come back. No knob of before may be used afterwards."""
        self.ports = begin_again(self.ports, self.root)
        self._find()

    def is_outdated(self) -> bool:
        """Whether the kernel shows other hardware than when it was found."""
        return inventory.take(self.ports.files, self._inventory) != self._inventory

    def _find(self) -> None:
        self._inventory = inventory.take(self.ports.files)
        layout, _ = discover(dataclasses.replace(self.ports, counters=_NoCounters()))
        self.knobs, _ = find_knobs(self.ports, layout)
        found = ranges(layout, self.knobs)
        self.entries = [KnobEntry(knob.name, *found[knob.name], path_of(knob), card_of(knob)) for knob in self.knobs]
        self.names = [entry.name for entry in self.entries]
        self.ranges = [(entry.low, entry.high) for entry in self.entries]
        n_cards = len(pci_gpus.look(self.ports.files).cards)
        self.lacks_cards = n_cards > len(layout.gpus)


class Session:
    """One agent's connection, from its ``Hello`` to the moment when its knobs are back."""

    def __init__(
        self,
        served: Served,
        log: Callable[[str], None],
        now_ns: Callable[[], int] = boottime_ns,
    ) -> None:
        self._served, self._log, self._now_ns = served, log, now_ns
        self._lock = NodeLock(served.state_dir, served.ports.lock_path, LEAVING_S)
        self._permission = Permission(now_ns, self._lock.is_current)
        self._leases = Leases()
        self._writer: Writer | None = None
        self._expired = 0
        self._sent_ceilings: tuple[dict[str, int], dict[str, int]] = {}, {}
        self._files: list[str] = []
        self._many: ManyFiles | None = None
        self._notifier = Notifier({})
        self._parent = os.getppid()

    def serve(self, channel: Channel, stop: Interruptions, notifier: Notifier | None = None) -> None:
        """Until the agent is gone or a signal stops this process; then put every knob back. ``notifier``: where this
        process is a service of systemd."""
        notifier = self._notifier = notifier or Notifier({})
        poll = select.poll()
        poll.register(channel.descriptor, select.POLLIN)
        poll.register(stop.descriptor, select.POLLIN)
        why = "stopped by a signal"
        try:
            while not stop.is_over():
                notifier.alive(time.monotonic_ns())
                left_ns = sooner(self._leases.left_ns(self._now_ns()), notifier.sleep_ns)
                left_ns = sooner(left_ns, self._listen(poll))
                ready = poll.poll(None if left_ns is None else -(-left_ns // 1_000_000))
                self.put_back_expired()
                self._look_at_caps(ready)
                if any(descriptor == channel.descriptor for descriptor, _ in ready):
                    self._serve_one(channel)
        except ChannelError as closed:
            why = str(closed)
        finally:
            self.end(f"the agent is gone ({why})")
        # a restorer that was killed ends its writer with SIGTERM (PR_SET_PDEATHSIG): the agent starts others
        if stop.is_over() and os.getppid() == self._parent:
            _say_goodbye(channel)

    def _listen(self, poll: select.poll) -> int | None:
        """Wait for writes of others to files of knobs that enforce a cap, but not all the time where they come in a
        loop. Returns the time until the next look at these knobs; None: none enforces one."""
        if self._writer is None:
            return None
        guard, now_ns = self._writer.guard, self._served.ports.clock.now_ns()
        left_ns, pause_ns = guard.left_ns(now_ns), guard.pause_ns(now_ns)
        if guard.descriptor >= 0:
            poll.register(guard.descriptor, 0 if left_ns is None or pause_ns else select.POLLIN)
        return sooner(left_ns, pause_ns or None) if left_ns is not None else None

    def _look_at_caps(self, ready: Sequence[tuple[int, int]]) -> None:
        """Put back what allows more than the cap, between the agent's requests as well."""
        writer = self._writer
        if writer is None:
            return
        if any(descriptor == writer.guard.descriptor for descriptor, _ in ready):
            writer.guard.hear()
        if writer.guard.left_ns(self._served.ports.clock.now_ns()) == 0:
            writer.look_at_caps()

    def _pass_files(self, channel: Channel) -> None:
        for first in range(0, len(self._files), MOST_DESCRIPTORS):
            part = self._files[first : first + MOST_DESCRIPTORS]
            opened = open_root_files(part, self._served.root)
            try:
                channel.send(encode(Descriptors(part, [path in opened for path in part])), list(opened.values()))
            finally:
                for descriptor in opened.values():
                    os.close(descriptor)

    def answer(self, request: type_request) -> type_reply:
        """Carry out one request. Expected failures are an answer too."""
        try:
            return self._answer(request)
        except LockError as error:
            return Failed("lock", str(error))
        except SaveError as error:
            return Failed("save", str(error))
        except ProtocolError as error:
            return Failed("request", str(error))

    def put_back_expired(self) -> None:
        """Put back the knobs whose lease is over."""
        names = self._leases.over(self._now_ns())
        if names and self._writer:
            self._settle(names, self._writer.restore(names))
            self._expired += len(names)

    def end(self, why: str) -> None:
        """The agent is gone: put every knob back, newest capture first, and release the node."""
        try:
            self._put_all_back(why)
        finally:
            self._lock.release()

    def _put_all_back(self, why: str) -> None:
        if self._writer is None:
            return
        try:
            moved = len(self._leases)
            outcomes = self._writer.restore_all()
            for _ in range(RETRIES):
                if all(outcome.status in BACK for outcome in outcomes):
                    break
                time.sleep(RETRY_S)
                self._notifier.alive(time.monotonic_ns())
                outcomes = self._writer.restore_all()
            if moved:
                self._log(f"{why}: {_counted(outcomes)}")
        finally:
            self._writer.close()
            self._writer = None
            if self._many:
                self._many.close()

    def _serve_one(self, channel: Channel) -> None:
        data, descriptors = channel.receive(0.0)
        for descriptor in descriptors:
            os.close(descriptor)  # an agent has none to give
        try:
            request = decode_request(data)
        except ProtocolError as error:
            channel.send(encode(Failed("request", str(error))))
            return
        reply = self.answer(request)
        channel.send(encode(reply))
        if isinstance(reply, Welcome):
            self._pass_files(channel)

    def _answer(self, request: type_request) -> type_reply:
        if isinstance(request, Hello):
            return self._welcome(request)
        if isinstance(request, LookAgain):
            return self._look_again()
        if isinstance(request, Start):
            return self._start()
        if isinstance(request, PublishJoules):
            return self._publish(request.page)
        writer = self._writer
        if writer is None:
            raise ProtocolError("the first request must be a start")
        match request:
            case Apply():
                return self._apply(writer, request)
            case LimitRestores():
                if not self._permission.begin(request.made_ns, 1_000_000_000):
                    raise SaveError("limits of restores that were requested too long ago are not recorded")
                self._permission.end()
                writer.limit_restores({name: self._limit_in_range(name, at) for name, at in request.values.items()})
                return Done()
            case SiteLocks():
                self._take_site_locks(writer, request.values)
                return Done()
            case Restore():
                names = self._names(request.knobs)
                outcomes = writer.restore(names)
            case RestoreAll():
                names = [entry.name for entry in self._served.entries]
                outcomes = writer.restore_all()
        self._settle(names, outcomes)
        return Outcomes(outcomes)

    def _welcome(self, request: Hello) -> type_reply:
        if request.version != VERSION:
            raise ProtocolError(f"the agent speaks version {request.version} of this protocol, the writer {VERSION}")
        if self._writer is None and (self._served.is_outdated() or self._served.lacks_cards):
            self._served.look_again()
        return self._welcomed()

    def _look_again(self) -> Welcome:
        """The node stays locked: no other agent may capture knobs that are at a restore limit of this one."""
        self._put_all_back("hardware has come")
        self._leases = Leases()
        self._sent_ceilings = {}, {}
        self._served.look_again()
        return self._welcomed()

    def _welcomed(self) -> Welcome:
        self._files = find_root_files(self._served.root)
        return Welcome(VERSION, os.getpid(), self._served.entries, len(self._files))

    def _start(self) -> type_reply:
        if self._writer is not None:
            raise ProtocolError("started already")
        served = self._served
        if not self._lock.is_taken:
            self._lock.acquire()
        try:
            knobs = [LeasedKnob(knob, self._permission) for knob in served.knobs]
            self._many = ManyFiles(served.knobs, served.root, self._permission.check)
            places, boot_id = save_places(served.state_dir, served.ports.lock_path), node_id(served.ports.lock_path)
            writer = Writer(
                knobs, places, boot_id, served.ports.clock, self._lock.is_current,
                served.may_raise, served.foreign, self._many, served.root,
            )  # fmt: skip
            earlier = writer.start()
        except BaseException:
            if self._many:
                self._many.close()
            self._lock.release()
            raise
        self._writer = writer
        captured, limits = dict(writer.captured), dict(writer.restore_limits)
        return Started(earlier.outcomes, earlier.remarks, captured, limits, *self._news_of_ceilings(writer))

    def _apply(self, writer: Writer, request: Apply) -> Applied:
        names = self._names(request.knobs)
        lease_ns = request.lease_ms * 1_000_000
        try:
            if not self._permission.begin(request.made_ns, lease_ns):
                late = "requested too long ago; not written"
                return self._applied(request, names, [Outcome(name, "refused", late) for name in names])
            settings = dict(zip(names, self._in_range(request), strict=True))
            outcomes = writer.apply(settings, request.clocks_too)
        finally:
            self._permission.end()
        # the lease runs from the end of the writes: until then it was this process that the agent waited for
        moved = [name for name, value in settings.items() if value]
        self._leases.renew(moved, self._now_ns() + lease_ns)
        if len(moved) < len(outcomes):
            self._leases.end(one.knob for one in outcomes if one.status in BACK and not settings.get(one.knob))
        if self._permission.is_late:
            self._leases.renew(moved, 0)
            self.put_back_expired()
        return self._applied(request, names, outcomes)

    def _publish(self, page: str) -> Done:
        """An agent that only looks may do that too, without a start."""
        lock_path = self._served.ports.lock_path
        if lock_path:
            try:
                write_page(joules_path(lock_path), page)
            except OSError as error:
                raise SaveError(f"{joules_path(lock_path)}: {error.strerror}") from None
        return Done()

    def _take_site_locks(self, writer: Writer, values: Mapping[str, int]) -> None:
        """From now on these are the clocks that a restore locks these GPUs to, and that no lock of ours exceeds."""
        for knob in self._served.knobs:
            if isinstance(knob, ClockLock) and knob.name in values and knob.name not in writer.captured:
                knob.baseline_mhz = values[knob.name]
                with contextlib.suppress(KnobError):
                    writer.ceilings.found(knob.name, knob.read())

    def _news_of_ceilings(self, writer: Writer) -> tuple[dict[str, int], dict[str, int]]:
        """What is lower than the agent knows."""
        news = []
        for now, sent in zip((writer.ceilings.values, writer.ceilings.site), self._sent_ceilings, strict=True):
            found = {} if now == sent else {name: value for name, value in now.items() if sent.get(name) != value}
            sent.update(found)
            news.append(found)
        return news[0], news[1]

    def _in_range(self, request: Apply) -> list[int]:
        """The requested values, each brought into its knob's range; 0 stays."""
        ranges = self._served.ranges
        found = [(value, *ranges[at]) for at, value in zip(request.knobs, request.values, strict=True)]
        return [
            value if low <= value <= high or not value else min(max(value, low), high) for value, low, high in found
        ]

    def _limit_in_range(self, name: str, value: int) -> int:
        """What a restore may set a knob to; the node's cap, which is no knob, stays as it is."""
        entry = next((one for one in self._served.entries if one.name == name), None)
        return min(max(value, entry.low), entry.high) if entry else value

    def _applied(self, request: Apply, names: list[str], outcomes: list[Outcome]) -> Applied:
        """The answer, short: numbers for knobs that were written as requested, nothing for those left unchanged."""
        written: list[int] = []
        others: list[Outcome] = []
        # first those of the request, in its order: one that is elsewhere is sent whole
        for name, at, value, one in zip(names, request.knobs, request.values, outcomes, strict=False):
            if one.status == "written" and one.knob == name:
                # ManyFiles gives the very same object, so that comparing costs nothing
                plain = as_written(name, value)
                if one is plain or one == plain:
                    written.append(at)
                    continue
            if one.status != "unchanged" or one.detail:
                others.append(one)
        others += [one for one in outcomes[len(names) :] if one.status != "unchanged" or one.detail]
        expired, self._expired = self._expired, 0
        assert self._writer
        return Applied(written, others, expired, *self._news_of_ceilings(self._writer), self._writer.take_raised())

    def _names(self, numbers: Iterable[int]) -> list[str]:
        known = self._served.names
        try:
            return [known[number] for number in numbers]
        except IndexError:
            raise ProtocolError(f"there are {len(known)} knobs, and one of a higher number is requested") from None

    def _settle(self, names: Iterable[str], outcomes: list[Outcome]) -> None:
        """End the leases of knobs that are back; the others are tried again soon."""
        self._leases.end(names)
        stuck = [outcome.knob for outcome in outcomes if outcome.status not in BACK]
        self._leases.renew(stuck, self._now_ns() + round(RETRY_S * 1e9))


def sooner(first_ns: int | None, second_ns: int | None) -> int | None:
    """The shorter one of two times; None: no limit."""
    limits = [one for one in (first_ns, second_ns) if one is not None]
    return min(limits, default=None)


class _NoCounters:
    """The writer counts nothing."""

    def why_not(self, event: str) -> str | None:
        return "the writer counts no events"

    def open(self, cpus: tuple[int, ...], events: tuple[str, ...]) -> CounterSet:
        raise NotImplementedError


def _say_goodbye(channel: Channel) -> None:
    try:
        channel.send(encode(Failed("stopped", "the writer process was stopped by a signal; every knob is back")))
    except ChannelError:
        return  # the agent has gone first


def _counted(outcomes: list[Outcome]) -> str:
    counts: dict[str, int] = {}
    for outcome in outcomes:
        counts[outcome.status] = counts.get(outcome.status, 0) + 1
    return ", ".join(f"{count} knobs {status}" for status, count in counts.items()) or "every knob was back already"
