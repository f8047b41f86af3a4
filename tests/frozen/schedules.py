"""Computes the hashes of ``schedules.txt`` again: ``python -m tests.frozen.schedules [--write] [WORD ...]``.

A line is a hash and the options of a ``clusterctl replay``. Everything that was decided is in the hash: starts, ends,
processors or nodes, estimates and their corrections, who overtook, frequencies, kills, joules, watts over time, and how
many passes it took. ``--write`` puts today's hashes in their places, for a change that means to move a schedule; words
choose the lines that contain all of them.

Two options are ours: ``--first N`` cuts a log after N jobs, and ``--cap FROM-TO:WATTS[@ANNOUNCED],...`` stands for a
file of caps.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from cluster_agent._native import ffi
from msgspec.structs import astuple

from cluster_agent.commands.replays import replay_moldable, replay_nodes
from cluster_agent.commands.replays.replay import world
from cluster_agent.replay.event_log import Setting
from cluster_agent.replay.log_run import replay
from cluster_agent.replay.node_run import NodeResult
from cluster_agent.replay.node_run import replay_nodes as run_on_nodes
from cluster_agent.scheduler.native.native_replay import NativeReplay
from cluster_agent.scheduler.policies import registry
from cluster_agent.workloads.text_tables import has_nodes
from tests.recorded import RECORDED

LIST = Path(__file__).parent / "schedules.txt"
SAMPLES = Path(__file__).parents[2] / "cluster_agent" / "samples"


def lines(words: Sequence[str] = ()) -> list[tuple[str, str]]:
    """(hash, options) of the list, those that contain all words."""
    found = (line.split(" ", 1) for line in LIST.read_text().splitlines())
    return [(kept, options) for kept, options in found if all(word in options for word in words)]


def is_here(options: str) -> bool:
    """Whether the log of these options is on this machine."""
    return _trace(shlex.split(options)[0]).exists()


def hash_of(options: str) -> str:
    """Replays and returns the hash of all that was decided."""
    with tempfile.TemporaryDirectory() as folder:
        given = _parsed(options, Path(folder))
        setting = Setting(
            str(given.trace),
            given.policy,
            given.machine,
            given.cap,
            given.instance,
            given.closed_loop,
            given.seed,
            given.configurations,
            given.job_watts,
        )
        found = hashlib.sha256()
        for one in _decided(setting):
            found.update(one if isinstance(one, bytes) else np.ascontiguousarray(one).tobytes())
        return found.hexdigest()[:16]


def _parsed(options: str, folder: Path) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("trace", type=_trace)
    for name in ("--policy", "--machine", "--cap", "--instance", "--configurations", "--job-watts", "--closed-loop"):
        parser.add_argument(name)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int)
    given = parser.parse_args(shlex.split(options))
    if given.first:
        given.trace = _cut(given.trace, given.first, folder)
    if given.cap and "-" in given.cap and ":" in given.cap and not given.cap.startswith(("eurora/", "samples/")):
        given.cap = _cap_file(given.cap, folder)
    elif given.cap and "/" in given.cap:
        path, colon, profile = given.cap.partition(":")
        given.cap = f"{_trace(path)}{colon}{profile}"
    return given


def _trace(text: str) -> Path:
    root, _, name = text.partition("/")
    return SAMPLES / name if root == "samples" else RECORDED / root / name


def _cut(log: Path, first: int, folder: Path) -> Path:
    kept, jobs = [], 0
    with gzip.open(log, "rt") as file:
        for line in file:
            jobs += not line.startswith(";")
            if jobs > first:
                break
            kept.append(line)
    cut = folder / log.name.removesuffix(".gz")
    cut.write_text("".join(kept))
    return cut


def _cap_file(text: str, folder: Path) -> str:
    header = "from_s,to_s,watts,announced_s" if "@" in text else "from_s,to_s,watts"
    parts = [part if "@" in part or "@" not in text else f"{part}@0" for part in text.split(",")]
    rows = [re.sub("[-:@]", ",", part) for part in parts]
    path = folder / "caps.csv"
    path.write_text("\n".join([header, *rows]) + "\n")
    return str(path)


def _decided(setting: Setting) -> Iterator[Any]:
    choice = registry.choose(setting.policy)
    if choice.has_configurations:
        yield from _with_configurations(setting, choice)
    elif has_nodes(setting.trace):
        trace, nodes, limit, power = replay_nodes.world(setting, choice.node_composition)
        yield from _on_nodes(run_on_nodes(trace, choice.node_composition, nodes, limit, power))
    else:
        workload, watts, caps, loop = world(setting, choice.composition)
        result = replay(workload, choice.composition, watts=watts, caps=caps, loop=loop)
        yield result.workload.jobs.submit_s
        yield from _on_processors(result.schedule)


def _on_processors(schedule: NativeReplay) -> Iterator[Any]:
    yield from (schedule.start_s, schedule.end_s, schedule.first_estimate_s, schedule.corrections, schedule.overtook)
    first, count = schedule.interval_first, schedule.interval_count
    all_of_them = np.frombuffer(ffi.buffer(schedule.c_intervals, 8 * int((first + count).max(initial=0))), np.int64)
    place = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
    yield from (count, all_of_them[np.repeat(first, count) + place])
    yield np.array([schedule.passes, schedule.submitted, schedule.ended])
    if schedule.watts is not None:
        yield from (schedule.level, schedule.kills, schedule.lost, schedule.job_j, schedule.lost_j)
        yield from (*schedule.power_uw, np.array(list(schedule.joules.values())), np.array([schedule.boots]))


def _on_nodes(result: NodeResult) -> Iterator[Any]:
    schedule = result.schedule
    yield result.start_s
    for job in np.flatnonzero(result.start_s >= 0).tolist():
        placed = schedule.placed(job)
        yield from (placed.node, placed.count)
    yield from (result.admitted_w, np.array([schedule.passes, schedule.longest_queue]))


def _with_configurations(setting: Setting, choice: registry.Choice) -> Iterator[Any]:
    of = replay_moldable.as_submitted(setting, choice.moldable_composition)
    result = replay_moldable.replay_possible(choice.moldable_composition, of.jobs, of.nodes, of.cap)
    yield from (of.jobs.jobs.submit_s, result.start_s, result.end_s)
    yield repr([one and astuple(one) for one in result.chosen]).encode()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="put today's hashes into the list")
    parser.add_argument("words", nargs="*")
    given = parser.parse_args(arguments)
    today: dict[str, str] = {}
    wrong = 0
    for kept, options in lines(given.words):
        if not is_here(options):
            print(f"skipped, no such log: {options}", flush=True)
            continue
        begun_s = time.process_time()
        today[options] = hash_of(options)
        if today[options] != kept:
            wrong += 1
            print(f"{time.process_time() - begun_s:7.1f} s  {kept} is {today[options]}  {options}", flush=True)
    print(f"{len(today)} schedules, {wrong} differ")
    if given.write:
        LIST.write_text("".join(f"{today.get(options, kept)} {options}\n" for kept, options in lines()))
    return 0 if given.write or not wrong else 1


if __name__ == "__main__":
    sys.exit(main())
