"""Views for the tests of sharers: nodes in watts, jobs by their sizes, and hypothesis strategies of both."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from cluster_agent.budget.sharers.speed import SpeedModel, model_of
from cluster_agent.budget.sharers.view import Job, Tag, View
from cluster_agent.cluster import load_machine

CURIE = load_machine("curie")
MODELS = {
    Tag.COMPUTE: model_of(CURIE, "linpack"),
    Tag.MIXED: model_of(CURIE, "nas", 0.8),
    Tag.MEMORY: model_of(CURIE, "stream", 0.62),
}


def view(tdp_w: Sequence[float], mop_w: Sequence[float], jobs: Sequence[Job], need_w: Sequence[float] = ()) -> View:
    """Nodes are called n0, n1, ..."""
    nodes = [f"n{at}" for at in range(len(tdp_w))]
    milliwatts = [np.array([round(1000 * watts) for watts in column], np.int64) for column in (tdp_w, mop_w)]
    need_mw = {name: round(1000 * watts) for name, watts in zip(nodes, need_w, strict=False) if watts >= 0}
    return View.of(nodes, milliwatts[0], milliwatts[1], jobs, need_mw)


def worked() -> View:
    """The digest's ten nodes: one idle, A MEMORY x2, B MEMORY x3, X MIXED x2, C COMPUTE x2; TDP 500 W, MOP 200 W."""
    jobs = [
        Job("A", ["n1", "n2"], Tag.MEMORY, "user"),
        Job("B", ["n3", "n4", "n5"], Tag.MEMORY, "user"),
        Job("X", ["n6", "n7"], Tag.MIXED, "user"),
        Job("C", ["n8", "n9"], Tag.COMPUTE, "user"),
    ]
    return view([500] * 10, [200] * 10, jobs)


@st.composite
def cases(draw: st.DrawFn) -> tuple[View, int]:
    """A partition of unlike nodes, jobs that may share them, and a budget that its MOPs fit into, in mW."""
    n = draw(st.integers(1, 12))
    mop_mw = draw(st.lists(st.integers(0, 300_000), min_size=n, max_size=n))
    tdp_mw = [low + draw(st.integers(1, 400_000)) for low in mop_mw]
    nodes = [f"n{at}" for at in range(n)]
    jobs = []
    for at in range(draw(st.integers(0, 6))):
        tag = draw(st.sampled_from([None, *Tag]))
        model: SpeedModel | None = draw(st.sampled_from([None, *MODELS.values()]))
        members = draw(st.lists(st.sampled_from([*nodes, "elsewhere"]), unique=True, max_size=n))
        jobs.append(Job(f"j{at}", members, tag, "user", model))
    need_mw = {name: draw(st.integers(0, 900_000)) for name in nodes if draw(st.booleans())}
    budget_mw = draw(st.integers(sum(mop_mw), sum(tdp_mw) + 100_000))
    return View.of(nodes, np.array(tdp_mw), np.array(mop_mw), jobs, need_mw), budget_mw
