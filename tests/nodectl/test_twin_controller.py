"""``nodectl twin controller``: the command's process, agents in shared memory, and a virtual machine's front end."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from firmware_bridge.controlpulp.posix import PROGRAM
from firmware_bridge.errors import LinkError
from firmware_bridge.scmi.client import Client
from firmware_bridge.scmi.messages.codec import decode, encode
from firmware_bridge.scmi.messages.header import Sender
from firmware_bridge.scmi.messages.message import Body
from firmware_bridge.scmi.messages.status import Status
from firmware_bridge.scmi.protocols.power_capping import (
    CapChanged,
    CapGet,
    CapNotify,
    CapSet,
    MeasurementsGet,
    PowercapFastChannel,
)
from firmware_bridge.scmi.transports.url import open_client
from firmware_bridge.scmi.virtio.vhost_user_messages import COMMANDS, EVENTS
from firmware_bridge.scmi.virtio.virtqueue import IS_ORDERED
from tests.scmi.patient import patient_client
from tests.scmi.virtual_machine import BUFFERS, GUEST, WRITE, VirtualMachine
from tests.waiting import PATIENCE_S, within

pytestmark = [
    pytest.mark.skipif(not IS_ORDERED, reason="virtio rings are served on x86-64 only"),
    pytest.mark.skipif(not PROGRAM.exists(), reason=f"{PROGRAM} is not built"),
]

COMMAND = (sys.executable, "-m", "nodectl.cli", "twin", "controller")
EVENT_AT = BUFFERS + 0x4000


class Served:
    """The command, running."""

    def __init__(self, *options: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="served-"))
        self.guest_path = self.folder / "vm.sock"
        self.process = subprocess.Popen(
            [*COMMAND, "--vhost", str(self.guest_path), *options, str(self.folder / "scmi")],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout
        self.told = [self.process.stdout.readline().strip() for _ in range(4)]

    def client(self, name: str) -> Client:
        return patient_client(f"scmi+shm:{self.folder}/scmi/{name}.sock")

    def controller_pid(self) -> int:
        pid = self.process.pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])

    def forget(self) -> None:
        """End the command in good order: a killed one's controller would still remove its sockets meanwhile."""
        if self.process.poll() is None:
            self.process.terminate()
        self.process.communicate(timeout=PATIENCE_S)
        shutil.rmtree(self.folder)


class Guest(VirtualMachine):
    """A virtual machine whose kernel sends one command at a time."""

    def __init__(self, served: Served) -> None:
        super().__init__(str(served.guest_path))
        self.set_up()
        self._token = 0

    def begin(self, body: Body) -> bytes:
        self._token += 1
        message = encode(body, self._token)
        self.command(message)
        return message

    def answer(self) -> bytes:
        found: list[tuple[int, int]] = []
        assert within(PATIENCE_S, lambda: bool(found) or self._look(found)), "no answer"
        head, length = found[0]
        at = BUFFERS + head * 0x400 + 0x200
        return bytes(self.memory[at : at + length])

    def _look(self, found: list[tuple[int, int]]) -> bool:
        entry = self.used(COMMANDS)
        if entry:
            found.append(entry)
        return bool(entry)

    def request(self, body: Body) -> Any:
        """The response; an ``int`` where it is a bare status of refusal."""
        message = self.begin(body)
        answer = self.answer()
        assert answer[:4] == message[:4]
        status = int.from_bytes(answer[4:8], "little", signed=True)
        return decode(answer, Sender.PLATFORM).body if status == 0 else status

    def offer_event_buffer(self) -> None:
        self.describe(EVENTS, 0, GUEST + EVENT_AT, 128, WRITE)
        self.offer(EVENTS, 0)

    def event(self) -> Body:
        entry: list[int] = []
        assert within(PATIENCE_S, lambda: bool(entry) or bool(entry.extend(self.used(EVENTS) or ()) or entry))
        return decode(bytes(self.memory[EVENT_AT : EVENT_AT + entry[1]]), Sender.PLATFORM).body


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    one = Served()
    yield one
    one.forget()


@pytest.fixture
def guest(served: Served) -> Iterator[Guest]:
    one = Guest(served)
    yield one
    one.close()


@pytest.fixture
def runtime(served: Served) -> Iterator[Client]:
    one = served.client("runtime")
    yield one
    one.close()


def test_it_prints_where_each_agent_connects(served: Served) -> None:
    assert served.told == [
        "EMULATED controlpulp, 36 cores with instructions of class 3",
        f"ospm: vhost-user {served.guest_path}",
        f"runtime: scmi+shm:{served.folder}/scmi/runtime.sock",
        f"bmc: scmi+shm:{served.folder}/scmi/bmc.sock",
    ]
    assert stat.S_IMODE(served.guest_path.stat().st_mode) == 0o600


def test_a_guest_and_a_client_see_each_others_caps_and_the_lowest_is_in_force(guest: Guest, runtime: Client) -> None:
    guest.offer_event_buffer()
    assert guest.request(CapNotify(0, 1)) is not None
    assert guest.request(CapSet(0, 0, 150_000)) is not None
    assert isinstance(guest.event(), CapChanged)
    assert runtime.request(CapGet(0)).cap == 150_000

    guest.offer_event_buffer()
    runtime.request(CapSet(0, 0, 110_000))
    assert guest.request(CapGet(0)).cap == 110_000
    changed = guest.event()
    assert isinstance(changed, CapChanged) and (changed.agent, changed.cap) == (2, 110_000)

    guest.request(CapSet(0, 0, 90_000))
    assert runtime.request(CapGet(0)).cap == 90_000
    assert within(PATIENCE_S, lambda: runtime.request(MeasurementsGet(0)).power < 95_000), "the chip follows"
    guest.request(CapSet(0, 0, 0))
    assert runtime.request(CapGet(0)).cap == 110_000, "a guest withdraws its own cap only"
    runtime.request(CapSet(0, 0, 0))


def test_a_guest_is_described_no_fast_channels(guest: Guest, runtime: Client) -> None:
    asked = PowercapFastChannel(0, 5)
    assert guest.request(asked) == Status.NOT_SUPPORTED
    assert runtime.request(asked) is not None


def test_the_next_guest_gets_its_own_answers_after_one_that_left_in_mid_command(served: Served) -> None:
    for cap in (140_000, 130_000, 120_000):
        leaving = Guest(served)
        leaving.begin(CapGet(1))
        leaving.close()
        guest = Guest(served)
        guest.request(CapSet(0, 0, cap))
        assert guest.request(CapGet(0)).cap == cap
        guest.close()
    last = Guest(served)
    last.request(CapSet(0, 0, 0))
    last.close()


def test_a_command_of_an_impossible_type_is_answered_too(guest: Guest) -> None:
    message = bytearray(encode(CapGet(0), 7))
    message[1] |= 3  # a notification, from an agent
    guest.command(bytes(message))
    answer = guest.answer()
    assert answer[:4] == message[:4] and len(answer) == 8 and answer[4:] != bytes(4)


def test_a_guests_mailbox_is_taken(served: Served) -> None:
    with pytest.raises(LinkError, match="is taken by another client"):
        open_client(f"scmi+shm:{served.folder}/scmi/ospm.sock")


def test_a_controller_that_stands_still_is_answered_for(served: Served, guest: Guest) -> None:
    pid = served.controller_pid()
    os.kill(pid, signal.SIGSTOP)
    try:
        assert guest.request(CapGet(0)) == Status.COMMS_ERROR
        assert guest.request(CapGet(0)) == Status.COMMS_ERROR
    finally:
        os.kill(pid, signal.SIGCONT)
    assert within(PATIENCE_S, lambda: not isinstance(guest.request(CapGet(0)), int))


# ---- its end ----


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_in_good_order_with_a_guest_and_leaves_no_socket(number: signal.Signals) -> None:
    one = Served()
    try:
        guest = Guest(one)
        guest.request(CapGet(0))
        one.process.send_signal(number)
        _, said = one.process.communicate(timeout=PATIENCE_S)
        assert one.process.returncode == 0, said
        assert guest.is_disconnected()
        guest.close()
        assert not list(one.folder.rglob("*.sock"))
        assert "ospm: the guest has connected" in said and "Traceback" not in said
        assert "slots; merged releases" in said
    finally:
        one.forget()


def test_a_killed_controller_ends_it_with_one_line() -> None:
    one = Served()
    try:
        os.kill(one.controller_pid(), signal.SIGKILL)
        _, said = one.process.communicate(timeout=PATIENCE_S)
        assert one.process.returncode == 1
        expected = "the controller has ended by itself, by signal 9; its agents' requests are gone with it"
        assert said == f"nodectl twin: {expected}\n"
        assert not one.guest_path.exists()
    finally:
        one.forget()


@pytest.mark.parametrize(
    ("options", "status", "expected"),
    [
        (["--vhost", "bmc=", "/tmp/x"], 2, "--vhost 'bmc=': the path of the socket is missing"),
        (["--vhost", "a", "--vhost", "ospm=b", "/tmp/x"], 2, "ospm has a socket already"),
        (["--load", "5", "/tmp/x"], 2, "5 is not in the range 0<=x<=4"),
        ([], 2, "Missing argument 'FOLDER'"),
        (["/nonexistent/folder"], 1, "/nonexistent/folder: No such file or directory"),
        (["--vhost", "/nonexistent/vm.sock", "/tmp/x"], 1, "/nonexistent/vm.sock: cannot listen there"),
        (["--vhost", "/dev/null", "/tmp/x"], 1, "/dev/null: cannot listen there: Address already in use"),
    ],
)
def test_what_is_wrong_is_one_line(
    options: list[str], status: int, expected: str, capfd: pytest.CaptureFixture[str]
) -> None:
    from nodectl.cli import main

    assert main(["twin", "controller", *options]) == status
    said = capfd.readouterr().err
    assert expected in said and said.count("\n") == 1
