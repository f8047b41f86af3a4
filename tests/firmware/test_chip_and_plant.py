"""The controller's integer tables and the plant's network are compared with the published formulas."""

from __future__ import annotations

import math
import threading

import numpy as np
import pytest

from firmware_bridge.controlpulp.host import HostController
from tests.firmware.rig import joined
from twin.pulp import heat_network
from twin.pulp.plant import CLASSES, CORES, Plant, core_power_w


def published_power_w(c: float, ghz: float, volt: float, celsius: float) -> float:
    leak = (0.32429 * volt + 0.52804) * math.exp((4507.748 * volt + 29.903 * min(celsius, 125) - 6033.035) / 1000)
    return leak + c * ghz * volt**2 / 0.81


@pytest.mark.parametrize("celsius", [25.0, 80.0, 125.0, 140.0])
@pytest.mark.parametrize("c", CLASSES)
def test_the_plant_draws_the_published_power(c: float, celsius: float) -> None:
    assert core_power_w(c, 2.4, 0.75, celsius) == pytest.approx(published_power_w(c, 2.4, 0.75, celsius), rel=1e-12)


def test_a_finished_core_draws_its_published_idle_power() -> None:
    assert core_power_w(0.0, 3.66, 1.2, 90.0) == 0.3


def test_the_network_has_76_states_and_loses_heat_only_to_ambient() -> None:
    g = heat_network.conductances()
    assert g.shape == (76, 76)
    assert np.allclose(g, g.T)
    power = np.full(CORES, 250.0 / CORES)
    t = heat_network.steady(power, 25.0)
    assert (t[heat_network.AIR] - 25.0) * heat_network.CASE_FAN_W_PER_K == pytest.approx(250.0, rel=1e-9)


def test_250_w_are_reached_at_about_80_degrees() -> None:
    assert heat_network.steady(np.full(CORES, 250.0 / CORES), 25.0)[:CORES].max() == pytest.approx(80.0, abs=3.0)


def test_the_die_settles_in_milliseconds_and_the_sink_in_seconds() -> None:
    matrix, _, _ = heat_network.discrete()
    times = np.sort(-heat_network.STEP_S / np.log(np.abs(np.linalg.eigvals(matrix))))
    assert 0.5e-3 < times[0] < 5e-3
    assert times[-1] > 1.0


def test_the_power_sensor_reads_the_mean_of_100_us_not_the_published_one_and_a_half() -> None:
    host, plant = joined()
    host.advance_slots(50)
    assert host.wires["power_uw"][0] * 1e-6 == pytest.approx(plant.power_w[0], rel=1e-3)


def test_who_reads_the_power_while_time_passes_never_sees_half_a_sum() -> None:
    host, plant = joined()
    host.advance_slots(50)
    running = threading.Thread(target=host.advance_slots, args=(40_000,))
    running.start()
    lowest_w = np.inf
    while running.is_alive():
        lowest_w = min(lowest_w, min(plant.power_w[0] for _ in range(1000)))
    assert lowest_w == pytest.approx(plant.power_w[0], rel=0.5)


def test_the_controllers_model_agrees_with_the_plant_to_a_part_in_a_thousand() -> None:
    for c in CLASSES:
        host, plant = joined(c)
        plant.settle(np.full(CORES, 4.0))
        host.advance_slots(2000)
        assert host.view().gain == pytest.approx((1.0,) * 4, abs=1e-3)


def test_equal_calls_give_equal_bits() -> None:
    def fingerprint(parts: int) -> int:
        host, plant = joined(seed=3)
        plant.noise(temperature_k=0.3, power=0.01, capacitance=0.01)
        for _ in range(parts):
            host.advance(0.2 / parts)
        return host.fingerprint()

    assert fingerprint(1) == fingerprint(1) == fingerprint(400)


def test_views_outlive_their_owners() -> None:
    wires = HostController().wires["freq_khz"]
    temperature = Plant().temperature_c
    assert wires.size == CORES and temperature[0] == 25.0
