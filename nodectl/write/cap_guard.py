"""Under a cap, no value above it belongs to anybody: knobs that enforce a cap are looked at in a turn of their own.

A job that may write a limit would otherwise end capping for good: its value is found, and "left to them". So for the
knobs that enforce a cap the settings under ``[foreign]`` decide only about *stricter* values. A looser one is

- found within ``LOOK_NS``, whatever the number of other knobs, and at once where the kernel reports writes of files;
- set again at each attempt, without an end and without a growing pause;
- alarmed, with the name of the program where that can be known;
- passed on as ``Raised``, so that a cluster counts what the knob allowed.

Which knobs enforce a cap: those that nothing but a cap in watts moves (``Limit.is_for_caps``), and clock limits where
only they do, as the agent says. Looser than a limit are a higher value, 0 ("no limit" to some firmware and all
controllers), and a *companion* that makes it void: a switched-off zone, a longer window, a higher short-term limit.
A companion's strictest value so far is what it is put back to, as with ceilings (``nodectl.write.ceilings``).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from nodectl.knobs.api import UNKNOWN, Companion, Knob, KnobError
from nodectl.knobs.registry import kind_of
from nodectl.write.last_writers import LastWriters
from pmu.ports import KeptFile

LOOK_NS: Final = 400_000_000
"""Ours: so often each knob that enforces a cap is read, at least: a value above the cap is put back within a second."""

LEAST_NS: Final = 50_000_000
"""Ours: between two looks that writes of others cause."""

_CONTROLLERS_CAP: Final = re.compile(r".*#[^/]+/cap_mw")


@dataclass(frozen=True, slots=True)
class Above:
    """A knob that allows more than its cap. ``goal``: what it is to be at; ``present``: what it was at, 0 where nothing
    limits it. ``companions``: those that were loosened, and what each is put back to. ``what``: for people."""

    knob: str
    goal: int
    present: int
    what: str
    companions: tuple[tuple[Companion, int], ...] = ()


class FilesAsFound:
    """The files of knobs, kept open. A look at a knob whose files have the bytes with which it was found to be right
    ends there: one read of each in place of opening, reading, closing and understanding it."""

    def __init__(self) -> None:
        self._paths: dict[str, tuple[Callable[[str], KeptFile], list[str]]] = {}
        self._open: dict[str, list[KeptFile]] = {}
        self._read: dict[str, list[bytes]] = {}  # by the last look
        self._right: dict[str, tuple[int, list[bytes]]] = {}

    def keep(self, name: str, opened: Callable[[str], KeptFile], paths: list[str]) -> None:
        """All that decides about this knob is in these files. They are opened when they are first read."""
        self._paths[name] = opened, paths

    def are_as_found(self, name: str, goal: int) -> bool:
        """Whether the knob was right with this goal, and its files have not changed since."""
        if name not in self._paths:
            return False
        opened, paths = self._paths[name]
        try:
            files = self._open.setdefault(name, [])
            for path in paths[len(files) :]:
                files.append(opened(path))
            found = [file.read() for file in files]
        except OSError as error:  # the device has gone, and another may come at this path
            self._forget(name)
            if isinstance(error, FileNotFoundError):  # this kernel or zone does not have it: it is read the long way
                del self._paths[name]
            return False
        self._read[name] = found
        return self._right.get(name) == (goal, found)

    def note(self, name: str, goal: int) -> None:
        """With what ``are_as_found`` has read last the knob is right."""
        if name in self._read:
            self._right[name] = goal, self._read[name]

    def close(self) -> None:
        """Close the files."""
        for name in list(self._open):
            self._forget(name)

    def _forget(self, name: str) -> None:
        for file in self._open.pop(name, ()):
            file.close()
        self._read.pop(name, None)
        self._right.pop(name, None)


class CapGuard:
    """Knows what the knobs that enforce a cap are to be at, and finds those that allow more."""

    def __init__(self, knobs: Iterable[Knob], root: str = "") -> None:
        """``root``: the directory that the paths of knobs are below."""
        self._knobs = {knob.name: knob for knob in knobs}
        self._for_caps = [name for name in self._knobs if is_for_caps(name)]
        self._root = root
        self._goals: dict[str, int] = {}
        self._strictest: dict[str, int] = {}
        self._next_ns = self._heard_ns = 0
        self._is_heard = False  # the next look is one that somebody's write has caused
        self._bytes = FilesAsFound()
        self._watched: set[str] = set()
        self._writers: LastWriters | None = None

    def start(self) -> None:
        """Remember what the companions are at before anything is written."""
        for name in self._for_caps:
            for companion in self._companions(name):
                with contextlib.suppress(KnobError):
                    self._note(companion, self._read(name, companion))

    def follow(self, settings: Mapping[str, int], clocks_too: bool) -> None:
        """From now on these are the values that the cap allows; 0 and absent ones are not guarded. ``clocks_too``:
        clock limits enforce it as well."""
        names: Iterable[str] = settings if clocks_too else self._for_caps
        goals = {name: value for name in names if (value := settings.get(name, 0)) > 0 and name in self._knobs}
        if clocks_too:
            goals = {name: value for name, value in goals.items() if name.endswith("_khz") or is_for_caps(name)}
        if not goals.keys() <= self._watched:
            self._watch(goals)
        self._goals = goals

    def release(self, names: Iterable[str]) -> None:
        """These are about to be put back: the cap does not concern them any more. What was to make them void is put
        back here, as far as it can be."""
        for name in names:
            if self._goals.pop(name, None) is not None:
                for companion, before in self._loosened(name):
                    knob: Any = self._knobs[name]
                    with contextlib.suppress(KnobError):
                        knob.set_companion(companion, before)

    @property
    def goals(self) -> Mapping[str, int]:
        """What each knob that enforces a cap is to be at."""
        return self._goals

    def guards(self, name: str) -> bool:
        """Whether this knob enforces a cap now."""
        return name in self._goals

    def is_above(self, name: str, present: int) -> bool:
        """Does this value of the knob allow more than the cap?"""
        goal = self._goals.get(name)
        if goal is None:
            return False
        return present == 0 or (present > goal and not self._knobs[name].matches(goal, present))

    def left_ns(self, now_ns: int) -> int | None:
        """Time until the next look; None while no cap is enforced here."""
        return max(self._next_ns - now_ns, 0) if self._goals else None

    def look(self, now_ns: int, ceilings: Mapping[str, int], known: Mapping[str, int]) -> tuple[list[Above], list[str]]:
        """Those that allow more than their cap, and the names of those that are below it. ``known``: what some are at,
        so that they need not be read. A knob that cannot be read is left to the next write, which says why."""
        self._next_ns = now_ns + LOOK_NS
        if self._is_heard:
            self._heard_ns, self._is_heard = now_ns, False
        above: list[Above] = []
        below: list[str] = []
        for name, goal in self._goals.items():
            self._goals[name] = goal = min(goal, ceilings.get(name, goal))
            if self._is_right(name, goal, known):
                continue
            try:
                present = known[name] if name in known else self._knobs[name].read_back()
            except KnobError:
                continue
            if present is None:
                continue
            found = self._loosened(name)
            if self.is_above(name, present):
                shown = self._knobs[name].shown(present) if present else "no limit"
                above.append(Above(name, goal, 0 if found else present, f"set it to {shown}", found))
            elif found:
                companion, before = found[0]
                what = f"moved {companion.what}, so that it has no effect ({before} as found)"
                above.append(Above(name, goal, 0, what, found))
            elif present < goal and not self._knobs[name].matches(goal, present):
                below.append(name)
            elif name not in known:
                self._bytes.note(name, goal)
        return above, below

    def _is_right(self, name: str, goal: int, known: Mapping[str, int]) -> bool:
        """Whether that is seen without reading the knob itself."""
        return known[name] == goal if name in known else self._bytes.are_as_found(name, goal)

    def put_back(self, above: Above) -> None:
        """Put companions back. ``KnobError`` if one cannot be."""
        knob: Any = self._knobs[above.knob]
        for companion, before in above.companions:
            knob.set_companion(companion, before)

    def who(self, name: str) -> str:
        """The program that wrote a file of this knob last; ``UNKNOWN`` where nothing reports that."""
        if self._writers is None:
            return UNKNOWN
        self._writers.read()
        found = (self._writers.of(path) for path in self._paths(name))
        return next((by for by in found if by != UNKNOWN), UNKNOWN)

    @property
    def descriptor(self) -> int:
        """Readable when somebody has written a file of a guarded knob; -1 where the kernel does not report that."""
        return self._writers.descriptor if self._writers else -1

    def pause_ns(self, now_ns: int) -> int:
        """How long not to wait for ``descriptor``: who writes in a loop must not keep this process busy."""
        return max(self._heard_ns + LEAST_NS - now_ns, 0)

    def hear(self) -> None:
        """Somebody may have written a file: if another process has, the next look is due."""
        if self._writers and self._writers.read():
            self._next_ns, self._is_heard = 0, True

    def close(self) -> None:
        """Stop watching files."""
        self._bytes.close()
        if self._writers:
            self._writers.close()

    def _watch(self, names: Iterable[str]) -> None:
        self._writers = self._writers or LastWriters()
        for name in names:
            if name not in self._watched:
                self._watched.add(name)
                self._writers.watch(self._paths(name))
                knob: Any = self._knobs[name]
                if hasattr(knob, "keep"):
                    paths = [knob.path, *(companion.path for companion in self._companions(name))]
                    self._bytes.keep(name, knob.keep, paths)

    def _paths(self, name: str) -> list[str]:
        own = getattr(self._knobs[name], "path", "")
        paths = [own] if isinstance(own, str) and own else []
        return [self._root + path for path in (*paths, *(companion.path for companion in self._companions(name)))]

    def _loosened(self, name: str) -> tuple[tuple[Companion, int], ...]:
        found = []
        for companion in self._companions(name):
            present, before = self._read(name, companion), self._strictest.get(companion.path)
            if present is not None and before is not None and companion.is_looser(present, before):
                found.append((companion, before))
            else:
                self._note(companion, present)
        return tuple(found)

    def _note(self, companion: Companion, present: int | None) -> None:
        before = self._strictest.get(companion.path)
        if present is not None and (before is None or companion.is_looser(before, present)):
            self._strictest[companion.path] = present

    def _companions(self, name: str) -> Sequence[Companion]:
        found: Sequence[Companion] = getattr(self._knobs[name], "companions", ())
        return found

    def _read(self, name: str, companion: Companion) -> int | None:
        knob: Any = self._knobs[name]
        present: int | None = knob.read_companion(companion)
        return present


def is_for_caps(name: str) -> bool:
    """Whether nothing but a cap in watts moves the knob of that name."""
    if _CONTROLLERS_CAP.fullmatch(name):
        return True
    kind = kind_of(name)
    return bool(kind and kind.limit and kind.limit.is_for_caps)
