"""Small machines with watts, random caps and compositions that know them, for the property tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st
from msgspec.structs import replace

from cluster_agent.cap_steps import Cap
from cluster_agent.cluster import Machine, NodeGroup, Topology
from cluster_agent.scheduler import cap_reactions
from cluster_agent.scheduler.job_columns import Jobs
from cluster_agent.scheduler.native.governor import Watts
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.power_phases import Idle, Off, Power
from tests.cluster_agent.traces import composition, widest_first

NODES, CORES = 5, 2  # 10 processors, as the other property tests have


def machine(switching_s: float, has_racks: bool) -> Machine:
    """Five nodes of two cores at three frequencies; a full node draws 100 W, idle 30 W, off 4 W."""
    node = NodeGroup(
        count=NODES,
        cores=CORES,
        off_w=4,
        idle_w=30,
        frequency_mhz=(2000, 1500, 1000),
        busy_w=(100, 80, 65),
        boot_s=2 * switching_s,
        boot_j=90 * switching_s,
        switch_off_s=switching_s,
        switch_off_j=50 * switching_s,
    )
    topology = Topology(2, 7, 2, 11) if has_racks else Topology()
    return Machine("small", (node,), topology, {"default": 1.75})


machines = st.builds(machine, st.sampled_from([0.0, 0.0, 1.0, 2.5]), st.booleans())


@st.composite
def cap_lists(draw: st.DrawFn, most: int = 4) -> list[Cap]:
    """One long cap; or windows in order, some touching, known from the start, when they begin, or between."""
    if draw(st.booleans()):
        return [Cap(draw(st.integers(0, 5)), 400, draw(st.sampled_from([255.0, 290.0, 330.0, 365.0, 435.0])))]
    caps, at_s = [], 0
    for _ in range(draw(st.integers(0, most))):
        from_s = at_s + draw(st.integers(0, 12))
        at_s = from_s + draw(st.integers(1, 20))
        watts = draw(st.sampled_from([130.0, 200.0, 260.5, 333.25, 400.0, 500.0]))
        caps.append(Cap(from_s, at_s, watts, draw(st.integers(0, from_s))))
    return caps


def off_by_cap(nodes: int) -> Idle:
    """Some nodes off in each window below 400 W, more in the lower ones."""

    def idle(machine: Machine, caps: Sequence[Cap], now_s: int) -> Sequence[Off]:
        return [Off(cap.from_s, cap.to_s, nodes if cap.watts > 210 else nodes + 1) for cap in caps if cap.watts < 400]

    return idle


def power(**phases: Any) -> Power:
    """``Power``, the types of whose fields cannot all be looked up, as ``st.builds`` does."""
    return Power(**phases)


def powers(*idle: Idle | None) -> st.SearchStrategy[Power]:
    """Any policy's watts, with one of these ways to switch nodes off."""
    return st.builds(
        power,
        floor_mhz=st.sampled_from([None, 1500, 1000]),
        react=st.sampled_from(
            [
                None,
                cap_reactions.kills("newest-start"),
                cap_reactions.kills("least-lost"),
                cap_reactions.slows_then_kills("newest-start", "singly"),
                cap_reactions.slows_then_kills("newest-submit", "together"),
            ]
        ),
        idle=st.sampled_from(idle),
        requeue=st.booleans(),
        reacts_to_ends=st.sampled_from(["unheard", "unheard", "before", "after"]),
        starts_slowed=st.booleans(),
        looks_ahead=st.sampled_from([True, True, False]),
    )


rescaling = st.builds(
    power,
    floor_mhz=st.sampled_from([1500, 1000]),
    react=st.sampled_from([cap_reactions.slows("singly"), cap_reactions.slows_then_kills("newest-start", "together")]),
    idle=st.sampled_from([None, None, off_by_cap(1), off_by_cap(3)]),
    reacts_to_ends=st.sampled_from(["after", "after", "before", "unheard"]),
    rescales=st.sampled_from([True, True, False]),
    meters=st.booleans(),
)
"""Running jobs that are lowered and raised as caps begin and end, and metered."""


def any_composition(**phases: st.SearchStrategy[Any]) -> st.SearchStrategy[Composition]:
    """Any estimate, order and guard with these phases."""
    return st.builds(
        composition,
        estimate=st.sampled_from(["requested", "clairvoyant", "mean2", "learned"]),
        history=st.sampled_from(["user", "similar"]),
        fixed=st.sampled_from(["submission", "start"]),
        shadow=st.sampled_from([1.0, 1.0, 1.5, float("inf")]),
        guard=st.sampled_from([None, None, 1.5, 3.0]),
        correct=st.sampled_from(["requested", "incremental", "doubling", "doubling-capped"]),
        order=st.sampled_from([None, widest_first]),
        scan=st.sampled_from(["queue", "shortest"]),
        **phases,
    )


compositions = any_composition(
    backfill=st.sampled_from(["none", "list", "easy", "easy"]),
    power=st.one_of(st.none(), *[powers(None, off_by_cap(1), off_by_cap(3))] * 3),
    idle_off_s=st.sampled_from([None, 1, 3, 12]),
)

conservative = any_composition(
    backfill=st.just("conservative"),
    power=st.one_of(st.none(), *[powers(None, off_by_cap(1), off_by_cap(3))] * 2),
    idle_off_s=st.sampled_from([None, None, 1, 3, 12]),
)
with_places = st.one_of(conservative, any_composition(backfill=st.just("compress")))
"""A place for every job; one that is kept only where watts are not planned."""


def watts_of(composition: Composition, on: Machine, jobs: Jobs, has_predictions: bool) -> Watts:
    """The machine's watts, two jobs in three to be slowed; with predictions every job has its own, planned and true."""
    found = Watts.of(on, composition.power)
    found = replace(found, job_lowest=(np.arange(len(jobs)) % 3 > 0).astype(np.int32) * found.lowest)
    if not has_predictions:
        return found
    drawn = found.idle_uw + (np.arange(len(jobs)) * 7_654_321) % (found.busy_uw[0] - found.idle_uw)
    planned = np.minimum(drawn + 1_234_567, found.busy_uw[0])
    if composition.power is not None and composition.power.meters:
        return replace(found, job_busy_uw=drawn.astype(np.int64))
    return replace(found, job_busy_uw=drawn.astype(np.int64), job_plan_uw=planned.astype(np.int64))
