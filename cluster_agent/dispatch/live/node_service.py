"""The node manager as a process: ``python -m cluster_agent.dispatch.live.node_service FD``, a child of the agent.

    task managers, other nodes ── CURVE ──► this process ── job starts ──► the agent ──► job step
                                             journal    ◄── lease, parts ──

It decides by ``node_manager`` alone, has libzmq, and starts nothing itself: the agent's job step and lease are the only
way in which a job starts. A start is given to the agent again and again until the agent lists its part; an attempt of a
job that the agent knows is not started twice. If the journal cannot be written this process ends, and the next one goes
by what is on the disk.
"""

from __future__ import annotations

import contextlib
import functools
import signal
import socket
import sys
import time
from collections.abc import Callable
from heapq import heappop, heappush
from pathlib import Path
from typing import Final

import msgspec

from cluster_agent.dispatch import messages as m
from cluster_agent.dispatch import node_manager
from cluster_agent.dispatch.fitting_index import Desired, Need, Profile
from cluster_agent.dispatch.live.dispatch_frames import FROM_NODES, FROM_TASKS, Program, frame_of, read_frame
from cluster_agent.dispatch.live.manager_links import Came, ManagerLinks
from cluster_agent.dispatch.live.node_journal import Entry, NodeJournal
from cluster_agent.dispatch.live.own_user import become
from cluster_agent.dispatch.live.partition_file import read_nodes
from cluster_agent.dispatch.node_state import RUNS, NodeState
from cluster_agent.errors import ClusterError
from cluster_agent.fabric.allowed import FILE as ALLOWED
from cluster_agent.fabric.allowed import Allowed
from foundation.process_rights import end_with_parent
from foundation.shell.errors import NodectlError
from foundation.shell.log import logger
from foundation.wire.dispatch_messages import Lease, ManagerSettings, packet, read_packet
from foundation.wire.job_messages import JobForget, JobPart, JobSignal, JobStart, NodeJobs, filled
from foundation.wire.keys import read_pair
from foundation.wire.power_messages import WireError

AGAIN_S: Final = 1.0
"""Ours: how often the agent is sent again what its parts do not show yet."""
ALIVE_S: Final = 1.0
KEEP_US: Final = 7 * 86_400_000_000
"""Ours: for so long the end of a job waits for its task manager."""
MOST_OWNERS: Final = 4096
PACKET: Final = 1 << 19

Key = tuple[int, int]


def wall_us() -> int:
    """Unix time: managers of different nodes agree on slots by it."""
    return time.time_ns() // 1000


class AgentGoneError(Exception):
    """The node's agent has closed the pair."""


class NodeService:
    """``run`` until the agent is gone. ``NodectlError`` in one line where that is impossible."""

    def __init__(
        self, settings: ManagerSettings, pair: socket.socket, say: Callable[[str], None],
        clock_us: Callable[[], int],
    ) -> None:  # fmt: skip
        directory = Path(settings.directory)
        self._nodes = read_nodes(directory)
        self._number = self._nodes.number(settings.node)
        if self._number < 0:
            raise ClusterError(f"{directory / 'nodes.toml'}: this node, {settings.node}, is not in it")
        self._pair, self._say, self._clock_us = pair, say, clock_us
        self._settings, self._keys, self._allowed = settings, read_pair(Path(settings.key)), Allowed(directory)
        self._journal = NodeJournal(Path(settings.journal))
        self._entries: dict[Key, Entry] = {}
        self._programs: dict[Key, Program] = {}
        self._owners: dict[int, str] = {}
        self._ways: dict[int, bytes] = {}
        self._later: list[tuple[int, int, m.Due]] = []
        self._count = 0
        self._jobs: NodeJobs | None = None
        self._parts: dict[Key, JobPart] = {}
        self._starts: dict[Key, JobStart] = {}
        self._stops: set[Key] = set()
        self._delayed_ends: dict[Key, m.End] = {}
        self._said_s = 0.0
        self._recovery: list[m.Order] = []
        self._state: NodeState
        self._links: ManagerLinks

    def run(self) -> None:
        """Hear the agent first: what runs here decides what the journal means."""
        lease: Lease | None = None
        while self._jobs is None or lease is None:
            self._pair.settimeout(None)
            for message in self._from_agent():
                if isinstance(message, NodeJobs):
                    self._hear_jobs(message)
                elif isinstance(message, Lease):
                    lease = message
        self._pair.setblocking(False)
        self._recover()
        self._do(m.Grant(lease.cap_mw, self._clock_us() + lease.left_ns // 1000))
        self._links = ManagerLinks(
            self._settings.listen, self._keys, self._nodes, self._allowed, time.monotonic, self._say
        )
        self._say(f"{self._settings.listen}: node manager {self._number} of {len(self._nodes.nodes)} nodes")
        try:
            while True:
                self._turn()
        finally:
            self._links.close()

    def _recover(self) -> None:
        assert self._jobs is not None
        has = Need(1, self._settings.tdp_mw)  # a job has the whole node
        safe_mw = self._settings.safe_mw
        self._state = NodeState(
            self._number, has, Profile([Desired(0, has)]), self._nodes.rules, safe_mw, m.Grant(safe_mw, 0)
        )
        for entry in self._journal.load(self._say):
            key = entry.row.job, entry.row.attempt
            self._entries[key], self._owners[entry.row.job] = entry, entry.owner
            if entry.program is not None:
                self._programs[key] = entry.program
        boot = self._jobs.boot_id
        alive = {key for key, one in self._entries.items() if one.boot == boot or key in self._parts}
        rows = [one.row for one in self._entries.values()]
        self._state, self._recovery = node_manager.recovered(self._state, rows, self._clock_us(), alive)

    # --- a turn

    def _turn(self) -> None:
        if self._recovery:
            orders, self._recovery = self._recovery, []
            self._carry_out(orders)
            for row in self._state.rows:
                key = row.job, row.attempt
                if row.phase == "running" and not row.why:
                    self._run(row)
                elif row.phase == "running" and key not in self._parts:  # it was to end before it began
                    self._do(m.ProgramEnded(*key))
        now_us = self._clock_us()
        due_s = (self._later[0][0] - now_us) / 1e6 if self._later else ALIVE_S
        self._links.wait([self._pair.fileno()], min(max(due_s, 0.0), ALIVE_S if not self._starts else AGAIN_S / 4))
        with contextlib.suppress(BlockingIOError):
            while True:
                for message in self._from_agent():
                    self._hear(message)
        for came in self._links.receive():
            self._take(came)
        now_us = self._clock_us()
        while self._later and self._later[0][0] <= now_us:
            self._do(heappop(self._later)[2])
        if time.monotonic() - self._said_s >= AGAIN_S:
            self._said_s = time.monotonic()
            self._tell_agent()
            self._forget_old(now_us)

    def _do(self, message: m.Message | m.Grant) -> None:
        self._state, orders = node_manager.step(self._state, message, self._clock_us())
        self._carry_out(orders)

    def _carry_out(self, orders: list[m.Order]) -> None:
        for order in orders:
            if isinstance(order, m.Send):
                self._send(order.to, order.message)
            elif isinstance(order, m.Later):
                self._count += 1
                heappush(self._later, (order.at_us, self._count, order.message))
            elif isinstance(order, m.Write):
                self._write(order.row)
            elif isinstance(order, m.Erase):
                self._journal.erase(order.job, order.attempt)
                for known in (self._entries, self._programs, self._starts):
                    known.pop((order.job, order.attempt), None)
            elif isinstance(order, m.Run):
                self._run(order.row)
            elif isinstance(order, m.Stop):
                self._stop((order.row.job, order.row.attempt))
            else:
                self._say(order.text)

    # --- the links

    def _send(self, to: m.Address, message: m.Message) -> None:
        if to >= 0:
            self._links.send(to, frame_of(message))
        elif (way := self._ways.get(message.job)) is not None:
            self._links.answer(way, frame_of(message))

    def _take(self, came: Came) -> None:
        """A message counts only from who may send it: a task manager for its own job, a node under its own number, an
        administrator to cancel."""
        try:
            message, program = read_frame(came.frame)
        except WireError as error:
            self._links.complain(came.entry.name, str(error))
            return
        if why := self._refusal(came, message):
            self._links.complain(came.entry.name, f"{type(message).__name__}: {why}")
            return
        key = message.job, message.attempt
        if isinstance(message, m.Cancel):
            message = msgspec.structs.replace(message, by=came.entry.name if came.entry.role == "admin" else "")
            if message.by:
                self._links.answer(came.way, frame_of(self._cancelled(message)))
                return
        if came.entry.role == "submitter":
            if message.job not in self._owners and len(self._owners) >= MOST_OWNERS:
                self._forget_owners()
            self._owners[message.job], self._ways[message.job] = came.entry.public, came.way
        if isinstance(message, m.Confirm):
            if program is None:
                self._links.complain(came.entry.name, "a confirmation without a program")
                return
            self._programs.setdefault(key, program)
        if isinstance(message, m.End) and self._lives(key):
            self._delayed_ends[key] = message  # the node is free once nothing of the job lives here
            self._stop(key)
            return
        self._do(message)
        if isinstance(message, m.Confirm) and key not in self._entries:
            self._programs.pop(key, None)

    def _refusal(self, came: Came, message: m.Message) -> str:
        if came.entry.role == "submitter":
            if not isinstance(message, FROM_TASKS):
                return "it is none of a task manager's"
            is_own = self._owners.get(message.job, came.entry.public) == came.entry.public
            return "" if is_own else f"job {message.job} is another's"
        if came.entry.role == "admin":
            return "" if isinstance(message, m.Cancel) else "an administrator's key may cancel jobs, and nothing else"
        number = self._nodes.number(came.entry.name)
        if not isinstance(message, FROM_NODES):
            return "it is none of a node's"
        row = self._state.row(message.job, message.attempt)
        said = getattr(message, "lead", getattr(message, "node", number))
        lead = row.lead if row and isinstance(message, m.Begin | m.End) and row.lead >= 0 else number
        if number < 0 or said != number:
            return f"it calls itself node {said}, and is {number} here: {self._settings.directory}/nodes.toml differs"
        return "" if lead == number else f"node {lead} has job {message.job}"

    def _cancelled(self, message: m.Cancel) -> m.Message:
        """End the job if this node leads it, and the answer to the administrator. What a job has reserved on a node
        that does not lead it is left alone: only its lead knows whether it has begun."""
        led = self._led(message.job)
        if led is not None and led.phase in ("started", "running") and not led.why:
            self._say(f"job {message.job}: {m.cancelled_by(message.by)}")
            self._do(message)
            led = self._led(message.job)
        own = message.job, message.attempt
        if led is None or led.phase == "returned":
            return m.Refused(*own, self._number, "it has no such job", True)
        if led.phase in ("done", "cut"):
            return m.Ended(*own, self._number, "done", led.why)
        return m.Started(*own)

    def _led(self, job: int) -> m.Reservation | None:
        """What this node has of a job that it leads or led, a present attempt before one that is over."""
        rows = (*self._state.rows, *self._state.closing)
        return next((row for row in rows if row.job == job and row.lead == self._number), None)

    def _forget_owners(self) -> None:
        kept = {key[0] for key in self._entries}
        for known in (self._owners, self._ways):
            for job in [job for job in known if job not in kept]:
                del known[job]

    # --- the journal

    def _write(self, row: m.Reservation) -> None:
        assert self._jobs is not None
        key = row.job, row.attempt
        entry = Entry(row, self._programs.get(key), self._owners.get(row.job, ""), self._jobs.boot_id)
        self._journal.write(entry)
        self._entries[key] = entry

    def _forget_old(self, now_us: int) -> None:
        """What nobody has wanted to know for so long."""
        slot_us = self._state.rules.slot_us
        for row in self._state.closing:
            if row.lead == self._number and row.last * slot_us + KEEP_US < now_us:
                self._say(f"job {row.job} was {row.phase}, and its task manager has not come for a week: forgotten")
                self._do(m.Closed(row.job, row.attempt))

    # --- the agent

    def _from_agent(self) -> list[NodeJobs | Lease]:
        frame = self._pair.recv(PACKET)
        if not frame:
            raise AgentGoneError
        return [read_packet(frame)]

    def _hear(self, message: NodeJobs | Lease) -> None:
        if isinstance(message, Lease):
            self._do(m.Grant(message.cap_mw, self._clock_us() + message.left_ns // 1000))
        else:
            self._hear_jobs(message)
            self._follow_parts()

    def _hear_jobs(self, news: NodeJobs) -> None:
        self._jobs, self._parts = news, {(part.job, part.attempt): part for part in news.parts}

    def _lives(self, key: Key) -> bool:
        part = self._parts.get(key)
        return key in self._starts or (part is not None and not part.is_over)

    def _follow_parts(self) -> None:
        for key, part in self._parts.items():
            self._starts.pop(key, None)
            if part.is_over:
                self._stops.discard(key)
                self._do(m.ProgramEnded(*key, _why(self._settings.node, part)))
                if (end := self._delayed_ends.pop(key, None)) is not None:
                    self._do(end)
            elif not self._has(key):
                self._stops.add(key)

    def _has(self, key: Key) -> bool:
        row = self._state.row(*key)
        return row is not None and row.phase in RUNS

    def _run(self, row: m.Reservation) -> None:
        """Have the agent start the unit, until its parts show it."""
        key, program = (row.job, row.attempt), self._programs.get((row.job, row.attempt))
        if key in self._parts or program is None:
            return
        assert self._jobs is not None
        names = [self._nodes.nodes[node].name for node in row.members]
        rank = row.members.index(self._number)
        own = *key, rank, names[rank]
        given = msgspec.structs.asdict(program) | {
            "output": filled(program.output, *own), "error": filled(program.error, *own),
        }  # fmt: skip
        self._starts[key] = start = JobStart(*key, max(self._jobs.runs_uid, 0), **given, rank=rank, nodes=names)
        self._to_agent(start)

    def _stop(self, key: Key) -> None:
        self._stops.add(key)
        self._to_agent(JobSignal(*key, signal.SIGTERM))

    def _tell_agent(self) -> None:
        for start in self._starts.values():
            self._to_agent(start)
        self._stops = {key for key in self._stops if self._lives(key)}
        for key in self._stops:
            # a unit that nobody answers for is not given a grace
            self._to_agent(JobSignal(*key, signal.SIGTERM if self._has(key) else signal.SIGKILL))
        for key, part in self._parts.items():
            if part.is_over and not self._has(key):
                self._to_agent(JobForget(*key))

    def _to_agent(self, message: msgspec.Struct) -> None:
        try:
            self._pair.send(packet(message))
        except BlockingIOError:  # it is slow: what matters is sent again
            return
        except OSError:
            raise AgentGoneError from None


def _why(node: str, part: JobPart) -> str:
    """How a part failed, in words; "": it did not."""
    if part.phase == "ended" and part.status == 0:
        return ""
    if part.cause == "walltime":
        return f"{node}: its walltime was over"
    return part.detail or f"{node}: exit status {part.status}"


def main() -> int:
    """Until the agent ends, or wants it to end."""
    end_with_parent()
    for number in (signal.SIGINT, signal.SIGTERM):  # they are for the agent
        signal.signal(number, signal.SIG_IGN)
    settings = msgspec.json.decode(sys.argv[2].encode(), type=ManagerSettings)
    say = functools.partial(_say_of, settings.node)
    try:
        service = NodeService(settings, socket.socket(fileno=int(sys.argv[1])), say, wall_us)
        become(settings.user, Path(settings.journal), Path(settings.directory, ALLOWED), say)
        service.run()
    except AgentGoneError:
        return 0
    except (NodectlError, OSError) as error:
        say(str(error))
        return 1
    return 0


def _say_of(node: str, line: str) -> None:
    _LOG(f"{node}: {line}")


_LOG: Final = logger("nodectl dispatch")

if __name__ == "__main__":
    raise SystemExit(main())
