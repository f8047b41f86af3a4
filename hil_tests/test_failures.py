"""The link or the controller fails and recovers."""

from __future__ import annotations

import numpy as np
import pytest

from firmware_bridge.errors import LinkError
from firmware_bridge.scmi.messages.codec import encode
from firmware_bridge.scmi.protocols.power_capping import CapGet, CapSet
from firmware_bridge.scmi.protocols.telemetry import LeaseLeft, LeaseSet, LeaseUntil
from hil_tests.rig import Ability, Rig


def test_a_cap_outlives_a_link_that_is_cut_for_5_seconds(rig: Rig) -> None:
    controller = rig.controller()
    package, link = controller.cap_domains[0], rig.last_link()
    controller.set_cap(package, 100_000)
    link.cut()
    begin_s = rig.now_s()
    with pytest.raises(LinkError):
        controller.cap(package)
    assert rig.now_s() - begin_s < 2.0
    rig.pass_time(5.0 - (rig.now_s() - begin_s))
    assert 95.0 <= np.median(rig.powers_w(40)) <= 100.0
    link.mend()
    assert controller.cap(package) == 100_000
    assert controller.set_cap(package, 140_000).enforced == 140_000


def test_with_a_lease_the_agreed_cap_takes_over_while_the_link_is_cut(rig: Rig) -> None:
    controller = rig.controller()
    package, link = controller.cap_domains[0], rig.last_link()
    controller.set_cap(package, 150_000)
    controller.client.request(LeaseSet(300, 80_000))
    link.cut()
    rig.pass_time(0.4)
    assert 76.0 <= np.median(rig.powers_w(40)) <= 80.0
    link.mend()
    assert controller.cap(package) == 80_000


def test_a_lease_with_a_set_end_ends_on_the_controllers_own_clock_and_late_requests_cannot_move_it(rig: Rig) -> None:
    controller = rig.controller()
    package, link = controller.cap_domains[0], rig.last_link()
    controller.set_cap(package, 150_000)
    began_s = rig.now_s()
    controller.client.request(LeaseUntil(controller.client.request(LeaseLeft()).now_ms + 1000, 80_000))
    ends_by_s = rig.now_s() + 1.0
    while rig.now_s() - began_s < 0.4:
        cap, is_before_the_end = controller.cap(package), rig.now_s() < began_s + 1.0
        assert cap == 150_000 or not is_before_the_end, "messages before its end neither end nor move it"
        rig.pass_time(0.05)
    link.cut()
    rig.pass_time(ends_by_s - rig.now_s() + 0.1)
    assert 76.0 <= np.median(rig.powers_w(40)) <= 80.0
    link.mend()
    assert controller.set_cap(package, 150_000).enforced == 80_000
    assert controller.disable_cap(package) == 0, "taken back, with its lease"


@pytest.mark.needs(Ability.KILL)
def test_a_killed_controller_is_noticed_and_starts_again_with_nothing_remembered(rig: Rig) -> None:
    controller = rig.controller()
    controller.set_cap(controller.cap_domains[0], 100_000)
    rig.pass_slots(20)
    rig.kill()
    clocks = rig.freq_khz()
    begin_s = rig.now_s()
    with pytest.raises(LinkError):
        controller.cap(controller.cap_domains[0])
    assert rig.now_s() - begin_s < 2.0
    assert (rig.freq_khz() == clocks).all(), "the chip goes on at the clocks it has"
    rig.restart()
    again = rig.controller()
    assert again.cap(again.cap_domains[0]) == 0
    assert again.set_cap(again.cap_domains[0], 100_000).enforced == 100_000
    rig.pass_slots(20)
    assert 95.0 <= np.median(rig.powers_w(40)) <= 100.0
    assert rig.plant.unsafe_steps == 0


@pytest.mark.needs(Ability.KILL)
def test_a_reset_in_mid_transaction_loses_the_answer_and_nothing_else(rig: Rig) -> None:
    client, link = rig.client(), rig.last_link()
    client.request(CapSet(0, 0, 120_000))
    link.send(encode(CapSet(0, 0, 90_000), 77))
    rig.kill()
    rig.restart()
    try:
        cap = client.request(CapGet(0)).cap
    except LinkError:
        client = rig.client()
        cap = client.request(CapGet(0)).cap
    assert cap == 0
    client.request(CapSet(0, 0, 90_000))
    assert client.request(CapGet(0)).cap == 90_000
    rig.pass_slots(20)
    assert np.median(rig.powers_w(40)) <= 90.0
