"""Bridi's hybrid (PhD thesis, Bologna 2018, ch. 7): nodes on and off by a profile made a day ahead, in 12 scenarios.

Jobs, loads, prices, PUE, temperatures and watts are those of ``benchmarks.profit``; all is on the engine of replays, so
that a job waits for the nodes that boot for it. Each midnight a forecast is made from the same hours of the last weeks
of the log (the low load has a day of history, the medium one three weeks), and from it the nodes that stay on:

extracted 70, 50   as printed: profit plan of the forecast, 84 %, offsets; in all so many nodes
spares             ours: in each hour so many nodes without a job as were taken within a boot in 9 of 10 times
on                 nothing is switched
timer              no profile: a node goes off after 300 s without a job

Under all of these jobs start by the rule ``est``, and nodes that are not kept go off after 300 s. Of the six this rule
loses least to the best of them on fifty other days, in parts of five (``--choose``). The bar is the best of the six
rules on the judged days, by the same count, with all nodes on, as in the thesis. Gains are in per cent of it, with idle
nodes and boots counted, and apart without.
``most``: no schedule of these jobs can save more, since it has no idle node and no boot; ``no joules``: power is free
as well. Published: for offset 70. EMULATED.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from functools import cache, partial
from typing import Final, get_args

import msgspec
import numpy as np
from msgspec.structs import replace

from benchmarks.experiment import save
from benchmarks.profit import LOADS, log, site_of
from cluster_agent.cluster import Machine, load_machine
from cluster_agent.kept_on import Kept
from cluster_agent.prices.cooling import Plant, Season
from cluster_agent.prices.node_forecast import Past, extracted, kept_profile, spares
from cluster_agent.prices.profit_days import DAY_S, Work, work_of
from cluster_agent.prices.profit_model import (
    HOUR_S,
    J_PER_KWH,
    Site,
    Window,
    idle,
    profit,
    window,
)
from cluster_agent.prices.profit_rows import gain_pct
from cluster_agent.scheduler.job_columns import Int64s, Jobs
from cluster_agent.scheduler.native.governor import Watts
from cluster_agent.scheduler.native.native_replay import NativeReplay
from cluster_agent.scheduler.policies.registry import choose

RULES: Final = tuple(
    f"rule-based:rule={rule},miss={miss}" for rule in ("est", "walltime", "profit") for miss in ("list", "strict")
)
CHOSEN: Final = "rule-based:rule=est,miss=list"
CHOICE: Final = (374, 379, 391, 396, 406, 421, 436, 451, 466, 481)
"""The first of five days each, on which the rule was chosen; none is judged."""

TIMER_S: Final = 300
HISTORY_DAYS: Final = 56
PLAN_S: Final = 60.0
"""Ours: a plan that takes longer is late."""

PUBLISHED: Final = {
    "low": {("air", "summer"): 29.5, ("hybrid", "summer"): 17.84, ("air", "winter"): 7.37, ("hybrid", "winter"): 15.0},
    "medium": {
        ("air", "summer"): 10.46,
        ("hybrid", "summer"): 18.23,
        ("air", "winter"): 13.19,
        ("hybrid", "winter"): -7.5,
    },
    "high": {("air", "summer"): 0.36, ("hybrid", "summer"): 0.2, ("air", "winter"): 0.23, ("hybrid", "winter"): 0.01},
}


class Ran(msgspec.Struct, frozen=True):
    """Days under one policy: starts, and the joules that nodes drew without jobs in each hour."""

    start_s: Int64s
    without_j: list[float]
    boots: int


class Row(msgspec.Struct, frozen=True):
    """Of one scenario and way to switch nodes; EUR, and gains in per cent of the best rule by the same count."""

    load: str
    plant: Plant
    season: Season
    name: str
    without_idle: float
    with_idle: float
    gain_without_pct: float
    gain_with_pct: float
    boots: int


def days_of(first: int, days: int) -> Jobs:
    jobs = log().jobs
    at = np.searchsorted(jobs.submit_s, [first * DAY_S, (first + days) * DAY_S])
    chosen = jobs.only(np.arange(*at))
    return replace(chosen, submit_s=chosen.submit_s - first * DAY_S)


def ran(jobs: Jobs, machine: Machine, policy: str, days: int, kept: Kept | None = None) -> Ran:
    composition = choose(policy).composition
    if kept is not None:
        composition = replace(composition, kept=kept)
    replay = NativeReplay(composition, jobs, machine.processors, Watts.of(machine, composition.power))
    drawn = [0.0]
    for hour in range(1, 24 * days + 1):
        replay.pause_at(hour * HOUR_S)
        replay.run(len(jobs) + 1)
        found = replay.moment(hour * HOUR_S).joules
        drawn.append(found["idle"] + found["off"] + found["switching"])
    starts = np.where((replay.start_s < 0) | (replay.start_s >= days * DAY_S), days * DAY_S, replay.start_s)
    return Ran(starts, np.diff(drawn).tolist(), replay.boots)


@cache
def past(load: str) -> Past:
    """Of the weeks before and the judged days themselves; a forecast looks only at what was before its midnight. The
    judged days begin with an empty machine, so what is left of the weeks before is cut off there."""
    (first, days), machine = LOADS[load], load_machine("curie-fat")
    begun, begin_s = max(first - HISTORY_DAYS, 0), first * DAY_S
    before, after = days_of(begun, first - begun), days_of(first, days)
    ran_s, starts_s = ran(before, machine, CHOSEN, first - begun).start_s, ran(after, machine, CHOSEN, days).start_s
    started = np.flatnonzero(ran_s < begin_s - begun * DAY_S)
    old_s = ran_s[started] + begun * DAY_S
    jobs = days_of(begun, first - begun + days).only(np.concatenate([started, len(before) + np.arange(len(after))]))
    run_s = jobs.run_s.copy()
    run_s[: len(started)] = np.minimum(run_s[: len(started)], begin_s - old_s)
    submit_s = jobs.submit_s + begun * DAY_S
    start_s = np.concatenate([old_s, starts_s + begin_s])
    return Past(replace(jobs, submit_s=submit_s, run_s=run_s), start_s, machine)


def kept_by_extraction(load: str, site: Site, offset: float) -> Kept:
    (first, days), of = LOADS[load], past(load)
    cores, on, last = of.machine.node.cores, list[tuple[int, int]](), None
    for day in range(days):
        midnight_s = (first + day) * DAY_S
        make = partial(extracted, of, site, midnight_s, offset)
        last, reason = kept_profile(make, last, of.machine.nodes, PLAN_S, time.process_time)
        if reason:
            print(f"{load}, day {day}: {reason}", file=sys.stderr)
        on += [(day * DAY_S + hour * HOUR_S, nodes * cores) for hour, nodes in enumerate(last)]
    return Kept(on=tuple(on))


def kept_by_spares(load: str) -> Kept:
    (first, days), of = LOADS[load], past(load)
    found = spares(of, first * DAY_S, days)
    return Kept(idle=tuple((at_s - first * DAY_S, nodes * of.machine.node.cores) for at_s, nodes in found))


def _windows(days: int) -> Iterator[tuple[Plant, Season, Site, Window]]:
    """The four ways to cool."""
    for plant in get_args(Plant):
        for season in get_args(Season):
            site = site_of(plant, season, days)
            yield plant, season, site, window(site, 0, days * DAY_S)


def _worth(of: Window, one: Ran, work: Work) -> tuple[float, float, float]:
    """EUR: the profit without idle nodes and boots, with them, and what jobs pay."""
    jobs = work.jobs
    value = profit(of, one.start_s, jobs.run_s, jobs.width.astype(np.int64), work.watts)
    gone_s = np.clip(of.edges[:, None] - one.start_s, 0, jobs.run_s)
    more = idle(of, np.array(one.without_j), np.diff(gone_s @ work.watts) / J_PER_KWH)
    return value.total, value.total + more.total, value.earned


def scenarios(load: str) -> list[Row]:
    days, machine = LOADS[load][1], load_machine("curie-fat")
    jobs = days_of(*LOADS[load])
    work = work_of(jobs, machine)
    rules = {rule: ran(jobs, machine, rule, days) for rule in RULES}
    goes = f"{CHOSEN},idle_off_s={TIMER_S}"
    ways = {
        "on": ran(jobs, machine, CHOSEN, days),
        "timer": ran(jobs, machine, goes, days),
        "spares": ran(jobs, machine, goes, days, kept_by_spares(load)),
    }
    found: list[Row] = []
    for plant, season, site, of in _windows(days):
        worth = partial(_worth, of, work=work)
        best = [max(worth(one)[count] for one in rules.values()) for count in (0, 1)]
        earned = max(worth(one)[2] for one in rules.values())
        here = ways | {
            f"extracted {offset}": ran(jobs, machine, goes, days, kept_by_extraction(load, site, offset / 100))
            for offset in (70, 50)
        }
        values = {name: (*worth(one)[:2], one.boots) for name, one in here.items()}
        values["most"] = (best[0], best[0], 0)
        values["no joules"] = (earned, earned, 0)
        for name, (without, with_idle, boots) in values.items():
            gains = gain_pct(without, best[0]), gain_pct(with_idle, best[1])
            found.append(Row(load, plant, season, name, without, with_idle, *gains, boots))
    return found


def chosen() -> None:
    """What each rule loses on the days of ``CHOICE`` in per cent of the best one's profit, with idle nodes counted, and
    what the timer alone gains under ``CHOSEN``: means of the four ways to cool."""
    machine, lost, gained = load_machine("curie-fat"), list[list[float]](), list[float]()
    for first in CHOICE:
        jobs = days_of(first, 5)
        work = work_of(jobs, machine)
        ways = [ran(jobs, machine, policy, 5) for policy in (*RULES, f"{CHOSEN},idle_off_s={TIMER_S}")]
        of_sites = np.array([[_worth(of, one, work)[1] for one in ways] for *_, of in _windows(5)])
        gains = 100 * (of_sites / of_sites[:, : len(RULES)].max(axis=1, keepdims=True) - 1).mean(axis=0)
        lost.append((-gains[:-1]).tolist())
        gained.append(float(gains[-1]))
        shares = "  ".join(f"{one:6.2f}" for one in lost[-1])
        print(f"days {first} to {first + 4}, {len(jobs):5} jobs: {shares}; timer {gained[-1]:+6.2f}", flush=True)
    for rule, mean, highest in zip(RULES, np.mean(lost, axis=0), np.max(lost, axis=0), strict=True):
        print(f"{rule:40} loses {mean:6.2f} %, at most {highest:6.2f} %")
    save("hybrid_choice", {"rules": RULES, "days": CHOICE, "lost_pct": lost, "timer_pct": gained})


def shown(rows: Sequence[Row]) -> str:
    first = rows[0]
    cells = [f"{row.gain_with_pct:+7.2f} ({row.gain_without_pct:+6.2f})" for row in rows]
    published = PUBLISHED[first.load][first.plant, first.season]
    return f"{first.load:7} {first.plant:7} {first.season:7} {'  '.join(cells)}  {published:+6.2f}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="low load alone")
    parser.add_argument("--loads", nargs="*", choices=LOADS, default=list(LOADS))
    parser.add_argument("--choose", action="store_true", help="which rule, on other days")
    options = parser.parse_args(arguments)
    if options.choose:
        chosen()
        return 0
    found: list[Row] = []
    names = ("on", "timer", "spares", "extracted 70", "extracted 50", "most", "no joules")
    print(f"{'load':7} {'cooling':7} {'season':7} {'  '.join(f'{name:>16}' for name in names)}  published")
    for load in options.loads[:1] if options.quick else options.loads:
        rows = scenarios(load)
        found += rows
        for at in range(0, len(rows), len(names)):
            print(shown(rows[at : at + len(names)]), flush=True)
        print(f"{load}: boots " + ", ".join(f"{row.name} {row.boots}" for row in rows[:5]))
    save("hybrid", {"rows": found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
