"""Limits, queues, reservations and windows over a table of jobs that grows, for the engine of a live partition.

A row of the table is filled in when its job comes. Each user, group and queue has a counter for each kind of limit, so
the engine's columns have their full size from the start. Queues that have nodes of their own are the engine's
partitions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np

from cluster_agent.errors import WrongUseError
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.switches.limit_rules import KEYS, LONGEST_QUEUE, Rule
from cluster_agent.scheduler.switches.limits import UNCOUNTED, Limits, clash_of
from cluster_agent.scheduler.switches.live_windows import ALWAYS_OPEN, LiveWindows
from cluster_agent.scheduler.switches.reservations import Reserved
from foundation.shell.errors import UsageError, nearest
from foundation.shell.names import expanded, first_of


class Claim(NamedTuple):
    """A job by what counts for a limit; "": it has none."""

    user: str
    nodes: int
    group: str = ""
    queue: str = ""
    reservation: str = ""

    def amount(self, what: str) -> int:
        """What it adds to a counter."""
        return 1 if what == "jobs" else self.nodes

    def of(self, key: str) -> str:
        """Whose counter it is added to."""
        return {"user": self.user, "group": self.group, "queue": self.queue}[key]


class LiveSwitches(NamedTuple):
    """What the settings of a live partition add to its nodes: limits, and queues by name, the first of which is that of
    a job that names none. ``queues`` have the names of their nodes; where they have none, all share all nodes."""

    rules: Sequence[Rule] = ()
    queues: Mapping[str, Sequence[str]] = MappingProxyType({})
    reservations: Mapping[str, Reserved] = MappingProxyType({})
    """These are not of the settings: administrators make and delete them."""
    windows: LiveWindows = ALWAYS_OPEN

    @property
    def names(self) -> tuple[str, ...]:
        """Which of the world's switches these are."""
        found = {
            "partitions": self.has_partitions,
            "limits": bool(self.rules),
            "reservations": bool(self.reservations),
            "windows": bool(self.windows.by_queue),
        }
        return tuple(name for name, is_there in found.items() if is_there)

    @property
    def has_partitions(self) -> bool:
        """Whether each queue has nodes of its own."""
        return any(self.queues.values())

    @property
    def queue_of_node(self) -> Mapping[str, str]:
        """By node, its queue, where each has nodes of its own."""
        return {name: queue for queue, names in self.queues.items() for name in names}

    def clash_with_reservations(self, composition: Composition) -> str | None:
        """Why the policy, or the queues, can keep no reservations; None: they can."""
        if composition.owns_watts:
            return "a policy that owns watts does not go with reservations"
        if self.has_partitions:
            return "queues with nodes of their own do not go with reservations"
        return clash_of(composition, tuple(dict.fromkeys((*self.names, "reservations"))))

    def queue(self, wanted: str) -> str:
        """The queue of a job that was accepted with this one; after a change of the settings it may have gone."""
        return wanted if wanted in self.queues else next(iter(self.queues), "")

    def check_windows(self) -> None:
        """``WrongUseError`` for windows of queues that there are not, or that have nodes of their own."""
        for queue in self.windows.by_queue:
            if queue not in self.queues:
                self.check_queue(queue)
            if self.has_partitions:
                raise WrongUseError(f"{queue}: queues with nodes of their own do not go with windows")

    def check_queue(self, wanted: str) -> None:
        """``WrongUseError`` for a queue that does not exist."""
        if wanted and wanted not in self.queues:
            there = nearest(wanted, self.queues) if self.queues else ": the partition has none ([jobs] queues)"
            raise WrongUseError(f"no queue is called {wanted!r}{there}")

    def unknown_nodes(self, known: Collection[str]) -> str:
        """Which nodes of queues are none of these, in words: jobs there may wait for ever. "": all are."""
        unknown = [f"{name} of queue {queue}" for name, queue in self.queue_of_node.items() if name not in known]
        what = "is no node of this partition" if len(unknown) == 1 else "are no nodes of this partition"
        return f"{first_of(unknown, NAMED)} {what}" if unknown else ""


NAMED: Final = 3
"""Ours: how many nodes a line names."""

NONE: Final = LiveSwitches()


def queues_of(text: str) -> dict[str, list[str]]:
    """``day night`` or ``batch=n[01-12] debug=n[13-16]``: the nodes of each queue. ``WrongUseError``."""
    found: dict[str, list[str]] = {}
    queue_of: dict[str, str] = {}
    for one in text.split():
        name, equals, nodes = one.partition("=")
        if not name.isprintable() or not 0 < len(name) <= LONGEST_QUEUE or bool(equals) != bool(nodes):
            raise WrongUseError(f"{one}: give NAME or NAME=NODES, such as batch=n[01-12]")
        if name in found:
            raise WrongUseError(f"{one}: queue {name} is there twice")
        try:
            found[name] = expanded(nodes) if nodes else []
        except UsageError as error:
            raise WrongUseError(f"queue {name}: {error}") from None
        if len({bool(names) for names in found.values()}) > 1:
            raise WrongUseError(f"{one}: either all queues have nodes of their own, or none has")
        for node in found[name]:
            if node in queue_of:
                raise WrongUseError(f"{one}: {node} is a node of queue {queue_of[node]} already")
            queue_of[node] = name
    return found


class LiveLimits:
    """``nodes``: those of the partition. ``rows`` and ``values``: as many as the table has room for, of jobs, and of
    users."""

    def __init__(self, switches: LiveSwitches, nodes: Iterable[str] = (), rows: int = 0, values: int = 0) -> None:
        self._most = {(rule.key, rule.what, rule.value): rule.most for rule in switches.rules}
        self._kinds = list(dict.fromkeys((rule.key, rule.what) for rule in switches.rules))
        self._room = max(values, len(switches.queues))
        self._numbers: dict[str, dict[str, int]] = {key: {} for key in KEYS}
        counts_jobs = np.repeat([what == "jobs" for _, what in self._kinds], self._room).astype(np.bool_)
        most, counter = np.zeros(len(counts_jobs), np.int64), np.full((rows, len(self._kinds)), -1, np.int32)
        queue_of_node = switches.queue_of_node
        self._partition_of_queue = {queue: at for at, queue in enumerate(switches.queues if queue_of_node else ())}
        elsewhere = len(self._partition_of_queue)  # of nodes that have no queue: no job is there
        self._partition_of_node = {
            name: self._partition_of_queue.get(queue_of_node.get(name, ""), elsewhere) for name in nodes
        }
        size = Counter(self._partition_of_node.values())
        count = elsewhere + 1 if queue_of_node else 0
        has = np.array([[size[at], UNCOUNTED] for at in range(count)], np.int64).reshape(count, 2)
        partition, memory_kib = np.zeros(rows if count else 0, np.int32), np.zeros(rows if count else 0, np.int64)
        self._windows = switches.windows
        self.reserved = list(switches.reservations.values())
        """A reservation keeps its place in it."""
        self._pool_of = {name: at for at, name in enumerate(switches.reservations, 1)}
        columns = has, partition, memory_kib, most, counts_jobs, counter, self.reserved, np.zeros(rows, np.int32)
        open_ = np.zeros(rows, np.int32)
        self.limits = Limits(switches.names, *columns, queues=self._windows.queues, open=open_)
        """For the engine, which reads what ``add`` writes."""

    def add(self, row: int, job: Claim, nodes: Sequence[str] = ()) -> None:
        """The row has this job, which has these nodes already."""
        for at, (key, what) in enumerate(self._kinds):
            if (most := self.most(key, what, value := job.of(key))) is not None:
                numbers = self._numbers[key]
                counter = at * self._room + numbers.setdefault(value, len(numbers))
                self.limits.most[counter], self.limits.counter[row, at] = most, counter
        self.limits.pool[row] = self._pool_of.get(job.reservation, 0)
        self.limits.open[row] = self._windows.place_of(job.queue)
        if nodes:
            self.occupy(row, nodes)
        elif self._partition_of_queue:
            self.limits.partition[row] = self._partition_of_queue[job.queue]

    def reserve(self, reserved: Mapping[str, Reserved], now_s: int) -> None:
        """There are these reservations from now on."""
        for name in self._pool_of.keys() - reserved.keys():
            place = self._pool_of.pop(name) - 1
            self.reserved[place] = self.reserved[place]._replace(gone_s=now_s)
        for name in [name for name in reserved if name not in self._pool_of]:
            self.reserved.append(reserved[name])
            self._pool_of[name] = len(self.reserved)

    def occupy(self, row: int, nodes: Sequence[str]) -> None:
        """The row has these nodes, whoever it is: they are of one queue, unless the settings have changed since."""
        if self._partition_of_queue:
            self.limits.partition[row] = self._partition_of_node.get(nodes[0], len(self._partition_of_queue))

    def most(self, key: str, what: str, value: str) -> int | None:
        """The own limit of this user, group or queue in place of that for all; None: there is none."""
        return self._most.get((key, what, value), self._most.get((key, what, None))) if value else None

    def check(self, job: Claim) -> None:
        """``WrongUseError`` for a job that is alone more than its user, group or queue may have."""
        for key, what in self._kinds:
            if (most := self.most(key, what, job.of(key))) is not None and job.amount(what) > most:
                raise WrongUseError(f"{job.nodes} nodes requested, and {_named(key, job)} may have {most} at once")

    def over(self, waiting: Iterable[tuple[int, Claim]], running: Iterable[Claim]) -> dict[int, str]:
        """Why each of the waiting jobs, by number, may not start however many nodes are idle; others are left out."""
        used: Counter[tuple[str, str, str]] = Counter()
        for one in running:
            used.update({(key, what, one.of(key)): one.amount(what) for key, what in self._kinds})
        found = {}
        for number, job in waiting:
            for key, what in self._kinds:
                has, most = used[key, what, job.of(key)], self.most(key, what, job.of(key))
                if most is not None and has + job.amount(what) > most:
                    needs = "" if what == "jobs" else f", and it needs {job.nodes}"
                    found[number] = f"{_named(key, job)} has {has} of at most {most} {what} at once{needs}"
        return found


def _named(key: str, job: Claim) -> str:
    return job.of(key) if key == "user" else f"{key} {job.of(key)}"
