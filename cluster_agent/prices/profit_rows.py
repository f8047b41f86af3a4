"""What plans of days earn next to the best of six rules that know run times as well as they do, a row each."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from cluster_agent.cluster import Machine
from cluster_agent.prices.profit_days import RULES, Carried, Knowledge, Work, Worth, by_rule, planned, worth
from cluster_agent.prices.profit_model import Site


class Row(msgspec.Struct, frozen=True):
    """Of a rule or a search, over all days. EUR; gains in per cent over the best rule, by the same count."""

    name: str
    durations: Knowledge
    profit: float  # as in the thesis
    gain_pct: float
    earned: float
    power: float
    cooling: float
    with_idle: float  # idle nodes and boots counted
    gain_with_idle_pct: float
    boots: int
    used_pct: float
    started: int
    day_s: float = 0.0  # of processor time that a plan took, mean
    schedules: int = 0  # that were made


def compared(
    work: Work,
    site: Site,
    machine: Machine,
    days: int,
    durations: Sequence[Knowledge],
    searches: Sequence[str],
    iterations: int,
    step: Callable[[int], Any] = lambda done: None,
) -> tuple[list[Row], Carried]:
    """The best rule, then each search, with each knowledge; and what the last of them carried out. ``step`` gets how
    many days have been planned."""
    rows: list[Row] = []
    last, done = None, 0

    def one_more(day: int) -> None:
        nonlocal done
        done += 1
        step(done)

    for known in durations:
        rules = {
            f"rule {rule}{' strict' if strict else ''}": worth(
                work, site, machine, days, by_rule(work, days, rule, strict, known)
            )
            for rule, strict in RULES
        }
        best = max(rules, key=lambda name: rules[name].jobs.total)
        bar = (rules[best].jobs.total, max(value.with_idle for value in rules.values()))
        rows.append(_row(best, known, rules[best], bar))
        for name in searches:
            begun = time.process_time()
            plans = planned(work, site, days, name, known, iterations, step=one_more)
            took_s = (time.process_time() - begun) / days
            last = plans.carried
            row = _row(name, known, worth(work, site, machine, days, last), bar)
            rows.append(msgspec.structs.replace(row, day_s=took_s, schedules=plans.tried))
    assert last is not None
    return rows, last


def _row(name: str, known: Knowledge, value: Worth, bar: tuple[float, float]) -> Row:
    found = value.jobs
    return Row(
        *(name, known, found.total, gain_pct(found.total, bar[0]), found.earned, found.power, found.cooling),
        *(value.with_idle, gain_pct(value.with_idle, bar[1]), value.boots, 100 * value.used, value.started),
    )


def gain_pct(value: float, best: float) -> float:
    """NaN where the best rule earns nothing."""
    return 100 * (value - best) / best if best > 0 else math.nan
