"""The model of what cores draw: examples are bounded, alike ones are one, and what it has stored may be anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from nodectl.site_jobs.core_watts import KEPT, CoreWatts, Example
from pmu.layout import EnergyZone, FrequencyDomain, Layout
from pmu.readings import CpuSample, GpuSample, Sample, type_f64

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
    model = learned(*[1.0] * 500)
    assert len(model.examples) == 2
    for number in range(KEPT):
        model.add(second([2.0 * 1.1**number] * CPUS), ALL)
    assert len(model.examples) == KEPT
    assert min(one.groups[0][1] for one in model.examples) == pytest.approx(2.0)


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
    again.restore(good * 1)
    assert len(again.examples) == 1


def test_counters_that_cannot_be_read_teach_nothing_and_say_nothing() -> None:
    model, sample = learned(0.5, 2.5), second([1.0] * CPUS)
    blind = replace(sample, cpu=replace(sample.cpu, cycles=np.full(CPUS, np.nan)))
    model.add(blind, ALL)
    assert len(model.examples) == 3 and model.joules(blind, HALVES, [30.0]) is None
    assert CoreWatts(msgspec.structs.replace(LAYOUT, events=("cycles",))).joules(sample, HALVES, [30.0]) is None
