"""SCMI over serial lines: real ptys, real sockets, and everything that goes wrong on a line."""

import os
import socket
import threading
import time

import pytest

from firmware_bridge.errors import LinkError, NoAnswerError, RequestError, WrongDeviceError
from firmware_bridge.scmi.controller import Controller
from firmware_bridge.scmi.protocols.performance import LevelGet
from firmware_bridge.scmi.protocols.power_capping import CapChanged, CapNotify
from firmware_bridge.scmi.transports.serial_line import SerialLine
from firmware_bridge.scmi.transports.url import open_client, open_transport
from tests.scmi.frame_device import COMMAND, FrameDevice, PtyDevice, frame
from tests.scmi.small_platform import SmallPlatform, u32


@pytest.fixture
def device():
    device = PtyDevice()
    yield device
    device.close()


@pytest.fixture
def client(device):
    client = open_client(f"scmi+serial://{device.path}?baud=921600")
    yield client
    client.close()


def flip(at: int):
    def hit(data: bytes) -> bytes:
        changed = bytearray(data)
        changed[at] ^= 0x40
        return bytes(changed)

    hit.__name__ = f"flip {at}"
    return hit


def lose(data: bytes) -> bytes:
    return b""


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def twice(data: bytes) -> bytes:
    return data + data


def in_garbage(data: bytes) -> bytes:
    return os.urandom(40) + b"\xa5\x5a\x03" + data + b"\xa5"


def test_a_controller_is_used_over_a_pty(client, device):
    controller = Controller(client)
    assert controller.set_cap(controller.cap_domains[0], 100_499).enforced == 100_000
    assert controller.sensors[0].name == "power"
    assert client.counts.timeouts == 0


@pytest.mark.parametrize(
    "fault", [flip(2), flip(4), flip(8), flip(-1), cut, twice, in_garbage], ids=lambda f: f.__name__
)
def test_a_reply_that_was_hit_is_repaired_without_executing_the_command_twice(client, device, fault):
    client.request(LevelGet(0))
    executed = device.device.executed
    device.device.faults.append(fault)
    assert client.request(LevelGet(0)).level == 400_000
    assert device.device.executed == executed + 1
    assert client.counts.timeouts == 0


@pytest.mark.parametrize(
    "fault", [flip(2), flip(5), flip(8), flip(-1), cut, twice, in_garbage], ids=lambda f: f.__name__
)
def test_a_command_that_was_hit_is_sent_again_and_executed_once(client, device, fault):
    client.request(LevelGet(0))
    executed = device.device.executed
    device.before.append(fault)
    assert client.request(LevelGet(0)).level == 400_000
    assert device.device.executed == executed + 1
    assert client.counts.timeouts == 0


@pytest.mark.parametrize("where", ["before", "after"])
def test_what_is_lost_without_a_trace_is_tried_again_after_the_timeout(client, device, where):
    (device.before if where == "before" else device.device.faults).append(lose)
    begin_s = time.monotonic()
    assert client.request(LevelGet(0)).level == 400_000
    assert 0.25 <= time.monotonic() - begin_s < 1.5
    assert client.counts.timeouts == 1


def test_garbage_on_the_line_does_not_stop_the_conversation(client, device):
    for i in range(20):
        device.say(os.urandom(100) + b"\xa5\x5a\x04")
        assert client.request(LevelGet(i % 2)).level == 400_000
    assert client.transport.diagnosis().split()[0].isdigit()


def test_notifications_come_between_replies(client, device):
    client.request(CapNotify(0, 1))
    device.platform.answer(2, u32(0x6005, 0, 0, 70_000))
    client.request(LevelGet(0))
    assert client.wait_for_events(1.0)[0].body == CapChanged(2, 0, 70_000, 1000)


def test_a_restarted_client_is_not_taken_for_a_repetition(device):
    for _ in range(2):
        client = open_client(f"scmi+serial://{device.path}")
        client.request(LevelGet(0))
        client.close()
    assert device.device.executed == 2


def test_a_cable_that_is_pulled_is_one_line_at_once(device):
    client = open_client(f"scmi+serial://{device.path}")
    device.unplug()
    begin_s = time.monotonic()
    with pytest.raises(LinkError, match="the line is lost"):
        client.request(LevelGet(0))
    assert time.monotonic() - begin_s < 2
    client.close()


def complaint(url: str, kind: type[LinkError]) -> str:
    begin_s = time.monotonic()
    with pytest.raises(kind) as raised:
        open_transport(url)
    assert time.monotonic() - begin_s < 2
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_a_silent_line_is_reported_within_two_seconds():
    ours, theirs = os.openpty()
    try:
        said = complaint(f"scmi+serial://{os.ttyname(theirs)}", NoAnswerError)
    finally:
        os.close(ours)
        os.close(theirs)
    assert "no answer to 5 greetings in 1.25 s: nothing was received (cable, power, or the wrong port?)" in said


def test_a_device_that_talks_something_else_is_reported_within_two_seconds(device):
    device.device.write = lambda data: os.write(device._ours, b"login: \xa5\x5a")
    said = complaint(f"scmi+serial://{device.path}", WrongDeviceError)
    assert "bytes were received, none of them a whole frame (wrong baud rate, or another device?)" in said


def test_a_line_that_returns_what_is_sent_is_recognised():
    assert "RX and TX are connected" in complaint("scmi+serial:loop://", WrongDeviceError)


def test_a_missing_device_and_a_closed_port_are_one_line():
    assert "cannot be opened" in complaint("scmi+serial:///dev/no-such-port", LinkError)
    assert "cannot be opened" in complaint("scmi+serial:socket://127.0.0.1:1", LinkError)
    assert "cannot be opened" in complaint("scmi+serial:nonsense://x", RequestError)


def test_a_port_that_another_program_uses_and_a_host_that_does_not_answer_are_one_line(device):
    holder = open_transport(f"scmi+serial://{device.path}")
    assert "another program uses it" in complaint(f"scmi+serial://{device.path}", LinkError)
    holder.close()
    with socket.socket() as mute:  # its queue is full, so a connection is neither taken nor refused
        mute.bind(("127.0.0.1", 0))
        mute.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(mute.getsockname())
        assert "timed out" in complaint(f"scmi+serial:socket://127.0.0.1:{mute.getsockname()[1]}", LinkError)
        for one in waiting:
            one.close()


def test_a_controller_is_used_over_a_socket():
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = server.accept()
        with connection:
            device = FrameDevice(SmallPlatform(), connection.sendall)
            while data := connection.recv(4096):
                device.feed(data)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    client = open_client(f"scmi+serial:socket://127.0.0.1:{server.getsockname()[1]}?baud=9600")
    assert Controller(client).identity.vendor == "tests"
    client.close()
    thread.join(60)
    server.close()


class ScriptedPort:
    """A port in virtual time: each read takes 5 ms unless bytes are waiting."""

    def __init__(self) -> None:
        self.now = 0.0
        self.written: list[bytes] = []
        self.incoming = b""

    def now_s(self) -> float:
        return self.now

    def sleep(self, duration_s: float) -> None:
        self.now += duration_s

    @property
    def in_waiting(self) -> int:
        return len(self.incoming)

    def read(self, size: int) -> bytes:
        if not self.incoming:
            self.now += 0.005
        data, self.incoming = self.incoming[:size], self.incoming[size:]
        return data

    def write(self, data: bytes) -> int:
        self.written.append(data)
        return len(data)

    def close(self) -> None:
        pass


def test_repairs_are_bounded_so_two_deaf_ends_do_not_shout_for_ever():
    port = ScriptedPort()
    line = SerialLine(port, "line", clock=port)
    line.send(b"\0\x40\0\0")
    port.incoming = frame(6, 1) * 50
    assert line.receive(0.25) is None
    assert [data[2] for data in port.written] == [COMMAND] * 4
    port.incoming = (frame(4, 1, b"x" * 8)[:-1] + b"\0") * 50
    assert line.receive(0.25) is None
    assert len(port.written) == 4 + 3
    assert port.now == pytest.approx(0.5, abs=0.02)


def test_a_reply_to_an_earlier_command_is_dropped():
    port = ScriptedPort()
    line = SerialLine(port, "line", clock=port)
    line.send(b"\0\x40\0\0")
    line.send(b"\0\x40\0\0")
    port.incoming = frame(4, 1, b"late") + frame(4, 2, b"mine") + frame(4, 2, b"mine")
    assert line.receive(0.25) == b"mine"
    assert line.receive(0.02) is None


def test_a_device_that_never_stops_talking_blocks_nobody():
    class Flood(ScriptedPort):
        in_waiting = 60

        def read(self, size: int) -> bytes:
            self.now += 0.0005
            return (b"\xa5\x5a\x09" * 20)[:size]

    port = Flood()
    line = SerialLine(port, "line", clock=port)
    line.send(b"\0\x40\0\0")
    begin_s = port.now
    assert line.receive(0.25) is None
    with pytest.raises(WrongDeviceError, match="none of them a whole frame"):
        line.greet()
    assert port.now - begin_s < 1.7


def test_a_line_that_was_cut_for_a_while_is_used_again_without_opening_it(client, device):
    device.before.extend([lose] * 3)
    with pytest.raises(NoAnswerError, match="3 tries of 250 ms"):
        client.request(LevelGet(0))
    assert client.request(LevelGet(0)).level == 400_000


def test_a_simulated_controller_has_all_timeouts_longer_by_its_slowdown(device):
    write = device.device.write

    def in_pieces(data: bytes) -> None:
        """Each pause is long enough to end a frame of a controller at full speed."""
        for at in range(0, len(data), 6):
            write(data[at : at + 6])
            time.sleep(0.06)

    device.device.write = in_pieces
    client = open_client(f"scmi+serial://{device.path}?baud=921600&slowdown=1000")
    client.request(LevelGet(1))
    assert client.counts.timeouts == 0
    assert client.transport.diagnosis() == "2 frames, 0 broken frames and 0 stray bytes came"
    client.close()
