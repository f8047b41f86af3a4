"""A limit on the temperature of memory modules: hwmon sensors lower the CPU clocks."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foundation.shell.errors import NodectlError
from nodectl.config import Config, build_config
from nodectl.decide.decisions import BOUNDS
from nodectl.decide.temperature_limit import (
    SECONDS_PER_LOOK,
    MemoryThermalState,
    ThermalParams,
    decide_memory,
    initial_memory,
)
from nodectl.journal import Record, open_journal
from nodectl.journal.decide_again import replay
from nodectl.loop.agent import Agent
from nodectl.loop.survey import Survey, fit_to_node
from pmu.decode import decode
from pmu.layout import Column, Layout
from pmu.readings import ColumnSample, Quality
from tests.nodectl.small_node import STEPS_KHZ
from tests.nodectl.small_node import layout as small_layout
from tests.nodectl.small_node import sample as small_sample
from twin.faults.active import Fault, Faults
from twin.in_process_node import InProcess
from twin.machine import load_machine
from twin.physics.model import Twin
from twin.programs.workload import load_workload

LIMIT = ThermalParams(limit_c=80.0)


def module(number: int) -> Column:
    return Column(instrument="hwmon", name=f"module-{number}", unit="C", kind="level", part="memory")


ALARM = Column(instrument="hwmon", name="module-0/critical", unit="", kind="flag", part="memory")
PACKAGE = Column(instrument="hwmon", name="package", unit="C", kind="level", part="package")
NODE = msgspec.structs.replace(small_layout(), columns=(PACKAGE, module(0), ALARM, module(1)))


def looked(
    state: MemoryThermalState, first_c: float, second_c: float, quality: Quality = Quality.MEASURED
) -> tuple[MemoryThermalState, list[int]]:
    """One look at two modules, the first of the given quality, next to a hot package and an alarm."""
    sample = small_sample(NODE, elapsed_s=SECONDS_PER_LOOK)
    values = np.array([99.0, first_c, 255.0, second_c])
    qualities = np.array([Quality.MEASURED, quality, Quality.MEASURED, Quality.MEASURED], np.uint8)
    if math.isnan(second_c):
        qualities[3] = Quality.MISSING
    sample = replace(sample, columns=ColumnSample(values, qualities))
    state, request = decide_memory(LIMIT, NODE, state, sample)
    return state, request.target.tolist()


def test_the_hottest_module_takes_all_cpu_clocks_down_by_where_it_will_be_in_twenty_seconds() -> None:
    state, limits = looked(initial_memory(LIMIT, NODE), 60.0, 79.0)
    assert limits == [0, 0]
    state, limits = looked(state, 79.0, 60.0)
    assert limits == [0, 0], "it is below the limit and will be"
    state, limits = looked(state, 79.5, 60.0)
    assert limits == [STEPS_KHZ[-3]] * 2, "0.1 K a second: 81.5 C ahead, so two rungs at once"
    state, limits = looked(state, 81.0, 79.0)
    assert limits == [STEPS_KHZ[0]] * 2, "87 C ahead, and no clock below the lowest"
    state, limits = looked(state, 80.5, 60.0)
    assert limits == [STEPS_KHZ[0]] * 2, "too hot, but 78.5 C ahead"
    state, limits = looked(state, 77.0, 60.0)
    assert limits == [STEPS_KHZ[1]] * 2
    state, limits = looked(state, 77.25, 60.0)
    assert limits == [STEPS_KHZ[1]] * 2, "clearly cool, but not ahead"


@pytest.mark.parametrize("quality", [Quality.MISSING, Quality.CLIPPED])
def test_without_a_reading_that_can_be_trusted_the_limit_stays_as_it_is(quality: Quality) -> None:
    hot, limits = looked(initial_memory(LIMIT, NODE), 90.0, 60.0)
    blind = hot
    for value in (math.nan if quality is Quality.MISSING else -55.0, 150.0):
        blind, still = looked(blind, value, math.nan, quality)
        assert still == limits and blind.rungs_down == hot.rungs_down
    cooler, _ = looked(hot, 150.0, 60.0, quality)
    assert cooler.rungs_down == hot.rungs_down - 1, "the other module is sound and cool"


def test_steps_are_taken_with_time_and_not_with_ticks() -> None:
    sample = small_sample(NODE, elapsed_s=SECONDS_PER_LOOK / 10)
    measured = np.full(4, Quality.MEASURED, np.uint8)
    sample = replace(sample, columns=ColumnSample(np.full(4, 80.5), measured))
    state = initial_memory(LIMIT, NODE)
    for _ in range(21):
        state, _ = decide_memory(LIMIT, NODE, state, sample)
    assert state.rungs_down == 3, "a kelvin too many: at once, and after each of two full periods"


@given(
    temperatures=st.lists(st.one_of(st.floats(-55.0, 150.0), st.just(math.nan)), max_size=60),
    steps_khz=st.sampled_from([STEPS_KHZ, ()]),
)
def test_whatever_the_modules_show_a_limit_is_a_clock_of_the_domain_and_rises_by_one_rung_at_most(
    temperatures: list[float], steps_khz: tuple[int, ...]
) -> None:
    layout = msgspec.structs.replace(small_layout(steps_khz=steps_khz), columns=(module(0),))
    low, high = layout.domains[0].min_khz, layout.domains[0].max_khz
    rung = 200_000 if steps_khz else 100_000
    state, last = initial_memory(LIMIT, layout), high
    for celsius in temperatures:
        sample = small_sample(layout, elapsed_s=SECONDS_PER_LOOK)
        quality = Quality.MISSING if math.isnan(celsius) else Quality.MEASURED
        sample = replace(sample, columns=ColumnSample(np.array([celsius]), np.array([quality], np.uint8)))
        state, request = decide_memory(LIMIT, layout, state, sample)
        clocks = [khz or high for khz in request.target.tolist()]
        assert clocks[0] == clocks[1] and low <= clocks[0] <= high
        assert (last - clocks[0]) % rung == 0 and clocks[0] <= last + rung
        assert not (celsius > LIMIT.limit_c and clocks[0] > last), "hot never raises a clock"
        assert not (math.isnan(celsius) and clocks[0] != last)
        last = clocks[0]


# --- on the emulated node ---

MODULE_0, MODULE_1 = "hwmon2/spd5118/temp1", "hwmon3/spd5118/temp1"


def settings(directory: Path, limit_c: float) -> Config:
    given = {
        "mode": "optimize",
        "state_dir": str(directory),
        "period_ms": 1000.0,
        "cpu_policy": {"name": "none"},
        "gpu_policy": {"name": "none"},
        "caps": {"memory_temperature_c": limit_c},
        "budget": {"core_share": 0.0},
    }
    return build_config(given, lambda key: ".".join(key))


def run(directory: Path, limit_c: float, seconds: float, *faults: Fault) -> tuple[list[str], list[Record], int]:
    """What was said, the journal, and the clock limit afterwards."""
    machine = load_machine("genoa-h100")
    twin = Twin(machine, load_workload("stream", machine, seed=1, duration_s=2000.0), seed=1)
    with InProcess(twin, Faults(twin, list(faults))) as inside:
        said: list[str] = []
        agent = Agent.open(inside.ports, settings(directory, limit_c), said.append)
        try:
            agent.run(until_ns=twin.time_ns + round(seconds * 1e9))
        finally:
            agent.stop()
        after_khz = int(inside.ports.files.read("/sys/devices/system/cpu/cpufreq/policy0/scaling_max_freq"))
    return said, list(open_journal(directory / "journal")), after_khz


def hottest_c(records: list[Record]) -> list[float]:
    layout = records[0].keyframe.layout
    rows = [row for row, column in enumerate(layout.columns) if column.part == "memory"]
    samples = [decode(layout, record.previous, record.raw) for record in records if record.previous]
    return [float(np.nanmax(sample.columns.value[rows])) for sample in samples]


def test_memory_stays_near_its_limit_and_clocks_are_as_before_afterwards(tmp_path: Path) -> None:
    limit_c = 50.0
    _, free, _ = run(tmp_path / "free", 150.0, 150.0)
    assert max(hottest_c(free)) > limit_c + 20, "without a limit in its way the memory heats"
    _, limited, after_khz = run(tmp_path / "limited", limit_c, 150.0)
    assert max(hottest_c(limited)) < limit_c + 10
    decided = [record for record in limited if record.has_decided]
    assert BOUNDS[decided[-1].bound[0]] == "thermal" and 0 < decided[-1].values[0] < 2_500_000
    assert BOUNDS[decided[0].bound[0]] == "free" and after_khz == 3_700_000
    report = replay(open_journal(tmp_path / "limited" / "journal"))
    assert report.is_equal and report.policies == ("memory-thermal",)


def test_a_limit_stays_while_its_sensors_are_gone_and_moves_on_when_they_are_back(tmp_path: Path) -> None:
    gone = [Fault("missing", f"/sys/class/hwmon/hwmon{n}/temp1_input", at_s=60.0, for_s=40.0) for n in (2, 3)]
    said, records, _ = run(tmp_path, 60.0, 130.0, *gone)
    for change in ("went missing", "are back"):
        assert all(any(module in line and change in line for line in said) for module in (MODULE_0, MODULE_1)), said
    limits = [int(record.values[0]) for record in records if record.has_decided]
    assert len(set(limits[66:98])) == 1 and 0 < limits[66] < 3_700_000
    assert limits[110] != limits[98]
    assert replay(open_journal(tmp_path / "journal")).is_equal


def test_a_limit_that_no_sensor_serves_is_refused_with_the_drivers_that_would() -> None:
    layout: Layout = small_layout()
    config = settings(Path("/nowhere"), 80.0)
    with pytest.raises(NodectlError, match=r"cannot keep caps\.memory_temperature_c: .*spd5118 and jc42"):
        fit_to_node(msgspec.structs.replace(config, dry_run=True), Survey(layout, [], [], []))
    fitted, _ = fit_to_node(msgspec.structs.replace(config, dry_run=True), Survey(NODE, [], [], []))
    assert fitted.caps.memory_temperature_c == 80.0
