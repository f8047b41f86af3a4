"""What a job loses under caps, as the rate at which it works shows: its own ratios alone, believed with measure."""

from __future__ import annotations

import math
from itertools import cycle

import numpy as np
import pytest

from cluster_agent.budget.sharers import registry
from cluster_agent.budget.sharers.rates import TABLE_ERROR, Learned, Rates
from cluster_agent.budget.sharers.speed import SpeedModel
from cluster_agent.budget.sharers.view import Job
from tests.cluster_agent.sharer_views import view

STRAIGHT = SpeedModel("straight", 0.0, (1.0, 0.5), (1.0, 0.5))
TDP_MW, LOW_MW = 400_000, 200_000
"""At the low cap the table expects twice the time."""


class Course:
    """A job on some nodes, whose caps go to and fro every half minute; ``rate`` of (second, true slowdown)."""

    def __init__(self, loss: float, kind: str = "progress", unit: float = 1.0, noise: float = 0.0) -> None:
        self.rates, self.now_s = Rates(), 0.0
        self.loss, self.kind, self.unit = loss, kind, unit
        self.noise = noise
        self.dice = np.random.default_rng(5)

    def run(self, seconds: int = 120, nodes: int = 1, job: str = "j", need_mw: int = TDP_MW, like: str = "") -> Course:
        for second in range(seconds):
            self.now_s += 1
            is_held = second // 30 % 2 == 0
            if second % 10 == 0:
                factor = math.exp(self.noise * self.dice.standard_normal())
            drawn_mw, cap_mw = (LOW_MW, LOW_MW) if is_held else (TDP_MW, -1)
            rate = self.unit * factor / (1 + (self.loss if is_held else 0.0))
            for node in range(nodes):
                self.rates.hear(self.now_s, f"n{node}", job, rate, self.kind, STRAIGHT, drawn_mw, cap_mw, TDP_MW,
                                need_mw, like)  # fmt: skip
        return self

    def end(self) -> Course:
        self.rates.hear(self.now_s, "n0", "")
        return self

    @property
    def learned(self) -> Learned:
        found = self.rates.learned("j")
        assert found is not None
        return found


@pytest.mark.parametrize("loss", [0.6, 0.85, 1.0, 1.3])
def test_a_rate_that_falls_otherwise_than_the_table_says_is_what_the_job_loses(loss: float) -> None:
    learned = Course(loss).run().learned
    assert learned.loss == pytest.approx(loss, abs=0.03)
    assert learned.doubt < 0.04


def test_units_do_not_matter_only_ratios_of_one_job_with_itself() -> None:
    assert Course(1.3, unit=1e-3).run().learned.loss == pytest.approx(Course(1.3, unit=1e9).run().learned.loss)


def test_a_job_that_was_seen_under_one_cap_alone_is_as_its_table_says() -> None:
    learned = Course(1.3).run(29).learned
    assert (learned.loss, learned.doubt, learned.words) == (1.0, TABLE_ERROR, "")


def test_where_a_nodes_full_draw_is_unknown_nothing_is_learned_from_its_rate() -> None:
    assert Course(1.3).run(need_mw=-1).learned.loss == 1.0


def test_instructions_are_believed_half_since_waiting_retires_them_too() -> None:
    learned = Course(1.4, "instructions").run(600).learned
    assert learned.loss == pytest.approx(1.2, abs=0.01)
    assert learned.doubt == pytest.approx(TABLE_ERROR / 2**0.5, rel=0.05)


def test_progress_takes_the_place_of_instructions_once_it_is_reported() -> None:
    course = Course(1.4, "instructions").run()
    course.kind = "progress"
    assert course.run().learned.loss == pytest.approx(1.4, abs=0.03)
    course.kind, course.loss = "instructions", 0.5
    assert course.run().learned.loss == pytest.approx(1.4, abs=0.03)


def test_a_job_whose_rate_goes_to_and_fro_by_itself_is_believed_less() -> None:
    steady, restless = (Course(1.3, noise=noise).run(600).learned for noise in (0.005, 0.15))
    assert steady.doubt < restless.doubt / 2
    assert 0.7 < restless.loss < 1.6


def test_one_phase_that_begins_with_a_cap_moves_little() -> None:
    course = Course(1.0).run(32)  # raised two seconds ago, and works ten times as fast from now on
    course.unit = 10.0
    for _ in range(20):
        course.now_s += 1
        course.rates.hear(course.now_s, "n0", "j", 10.0, "progress", STRAIGHT, TDP_MW, -1, TDP_MW, TDP_MW)
    assert course.learned.loss < 1 + 4 * TABLE_ERROR


def test_nodes_of_one_job_do_not_count_as_so_many_witnesses() -> None:
    one, eight = (Course(1.3).run(600, nodes).learned for nodes in (1, 8))
    assert eight.doubt == pytest.approx(one.doubt, rel=0.1)


def test_the_next_job_called_alike_begins_with_what_was_learned() -> None:
    course = Course(1.3).run(like="eve/lu").end()
    assert course.rates.learned("j") is None
    course.run(1, job="next", like="eve/lu").end()
    learned = course.run(1, job="another", like="eve/lu").rates.learned("another")
    assert learned is not None
    assert learned.loss == pytest.approx(1.3, abs=0.03)
    assert learned.doubt >= 0.04
    fresh = course.run(1, job="unlike", like="eve/ft").rates.learned("unlike")
    assert fresh is not None
    assert fresh.loss == 1.0


@pytest.mark.parametrize("rates", [[0.0], [0.0, 1.0], [-1.0, 1.0], [1e-300, 1e300]])
def test_whatever_rates_are_reported_the_loss_stays_a_number(rates: list[float]) -> None:
    heard, told = Rates(0.0, 0.0), cycle(rates)
    for at in range(40):
        cap_mw = LOW_MW if at % 2 else -1
        heard.hear(float(at), "n0", "j", next(told), "progress", STRAIGHT, at * 10_000, cap_mw, TDP_MW, TDP_MW)
    learned = heard.learned("j")
    assert learned is None or 0 <= learned.loss <= 2


def test_watts_go_to_the_job_that_has_shown_to_lose_most_and_it_says_so() -> None:
    jobs = [Job("as its table", ["n0"], model=STRAIGHT),
            Job("loses more", ["n1"], model=STRAIGHT, learned=Learned(1.2, 0.02, "progress"))]  # fmt: skip
    nodes = view([400, 400], [200, 200], jobs)
    shares = registry.choose("minimal-slowdown:guard=0").share(nodes, 600_000)
    assert shares.caps_mw.tolist() == pytest.approx([200_000, 400_000], abs=1)
    held = registry.choose("minimal-slowdown:guard=0").share(nodes, 400_000)
    assert 1 / held.speed - 1 == pytest.approx([1.0, 1.2])
    assert held.why(nodes, "n1").words.endswith(
        "predicted to take 120.0 % longer (by its progress it loses 1.20 ± 0.02 times its table's time)"
    )
