"""Budgets of joules: both engines decide alike, the window's joules stay within the budget, and what it is without."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from benchmarks.energy_budget import runs
from cluster_agent.cap_steps import Cap
from cluster_agent.cli import main
from cluster_agent.cluster import Machine
from cluster_agent.errors import WrongUseError
from cluster_agent.replay.measures import joules_between
from cluster_agent.replay.simulated import JumpingClock, SimulatedMachine
from cluster_agent.scheduler.energy_window import Budget, Rule, Test
from cluster_agent.scheduler.job_columns import Jobs
from cluster_agent.scheduler.loop import run
from cluster_agent.scheduler.native.governor import Watts
from cluster_agent.scheduler.native.native_replay import NativeReplay
from cluster_agent.scheduler.policies.registry import choose
from cluster_agent.scheduler.policy_phases import Backfill, Composition, Estimate, Scan
from cluster_agent.scheduler.power_phases import Idle, Power
from tests.cluster_agent.power_traces import cap_lists, machine, machines, off_by_cap, watts_of
from tests.cluster_agent.test_power_engines_agree import crowd
from tests.cluster_agent.traces import EVERYTHING_ENDED, PROCESSORS, jobs_of, traces
from tests.oracle.joules_ledger import Ledger
from tests.oracle.power_scheduler import PowerReferenceScheduler
from tests.recorded import needs_recorded


class MeteredClock(JumpingClock):
    """Adds up what the cluster draws between its jumps, as the table of jobs and the plan say."""

    def __init__(self, machine: SimulatedMachine, jobs: Jobs, watts: Watts) -> None:
        super().__init__()
        self.scheduler: PowerReferenceScheduler | None = None
        self._machine, self._jobs, self._watts = machine, jobs, watts
        self._unread_uj = 0

    def wait_until(self, time_s: int | None) -> bool:
        assert self.scheduler is not None
        before_s, ledger = self.now_s(), self.scheduler.ledger
        jumps = super().wait_until(time_s)
        if time_s is not None and ledger is not None and ledger.is_open:
            self._unread_uj += (time_s - before_s) * self._drawn_uw(before_s)
        return jumps

    def read(self) -> int:
        read_uj, self._unread_uj = self._unread_uj, 0
        return read_uj

    def _drawn_uw(self, now_s: int) -> int:
        """With what jobs truly draw in place of what is planned."""
        assert self.scheduler is not None
        found = self.scheduler.present_uw(now_s)
        for job in self.scheduler.running:
            if self.scheduler.pace[job][0] > now_s:
                continue
            level, watts = self.scheduler.level(job), self._watts
            busy_uw, plan_uw = watts.busy_uw[level], watts.plan_uw[level]
            if watts.job_busy_uw is not None and watts.job_plan_uw is not None:
                share = (busy_uw - watts.idle_uw) / (watts.busy_uw[0] - watts.idle_uw)
                busy_uw = int((int(watts.job_busy_uw[job]) - watts.idle_uw) * share)
                plan_uw = int((int(watts.job_plan_uw[job]) - watts.idle_uw) * share)
            found += int(self._jobs.width[job]) * (busy_uw - plan_uw)
        return found


def referenced(
    composition: Composition,
    jobs: Jobs,
    watts: Watts,
    caps: list[Cap],
    engine: type[PowerReferenceScheduler] = PowerReferenceScheduler,
) -> list[int]:
    simulated = SimulatedMachine(jobs, composition.ties, watts.slowdown, watts.requeues)
    clock = MeteredClock(simulated, jobs, watts)
    clock.scheduler = engine(composition, jobs, watts, caps, clock.read)
    run(clock.scheduler, clock, simulated)
    return [simulated.start_s.get(job, -1) for job in range(len(jobs))]


def replayed(composition: Composition, jobs: Jobs, watts: Watts, caps: list[Cap]) -> NativeReplay:
    replay = NativeReplay(composition, jobs, PROCESSORS, watts, caps)
    replay.run(EVERYTHING_ENDED)
    return replay


rules: st.SearchStrategy[Rule] = st.sampled_from(["energybud", "energybud", "reducepc", "powercap"])
tests: st.SearchStrategy[Test] = st.sampled_from(["path", "path", "job", "whole"])


@st.composite
def budgets(draw: st.DrawFn) -> Budget:
    from_s = draw(st.integers(0, 20))
    length_s = draw(st.integers(1, 60))
    watts = draw(st.sampled_from([100.0, 150.0, 190.5, 230.0, 300.25, 400.0, 520.0]))
    return Budget(
        watts * length_s, from_s, from_s + length_s, draw(rules), draw(tests), draw(st.sampled_from([3, 7, 60]))
    )


@settings(max_examples=50)
@given(
    jobs=traces(),
    budget=budgets(),
    caps=cap_lists(),
    on=machines,
    backfill=st.sampled_from(["easy", "easy", "list"]),
    estimate=st.sampled_from(["requested", "clairvoyant", "mean2"]),
    scan=st.sampled_from(["queue", "shortest"]),
    floor_mhz=st.sampled_from([None, 1000]),
    has_predictions=st.booleans(),
    off=st.sampled_from([None, off_by_cap(1)]),
    idle_off_s=st.sampled_from([None, 1, 6]),
)
@example(  # a list is scanned in the order of the queue
    jobs=jobs_of([(2, 25, 30, 6, 2), (6, 19, 26, 5, 0), (11, 15, 19, 4, 2), (26, 8, 12, 4, 2)]),
    budget=Budget(2600.0, 0, 26, tick_s=3),
    caps=[],
    on=machine(0.0, False),
    backfill="list",
    estimate="requested",
    scan="shortest",
    floor_mhz=None,
    has_predictions=False,
    off=None,
    idle_off_s=None,
)
def test_with_a_budget_too_the_engines_give_the_same_schedule(
    jobs: Jobs,
    budget: Budget,
    caps: list[Cap],
    on: Machine,
    backfill: Backfill,
    estimate: Estimate,
    scan: Scan,
    floor_mhz: int | None,
    has_predictions: bool,
    off: Idle | None,
    idle_off_s: int | None,
) -> None:
    power = Power(floor_mhz=floor_mhz, idle=off, budget=budget)
    composition = Composition(backfill=backfill, estimate=estimate, scan=scan, power=power, idle_off_s=idle_off_s)
    watts = watts_of(composition, on, jobs, has_predictions)
    assert replayed(composition, jobs, watts, caps).start_s.tolist() == referenced(composition, jobs, watts, caps)


@pytest.mark.parametrize("seed", range(30))
def test_the_engines_agree_on_a_crowded_machine_with_a_budget(seed: int) -> None:
    rng = np.random.default_rng(seed)
    jobs, on = crowd(rng, 40), machine([0.0, 2.0][seed % 2], True)
    rule: Rule = "reducepc" if seed % 3 == 0 else "energybud"
    test: Test = "job" if seed % 5 == 0 else "whole" if seed % 5 == 1 else "path"
    budget = Budget(float(rng.integers(200, 480)) * 200, 20, 220, rule, test, [5, 60][seed % 2])
    composition = Composition(
        backfill="easy",
        power=Power(budget=budget),
        estimate="mean2" if seed % 7 == 0 else "requested",
        idle_off_s=[None, None, 4, 20][seed % 4],
    )
    watts = watts_of(composition, on, jobs, seed % 2 == 0)
    assert replayed(composition, jobs, watts, []).start_s.tolist() == referenced(composition, jobs, watts, [])


@settings(max_examples=50)
@given(
    jobs=traces(),
    budget=budgets(),
    on=machines,
    has_predictions=st.booleans(),
    idle_off_s=st.sampled_from([None, 1, 6]),
)
def test_the_windows_joules_stay_within_the_budget_if_nothing_ran_before(
    jobs: Jobs, budget: Budget, on: Machine, has_predictions: bool, idle_off_s: int | None
) -> None:
    """At every moment what was drawn is at most what the limit and idling alone would have come to."""
    if not len(jobs):
        return
    from_s = int(jobs.submit_s[0])
    budget = replace(budget, joules=budget.limit_w * (budget.to_s + 5), from_s=from_s, to_s=from_s + budget.to_s + 5)
    budget = replace(budget, test="path")
    composition = Composition(backfill="easy", power=Power(budget=budget), idle_off_s=idle_off_s)
    replay = replayed(composition, jobs, watts_of(composition, on, jobs, has_predictions), [])
    for to_s in range(budget.from_s, min(budget.to_s, int(replay.end_s.max())) + 1):
        allowed_j = max(budget.limit_w, on.idle_w) * (to_s - budget.from_s)
        assert joules_between(replay, budget.from_s, to_s) <= allowed_j + 1e-3


@settings(max_examples=30)
@given(jobs=traces(), budget=budgets(), on=machines, is_endless=st.booleans())
def test_a_budget_for_the_full_machine_or_more_is_plain_easy(
    jobs: Jobs, budget: Budget, on: Machine, is_endless: bool
) -> None:
    easy = NativeReplay(Composition(backfill="easy"), jobs, PROCESSORS)
    easy.run(EVERYTHING_ENDED)
    joules = 1e30 if is_endless else on.full_w * (budget.to_s - budget.from_s)
    composition = Composition(backfill="easy", power=Power(budget=replace(budget, joules=joules)))
    replay = replayed(composition, jobs, Watts.of(on, composition.power), [])
    assert replay.start_s.tolist() == easy.start_s.tolist()


@settings(max_examples=300)
@given(
    jobs=traces(),
    budget=budgets(),
    caps=cap_lists(2),
    on=machines,
    estimate=st.sampled_from(["requested", "requested", "clairvoyant", "mean2", "learned"]),
    guard=st.sampled_from([None, None, 2.0]),
    floor_mhz=st.sampled_from([None, 1000]),
    has_predictions=st.booleans(),
    off=st.sampled_from([None, None, off_by_cap(1)]),
    idle_off_s=st.sampled_from([None, None, 1, 6]),
)
def test_a_place_for_everybody_is_planned_in_joules_too(
    jobs: Jobs,
    budget: Budget,
    caps: list[Cap],
    on: Machine,
    estimate: Estimate,
    guard: float | None,
    floor_mhz: int | None,
    has_predictions: bool,
    off: Idle | None,
    idle_off_s: int | None,
) -> None:
    budget = replace(budget, rule="energybud" if budget.rule == "reducepc" else budget.rule)
    power = Power(floor_mhz=floor_mhz, idle=off, budget=budget)
    composition = Composition(
        backfill="conservative", estimate=estimate, guard=guard, power=power, idle_off_s=idle_off_s
    )
    watts = watts_of(composition, on, jobs, has_predictions)
    assert replayed(composition, jobs, watts, caps).start_s.tolist() == referenced(composition, jobs, watts, caps)


@pytest.mark.parametrize("seed", range(60))
def test_the_engines_agree_on_a_crowded_machine_with_a_place_in_joules_for_everybody(seed: int) -> None:
    composition, jobs, on = crowded(seed)
    watts = watts_of(composition, on, jobs, seed % 4 == 0)
    replay = replayed(composition, jobs, watts, [])
    assert replay.start_s.tolist() == referenced(composition, jobs, watts, [])


def crowded(seed: int, **phases: Any) -> tuple[Composition, Jobs, Machine]:
    """A budget of some 40 to 90 % of the full machine, from the beginning; its watts are no round number."""
    rng = np.random.default_rng(seed)
    jobs, on = crowd(rng, 30), machine([0.0, 2.0][seed % 2], False)
    watts, to_s = 150 + 350 * float(rng.uniform(0.3, 0.9)), int(rng.integers(60, 250))
    first_s = int(jobs.submit_s[0])
    budget = Budget(watts * to_s, first_s, first_s + to_s, tick_s=[5, 60][seed % 2])
    given = {"estimate": "mean2" if seed % 7 == 0 else "requested", "idle_off_s": [None, None, 4][seed % 3]} | phases
    return Composition(backfill="conservative", power=Power(budget=budget), **given), jobs, on


@pytest.mark.parametrize("seed", range(60))
def test_with_a_place_for_everybody_the_windows_joules_stay_within_the_budget(seed: int) -> None:
    composition, jobs, on = crowded(seed)
    assert composition.power is not None and composition.power.budget is not None
    budget = composition.power.budget
    replay = replayed(composition, jobs, watts_of(composition, on, jobs, seed % 4 == 0), [])
    assert replay.ended == len(jobs)
    for to_s in range(budget.from_s, min(budget.to_s, int(replay.end_s.max())) + 1):
        assert joules_between(replay, budget.from_s, to_s) <= budget.limit_w * (to_s - budget.from_s) + 1e-3


@pytest.mark.parametrize("seed", range(40))
def test_a_job_starts_when_it_was_first_promised_if_all_run_as_long_as_they_request(seed: int) -> None:
    """Neither later, as nothing takes its joules, nor earlier, as nothing is given back."""
    composition, jobs, on = crowded(2 * seed, estimate="requested", idle_off_s=None)
    jobs = replace(jobs, run_s=jobs.request_s)
    watts = Watts.of(on, composition.power)
    promised_s: dict[int, int] = {}

    class Noting(PowerReferenceScheduler):
        def decide(self, now_s: int) -> list[int]:
            started = super().decide(now_s)
            for job in self.queue:
                promised_s.setdefault(job, self.planned_s[job])
            return started

    start_s = referenced(composition, jobs, watts, [], Noting)
    waited = {job: start_s[job] for job in promised_s}
    assert len(waited) > 5
    assert waited == promised_s


@settings(max_examples=50)
@given(jobs=traces(), budget=budgets(), on=machines, is_endless=st.booleans())
def test_places_with_a_budget_for_the_full_machine_or_more_are_those_without(
    jobs: Jobs, budget: Budget, on: Machine, is_endless: bool
) -> None:
    plain = NativeReplay(Composition(backfill="conservative"), jobs, PROCESSORS)
    plain.run(EVERYTHING_ENDED)
    joules = 1e30 if is_endless else on.full_w * (budget.to_s - budget.from_s)
    budget = replace(budget, joules=joules, rule="energybud")
    composition = Composition(backfill="conservative", power=Power(budget=budget))
    replay = replayed(composition, jobs, Watts.of(on, composition.power), [])
    assert replay.start_s.tolist() == plain.start_s.tolist()


@pytest.mark.parametrize("rule", ["energybud", "reducepc"])
def test_a_tiny_budget_starts_jobs_strictly_in_the_order_of_the_queue(rule: Rule) -> None:
    """Ten processors, 150 W idle, 35 W more for each that is busy; 155 W allowed: 5 W are stored."""
    rng = np.random.default_rng(5)
    jobs = crowd(rng, 30)
    budget = Budget(155.0 * 20000, 0, 20000, rule)
    composition = Composition(backfill="easy", power=Power(budget=budget))
    replay = replayed(composition, jobs, Watts.of(machine(0.0, False), composition.power), [])
    assert replay.start_s.tolist() == sorted(replay.start_s.tolist())
    assert not replay.overtook.any()
    assert replay.ended > 0 and joules_between(replay, 0, 20000) <= budget.joules


def test_the_ledger_of_the_thesis() -> None:
    """Limit 300 W; a minute at 200 W stores 6 kJ, one at 350 W takes 3 kJ of them, one at 500 W overdraws it by 9."""
    ledger = Ledger(Budget(300.0 * 3600, 0, 3600), next_s=0)
    found = []
    for now_s, drawn_w in ((0, 0), (60, 200), (120, 350), (180, 500)):
        ledger.read(now_s, drawn_w * 60 * 1_000_000)
        found.append(ledger.stored_j)
    assert found == [0.0, 6000.0, 3000.0, -9000.0]


def test_a_budget_that_an_idle_machine_exceeds_is_warned_of_and_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.swf"
    log.write_text("".join(f"{n} {n} -1 50 4 -1 -1 4 60 -1 1 1 1 1 1 -1 -1 -1\n" for n in range(1, 9)))
    policy = "energy-budget:joules=9e5,from_s=0,to_s=1000,node_w=190.738"  # 900 W; 16 nodes idle draw 1520
    assert main(["replay", str(log), "--machine", "taurus:cores=1", "--policy", policy, "--json"]) == 0
    said = capsys.readouterr()
    assert "the budget is 900 W, and the idle machine draws 1520 W: it cannot be kept" in said.err
    measured = json.loads(said.out)
    assert measured["window_j"] == pytest.approx(1520.0 * 999)
    assert measured["over_budget_j"] == pytest.approx(1520.0 * 999 - 9e5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("joules=5", "a budget needs a window"),
        ("joules=5,from_s=9,to_s=9", "a budget needs a window"),
        ("joules=-5,from_s=0,to_s=9", "joules=-5: give a number from 0"),
        ("joules=5,from_s=0,to_s=9,rule=powercap,test=job", "powercap stores no joules"),
        ("joules=5,from_s=0,to_s=9,tick_s=0", "give 1 to 3600 seconds"),
    ],
)
def test_a_budget_without_sense_is_refused(text: str, message: str) -> None:
    with pytest.raises(WrongUseError, match=message):
        choose(f"energy-budget:{text}")


@needs_recorded("swf")
def test_at_90_percent_every_rule_is_above_the_line_of_the_thesis_on_a_week_of_metacentrum() -> None:
    found = {row["rule"]: row for row in runs(["MetaCentrum"], 1, (90,), switching=(None,))}
    assert all(row["utilization"] > 3 / 7 * 0.9 + 4 / 7 and row["of_budget"] <= 1 for row in found.values())
    assert found["energybud"]["AVEbsld"] <= found["powercap"]["AVEbsld"]


@needs_recorded("swf")
def test_with_switch_off_energybud_keeps_a_low_budget_that_is_overdrawn_without_on_a_week_of_metacentrum() -> None:
    found = {(row["rule"], row["idle_off_s"]): row for row in runs(["MetaCentrum"], 1, (60,))}
    stays_on, goes_off = found["energybud", None], found["energybud", 300]
    assert stays_on["of_budget"] > 1.1 and goes_off["of_budget"] <= 1
    assert goes_off["AVEbsld"] < stays_on["AVEbsld"] and goes_off["energy"] < stays_on["energy"]
    assert goes_off["AVEbsld"] == min(row["AVEbsld"] for row in found.values())  # of all six, as published
