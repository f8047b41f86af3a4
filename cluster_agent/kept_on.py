"""How many nodes stay on whether they have jobs or not, from profiles ``from_s,watts,cores`` made ahead (``prices``).

``keep_on``    the nodes of so many cores are on in all, and
``keep_idle``  so many nodes, or the nodes of so many cores, are on without a job, next to those that have one

Where more are wanted, nodes boot before the step, so that they are on when it comes; where fewer are, those without a
job go off by their timer. A profile refuses no job: one that needs more nodes boots them at once. The last line counts
for ever, and before the first one nothing is kept on.

In a live partition (``[jobs.power] keep_on``) seconds are Unix seconds, and the file may be replaced at any time, as by
a timer once a day: it is in force at the latest ``LOOK_S`` later. A file that is missing or wrong changes nothing: the
profile that was read last stays in force. Without one, as after a restart, all nodes stay on. One line of the log says
so.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from math import ceil
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from cluster_agent.cap_steps import MOST_CORES, cores_of, read_bytes
from cluster_agent.errors import WrongUseError
from foundation.digest import sha256_hex
from foundation.shell.extension import Origin

Steps: TypeAlias = Sequence[tuple[int, int]]
"""(Second, cores) in order of time; each counts until the next."""

LOOK_S: Final = 5.0
EVERY_NODE: Final = 2**62


class Kept(msgspec.Struct, frozen=True):
    """``nodes`` without a job at any time, or steps of cores without a job, and steps of cores in all."""

    nodes: int = 0
    idle: tuple[tuple[int, int], ...] = ()
    on: tuple[tuple[int, int], ...] = ()
    origin: Origin | None = None  # the file of the steps; of two, the one of ``on``

    def __bool__(self) -> bool:
        return bool(self.nodes or self.idle or self.on)

    def __str__(self) -> str:
        return "keep_on" if self.on else "keep_idle"

    def check(self, goes_off: bool, knows_caps: bool) -> None:
        """``ValueError`` for a policy whose nodes do not go off, or that admits by watts: a boot that nobody waits for
        is not in its sums."""
        if not goes_off or knows_caps:
            needed = "a policy that knows no caps" if knows_caps else "nodes that go off: give idle_off_s"
            raise ValueError(f"{self} needs {needed}")

    def rows(self, cores: int, boot_s: int) -> list[tuple[int, int, int]]:
        """(Second, nodes in all, nodes without a job), on or booting, with nodes of so many ``cores``: each rise comes
        ``boot_s`` before its step."""
        on, idle = (ahead([(at_s, ceil(n / cores)) for at_s, n in of], boot_s) for of in (self.on, self.idle))
        if self.nodes:
            idle = [(-(2**62), self.nodes)]
        times = sorted({at_s for at_s, _ in (*on, *idle)})
        return [(at_s, value_at(on, at_s), value_at(idle, at_s)) for at_s in times]


NONE_KEPT = Kept()


def kept(keep_idle: str | None, keep_on: str | None) -> Kept:
    """Of a policy's parameters; ``ValueError`` for a number of no nodes, ``WrongUseError`` for a file."""
    try:
        nodes, idle = int(keep_idle or 0), None
    except ValueError:
        nodes, idle = 0, keep_idle
    if not 0 <= nodes < MOST_CORES:
        raise ValueError(f"keep_idle={nodes}: give 0 nodes or more, below {MOST_CORES}, or a profile of cores")
    found = []
    for path in (idle, keep_on):
        content = b"" if path is None else read_bytes(path)
        origin = None if path is None else Origin(path, sha256_hex(content))
        found.append((() if path is None else cores_of(path, content), origin))
    return Kept(nodes, found[0][0], found[1][0], found[1][1] or found[0][1])


def ahead(steps: Steps, lead_s: int) -> list[tuple[int, int]]:
    """The steps with each rise so much earlier: at any time the most of now and of the next ``lead_s`` seconds."""
    edges = sorted({max(at_s - lead, 0) for at_s, _ in steps for lead in (0, lead_s)})
    found: list[tuple[int, int]] = []
    at = k = 0  # the first step after the edge, and after its lead
    highest = deque[int]()  # of the steps from the one in force to k, those that no later one is as high as
    for edge_s in edges:
        while at < len(steps) and steps[at][0] <= edge_s:
            at += 1
        while k < len(steps) and steps[k][0] <= edge_s + lead_s:
            while highest and steps[highest[-1]][1] <= steps[k][1]:
                highest.pop()
            highest.append(k)
            k += 1
        while highest and highest[0] < at - 1:
            highest.popleft()
        most = steps[highest[0]][1] if highest else 0
        if not found or found[-1][1] != most:
            found.append((edge_s, most))
    return found


def value_at(steps: Steps, at_s: int) -> int:
    """What is in force then; 0 before the first step."""
    at = bisect_right(steps, at_s, key=lambda step: step[0])
    return steps[at - 1][1] if at else 0


class NodesAhead:
    """The profile of one file in a live partition. ``cores``: of a node, which boots ``boot_s`` before a rise."""

    def __init__(self, path: str, cores: int, boot_s: float, say: Callable[[str], None]) -> None:
        self._path, self._cores, self._boot_s, self._say = Path(path), cores, round(boot_s), say
        self._rows: list[tuple[int, int]] | None = None
        self._looked_s, self._seen, self._problem = float("-inf"), (0, 0), ""

    def wanted(self, now_s: float) -> int:
        """How many nodes are to be on or to boot now."""
        if not 0 <= now_s - self._looked_s < LOOK_S:
            self._looked_s = now_s
            self._look()
        return EVERY_NODE if self._rows is None else value_at(self._rows, int(now_s))

    def _look(self) -> None:
        try:
            stat = self._path.stat()
            if (seen := (stat.st_mtime_ns, stat.st_size)) == self._seen:
                return
            content = self._path.read_bytes()
            self._seen = seen  # one that is wrong is not read again, either
            steps = cores_of(str(self._path), content)
        except (OSError, WrongUseError) as error:
            text = str(error) if isinstance(error, WrongUseError) else f"{self._path}: {error.strerror}"
            if text != self._problem:
                left = "all nodes stay on" if self._rows is None else "the profile before it stays in force"
                self._say(f"{text}; {left}")
            self._problem = text
            return
        self._problem = ""
        self._rows = [(at_s, nodes) for at_s, nodes, _ in Kept(on=steps).rows(self._cores, self._boot_s)]
        self._say(f"{self._path}: {len(steps)} steps say how many nodes stay on")
