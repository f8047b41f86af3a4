"""The controller's end of a serial line, in C: as docs/scmi.md has it, and as the host's end in Python has it."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firmware_bridge.controlpulp.host import HostController
from firmware_bridge.scmi.client import Client
from firmware_bridge.scmi.controller import Controller
from firmware_bridge.scmi.protocols.performance import LevelGet
from firmware_bridge.scmi.protocols.power_capping import CapChanged, CapNotify
from firmware_bridge.scmi.transports.frames import Broken, Frame, FrameDecoder, FrameKind, greeting, pack_frame
from firmware_bridge.scmi.transports.serial_line import POLL_S, SerialLine
from tests.scmi.frame_device import COMMAND, EVENT, HELLO, NAK, RESPONSE, WELCOME, frame

VERSION = struct.pack("<I", 0x4000)
"""PROTOCOL_VERSION of the base protocol."""


class Device:
    """A controller in virtual time and the frames that it sends."""

    def __init__(self) -> None:
        self.host = HostController()
        self.line = self.host.open_line(0)
        self.decoder = FrameDecoder()

    def say(self, data: bytes) -> list[tuple[int, int, bytes]]:
        """Bytes to the controller, and what it answers at once; a slow reader does not lose anything."""
        answered = b""
        for at in range(0, max(len(data), 1), 64):
            self.line.write(data[at : at + 64])
            while got := self.line.read(512):
                answered += got
                self.host.advance(0)
        found = self.decoder.feed(answered)
        assert all(isinstance(one, Frame) for one in found) and not self.decoder.is_within_frame
        return [(int(kind), sequence, payload) for kind, sequence, payload in found]

    def silence(self, seconds: float = 0.021) -> list[tuple[int, int, bytes]]:
        self.host.advance(seconds)
        return self.say(b"")

    @property
    def commands(self) -> int:
        return self.host.view().commands


@pytest.fixture
def device() -> Device:
    return Device()


def command(sequence: int, message: bytes = VERSION) -> bytes:
    return frame(COMMAND, sequence, message)


def test_a_greeting_is_welcomed(device: Device) -> None:
    assert device.say(frame(HELLO, 0, greeting())) == [(WELCOME, 0, greeting())]


def test_a_command_is_answered_once_and_a_repetition_gets_the_kept_answer(device: Device) -> None:
    first = device.say(command(1))
    assert first == [(RESPONSE, 1, VERSION + struct.pack("<iI", 0, 0x20001))]
    assert device.say(command(1)) == first
    assert device.say(frame(NAK, 1)) == first
    assert device.commands == 1
    assert device.say(frame(NAK, 2)) == []
    assert device.say(command(2))[0][1] == 2
    assert device.commands == 2


def test_after_a_greeting_the_same_number_is_a_new_command(device: Device) -> None:
    device.say(command(1))
    device.say(frame(HELLO, 0, greeting()))
    assert device.say(frame(NAK, 1)) == []
    device.say(command(1))
    assert device.commands == 2


def test_a_damaged_frame_is_refused_and_its_neighbours_are_not(device: Device) -> None:
    hit = bytearray(command(2))
    hit[7] ^= 4
    answers = device.say(bytes(hit) + command(3))
    assert [(kind, sequence) for kind, sequence, _ in answers] == [(NAK, 2), (RESPONSE, 3)]
    assert device.commands == 1


def test_a_second_command_before_the_answer_is_refused_until_the_first_is_answered(device: Device) -> None:
    answers = device.say(command(1) + command(2))
    assert [(kind, sequence) for kind, sequence, _ in answers] == [(NAK, 2), (RESPONSE, 1)]
    assert device.say(command(2))[0][:2] == (RESPONSE, 2)


def test_a_frame_that_is_cut_short_is_refused_after_20_ms_of_silence(device: Device) -> None:
    assert device.say(command(5)[:8]) == []
    assert device.silence(0.019) == []
    assert device.silence(0.002) == [(NAK, 5, b"")]
    assert device.say(command(5))[0][:2] == (RESPONSE, 5)


def test_bytes_without_a_sync_are_ignored_in_silence(device: Device) -> None:
    assert device.say(bytes(range(0xA5)) * 20) == []
    assert device.silence() == []
    assert device.say(command(1))[0][:2] == (RESPONSE, 1)


def test_a_message_of_the_wrong_size_gets_a_status_and_reaches_no_protocol(device: Device) -> None:
    assert device.say(command(1, VERSION + bytes(200))) == [(RESPONSE, 1, VERSION + struct.pack("<i", -10))]
    assert device.say(command(2, b"\0\x40")) == [(RESPONSE, 2, b"")]
    assert device.commands == 0
    assert device.say(command(3, VERSION + b"x")) == [(RESPONSE, 3, VERSION + struct.pack("<i", -10))]


def test_notifications_are_numbered_events(device: Device) -> None:
    Client(SerialLine(Port(device), "line", clock=Port(device))).request(CapNotify(0, 1))
    for milliwatts in (70_000, 80_000):
        device.host.send(2, struct.pack("<4I", 0x6005, 0, 0, milliwatts))
        device.host.advance(0)
        assert device.host.poll(2) is not None
    events = device.silence(0.002)
    assert [(kind, sequence) for kind, sequence, _ in events] == [(EVENT, 1), (EVENT, 2)]
    assert struct.unpack("<5I", events[0][2])[1:4] == (3, 0, 70_000)


class Port:
    """A port in virtual time."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def now_s(self) -> float:
        return self.device.host.now_ns * 1e-9

    def sleep(self, duration_s: float) -> None:
        self.device.host.advance(duration_s)

    in_waiting = 0

    def read(self, size: int) -> bytes:
        data = self.device.line.read(512)
        if not data:
            self.device.host.advance(POLL_S)
        return data

    def write(self, data: bytes) -> int:
        self.device.line.write(data)
        return len(data)

    def close(self) -> None:
        pass


class DamagingPort(Port):
    """Flips one bit in the n-th byte that passes, in either direction, every so many bytes."""

    def __init__(self, device: Device, period: int) -> None:
        super().__init__(device)
        self.period, self.passed = period, 0

    def _hit(self, data: bytes) -> bytes:
        changed = bytearray(data)
        for i in range(len(changed)):
            self.passed += 1
            if self.passed % self.period == 0:
                changed[i] ^= 1 << self.passed % 8
        return bytes(changed)

    def read(self, size: int) -> bytes:
        return self._hit(super().read(size))

    def write(self, data: bytes) -> int:
        return super().write(self._hit(data))


def test_the_hosts_end_speaks_with_the_controllers_end(device: Device) -> None:
    port = Port(device)
    line = SerialLine(port, "line", clock=port)
    line.greet()
    client = Client(line)
    controller = Controller(client)
    assert controller.identity.agent == 1
    client.request(CapNotify(0, 1))
    assert controller.set_cap(controller.cap_domains[0], 100_450).enforced == 100_400
    assert client.wait_for_events(0.1)[0].body == CapChanged(1, 0, 100_400, 500)


@pytest.mark.parametrize("period", [61, 97, 211])
def test_a_damaged_bit_now_and_then_costs_repetitions_and_no_command_is_carried_out_twice(period: int) -> None:
    device = Device()
    port = DamagingPort(device, period)
    client = Client(SerialLine(port, "line", clock=port))
    for _ in range(300):
        assert client.request(LevelGet(0)).level == 3_660_000
    assert device.commands <= client.counts.sent
    assert client.counts.timeouts <= 30, "nearly all damage is repaired within a command's time"


STRAY = st.binary(max_size=30) | st.just(b"\xa5\x5a") | st.just(b"\xa5\x5a\x03\x00\xff\x00") | st.just(b"\xa5")


@settings(max_examples=120)
@given(st.data())
def test_both_ends_find_the_same_frames_in_any_stream(data: st.DataObject) -> None:
    """The C decoder's findings show in its answers: a NAK for each broken frame, a WELCOME for each HELLO."""
    device, reference = Device(), FrameDecoder()
    expected: list[tuple[int, int]] = []
    for _ in range(data.draw(st.integers(1, 8))):
        kind = data.draw(st.sampled_from([FrameKind.HELLO, FrameKind.RESPONSE, FrameKind.WELCOME]))
        one = bytearray(pack_frame(kind, data.draw(st.integers(0, 255)), data.draw(st.binary(max_size=260 - 8))))
        if data.draw(st.booleans()):
            one[data.draw(st.integers(0, len(one) - 1))] ^= data.draw(st.integers(1, 255))
        piece = data.draw(STRAY) + bytes(one[: data.draw(st.integers(0, len(one)) | st.just(len(one)))])
        found = reference.feed(piece)
        answers = device.say(piece)
        if data.draw(st.booleans()):
            found += reference.end_of_burst()
            answers += device.silence()
        expected = [
            (NAK, item.sequence) if isinstance(item, Broken) else (WELCOME, 0)
            for item in found
            if isinstance(item, Broken) or item.kind is FrameKind.HELLO
        ]
        assert [(kind, sequence) for kind, sequence, _ in answers] == expected


def test_a_flood_of_bytes_takes_no_control_slot(device: Device) -> None:
    """What the line costs a core is counted in ``benchmarks/firmware_rv32.py``; here: every slot is still taken."""
    for _ in range(200):
        device.line.write(b"\xa5\x5a\x03\x01\x04\x00" * 40)
        device.host.advance(0.0005)
        device.line.read(4096)
    view = device.host.view()
    assert (view.overruns_fast, view.overruns_control) == (0, 0)
    assert view.slots == 201
