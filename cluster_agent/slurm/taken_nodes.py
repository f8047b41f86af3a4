"""Nodes that Slurm gives up for a while, so that nothing runs there: by a reservation, or drained.

A reservation keeps new jobs away and lets those that run end (``IGNORE_JOBS``). It ends by itself, also when whoever
made it is killed; while jobs are waited for, its end is put off. Where a site lets nobody make reservations, nodes are
drained instead, with a reason of ours that ``node_drain`` leaves alone; at the end those are resumed that still have
it.
Source: Slurm's reservations guide and scontrol(1).
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Literal, TypeAlias

from cluster_agent.errors import ClusterError
from cluster_agent.slurm.node_drain import CALIBRATION, read_reasons, set_state
from cluster_agent.slurm.slurm_programs import last_line, run

How: TypeAlias = Literal["reservation", "drain"]
HOW: Final[tuple[How, ...]] = ("reservation", "drain")

REASON: Final = CALIBRATION
NAME: Final = "nodectl-calibrate"
LOOK_S: Final = 2.0
MARGIN_S: Final = 600.0
"""Ours: a reservation is so much longer than what it is for."""

PUT_OFF_S: Final = 120.0
"""Ours: how often its end is put off, well within ``MARGIN_S``."""


@contextlib.contextmanager
def taken(
    names: Sequence[str], how: How, longest_s: float, say: Callable[[str], None], look_s: float = LOOK_S,
) -> Iterator[None]:  # fmt: skip
    """Within, Slurm starts nothing on these nodes, and no job is left there: waits for those that run.

    ``longest_s``: of what is to be done there. ``ClusterError`` if Slurm refuses, or does not answer.
    """
    with _drained(names, say) if how == "drain" else _reserved(names, longest_s, say) as put_off:
        _wait_for_jobs(names, say, look_s, put_off)
        yield


@contextlib.contextmanager
def _reserved(names: Sequence[str], longest_s: float, say: Callable[[str], None]) -> Iterator[Callable[[], None]]:
    """``longest_s`` counts from now, and again from each call of what this gives."""
    name, minutes = f"{NAME}-{os.getpid()}-{names[0]}", math.ceil((longest_s + MARGIN_S) / 60)
    _scontrol(
        "create", "reservation", f"reservationname={name}", f"nodes={','.join(names)}", "starttime=now",
        f"duration={minutes}", "users=root", "flags=maint,ignore_jobs",
    )  # fmt: skip
    say(f"reservation {name} in Slurm: {', '.join(names)}, for {minutes} min at most")
    try:
        yield lambda: _scontrol("update", f"reservationname={name}", f"endtime=now+{minutes}minutes")
    finally:
        try:
            _scontrol("delete", f"reservationname={name}")
        except ClusterError as error:
            if "invalid" not in str(error):  # it has ended by itself
                raise


@contextlib.contextmanager
def _drained(names: Sequence[str], say: Callable[[str], None]) -> Iterator[Callable[[], None]]:
    before = read_reasons()
    for name in names:
        if before.get(name):
            raise ClusterError(f"node {name} is drained or down in Slurm: {before[name]}")
    done: list[str] = []
    try:
        for name in names:
            set_state(name, "drain", REASON)
            done.append(name)
        say(f"drained in Slurm: {', '.join(names)}")
        yield lambda: None
    finally:
        _resume(done, say)


def _resume(names: Sequence[str], say: Callable[[str], None]) -> None:
    """Those that still have our reason; a line for each that Slurm does not resume."""
    for name in names:
        try:
            if read_reasons().get(name) == REASON:
                set_state(name, "resume", "")
        except ClusterError as error:
            say(f"{name} may be drained still (scontrol update nodename={name} state=resume): {error}")


def _wait_for_jobs(
    names: Sequence[str], say: Callable[[str], None], look_s: float, put_off: Callable[[], None]
) -> None:
    """Ends with ``put_off``, which is also called now and then meanwhile."""
    said, next_s = "", time.monotonic() + PUT_OFF_S
    while jobs := _jobs(names):
        line = f"waits for Slurm's jobs to end: {', '.join(jobs[:5])}" + (" and others" if len(jobs) > 5 else "")
        if line != said:
            say(line)
        said = line
        time.sleep(look_s)
        if time.monotonic() >= next_s:
            put_off()
            next_s = time.monotonic() + PUT_OFF_S
    if said:
        put_off()


def _jobs(names: Sequence[str]) -> list[str]:
    """Numbers of those that have one of these nodes, also suspended or completing."""
    command = ["squeue", "-h", "-w", ",".join(names), "-t", "R,S,CG,CF", "-o", "%A"]
    done = run(command)
    if done.returncode:
        raise ClusterError(f"squeue failed: {last_line(done.stderr, done.stdout)}")
    return sorted(set(done.stdout.decode(errors="replace").split()))


def _scontrol(*words: str) -> None:
    done = run(["scontrol", *words])
    if done.returncode:
        raise ClusterError(f"scontrol {words[0]} failed: {last_line(done.stderr, done.stdout)}")
