"""A power cap, from the agent to the chip."""

from __future__ import annotations

import numpy as np
import pytest

from firmware_bridge.errors import OutOfRangeError
from hil_tests.rig import Ability, Rig


def test_a_cap_keeps_power_below_it_and_a_raise_frees_it(rig: Rig) -> None:
    controller = rig.controller()
    package = controller.cap_domains[0]
    for cap_w in (120.0, 80.0, 200.0):
        assert controller.set_cap(package, package.rounded_down(cap_w)).enforced == cap_w * 1000
        rig.pass_slots(10)
        power_w = rig.powers_w(100)
        assert 0.95 * cap_w <= np.median(power_w) <= cap_w
        assert np.percentile(power_w, 95) <= 1.05 * cap_w


@pytest.mark.needs(Ability.EXACT_TIME)
@pytest.mark.parametrize("cap_w", [80.0, 150.0])
def test_a_lower_cap_is_met_two_slots_after_it_was_set(rig: Rig, cap_w: float) -> None:
    controller = rig.controller()
    package = controller.cap_domains[0]
    controller.set_cap(package, package.rounded_down(250.0))
    rig.pass_slots(50)
    controller.set_cap(package, package.rounded_down(cap_w))
    assert rig.powers_w(60)[2:].max() <= 1.05 * cap_w


def test_an_asynchronous_cap_is_answered_again_once_it_is_in_force(rig: Rig) -> None:
    controller = rig.controller()
    package = controller.cap_domains[0]
    controller.set_cap(package, 250_000)
    rig.pass_slots(50)
    assert controller.set_cap(package, 100_000, asynchronously=True).enforced == 100_000
    power_w = rig.powers_w(100)
    assert 95.0 <= np.median(power_w) <= 100.0
    if Ability.EXACT_TIME not in rig.cannot:
        assert power_w.max() <= 105.0, "from the first slot after the second answer on"


def test_a_cap_out_of_range_leaves_the_previous_one_in_force(rig: Rig) -> None:
    controller = rig.controller()
    package = controller.cap_domains[0]
    controller.set_cap(package, 100_000)
    for cap in (package.min_cap - 100, package.max_cap + 100):
        with pytest.raises(OutOfRangeError, match=r"power domain 0 \(package\) takes 20 W to 324 W"):
            controller.set_cap(package, cap)
    assert controller.cap(package) == 100_000
    rig.pass_slots(10)
    assert np.median(rig.powers_w(50)) <= 100.0


@pytest.mark.needs(Ability.SEVERAL_AGENTS)
def test_of_two_agents_caps_the_lower_one_is_in_force_until_it_is_withdrawn(rig: Rig) -> None:
    first, second = rig.controller(1), rig.controller(2)
    package = first.cap_domains[0]
    assert first.set_cap(package, 150_000).enforced == 150_000
    assert second.set_cap(package, 90_000).enforced == 90_000
    assert first.set_cap(package, 120_000).enforced == 90_000
    rig.pass_slots(10)
    assert 0.95 * 90 <= np.median(rig.powers_w(60)) <= 90.0
    assert second.disable_cap(package) == 120_000
    rig.pass_slots(10)
    assert 0.95 * 120 <= np.median(rig.powers_w(60)) <= 120.0
