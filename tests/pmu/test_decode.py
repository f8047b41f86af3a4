"""Decoding recorded arrays: values, qualities, and that a bad instrument never looks like a quiet part."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pmu.decode import column_rules, decode, decode_columns
from pmu.instruments.counters import EVENTS
from pmu.layout import Column, EnergyZone, FrequencyDomain, Gpu, Layout
from pmu.readings import GPU_FIELDS, NO_COLUMNS, RAW_MISSING, PmuError, Quality, RawSweep, Sample
from tests.yardstick import yardstick_ns

KHZ = 2_400_000  # reference clock
PERIOD_NS = 100_000_000
REFERENCE_FULL = KHZ * 1000 // 10  # reference cycles of a CPU busy for one period

CYCLES, REFERENCE, INSTRUCTIONS, STALLS, MISSES = range(len(EVENTS))
COLUMN = {name: column for column, name in enumerate(GPU_FIELDS)}

GENOA_CPUS, H100S = 384, 8


def node(cpus: int = 4, gpus: int = 2, events: tuple[str, ...] = EVENTS, estimated: tuple[str, ...] = ()) -> Layout:
    return Layout(
        cpus=tuple(range(cpus)),
        core_of=tuple(cpu // 2 for cpu in range(cpus)),
        package_of=tuple(2 * cpu // cpus for cpu in range(cpus)),
        events=events,
        reference_khz=KHZ,
        domains=tuple(FrequencyDomain(cpu, (cpu,), 400_000, 3_700_000, KHZ) for cpu in range(cpus)),
        zones=tuple(EnergyZone(f"package-{i}", f"intel-rapl:{i}", "package", i, 65_532_610_987) for i in range(2)),
        gpus=tuple(Gpu(i, f"GPU-{i}", "H100", (210, 1980), 2619, 700.0, 200.0, 700.0, True) for i in range(gpus)),
        estimated_events=estimated,
    )


LAYOUT = node()
BUSY_STEP = (300_000_000, REFERENCE_FULL, 480_000_000, 60_000_000, 1_000_000)
GPU_ROW = {
    "sm_clock_mhz": 1980,
    "memory_clock_mhz": 2619,
    "power_mw": 600_000,
    "energy_mj": 7_000_000,
    "temperature_c": 60,
    "gpu_utilization_pct": 90,
    "memory_utilization_pct": 40,
    "sm_occupancy_ppm": 350_000,
    "sm_active_ppm": 800_000,
    "dram_active_ppm": 250_000,
    "throttle_reasons": 4,
}


def first(layout: Layout = LAYOUT) -> RawSweep:
    return RawSweep(
        time_ns=1_000_000_000,
        counters=np.full((len(layout.cpus), len(layout.events)), 10**12, np.int64),
        energy_uj=np.full(len(layout.zones), 5_000_000_000, np.int64),
        gpu=np.array([[GPU_ROW[name] for name in GPU_FIELDS]] * len(layout.gpus), np.int64).reshape(
            -1, len(GPU_FIELDS)
        ),
    )


def later(before: RawSweep, layout: Layout = LAYOUT, elapsed_ns: int = PERIOD_NS) -> RawSweep:
    """Busy CPUs, 20 J per package, 60 J per GPU."""
    step = np.array([BUSY_STEP[EVENTS.index(event)] for event in layout.events], np.int64)
    gpu = before.gpu.copy()
    gpu[:, COLUMN["energy_mj"]] += 60_000
    return RawSweep(before.time_ns + elapsed_ns, before.counters + step, before.energy_uj + 20_000_000, gpu)


def decoded(
    change: Callable[[RawSweep, RawSweep], None] = lambda before, after: None, layout: Layout = LAYOUT
) -> Sample:
    before = first(layout)
    after = later(before, layout)
    change(before, after)
    return decode(layout, before, after)


def test_a_busy_cpu_decodes_to_its_rates() -> None:
    sample = decoded()
    assert sample.elapsed_s == pytest.approx(0.1)
    assert sample.cpu.ipc == pytest.approx(np.full(4, 2.0)), "per reference cycle"
    assert sample.cpu.busy == pytest.approx(np.ones(4))
    assert sample.cpu.frequency_khz == pytest.approx(np.full(4, 3_000_000.0))
    assert sample.cpu.stall == pytest.approx(np.full(4, 0.2))
    assert sample.cpu.llc_misses.tolist() == [1e6] * 4
    assert set(sample.cpu.quality) == {Quality.MEASURED}
    assert sample.energy_j == pytest.approx([20.0, 20.0])


def test_a_gpu_decodes_to_watts_joules_and_shares() -> None:
    gpu = decoded().gpu
    assert gpu.power_w == pytest.approx([600.0] * 2) and gpu.energy_j == pytest.approx([60.0] * 2)
    assert gpu.sm_occupancy == pytest.approx([0.35] * 2) and gpu.dram_active == pytest.approx([0.25] * 2)
    assert gpu.gpu_utilization == pytest.approx([0.9] * 2)
    assert gpu.throttle_reasons.tolist() == [4, 4]
    assert set(gpu.quality) == {Quality.MEASURED} and set(gpu.occupancy_quality) == {Quality.MEASURED}


def test_an_idle_cpu_is_not_busy_and_has_no_ipc() -> None:
    def idle(before: RawSweep, after: RawSweep) -> None:
        after.counters[1] = before.counters[1] + [900, 500, 700, 100, 3]

    sample = decoded(idle)
    assert sample.cpu.busy[1] == pytest.approx(500 / REFERENCE_FULL)
    assert np.isnan(sample.cpu.ipc[1]) and np.isnan(sample.cpu.frequency_khz[1])
    assert sample.cpu.quality[1] == Quality.MEASURED


@pytest.mark.parametrize("column", [REFERENCE, INSTRUCTIONS])
@pytest.mark.parametrize("end", ["before", "after"])
def test_a_missing_count_is_nan_and_never_zero(column: int, end: str) -> None:
    def lose(before: RawSweep, after: RawSweep) -> None:
        (before if end == "before" else after).counters[2, column] = RAW_MISSING

    cpu = decoded(lose).cpu
    assert np.isnan(cpu.ipc[2]) and cpu.quality[2] == Quality.MISSING
    assert cpu.quality.tolist().count(Quality.MISSING) == 1


def test_a_count_that_runs_backwards_is_missing() -> None:
    def rewind(before: RawSweep, after: RawSweep) -> None:
        after.counters[0, INSTRUCTIONS] = before.counters[0, INSTRUCTIONS] - 1

    cpu = decoded(rewind).cpu
    assert np.isnan(cpu.instructions[0]) and cpu.quality[0] == Quality.MISSING


@pytest.mark.parametrize("value", [1 << 60, 1 << 62, 2**63 - 1])
@pytest.mark.parametrize("column", range(len(EVENTS)))
def test_a_count_beyond_any_processor_is_not_used(column: int, value: int) -> None:
    def exaggerate(before: RawSweep, after: RawSweep) -> None:
        after.counters[0, column] = value

    cpu = decoded(exaggerate).cpu
    counted = (cpu.cycles, cpu.reference_cycles, cpu.instructions, cpu.stall, cpu.llc_misses)[column]
    assert np.isnan(counted[0]) and np.isfinite(counted[1])
    assert (cpu.quality[0] == Quality.MISSING) == (column in (REFERENCE, INSTRUCTIONS))


@pytest.mark.parametrize(
    ("column", "most_per_s"),
    [(CYCLES, 10**10), (REFERENCE, 2 * KHZ * 1000), (INSTRUCTIONS, 10**11), (STALLS, 10**10), (MISSES, 10**10)],
)
def test_a_count_is_used_up_to_the_rate_of_the_fastest_processor_and_not_beyond(column: int, most_per_s: int) -> None:
    before = first()
    after = later(before, elapsed_ns=10 * PERIOD_NS)
    after.counters[:2, column] = before.counters[:2, column] + [most_per_s * 1004 // 1000, most_per_s * 1006 // 1000]
    cpu = decode(LAYOUT, before, after).cpu
    counted = (cpu.cycles, cpu.reference_cycles, cpu.instructions, cpu.stall, cpu.llc_misses)[column]
    assert np.isfinite(counted[0]) and np.isnan(counted[1])


def test_where_the_reference_clock_is_unknown_reference_cycles_are_bounded_as_cycles_are() -> None:
    layout = msgspec.structs.replace(LAYOUT, reference_khz=0)
    before = first()
    after = later(before, elapsed_ns=10 * PERIOD_NS)
    after.counters[:2, REFERENCE] = before.counters[:2, REFERENCE] + [10**10, 101 * 10**8]
    counted = decode(layout, before, after).cpu.reference_cycles
    assert np.isfinite(counted[0]) and np.isnan(counted[1])


@pytest.mark.parametrize("column", [CYCLES, REFERENCE, INSTRUCTIONS])
def test_a_counter_that_stands_still_on_a_running_cpu_is_stale_and_no_low_ipc(column: int) -> None:
    def stick(before: RawSweep, after: RawSweep) -> None:
        after.counters[3, column] = before.counters[3, column]

    cpu = decoded(stick).cpu
    assert cpu.quality[3] == Quality.STALE and np.isnan(cpu.ipc[3])
    assert np.isnan((cpu.cycles, cpu.reference_cycles, cpu.instructions)[column][3])


def test_slightly_too_many_reference_cycles_are_a_full_interval_and_many_are_clipped() -> None:
    def exceed(before: RawSweep, after: RawSweep) -> None:
        after.counters[0, REFERENCE] += REFERENCE_FULL // 50
        after.counters[1, REFERENCE] += REFERENCE_FULL // 2

    cpu = decoded(exceed).cpu
    assert cpu.busy[:2].tolist() == [1.0, 1.0]
    assert cpu.quality[:2].tolist() == [Quality.MEASURED, Quality.CLIPPED]


def test_columns_that_the_machine_has_not_are_nan_and_say_nothing_about_quality() -> None:
    layout = node(events=("cycles", "reference-cycles", "instructions"))
    cpu = decoded(layout=layout).cpu
    assert np.isnan(cpu.stall).all() and np.isnan(cpu.llc_misses).all()
    assert set(cpu.quality) == {Quality.MEASURED}


def test_without_counters_everything_is_missing() -> None:
    cpu = decoded(layout=node(events=())).cpu
    assert set(cpu.quality) == {Quality.MISSING}
    assert all(np.isnan(values).all() for values in (cpu.ipc, cpu.busy, cpu.instructions, cpu.frequency_khz))


def test_estimated_reference_cycles_make_the_cpu_estimated() -> None:
    cpu = decoded(layout=node(estimated=("reference-cycles",))).cpu
    assert set(cpu.quality) == {Quality.ESTIMATED} and cpu.ipc == pytest.approx(np.full(4, 2.0))


def test_before_hopper_occupancy_is_utilization_and_marked_weaker() -> None:
    def ampere(before: RawSweep, after: RawSweep) -> None:
        for name in ("sm_occupancy_ppm", "sm_active_ppm", "dram_active_ppm"):
            after.gpu[:, COLUMN[name]] = RAW_MISSING

    gpu = decoded(ampere).gpu
    assert gpu.sm_occupancy == pytest.approx([0.9, 0.9]) and np.isnan(gpu.dram_active).all()
    assert set(gpu.occupancy_quality) == {Quality.ESTIMATED}
    assert set(gpu.quality) == {Quality.MEASURED}


def test_a_lost_gpu_is_missing_as_a_whole_and_the_other_is_not() -> None:
    def lose(before: RawSweep, after: RawSweep) -> None:
        after.gpu[0] = RAW_MISSING

    gpu = decoded(lose).gpu
    assert gpu.quality.tolist() == [Quality.MISSING, Quality.MEASURED]
    assert gpu.occupancy_quality[0] == Quality.MISSING
    for values in (gpu.energy_j, gpu.power_w, gpu.sm_clock_mhz, gpu.sm_occupancy, gpu.temperature_c):
        assert np.isnan(values[0]) and np.isfinite(values[1])


@pytest.mark.parametrize("after_mj", [RAW_MISSING, 0])
def test_without_a_usable_energy_counter_joules_are_estimated_from_power(after_mj: int) -> None:
    def lose(before: RawSweep, after: RawSweep) -> None:
        after.gpu[1, COLUMN["energy_mj"]] = after_mj

    gpu = decoded(lose).gpu
    assert gpu.energy_j == pytest.approx([60.0, 60.0])
    assert gpu.quality.tolist() == [Quality.MEASURED, Quality.ESTIMATED]


def test_absurd_gpu_readings_are_clipped_to_their_bounds() -> None:
    def exaggerate(before: RawSweep, after: RawSweep) -> None:
        after.gpu[0, COLUMN["power_mw"]] = 4_000_000
        after.gpu[1, COLUMN["gpu_utilization_pct"]] = 255

    gpu = decoded(exaggerate).gpu
    assert gpu.power_w[0] == pytest.approx(1050.0), "1.5 x the highest limit"
    assert gpu.gpu_utilization[1] == 1.0
    assert gpu.quality.tolist() == [Quality.CLIPPED, Quality.CLIPPED]


def test_power_of_a_board_whose_limit_is_unknown_has_no_bound() -> None:
    def exceed(before: RawSweep, after: RawSweep) -> None:
        after.gpu[:, COLUMN["power_mw"]] = 4_000_000

    boards = tuple(msgspec.structs.replace(board, max_power_limit_w=0.0) for board in LAYOUT.gpus)
    layout = msgspec.structs.replace(LAYOUT, gpus=boards)
    gpu = decoded(exceed, layout).gpu
    assert gpu.power_w.tolist() == [4000.0, 4000.0] and gpu.quality.tolist() == [Quality.MEASURED] * 2


def test_an_energy_counter_that_stands_still_for_long_is_stale() -> None:
    before = first()
    after = later(before, elapsed_ns=10 * PERIOD_NS)
    after.gpu[0] = before.gpu[0]
    gpu = decode(LAYOUT, before, after).gpu
    assert gpu.quality[0] == Quality.STALE and np.isnan(gpu.energy_j[0])


def test_sweeps_out_of_order_are_an_error() -> None:
    before = first()
    with pytest.raises(PmuError, match="out of order"):
        decode(LAYOUT, before, replace(later(before), time_ns=before.time_ns))


def test_a_sample_has_the_time_of_its_later_sweep_however_short_after_the_first() -> None:
    before = first()
    sample = decode(LAYOUT, before, replace(later(before), time_ns=before.time_ns + 1))
    assert (sample.time_ns, sample.elapsed_s) == (before.time_ns + 1, 1e-9)


def test_a_sweep_in_smaller_integers_decodes_to_the_same_values() -> None:
    before = first()
    after = later(before)
    smaller = replace(after, gpu=after.gpu.astype(np.int32))
    assert np.array_equal(decode(LAYOUT, before, smaller).gpu.energy_j, decode(LAYOUT, before, after).gpu.energy_j)


raw = st.one_of(st.just(RAW_MISSING), st.integers(0, 2**63 - 1), st.integers(0, 10**9))


@given(st.lists(raw, min_size=80, max_size=80))
def test_no_integers_make_a_share_leave_its_range_or_an_infinite_value(values: list[int]) -> None:
    cells = iter(values)
    sweeps = []
    for time_ns in (0, PERIOD_NS):
        sweep = first()
        sweep.time_ns = time_ns
        for table in (sweep.counters[:2], sweep.energy_uj, sweep.gpu[:1]):
            table[...] = np.array([next(cells) for _ in range(table.size)]).reshape(table.shape)
        sweeps.append(sweep)
    sample = decode(LAYOUT, *sweeps)
    for share in (sample.cpu.busy, sample.cpu.stall, sample.gpu.sm_occupancy, sample.gpu.gpu_utilization):
        known = share[np.isfinite(share)]
        assert ((known >= 0) & (known <= 1)).all()
    for values_out in (sample.cpu.ipc, sample.cpu.frequency_khz, sample.energy_j, sample.gpu.energy_j):
        assert not np.isinf(values_out).any() and not (values_out < 0).any()


@given(st.integers(0, 3), st.sampled_from(EVENTS), st.sampled_from([RAW_MISSING, 0, 2**63 - 1]))
def test_one_bad_counter_leaves_every_other_cpu_alone(cpu: int, event: str, value: int) -> None:
    def spoil(before: RawSweep, after: RawSweep) -> None:
        after.counters[cpu, EVENTS.index(event)] = value

    good, bad = decoded(), decoded(spoil)
    others = [other for other in range(4) if other != cpu]
    for name in ("ipc", "busy", "stall", "frequency_khz", "quality"):
        assert np.array_equal(getattr(good.cpu, name)[others], getattr(bad.cpu, name)[others])


def test_decoding_changes_neither_sweep_and_repeats_to_the_same_bytes() -> None:
    before = first()
    after = later(before)
    copies = before.counters.copy(), after.counters.copy(), after.gpu.copy(), after.energy_uj.copy()
    samples = [decode(LAYOUT, before, after), decode(node(), before, after)]
    encoded = [
        msgspec.msgpack.encode([s.cpu.ipc.tobytes(), s.gpu.energy_j.tobytes(), s.energy_j.tobytes()]) for s in samples
    ]
    assert encoded[0] == encoded[1]
    for kept, now in zip(copies, (before.counters, after.counters, after.gpu, after.energy_uj), strict=True):
        assert np.array_equal(kept, now)


def test_a_sweep_of_another_shape_than_the_layout_is_refused() -> None:
    before = first()
    with pytest.raises(PmuError, match="shape"):
        decode(node(cpus=5), before, later(before))


def test_a_genoa_node_with_eight_gpus_decodes_within_a_yardstick() -> None:
    """An eighth of a millisecond on a machine left to itself."""
    layout = node(GENOA_CPUS, H100S)
    before = first(layout)
    after = later(before, layout)
    costs_ns, yardsticks_ns = [], []
    for _ in range(400):
        yardsticks_ns.append(yardstick_ns())
        begin_ns = time.thread_time_ns()
        decode(layout, before, after)
        costs_ns.append(time.thread_time_ns() - begin_ns)
    assert np.median(costs_ns) < np.median(yardsticks_ns)


def test_a_node_without_registered_columns_has_none_in_its_sample() -> None:
    before = first()
    assert decode(LAYOUT, before, later(before)).columns is NO_COLUMNS


@pytest.mark.parametrize(("is_estimated", "quality"), [(False, Quality.MEASURED), (True, Quality.ESTIMATED)])
def test_a_column_that_is_estimated_is_marked_so(is_estimated: bool, quality: Quality) -> None:
    column = Column(instrument="test", name="heat", unit="J", kind="counter", is_estimated=is_estimated)
    before, now = np.array([1], np.int64), np.array([5], np.int64)
    values, found = decode_columns(column_rules([column]), before, now, 1.0)
    assert (values.tolist(), found.tolist()) == ([4.0], [quality])
