"""bdpo-cpu-bounded where the application reports progress: what counters get wrong is corrected, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

import numpy as np
import pytest

from nodectl.journal.state import decode_state, encode_state
from nodectl.policies import bdpo_cpu_bounded as bounded
from nodectl.policies.bdpo_cpu_bounded import Params, State, ToldState
from nodectl.policies.parts.cpu_phases import BETA, BETA_ERROR, LAST_S, TAKEN_BETA
from nodectl.policies.parts.cpu_progress import UNITS
from pmu.layout import Layout
from pmu.readings import NO_PROGRESS, ProgressSample, Quality, Sample
from tests.policies.cpu_nodes import MAX_KHZ, layout, sample

TICK_S = 0.1
PER_S = 200.0
"""Units in a second of work at the highest clock."""


class Job:
    """One phase on four CPUs in closed loop, whose instructions show ``1 + bias`` times the true fall in speed."""

    def __init__(self, beta: float, bias: float, params: Params | None = None) -> None:
        self.node: Layout = layout()
        self.params = params or Params()
        self.state: State = bounded.initial(self.params, self.node)
        self.beta, self.bias = beta, bias
        self.khz = np.full(len(self.node.cpus), MAX_KHZ, float)
        self.ran_s = self.done_s = 0.0
        self.clocks: list[float] = []

    def interval(self) -> Sample:
        """What is seen of the next tenth of a second, without progress."""
        relative = self.khz.min() / MAX_KHZ
        speed = 1.0 / (self.beta / relative + 1.0 - self.beta)
        self.ran_s += TICK_S
        self.done_s += TICK_S * speed
        seen = sample(self.node, self.khz, self.beta, has_stalls=False)
        shown = 2.0 * (1.0 - (1.0 + self.bias) * (1.0 - speed))
        return replace(seen, cpu=replace(seen.cpu, ipc=np.full(len(self.khz), shown)))

    def run(self, ticks: int, told: Callable[[float, float], ProgressSample] | None = None) -> None:
        """``told``: of the work done before and after each interval."""
        for _ in range(ticks):
            before_s = self.done_s
            seen = self.interval()
            if told:
                seen = replace(seen, progress=told(before_s, self.done_s))
            self.state, request = bounded.decide(self.params, self.node, self.state, seen)
            self.khz = np.where(request.target == 0, MAX_KHZ, request.target).astype(float)
            self.clocks.append(float(self.khz.min()))

    @property
    def slowdown(self) -> float:
        return self.ran_s / self.done_s - 1.0

    @property
    def known(self) -> tuple[float, float]:
        """Beta of the one phase, and how sure that is."""
        (row,) = np.flatnonzero(self.state.facts[:, LAST_S] >= 0)
        return float(self.state.facts[row, BETA]), float(self.state.facts[row, BETA_ERROR])


def truly(before_s: float, after_s: float) -> ProgressSample:
    """Whole units of work done."""
    units = np.floor(after_s * PER_S) - np.floor(before_s * PER_S)
    return ProgressSample(float(units), 1, Quality.MEASURED)


@pytest.mark.parametrize(("beta", "bias"), [(0.3, -0.4), (0.15, 0.4)])
def test_what_the_program_reports_corrects_what_its_instructions_get_wrong(beta: float, bias: float) -> None:
    silent, telling = Job(beta, bias), Job(beta, bias)
    silent.run(800)
    telling.run(800, truly)
    assert abs(telling.known[0] - beta) < 0.5 * abs(silent.known[0] - beta)
    assert telling.known[1] < silent.known[1]
    assert abs(0.03 - telling.slowdown) < abs(0.03 - silent.slowdown)
    assert telling.slowdown <= 0.033


def test_a_saving_that_only_seems_worth_its_price_is_found_out_in_time() -> None:
    late = []
    for told in (None, truly):
        job = Job(0.95, -0.4)
        job.run(1000, told)
        ran_s, done_s = job.ran_s, job.done_s
        job.run(400, told)
        late.append((job.ran_s - ran_s) / (job.done_s - done_s) - 1.0)
    silent, telling = late
    assert telling < 0.015 < 0.025 < silent


def test_work_that_is_known_not_to_be_bound_by_the_clock_is_not_taken_for_it() -> None:
    silent, telling = Job(0.7, 0.0), Job(0.7, 0.0)
    silent.run(1600)
    telling.run(1600, truly)
    assert silent.state.facts[0, TAKEN_BETA] > 0.85
    assert telling.state.facts[0, TAKEN_BETA] < 0.75


def test_without_progress_the_state_is_what_it_was_before_there_was_any() -> None:
    job = Job(0.3, 0.0)
    job.run(100, lambda before, after: NO_PROGRESS)
    assert type(job.state) is State
    names = [name for name, _ in encode_state(job.state)[3]]
    later = {"tops", "draws"}  # of turbo bins and limits, of several packages
    assert {*names} | later == {field.name for field in fields(State)}
    assert names == [
        *("facts", "curves", "phase", "level", "reason", "last_level", "last_view", "agreed", "shift", "plan"),
        *("top_clock", "closed_s", "time_s"),
    ]  # older journals have this, and replay


def test_an_unbelieved_count_leaves_nothing_but_the_counters() -> None:
    def broken(before_s: float, after_s: float) -> ProgressSample:
        return ProgressSample(float("nan"), 1, Quality.CLIPPED) if after_s > 20 else truly(before_s, after_s)

    def silent_from(before_s: float, after_s: float) -> ProgressSample:
        return NO_PROGRESS if after_s > 20 else truly(before_s, after_s)

    one, other = Job(0.3, 0.3), Job(0.3, 0.3)
    one.run(350, broken)
    other.run(350, silent_from)
    assert type(one.state) is State
    assert one.clocks == other.clocks


def test_another_programs_units_are_not_compared_with_the_last_ones() -> None:
    job = Job(0.3, 0.0)
    job.run(300, truly)
    assert isinstance(job.state, ToldState) and job.state.told[UNITS].sum() > 1000
    job.run(1, lambda before, after: ProgressSample(1e6, 2, Quality.MEASURED))
    assert isinstance(job.state, ToldState)
    assert job.state.source == 2 and job.state.told[UNITS].sum() <= 1e6


@pytest.mark.parametrize("units", [0.0, 1.0, 1e11])
def test_a_program_that_reports_nonsense_misleads_clocks_within_their_limits_and_breaks_nothing(units: float) -> None:
    job = Job(0.9, 0.0)
    job.run(300, lambda before, after: ProgressSample(units, 1, Quality.MEASURED))
    assert np.isfinite(job.state.facts).all()
    assert min(job.clocks) >= job.params.floor * MAX_KHZ
    assert job.slowdown <= (0.031 if units == 0 else 1.0)


def test_a_job_that_reports_progress_resumes_from_a_journal_and_decides_the_same() -> None:
    job = Job(0.2, 0.1)
    job.run(100, truly)
    resumed = decode_state(encode_state(job.state), ["nodectl.policies.bdpo_cpu_bounded"])
    assert type(resumed) is ToldState
    seen = replace(job.interval(), progress=ProgressSample(20.0, 1, Quality.MEASURED))
    one, other = (bounded.decide(job.params, job.node, each, seen) for each in (job.state, resumed))
    assert one[1].target.tobytes() == other[1].target.tobytes()
    assert encode_state(one[0]) == encode_state(other[0])


def test_deciding_leaves_reported_progress_as_it_was() -> None:
    job = Job(0.2, 0.1)
    job.run(50, truly)
    before = encode_state(job.state)
    seen = replace(job.interval(), progress=ProgressSample(20.0, 1, Quality.MEASURED))
    bounded.decide(job.params, job.node, job.state, seen)
    assert encode_state(job.state) == before


@pytest.mark.parametrize(
    "wrong", [{"told_least_saving": 0.02}, {"told_least_saving": -1.0}, {"told_share": 1.0}, {"told_s": -1.0}]
)
def test_parameters_of_progress_have_bounds(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="told_"):
        Params(**wrong)
