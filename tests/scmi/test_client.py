"""The client and the controller's view over a platform in virtual time: no real time passes here."""

from collections import deque

import pytest

from firmware_bridge.errors import (
    BusyError,
    DeniedError,
    InvalidParametersError,
    NoAnswerError,
    NotFoundError,
    NotVerifiedError,
    OutOfRangeError,
    RequestError,
    WrongDeviceError,
)
from firmware_bridge.scmi.client import Client
from firmware_bridge.scmi.controller import Controller
from firmware_bridge.scmi.domains import find
from firmware_bridge.scmi.messages.header import Protocol
from firmware_bridge.scmi.protocols.performance import LevelGet
from firmware_bridge.scmi.protocols.power_capping import CapChanged, CapGet, CapNotify, CapSet
from firmware_bridge.scmi.transports.in_process import InProcess
from tests.scmi.small_platform import CAP_MAX, CAP_MIN, LEVELS, OLDER, SmallPlatform, u32


class Faulty(InProcess):
    """A transport that does things to responses: each entry of ``faults`` is used once."""

    def __init__(self, platform: SmallPlatform, channel: int = 1) -> None:
        super().__init__(platform, channel)
        self.faults: deque[str] = deque()
        self.held: list[bytes] = []
        self.sent: list[bytes] = []

    def send(self, message: bytes) -> None:
        self.sent.append(message)
        super().send(message)

    def receive(self, timeout_s: float) -> bytes | None:
        data = super().receive(timeout_s)
        if data is None or not self.faults:
            return self.held.pop() if data is None and self.held else data
        fault = self.faults.popleft()
        if fault == "lose":
            self.clock.sleep(timeout_s)
            return None
        if fault == "late":
            self.clock.sleep(timeout_s)
            self._events.append(data)
            return None
        if fault == "twice":
            self._events.append(data)
            return data
        return data[:-3] if fault == "cut" else b"\xff" * 7


@pytest.fixture
def platform() -> SmallPlatform:
    return SmallPlatform()


@pytest.fixture
def link(platform: SmallPlatform) -> Faulty:
    return Faulty(platform)


@pytest.fixture
def controller(link: Faulty) -> Controller:
    return Controller(Client(link))


def test_a_platform_is_discovered_whole(controller):
    assert controller.identity.vendor == "tests"
    assert controller.identity.agents == ("platform", "agent-1", "agent-2")
    assert (controller.identity.agent, controller.identity.agent_name) == (1, "agent-1")
    assert controller.identity.versions == {0x10: 0x20001, 0x13: 0x40000, 0x15: 0x30001, 0x18: 0x20000}
    package, domain = controller.cap_domains
    assert (package.name, package.is_root, domain.parent, package.unit) == ("package", True, 0, "mW")
    assert package.range_in_words() == "30.5 W to 300 W in steps of 0.5 W"
    speed = controller.speed_domains[1]
    assert speed.name == "voltage domain 1 with a long name"
    assert [level.khz for level in speed.levels] == list(LEVELS)
    power, temperature = controller.sensors
    assert power.value(controller.readings(power)[0].value) == 120.0 and power.unit == "W"
    assert temperature.value(controller.readings(temperature)[0].value) == -5.0


def test_an_older_platform_is_spoken_to_in_its_own_versions(link):
    link._platform.versions = dict(OLDER)
    controller = Controller(Client(link))
    assert controller.identity.versions == OLDER
    assert [level.khz for level in controller.speed_domains[0].levels] == list(LEVELS)
    with pytest.raises(RequestError, match="version 0x10000 cannot disable capping"):
        controller.disable_cap(controller.cap_domains[0])


def test_a_newer_platform_gets_a_request_for_a_version_that_the_client_speaks(link, platform):
    platform.versions[Protocol.POWERCAP] = 0x30000
    assert Controller(Client(link)).identity.versions[Protocol.POWERCAP] == 0x20000
    assert platform.versions[Protocol.POWERCAP] == 0x20000


def test_a_version_can_be_negotiated_down(controller, platform):
    assert controller.client.negotiate(Protocol.PERFORMANCE, 0x30000) == 0x30000
    assert [level.khz for level in controller.speed_domains[0].levels] == list(LEVELS)
    with pytest.raises(WrongDeviceError, match="does not serve version 0x10000 of protocol 0x13"):
        controller.client.negotiate(Protocol.PERFORMANCE, 0x10000)


def test_a_platform_without_a_common_version_is_the_wrong_device(link, platform):
    platform.versions[Protocol.PERFORMANCE] = 0x10000
    with pytest.raises(WrongDeviceError, match="speaks version 0x10000 of protocol 0x13; this client speaks 0x30000"):
        Controller(Client(link))


def test_a_cap_is_rounded_down_to_the_step_sent_and_verified(controller, platform):
    outcome = controller.set_cap(controller.cap_domains[0], 100_499)
    assert (outcome.requested, outcome.sent, outcome.enforced) == (100_499, 100_000, 100_000)
    assert platform.caps[0, 1] == 100_000


def test_the_lowest_cap_of_all_agents_is_reported_as_enforced(controller, platform):
    platform.caps[0, 2] = 80_000
    assert controller.set_cap(controller.cap_domains[0], 100_000).enforced == 80_000


@pytest.mark.parametrize("cap", [CAP_MIN - 1, CAP_MAX + 500])
def test_a_cap_outside_the_range_is_refused_and_the_old_one_stays(controller, platform, cap):
    domain = controller.cap_domains[0]
    controller.set_cap(domain, 90_000)
    with pytest.raises(OutOfRangeError) as raised:
        controller.set_cap(domain, cap)
    assert "power domain 0 (package) takes 30.5 W to 300 W in steps of 0.5 W; the earlier value stays in force" in str(
        raised.value
    )
    assert controller.cap(domain) == 90_000


def test_zero_is_never_sent_as_a_cap(controller, link, platform):
    domain = controller.cap_domains[0]
    controller.set_cap(domain, 90_000)
    before = len(link.sent)
    for cap in (0, -1):
        with pytest.raises(RequestError, match="would disable capping"):
            controller.set_cap(domain, cap)
    assert len(link.sent) == before
    with pytest.raises(OutOfRangeError):
        controller.set_cap(domain, 3)  # below the step: sent as it is, not rounded to 0
    assert controller.cap(domain) == 90_000
    assert controller.disable_cap(domain) == 0


def test_a_cap_between_minimum_and_the_next_step_becomes_the_minimum(controller):
    domain = controller.cap_domains[0]
    assert domain.quantised(CAP_MIN + 100) == CAP_MIN
    assert domain.rounded_down(30.7) == 30_700 and domain.rounded_down(0.0009) == 0


def test_a_denied_cap_names_the_domain(controller, platform):
    platform.denied.add((1, 1))
    with pytest.raises(
        DeniedError, match=r"not permitted to; power domain 1 \(domain-0\); the earlier value stays in force"
    ):
        controller.set_cap(controller.cap_domains[1], 90_000)


def test_an_accepted_cap_that_does_not_show_is_reported(controller, platform):
    platform.caps_ignored = True
    with pytest.raises(NotVerifiedError, match="the cap of 90 W was accepted, but the controller reports disabled"):
        controller.set_cap(controller.cap_domains[0], 90_000)


def test_an_asynchronous_cap_waits_for_its_delayed_response(controller):
    outcome = controller.set_cap(controller.cap_domains[0], 90_000, asynchronously=True)
    assert outcome.enforced == 90_000
    power = controller.sensors[0]
    assert power.value(controller.readings(power, asynchronously=True)[0].value) == 120.0


def test_levels_are_read_back_and_another_agents_request_is_seen(controller, platform):
    domain = controller.speed_domains[0]
    assert controller.set_level(domain, 2_400_000).is_as_requested
    platform.levels[0, 2] = 3_660_000
    outcome = controller.set_level(domain, 800_000)
    assert not outcome.is_as_requested and outcome.in_force == 3_660_000
    assert domain.level_at_or_below(2_399_999) == 1_350_000
    with pytest.raises(RequestError, match="below 400 to 3660 MHz"):
        domain.level_at_or_below(1)


def test_levels_are_set_no_faster_than_the_domain_allows(controller):
    domain, clock = controller.speed_domains[0], controller.client.transport.clock
    begin_s = clock.now_s()
    for _ in range(11):
        controller.set_level(domain, 800_000)
    assert clock.now_s() - begin_s == pytest.approx(10 * domain.rate_limit_us * 1e-6, abs=1e-9)


def test_limits_and_averaging_intervals_are_read_back(controller):
    assert controller.set_limits(controller.speed_domains[0], 800_000, 2_400_000) == (800_000, 2_400_000)
    with pytest.raises(InvalidParametersError):
        controller.set_limits(controller.speed_domains[0], 2_400_000, 800_000)
    assert controller.set_averaging_interval_us(controller.cap_domains[0], 2_700) == 2_500
    with pytest.raises(OutOfRangeError, match="takes 500 to 10000 us"):
        controller.set_averaging_interval_us(controller.cap_domains[0], 20_000)


def test_a_lost_reply_is_requested_again_with_a_new_token(controller, link):
    link.faults.extend(["lose", "lose"])
    assert controller.client.request(LevelGet(0)).level == 400_000
    tokens = [int.from_bytes(message[:4], "little") >> 18 for message in link.sent[-3:]]
    assert len(set(tokens)) == 3
    assert controller.client.counts.timeouts == 2


def test_replies_that_come_late_or_twice_are_dropped(controller, link):
    link.faults.extend(["late", "twice"])
    assert controller.client.request(LevelGet(0)).level == 400_000
    assert controller.cap(controller.cap_domains[0]) == 0
    assert controller.client.events() == []
    assert controller.client.counts.stale == 2


def test_after_three_silent_tries_the_client_gives_up_within_the_bound(controller, link):
    clock = controller.client.transport.clock
    link.faults.extend(["lose"] * 9)
    begin_s = clock.now_s()
    with pytest.raises(NoAnswerError, match="PERFORMANCE_LEVEL_GET: no usable answer to 3 tries of 30 ms"):
        controller.client.request(LevelGet(0))
    assert clock.now_s() - begin_s == pytest.approx(0.09, abs=0.001)


def test_replies_that_make_no_sense_mean_a_wrong_device(controller, link):
    link.faults.extend(["cut"] * 3)
    with pytest.raises(WrongDeviceError, match="LEVEL_GET response: payload of 1 bytes instead of 4"):
        controller.client.request(LevelGet(0))
    link.faults.extend(["garbage", "none left"])
    assert controller.client.counts.malformed == 3


def test_busy_is_tried_again_a_few_times_and_then_reported(controller, platform):
    platform.busy_left = 3
    assert controller.client.request(LevelGet(0)).level == 400_000
    platform.busy_left = 99
    with pytest.raises(BusyError):
        controller.client.request(LevelGet(0))
    assert platform.busy_left == 94


def test_other_refusals_are_not_tried_again(controller, platform):
    before = len(platform.served)
    with pytest.raises(NotFoundError):
        controller.client.request(CapGet(9))
    assert len(platform.served) == before + 1


def test_notifications_are_kept_while_a_reply_is_awaited(controller, platform):
    client = controller.client
    client.request(CapNotify(0, 1))
    platform.answer(2, u32(0x6005, 0, 0, 70_000))
    controller.cap(controller.cap_domains[0])
    assert [message.body for message in client.events()] == [CapChanged(2, 0, 70_000, 1000)]
    assert client.wait_for_events(0.01) == []


def test_tokens_wrap_without_confusion(controller):
    for _ in range(1100):
        controller.client.request(CapSet(0, 0, 90_000))
    assert controller.client.counts.stale == 0


def test_domains_are_found_by_number_or_name_and_the_nearest_is_named(controller):
    assert find(controller.cap_domains, "1", "power domain").name == "domain-0"
    assert find(controller.cap_domains, "package", "power domain").number == 0
    with pytest.raises(RequestError, match=r"no power domain 'packge'; nearest: package; there are 0 \(package\), 1"):
        find(controller.cap_domains, "packge", "power domain")


def test_a_platform_that_contradicts_itself_is_refused(link, platform, monkeypatch):
    monkeypatch.setattr("tests.scmi.small_platform.CAP_STEP", 0)
    with pytest.raises(
        WrongDeviceError, match=r"power domain 0 \(package\): cap is settable from 30500 to 300000 in steps of 0"
    ):
        _ = Controller(Client(link)).cap_domains


def test_a_platform_that_never_stops_talking_blocks_nobody(link):
    class Chatter(Faulty):
        def receive(self, timeout_s: float) -> bytes | None:
            self.clock.sleep(0.0001)
            return u32(0x6005 | 999 << 18, 0)

    client = Client(Chatter(SmallPlatform()))
    with pytest.raises(NoAnswerError):
        client.request(LevelGet(0))
    assert client.events() == []
    assert client.wait_for_events(0.01) == []
    assert client.transport.clock.now_s() < 0.2
