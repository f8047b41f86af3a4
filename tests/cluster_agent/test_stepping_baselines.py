"""The searched and the trained baseline on stepped worlds: they do what they say, and cannot see the future."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from cluster_agent.replay.measures import bounded_slowdown
from cluster_agent.replay.world_run import run
from cluster_agent.scheduler.policies.registry import choose
from cluster_agent.stepping import learned
from cluster_agent.stepping.searched import search
from tests.cluster_agent.test_stepping import world


@pytest.mark.parametrize("text", ["easy", "score:lowest=saf", "wfp3"])
def test_a_search_among_one_order_is_that_order(text: str) -> None:
    source, order = world(seed=12), choose(text).composition
    start_s, chosen = search(source, [order], every_s=600)
    assert (start_s == run(source, order).start_s).all()
    assert chosen[0] > 20


def test_a_search_chooses_several_orders_and_beats_the_worse_of_them() -> None:
    source, orders = world(seed=13), [choose(text).composition for text in ("easy", "score:lowest=saf")]
    start_s, chosen = search(source, orders, every_s=600)
    submit_s, run_s = source.jobs.submit_s, source.jobs.run_s
    each = [bounded_slowdown(run(source, order).start_s - submit_s, run_s).mean() for order in orders]
    assert min(chosen) > 0
    assert bounded_slowdown(start_s - submit_s, run_s).mean() < max(each)


def test_what_a_search_decides_does_not_depend_on_jobs_to_come_nor_on_run_times_that_are_not_over() -> None:
    """Up to the 150th submission two logs are the same in what a scheduler knows."""
    source, orders = world(seed=14), [choose(text).composition for text in ("easy", "score:lowest=saf", "wfp3")]
    middle_s = int(source.jobs.submit_s[150])
    start_s, _ = search(source, orders, every_s=600)
    end_s = start_s + source.jobs.run_s
    run_s = np.where(end_s < middle_s, source.jobs.run_s, source.jobs.request_s)
    width = source.jobs.width.copy()
    width[150:] = 1
    other = source.with_jobs(msgspec.structs.replace(source.jobs, run_s=run_s, width=width))
    other_start_s, _ = search(other, orders, every_s=600)
    decided = start_s < middle_s
    assert 100 < decided.sum() < 150
    assert (other_start_s[decided] == start_s[decided]).all()


def test_training_is_the_same_for_a_seed_and_finds_what_beats_a_random_order() -> None:
    at = learned.windows(world(n=600, seed=15), 120, 4, seed=1)
    found = list(learned.train(at, 1, 4, 8))
    assert found == list(learned.train(at, 1, 4, 8))
    order, best = found[-1]
    assert choose(f"score:lowest={order}").composition.score is not None
    longest_first = np.mean([learned.mean_slowdown(one, "-estimate") for one in at])
    assert np.mean([learned.mean_slowdown(one, order) for one in at]) < longest_first
    assert best <= found[0][1]
