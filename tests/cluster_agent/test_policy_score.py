"""score by hand, on a machine of 10 processors, and what is no formula."""

from __future__ import annotations

import pytest
from cluster_agent._native import lib

from cluster_agent.errors import WrongUseError
from cluster_agent.scheduler.orders.score_formula import DEEPEST, score
from cluster_agent.scheduler.policies.registry import choose
from cluster_agent.scheduler.policies.score import RULES
from tests.cluster_agent.traces import jobs_of, native_starts

# one job fills the machine until 100; the others are as wide as it, so they run one after the other
LONG, SHORT, NARROW = (1, 200, 200, 10, 0), (2, 20, 20, 9, 0), (3, 50, 50, 7, 0)
JOBS = [(0, 100, 100, 10, 0), LONG, SHORT, NARROW]


def in_turn(lowest: str) -> list[int]:
    starts = native_starts(choose(f"score:lowest={lowest}").composition, jobs_of(JOBS))
    return sorted(starts, key=starts.__getitem__)[1:]


@pytest.mark.parametrize(
    ("lowest", "order"),
    [
        ("sjf", [2, 3, 1]),  # 200, 20, 50 s
        ("saf", [2, 3, 1]),  # 2000, 180, 350 processor-seconds
        ("sqf", [3, 2, 1]),
        ("lxf", [2, 3, 1]),  # at 100: 299 / 200, 118 / 20, 147 / 50; at 120: 319 / 200, 167 / 50
        ("unicep", [2, 3, 1]),  # at 100: 99 / (3.5 x 200), 98 / (3.3 x 20), 97 / (3 x 50)
        ("f1", [1, 2, 3]),  # log10(submit) outweighs what these jobs differ by
        ("f4", [1, 2, 3]),
        ("-estimate", [1, 3, 2]),
        ("estimate-200", [2, 3, 1]),
        ("0*wait", [1, 2, 3]),  # equal ones in order of submission
        ("log(width-10)", [1, 2, 3]),  # minus infinity, and twice what is no number
        ("1/(estimate-20)", [1, 3, 2]),  # 1 / 180, infinity, 1 / 30
    ],
)
def test_the_lowest_score_is_served_first(lowest: str, order: list[int]) -> None:
    assert in_turn(lowest) == order


def test_a_rule_of_time_serves_whom_time_has_brought_forward() -> None:
    """At 100 the short job's slowdown is the higher, 1.9 to 1.5; at 400 it is the long one's, 4.5 to 4."""
    jobs = jobs_of([(0, 400, 400, 10, 0), (50, 100, 100, 10, 0), (310, 30, 30, 10, 0)])
    assert native_starts(choose("score:lowest=lxf").composition, jobs) == {0: 0, 1: 400, 2: 500}
    assert native_starts(choose("score:lowest=sjf").composition, jobs) == {0: 0, 1: 430, 2: 400}


def test_all_rules_are_formulas_and_only_those_with_wait_follow_time() -> None:
    follow = {name for name, text in RULES.items() if score(text).follows_time}
    assert follow == {"lxf", "unicep"}
    assert DEEPEST == lib.SCORE_DEPTH


@pytest.mark.parametrize(
    ("lowest", "said"),
    [
        ("*", "the score '*' is no formula"),
        ("wait(", "the score 'wait(' is no formula"),
        ("age", "the score has 'age', and knows only wait, estimate, request, width, submit"),
        ("exp(wait)", "the score has 'exp(wait)': it takes + - * / **, numbers, log(a), log2(a), log10(a), sqrt(a)"),
        ("sqrt()", "the score has 'sqrt()': it takes"),
        ("True", "the score has 'True': it takes"),
        ("1e999", "the score has a number that is too large"),
        ("wait if width else 1", "the score has 'wait if width else 1': it takes"),
        ("+".join(["wait"] * 100), "the score has 499 characters, more than 400"),
        ("1+(" * 16 + "1" + ")" * 16, "is nested too deeply"),
        ("(" * 399, "is no formula"),
        ("wait\0", "is no formula"),
    ],
)
def test_what_is_no_formula_is_said_in_one_line(lowest: str, said: str) -> None:
    with pytest.raises(WrongUseError) as caught:
        choose(f"score:lowest={lowest}")
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_the_deepest_formula_that_is_taken_is_worked_out() -> None:
    text = "1+(" * (DEEPEST - 1) + "width" + ")" * (DEEPEST - 1)
    assert in_turn(text) == [3, 2, 1]
