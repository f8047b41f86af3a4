"""The client and the firmware, written apart from the same standard, understand each other; in virtual time."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firmware_bridge.errors import DeniedError, MessageError, NotFoundError, OutOfRangeError
from firmware_bridge.scmi.client import Client
from firmware_bridge.scmi.controller import Controller
from firmware_bridge.scmi.messages.codec import LATEST, SPOKEN, decode, encode
from firmware_bridge.scmi.messages.header import Kind, Protocol, Sender
from firmware_bridge.scmi.messages.message import WIRES, Failed
from firmware_bridge.scmi.protocols.base import SetProtocolPermissions
from firmware_bridge.scmi.protocols.performance import LevelChanged, NotifyLevel
from firmware_bridge.scmi.protocols.power_capping import CapChanged, CapGet, CapNotify
from firmware_bridge.scmi.protocols.telemetry import LeaseGet, LeaseSet, TelemetryReasons, TelemetryStatus
from firmware_bridge.scmi.transports.in_process import InProcess
from firmware_bridge.scmi.transports.url import open_client
from tests.scmi.answering import Answering
from tests.scmi.frame_device import PtyDevice
from tests.scmi.mailbox_device import MailboxDevice
from tests.scmi.messages import fixed

host = pytest.importorskip(
    "firmware_bridge.controlpulp.host", reason="the firmware is not built here: run `make setup`"
)

COMMANDS = [wire for wire in WIRES.values() if wire.kind is Kind.COMMAND]


@pytest.fixture
def firmware():
    return host.HostController()


@pytest.fixture
def controller(firmware) -> Controller:
    return Controller(Client(InProcess(firmware)))


def test_scmi_inproc_opens_the_firmware_in_this_process():
    client = open_client("scmi+inproc:")
    assert Controller(client).identity.sub_vendor == "controlpulp"
    client.close()


def test_the_firmware_is_discovered_whole(controller):
    assert controller.identity.versions == {
        0x10: 0x20001, 0x12: 0x20001, 0x13: 0x40000, 0x14: 0x30000, 0x15: 0x30001, 0x18: 0x20000, 0x80: 0x10000,
    }  # fmt: skip
    assert [domain.parent for domain in controller.cap_domains] == [0xFFFFFFFF, 0, 0, 0, 0]
    assert [len(domain.levels) for domain in controller.speed_domains] == [17] * 4
    assert controller.speed_domains[0].levels[0].khz == 400_000
    assert controller.speed_domains[0].levels[-1].khz == 3_660_000
    assert {sensor.unit for sensor in controller.sensors} == {"C", "W", "J", "Hz", "V"}


@pytest.mark.parametrize("protocol", list(Protocol))
def test_each_protocol_is_negotiable_down_to_the_older_version(controller, protocol):
    older = SPOKEN[protocol][0]
    assert controller.client.negotiate(protocol, older) == older
    assert [len(domain.levels) for domain in controller.speed_domains] == [17] * 4
    assert len(controller.cap_domains) == 5
    assert controller.sensors


def test_a_cap_is_rounded_down_enforced_refused_and_disabled(controller):
    package = controller.cap_domains[0]
    assert controller.set_cap(package, package.rounded_down(100.09)).enforced == 100_000
    for cap in (package.min_cap - 100, package.max_cap + 100):
        with pytest.raises(OutOfRangeError, match=r"power domain 0 \(package\) takes 20 W to 324 W"):
            controller.set_cap(package, cap)
    assert controller.cap(package) == 100_000
    assert controller.set_cap(package, 90_000, asynchronously=True).enforced == 90_000
    assert controller.disable_cap(package) == 0


def test_of_two_agents_the_lower_cap_and_the_higher_level_are_in_force(firmware, controller):
    other = Controller(Client(InProcess(firmware, channel=1)))
    package, domain = controller.cap_domains[0], controller.speed_domains[0]
    assert (controller.identity.agent, other.identity.agent) == (1, 2)
    controller.client.request(CapNotify(0, 1))
    controller.client.request(NotifyLevel(0, 1))
    assert other.set_cap(package, 80_000).enforced == 80_000
    assert controller.set_cap(package, 100_000).enforced == 80_000
    assert other.set_level(domain, 2_000_000).is_as_requested
    assert controller.set_level(domain, 800_000).in_force == 2_000_000
    seen = [message.body for message in controller.client.events()]
    seen += [message.body for message in controller.client.wait_for_events(0.005)]
    assert CapChanged(2, 0, 80_000, 500) in seen
    assert LevelChanged(2, 0, 2_000_000) in seen


def test_telemetry_and_leases_are_spoken(controller):
    controller.set_cap(controller.cap_domains[0], 100_000)
    ask = controller.client.request
    controller.client.transport.clock.sleep(0.01)
    assert ask(TelemetryStatus()).slots >= 20
    assert len(ask(TelemetryReasons(0)).reasons) == 36
    assert len(ask(TelemetryReasons(33)).reasons) == 3
    ask(LeaseSet(100, 50_000))
    lease = ask(LeaseGet())
    assert (lease.period_ms, lease.cap_mw) == (100, 50_000)
    ask(LeaseSet(0, 0))


def test_a_controller_that_stands_still_is_waited_for_and_its_late_answer_dropped(firmware, controller):
    firmware.stall(300)  # 37.5 ms: past the timeout of 30 ms
    assert controller.cap(controller.cap_domains[0]) == 0
    assert controller.client.counts.timeouts == 1


@settings(max_examples=150)
@given(st.data())
def test_whatever_is_requested_the_answer_is_one_whole_message(data):
    firmware = host.HostController()
    wire = data.draw(st.sampled_from(COMMANDS))
    small = st.integers(0, 5)
    command = data.draw(fixed(wire.body))
    for name in command.__struct_fields__[: data.draw(st.integers(0, 2))]:
        if name in ("domain", "sensor", "first", "agent"):
            command = type(command)(
                **{**{f: getattr(command, f) for f in command.__struct_fields__}, name: data.draw(small)}
            )
    request = encode(command, 7)
    answer = decode(firmware.exchange(0, request), Sender.PLATFORM, LATEST)
    assert answer.token == 7
    paired = WIRES.get(type(answer.body))
    assert isinstance(answer.body, Failed) or (paired is not None and paired.name == wire.name)


def test_answers_of_every_domain_and_list_position_are_whole(firmware):
    wanted = [(wire, first) for wire in COMMANDS for first in range(20)]
    for wire, first in wanted:
        values = dict.fromkeys(wire.body.__struct_fields__, 0)
        if not values:
            continue
        values[next(iter(values))] = first if wire.protocol is not None else (0x10, 0x13, 0x15, 0x18, 0x80)[first % 5]
        try:
            decode(firmware.exchange(0, encode(wire.body(**values), 1)), Sender.PLATFORM)
        except MessageError as error:
            pytest.fail(f"{wire.name} {values}: {error}")


def test_permissions_and_unknown_domains_are_typed_errors(firmware, controller):
    with pytest.raises(NotFoundError):
        controller.client.request(CapGet(9))
    other = Controller(Client(InProcess(firmware, channel=1)))
    package = other.cap_domains[0]
    for agent in (1, 2, 3):
        boss = Controller(Client(InProcess(firmware, channel=agent - 1)))
        try:
            boss.client.request(SetProtocolPermissions(2, 0, Protocol.POWERCAP, 0))
            break
        except DeniedError:
            continue
    else:
        pytest.skip("no agent of this build may set permissions")
    with pytest.raises(DeniedError, match=r"power domain 0 \(package\); the earlier value stays in force"):
        other.set_cap(package, 90_000)
    denied = Controller(Client(InProcess(firmware, channel=1)))
    assert Protocol.POWERCAP not in denied.identity.versions and not denied.cap_domains


@pytest.mark.parametrize("link", ["serial", "shm"])
def test_the_firmware_is_capped_over_every_link(firmware, tmp_path, link):
    if link == "serial":
        device = PtyDevice(Answering(firmware))
        url = f"scmi+serial://{device.path}?baud=921600"
    else:
        device = MailboxDevice(str(tmp_path / "scmi.sock"), platform=Answering(firmware))
        url = f"scmi+shm:{tmp_path / 'scmi.sock'}"
    controller = Controller(open_client(url))
    controller.client.request(CapNotify(0, 1))
    assert controller.set_cap(controller.cap_domains[0], 100_050).enforced == 100_000
    assert [level.khz for level in controller.speed_domains[3].levels][-1] == 3_660_000
    assert len(controller.sensors) == 18
    if link == "shm":  # on the serial line this device sends events only after a command
        assert CapChanged(1, 0, 100_000, 500) in [message.body for message in controller.client.wait_for_events(1.0)]
    controller.close()
    device.close()
