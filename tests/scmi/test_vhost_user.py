"""A virtual machine's SCMI device: what it does for a driver that keeps the rules, and with one that breaks them."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firmware_bridge.errors import LinkError
from firmware_bridge.scmi.messages.codec import encode
from firmware_bridge.scmi.protocols.base import DiscoverVendor
from firmware_bridge.scmi.protocols.common import ProtocolVersion
from firmware_bridge.scmi.virtio.guest_memory import GuestMemory
from firmware_bridge.scmi.virtio.vhost_user import VhostUserServer
from firmware_bridge.scmi.virtio.vhost_user_messages import (
    ADDRESSES,
    COMMANDS,
    EVENTS,
    FEATURES,
    NUMBER,
    OFFERED_PROTOCOL_FEATURES,
    P2A_CHANNELS,
    PROTOCOL_FEATURES,
    QUEUES,
    REGION,
    STATE,
    TABLE,
    VERSION_1,
    Request,
)
from firmware_bridge.scmi.virtio.virtqueue import IS_ORDERED
from tests.open_files import n_open
from tests.scmi.virtual_machine import (
    AVAILABLE,
    BUFFERS,
    GUEST,
    INDIRECT,
    MEMORY,
    NEXT,
    SET_UP_MESSAGES,
    SIZE,
    USED,
    USER,
    WRITE,
    VirtualMachine,
)

pytestmark = pytest.mark.skipif(not IS_ORDERED, reason="virtio rings are served on x86-64 only")

AGENT = 2
COMMAND = encode(ProtocolVersion(0x10), 5)
ANSWER = COMMAND + bytes(4) + (0x20001).to_bytes(4, "little")
EVENT = bytes(range(20))
NEEDS_REPLY = 1 | 8


@pytest.fixture
def server(tmp_path: Path) -> Iterator[VhostUserServer]:
    server = VhostUserServer({AGENT: str(tmp_path / "scmi.sock")})
    yield server
    server.close()


@pytest.fixture
def machine(server: VhostUserServer, tmp_path: Path) -> Iterator[VirtualMachine]:
    machine = VirtualMachine(str(tmp_path / "scmi.sock"))
    yield machine
    machine.close()


def turn(server: VhostUserServer, turns: int = 40) -> list[tuple[int, bytes]]:
    """Let the device do all there is to do; the commands that came."""
    return [command for _ in range(turns) for command in server.wait(0)]


def refused(server: VhostUserServer) -> str:
    reason = server.fault(AGENT)
    assert reason, "nothing was found wrong"
    return reason


# ---- a driver that keeps the rules ----


def test_only_the_owner_can_open_the_socket(server: VhostUserServer, tmp_path: Path) -> None:
    assert stat.S_IMODE((tmp_path / "scmi.sock").stat().st_mode) == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_is_turned_away_even_where_the_socket_lets_him_in() -> None:
    with tempfile.TemporaryDirectory() as folder:  # pytest's own folders are closed to others
        os.chmod(folder, 0o755)
        path = f"{folder}/scmi.sock"
        server = VhostUserServer({AGENT: path})
        os.chmod(path, 0o666)
        stranger = os.fork()
        if stranger == 0:
            try:
                os.setuid(65534)
                with socket.socket(socket.AF_UNIX) as connection:
                    connection.connect(path)
                    os._exit(0 if connection.recv(1) == b"" else 1)
            finally:
                os._exit(2)
        while (ended := os.waitpid(stranger, os.WNOHANG)) == (0, 0):
            server.wait(0.01)
        assert ended == (stranger, 0)
        assert server.fault(AGENT) == f"{path}: user 65534 may not connect"
        assert server.agents == []
        server.close()


def test_a_command_is_passed_on_and_its_answer_comes_back(server: VhostUserServer, machine: VirtualMachine) -> None:
    machine.set_up()
    machine.command(COMMAND)
    assert turn(server) == [(AGENT, COMMAND)]
    server.answer(AGENT, ANSWER)
    assert machine.response() == ANSWER
    assert machine.is_signalled(machine.calls[COMMANDS])
    assert server.fault(AGENT) is None


def test_the_socket_says_which_agent_it_is(tmp_path: Path) -> None:
    server = VhostUserServer({1: str(tmp_path / "1"), 3: str(tmp_path / "3")})
    machines = [VirtualMachine(str(tmp_path / name)) for name in ("1", "3")]
    for machine in machines:
        machine.set_up()
        machine.command(COMMAND)
    assert sorted(turn(server)) == [(1, COMMAND), (3, COMMAND)]
    assert server.agents == [1, 3]
    for machine in machines:
        machine.close()
    turn(server)
    assert server.agents == []
    server.close()


def test_commands_of_a_guest_are_served_one_after_the_other(server: VhostUserServer, machine: VirtualMachine) -> None:
    machine.set_up()
    first, second = encode(ProtocolVersion(0x10), 1), encode(ProtocolVersion(0x13), 2)
    machine.command(first, head=0)
    machine.command(second, head=2)
    assert turn(server) == [(AGENT, first)]
    server.answer(AGENT, ANSWER)
    assert turn(server) == [(AGENT, second)]


def test_events_go_into_the_buffers_that_the_driver_gave(server: VhostUserServer, machine: VirtualMachine) -> None:
    machine.set_up()
    turn(server)
    assert not server.notify(AGENT, EVENT), "there is no buffer yet"
    machine.describe(EVENTS, 3, GUEST + BUFFERS, 128, WRITE)
    machine.offer(EVENTS, 3)
    turn(server)
    assert server.notify(AGENT, EVENT)
    assert machine.used(EVENTS) == (3, len(EVENT))
    assert machine.memory[BUFFERS : BUFFERS + len(EVENT)] == EVENT
    assert machine.is_signalled(machine.calls[EVENTS])


def test_no_command_is_taken_before_all_queues_are_set_up(server: VhostUserServer, machine: VirtualMachine) -> None:
    machine.describe(EVENTS, 3, GUEST + BUFFERS, 128, WRITE)
    machine.set_up()
    machine.offer(EVENTS, 3)
    machine.command(COMMAND)
    commands: list[tuple[int, bytes]] = []
    while not commands:
        commands = server.wait(1.0)
    assert server.notify(AGENT, EVENT), "what the command caused"


def test_an_event_that_does_not_fit_is_lost_and_its_buffer_kept(
    server: VhostUserServer, machine: VirtualMachine
) -> None:
    machine.set_up()
    machine.describe(EVENTS, 0, GUEST + BUFFERS, 16, WRITE)
    machine.offer(EVENTS, 0)
    turn(server)
    assert not server.notify(AGENT, EVENT)
    assert server.notify(AGENT, EVENT[:16])


def test_without_the_feature_there_are_no_events(server: VhostUserServer, machine: VirtualMachine) -> None:
    machine.set_up(FEATURES & ~P2A_CHANNELS)
    machine.describe(EVENTS, 0, GUEST + BUFFERS, 128, WRITE)
    machine.offer(EVENTS, 0)
    turn(server)
    assert not server.notify(AGENT, EVENT)


def test_a_driver_that_wants_no_interrupt_gets_none(server: VhostUserServer, machine: VirtualMachine) -> None:
    machine.set_up()
    machine.put(AVAILABLE, struct.pack("<H", 1))
    machine.command(COMMAND)
    turn(server)
    server.answer(AGENT, ANSWER)
    assert machine.response() == ANSWER
    assert not machine.is_signalled(machine.calls[COMMANDS])


def test_the_front_end_learns_what_is_offered(server: VhostUserServer, machine: VirtualMachine) -> None:
    expected = {
        Request.GET_FEATURES: FEATURES,
        Request.GET_PROTOCOL_FEATURES: OFFERED_PROTOCOL_FEATURES,
        Request.GET_QUEUE_NUM: QUEUES,
    }
    for request, value in expected.items():
        machine.send(request)
        turn(server)
        assert machine.reply() == (request, NUMBER.pack(value))
    machine.send(Request.SET_FEATURES, NUMBER.pack(FEATURES), flags=NEEDS_REPLY)
    turn(server)
    assert machine.reply() == (Request.SET_FEATURES, NUMBER.pack(0))


def test_without_protocol_features_a_queue_runs_from_its_kick_on(
    server: VhostUserServer, machine: VirtualMachine
) -> None:
    machine.set_up(VERSION_1)
    machine.command(COMMAND)
    assert turn(server) == [(AGENT, COMMAND)]


def test_a_stopped_queue_goes_on_where_it_was_and_an_unanswered_command_is_sent_again(
    server: VhostUserServer, machine: VirtualMachine
) -> None:
    machine.set_up()
    machine.command(COMMAND)
    assert turn(server) == [(AGENT, COMMAND)]
    machine.send(Request.GET_VRING_BASE, STATE.pack(COMMANDS, 0))
    turn(server)
    assert machine.reply() == (Request.GET_VRING_BASE, STATE.pack(COMMANDS, 0))
    server.answer(AGENT, ANSWER)
    assert machine.used(COMMANDS) is None, "a stopped queue is not written"
    machine.send(Request.SET_VRING_KICK, NUMBER.pack(COMMANDS), [machine.kicks[COMMANDS]])
    assert turn(server) == [(AGENT, COMMAND)]
    server.answer(AGENT, ANSWER)
    assert machine.response() == ANSWER


def test_a_guest_that_has_left_misses_its_answer_and_the_next_one_is_served(
    server: VhostUserServer, tmp_path: Path
) -> None:
    for _ in range(3):
        machine = VirtualMachine(str(tmp_path / "scmi.sock"))
        machine.set_up()
        machine.command(COMMAND)
        assert turn(server) == [(AGENT, COMMAND)]
        machine.close()
        turn(server)
        server.answer(AGENT, ANSWER)
        assert not server.notify(AGENT, EVENT)


def test_nothing_is_left_open_when_a_guest_goes(server: VhostUserServer, tmp_path: Path) -> None:
    before = n_open()
    for _ in range(5):
        machine = VirtualMachine(str(tmp_path / "scmi.sock"))
        machine.set_up()
        machine.share_memory()
        machine.send(Request.SET_BACKEND_REQ_FD, b"", [machine.kicks[0]])
        machine.command(COMMAND)
        turn(server)
        machine.close()
        turn(server)
    assert n_open() == before


# ---- commands that are none ----


def test_a_command_that_is_too_long_gets_protocol_error(server: VhostUserServer, machine: VirtualMachine) -> None:
    machine.set_up()
    machine.command(COMMAND + bytes(200))
    assert turn(server) == []
    assert machine.response() == COMMAND[:4] + struct.pack("<i", -10)


@pytest.mark.parametrize(("message", "room"), [(b"abc", 136), (COMMAND, 7)], ids=["no header", "no room for a status"])
def test_what_cannot_be_answered_comes_back_empty(
    server: VhostUserServer, machine: VirtualMachine, message: bytes, room: int
) -> None:
    machine.set_up()
    machine.command(message, room)
    assert turn(server) == []
    assert machine.response() == b""


def test_an_answer_that_does_not_fit_becomes_a_status(server: VhostUserServer, machine: VirtualMachine) -> None:
    machine.set_up()
    machine.command(encode(DiscoverVendor(), 1), room=8)
    turn(server)
    server.answer(AGENT, encode(DiscoverVendor(), 1) + bytes(20))
    assert machine.response() == encode(DiscoverVendor(), 1) + struct.pack("<i", -10)


# ---- drivers that break the rules ----

AFTER = GUEST + MEMORY

HOSTILE = {
    "an address before memory": (GUEST - 1, 16, 0, 0),
    "an address behind memory": (AFTER, 16, 0, 0),
    "a buffer that leaves memory": (AFTER - 8, 16, 0, 0),
    "an address that wraps around": (2**64 - 8, 16, 0, 0),
    "a length of 4 GiB": (GUEST, 2**32 - 1, 0, 0),
    "an empty descriptor": (GUEST, 0, 0, 0),
    "an indirect descriptor": (GUEST + BUFFERS, 16, INDIRECT, 0),
    "a chain to itself": (GUEST, 16, NEXT, 0),
    "a chain out of the table": (GUEST, 16, NEXT, SIZE),
    "a chain far out of the table": (GUEST, 16, NEXT, 0xFFFF),
}


@pytest.mark.parametrize("descriptor", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_chain_that_breaks_a_rule_stops_its_queue_and_says_so(
    server: VhostUserServer, machine: VirtualMachine, descriptor: tuple[int, int, int, int]
) -> None:
    machine.set_up()
    machine.describe(COMMANDS, 0, *descriptor)
    machine.offer(COMMANDS, 0)
    assert turn(server) == []
    assert refused(server)
    assert machine.is_signalled(machine.errors[COMMANDS])
    machine.describe(COMMANDS, 0, GUEST + BUFFERS, 16, 0)
    machine.kick(COMMANDS)
    assert turn(server) == [], "a queue that has broken a rule stays stopped"
    machine.send(Request.GET_FEATURES)
    turn(server)
    assert machine.reply() == (Request.GET_FEATURES, NUMBER.pack(FEATURES)), "the connection stays"


def test_a_queue_that_was_stopped_for_a_fault_can_be_set_up_again(
    server: VhostUserServer, machine: VirtualMachine
) -> None:
    machine.set_up()
    machine.describe(COMMANDS, 0, GUEST, 0, 0)
    machine.offer(COMMANDS, 0)
    turn(server)
    machine.set_up_queue(COMMANDS)
    machine.command(COMMAND)
    assert turn(server) == [(AGENT, COMMAND)]


def test_a_loop_of_two_is_found(server: VhostUserServer, machine: VirtualMachine) -> None:
    machine.set_up()
    machine.describe(COMMANDS, 0, GUEST, 16, NEXT, 1)
    machine.describe(COMMANDS, 1, GUEST, 16, NEXT, 0)
    machine.offer(COMMANDS, 0)
    assert turn(server) == []
    assert "is a loop" in refused(server)


def test_what_is_read_comes_before_what_is_written(server: VhostUserServer, machine: VirtualMachine) -> None:
    machine.set_up()
    machine.describe(COMMANDS, 0, GUEST + BUFFERS, 64, NEXT | WRITE, 1)
    machine.describe(COMMANDS, 1, GUEST + BUFFERS + 64, 64, 0)
    machine.offer(COMMANDS, 0)
    assert turn(server) == []
    assert "follows" in refused(server)


@pytest.mark.parametrize("ahead", [SIZE + 1, 0x8000, 0xFFFF])
def test_an_index_that_runs_ahead_of_the_ring_is_refused(
    server: VhostUserServer, machine: VirtualMachine, ahead: int
) -> None:
    machine.set_up()
    machine.put(AVAILABLE + 2, struct.pack("<H", ahead))
    machine.kick(COMMANDS)
    assert turn(server) == []
    assert "waiting in a queue" in refused(server)


def test_a_head_out_of_the_table_is_refused(server: VhostUserServer, machine: VirtualMachine) -> None:
    machine.set_up()
    machine.offer(COMMANDS, SIZE)
    assert turn(server) == []
    assert "descriptor 8" in refused(server)


def test_a_chain_changed_after_it_was_offered_does_no_harm(server: VhostUserServer, machine: VirtualMachine) -> None:
    machine.set_up()
    machine.command(COMMAND)
    assert turn(server) == [(AGENT, COMMAND)]
    machine.describe(COMMANDS, 1, AFTER, 2**31, WRITE)
    machine.put(USED + 2, b"\xff\xff")
    server.answer(AGENT, ANSWER)
    assert machine.memory[BUFFERS + 0x200 : BUFFERS + 0x200 + len(ANSWER)] == ANSWER


def test_memory_that_is_taken_away_under_a_command_is_found(server: VhostUserServer, machine: VirtualMachine) -> None:
    machine.set_up()
    machine.command(COMMAND)
    assert turn(server) == [(AGENT, COMMAND)]
    elsewhere = REGION.pack(GUEST + 0x1_0000_0000, MEMORY, USER + 0x1_0000_0000, 0)
    machine.send(Request.SET_MEM_TABLE, TABLE.pack(1, 0) + elsewhere, [machine.file])
    assert turn(server) == []
    server.answer(AGENT, ANSWER)
    assert "not in the memory table" in refused(server)
    assert machine.used(COMMANDS) is None


# ---- front ends that break the rules ----


def region(guest: int = GUEST, size: int = MEMORY, user: int = USER, offset: int = 0) -> bytes:
    return REGION.pack(guest, size, user, offset)


WRONG_TABLES = {
    "no region": (TABLE.pack(0, 0), 0),
    "too many regions": (TABLE.pack(9, 0) + region() * 8, 8),
    "fewer bytes than regions": (TABLE.pack(2, 0) + region(), 2),
    "a missing descriptor": (TABLE.pack(1, 0) + region(), 0),
    "a descriptor too many": (TABLE.pack(1, 0) + region(), 2),
    "an empty region": (TABLE.pack(1, 0) + region(size=0), 1),
    "a region longer than its file": (TABLE.pack(1, 0) + region(size=MEMORY + 1), 1),
    "an offset behind its file": (TABLE.pack(1, 0) + region(offset=2**63), 1),
    "a region that wraps around": (TABLE.pack(1, 0) + region(guest=2**64 - 4096), 1),
    "overlapping regions": (TABLE.pack(2, 0) + region() + region(guest=GUEST + 4096), 2),
    "no table": (b"\x01\x00", 0),
}


@pytest.mark.parametrize(("payload", "files"), WRONG_TABLES.values(), ids=WRONG_TABLES.keys())
def test_a_memory_table_that_cannot_be_is_refused_and_the_last_one_kept(
    server: VhostUserServer, machine: VirtualMachine, payload: bytes, files: int
) -> None:
    machine.set_up()
    turn(server)
    machine.send(Request.SET_MEM_TABLE, payload, [machine.file] * files, NEEDS_REPLY)
    turn(server)
    assert machine.reply() == (Request.SET_MEM_TABLE, NUMBER.pack(1))
    assert refused(server)
    machine.command(COMMAND)
    assert turn(server) == [(AGENT, COMMAND)]


WRONG_MESSAGES = {
    "unknown": (77, b"", 0),
    "memory log": (6, bytes(16), 0),
    "features not offered": (Request.SET_FEATURES, NUMBER.pack(FEATURES | 1 << 28), 0),
    "protocol features not offered": (Request.SET_PROTOCOL_FEATURES, NUMBER.pack(1 << 9), 0),
    "a short number": (Request.SET_FEATURES, bytes(7), 0),
    "a third queue": (Request.SET_VRING_NUM, STATE.pack(2, 8), 0),
    "a kick to be polled": (Request.SET_VRING_KICK, NUMBER.pack(0x100), 0),
    "a kick without its descriptor": (Request.SET_VRING_KICK, NUMBER.pack(0), 0),
    "a kick through a file": (Request.SET_VRING_KICK, NUMBER.pack(0), 1),
    "a call of no queue": (Request.SET_VRING_CALL, NUMBER.pack(2**40), 0),
}


@pytest.mark.parametrize(("request_", "payload", "files"), WRONG_MESSAGES.values(), ids=WRONG_MESSAGES.keys())
@pytest.mark.parametrize("wants_reply", [True, False], ids=["answered", "disconnected"])
def test_a_request_that_breaks_a_rule_is_answered_so_or_ends_the_connection(
    server: VhostUserServer, machine: VirtualMachine, request_: int, payload: bytes, files: int, wants_reply: bool
) -> None:
    machine.send(request_, payload, [machine.file] * files, NEEDS_REPLY if wants_reply else 1)
    turn(server)
    assert refused(server)
    if wants_reply:
        assert machine.reply() == (request_, NUMBER.pack(1))
    else:
        assert machine.is_disconnected()
        assert server.agents == []


@pytest.mark.parametrize(
    ("size", "rings"),
    [
        (6, (0, 0x400, 0x200)),
        (0, (0, 0x400, 0x200)),
        (2048, (0, 0x400, 0x200)),
        (SIZE, (8, 0x400, 0x200)),
        (SIZE, (0, 0x402, 0x200)),
        (SIZE, (MEMORY, 0x400, 0x200)),
        (SIZE, (0, MEMORY - 4, 0x200)),
        (SIZE, (0, 0x400, MEMORY - 4)),
        (SIZE, (-(2**44), 0x400, 0x200)),
    ],
)
def test_rings_that_cannot_be_are_never_started(
    server: VhostUserServer, machine: VirtualMachine, size: int, rings: tuple[int, int, int]
) -> None:
    machine.set_up()
    turn(server)
    machine.send(Request.SET_VRING_ENABLE, STATE.pack(COMMANDS, 0))
    machine.send(Request.SET_VRING_NUM, STATE.pack(COMMANDS, size))
    machine.send(Request.SET_VRING_ADDR, ADDRESSES.pack(COMMANDS, 0, *((USER + ring) % 2**64 for ring in rings), 0))
    machine.send(Request.SET_VRING_ENABLE, STATE.pack(COMMANDS, 1))
    turn(server)
    machine.command(COMMAND)
    assert turn(server) == []
    assert refused(server)


def test_a_running_queue_cannot_be_moved(server: VhostUserServer, machine: VirtualMachine) -> None:
    machine.set_up()
    machine.command(COMMAND)
    turn(server)
    machine.send(Request.SET_VRING_NUM, STATE.pack(COMMANDS, 4), flags=NEEDS_REPLY)
    turn(server)
    assert machine.reply() == (Request.SET_VRING_NUM, NUMBER.pack(1))
    server.answer(AGENT, ANSWER)
    assert machine.response() == ANSWER


def test_a_legacy_driver_is_not_served(server: VhostUserServer, machine: VirtualMachine) -> None:
    machine.set_up(PROTOCOL_FEATURES)
    machine.command(COMMAND)
    assert turn(server) == []


@pytest.mark.parametrize(
    "head",
    [struct.pack("<III", 1, 2, 0), struct.pack("<III", 1, 5, 0), struct.pack("<III", 5, 1, 2**32 - 1)],
    ids=["another version", "a reply", "4 GiB"],
)
def test_a_header_that_is_none_ends_the_connection(
    server: VhostUserServer, machine: VirtualMachine, head: bytes
) -> None:
    machine.connection.sendall(head)
    turn(server)
    assert machine.is_disconnected()


def test_half_a_message_delays_nothing_and_is_taken_when_it_is_whole(
    server: VhostUserServer, machine: VirtualMachine
) -> None:
    for byte in struct.pack("<III", Request.GET_QUEUE_NUM, 1, 0):
        machine.connection.sendall(bytes([byte]))
        turn(server, 2)
    assert machine.reply() == (Request.GET_QUEUE_NUM, NUMBER.pack(QUEUES))


def test_more_descriptors_than_a_message_can_have_end_the_connection(
    server: VhostUserServer, machine: VirtualMachine
) -> None:
    before = n_open()
    socket.send_fds(machine.connection, [struct.pack("<III", 1, 1, 8)], [machine.file] * 20)
    turn(server)
    assert machine.is_disconnected()
    assert n_open() == before


def test_a_kick_whose_other_end_is_closed_is_not_waited_for_for_ever(
    server: VhostUserServer, machine: VirtualMachine
) -> None:
    machine.set_up()
    reading, writing = os.pipe()
    machine.send(Request.SET_VRING_KICK, NUMBER.pack(COMMANDS), [reading])
    os.close(writing)
    os.close(reading)
    turn(server)
    machine.command(COMMAND)
    assert turn(server) == []


def test_a_place_where_somebody_listens_is_not_taken_over(server: VhostUserServer, tmp_path: Path) -> None:
    with pytest.raises(LinkError, match="cannot listen there"):
        VhostUserServer({1: str(tmp_path / "scmi.sock")})


def test_each_of_several_front_ends_that_left_unserved_is_noticed(server: VhostUserServer, tmp_path: Path) -> None:
    for _ in range(3):
        machine = VirtualMachine(str(tmp_path / "scmi.sock"))
        machine.set_up()
        machine.close()
    turn(server, 3 * (1 + SET_UP_MESSAGES + 1))  # a connection, a message or an end at a turn
    assert server.agents == []
    assert "has gone" in refused(server)


@contextlib.contextmanager
def attached() -> Iterator[tuple[VhostUserServer, VirtualMachine]]:
    """One device and one front end for one example; what an example leaves behind is no concern of the next."""
    with tempfile.TemporaryDirectory() as folder:
        server = VhostUserServer({AGENT: f"{folder}/scmi.sock"})
        machine = VirtualMachine(f"{folder}/scmi.sock")
        try:
            yield server, machine
        finally:
            server.close()


def assert_its_end_is_noticed(server: VhostUserServer, machine: VirtualMachine) -> None:
    machine.close()
    turn(server, 3)
    assert server.agents == []


@settings(max_examples=100)
@given(
    rings=st.binary(min_size=0x800, max_size=0x800),
    inside=st.lists(st.none() | st.integers(0, 300), min_size=SIZE, max_size=SIZE),
    waiting=st.integers(0, SIZE),
)
def test_whatever_lies_in_the_rings_the_device_lives(rings: bytes, inside: list[int | None], waiting: int) -> None:
    with attached() as (server, machine):
        machine.set_up()
        machine.put(0, rings)
        for index, length in enumerate(inside):  # most random addresses are outside; let some be inside
            if length is not None:
                machine.put(16 * index, struct.pack("<QI", GUEST + BUFFERS, length))
        machine.put(AVAILABLE + 2, struct.pack("<H", waiting))
        machine.kick(COMMANDS)
        for agent, message in turn(server, 60):
            assert 4 <= len(message) <= 136
            server.answer(agent, ANSWER)
        assert_its_end_is_noticed(server, machine)


@settings(max_examples=100)
@given(
    messages=st.lists(
        st.tuples(st.integers(0, 40), st.sampled_from([1, 9]), st.binary(max_size=80), st.integers(0, 2)), max_size=12
    )
)
def test_whatever_a_front_end_says_the_device_lives(messages: list[tuple[int, int, bytes, int]]) -> None:
    with attached() as (server, machine):
        try:
            for request, flags, payload, files in messages:
                machine.send(request, payload, [machine.kicks[0]] * files, flags)
        except (BrokenPipeError, ConnectionResetError):
            pass
        turn(server, 30)
        assert_its_end_is_noticed(server, machine)


# ---- memory that the platform shares with a guest ----


def test_the_platform_is_given_the_guests_memory_and_loses_it_before_it_goes(tmp_path: Path) -> None:
    seen: list[str] = []
    view: list[memoryview] = []

    def on_memory(agent: int, memory: GuestMemory | None) -> None:
        assert agent == AGENT
        while view:
            view.pop().release()  # else unmapping it raises
        if memory:
            view.append(memory.at_guest(GUEST + 0x100, 4))
        seen.append("there" if memory else "gone")

    server = VhostUserServer({AGENT: str(tmp_path / "scmi.sock")}, on_memory)
    machine = VirtualMachine(str(tmp_path / "scmi.sock"))
    machine.set_up()
    turn(server)
    machine.put(0x100, b"word")
    assert (seen, bytes(view[0])) == (["there"], b"word")
    view[0][:] = b"back"
    assert machine.memory[0x100:0x104] == b"back"
    machine.share_memory()
    turn(server)
    assert seen == ["there", "gone", "there"]
    machine.close()
    turn(server)
    assert seen == ["there", "gone", "there", "gone"]
    server.close()
    assert seen[-2:] == ["there", "gone"]
