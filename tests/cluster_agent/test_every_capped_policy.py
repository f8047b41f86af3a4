"""What holds for every registered policy that knows watts, on random traces and caps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from cluster_agent.cap_steps import Cap
from cluster_agent.cluster import Machine
from cluster_agent.scheduler.job_columns import Jobs
from cluster_agent.scheduler.native.governor import Governor, Watts
from cluster_agent.scheduler.native.native_replay import NativeReplay
from cluster_agent.scheduler.policies import registry
from tests.cluster_agent.power_traces import cap_lists, machines
from tests.cluster_agent.traces import EVERYTHING_ENDED, PROCESSORS, counts_processors, traces

VARIANTS = (
    *("powercap:mode=idle", "powercap:mode=shut", "powercap:mode=dvfs,floor_mhz=1000", "powercap:kill=true"),
    *("eco:freed=eco-first", "eco:freed=queue-first,queue=easy", "eco:start=full,victim=least-lost"),
    *("eco:share=1,raised=together", "eco:killed=lost", "fcfs-killer:killed=lost,ahead=true"),
)


def knows_watts(name: str) -> bool:
    return counts_processors(name) and registry.choose(name).composition.power is not None


POLICIES = [name for name in (*registry.names(), *VARIANTS) if knows_watts(name)]


def replayed(policy: str, jobs: Jobs, caps: list[Cap], on: Machine) -> NativeReplay:
    composition = registry.choose(policy).composition
    watts = Watts.of(on, composition.power)
    assert composition.power is not None
    if composition.power.volunteers is not None:
        flags = np.arange(len(jobs)) % 3 > 0
        watts = replace(watts, job_lowest=(flags * watts.lowest).astype(np.int32))
    replay = NativeReplay(composition, jobs, PROCESSORS, watts, caps)
    replay.run(EVERYTHING_ENDED)
    return replay


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=25)
@given(jobs=traces(), caps=cap_lists(), on=machines, is_announced=st.booleans())
def test_caps_are_kept_and_every_job_ends(
    policy: str, jobs: Jobs, caps: list[Cap], on: Machine, is_announced: bool
) -> None:
    """Caps known before every running job started; or, where jobs are killed for them, however late. The machine
    without jobs may draw more than a low cap; no job may add to that."""
    power = registry.choose(policy).composition.power
    assert power is not None
    if is_announced or power.react is None:
        caps = [replace(cap, announced_s=0) for cap in caps]
    replay = replayed(policy, jobs, caps, on)
    assert replay.ended == len(jobs)
    for job in range(len(jobs)):
        assert replay.start_s[job] >= jobs.submit_s[job]
        if power.requeue or not replay.kills[job]:
            assert replay.end_s[job] - replay.start_s[job] >= jobs.run_s[job], "killed jobs begin again"
    if not len(jobs) or (power.idle is not None and power.react is not None):
        return  # a node that is left on by a job has no share of its own to be compared with
    first_s = int(jobs.submit_s[0])
    rows = Governor(Watts.of(on, power), power, caps, first_s).plan(first_s)
    known = all(cap.announced_s <= first_s for cap in caps)
    for at_s, drawn_w, cap_w in zip(*replay.power, strict=True):
        row = [row for row in rows if row.from_s <= at_s][-1]
        empty_w = (row.idle_uw + row.off_uw + row.switching_uw) / 1e6 if known and power.looks_ahead else on.idle_w
        assert drawn_w <= max(cap_w, empty_w) + 1e-6
