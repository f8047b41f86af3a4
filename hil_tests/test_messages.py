"""What happens to a request whose messages are disturbed."""

from __future__ import annotations

import pytest

from firmware_bridge.errors import LinkError, NotVerifiedError, ProtocolError
from firmware_bridge.scmi.client import TRIES
from firmware_bridge.scmi.protocols.power_capping import CapGet, CapSet
from hil_tests.link import Disturbance
from hil_tests.rig import Ability, Rig

REPAIRED = [
    Disturbance.COMMAND_LOST,
    Disturbance.COMMAND_TWICE,
    Disturbance.COMMAND_DAMAGED,
    Disturbance.RESPONSE_LOST,
    Disturbance.RESPONSE_LATE,
    Disturbance.RESPONSE_TWICE,
    Disturbance.RESPONSE_DAMAGED,
    Disturbance.RESPONSE_TRUNCATED,
]


@pytest.mark.parametrize("disturbance", REPAIRED, ids=[one.name.lower().replace("_", "-") for one in REPAIRED])
def test_a_lost_late_doubled_damaged_or_cut_message_is_repaired_by_the_next_try(
    rig: Rig, disturbance: Disturbance
) -> None:
    controller = rig.controller()
    package, link = controller.cap_domains[0], rig.last_link()
    for cap in (120_000, 90_000):
        link.disturb(disturbance)
        assert controller.set_cap(package, cap).enforced == cap
    rig.pass_slots(10)
    assert rig.powers_w(40).mean() <= 90.0
    client = controller.client
    for _ in range(3):  # and later responses belong to their commands
        assert client.request(CapGet(0)).cap == 90_000
        assert client.request(CapGet(1)).cap == 0


def test_a_command_cut_short_is_refused_and_changes_nothing(rig: Rig) -> None:
    controller = rig.controller()
    controller.set_cap(controller.cap_domains[0], 120_000)
    rig.last_link().disturb(Disturbance.COMMAND_TRUNCATED)
    with pytest.raises(ProtocolError):
        controller.client.request(CapSet(0, 0, 60_000))
    assert controller.cap(controller.cap_domains[0]) == 120_000


def test_silence_is_an_error_after_a_bounded_number_of_tries(rig: Rig) -> None:
    client = rig.client()
    client.request(CapGet(0))
    rig.last_link().disturb(*[Disturbance.COMMAND_LOST] * TRIES)
    begin_s = rig.now_s()
    with pytest.raises(LinkError, match=f"no usable answer to {TRIES} tries"):
        client.request(CapSet(0, 0, 100_000))
    assert rig.now_s() - begin_s < 2.0
    assert client.request(CapGet(0)).cap == 0


def test_a_higher_cap_than_requested_is_never_taken_for_done(rig: Rig) -> None:
    """The controller never saw the request, but responses arrive: only reading back shows it."""
    controller = rig.controller()
    package = controller.cap_domains[0]
    controller.set_cap(package, 150_000)
    link = rig.last_link()
    link.replace_next(CapSet(0, 0, 150_000))
    with pytest.raises(NotVerifiedError, match="the cap of 100 W was accepted, but the controller reports 150 W"):
        controller.set_cap(package, 100_000)


@pytest.mark.needs(Ability.LINE_NOISE)
def test_garbage_on_the_line_is_ignored(rig: Rig) -> None:
    client = rig.client()
    client.request(CapSet(0, 0, 100_000))
    for noise in (b"\xa5\x5a\x03" * 40, bytes(range(256)) * 4, b"\xa5" * 99):
        rig.send_noise(noise)
        assert client.request(CapGet(0)).cap == 100_000
    assert client.request(CapGet(1)).cap == 0
