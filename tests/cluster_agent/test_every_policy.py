"""What holds for every policy of the registry that counts processors, on random traces."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from cluster_agent.cap_steps import Cap
from cluster_agent.scheduler.job_columns import Jobs
from cluster_agent.scheduler.native.governor import Watts
from cluster_agent.scheduler.native.native_replay import NativeReplay
from cluster_agent.scheduler.policies import registry
from tests.cluster_agent.power_traces import cap_lists, machine
from tests.cluster_agent.traces import EVERYTHING_ENDED, PROCESSORS, counts_processors, traces

SAMPLE = Path(__file__).parents[2] / "cluster_agent" / "samples" / "generated-500.swf"
NAMES = [name for name in registry.names() if counts_processors(name)]
SWITCHING_OFF = [
    *("easy:idle_off_s=3", "easy-sjbf:idle_off_s=3", "wfp3:idle_off_s=3", "multifactor:idle_off_s=3"),
    *(f"powercap:mode={mode},idle_off_s=3" for mode in ("idle", "shut", "dvfs", "mix")),
    *(
        f"energy-budget:rule={rule},joules=9000,from_s=5,to_s=45,idle_off_s=3"
        for rule in ("powercap", "reducepc", "energybud")
    ),
]
"""Idle nodes go off and boot on demand, with each policy that allows it."""


def replayed(name: str, jobs: Jobs, caps: list[Cap]) -> NativeReplay:
    """On a machine with watts; a policy that knows none is metered all the same."""
    composition = registry.choose(name).composition
    watts = Watts.of(machine(1.0, True), composition.power)
    replay = NativeReplay(composition, jobs, PROCESSORS, watts, caps)
    replay.run(EVERYTHING_ENDED)
    return replay


@pytest.mark.parametrize("name", NAMES + SWITCHING_OFF)
@settings(max_examples=12)
@given(jobs=traces(), caps=st.one_of(st.just([]), cap_lists()))
def test_no_processor_is_used_twice_and_no_job_is_early_or_lost(name: str, jobs: Jobs, caps: list[Cap]) -> None:
    replay = replayed(name, jobs, caps)
    start_s, end_s = replay.start_s, replay.end_s
    has_started = start_s >= 0
    assert (start_s[has_started] >= jobs.submit_s[has_started]).all()
    if not caps:
        assert replay.ended == len(jobs)
    assert ((end_s >= 0) == has_started).all()  # what has not ended never started, and is reported so
    held: list[tuple[int, int, int]] = []
    for job in np.flatnonzero(has_started & (end_s > start_s)):
        places = [one for low, high in replay.processors(int(job)) for one in range(low, high + 1)]
        assert len(set(places)) == jobs.width[job]
        held += [(place, int(start_s[job]), int(end_s[job])) for place in places]
    held.sort()
    for (place, _, until_s), (other, from_s, _) in pairwise(held):
        assert place != other or until_s <= from_s


@pytest.mark.parametrize("name", NAMES + SWITCHING_OFF)
@settings(max_examples=12)
@given(jobs=traces(), caps=cap_lists())
def test_the_joules_of_jobs_and_machine_are_the_clusters(name: str, jobs: Jobs, caps: list[Cap]) -> None:
    replay = replayed(name, jobs, caps)
    if replay.watts is None:
        return
    joules = replay.joules
    parts = float(replay.job_j.sum()) + joules["idle"] + joules["off"] + joules["switching"]
    assert parts == pytest.approx(joules["cluster"], rel=1e-9)


@pytest.mark.parametrize("name", [name for name in SWITCHING_OFF if name.startswith("powercap")])
@settings(max_examples=25)
@given(jobs=traces(), caps=cap_lists())
def test_booting_and_switching_off_keep_a_cap_known_from_the_start(name: str, jobs: Jobs, caps: list[Cap]) -> None:
    """A boot of the test's node draws 45 W, going off 50 W, idling 30 W; the machine idle may be above a low cap."""
    caps = [replace(cap, announced_s=0) for cap in caps]
    composition, on = registry.choose(name).composition, machine(1.0, False)
    replay = NativeReplay(composition, jobs, PROCESSORS, Watts.of(on, composition.power), caps)
    replay.run(EVERYTHING_ENDED)
    for drawn_w, cap_w in zip(*replay.power[1:], strict=True):
        assert drawn_w <= max(cap_w, on.idle_w + 5 * 20) + 1e-6
        assert cap_w < on.idle_w + 5 * 20 or drawn_w <= cap_w + 1e-6


SAME_METERED = [name for name in NAMES if registry.choose(name).composition.power is None]


@pytest.mark.parametrize("name", [*SAME_METERED, "conservative:ends=compress", "easy-sjbf:estimate=mean2,ties=sc15"])
@settings(max_examples=150)
@given(jobs=traces(), caps=cap_lists())
def test_a_policy_that_knows_no_watts_decides_the_same_where_they_are_metered(
    name: str, jobs: Jobs, caps: list[Cap]
) -> None:
    metered, plain = replayed(name, jobs, caps), NativeReplay(registry.choose(name).composition, jobs, PROCESSORS)
    plain.run(EVERYTHING_ENDED)
    assert metered.start_s.tolist() == plain.start_s.tolist()
    assert metered.overtook.tolist() == plain.overtook.tolist()
    assert [metered.processors(job) for job in range(len(jobs))] == [plain.processors(job) for job in range(len(jobs))]
