"""The nodes of one job are judged together, and whom an equal share does not limit, `minimal-slowdown` does not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cluster_agent.budget.sharers import registry
from cluster_agent.budget.sharers.even_out import even_out
from cluster_agent.budget.sharers.needs import Needs
from cluster_agent.budget.sharers.view import ROUNDING_MW, Job, Shares, Tag, View
from tests.cluster_agent.sharer_views import MODELS, cases, view

OURS = ["minimal-slowdown", "minimal-slowdown:floor=70,guard=20,weight=nodes", "minimal-slowdown:machine=curie"]
ALL = ["fspc", "aapc", "aapc:fairness=tdp,untagged=memory", *OURS]


def bound(one: View, caps_mw: np.ndarray, owner: np.ndarray) -> np.ndarray:
    """The nodes with a job whose caps are below what they draw without one; unknown draws may be all of TDP."""
    wanted_mw = np.where(one.need_mw >= 0, np.minimum(one.need_mw, one.tdp_mw), one.tdp_mw)
    return np.flatnonzero((owner >= 0) & (caps_mw < wanted_mw))


@st.composite
def unlimited(draw: st.DrawFn) -> tuple[View, int]:
    """A partition whose nodes draw no more than their equal share."""
    one, budget_mw = draw(cases())
    equal_mw = registry.choose("fspc").share(one, budget_mw).caps_mw
    needs = {}
    for at, name in enumerate(one.nodes):
        need_mw = draw(st.integers(0, int(equal_mw[at])))
        if equal_mw[at] < one.tdp_mw[at] or draw(st.booleans()):
            needs[name] = need_mw
    return View.of(one.nodes, one.tdp_mw, one.mop_mw, one.jobs, needs), budget_mw


@pytest.mark.parametrize("text", OURS)
@settings(max_examples=40)
@given(case=unlimited())
def test_where_the_equal_share_binds_no_node_minimal_slowdown_binds_none(text: str, case: tuple[View, int]) -> None:
    one, budget_mw = case
    equal = registry.choose("fspc").share(one, budget_mw)
    assert not len(bound(one, equal.caps_mw, equal.owner))
    shares = registry.choose(text).share(one, budget_mw)
    active = shares.owner >= 0
    assert not len(bound(one, shares.caps_mw, shares.owner))
    assert (shares.caps_mw[active] >= equal.caps_mw[active]).all(), "nor once it draws more than was measured"
    assert shares.caps_mw.sum() <= budget_mw


def test_a_job_that_only_the_guard_does_not_leave_room_for_is_not_limited() -> None:
    """Two jobs draw exactly their equal shares: no watt is left for bursts, and neither is slowed for the other's."""
    jobs = [Job("a", ["n0"], Tag.COMPUTE), Job("b", ["n1"], Tag.MEMORY)]
    nodes = view([400, 400], [100, 100], jobs, [250, 250])
    shares = registry.choose("minimal-slowdown:machine=curie").share(nodes, 500_000)
    assert shares.caps_mw.tolist() == [250_000, 250_000]
    assert shares.why(nodes, "n0").reason == "equal"


@st.composite
def with_factors(draw: st.DrawFn) -> tuple[View, int]:
    one, budget_mw = draw(st.one_of(cases(), unlimited()))
    factors = {name: draw(st.sampled_from([0.5, 0.9, 1.0, 1.2, 2.0])) for name in one.nodes if draw(st.booleans())}
    needs = {name: int(mw) for name, mw in zip(one.nodes, one.need_mw, strict=True) if mw >= 0}
    return View.of(one.nodes, one.tdp_mw, one.mop_mw, one.jobs, needs, factors), budget_mw


def evened(text: str, one: View, budget_mw: int) -> tuple[Shares, np.ndarray]:
    shares = registry.choose(text).share(one, budget_mw)
    return shares, even_out(one, shares)


@pytest.mark.parametrize("text", ALL)
@settings(max_examples=25)
@given(case=with_factors())
def test_nodes_of_one_job_that_are_alike_get_equal_caps_and_why_says_what_makes_others_unequal(
    text: str, case: tuple[View, int]
) -> None:
    one, budget_mw = case
    shares, caps_mw = evened(text, one, budget_mw)
    shares = Shares(shares.sharer, caps_mw, shares.reason, shares.owner, shares.tag, shares.speed)
    for job in np.unique(shares.owner[shares.owner >= 0]).tolist():
        mates = np.flatnonzero(shares.owner == job).tolist()
        of = {at: (one.tdp_mw[at], one.mop_mw[at], one.need_mw[at], one.factor[at]) for at in mates}
        for at in mates:
            alike = [int(caps_mw[mate]) for mate in mates if of[mate] == of[at]]
            assert max(alike) - min(alike) <= ROUNDING_MW
            is_said = f"; the {len(mates)} nodes of the job get from" in shares.why(one, one.nodes[at]).words
            assert is_said == (int(np.ptp(caps_mw[mates])) > ROUNDING_MW)
            assert "by a rule of" not in shares.why(one, one.nodes[at]).words


@pytest.mark.parametrize("text", ALL)
@settings(max_examples=25)
@given(case=with_factors())
def test_no_node_is_limited_so_that_a_mate_gets_more_by_its_factor(text: str, case: tuple[View, int]) -> None:
    one, budget_mw = case
    shares, caps_mw = evened(text, one, budget_mw)
    known = one.need_mw >= 0
    for job in np.unique(shares.owner[shares.owner >= 0]).tolist():
        mates = np.flatnonzero(shares.owner == job)
        assert int(caps_mw[mates].sum()) == int(shares.caps_mw[mates].sum())
        if known[mates].all() and shares.caps_mw[mates].sum() >= one.need_mw[mates].sum():
            before, after = (set(bound(one, caps, shares.owner)) & set(mates) for caps in (shares.caps_mw, caps_mw))
            assert after <= before


def test_why_names_what_makes_caps_of_one_job_unequal() -> None:
    jobs = [Job("7", ["n0", "n1", "n2"], Tag.MEMORY), Job("8", ["n3"], Tag.COMPUTE)]
    share = registry.choose("minimal-slowdown:machine=curie").share

    def words(nodes: View) -> str:
        return share(nodes, 900_000).why(nodes, "n1").words

    alike = words(view([378] * 4, [160] * 4, jobs, [226, 226, 226, 378]))
    assert "nodes of the job" not in alike
    unlike = words(view([378] * 4, [160] * 4, jobs, [260, 226, 226, 378]))
    assert "the 3 nodes of the job get from" in unlike and unlike.endswith("they were measured to draw unlike watts")
    assert "nodes of the job" not in words(view([378] * 4, [160] * 4, jobs, [-1, 226, 226, 378])), "as its mates"
    assert "their TDP or MOP differ" in words(view([400, 378, 378, 378], [160] * 4, jobs))


def test_a_node_that_was_measured_in_a_quiet_moment_is_not_capped_by_that() -> None:
    """As measured on emulated nodes whose own policies lower clocks now and then: 221 W, while mates draw 300 W."""
    jobs = [Job("hpl", ["n0", "n1"], Tag.COMPUTE), Job("stream", ["n2", "n3", "n4"], Tag.MEMORY)]
    nodes = view([378] * 5, [160] * 5, jobs, [378, 378, 300, 221, 296])
    for budget_w in range(1000, 1700, 100):
        shares = registry.choose("minimal-slowdown:machine=curie").share(nodes, 1000 * budget_w)
        stream_mw = shares.caps_mw[2:]
        assert stream_mw.min() >= 0.94 * stream_mw.max()


# --- what is learned of the nodes of one job


def hear(needs: Needs, now_s: float, powers_w: list[int], caps_w: list[int], expected_w: int = -1) -> None:
    """Nodes n0, n1, ... of one job report; one that draws its cap is cap-bound."""
    for at, (power_w, cap_w) in enumerate(zip(powers_w, caps_w, strict=True)):
        expected_mw = 1000 * expected_w if expected_w >= 0 else -1
        is_bound = "yes" if power_w == cap_w else "no"
        needs.hear(now_s, f"n{at}", "j", 1000 * power_w, 1000 * cap_w, 378_000, is_bound, expected_mw)


def known_w(needs: Needs) -> list[int]:
    return [mw // 1000 for mw in needs.need_mw.values()]


def measured() -> Needs:
    """Four nodes that drew 226 W while nothing limited them."""
    needs = Needs()
    for now_s in (0, 20):
        hear(needs, now_s, [226] * 4, [378] * 4)
    assert known_w(needs) == [226] * 4
    return needs


def test_when_one_node_outgrows_its_need_its_limited_mates_are_measured_again_too() -> None:
    needs = measured()
    hear(needs, 40, [220, 220, 220, 210], [220] * 4)  # the job is slowed, which proves nothing
    assert known_w(needs) == [226] * 4
    hear(needs, 45, [228], [228])
    assert known_w(needs) == [378, 378, 378, 226], "n3 was not limited when it was last heard of"
    hear(needs, 46, [240, 240, 240, 220], [378, 378, 378, 220])
    assert known_w(needs) == [378] * 4, "it is limited now, and was measured before the job outgrew that"
    hear(needs, 106, [240] * 4, [378] * 4)
    hear(needs, 167, [240] * 4, [378] * 4)
    assert known_w(needs) == [240] * 4, "all come down together"


def test_a_limited_node_that_was_never_measured_counts_like_its_most_demanding_mate() -> None:
    needs = Needs()
    for now_s in (0, 20):
        hear(needs, now_s, [226, 210, 200], [378, 378, 200])
    assert known_w(needs) == [226, 210, 226]
    hear(needs, 25, [226, 210, 228], [228, 212, 228])
    assert known_w(needs)[2] == 378, "it is limited there as well"


def test_a_node_that_draws_more_than_its_jobs_table_expects_is_measured_too() -> None:
    needs = Needs()
    for now_s in (0, 20):
        hear(needs, now_s, [300, 305], [300, 305], expected_w=310)
    assert needs.need_mw == {}, "below that its table may be right"
    for now_s in (21, 22):
        hear(needs, now_s, [300, 320], [300, 320], expected_w=310)
    assert known_w(needs) == [378, 378]


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(200, 370), st.lists(st.integers(0, 7), min_size=1, max_size=8)), max_size=12),
    st.integers(16 * 225, 16 * 300),
)
@example([(226, [0, 1]), (345, [0, 1, 2]), (345, [0]), (250, [5]), (345, [0, 1, 2])], 4000)
def test_a_job_is_never_slowed_by_some_of_its_nodes_while_others_have_watts_to_spare(
    phases: list[tuple[int, list[int]]], budget_w: int
) -> None:
    """Eight nodes run one job whose watts change with its phases, four a hungry one. In each phase caps are planned
    after some of the reports, then after all, at intervals of 6 s; by then all nodes of the job are limited, or none.
    """
    names = [f"n{at}" for at in range(16)]
    jobs = [
        Job("hpl", names[8:12], Tag.COMPUTE, model=MODELS[Tag.COMPUTE]),
        Job("stream", names[:8], Tag.MEMORY, model=MODELS[Tag.MEMORY]),
    ]
    needs, now_s = Needs(), 0.0
    tdp_mw, mop_mw = np.full(16, 378_000), np.full(16, 223_000)
    caps_mw = tdp_mw.copy()

    def report(at: int, job: str, draw_w: int) -> None:
        cap_mw, draw_mw = int(caps_mw[at]), 1000 * draw_w
        is_bound = "yes" if draw_mw > cap_mw else "no"
        needs.hear(now_s, names[at], job, min(draw_mw, cap_mw), cap_mw, 378_000, is_bound)

    for draw_w, first in [(226, []), *phases]:
        for heard in (first, range(8), range(8), range(8)):
            now_s += 6.0
            for at in heard:
                report(at, "stream", draw_w)
            for at in range(8, 12):
                report(at, "hpl", 378)
            one = View.of(names, tdp_mw, mop_mw, jobs, needs.need_mw)
            caps_mw = registry.choose("minimal-slowdown").share(one, budget_w * 1000).caps_mw
        stream_mw = caps_mw[:8]
        is_limited = stream_mw < 1000 * draw_w
        assert is_limited.all() or not is_limited.any(), f"{draw_w} W under {(stream_mw / 1000).tolist()}"
