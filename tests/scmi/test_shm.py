"""Shared-memory mailboxes: real memfds, eventfds and sockets, with both ends in this process."""

import fcntl
import mmap
import os
import socket
import stat
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firmware_bridge.errors import DeniedError, LinkError, NoAnswerError, WrongDeviceError
from firmware_bridge.scmi.controller import Controller
from firmware_bridge.scmi.protocols.performance import LevelGet
from firmware_bridge.scmi.protocols.power_capping import CapChanged, CapNotify
from firmware_bridge.scmi.transports.shm_handshake import PACKET, SEALS, receive_invitation
from firmware_bridge.scmi.transports.smt import ERROR, FREE, HEADER, LENGTH, STATUS, Area, Geometry
from firmware_bridge.scmi.transports.url import open_client, open_transport
from tests.open_files import n_open
from tests.scmi.mailbox_device import MailboxDevice
from tests.scmi.mailbox_server import MailboxServer, create_descriptors
from tests.waiting import PATIENCE_S


@pytest.fixture
def path(tmp_path) -> str:
    return str(tmp_path / "scmi.sock")


@pytest.fixture
def device(path):
    device = MailboxDevice(path)
    yield device
    device.close()


@pytest.fixture
def client(device, path):
    client = open_client(f"scmi+shm:{path}")
    yield client
    client.close()


def test_a_controller_is_used_through_shared_memory(client):
    controller = Controller(client)
    assert controller.identity.agent == 1
    assert controller.set_cap(controller.cap_domains[0], 100_499).enforced == 100_000
    assert controller.set_cap(controller.cap_domains[0], 90_000, asynchronously=True).enforced == 90_000
    assert controller.sensors[0].value(controller.readings(controller.sensors[0])[0].value) == 120.0


def test_an_agent_is_its_connection_and_places_are_given_again(client, device, path):
    device.platform.denied.add((2, 0))
    second = Controller(open_client(f"scmi+shm:{path}"))
    assert second.identity.agent_name == "agent-2"
    with pytest.raises(DeniedError):
        second.set_cap(second.cap_domains[0], 90_000)
    with pytest.raises(LinkError, match="is taken by another client"):
        open_transport(f"scmi+shm:{path}")
    second.close()
    deadline_s = time.monotonic() + PATIENCE_S
    while len(device.server.agents) > 1 and time.monotonic() < deadline_s:
        time.sleep(0.005)
    again = Controller(open_client(f"scmi+shm:{path}"))
    assert again.identity.agent == 2
    again.close()


def test_notifications_come_through_their_own_area(client, device):
    client.request(CapNotify(0, 1))
    client.request(CapNotify(1, 1))
    controller = Controller(client)
    controller.set_cap(controller.cap_domains[0], 80_000)
    controller.set_cap(controller.cap_domains[1], 70_000)
    seen = [message.body for message in client.wait_for_events(1.0)]
    deadline_s = time.monotonic() + PATIENCE_S
    while len(seen) < 2 and time.monotonic() < deadline_s:
        seen += [message.body for message in client.wait_for_events(0.05)]
    assert seen == [CapChanged(1, 0, 80_000, 1000), CapChanged(1, 1, 70_000, 500)]


@pytest.mark.parametrize(
    "geometry",
    [
        Geometry(0x40, 0x400, 128, 0x9C, 0xA0),
        Geometry(0x200, 0x0, 132, 0xA4, 0xA0),
        Geometry(0x0, 0x1000, 132, 0x100, 0x180),
    ],
)
def test_registers_may_lie_elsewhere(path, geometry):
    device = MailboxDevice(path, geometry=geometry)
    client = open_client(f"scmi+shm:{path}")
    assert Controller(client).identity.vendor == "tests"
    client.close()
    device.close()


def test_doorbell_and_completion_registers_follow_the_exchange(path):
    server = MailboxServer(path)
    transport = _connected(path, server)
    transport.send(b"\0\x40\0\0")
    area = transport._a2p
    registers = memoryview(transport._memory).cast("I")
    assert (registers[0xA0 // 4], registers[0xA4 // 4], area.is_free) == (1, 0, False)
    assert server.wait(0) == [(1, b"\0\x40\0\0")]
    assert registers[0xA0 // 4] == 0
    server.answer(1, b"\0\x40\0\0" + bytes(8))
    assert (registers[0xA4 // 4], area.is_free) == (1, True)
    assert transport.receive(1.0) == b"\0\x40\0\0" + bytes(8)
    assert registers[0xA4 // 4] == 0
    registers.release()
    transport.close()
    server.close()


def _connected(path, server):
    opened = []
    thread = threading.Thread(target=lambda: opened.append(open_transport(f"scmi+shm:{path}")))
    thread.start()
    while thread.is_alive():
        server.wait(0.001)
    return opened[0]


def late(by_s: float):
    def answer(server, agent, message):
        time.sleep(by_s)
        server.answer(agent, message)

    return answer


def test_an_answer_that_comes_late_is_dropped_and_the_command_tried_again(client, device):
    device.faults.append(late(0.045))
    assert client.request(LevelGet(0)).level == 400_000
    assert client.counts.timeouts >= 1
    assert client.request(LevelGet(1)).level == 400_000


def test_a_mailbox_that_is_never_handed_back_is_reported_within_its_bound(client, device):
    device.faults.append(lambda server, agent, message: None)
    begin_s = time.monotonic()
    with pytest.raises(LinkError, match="has not handed the mailbox back within 60 ms: it hangs, or was reset"):
        client.request(LevelGet(0))
    assert time.monotonic() - begin_s < PATIENCE_S


def test_an_answer_marked_as_damaged_is_tried_again(client, device):
    device.faults.append(lambda server, agent, message: server.answer(agent, message + bytes(200)))
    assert client.request(LevelGet(0)).level == 400_000
    device.faults.extend([lambda server, agent, message: server.answer(agent, message + bytes(200))] * 3)
    with pytest.raises(NoAnswerError, match="4 messages were marked as damaged in the mailbox"):
        client.request(LevelGet(0))


def test_a_controller_that_ends_is_noticed_at_once(client, device):
    device.close()
    begin_s = time.monotonic()
    with pytest.raises(LinkError, match="the controller's process has ended"):
        client.request(LevelGet(0))
    assert time.monotonic() - begin_s < PATIENCE_S


def test_the_socket_is_private_and_a_left_over_one_is_replaced(path):
    left = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    left.bind(path)
    left.close()
    server = MailboxServer(path)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    with pytest.raises(LinkError, match="cannot listen there: Address already in use"):
        MailboxServer(path)
    server.close()
    assert not os.path.exists(path)


def test_a_file_that_is_no_socket_is_left_alone(path):
    with open(path, "w") as file:
        file.write("precious")
    with pytest.raises(LinkError, match="cannot listen there"):
        MailboxServer(path)
    assert os.path.exists(path)


def offered(path, packet: bytes, descriptors: list[int]):
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    listener.listen()
    client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    client.connect(path)
    connection, _ = listener.accept()
    if descriptors:
        socket.send_fds(connection, [packet], descriptors)
    else:
        connection.send(packet)
    client.settimeout(1.0)
    return listener, connection, client


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"magic": b"HTTP"}, "is not an SCMI mailbox"),
        ({"version": 9}, "handshake version 9 instead of 1"),
        ({"memory": 1 << 20}, "its memory has 4096 bytes instead of 1048576"),
        ({"geometry": (0, 0x100, 132, 0x9C, 0xA4)}, "doorbell, completion and payload overlap"),
        ({"geometry": (0, 0xA0, 132, 0xA0, 0xA4)}, "the two areas overlap"),
        ({"geometry": (0, 0xFF8, 132, 0xA0, 0xA4)}, "the areas end at 0x10a0, the memory at 0x1000"),
        ({"geometry": (0, 0x101, 132, 0xA0, 0xA4)}, "is not a multiple of 4"),
        ({"unsealed": True}, "not sealed against a change of size"),
        ({"descriptors": 4}, "is not an SCMI mailbox"),
    ],
)
def test_what_is_passed_is_checked_before_it_is_mapped(path, change, expected):
    given = create_descriptors(4096)
    memory = given.memory
    if change.get("unsealed"):
        memory = os.memfd_create("open", os.MFD_ALLOW_SEALING)
        os.ftruncate(memory, 4096)
    packet = PACKET.pack(
        change.get("magic", b"SCMI"), change.get("version", 1), 1, change.get("memory", 4096),
        *change.get("geometry", (0, 0x100, 132, 0xA0, 0xA4)),
    )  # fmt: skip
    passed = [memory, given.a2p_doorbell, given.a2p_completion, given.p2a_doorbell, given.p2a_completion]
    sockets = offered(path, packet, passed[: change.get("descriptors", 5)])
    open_before = n_open()
    with pytest.raises(WrongDeviceError) as raised:
        receive_invitation(sockets[2], "here")
    assert expected in str(raised.value)
    assert n_open() == open_before  # what was passed has been closed again
    for one in sockets:
        one.close()
    given.close()


def test_nothing_and_nobody_at_the_path_is_one_line(path):
    with pytest.raises(LinkError, match=r"cannot connect to .*: No such file or directory"):
        open_transport(f"scmi+shm:{path}")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    listener.listen()
    begin_s = time.monotonic()
    with pytest.raises(LinkError, match="no mailbox was passed in 1 s"):
        open_transport(f"scmi+shm:{path}")
    assert time.monotonic() - begin_s < PATIENCE_S
    listener.close()


def test_the_memory_cannot_change_its_size():
    given = create_descriptors(4096)
    assert fcntl.fcntl(given.memory, fcntl.F_GET_SEALS) & SEALS == SEALS
    for size in (0, 8192):
        with pytest.raises(PermissionError):
            os.ftruncate(given.memory, size)
    given.close()


@settings(max_examples=150)
@given(st.binary(min_size=0xA8, max_size=0xA8), st.integers(0, 2**32 - 1))
def test_nothing_that_lies_in_the_memory_crashes_either_end(content, length):
    memory = mmap.mmap(-1, 4096)
    view = memoryview(memory)
    view[: len(content)] = content
    view[LENGTH : LENGTH + 4] = length.to_bytes(4, "little")
    area = Area(view, 0, Geometry())
    message = area.fetch()
    assert (message is None) == (not 4 <= length <= 136)
    if message is not None:
        assert message == bytes(view[HEADER : HEADER + length])
    area.hand_back(1, damaged=True)
    assert int.from_bytes(view[STATUS : STATUS + 4], "little") == FREE | ERROR
    area.release()
    view.release()


def test_a_command_of_impossible_length_is_handed_back_as_damaged(path):
    server = MailboxServer(path)
    transport = _connected(path, server)
    transport.send(b"\0\x40\0\0")
    words = memoryview(transport._memory).cast("I")
    words[LENGTH // 4] = 3
    assert server.wait(0) == []
    assert words[STATUS // 4] == FREE | ERROR
    assert transport.receive(0.01) is None
    words.release()
    transport.close()
    server.close()


def test_an_event_is_dropped_while_the_last_one_is_unread(path):
    server = MailboxServer(path)
    transport = _connected(path, server)
    event = b"\0\x63\0\0" + bytes(16)
    assert [server.notify(1, event) for _ in range(3)] == [True, False, False]
    assert transport.receive(1.0) == event
    assert server.notify(1, event)
    assert not server.notify(2, event)  # nobody there
    transport.close()
    server.close()
