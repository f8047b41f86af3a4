"""The native decoding does what the rules say, on thousands of readings at and next to every bound of the rules."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import fields

import msgspec
import numpy as np
import pytest

from pmu.decode import decode
from pmu.driver_values import MOST_BOARD_MW
from pmu.instruments.counters import EVENTS
from pmu.layout import Column, EnergyZone, Gpu, Layout
from pmu.readings import GPU_FIELDS, RAW_MISSING, PmuError, RawSweep
from tests.pmu.plain_decode import (
    IDLE_CYCLES,
    JITTER_S,
    MOST_PER_S,
    STUCK_CYCLES,
    TOLERANCE,
    plain_column,
    plain_cpu,
    plain_gpu,
    plain_zone,
)

ROWS = 600
BEFORE_NS = 10**12
EMPTY = Layout((), (), (), (), 0, (), (), ())


def next_to(*bounds: float) -> list[int]:
    """The integers on both sides of each bound, and on it."""
    return [math.floor(bound) + side for bound in bounds for side in (-1, 0, 1)]


def sweeps(elapsed_s: float, cells: Sequence[np.ndarray], part: str) -> list[RawSweep]:
    empty = {
        "counters": np.zeros((0, 0), np.int64),
        "energy_uj": np.zeros(0, np.int64),
        "gpu": np.zeros((0, len(GPU_FIELDS)), np.int64),
    }
    times_ns = (BEFORE_NS, BEFORE_NS + round(elapsed_s * 1e9))
    return [RawSweep(time_ns, **(empty | {part: array})) for time_ns, array in zip(times_ns, cells, strict=True)]


def assert_same(native: object, plain: Sequence[object], readings: Sequence[object]) -> None:
    """Field by field; equal up to the last bits, which the order of a product's factors decides."""
    for field in fields(type(plain[0])):
        values = getattr(native, field.name)
        expected = np.array([getattr(one, field.name) for one in plain], values.dtype)
        for row in np.flatnonzero(~np.isclose(values, expected, rtol=1e-12, atol=0, equal_nan=True)):
            raise AssertionError(f"{field.name} is {values[row]}, by the rules {plain[row]}: {readings[row]}")


@pytest.mark.parametrize("elapsed_s", [0.001, 0.1, 3.0])
@pytest.mark.parametrize(
    ("events", "khz", "estimated"),
    [
        (EVENTS, 2_400_000, False),
        (EVENTS, 2_400_000, True),
        (EVENTS, 0, False),
        (EVENTS, 1, False),
        (EVENTS[2::-1], 1_000_000, False),
    ],
)
def test_a_cpu_is_decoded_by_the_rules(events: tuple[str, ...], khz: int, estimated: bool, elapsed_s: float) -> None:
    rng = random.Random(1)
    full = khz * 1e3 * elapsed_s
    margins = [full * TOLERANCE * (1 + JITTER_S / elapsed_s), full]
    most = {event: most_per_s * (elapsed_s + JITTER_S) for event, most_per_s in MOST_PER_S.items()}
    most["reference-cycles"] = (2e3 * khz or 10e9) * (elapsed_s + JITTER_S)
    steps = {
        event: [0, 0, 0, -1, 1, 12_345_678, *next_to(IDLE_CYCLES, STUCK_CYCLES, *margins, most[event], most[event] * 2)]
        for event in EVENTS
    }
    before = np.array([[rng.choice([0, 5, 10**12]) for _ in events] for _ in range(ROWS)], np.int64)
    now = before + np.array([[rng.choice(steps[event]) for event in events] for _ in range(ROWS)], np.int64)
    stalls = [i for i, event in enumerate(events) if event == "stalls"]
    for row in range(0, ROWS, 3):  # a share of the cycles, about all of them
        for i in stalls:
            cycles = now[row, events.index("cycles")] - before[row, events.index("cycles")]
            now[row, i] = (
                before[row, i] + math.floor(cycles * rng.choice([0.5, 1.0, 1.05, 1.1, 1.2])) + rng.choice([0, 1])
            )
    for array in (before, now):
        array[rng.sample(range(ROWS), ROWS // 20), rng.randrange(len(events))] = RAW_MISSING
    now[rng.sample(range(ROWS), 20), rng.randrange(len(events))] = 2**63 - 1
    before[:2], now[:2] = [[2**63 - 1], [RAW_MISSING]], [[RAW_MISSING], [RAW_MISSING + 5]]  # a small step, modulo 2^64
    layout = msgspec.structs.replace(
        EMPTY,
        cpus=tuple(range(ROWS)),
        events=events,
        reference_khz=khz,
        estimated_events=("reference-cycles",) if estimated else (),
    )
    cpu = decode(layout, *sweeps(elapsed_s, (before, now), "counters")).cpu
    counts = [
        dict(zip(events, zip(*pair, strict=True), strict=True))
        for pair in zip(before.tolist(), now.tolist(), strict=True)
    ]
    plain = [plain_cpu(one, khz, is_estimated=estimated, elapsed_s=elapsed_s) for one in counts]
    assert_same(cpu, plain, counts)


@pytest.mark.parametrize("elapsed_s", [0.004, 0.005, 0.1, 26.0, 27.0])
@pytest.mark.parametrize("kind", ["package", "core"])
@pytest.mark.parametrize("range_uj", [0, 1, 26_000_000_000])
def test_a_zone_is_decoded_by_the_rules(range_uj: int, kind: str, elapsed_s: float) -> None:
    rng = random.Random(2)
    most_w = 1000.0
    most = most_w * 1e6 * (elapsed_s + 0.01)
    starts = [RAW_MISSING, -1, 0, 1, 100, *next_to(range_uj), 10**9]
    steps = [0, -1, 1, 50_000, *next_to(most), *next_to(most - range_uj), -range_uj, range_uj]
    before = np.array([rng.choice(starts) for _ in range(ROWS)], np.int64)
    now = np.array([rng.choice([start + rng.choice(steps), rng.choice(starts)]) for start in map(int, before)], object)
    now = np.array([max(int(uj), RAW_MISSING) for uj in now], np.int64)
    zone = EnergyZone("zone", "intel-rapl:0", kind, 0, range_uj, int(most_w * 1e6))
    sample = decode(
        msgspec.structs.replace(EMPTY, zones=(zone,) * ROWS), *sweeps(elapsed_s, (before, now), "energy_uj")
    )
    readings = list(zip(before.tolist(), now.tolist(), strict=True))
    plain = [
        plain_zone(*pair, range_uj=range_uj, most_w=most_w, is_package=kind == "package", elapsed_s=elapsed_s)
        for pair in readings
    ]
    assert_same(sample, plain, readings)


COLUMN_KINDS = [
    {"kind": "counter", "most_per_s": 40.0, "range": 1000, "per_unit": 10.0},
    {"kind": "counter", "most_per_s": 40.0, "is_never_idle": True, "is_estimated": True},
    {"kind": "counter"},
    {"kind": "counter", "range": 1000},
    {"kind": "level", "per_unit": 1000.0, "lowest": -55.0, "highest": 150.0},
    {"kind": "level", "is_estimated": True, "period_s": 1.0},
    {"kind": "flag"},
]


@pytest.mark.parametrize("elapsed_s", [0.004, 0.005, 0.1, 2.5])
@pytest.mark.parametrize("rules", COLUMN_KINDS, ids=lambda rules: "-".join(map(str, rules.values())))
def test_a_column_is_decoded_as_it_is_registered(rules: dict[str, object], elapsed_s: float) -> None:
    rng = random.Random(4)
    column = Column(instrument="test", name="column", unit="", **rules)
    most = column.most_per_s * column.per_unit * (elapsed_s + 0.01) if math.isfinite(column.most_per_s) else 1e6
    bounds = [b * column.per_unit for b in (column.lowest, column.highest) if math.isfinite(b)]
    steps = [0, 1, -1, *next_to(most, column.range, column.range - most)]
    choices = [RAW_MISSING, -1, 0, 1, 5, 10**15, *next_to(column.range, *bounds)]
    before = np.array([rng.choice(choices) for _ in range(ROWS)], np.int64)
    now = [rng.choice([max(start + rng.choice(steps), RAW_MISSING), rng.choice(choices)]) for start in before.tolist()]
    layout = msgspec.structs.replace(EMPTY, columns=(column,) * ROWS)
    sample = decode(layout, *sweeps(elapsed_s, (before, np.array(now, np.int64)), "columns"))
    readings = list(zip(before.tolist(), now, strict=True))
    assert_same(sample.columns, [plain_column(column, *pair, elapsed_s) for pair in readings], readings)


def test_a_sweep_without_the_columns_of_its_layout_is_refused() -> None:
    column = Column(instrument="test", name="column", unit="C", kind="level")
    with pytest.raises(PmuError, match="shape"):
        decode(msgspec.structs.replace(EMPTY, columns=(column,)), *sweeps(0.1, (np.zeros(0, np.int64),) * 2, "columns"))


@pytest.mark.parametrize("elapsed_s", [0.1, 0.499, 0.5, 2.0])
@pytest.mark.parametrize("limit_w", [700.0, 0.0])
def test_a_gpu_is_decoded_by_the_rules(limit_w: float, elapsed_s: float) -> None:
    rng = random.Random(3)
    peak_mw = limit_w * 1e3 * 1.5 if limit_w else float(MOST_BOARD_MW)
    most = peak_mw * (elapsed_s + 1.0) if limit_w else 1e9
    choices = {
        "sm_clock_mhz": [RAW_MISSING, 0, 1980],
        "memory_clock_mhz": [RAW_MISSING, 2619],
        "power_mw": [RAW_MISSING, 0, 1, 600_000, *next_to(min(peak_mw, 1e9))],
        "temperature_c": [RAW_MISSING, 61],
        "gpu_utilization_pct": [RAW_MISSING, RAW_MISSING, 0, 1, 2, 55, 99, 100, 101],
        "memory_utilization_pct": [RAW_MISSING, 0, 1, 2, 77, 100, 101],
        "throttle_reasons": [0, 4],
    } | {
        name: [RAW_MISSING, 0, 1, ppm, 999_999, 1_000_000, 1_000_001]
        for name, ppm in (("sm_occupancy_ppm", 350_000), ("sm_active_ppm", 800_000), ("dram_active_ppm", 250_000))
    }
    energies = [0, 0, -1, 1, 60_000, *next_to(most)]

    def row() -> tuple[list[int], list[int]]:
        is_sound = rng.random() < 0.5  # else a reading beyond its bound hides what else is wrong
        now = {name: rng.choice([v for v in values if not is_sound or v not in (101, 1_000_001)])
               for name, values in choices.items()}  # fmt: skip
        before = dict.fromkeys(GPU_FIELDS, 7) | {"energy_mj": rng.choice([RAW_MISSING, 0, 5, 10**9, 10**9])}
        now["energy_mj"] = rng.choice(
            [RAW_MISSING, *(max(before["energy_mj"] + step, RAW_MISSING) for step in energies)]
        )
        return [before[name] for name in GPU_FIELDS], [now[name] for name in GPU_FIELDS]

    before, now = (np.array(rows, np.int64) for rows in zip(*(row() for _ in range(ROWS)), strict=True))
    board = Gpu(0, "GPU-0", "H100", (210, 1980), 2619, 700.0, 200.0, limit_w, True)
    gpu = decode(msgspec.structs.replace(EMPTY, gpus=(board,) * ROWS), *sweeps(elapsed_s, (before, now), "gpu")).gpu
    readings = [
        [dict(zip(GPU_FIELDS, row, strict=True)) for row in pair]
        for pair in zip(before.tolist(), now.tolist(), strict=True)
    ]
    assert_same(gpu, [plain_gpu(*pair, peak_mw, elapsed_s) for pair in readings], readings)
