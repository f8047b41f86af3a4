"""What every sharer keeps, how one is chosen, when to share again, and what is learned of nodes and jobs."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.ledger_store import FaultyStore
from cluster_agent.budget.budget_line import BudgetLine
from cluster_agent.budget.ledger import Ledger, Terms
from cluster_agent.budget.plan import plan
from cluster_agent.budget.sharers import registry
from cluster_agent.budget.sharers.fill import fill
from cluster_agent.budget.sharers.gap import Gap
from cluster_agent.budget.sharers.needs import Needs
from cluster_agent.budget.sharers.turn import Sharing
from cluster_agent.budget.sharers.view import Job, Tag, View, tag_of
from cluster_agent.budget.tag_sources import (
    History,
    Known,
    Source,
    from_counters,
    from_user,
    resolve,
)
from cluster_agent.errors import WrongUseError
from foundation.wire.power_messages import CapBound, Declaration, Report
from tests.cluster_agent.sharer_views import cases

CHOICES = [
    "fspc",
    "aapc",
    "aapc:fairness=tdp,untagged=mixed,memory=60",
    "minimal-slowdown",
    "minimal-slowdown:floor=70,guard=20",
    "minimal-slowdown:machine=curie",
]
DOCS = Path(__file__).parents[2] / "docs" / "policies.md"


@pytest.mark.parametrize("text", CHOICES)
@given(case=cases())
def test_caps_keep_to_the_budget_and_to_each_nodes_bounds_and_are_the_same_again(
    text: str, case: tuple[View, int]
) -> None:
    view, budget_mw = case
    shares = registry.choose(text).share(view, budget_mw)
    assert shares.caps_mw.dtype == np.int64
    assert shares.caps_mw.sum() <= budget_mw
    assert (shares.caps_mw >= view.mop_mw).all()
    assert (shares.caps_mw <= view.tdp_mw).all()
    assert shares.steps <= 2 * len(view.jobs)
    assert np.array_equal(shares.caps_mw, registry.choose(text).share(view, budget_mw).caps_mw)
    for node in view.nodes:
        assert shares.why(view, node).words


@pytest.mark.parametrize("text", ["aapc", "minimal-slowdown"])
@given(case=cases())
def test_a_budget_that_caps_somebody_is_spent(text: str, case: tuple[View, int]) -> None:
    view, budget_mw = case
    shares = registry.choose(text).share(view, budget_mw)
    is_capped = (shares.owner >= 0) & (shares.caps_mw < view.tdp_mw)
    if is_capped.any():
        assert budget_mw - shares.caps_mw.sum() <= len(view.nodes)  # whole milliwatts


@given(st.data(), st.integers(1, 9))
def test_water_is_filled_to_one_level_within_bounds(data: st.DataObject, n: int) -> None:
    def column(low: int, high: int) -> np.ndarray:
        return np.array(data.draw(st.lists(st.integers(low, high), min_size=n, max_size=n)), np.int64)

    low, room, weight, offset = column(0, 1000), column(0, 1000), column(1, 9), column(0, 500)
    total = data.draw(st.integers(int(low.sum()), int((low + room).sum())))
    caps = fill(total, low, low + room, weight, offset)
    assert caps.sum() == total
    assert ((caps >= low) & (caps <= low + room)).all()
    free = (caps > low) & (caps < low + room)
    level = (caps - offset) / weight
    assert free.sum() < 2 or np.ptp(level[free]) <= n + 1


# --- chosen and documented


@pytest.mark.parametrize("name", registry.names())
def test_every_sharer_names_its_source_and_stands_in_the_docs(name: str) -> None:
    method = registry.method(name)
    assert method.name == name
    assert method.source
    assert f"`{name}`" in DOCS.read_text()
    module = importlib.import_module(f"tests.cluster_agent.test_sharer_{name.replace('-', '_')}")
    assert module.__doc__


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("acp", "no sharer is called 'acp' (nearest: aapc); one of fspc, aapc, minimal-slowdown"),
        ("aapc:memry=80", "sharer aapc:memry=80: aapc has no parameter 'memry' (nearest: memory)"),
        ("aapc:memory=0", "sharer aapc:memory=0: memory=0 must be above 0 and at most 100 (% of TDP)"),
        ("aapc:fairness=x", "sharer aapc:fairness=x: fairness cannot be 'x': one of watts, tdp"),
        ("minimal-slowdown:guard=much",
         "sharer minimal-slowdown:guard=much: guard cannot be 'much': a number is needed"),
        ("minimal-slowdown:floor=100",
         "sharer minimal-slowdown:floor=100: floor=100 must be at least 0 and below 100 (%)"),
    ],
)  # fmt: skip
def test_a_wrong_choice_is_answered_in_one_line(text: str, message: str) -> None:
    with pytest.raises(WrongUseError) as caught:
        registry.choose(text)
    assert str(caught.value) == message


def test_an_unknown_tag_is_answered_with_the_nearest_one() -> None:
    assert tag_of("memory") == Tag.MEMORY
    with pytest.raises(ValueError, match=r"no tag is called 'memry' \(nearest: MEMORY\)$"):
        tag_of("memry")


# --- with the ledger


def _ledger(budget_w: int, n: int = 3) -> Ledger:
    ledger = Ledger(FaultyStore(), Terms(failing_together=0), BudgetLine(budget_w * 1000), 0.0)
    declaration = Declaration(400_000, 100_000, 100_000, 150_000, "hw")
    for at in range(n):
        ledger.hear(0.0, Report(f"n{at}", "b", 1, 0, 0, 0, 100_000, "seen", -1, declaration))
    return ledger


def test_a_sharer_plans_for_the_ledger_and_then_says_why() -> None:
    ledger = _ledger(800)
    jobs = [Job("compute", ["n0"], Tag.COMPUTE, "user"), Job("memory", ["n2"], Tag.MEMORY, "user")]
    sharing = Sharing(registry.choose("aapc").share, ledger, jobs)
    planned = plan(ledger, 0.0, sharing)
    assert planned.caps_mw == {"n0": 400_000, "n1": 100_000, "n2": 300_000}
    why = sharing.why("n2")
    assert why is not None and (why.cap_mw, why.reason, why.job) == (300_000, "mop_and_share", "memory")
    assert sharing.why("n9") is None


def test_a_job_keeps_its_place_when_one_of_its_nodes_is_out_of_reach() -> None:
    ledger = _ledger(800)
    ledger.expect(0.0, {"n3": Declaration(100_000, 50_000, 50_000, 50_000, "hw")})
    sharing = Sharing(registry.choose("aapc").share, ledger, [Job("wide", ["n0", "n3"], Tag.MEMORY)])
    plan(ledger, 0.0, sharing)
    assert sharing.why("n3") is None
    why = sharing.why("n0")
    assert why is not None and why.job == "wide"


# --- when


def test_ends_wait_for_the_gap_and_starts_and_budgets_do_not() -> None:
    gap = Gap(60.0).after(0.0, "end")
    assert gap.is_due(0.0)
    gap = gap.updated(0.0)
    assert not gap.is_due(1e9)
    assert gap.after(10.0, "end").due_s == 60.0
    assert gap.after(10.0, "end").after(20.0, "start").is_due(20.0)
    assert gap.after(10.0, "budget").is_due(10.0)
    assert gap.after(70.0, "tag").is_due(70.0)


@given(st.lists(st.tuples(st.floats(0, 30), st.sampled_from(["start", "end", "tag", "budget"])), max_size=30))
def test_two_updates_are_a_gap_apart_unless_something_could_not_wait(happens: list[tuple[float, str]]) -> None:
    gap, now_s, urgent = Gap(60.0), 0.0, False
    updates: list[float] = []
    for after_s, event in happens:
        now_s += after_s
        gap = gap.after(now_s, event)  # type: ignore[arg-type]
        urgent = event in ("start", "budget")
        if gap.is_due(now_s):
            assert urgent or not updates or now_s - updates[-1] >= 60.0
            updates.append(now_s)
            gap = gap.updated(now_s)


# --- what nodes need


def _hear(needs: Needs, reports: list[tuple[float, int, int]], job: str = "j") -> int:
    for now_s, power_w, cap_w in reports:
        held: CapBound = "yes" if power_w == cap_w else "no"
        needs.hear(now_s, "n", job, power_w * 1000, cap_w * 1000, 400_000, held)
    return needs.need_mw.get("n", -1) // 1000


def test_a_draw_below_the_cap_is_a_nodes_need_once_its_job_has_begun() -> None:
    assert _hear(Needs(), [(0, 120, 400), (5, 130, 400), (20, 250, 400), (30, 240, 400)]) == 250


def test_a_need_outlives_a_cap_that_limits_it_and_grows_when_it_proves_too_small() -> None:
    needs = Needs()
    assert _hear(needs, [(0, 0, 400), (20, 250, 400), (40, 200, 200)]) == 250
    assert _hear(needs, [(60, 262, 262)]) == 400  # cap-bound above what it was said to need: it may want all
    assert _hear(needs, [(80, 300, 400), (141, 300, 400)]) == 400
    assert _hear(needs, [(210, 300, 400)]) == 300


def test_a_hungry_phase_is_remembered_for_a_window() -> None:
    needs = Needs()
    assert _hear(needs, [(0, 0, 400), (20, 300, 400), (40, 200, 400), (80, 200, 400)]) == 300
    assert _hear(needs, [(150, 200, 400)]) == 200


def test_the_next_job_has_to_be_measured_again() -> None:
    needs = Needs()
    assert _hear(needs, [(0, 0, 400), (20, 250, 400)]) == 250
    assert _hear(needs, [(30, 100, 400)], job="next") == -1
    assert _hear(needs, [(31, 100, 400)], job="") == -1


def test_a_node_that_is_cap_bound_from_its_start_has_no_known_need() -> None:
    assert _hear(Needs(), [(0, 0, 200), (20, 200, 200), (60, 200, 200)]) == -1


def test_a_node_that_does_not_say_whether_it_is_cap_bound_gets_the_watts_that_show_it() -> None:
    needs = Needs()
    for now_s, cap_mw in ((0, 400_000), (20, 400_000)):
        needs.hear(now_s, "n", "j", 245_000, cap_mw, 400_000)
    assert needs.need_mw == {"n": 250_000}
    needs.hear(40, "n", "j", 245_000, 252_500, 400_000)
    assert needs.need_mw == {"n": 250_000}, "a guard of 1 % above its need does not limit it"
    needs.hear(60, "n", "j", 250_000, 252_500, 400_000)
    assert needs.need_mw == {"n": 400_000}


def test_a_nodes_word_goes_before_the_distance_from_its_cap() -> None:
    needs = Needs()
    for now_s in (0, 20, 40):  # as controllers do, it keeps 5 % below its cap
        needs.hear(now_s, "n", "j", 190_000, 200_000, 400_000, cap_bound="yes")
    assert needs.need_mw == {}
    needs.hear(60, "n", "j", 210_000, 260_000, 400_000, cap_bound="unsure")
    assert needs.need_mw == {}
    needs.hear(61, "n", "j", 250_000, 260_000, 400_000, cap_bound="no")
    needs.hear(62, "n", "j", 199_000, 200_000, 400_000, cap_bound="no")
    assert needs.need_mw == {"n": 250_000}


# --- tags


def test_the_first_source_that_can_say_is_the_tags_source() -> None:
    history = History()
    for tag in (Tag.MEMORY, Tag.MIXED, Tag.MEMORY):
        history.ended("ann", "sim", tag)
    sources: list[tuple[str, Source]] = [("user", from_user), ("measured", from_counters), ("history", history)]
    assert resolve(Known("ann", "sim", Tag.COMPUTE, Tag.MIXED), sources) == (Tag.COMPUTE, "user")
    assert resolve(Known("ann", "sim", None, Tag.MIXED), sources) == (Tag.MIXED, "measured")
    assert resolve(Known("ann", "sim"), sources) == (Tag.MEMORY, "history")
    assert resolve(Known("bob", "sim"), sources) == (None, "")


def test_history_needs_more_than_one_job_and_takes_the_sensitive_one_of_equals() -> None:
    history = History()
    history.ended("ann", "sim", Tag.MEMORY)
    assert history(Known("ann", "sim")) is None
    history.ended("ann", "sim", Tag.COMPUTE)
    assert history(Known("ann", "sim")) == Tag.COMPUTE
