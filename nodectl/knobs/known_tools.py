"""Programs that are known to write the same knobs as this agent, and which of them run on this node.

No file below /sys shows afterwards who wrote it. But few programs do it unasked, and when one of them runs, it is
named next to what it may have done. A service shows as a control group of systemd's; a program that was started by hand
as a process, where this one may see it (not below ``ProtectProc=invisible``).
Sources: tuned(8), its plug-ins cpu and uncore; power-profiles-daemon's README; thermald(8), its cooling devices;
auto-cpufreq's README.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from nodectl.knobs.api import Outcome
from pmu.findings import read_or_none
from pmu.ports import Clock, Files

CGROUPS: Final = ("/sys/fs/cgroup/system.slice", "/sys/fs/cgroup/systemd/system.slice")
"""Control groups of version 2, and of version 1 with systemd's own hierarchy."""

LOOK_AGAIN_NS: Final = 60_000_000_000
"""Ours: how long the answer to "what runs" counts."""

_COMM_LENGTH: Final = 15
"""The kernel cuts a process's name (TASK_COMM_LEN less its end)."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A program, which is also the name of its service and process. ``writes``: first parts of knobs' names."""

    name: str
    writes: tuple[str, ...]


TOOLS: Final = (
    Tool("tuned", ("cpu", "epp", "uncore")),
    Tool("power-profiles-daemon", ("cpu", "epp")),
    Tool("thermald", ("cpu", "rapl")),
    Tool("auto-cpufreq", ("cpu", "epp")),
)


def running(files: Files) -> list[Tool]:
    """Those that run now."""
    processes = _processes(files)
    return [tool for tool in TOOLS if tool.name[:_COMM_LENGTH] in processes or _is_service(files, tool.name)]


def remarks(files: Files, knobs: Iterable[str]) -> list[str]:
    """For ``doctor``: a line for each of them that writes one of these knobs."""
    parts = {name.partition("/")[0] for name in knobs}
    return [
        f"{tool.name} is running and writes {', '.join(f'{part}/*' for part in tool.writes if part in parts)} too:"
        f" stop it before mode optimize (`systemctl disable --now {tool.name}`)"
        for tool in running(files)
        if parts & set(tool.writes)
    ]


class Names:
    """Names the program that may have moved a knob, in outcomes with the reason "foreign writer"."""

    def __init__(self, files: Files, clock: Clock) -> None:
        self._files, self._clock = files, clock
        self._running: list[Tool] = []
        self._looked_ns = -LOOK_AGAIN_NS
        self._named: dict[str, tuple[Outcome, Outcome]] = {}

    def named(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """The outcomes; one that is repeated stays the same object."""
        return [self._name(one) if one.reason == "foreign writer" else one for one in outcomes]

    def _name(self, outcome: Outcome) -> Outcome:
        before = self._named.get(outcome.knob)
        if before and before[0] is outcome:
            return before[1]
        now_ns = self._clock.now_ns()
        if now_ns - self._looked_ns >= LOOK_AGAIN_NS:
            self._running, self._looked_ns = running(self._files), now_ns
        part = outcome.knob.partition("/")[0]
        names = " and ".join(tool.name for tool in self._running if part in tool.writes)
        named = (
            replace(outcome, detail=f"{outcome.detail} (running, and known to write it: {names})") if names else outcome
        )
        self._named[outcome.knob] = outcome, named
        return named


def _is_service(files: Files, name: str) -> bool:
    return any(files.exists(f"{group}/{name}.service") for group in CGROUPS)


def _processes(files: Files) -> set[str]:
    """Names of the processes that this one may see."""
    try:
        numbers = [entry for entry in files.listdir("/proc") if entry.isdigit()]
    except OSError:
        return set()
    return {name for number in numbers if (name := read_or_none(files, f"/proc/{number}/comm"))}
