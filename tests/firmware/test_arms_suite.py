"""What Arm's SCMI suite of 2021 expects of errors (`scmi_testlist.md` of ARM-software/scmi-tests: b004 to d025, m004 to
m015), asked by each agent. The suite knows SCMI 2, so the older versions are negotiated, which it does not do itself.
"""

from __future__ import annotations

import pytest

from firmware_bridge.controlpulp.host import HostController
from tests.firmware.scmi_words import (
    BASE,
    DENIED,
    INVALID_PARAMETERS,
    NOT_FOUND,
    NOT_SUPPORTED,
    OUT_OF_RANGE,
    PERFORMANCE,
    SENSOR,
    SUCCESS,
    ask,
)
from twin.pulp.plant import Plant

NO_ID, NO_SENSOR, BAD = 0x50, 0x500, 0xFE
HIGH, LOW = 3_660_000, 400_000

PERMISSIONS = (
    ("b011", BASE, 0x9, (NO_ID, 0, 1), NOT_FOUND),
    ("b011", BASE, 0x9, (1, 0, BAD), INVALID_PARAMETERS),
    ("b011", BASE, 0x9, (1, NO_ID, 0), NOT_FOUND),
    ("b013", BASE, 0xA, (NO_ID, 0, PERFORMANCE, 1), NOT_FOUND),
    ("b013", BASE, 0xA, (1, 0, BASE, 0), NOT_FOUND),
    ("b013", BASE, 0xA, (1, 0, PERFORMANCE, BAD), INVALID_PARAMETERS),
    ("b013", BASE, 0xA, (1, NO_ID, PERFORMANCE, 0), NOT_FOUND),
    ("b015", BASE, 0xB, (NO_ID, 0), NOT_FOUND),
)
"""Of these the suite takes for granted that the agent which runs it may set permissions."""

OTHERS = (
    *((test, protocol, message, (0x7F,) * (message == 2), NOT_FOUND)
      for test, protocol in (("b004", BASE), ("d004", PERFORMANCE), ("m004", SENSOR)) for message in (0x2, 0x7F)),
    ("b008", BASE, 0x6, (0xFF,), INVALID_PARAMETERS),
    ("b009", BASE, 0x7, (NO_ID,), NOT_FOUND),
    ("b009", BASE, 0x7, (0xFFFFFFFF,), SUCCESS),
    ("b010", BASE, 0x8, (1,), SUCCESS),
    ("b010", BASE, 0x8, (0,), SUCCESS),
    ("b010", BASE, 0x8, (BAD,), INVALID_PARAMETERS),
    ("d006", PERFORMANCE, 0x3, (NO_ID,), NOT_FOUND),
    ("d007", PERFORMANCE, 0x4, (0, 0), SUCCESS),
    ("d007", PERFORMANCE, 0x4, (0, 0xFF), INVALID_PARAMETERS),
    ("d008", PERFORMANCE, 0x4, (NO_ID, 0), NOT_FOUND),
    ("d010", PERFORMANCE, 0x5, (0, HIGH + 1, LOW), OUT_OF_RANGE),
    ("d010", PERFORMANCE, 0x5, (0, HIGH, LOW - 1), OUT_OF_RANGE),
    ("d010", PERFORMANCE, 0x5, (0, HIGH, 0), OUT_OF_RANGE),
    ("d010", PERFORMANCE, 0x5, (0, LOW, HIGH), INVALID_PARAMETERS),
    ("d011", PERFORMANCE, 0x5, (NO_ID, HIGH, LOW), NOT_FOUND),
    ("d012", PERFORMANCE, 0x6, (NO_ID,), NOT_FOUND),
    ("d014", PERFORMANCE, 0x7, (0, HIGH + 1), OUT_OF_RANGE),
    ("d014", PERFORMANCE, 0x7, (0, LOW - 1), OUT_OF_RANGE),
    ("d014", PERFORMANCE, 0x7, (0, 0), OUT_OF_RANGE),
    ("d015", PERFORMANCE, 0x7, (NO_ID, HIGH), NOT_FOUND),
    ("d016", PERFORMANCE, 0x8, (NO_ID,), NOT_FOUND),
    ("d017", PERFORMANCE, 0x9, (0, BAD), INVALID_PARAMETERS),
    ("d018", PERFORMANCE, 0x9, (NO_ID, 1), NOT_FOUND),
    ("d019", PERFORMANCE, 0xA, (0, BAD), INVALID_PARAMETERS),
    ("d020", PERFORMANCE, 0xA, (NO_ID, 1), NOT_FOUND),
    ("d021", PERFORMANCE, 0xB, (0, 0x7), SUCCESS),
    ("d022", PERFORMANCE, 0xB, (NO_ID, 0x7), NOT_FOUND),
    ("d023", PERFORMANCE, 0xB, (0, NO_ID), NOT_FOUND),
    ("d025", PERFORMANCE, 0xB, (0, 0x4), NOT_SUPPORTED),
    ("m005", SENSOR, 0x3, (0,), SUCCESS),
    ("m005", SENSOR, 0x3, (0xFF,), INVALID_PARAMETERS),
    ("m006", SENSOR, 0x4, (0, BAD), INVALID_PARAMETERS),
    ("m007", SENSOR, 0x4, (NO_SENSOR, 1), NOT_FOUND),
    ("m008", SENSOR, 0x5, (0, 0xFFFFFF00, 0, 0), INVALID_PARAMETERS),
    ("m009", SENSOR, 0x5, (NO_SENSOR, 0, 0, 0), NOT_FOUND),
    ("m010", SENSOR, 0x5, (0, 0, 0, 0), SUCCESS),
    ("m011", SENSOR, 0x6, (0, BAD), INVALID_PARAMETERS),
    ("m012", SENSOR, 0x6, (NO_SENSOR, 0), NOT_FOUND),
    ("m013", SENSOR, 0x6, (0, 0), SUCCESS),
    ("m015", SENSOR, 0x6, (0, 1), NOT_SUPPORTED),
)  # fmt: skip


def reserved_bits(host: HostController, channel: int) -> list[int]:
    """Bit 26 of a domain's attributes (d005, d026, d027), bit 30 of a sensor's (m005): reserved in SCMI 2."""
    domain = ask(host, PERFORMANCE, 0x3, 0, channel=channel)[1]
    sensor = ask(host, SENSOR, 0x3, 0, channel=channel)[1]
    return [domain[0] >> 26 & 1, sensor[2] >> 30 & 1]


@pytest.mark.parametrize("channel", [0, 1, 2], ids=["ospm", "runtime", "bmc"])
def test_errors_are_those_of_arms_suite_but_for_permissions_of_agents_that_may_set_none(channel: int) -> None:
    host, plant = HostController(), Plant()
    host.attach(plant)
    host.advance_slots(10)
    assert reserved_bits(host, channel) == [1, 1], "of newer versions"
    for protocol, older in ((PERFORMANCE, 0x20000), (SENSOR, 0x10000)):
        assert ask(host, protocol, 0x10, older, channel=channel)[0] == SUCCESS
    assert reserved_bits(host, channel) == [0, 0]
    for test, protocol, message, words, status in OTHERS:
        assert (test, words, ask(host, protocol, message, *words, channel=channel)[0]) == (test, words, status)
    for test, protocol, message, words, status in PERMISSIONS:
        expected = status if channel == 2 else DENIED
        assert (test, words, ask(host, protocol, message, *words, channel=channel)[0]) == (test, words, expected)
