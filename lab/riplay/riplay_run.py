"""A riplay, from the part of a log to what came of it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from math import ceil
from statistics import mean, median
from typing import Final

from cluster_agent.errors import StoppedError, WrongUseError
from lab.riplay.fast_nodes import FastNodes
from lab.riplay.log_part import Delays, Hours, LogPart
from lab.riplay.ran_jobs import Part, Ran
from lab.riplay.real_site import Site, why_none
from lab.riplay.riplay_result import Metrics, Riplayed, Watts, check_other, delays_of
from lab.riplay.slurm_machine import SlurmMachine
from twin.errors import TwinError
from twin.machine import load_machine

LOOK_S: Final = 0.5
"""Ours: how often Slurm's queue is read, as ``clusterctl slurm schedule`` does."""

FAST: Final = 10.0
"""Above this speed Slurm's own delays are minutes of the log."""

PROBES: Final = 3
"""Ours: jobs by which Slurm's delay is measured before the hours begin."""


def riplay(
    hours: Hours,
    speed: float,
    say: Callable[[str], None],
    advance: Callable[[int], None] = lambda done: None,
    delays: str | None = None,
) -> Riplayed:
    """Replay these hours on a real Slurm: as long as they are by ``speed``, and half a minute more. ``advance`` gets
    how many seconds of the log are over; ``delays``: the folder of a riplay of other hours, whose delays a replay next
    to it is to have. ``WrongUseError`` for what cannot be, ``StoppedError`` after SIGTERM or Ctrl-C."""
    began_s, loads, late = time.monotonic(), [os.getloadavg()[0]], None
    with _stopping("stopped: nothing is written"):
        whole = LogPart(hours, say)
    sha256 = whole.world.trace.sha256
    if delays is not None:
        late, other = delays_of(delays)
        check_other(delays, other, hours, speed, sha256)
    if reason := why_none("slurm"):
        raise WrongUseError(f"riplay needs a real Slurm: {reason}")
    try:
        model = load_machine(hours.machine)
    except TwinError as error:
        raise WrongUseError(f"--machine {hours.machine}: its nodes cannot be emulated: {error}") from None
    scheduler, part = whole.new()
    names = [f"n{number:02d}" for number in range(1, hours.nodes + 1)]
    with _stopping("stopped: nothing is written, and the Slurm is gone"), Site(hours.nodes, accounting=False) as site:
        with FastNodes(names, site.at / "sockets", speed, part.machine.node.off_w, model) as nodes:
            machine = SlurmMachine(site, nodes, names, part, speed, scheduler if hours.policy else None)
            latency_s = machine.probe(PROBES)
            _warn(speed, latency_s, say)
            machine.prepare()
            machine.begin()
            while machine.now() < hours.to_s:
                looked_s = time.monotonic()
                machine.turn()
                loads.append(os.getloadavg()[0])
                advance(min(ceil(machine.now()), hours.to_s) - hours.from_s)
                time.sleep(max(LOOK_S - (time.monotonic() - looked_s), 0.02))
            machine.finish()
            nodes.settle(time.time())
        joules = [(machine.logged_s(at_s), joules) for at_s, joules in nodes.readings]
    readings = _watts(joules, part)
    measures, found = part.measures(machine.ran), _delays(machine.ran, part)
    metrics = Metrics(
        hours.log, sha256, hours.from_s, hours.to_s, hours.nodes, hours.policy, speed,
        int(measures["jobs"]), int(measures["started"]), measures["mean_wait_s"], measures["work_node_h"],
        energy_j=sum(one.watts * one.lasts_s for one in readings),
        energy_by_table_j=measures["energy_j"],
        over_cap_ws=sum(max(one.watts - one.cap_w, 0.0) * one.lasts_s for one in readings),
        start_delay_s=found.start_s if hours.policy else None, end_delay_s=found.end_s,
        latency_s=(median(latency_s), max(latency_s)), load=(mean(loads), max(loads)),
        took_s=time.monotonic() - began_s,
    )  # fmt: skip
    return Riplayed(metrics, whole, part, machine.ran, readings, late)


def _warn(speed: float, latency_s: Sequence[float], say: Callable[[str], None]) -> None:
    line = f"Slurm starts a job {median(latency_s):.2f} s after its release (worst of {PROBES}: {max(latency_s):.2f} s)"
    say(f"{line}, {median(latency_s) * speed:.0f} s of the log")
    if speed > FAST:
        say(f"speed {speed:g} is above {FAST:g}: waits and short jobs are to a good part that delay")


def _delays(ran: dict[int, Ran], part: Part) -> Delays:
    """Means over the jobs that were started, and that have ended, in these hours."""
    starts = [
        one.start_s - one.decided_s
        for job, one in ran.items()
        if job not in part.left_s and one.start_s is not None and one.decided_s is not None
    ]
    ends = [one.seen_s - one.end_s for one in ran.values() if one.seen_s is not None and one.end_s is not None]
    return Delays(mean(starts or [0.0]), mean(ends or [0.0]))


def _watts(joules: Sequence[tuple[float, float]], part: Part) -> list[Watts]:
    """Of each reading that begins before the end; a cap counts where it is in force all the time."""
    found = []
    for (at_s, before_j), (next_s, after_j) in pairwise(joules):
        if at_s < min(next_s, part.to_s):
            cap_w = max(part.cap_w(at_s), part.cap_w(next_s))
            found.append(Watts(at_s, (after_j - before_j) / (next_s - at_s), cap_w, min(next_s, part.to_s) - at_s))
    return found


@contextmanager
def _stopping(line: str) -> Iterator[None]:
    """SIGTERM ends it as Ctrl-C does."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt:
        raise StoppedError(line) from None
    finally:
        signal.signal(signal.SIGTERM, before)
