"""When jobs will start that no policy has planned: from a replay of the queue (``page.queue_replay``)."""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from cluster_agent.history.job_history import HistoryRow
from cluster_agent.page.queue_replay import Starts
from cluster_agent.serve.people_protocol import JobRow
from cluster_agent.workloads.state_file import MachineState, StateJob

LONGEST_S: Final = 120.0
"""Ours: a replay that takes longer is ended. Of 5,000 jobs it takes half a second."""

FEWEST_ALIKE: Final = 3
"""Ours: of fewer jobs of one name a median says little."""


class Prediction(msgspec.Struct, frozen=True):
    """What was predicted last. Times are Unix seconds of this machine."""

    made_s: float
    """Of which moment the queue is."""
    policy: str = ""
    instead: str = ""
    """Why ``policy`` is not the one in force; empty: it is."""
    known: int = 0
    """Of how many jobs that wait or run the time rests on jobs like them; all others count their whole walltime."""
    likely_s: Mapping[int, float] = {}
    if_whole_s: Mapping[int, float] = {}
    """By job: if all jobs that are known take as long as those like them, and if all take their whole walltime."""
    trouble: str = ""
    """Why there is none; empty: there is one."""


def with_run_times(state: MachineState, rows: Iterable[JobRow], ended: Sequence[HistoryRow]) -> MachineState:
    """Jobs get the median time of those of the same user and name that are done, where there are enough of them, and
    they do not run longer already."""
    took: dict[tuple[str, str], list[float]] = {}
    for one in ended:
        if one.state == "done" and one.application:
            took.setdefault((one.user, one.application), []).append(one.run_s)
    median_s = {key: statistics.median(times_s) for key, times_s in took.items() if len(times_s) >= FEWEST_ALIKE}
    alike_s = {row.job: median_s.get((row.user, row.title)) for row in rows}
    return replace(state, jobs=[_with_run_time(job, alike_s.get(job.job), state.t0_s) for job in state.jobs])


def _with_run_time(job: StateJob, alike_s: float | None, now_s: int) -> StateJob:
    if alike_s is None or job.request_s is None:
        return job
    run_s = min(max(round(alike_s), 1), job.request_s)
    is_over = job.start_s is not None and run_s <= now_s - job.start_s
    return job if is_over else replace(job, run_s=run_s)


async def predicted(state: MachineState, now_s: float) -> Prediction:
    """From a state that is of now. ``trouble`` says what went wrong; when this is cancelled, the replay ends."""
    command = [sys.executable, "-m", "cluster_agent.page.queue_replay"]
    replaying = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        out, error = await asyncio.to_thread(replaying.communicate, msgspec.json.encode(state), LONGEST_S)
    except subprocess.TimeoutExpired:
        return Prediction(now_s, trouble=f"the replay of the queue took longer than {LONGEST_S:g} s")
    finally:
        if replaying.poll() is None:
            replaying.kill()
            replaying.wait()
    if replaying.returncode != 0:
        last = error.decode(errors="replace").strip().rpartition("\n")[2]
        return Prediction(now_s, trouble=last or f"the replay of the queue ended with status {replaying.returncode}")
    found, shift_s = msgspec.json.decode(out, type=Starts), now_s - state.t0_s
    likely_s = {job: max(at_s + shift_s, now_s) for job, at_s in found.likely_s.items()}
    if_whole_s = {job: max(at_s + shift_s, now_s) for job, at_s in found.if_whole_s.items()}
    known = sum(job.run_s is not None for job in state.jobs)
    return Prediction(now_s, found.policy, found.instead, known, likely_s, if_whole_s)
