"""Waiting jobs that are alike are looked at once in a pass (``csrc/kinds.h``); the plain-Python engine asks each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from cluster_agent.cap_steps import Cap
from cluster_agent.scheduler.cap_reactions import kills, slows_then_kills
from cluster_agent.scheduler.energy_window import Budget
from cluster_agent.scheduler.job_columns import Jobs
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.power_phases import Power
from tests.cluster_agent.power_traces import machine, off_by_cap, watts_of
from tests.cluster_agent.test_policy_energy_budget import referenced, replayed
from tests.cluster_agent.traces import jobs_of


def alike(rng: np.random.Generator, jobs: int) -> Jobs:
    """A long queue of few widths and requests. Most jobs end earlier than they ask for."""
    request_s, width = rng.integers(3, 40, 4), rng.integers(1, 8, 4)
    kind, submit_s = rng.integers(0, 4, jobs), np.sort(rng.integers(0, 60, jobs))
    run_s = np.maximum(request_s[kind] - rng.integers(0, 3, jobs) * rng.integers(0, 12, jobs), 1)
    rows = zip(submit_s, run_s, request_s[kind], width[kind], kind % 3, strict=True)
    return jobs_of([(int(a), int(b), int(c), int(d), int(e)) for a, b, c, d, e in rows])


def composition(rng: np.random.Generator) -> tuple[Composition, list[Cap]]:
    """Caps that come, one that stays, or joules, and whatever else decides who may start."""

    def one_of(*choices: Any) -> Any:
        return choices[rng.integers(0, len(choices))]

    windows = [Cap(at_s, at_s + 45, float(rng.integers(200, 480)), at_s % 20) for at_s in (30, 90, 150, 300)]
    always = [Cap(0, 4000, float(rng.integers(240, 450)))]
    rule, test = one_of("energybud", "energybud", "reducepc"), one_of("path", "path", "job", "whole")
    budget = Budget(float(rng.integers(200, 480)) * 200, 20, 220, rule, test, one_of(5, 60))
    limit = one_of("windows", "always", "joules")
    knows = Power(
        floor_mhz=one_of(None, None, 1500, 1000),
        idle=one_of(None, off_by_cap(1), off_by_cap(2)),
        react=one_of(None, kills("newest-start"), slows_then_kills("newest-start", "together")),
        budget=budget if limit == "joules" else None,
    )
    found = Composition(
        backfill="easy",
        scan=one_of("queue", "queue", "shortest"),
        estimate=one_of("requested", "requested", "mean2"),
        power=one_of(knows, knows, knows, None),
        idle_off_s=one_of(None, None, 3, 15),
    )
    return found, {"windows": windows, "always": always, "joules": []}[limit]


@pytest.mark.parametrize("seed", range(40))
def test_a_job_is_refused_with_the_first_of_its_kind_where_it_would_be_refused_alone(seed: int) -> None:
    rng = np.random.default_rng(seed)
    jobs = alike(rng, 40)
    policy, caps = composition(rng)
    watts = watts_of(policy, machine(float(rng.choice([0.0, 2.0])), True), jobs, False)
    if rng.integers(0, 2):
        watts = replace(watts, job_lowest=None)
    assert replayed(policy, jobs, watts, caps).start_s.tolist() == referenced(policy, jobs, watts, caps)
