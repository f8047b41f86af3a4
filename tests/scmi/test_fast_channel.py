"""FastChannels as a client uses them: the firmware in this process and as a process, and a platform with a doorbell."""

from __future__ import annotations

import struct

import pytest

from firmware_bridge.errors import DeniedError, OutOfRangeError
from firmware_bridge.scmi.client import Client
from firmware_bridge.scmi.controller import Controller
from firmware_bridge.scmi.messages.header import Protocol
from firmware_bridge.scmi.protocols.base import SetProtocolPermissions
from firmware_bridge.scmi.transports.in_process import InProcess
from firmware_bridge.scmi.transports.shared_words import SharedWords
from firmware_bridge.scmi.transports.url import open_client
from nodectl.cli import main
from tests.scmi.answering import Answering
from tests.scmi.frame_device import PtyDevice
from tests.scmi.small_platform import NOT_SUPPORTED, SIZES, SUCCESS, SmallPlatform, u32

host = pytest.importorskip(
    "firmware_bridge.controlpulp.host", reason="the firmware is not built here: run `make setup`"
)
PACKAGE = 0


class Counted:
    """A platform that counts the SETs that come as messages."""

    def __init__(self, platform) -> None:
        self._platform = platform
        self.sets = 0

    def send(self, channel: int, message: bytes) -> None:
        protocol, number = message[1] >> 2, message[0]
        self.sets += (protocol, number) in ((0x18, 0x5), (0x13, 0x7))
        self._platform.send(channel, message)

    def __getattr__(self, name: str):
        return getattr(self._platform, name)


def opened(firmware, channel: int = 0) -> tuple[Controller, Counted]:
    platform = Counted(firmware)
    words = SharedWords(firmware.fast_channel(channel).data, firmware.fast_channel_address(channel))
    return Controller(Client(InProcess(platform, channel, words))), platform


@pytest.fixture
def firmware():
    return host.HostController()


def test_a_cap_and_a_level_pass_without_a_message_and_are_seen_in_force(firmware):
    controller, platform = opened(firmware)
    package, domain = controller.cap_domains[PACKAGE], controller.speed_domains[2]
    cap = controller.set_cap(package, 100_090, fast=True)
    assert (cap.sent, cap.enforced, cap.is_fast) == (100_000, 100_000, True)
    level = controller.set_level(domain, 800_000, fast=True)
    assert (level.in_force, level.is_fast) == (800_000, True)
    assert platform.sets == 0
    assert controller.cap(package) == 100_000
    assert controller.level(domain) == 800_000


def test_a_value_that_a_message_has_replaced_can_be_written_by_its_channel_again(firmware):
    """The message has emptied the word, so that the controller sees the same value as a new one."""
    controller, platform = opened(firmware)
    package = controller.cap_domains[PACKAGE]
    assert controller.set_cap(package, 100_000, fast=True).is_fast
    controller.set_cap(package, 150_000)
    assert platform.sets == 1
    again = controller.set_cap(package, 100_000, fast=True)
    assert (again.enforced, again.is_fast, platform.sets) == (100_000, True, 1)


def test_another_agents_lower_cap_in_force_is_reported_by_a_message(firmware):
    """What is in force already proves nothing about the own request."""
    controller, _ = opened(firmware)
    other, _ = opened(firmware, channel=1)
    package = controller.cap_domains[PACKAGE]
    other.set_cap(package, 80_000)
    same = controller.set_cap(package, 80_000, fast=True)
    higher = controller.set_cap(package, 90_000, fast=True)
    assert [(one.enforced, one.is_fast) for one in (same, higher)] == [(80_000, False)] * 2
    assert other.disable_cap(package) == 90_000


def test_a_refused_write_becomes_the_messages_typed_error_and_what_was_in_force_stays(firmware):
    controller, _ = opened(firmware)
    package = controller.cap_domains[PACKAGE]
    controller.set_cap(package, 100_000, fast=True)
    for cap in (package.min_cap - 100, package.max_cap + 100):
        with pytest.raises(OutOfRangeError, match=r"power domain 0 \(package\) takes 20 W to 324 W"):
            controller.set_cap(package, cap, fast=True)
    boss, _ = opened(firmware, channel=2)
    boss.client.request(SetProtocolPermissions(1, 0, Protocol.POWERCAP, 0))
    with pytest.raises(DeniedError, match=r"power domain 0 \(package\); the earlier value stays in force"):
        controller.set_cap(package, 90_000, fast=True)
    assert boss.cap(package) == 100_000


def test_where_no_fast_channel_is_offered_or_reached_messages_are_sent(firmware):
    blind, _ = opened(host.HostController(host.HostOptions(message_only=frozenset({0}))))
    without = Controller(Client(InProcess(firmware)))
    for controller in (blind, without):
        outcome = controller.set_cap(controller.cap_domains[PACKAGE], 100_000, fast=True)
        assert (outcome.enforced, outcome.is_fast) == (100_000, False)


def test_a_serial_line_has_none(firmware):
    device = PtyDevice(Answering(firmware))
    controller = Controller(open_client(f"scmi+serial://{device.path}?baud=921600"))
    package = controller.cap_domains[PACKAGE]
    assert package.has_fast_channels, "the controller has them, this agent does not reach them"
    outcome = controller.set_cap(package, 100_000, fast=True)
    assert (outcome.enforced, outcome.is_fast) == (100_000, False)
    controller.close()
    device.close()


# ---- a platform with a doorbell ----

BASE = 0x8000_0000
REQUEST, IN_FORCE, DOORBELL = BASE + 16, BASE + 20, BASE + 24


class Ringing(SmallPlatform):
    """It looks at the request only when bit 3 of its doorbell is set, which it clears."""

    def __init__(self, width_bits: int = 1, **description: int) -> None:
        super().__init__()
        self.memory = bytearray(64)
        self.description = {"size": 4, "request": REQUEST, "doorbell": DOORBELL, "attributes": 1 | width_bits << 1}
        self.description.update(description)
        self.rung: list[bytes] = []
        self.memory[24:32] = b"\x81\x82\x83\x84\x85\x86\x87\x88"

    def _powercap(self, agent: int, words: tuple[int, ...]) -> tuple[int, bytes]:
        number, said = words[0], self.description
        if number == 0xC:
            if words[2] not in (0x4, 0x5):
                return NOT_SUPPORTED, b""
            place = (said["request"], said["doorbell"]) if words[2] == 0x5 else (IN_FORCE, 0)
            attributes = said["attributes"] if words[2] == 0x5 else 0
            return SUCCESS, u32(attributes, 1000, place[0], 0, said["size"], place[1], 0, 0x08, 0, 0xF1, 0)
        status, answer = super()._powercap(agent, words)
        if number == 0x3:
            answer = u32(struct.unpack_from("<I", answer)[0] | 1 << 22) + answer[4:]
        return status, answer

    def advance(self, duration_s: float) -> None:
        super().advance(duration_s)
        if self.memory[24] & 0x08:
            self.rung.append(bytes(self.memory[24:32]))
            self.memory[24] &= ~0x08
            self.caps[0, 0] = struct.unpack_from("<I", self.memory, REQUEST - BASE)[0]
            struct.pack_into("<I", self.memory, IN_FORCE - BASE, self.enforced(0))


@pytest.fixture(autouse=True)
def _describes_fast_channels(monkeypatch):
    monkeypatch.setitem(SIZES[0x18], 0xC, 2)


@pytest.mark.parametrize("width_bits", [0, 1, 2, 3])
def test_a_described_doorbell_is_rung_by_its_masks_and_in_its_width(width_bits):
    platform = Ringing(width_bits)
    controller = Controller(Client(InProcess(platform, 0, SharedWords(memoryview(platform.memory), BASE))))
    assert controller.set_cap(controller.cap_domains[PACKAGE], 120_000, fast=True).is_fast
    width = 1 << width_bits
    before = b"\x81\x82\x83\x84\x85\x86\x87\x88"
    rung = (int.from_bytes(before[:width], "little") & 0xF1 | 0x08).to_bytes(width, "little")
    assert platform.rung == [rung + before[width:]]
    began_s = platform.now_s
    assert controller.set_cap(controller.cap_domains[PACKAGE], 90_000, fast=True).is_fast
    assert platform.now_s - began_s <= 0.003
    assert (0x18, 0x5) not in platform.served


@pytest.mark.parametrize(
    "nonsense",
    [{"size": 8}, {"request": REQUEST + 2}, {"request": BASE + 64}, {"request": BASE - 4}, {"doorbell": BASE + 64}],
)
def test_a_description_that_leads_outside_the_memory_is_not_used(nonsense):
    platform = Ringing(**nonsense)
    controller = Controller(Client(InProcess(platform, 0, SharedWords(memoryview(platform.memory), BASE))))
    before = bytes(platform.memory)
    outcome = controller.set_cap(controller.cap_domains[PACKAGE], 120_000, fast=True)
    assert (outcome.enforced, outcome.is_fast) == (120_000, False)
    assert bytes(platform.memory) == before


# ---- by hand ----


def test_nodectl_says_which_way_a_request_went(capsys):
    assert main(["scmi", "cap", "scmi+inproc:", "package", "120.55W", "--fast"]) == 0
    said = capsys.readouterr().out
    assert said == "package: 120.55 W requested, 120.5 W sent, 120.5 W enforced (through a FastChannel)\n"
    assert main(["scmi", "set", "scmi+inproc:", "level:0=2400MHz", "limits:1=800MHz..2GHz", "--fast"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.rpartition("(")[2] for line in lines] == ["through a FastChannel)", "by message)"]
