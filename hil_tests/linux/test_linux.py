"""A real Linux 6.12 kernel reads and caps the controller: what it shows, and what the firmware then does.

Run by ``make hil-linux``; elsewhere skipped, since the kernel has to be built first.
"""

from __future__ import annotations

import errno
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from firmware_bridge.errors import named_status
from firmware_bridge.scmi.client import Client
from firmware_bridge.scmi.messages.codec import decode, encode
from firmware_bridge.scmi.messages.header import Sender
from firmware_bridge.scmi.messages.message import Body, Failed
from firmware_bridge.scmi.messages.status import Status
from firmware_bridge.scmi.protocols.base import DiscoverAgent, DiscoverAgentResponse
from firmware_bridge.scmi.protocols.performance import LevelChanged, LevelGet, LevelGetResponse, LevelSet, NotifyLevel
from firmware_bridge.scmi.protocols.power_capping import (
    FLAG_ASYNCHRONOUS,
    CapChanged,
    CapGet,
    CapNotify,
    CapSet,
    CapSetComplete,
    CapSetResponse,
    PowercapDomain,
    PowercapDomainResponse,
)
from firmware_bridge.scmi.transports.url import open_client
from hil_tests.linux.guest import POWERCAP, Guest, GuestRefusal
from hil_tests.linux.machines import user_mode
from hil_tests.linux.rig import LinuxRig

PACKAGE = f"{POWERCAP}/arm-scmi:0"
LIMIT = f"{PACKAGE}/constraint_0_power_limit_uw"
ENABLED = f"{PACKAGE}/enabled"
OTHER_AGENT = 2


@pytest.fixture(scope="module")
def linux(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LinuxRig]:
    missing = LinuxRig.missing()
    if missing:
        pytest.skip(missing)
    one = LinuxRig(tmp_path_factory.mktemp("linux"))
    try:
        one.start()
        yield one
    finally:
        one.stop()


@pytest.fixture
def guest(linux: LinuxRig) -> Iterator[Guest]:
    yield linux.guest
    linux.guest.write(ENABLED, 0)  # leaves no cap to the next scenario
    other(linux).request(CapSet(0, 0, 0))


def other(linux: LinuxRig) -> Client:
    return linux.client(OTHER_AGENT)


_tokens = iter(range(512, 1024))
"""Higher than the tokens that the kernel's drivers use in a short run."""


def exchange(guest: Guest, message: bytes) -> bytes:
    guest.send(message)
    while True:
        received = guest.receive(10.0)
        assert received, "no response"
        if received[0] == "response":
            return received[1]


def cap(guest: Guest, microwatts: int) -> None:
    """Sets a limit through sysfs. Linux sends the limit of a disabled zone only when the zone is enabled."""
    guest.write(LIMIT, microwatts)
    guest.write(ENABLED, 1)


def send(guest: Guest, body: Body) -> Body:
    """Sends a command from the guest's user space, through its kernel."""
    token = next(_tokens)
    answer = decode(exchange(guest, encode(body, token)), Sender.PLATFORM)
    assert answer.token == token
    return answer.body


def next_event(guest: Guest) -> Body:
    received = guest.receive(10.0)
    assert received, "no event"
    assert received[0] == "event"
    return decode(received[1], Sender.PLATFORM).body


def discard_events(guest: Guest) -> None:
    while guest.receive(0.05):
        pass


def test_linux_discovers_the_controller_over_virtio(guest: Guest) -> None:
    assert "Using scmi_virtio_transport" in guest.log()
    assert "'nodectl:controlpulp'" in guest.log()
    assert "WARNING" not in guest.log()


def test_the_power_domains_are_powercap_zones(guest: Guest) -> None:
    zones = [name for name in guest.names(POWERCAP) if ":" in name]
    assert zones == ["arm-scmi:0", *(f"arm-scmi:0:{domain}" for domain in range(4))]
    names = [guest.read(f"{POWERCAP}/{zone}/name") for zone in zones]
    assert names[0] == "package"
    assert len(set(names)) == 5
    limits = [int(guest.read(f"{PACKAGE}/constraint_0_{which}_power_uw")) for which in ("min", "max")]
    controller = send(guest, PowercapDomain(0))
    assert isinstance(controller, PowercapDomainResponse)
    assert limits == [controller.min_cap * 1000, controller.max_cap * 1000]


def test_a_limit_written_in_linux_is_enforced_by_the_firmware(linux: LinuxRig, guest: Guest) -> None:
    free_w = linux.powers_w(200).mean()
    cap_w = round(free_w * 0.6)
    cap(guest, cap_w * 1_000_000)
    assert guest.read(LIMIT) == str(cap_w * 1_000_000)
    assert other(linux).request(CapGet(0)).cap == cap_w * 1000
    linux.pass_slots(100)
    mean_w = linux.powers_w(400).mean()
    assert 0.9 * cap_w <= mean_w <= cap_w
    seen_w = int(guest.read(f"{PACKAGE}/power_uw")) * 1e-6
    assert seen_w == pytest.approx(cap_w, rel=0.1)
    guest.write(ENABLED, 0)
    linux.pass_slots(100)
    assert linux.powers_w(400).mean() > 1.1 * cap_w


def test_linux_sets_a_limit_asynchronously_and_waits_until_it_is_in_force(linux: LinuxRig, guest: Guest) -> None:
    """The kernel's driver sends only asynchronous requests, since the domains offer these."""
    cap(guest, 200_000_000)
    linux.passed.clear()
    guest.write(LIMIT, 160_000_000)
    passed = [decode(message, sender) for sender, message in list(linux.passed)]
    request = next(message for message in passed if message.body == CapSet(0, FLAG_ASYNCHRONOUS, 160_000))
    answers = [message.body for message in passed if message.token == request.token and message is not request]
    assert answers == [CapSetResponse(), CapSetComplete(0, 160_000)]
    assert guest.read(LIMIT) == "160000000"


def test_a_program_in_linux_gets_the_delayed_response_of_its_own_command(linux: LinuxRig, guest: Guest) -> None:
    controller = linux.controller()
    package = controller.cap_domains[0]
    assert controller.set_cap(package, 130_000, asynchronously=True).enforced == 130_000
    token = next(_tokens)
    first = decode(exchange(guest, encode(CapSet(0, FLAG_ASYNCHRONOUS, 120_000), token)), Sender.PLATFORM)
    received = guest.receive(10.0)
    assert received
    second = decode(received[1], Sender.PLATFORM)
    assert (first.token, first.body) == (token, CapSetResponse())
    assert (second.token, second.body) == (token, CapSetComplete(0, 120_000))


def test_hwmon_shows_the_sensors(linux: LinuxRig, guest: Guest) -> None:
    device = "/sys/class/hwmon/hwmon0"
    assert guest.read(f"{device}/name") == "scmi_sensors"
    labels = {guest.read(f"{device}/{name}"): name for name in guest.names(device) if name.endswith("_label")}
    hottest_c = float(linux.plant.temperature_c.max())
    seen_c = int(guest.read(f"{device}/{labels['temp-0'].replace('label', 'input')}")) * 1e-3
    assert 25.0 < seen_c <= hottest_c + 5.0
    first_uj = int(guest.read(f"{device}/energy1_input"))
    time.sleep(0.2)
    assert int(guest.read(f"{device}/energy1_input")) > first_uj


def test_a_raw_message_reaches_the_firmware_and_its_answer_the_program(linux: LinuxRig, guest: Guest) -> None:
    assert send(guest, DiscoverAgent(0xFFFFFFFF)) == DiscoverAgentResponse(1, "ospm")
    send(guest, LevelSet(2, 800_000))
    assert send(guest, LevelGet(2)) == LevelGetResponse(800_000)
    assert linux.wait_for(lambda: set(linux.freq_khz()[18:27]) == {800_000}, 5.0), "the chip runs so"
    send(guest, LevelSet(2, 0))


@pytest.mark.parametrize(
    ("message", "status"),
    [
        (encode(CapSet(0, 0, 100_000))[:8], Status.PROTOCOL_ERROR),
        (encode(CapSet(0, 0, 100_000)) + bytes(64), Status.PROTOCOL_ERROR),
        (encode(CapSet(99, 0, 100_000)), Status.NOT_FOUND),
        (encode(CapSet(0, 0, 1)), Status.OUT_OF_RANGE),
        ((0x77 << 10).to_bytes(4, "little"), Status.NOT_SUPPORTED),
    ],
    ids=["too short", "too long", "no such domain", "out of range", "no such protocol"],
)
def test_a_malformed_message_gets_its_status_and_changes_nothing(guest: Guest, message: bytes, status: Status) -> None:
    cap(guest, 150_000_000)
    answer = exchange(guest, message)
    assert named_status(int.from_bytes(answer[4:8], "little", signed=True)) == named_status(status)
    assert guest.read(LIMIT) == "150000000"


def test_a_limit_out_of_range_is_clamped_by_linux(guest: Guest) -> None:
    most_uw = int(guest.read(f"{PACKAGE}/constraint_0_max_power_uw"))
    cap(guest, most_uw + 50_000_000)
    assert guest.read(LIMIT) == str(most_uw)
    with pytest.raises(GuestRefusal) as refusal:
        guest.write(LIMIT, "much")
    assert refusal.value.errno == errno.EINVAL


def test_a_cap_of_another_agent_is_announced_and_seen(linux: LinuxRig, guest: Guest) -> None:
    send(guest, CapNotify(0, 1))
    cap(guest, 180_000_000)
    discard_events(guest)
    other(linux).request(CapSet(0, 0, 140_000))
    event = next_event(guest)
    assert isinstance(event, CapChanged)
    assert (event.agent, event.domain, event.cap) == (OTHER_AGENT, 0, 140_000)
    assert guest.read(LIMIT) == "140000000"  # the lowest counts
    send(guest, CapNotify(0, 0))


def test_a_level_change_is_announced(guest: Guest) -> None:
    send(guest, NotifyLevel(1, 1))
    discard_events(guest)
    send(guest, LevelSet(1, 800_000))
    event = next_event(guest)
    assert isinstance(event, LevelChanged)
    assert (event.agent, event.domain, event.level) == (1, 1, 800_000)
    send(guest, LevelSet(1, 0))
    send(guest, NotifyLevel(1, 0))


def test_a_round_trip_from_the_guests_program_takes_milliseconds(guest: Guest) -> None:
    times_s = []
    for _ in range(100):
        begin_s = time.monotonic()
        send(guest, CapGet(0))
        times_s.append(time.monotonic() - begin_s)
    times_s.sort()
    print(f"round trip through the guest: median {times_s[50] * 1e3:.2f} ms, p99 {times_s[98] * 1e3:.2f} ms")
    assert times_s[50] < 0.1
    assert not isinstance(send(guest, CapGet(0)), Failed)


# ---- the command that serves a controller to other programs ----


def test_linux_attaches_to_the_served_controller_next_to_another_agent(tmp_path: Path) -> None:
    """`nodectl twin controller`: the controller is a process, and the relay between it and the guest is another one."""
    if missing := LinuxRig.missing():
        pytest.skip(missing)
    socket, folder = tmp_path / "vm.sock", tmp_path / "scmi"
    command = (sys.executable, "-m", "nodectl.cli", "twin", "controller", "--vhost", str(socket), str(folder))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as served:
        assert served.stdout
        assert [served.stdout.readline() for _ in range(4)][3], "it has not started"
        log = tmp_path / "kernel.log"
        guest = Guest(user_mode(socket, log), log)
        try:
            runtime = open_client(f"scmi+shm:{folder}/runtime.sock")
            runtime.transport.reply_timeout_s = 10.0  # a loaded machine is not an error of the controller
            cap(guest, 120_000_000)
            assert runtime.request(CapGet(0)).cap == 120_000
            runtime.request(CapSet(0, 0, 100_000))
            assert guest.read(LIMIT) == "100000000"
            guest.write(ENABLED, 0)
            assert runtime.request(CapGet(0)).cap == 100_000
            runtime.close()
        finally:
            guest.stop()
            served.terminate()
    assert served.returncode == 0
    assert "WARNING" not in guest.log()
