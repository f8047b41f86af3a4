"""Knobs owned through SCMI: the real agent, the real firmware and its plant, in one virtual time."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from firmware_bridge.scmi.controller import Controller
from foundation.boot import boot_id
from lab.node_demo.pulp_node import MAX_KHZ, OTHER_CHANNEL, RUNTIME_CHANNEL, PulpNode
from nodectl.config import Config, build_config
from nodectl.controller.scmi_knobs import Direct, scmi_knob
from nodectl.controller.scmi_link import TICK_WAIT_S, ThreadedLink
from nodectl.decide.node_cap import CapRequest
from nodectl.journal import open_journal
from nodectl.journal.decide_again import replay
from nodectl.knobs import KnobError
from nodectl.loop.agent import Agent
from nodectl.write.restore import restore_saved, save_path
from nodectl.write.saves import read_save
from twin.pulp.plant import CLASSES

S = 1_000_000_000
URL = "scmi+inproc:"
CAP = f"{URL}#package/cap_mw"
REST_W = 40.0
CONTROL_PERIODS = 2


@dataclass
class Caps:
    """A cap source that a test turns; ``packages_w`` is what it leaves to the packages."""

    packages_w: float | None = None
    asked: list[int] = field(default_factory=list)

    def request(self, now_ns: int) -> CapRequest | None:
        self.asked.append(now_ns)
        return None if self.packages_w is None else CapRequest(self.packages_w + REST_W, "the test")


def settings(tmp_path, knobs: dict[str, str] | None = None, **given) -> Config:
    none = {"name": "none"}
    scmi = {"url": URL, "knobs": knobs or {"node/cap_mw": "package"}, **given.pop("scmi", {})}
    given = {
        "mode": "optimize", "state_dir": str(tmp_path), "cpu_policy": none, "gpu_policy": none,
        "budget": {"core_share": 0.0}, "caps": {"rest_w": REST_W}, "scmi": scmi, **given,
    }  # fmt: skip
    return build_config(given, lambda key: ".".join(key))


@dataclass
class Run:
    node: PulpNode
    agent: Agent
    caps: Caps
    said: list[str]

    def ticks(self, count: int) -> None:
        for _ in range(count):
            self.agent.tick()

    def power_w(self) -> float:
        return float(self.node.plant.power_w[0])

    def other_agent(self) -> Controller:
        return Controller(self.node.connect(OTHER_CHANNEL))

    @property
    def alarms(self) -> list[str]:
        return [line for line in self.said if "ALARM" in line]


@contextmanager
def running(tmp_path, packages_w: float | None = None, config: Config | None = None, node: PulpNode | None = None):
    node = node or PulpNode(CLASSES[2])
    said: list[str] = []
    caps = Caps(packages_w)
    with Agent.open(node.ports, config or settings(tmp_path), said.append, caps=caps, connect=node.connect) as agent:
        yield Run(node, agent, caps, said)


@pytest.fixture
def capped(tmp_path) -> Iterator[Run]:
    with running(tmp_path, 120.0) as run:
        run.ticks(2)
        assert run.node.cap_in_force_mw() == 120_000
        yield run


def in_force_from(node: PulpNode, cap_mw: int) -> int:
    """The first moment (ns) at which the controller had a cap in force, to the 125 us."""
    return (node.caps_mw.index(cap_mw) + 1) * 125_000


def test_a_cap_goes_through_the_controller_and_the_package_follows_within_two_control_periods(tmp_path):
    node = PulpNode(CLASSES[2])
    watts = node.plant.trace(2000)
    with running(tmp_path, 220.0, node=node) as run:
        run.ticks(5)
        run.caps.packages_w = 110.0
        run.ticks(2)
        changed_ns = in_force_from(node, 110_000)
        assert 0 < changed_ns - 600_000_000 < 10_000_000, "in the first tick after the change, by its own exchange"
        after = -(-changed_ns // 500_000) + CONTROL_PERIODS
        slots = watts[: node.plant.traced]
        assert slots[after - CONTROL_PERIODS - 2] > 200
        assert slots[after:].max() <= 1.02 * 110
        assert slots[after + 10 :].mean() >= 0.95 * 110
        assert run.alarms == []


def test_no_cap_at_first_is_captured_as_such_and_comes_back_at_the_end(tmp_path):
    with running(tmp_path, 120.0) as run:
        run.ticks(2)
        assert read_save(save_path(str(tmp_path))).knobs[CAP].value == "disabled"
        node = run.node
    assert node.cap_in_force_mw() == 0
    assert not (tmp_path / "captured.jsonl").exists()


def test_the_first_value_is_on_the_disk_before_the_first_cap_is_set(tmp_path):
    with running(tmp_path) as run:
        run.ticks(1)
        (tmp_path / "captured.jsonl").mkdir()  # nothing can be saved there now
        run.caps.packages_w = 120.0
        run.ticks(2)
        assert run.node.cap_in_force_mw() == 0, "without a save nothing is set"
        assert any("cap is not in force" in line or "save" in line for line in run.said)
        (tmp_path / "captured.jsonl").rmdir()


def test_a_cap_that_an_administrator_had_set_comes_back(tmp_path):
    node = PulpNode(CLASSES[2])
    by_hand = Controller(node.connect(RUNTIME_CHANNEL))
    by_hand.set_cap(by_hand.cap_domains[0], 150_000)
    with running(tmp_path, 120.0, node=node) as run:
        run.ticks(2)
        assert node.cap_in_force_mw() == 120_000
    assert node.cap_in_force_mw() == 150_000


def test_another_agents_cap_that_was_there_at_first_does_not_become_ours(tmp_path):
    node = PulpNode(CLASSES[2])
    other = Controller(node.connect(OTHER_CHANNEL))
    other.set_cap(other.cap_domains[0], 150_000)
    with running(tmp_path, 120.0, node=node) as run:
        run.ticks(2)
        assert node.cap_in_force_mw() == 120_000
    assert node.cap_in_force_mw() == 150_000
    other.disable_cap(other.cap_domains[0])
    assert node.cap_in_force_mw() == 0


def test_knobs_are_put_back_in_the_reverse_order_of_their_capture(tmp_path):
    knobs = {"node/cap_mw": "package", "cpu/policy0/max_khz": "0", "cpu/policy9/max_khz": "1"}
    config = settings(tmp_path, knobs, cpu_policy={"name": "none"}, caps={"rest_w": REST_W, "cpu_max_khz": 2_400_000})
    with running(tmp_path, 120.0, config) as run:
        run.ticks(2)
        captured = list(read_save(save_path(str(tmp_path))).knobs)
        assert {name.partition("#")[2] for name in captured} >= {"package/cap_mw", "0/limit_khz", "1/limit_khz"}
        put_back: list[str] = []
        report = run.agent._notices.report
        run.agent._notices.report = lambda outcomes: (put_back.extend(o.knob for o in outcomes), report(outcomes))[1]
        run.agent.stop()
        assert put_back == captured[::-1]


def test_a_clock_that_a_performance_domain_takes_is_limited_there_and_not_by_the_node(tmp_path):
    config = settings(tmp_path, {"cpu/policy9/max_khz": "1"}, caps={"cpu_max_khz": 2_000_000})
    with running(tmp_path, None, config) as run:
        run.ticks(2)
        assert run.node.limits_khz == [2_000_000, MAX_KHZ, 2_000_000, 2_000_000]
        other = run.other_agent()
        assert [other.limits(domain)[1] for domain in other.speed_domains] == [
            3_660_000,
            2_000_000,
            3_660_000,
            3_660_000,
        ]
    assert run.node.limits_khz == [MAX_KHZ] * 4
    assert other.limits(other.speed_domains[1])[1] == 3_660_000


def test_a_clock_may_be_a_level_instead_of_a_limit(tmp_path):
    config = settings(
        tmp_path, {"cpu/policy0/max_khz": "0"}, caps={"cpu_max_khz": 2_450_000}, scmi={"clocks_by": "level"}
    )
    with running(tmp_path, None, config) as run:
        run.ticks(2)
        other = run.other_agent()
        assert other.level(other.speed_domains[0]) == 2_400_000, "rounded down to a listed level"
    assert other.level(other.speed_domains[0]) == 3_660_000


# ---- a controller that dies, hangs, comes back ----


def test_a_killed_controller_is_found_out_after_two_heartbeats_and_the_node_caps_by_itself(capped):
    capped.node.kill_controller()
    capped.node.plant.capacitance[:] = CLASSES[3]  # a heavier load, and nobody left who keeps the cap
    capped.ticks(1)
    assert capped.alarms == [], "one miss is no alarm"
    capped.ticks(1)
    assert len(capped.alarms) == 1
    assert "silent: 2 heartbeats" in capped.alarms[0]
    assert capped.power_w() > 1.2 * 120
    capped.ticks(10)
    assert capped.power_w() <= 1.02 * 120
    assert max(capped.node.limits_khz) < MAX_KHZ
    capped.ticks(10)
    assert len(capped.alarms) == 1, "logged once"


def test_the_alarm_and_the_return_are_in_the_journal_and_the_journal_replays(tmp_path, capped):
    capped.node.kill_controller()
    capped.ticks(5)
    capped.node.start_controller()
    capped.ticks(5)
    capped.agent.stop()
    records = list(open_journal(tmp_path / "journal"))
    link = [outcome.status for record in records for outcome in record.outcomes if outcome.knob == URL]
    assert link == ["silent", "answers"]
    assert {record.cap.is_local for record in records if record.cap.packages_mw} == {True, False}
    report = replay(open_journal(tmp_path / "journal"))
    assert report.decided > 10
    assert report.differing == 0


def test_a_controller_that_was_started_again_gets_its_cap_back_before_the_node_lets_go(capped):
    capped.node.kill_controller()
    capped.node.plant.capacitance[:] = CLASSES[3]
    capped.ticks(12)
    assert max(capped.node.limits_khz) < MAX_KHZ
    capped.node.start_controller()
    held_khz = capped.node.limits_khz[0]
    while "handed back" not in capped.said[-1]:
        assert capped.node.limits_khz[0] <= held_khz, "the node keeps its own until the cap is verified"
        capped.ticks(1)
    assert capped.node.cap_in_force_mw() == 120_000
    assert capped.node.limits_khz[0] < MAX_KHZ, "limits go step by step, so that the controller sees the chip as it is"
    capped.ticks(15)
    assert capped.node.limits_khz == [MAX_KHZ] * 4
    assert capped.power_w() <= 1.02 * 120


def test_a_controller_that_was_started_again_between_two_heartbeats_gets_its_cap_back(capped):
    capped.node.kill_controller()
    capped.node.start_controller()
    capped.ticks(2)
    assert capped.node.cap_in_force_mw() == 120_000
    assert capped.alarms == []


def test_a_cap_that_changed_while_the_controller_was_away_is_the_one_that_is_verified(capped):
    capped.node.kill_controller()
    capped.ticks(3)
    capped.caps.packages_w = 80.0
    capped.ticks(12)
    assert capped.power_w() <= 1.02 * 80
    capped.node.start_controller()
    while "handed back" not in capped.said[-1]:
        capped.ticks(1)
    assert capped.node.cap_in_force_mw() == 80_000


def test_a_controller_that_stalls_for_one_heartbeat_changes_nothing(capped):
    assert capped.node.controller
    capped.node.controller.stall(8 * 12)  # 12 ms without a job: one heartbeat of 5 ms goes unanswered
    capped.ticks(5)
    assert capped.said == []
    assert capped.node.limits_khz == [MAX_KHZ] * 4


def test_a_controller_that_hangs_is_silent_and_may_come_back_with_what_it_had(capped):
    assert capped.node.controller
    capped.node.controller.stall(8 * 1000)
    capped.ticks(6)
    assert len(capped.alarms) == 1
    capped.ticks(8)
    assert "handed back" in capped.said[-1]
    assert capped.node.cap_in_force_mw() == 120_000


def test_a_node_whose_controller_is_absent_starts_with_an_alarm_and_caps_by_itself(tmp_path):
    node = PulpNode(CLASSES[2])
    node.kill_controller()
    with running(tmp_path, 120.0, node=node) as run:
        assert len(run.alarms) == 1
        run.node.start_controller()
        run.ticks(20)
        assert node.cap_in_force_mw() == 120_000
        assert node.limits_khz == [MAX_KHZ] * 4


def test_a_cap_left_behind_at_a_silent_controller_stays_in_the_save_for_later(tmp_path):
    with running(tmp_path, 120.0) as run:
        run.ticks(2)
        run.node.controller, kept = None, run.node.controller
        run.ticks(3)
    assert list(read_save(save_path(str(tmp_path))).knobs) == [CAP]
    run.node.controller = kept
    with running(tmp_path, node=run.node) as again:
        assert run.node.cap_in_force_mw() == 0
        assert any("put back 1 knob that a killed run" in line for line in again.said)


# ---- somebody else ----


def test_another_agents_lower_cap_is_reported_and_stays_when_ours_is_withdrawn(capped):
    other = capped.other_agent()
    other.set_cap(other.cap_domains[0], 90_000)
    capped.ticks(3)
    assert any("another agent's lower cap of 90000 mW" in line for line in capped.said)
    assert capped.alarms == [], "a lower cap keeps ours as well"
    capped.agent.stop()
    assert capped.node.cap_in_force_mw() == 90_000
    other.disable_cap(other.cap_domains[0])
    assert capped.node.cap_in_force_mw() == 0, "nothing of ours was left below it"


def test_a_cap_that_was_switched_off_behind_our_back_is_an_alarm_and_is_not_set_again(capped):
    by_hand = Controller(capped.node.connect(RUNTIME_CHANNEL))  # over the agent's own channel
    by_hand.disable_cap(by_hand.cap_domains[0])
    capped.ticks(3)
    assert capped.node.cap_in_force_mw() == 0
    assert len(capped.alarms) == 1
    assert "not in force" in capped.alarms[0]
    capped.ticks(10)
    assert capped.power_w() <= 1.02 * 120, "so the node caps by itself"


def test_on_a_controller_with_one_cap_for_all_a_changed_cap_is_left_as_it_is(tmp_path):
    from firmware_bridge.scmi.client import Client
    from firmware_bridge.scmi.transports.in_process import InProcess
    from nodectl.write.saves import Save
    from tests.scmi.small_platform import SmallPlatform

    platform = SmallPlatform()
    controller = Controller(Client(InProcess(platform)))
    knob = scmi_knob(Direct(controller), CAP)
    assert knob.read() == "disabled"
    save = Save(save_path(str(tmp_path)), boot_id())
    save.capture({CAP: "disabled"})
    save.wrote({CAP: 120_000})
    save.close()
    knob.set(120_000)
    platform.caps[0, 0] = 95_000  # somebody, in place of ours
    result = restore_saved(save_path(str(tmp_path)), boot_id(), lambda name: knob)
    assert [(outcome.status, outcome.reason) for outcome in result.outcomes] == [("left", "foreign writer")]
    assert platform.enforced(0) == 95_000


# ---- what is requested ----


def test_zero_is_never_taken_as_a_cap():
    node = PulpNode(CLASSES[2])
    knob = scmi_knob(Direct(Controller(node.connect())), CAP)
    knob.set(120_000)
    with pytest.raises(KnobError, match="--disable"):
        knob.set(0)
    assert node.cap_in_force_mw() == 120_000


def test_a_cap_below_the_domains_lowest_becomes_the_lowest_and_that_is_said(tmp_path):
    with running(tmp_path, 3.0) as run:
        run.ticks(3)
        assert run.node.cap_in_force_mw() == 20_000
        assert any("accepts no cap below 20000 mW" in line for line in run.said)


def test_an_accepted_cap_that_is_not_kept_is_marked_with_the_reason(capped):
    capped.node.plant.power_fault[:] = 2  # the controller's power sensors stick
    capped.ticks(2)
    knob = scmi_knob(Direct(Controller(capped.node.connect(OTHER_CHANNEL))), CAP)
    knob.set(60_000)  # in force, while the sensor still shows 120 W
    for _ in range(3):
        knob.look(knob._access._controller)
    assert "the controller measures" in knob.complaint


def test_a_domain_that_the_controller_does_not_have_is_a_mistake_in_the_settings(tmp_path):
    node = PulpNode(CLASSES[2])
    config = settings(tmp_path, {"node/cap_mw": "packge"})
    with pytest.raises(KnobError, match=r"no power domain 'packge'; nearest: package"):
        Agent.open(node.ports, config, connect=node.connect)


def test_a_hanging_controller_costs_a_tick_no_more_than_the_stated_bound():
    import threading
    import time

    release = threading.Event()
    node = PulpNode(CLASSES[2])

    def connect():
        return node.connect()

    runs = ThreadedLink(URL, connect)
    runs.start()
    try:
        waits_s = []
        for _ in range(5):
            runs.new_tick()
            begin_s = time.monotonic()
            for _ in range(3):
                with pytest.raises(KnobError, match="no answer within"):
                    runs.ask(lambda controller: release.wait(60.0))
            waits_s.append(time.monotonic() - begin_s)
        assert min(waits_s) < TICK_WAIT_S + 0.1  # the quickest: others use the machine, too
    finally:
        release.set()
        runs.stop()
