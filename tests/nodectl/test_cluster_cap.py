"""A node under a cluster's cap: shares, proof, leases, and what is left when its agent dies."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foundation.shell.settings import ConfigError
from foundation.wire.power_messages import Grant, Report
from nodectl.config import Caps, Cluster, Config
from nodectl.decide.decider import Decider
from nodectl.decide.node_cap import PackageCap
from nodectl.decide.split import Device, split
from nodectl.loop.agent import Agent
from nodectl.loop.survey import survey
from nodectl.member.cluster_cap import ClusterCap
from nodectl.write.restore import restore_saved, save_path
from nodectl.write.saves import node_id, read_save
from tests.nodectl.small_node import layout, sample
from tests.nodectl.test_agent import node, settings

S = 1_000_000_000
LONG_TERM = "/sys/class/powercap/intel-rapl:0/constraint_0_power_limit_uw"
CLUSTER = {
    "url": "tcp://127.0.0.1:1",
    "name": "n0",
    "tdp_w": 520.0,
    "mop_w": 200.0,
    "safe_w": 220.0,
    "boot_w": 300.0,
    "settle_s": 0.2,
}


def test_floors_come_first_and_the_rest_goes_by_measured_draw():
    cpu, gpu = Device(50.0, 200.0, 150.0), Device(100.0, 300.0, 150.0)
    assert split(60.0 + 150.0 + 90.0, 60.0, [cpu, gpu]) == pytest.approx([110.0, 130.0])
    assert split(10.0, 60.0, [cpu, gpu]) == [50.0, 100.0], "below its floor nothing can be capped"
    assert split(1000.0, 60.0, [cpu, gpu]) == [200.0, 300.0]
    assert split(60.0 + 400.0, 60.0, [cpu, Device(100.0, 300.0, 100.0)]) == pytest.approx([200.0, 200.0])


device = st.builds(
    lambda floor, room, draw: Device(floor, floor + room, draw),
    st.floats(0, 500),
    st.floats(0, 500),
    st.floats(0, 1000) | st.just(math.nan),
)


@given(cap_w=st.floats(0, 5000), rest_w=st.floats(0, 200), devices=st.lists(device, max_size=6))
def test_shares_are_within_bounds_and_their_sum_within_the_cap_where_floors_allow_it(cap_w, rest_w, devices):
    caps = split(cap_w, rest_w, devices)
    assert all(one.floor_w <= cap <= one.most_w * (1 + 1e-9) for cap, one in zip(caps, devices, strict=True))
    floors = sum(one.floor_w for one in devices)
    assert sum(caps) + rest_w <= max(cap_w, floors + rest_w) * (1 + 1e-9) + 1e-9
    if cap_w - rest_w >= sum(one.most_w for one in devices):
        assert caps == pytest.approx([one.most_w for one in devices])


class Wire:
    """The link to a cluster agent that is this test; nothing is lost, nothing takes time."""

    url, is_up, why_down = "tcp://test", True, ""

    def __init__(self) -> None:
        self.sent: list[Report] = []
        self.grants: list[Grant] = []
        self.on_wait = lambda: None

    def send(self, report: Report) -> None:
        self.sent.append(report)

    def receive(self) -> list[Grant]:
        grants, self.grants = self.grants, []
        return grants

    def wait(self, timeout_ms: int) -> None:
        self.on_wait()

    def close(self) -> None: ...

    def grant(self, cap_w: float, sequence: int, is_leave: bool = False) -> None:
        last = self.sent[-1]
        made = Grant("n0", 1, last.boot_id, sequence, round(cap_w * 1000), last.report_id, 5 * S, is_leave)
        self.grants.append(made)


class CappedNode:
    """A busy twin under the agent, in virtual time."""

    def __init__(self, inside, tmp_path, told=None, wire=None, jobs=None) -> None:
        self.inside, self.state = inside, str(tmp_path)
        self.wire, self.said = wire or Wire(), []
        none = {"name": "none"}
        self.config = settings(tmp_path, cluster=CLUSTER, caps={"rest_w": 60.0}, cpu_policy=none, gpu_policy=none)
        self.boot = node_id(inside.ports.lock_path)
        clock = inside.ports.clock
        self.wire.on_wait = lambda: clock.sleep_until_ns(clock.now_ns() + S // 20)
        self.cap = ClusterCap(self.config.cluster, self.wire, self.boot, self.said.append, clock.now_ns, jobs)
        self.free_uw = self.limit_uw()
        self.agent = Agent.open(inside.ports, self.config, self.said.append, cluster=self.cap, progress=told)

    def limit_uw(self) -> int:
        return int(self.inside.ports.files.read(LONG_TERM))

    def ticks(self, n: int) -> None:
        for _ in range(n):
            self.agent.tick()

    def restore(self, **given):
        knobs = {knob.name: knob for knob in survey(self.inside.ports).knobs}
        return restore_saved(save_path(self.state), self.boot, knobs.__getitem__, **given)

    def die(self) -> None:
        """As SIGKILL does: nothing is put back, the kernel takes the lock."""
        self.agent._actuation._lock.release()
        self.agent._actuation._writer.close()


def test_a_grant_is_in_force_confirmed_by_its_effect_and_over_with_its_lease(tmp_path):
    with node("skylake-6146", "hpl") as inside:
        made = CappedNode(inside, tmp_path)
        made.ticks(3)
        first = made.wire.sent[0]
        assert (first.limit_mw, first.effect, first.quality) == (520_000, "unseen", "measured")
        assert made.limit_uw() == made.free_uw, "who has been granted nothing is not capped"
        made.wire.grant(300.0, 1)
        made.ticks(1)
        assert made.limit_uw() == 120_000_000, "two packages, half of what 60 W of rest leave"
        assert made.wire.sent[-1].limit_mw == 520_000, "not before it is in force"
        made.ticks(30)
        confirmed = next(one for one in made.wire.sent if one.sequence == 1)
        assert (confirmed.limit_mw, confirmed.effect) == (300_000, "seen")
        assert confirmed.power_mw <= 1.02 * 300_000
        made.ticks(40)
        assert made.limit_uw() == 80_000_000, "the lease is over: safe_w"
        assert any("the lease is over: 220 W" in line for line in made.said)
        assert made.wire.sent[-1].limit_mw == 220_000
        made.wire.grant(320.0, 2)
        made.ticks(8)  # what a package saved up it may draw on top for a moment after a raise
        assert made.wire.sent[-1].sequence == 2
        made.agent.stop()
        assert made.limit_uw() == 80_000_000, "nobody let it leave"


def test_a_run_that_ends_puts_caps_back_only_with_leave(tmp_path):
    with node("skylake-6146", "hpl") as inside:
        made = CappedNode(inside, tmp_path)
        made.ticks(2)
        made.wire.grant(300.0, 1)
        made.ticks(5)
        made.wire.on_wait = lambda: made.wire.grant(520.0, 2, is_leave=True)
        made.agent.stop()
        assert made.wire.sent[-1].is_leaving
        assert made.limit_uw() == made.free_uw
        assert read_save(save_path(made.state)).knobs == {}


@pytest.mark.parametrize(("granted_w", "left_uw"), [(300.0, 80_000_000), (210.0, 75_000_000)])
def test_restore_after_a_kill_keeps_the_lesser_of_the_present_and_the_safe_cap(tmp_path, granted_w, left_uw):
    with node("skylake-6146", "hpl") as inside:
        made = CappedNode(inside, tmp_path)
        made.ticks(2)
        made.wire.grant(granted_w, 1)
        made.ticks(5)
        made.die()
        for _ in range(2):
            done = made.restore()
            held = {one.knob for one in done.outcomes if one.status == "held"}
            assert held == {f"rapl/package-{n}/long_term_uw" for n in (0, 1)}
            assert done.is_complete, "clocks are as they were: the limits enforce the cap"
            assert made.limit_uw() == left_uw
        again = CappedNode(inside, tmp_path)
        again.ticks(1)
        assert again.limit_uw() == left_uw, "nor does the next run raise it by itself"
        assert again.wire.sent[0].limit_mw == min(granted_w, 220.0) * 1000
        again.wire.grant(400.0, 1)
        again.ticks(3)
        assert again.limit_uw() == 165_000_000 == made.free_uw, "half of 340 W would be above what it was found at"
        again.die()
        assert made.restore(leaves_cluster=True).is_complete
        assert made.limit_uw() == made.free_uw, "an administrator may say that it has left"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"cluster": {**CLUSTER, "tdp_w": 0.0}}, "cluster.tdp_w: is missing"),
        ({"cluster": {**CLUSTER, "safe_w": 100.0}}, "not between mop_w and tdp_w"),
        ({"cluster": CLUSTER, "mode": "monitor"}, "cannot be capped"),
        ({"cluster": CLUSTER, "caps": {"node_w": 300.0}}, "the cluster caps this node already"),
        ({"cluster": {**CLUSTER, "url": "head"}}, "no URL such as"),
        ({"cluster": {**CLUSTER, "url": "tcp://head"}}, "'tcp://head' is no URL such as tcp://HOST:7410"),
    ],
)
def test_a_wrong_cluster_setting_is_named(tmp_path, wrong, message):
    with pytest.raises(ConfigError, match=message):
        settings(tmp_path, **wrong)


def test_a_node_reports_whether_it_is_cap_bound(tmp_path):
    with node("skylake-6146", "hpl") as inside:
        capped = CappedNode(inside, tmp_path)
        try:
            capped.ticks(20)
            assert capped.wire.sent[-1].held == "no", "nobody has capped it"
            capped.wire.grant(500.0, 1)
            capped.ticks(20)
            assert capped.wire.sent[-1].held == "no", "it draws less"
            capped.wire.grant(260.0, 2)
            capped.ticks(40)
            report = capped.wire.sent[-1]
            assert report.held == "yes"
            assert report.power_mw < 260_000
            before = len(capped.wire.sent)
            capped.wire.grant(500.0, 3)
            capped.ticks(40)
            words = [one.held for one in capped.wire.sent[before:]]
            assert words[0] != "no", "its clocks are still on their way up"
            assert words[-1] == "no"
        finally:
            capped.agent.stop()


def test_a_cpu_that_is_slowed_is_seen_where_cpus_are_offline_and_their_numbers_have_gaps():
    node = msgspec.structs.replace(layout(n_gpus=0), cpus=(0, 2, 4, 6))
    decider = Decider(node, Config(mode="optimize", caps=Caps(node_w=500.0)))
    seen = sample(node)
    cap = PackageCap(200_000, True)
    assert decider.cap_bound(decider.decide(seen, cap), seen) == "no"
    seen.cpu.frequency_khz[3] = 1_200_000
    assert decider.cap_bound(decider.decide(seen, cap), seen) == "unsure"


def test_a_node_whose_power_limit_pays_back_what_it_lent_is_not_said_to_be_free(tmp_path):
    with node("curie", "nas") as inside:  # its limit is a mean over ten seconds
        capped = CappedNode(inside, tmp_path)
        try:
            capped.ticks(20)
            for number in range(1, 6):  # a lease is five seconds long
                capped.wire.grant(300.0, number)
                capped.ticks(40)
            next_job = inside.twin.workload
            inside.twin.stop_workload()
            capped.wire.grant(200.0, 6)
            capped.ticks(8)  # idle: its clocks are free again
            inside.twin.start_workload(next_job)
            before = len(capped.wire.sent)
            capped.ticks(40)
            reports = capped.wire.sent[before + 1 :]
            assert min(report.power_mw for report in reports) < 0.96 * 200_000, "it repays"
            assert {report.held for report in reports} <= {"yes", "unsure"}
        finally:
            capped.agent.stop()


class Capped:
    """A ``ClusterCap`` alone, whose clock and draw are this test. Its knobs take effect ``settle_s`` (0.2 s) after a
    write."""

    def __init__(self, cap_w: float = 520.0) -> None:
        self.now_ns, self.wire, self.sequence = 100 * S, Wire(), 0
        cluster = msgspec.convert(CLUSTER, Cluster)
        self.cap = ClusterCap(cluster, self.wire, "b1", now_ns=lambda: self.now_ns)
        self.follow(480.0)
        self.grant(cap_w)
        self.follow(480.0)

    def grant(self, cap_w: float) -> None:
        self.sequence += 1
        self.wire.grant(cap_w, self.sequence)
        self.cap.request(self.now_ns)

    def follow(self, power_w: float, elapsed_s: float = 0.1, trouble: str = "") -> None:
        """One tick more, in which so much was drawn."""
        self.now_ns += round(elapsed_s * 1e9)
        self.cap.request(self.now_ns)
        self.cap.follow(elapsed_s, power_w, "measured", trouble)

    @property
    def confirmed(self) -> int:
        return self.wire.sent[-1].sequence


def test_a_lowered_cap_is_confirmed_only_by_what_was_drawn_after_it_had_settled():
    one = Capped()
    assert one.confirmed == 1
    one.grant(300.0)
    one.follow(290.0)
    one.follow(290.0)
    assert one.confirmed == 1, "0.2 s: its knobs may only now have taken effect"
    one.follow(290.0)
    assert one.confirmed == 1, "0.1 s of draw is less than a window"
    one.follow(290.0)
    assert (one.confirmed, one.wire.sent[-1].limit_mw, one.wire.sent[-1].effect) == (2, 300_000, "seen")


def test_an_interval_that_began_before_a_lowered_cap_had_settled_says_nothing_of_it():
    one = Capped()
    one.grant(300.0)
    one.follow(290.0, elapsed_s=1.0)
    assert one.confirmed == 1
    one.follow(290.0, elapsed_s=1.0)
    assert one.confirmed == 2


def test_a_cap_that_is_not_kept_is_not_confirmed_until_a_whole_window_keeps_it():
    one = Capped()
    one.grant(300.0)
    for _ in range(20):
        one.follow(307.0)
    assert (one.confirmed, one.wire.sent[-1].limit_mw) == (1, 520_000), "more than 2 % above it"
    for _ in range(10):
        one.follow(400.0)
    one.follow(290.0)
    assert one.confirmed == 1, "half a window"
    one.follow(290.0)
    assert one.confirmed == 2


def test_a_cap_is_not_confirmed_while_its_knobs_are_in_trouble_or_nothing_is_measured():
    one = Capped()
    one.grant(300.0)
    for _ in range(20):
        one.follow(290.0, trouble="rapl/package-0/long_term_uw: no-effect")
    for _ in range(20):
        one.follow(math.nan)
    assert (one.confirmed, one.wire.sent[-1].limit_mw) == (1, 520_000)
    for _ in range(2):
        one.follow(290.0)
    assert one.confirmed == 2


def test_a_cap_that_nothing_followed_is_confirmed_provisionally():
    one = Capped()
    one.follow(120.0)
    one.grant(300.0)
    for _ in range(4):
        one.follow(120.0)
    assert (one.confirmed, one.wire.sent[-1].effect, one.wire.sent[-1].power_mw) == (2, "provisional", 120_000)


def test_a_renewal_is_confirmed_at_once_but_not_while_the_cap_before_it_is_not():
    one = Capped(300.0)
    assert one.confirmed == 0, "a lowered cap that has not settled"
    one.grant(300.0)
    one.cap.follow(0.1, 480.0, "measured", "")
    assert (one.confirmed, one.wire.sent[-1].effect) == (0, "unseen")
    for _ in range(4):
        one.follow(290.0)
    assert one.confirmed == 2
    one.grant(300.0)
    one.follow(290.0, elapsed_s=1.0)
    assert (one.confirmed, one.wire.sent[-1].effect) == (3, "seen")


def test_the_energy_that_is_reported_is_power_times_time_whatever_the_period():
    one = Capped()
    one.follow(math.nan, 1.0)
    before_mj = one.wire.sent[-1].energy_mj
    for power_w, elapsed_s in ((400.0, 0.1), (100.0, 2.5), (300.0, 0.05), (math.nan, 1.0), (250.0, 1.0)):
        one.follow(power_w, elapsed_s)
    assert one.wire.sent[-1].energy_mj - before_mj == 40_000 + 250_000 + 15_000 + 250_000


def test_the_energy_that_is_reported_is_what_the_node_drew(tmp_path):
    with node("skylake-6146", "hpl") as inside:
        made = CappedNode(inside, tmp_path)
        made.ticks(10)
        first = made.wire.sent[-1]
        made.ticks(30)
        last = made.wire.sent[-1]
        assert last.report_id > first.report_id
        seconds = (last.report_id - first.report_id) / 1e9
        mean_w = (last.energy_mj - first.energy_mj) / 1000 / seconds
        assert mean_w == pytest.approx(last.power_mw / 1000, rel=0.05), "its load is steady"
        made.agent.stop()
