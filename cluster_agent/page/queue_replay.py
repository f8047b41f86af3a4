"""When the jobs of a queue would start: its state is replayed, in a process of its own.

``python -m cluster_agent.page.queue_replay`` reads a state (``workloads.state_file``) from stdin, and writes ``Starts``
to stdout. It is replayed twice under the partition's policy: as if every job took as long as its ``run_s`` says, and as
if every job took the whole time that it requested. No further job comes, and no node fails. Nodes count as equal, and
watts do not count: a policy that needs more than that is replaced by EASY, and ``instead`` has why.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

import foundation.shell.single_thread  # noqa: F401  (before anything that imports numpy)
from cluster_agent.errors import ClusterError
from cluster_agent.workloads.state_file import MachineState, encode

WITHOUT_WATTS: Final = "easy"


class Starts(msgspec.Struct, frozen=True):
    """By job that waits, Unix seconds of the state's clock. Jobs that cannot start on these nodes are in neither."""

    policy: str
    """What was replayed."""
    instead: str
    """Why that is not the partition's policy; empty: it is."""
    likely_s: dict[int, int]
    if_whole_s: dict[int, int]
    """If every job takes its whole requested time."""


def starts(state: MachineState) -> Starts:
    """``ClusterError`` if the state cannot be replayed."""
    running = [job for job in state.jobs if job.what == "running"]
    nodes = max(state.processors - state.away, sum(job.width for job in running), 1)
    waiting = [job for job in state.jobs if job.what == "queued" and job.width <= nodes]
    state = replace(state, jobs=sorted([*running, *waiting], key=lambda job: (job.submit_s, job.job)))
    policy, instead = state.policy, ""
    try:
        likely_s = _replayed(state, policy, nodes)
    except ClusterError as error:
        policy, instead = WITHOUT_WATTS, f"{state.policy}: {error}"
        likely_s = _replayed(state, policy, nodes)
    whole = [replace(job, run_s=None) for job in state.jobs]
    whole_s = likely_s if whole == state.jobs else _replayed(replace(state, jobs=whole), policy, nodes)
    return Starts(policy, instead, likely_s, whole_s)


def _replayed(state: MachineState, policy: str, nodes: int) -> dict[int, int]:
    from cluster_agent.library import World, replay

    waits = {job.job for job in state.jobs if job.what == "queued"}
    if not waits:
        return {}
    with tempfile.TemporaryDirectory(prefix="clusterctl-") as folder:
        path = Path(folder) / "state.json"
        path.write_bytes(encode(state))
        result = replay(World(state=str(path), machine=nodes), policy, say=lambda sentence: None)
    found = zip(result.jobs.number.tolist(), result.start_s.tolist(), strict=True)
    return {number: start_s for number, start_s in found if number in waits and start_s >= 0}


def main() -> int:
    """One line on stderr and status 1 where nothing can be said."""
    with contextlib.suppress(OSError):  # a service may not change it, and has been made nice by its unit
        os.nice(10)
    try:
        state = msgspec.json.decode(sys.stdin.buffer.read(), type=MachineState)
        sys.stdout.buffer.write(msgspec.json.encode(starts(state)))
    except (ClusterError, msgspec.MsgspecError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
