"""What policies take from a table: thresholds of bdpo-cpu where kernels begin to need the clock; the node's rest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest

from calibration.kernels.port import FMA, STREAM, mix
from calibration.measure.node_session import WINDOW_S, label, open_session
from calibration.table.adaptive_sweep import Aim, Sweep
from calibration.table.balance_series import (
    LEVEL,
    balance_mixes,
    measure_balance,
    reserved_s,
    shares_within,
)
from calibration.table.policy_values import ABOVE, LOSS, READ_S, policy_values, rest_w
from calibration.table.pstate_table import Point
from lab.emulated.emulated_kernels import emulated_kernels
from nodectl.policies import bdpo_cpu_bounded, registry
from twin.in_process_node import InProcess
from twin.machine import load_machine
from twin.physics.model import Twin

CLOCKS = tuple(range(1_200_000, 2_800_000, 100_000))
TOP = CLOCKS[-1]
REST_W = 80.0
MIXES = {"mix-2": (0.3, 1.2), "mix-4": (0.6, 1.7), "mix-8": (0.85, 2.0)}
KERNELS = {"stream": (0.2, 0.5), **MIXES, "fma": (1.0, 2.2)}
"""By kernel: the share of its time that follows the clock, and its IPC at the highest."""


def points_of(kernel: str, beta: float, ipc: float, level: str = LEVEL, has_meter: bool = True) -> list[Point]:
    found = []
    for khz in CLOCKS:
        speed = 1.0 / (1.0 + beta * (TOP / khz - 1.0))
        watts = 60.0 + 140.0 * (khz / TOP) ** 2
        node_w = watts + 10.0 + REST_W if has_meter else math.nan
        found.append(
            Point(
                kernel=kernel, level=level, cores=8, khz=khz, is_measured=True, windows=8, clock_khz=float(khz),
                package_w=watts, package_half=0.1, model_half=0.0, dram_w=10.0, dram_half=0.1, node_w=node_w,
                node_half=0.1, speed=speed, speed_half=0.001, speed_model_half=0.0, units_per_s=1e9 * speed,
                ipc=ipc * speed, ipc_half=0.01, units_per_j=1e9 * speed / watts, units_per_j_half=1.0,
            )
        )  # fmt: skip
    return found


def table_points(kernels: dict[str, tuple[float, float]], has_meter: bool = True) -> list[Point]:
    return [point for name, truth in kernels.items() for point in points_of(name, *truth, has_meter=has_meter)]


def test_every_ipc_of_a_kernel_is_worth_a_look_though_counters_err() -> None:
    values, remarks = policy_values(table_points(KERNELS), has_meter=True)
    low = values["bdpo-cpu"]["low_ipc"]
    assert low == pytest.approx(ABOVE * KERNELS["fma"][1], rel=1e-3)
    assert low < values["bdpo-cpu"]["high_ipc"] < 1.1 * low
    assert 0.1 <= values["bdpo-cpu"]["dwell_s"] <= 1.0
    assert values["bdpo-cpu"]["loss"] == LOSS
    assert not remarks


def test_an_ipc_that_a_policy_reads_over_a_shorter_time_scatters_more_than_in_a_window() -> None:
    """``high_ipc`` is above ``low_ipc`` by three deviations of an IPC over the agent's period, not over a window."""
    noisy = [msgspec.structs.replace(one, ipc_half=0.2, windows=16) for one in table_points(KERNELS)]
    values = policy_values(noisy, has_meter=True)[0]["bdpo-cpu"]
    of_window = 0.2 / 1.96 * math.sqrt(16)
    of_reading = of_window * math.sqrt(WINDOW_S / READ_S)
    assert WINDOW_S > READ_S
    assert values["high_ipc"] - values["low_ipc"] == pytest.approx(3 * of_reading, rel=1e-3)


@pytest.mark.parametrize("has_meter", (True, False))
def test_the_floor_is_the_clock_at_which_stream_costs_the_fewest_joules(has_meter: bool) -> None:
    floor = policy_values(table_points(KERNELS, has_meter), has_meter)[0]["bdpo-cpu"]["floor"]
    rest = REST_W if has_meter else bdpo_cpu_bounded.Params().rest_w
    beta = KERNELS["stream"][0]
    joules = {khz: (70.0 + 140.0 * (khz / TOP) ** 2 + rest) * (1 + beta * (TOP / khz - 1)) for khz in CLOCKS}
    assert floor <= min(joules, key=lambda khz: joules[khz]) / TOP < floor + 1e-4


def test_the_rest_of_the_node_is_what_its_meter_shows_beyond_packages_and_dram() -> None:
    values, _ = policy_values(table_points(KERNELS), True)
    assert values["bdpo-cpu-bounded"] == {"rest_w": REST_W} and rest_w(table_points(KERNELS)) == REST_W
    values, remarks = policy_values(table_points(KERNELS, has_meter=False), False)
    assert "bdpo-cpu-bounded" not in values
    assert remarks == ["bdpo-cpu-bounded keeps its default rest_w: there is no meter of the node"]


@pytest.mark.parametrize(
    ("kernels", "why"),
    [
        ({"fma": KERNELS["fma"]}, "fma and stream were not both measured"),
        ({**KERNELS, "stream": (1.5, 0.5)}, "stream saves no energy at a lower clock"),
        ({"stream": (0.2, math.nan), "fma": KERNELS["fma"]}, "only 1 kernels have an IPC, 2 are needed"),
    ],
)
def test_what_cannot_be_said_is_a_remark_and_the_default_stays(
    kernels: dict[str, tuple[float, float]], why: str
) -> None:
    values, remarks = policy_values(table_points(kernels), True)
    assert "bdpo-cpu" not in values
    (line,) = remarks
    assert line.startswith("bdpo-cpu keeps its defaults: ") and why in line


def test_mixes_lie_around_the_balance_of_the_node() -> None:
    fma = [msgspec.structs.replace(one, units_per_s=64e9 * one.speed) for one in points_of("fma", *KERNELS["fma"])]
    stream = [msgspec.structs.replace(one, units_per_s=16e9 * one.speed) for one in points_of("stream", 0.2, 0.5)]
    mixes = balance_mixes([*stream, *fma])
    assert [one.flops_per_byte for one in mixes] == [2.0, 2.75, 3.5, 4.0, 5.0, 6.5, 8.0]
    assert balance_mixes(stream) == ()
    assert balance_mixes([*stream, *fma], ()) == ()


@pytest.mark.parametrize(("budget_s", "mixes"), [(0.0, 7), (30.0, 0), (60.0, 3), (300.0, 7)])
def test_a_budget_leaves_time_for_mixes_or_has_none(budget_s: float, mixes: int) -> None:
    assert len(shares_within(budget_s)) == mixes
    assert reserved_s(budget_s) < 0.25 * budget_s or not budget_s


def calibrated(machine: str, folder: Path) -> tuple[Sequence[Point], bool]:
    twin = Twin(load_machine(machine))
    with InProcess(twin) as node, open_session(node.ports, emulated_kernels(twin), str(folder)) as session:
        sweep = Sweep(session, (FMA, STREAM), Aim(0.1))
        sweep.run()
        measure_balance(sweep)
        stays = len(sweep.dwells)
        measure_balance(sweep)
        assert len(sweep.dwells) == stays, "a run that goes on measures nothing twice"
        return sweep.all_measured(), session.has_meter


def test_a_calibrated_node_gives_values_that_its_policies_take(tmp_path: Path) -> None:
    points, has_meter = calibrated("taurus", tmp_path)
    values, remarks = policy_values(points, has_meter)
    assert not remarks and has_meter
    for name, params in values.items():
        registry.check(name, "cpu", params)
    shown = {one.kernel: one.ipc for one in points if one.level == LEVEL and one.khz == max(p.khz for p in points)}
    assert max(shown.values()) < values["bdpo-cpu"]["low_ipc"], "so it looks at STREAM, which 0.5 leaves alone"
    machine = load_machine("taurus")
    assert values["bdpo-cpu-bounded"]["rest_w"] == pytest.approx(machine.power.rest_w, rel=0.05)
    assert label(mix(balance_mixes(points)[0].flops_per_byte)) in shown
    assert np.isfinite([one.package_half for one in points]).all()
