"""The model of what cores draw: examples are bounded, alike ones are one, and what it has stored may be anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from nodectl.config import build_config
from nodectl.site_jobs.core_watts import KEPT, MOST_GROUPS, MOST_JOBS, CoreWatts, Example
from nodectl.site_jobs.job_folder import SiteJob
from nodectl.site_jobs.job_parts import JobParts
from pmu.layout import EnergyZone, FrequencyDomain, Layout
from pmu.ports import Ports
from pmu.readings import CpuSample, GpuSample, Sample, type_f64
from pmu.system import MonotonicClock, OsFiles

CPUS = 4
LAYOUT = Layout(
    cpus=tuple(range(CPUS)), core_of=tuple(range(CPUS)), package_of=(0,) * CPUS, events=("cycles", "instructions"),
    reference_khz=2_000_000, domains=(FrequencyDomain(0, tuple(range(CPUS)), 1_000_000, 2_000_000, 2_000_000),),
    zones=(EnergyZone("package-0", "p", "package", 0, 1 << 40),), gpus=(),
)  # fmt: skip
ALL: Mapping[str, type_f64] = {"": np.ones(CPUS)}
HALVES: Mapping[str, type_f64] = {"17": np.array([1.0, 1, 0, 0]), "18": np.array([0.0, 0, 1, 1])}
BASE_W = 10.0
_NONE, _BYTES = np.empty(0), np.empty(0, np.uint8)
NO_GPUS = GpuSample(*(_NONE,) * 10, np.empty(0, np.int64), _BYTES, _BYTES)


def second(ipc: list[float], busy: float = 1.0) -> Sample:
    """A second in which each core draws 5 W and 2 W for each instruction per cycle."""
    cycles = np.full(CPUS, 2e9 * busy)
    instructions = cycles * np.array(ipc)
    none = np.full(CPUS, np.nan)
    cpu = CpuSample(instructions, cycles, cycles, none, np.full(CPUS, busy), none, none, np.full(CPUS, 2e6),
                    np.zeros(CPUS, np.uint8))  # fmt: skip
    watts = BASE_W + float((busy * (5 + 2 * np.array(ipc))).sum())
    return Sample(0, 1.0, cpu, NO_GPUS, np.array([watts]), np.zeros(1, np.uint8))


def learned(*ipc: float) -> CoreWatts:
    model = CoreWatts(LAYOUT)
    for one in ipc:
        model.add(second([one] * CPUS), ALL)
    if ipc:
        model.add(second([1.0] * CPUS, busy=0.02), ALL)  # idle, as between jobs
    return model


def parts(model: CoreWatts, sample: Sample) -> type_f64:
    found = model.joules(sample, HALVES, [float(sample.energy_j[0])])
    assert found is not None
    return np.asarray(found[0] / found.sum())


def test_it_says_nothing_before_the_first_example() -> None:
    assert CoreWatts(LAYOUT).joules(second([1, 1, 1, 1]), HALVES, [30.0]) is None


def test_two_programs_that_were_seen_alone_get_their_own_watts_together() -> None:
    shared = second([0.5, 0.5, 2.5, 2.5])
    assert parts(learned(0.5, 2.5), shared) == pytest.approx([6 / 16, 10 / 16], abs=0.02)
    assert parts(learned(0.5), shared) == pytest.approx([0.5, 0.5], abs=0.05), "far from examples: processor time"


def test_no_more_is_said_than_the_package_drew() -> None:
    model, sample = learned(0.5, 2.5), second([2.5] * CPUS)
    found = model.joules(sample, HALVES, [7.0])
    assert found is not None and found.sum() == pytest.approx(7.0)


def test_a_program_that_runs_for_days_is_one_example_and_the_oldest_go_first() -> None:
    assert len(learned(*[1.0] * 500).examples) == 2
    model = CoreWatts(LAYOUT)
    unlike = [(0.01 * 2.2**step, busy) for busy in (1.0, 0.4, 0.16) for step in range(17)]
    for ipc, busy in unlike:
        model.add(second([ipc] * CPUS, busy), ALL)
    kept = [(one.groups[0][1], one.groups[0][0] / CPUS) for one in model.examples]
    assert kept == pytest.approx(np.array(unlike[: -KEPT - 1 : -1]))


def test_a_program_that_is_never_the_same_and_an_idle_node_leave_what_others_have_taught() -> None:
    model, drawn = learned(0.5, 2.5), np.random.default_rng(1)
    for _ in range(300):
        noisy = second([float(drawn.uniform(1.0, 1.6))] * CPUS, float(drawn.uniform(0.6, 1.0)))
        missing = noisy.cpu.cycles * drawn.uniform(0.01, 0.02)
        model.add(replace(noisy, cpu=replace(noisy.cpu, llc_misses=missing)), ALL)
        model.add(second([float(drawn.uniform(0.2, 2.0))] * CPUS, float(drawn.uniform(0.001, 0.02))), ALL)
    assert len(model.examples) == KEPT
    assert sum(one.groups[0][0] < 0.1 for one in model.examples) <= 2, "what an idle node does is no program"
    assert parts(model, second([0.5, 0.5, 2.5, 2.5])) == pytest.approx([6 / 16, 10 / 16], abs=0.02)


def test_misses_that_are_next_to_none_make_no_other_example() -> None:
    model = CoreWatts(LAYOUT)
    for misses in (0.0, 1e2, 1e3, 1e4):
        sample = second([1.0] * CPUS)
        model.add(replace(sample, cpu=replace(sample.cpu, llc_misses=np.full(CPUS, misses))), ALL)
    assert len(model.examples) == 1


def test_many_jobs_cost_little_time_and_teach_nothing() -> None:
    model = learned(0.5, 2.5)
    many = {str(job): np.ones(CPUS) for job in range(MOST_JOBS + 1)}
    model.add(second([1.0] * CPUS), dict(list(many.items())[: MOST_GROUPS + 1]))
    assert len(model.examples) == 3
    assert model.joules(second([1.0] * CPUS), many, [30.0]) is None
    del many["0"]
    assert model.joules(second([1.0] * CPUS), many, [30.0]) is not None


def test_a_meter_of_cores_that_cannot_be_read_leaves_what_the_model_says() -> None:
    zones = (EnergyZone("core-0", "c", "core", 0, 1 << 40), *LAYOUT.zones)
    model, sample = CoreWatts(msgspec.structs.replace(LAYOUT, zones=zones)), second([0.5, 0.5, 2.5, 2.5])
    model.add(replace(sample, energy_j=np.array([32.0, 42.0])), HALVES)
    blind = replace(sample, energy_j=np.array([np.nan, 42.0]))
    found = model.joules(blind, HALVES, [42.0])
    assert found is not None and found.sum() == pytest.approx(32.0, rel=0.1)


def test_without_clock_limits_the_highest_clock_that_was_seen_counts() -> None:
    model = CoreWatts(msgspec.structs.replace(LAYOUT, domains=()))
    for khz in (2e6, 1e6):
        sample = second([1.0] * CPUS, khz / 2e6)
        model.add(replace(sample, cpu=replace(sample.cpu, frequency_khz=np.full(CPUS, khz))), ALL)
    slow, fast = (one.groups[0][0] for one in model.examples)
    assert (fast, slow) == pytest.approx((CPUS, CPUS * 0.5 * 0.5**0.8))


def test_what_is_stored_is_taken_over_and_what_is_none_is_not() -> None:
    model, again = learned(0.5, 2.5), CoreWatts(LAYOUT)
    again.restore(model.stored())
    assert again.examples == model.examples
    good = msgspec.json.encode([Example([(1.0, 1.0, 0.0)], 20.0)])
    for text in (b"", b"[", b"{}", b"[1]", good.replace(b"20.0", b"-1"), good.replace(b"20.0", b"1e300"),
                 good.replace(b"[[1.0,1.0,0.0]]", b"[]"), good.replace(b"[[1.0", b"[[0.0")):  # fmt: skip
        strange = CoreWatts(LAYOUT)
        strange.restore(text)
        assert strange.examples == [], text
    many = msgspec.json.encode([Example([(1.0, 1.0, 0.0)] * (MOST_GROUPS + 1), 20.0)])
    again.restore(many)
    assert again.examples == []


def test_examples_that_nothing_can_explain_are_forgotten() -> None:
    model, rows = CoreWatts(LAYOUT), [Example([(9e5, 1.0, 0.0)], watts) for watts in (1e-9, 1e-9, 1e-9)]
    model.restore(msgspec.json.encode([*rows, *[Example([(1.0, 1.0, 0.0)], 20.0)] * 9]))
    found = model.joules(second([1.0] * CPUS), HALVES, [30.0])
    assert found is None or (np.isfinite(found).all() and found.sum() <= 30.0)
    assert found is not None or model.examples == []


def test_counters_that_cannot_be_read_teach_nothing_and_say_nothing() -> None:
    model, sample = learned(0.5, 2.5), second([1.0] * CPUS)
    blind = replace(sample, cpu=replace(sample.cpu, cycles=np.full(CPUS, np.nan)))
    model.add(blind, ALL)
    assert len(model.examples) == 3 and model.joules(blind, HALVES, [30.0]) is None
    assert CoreWatts(msgspec.structs.replace(LAYOUT, events=("cycles",))).joules(sample, HALVES, [30.0]) is None


def test_cpus_of_jobs_are_found_once_and_again_when_a_number_comes_back(tmp_path: Path) -> None:
    class Cgroups(dict[str, frozenset[int]]):
        """The CPUs of jobs, and how often somebody looked."""

        looks = 0

        def cpus(self, job: str) -> frozenset[int]:
            self.looks += 1
            return self[job]

    cgroups = Cgroups({"17": frozenset({0, 1}), "18": frozenset({3})})
    ports = Ports(OsFiles(str(tmp_path)), None, None, "", MonotonicClock())  # type: ignore[arg-type]
    node = JobParts(ports, LAYOUT, build_config({}, str), cgroups)
    both = {name: SiteJob(name, "alice", "", 0.0) for name in cgroups}
    used = dict.fromkeys(cgroups, 1.0)

    def divided(jobs: Mapping[str, SiteJob]) -> float:
        return node.split(node.drawn(second([1.0] * CPUS), jobs), used)["17"].joules

    first_j = divided(both)
    assert divided(both) == pytest.approx(first_j) and cgroups.looks == 2
    divided({"18": both["18"]})  # 17 has ended in this interval
    cgroups["17"] = frozenset({1, 2, 3})  # it is back, where 18 is
    assert divided(both) == pytest.approx(38.0 / 2), "by time: they are not apart"
