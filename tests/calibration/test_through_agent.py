"""A node that its agent keeps is measured through that agent, under the cap that it keeps; in virtual time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from calibration.kernels.port import FMA
from calibration.measure.full_power import GrantLostError
from calibration.measure.node_session import NodeSession, SessionError, open_session
from calibration.measure.through_agent import AgentClocks
from lab.emulated.emulated_kernels import emulated_kernels
from nodectl.config import build_config
from nodectl.decide.node_cap import CapRequest
from nodectl.journal import open_journal
from nodectl.journal.decide_again import replay
from nodectl.loop.agent import Agent
from nodectl.loop.calibration_page import LEASE_NS, Answer, CalibrationPage, Request
from pmu.ports import Ports
from twin.in_process_node import InProcess
from twin.machine import load_machine
from twin.physics.model import Twin

LIMIT = "/sys/devices/system/cpu/cpufreq/policy0/scaling_max_freq"
FIXED_KHZ, MEASURED_KHZ = 1_800_000, 2_100_000


class Caps:
    """A cap that the test sets; ``most_w``: what the node needs."""

    node_w: float | None = None

    def request(self, now_ns: int) -> CapRequest | None:
        return None if self.node_w is None else CapRequest(self.node_w, "the test")


class Node:
    """An emulated node with the real agent, which runs while a session waits."""

    def __init__(self, inside: InProcess, at: Path, rest_w: float = 0.0) -> None:
        self.inside, self.caps, self.said = inside, Caps(), list[str]()
        self.ports: Ports = replace(inside.ports, lock_path=str(at / "lock-1"))
        settings = {
            "mode": "optimize", "state_dir": str(at), "budget": {"core_share": 0.0}, "gpu_policy": {"name": "none"},
            "caps": {"node_w": 1000.0, "rest_w": rest_w},
            "cpu_policy": {"name": "fixed", "params": {"clock_khz": FIXED_KHZ}},
        }  # fmt: skip
        config = build_config(settings, lambda key: ".".join(key))
        self.agent = Agent.open(self.ports, config, self.said.append, caps=self.caps)
        self.paused: list[str] = []

    def wait(self, until_ns: int) -> None:
        while self.ports.clock.now_ns() < until_ns:
            self.agent.tick()

    def limit_khz(self) -> int:
        return int(self.ports.files.read(LIMIT))

    def session(self) -> NodeSession:
        port, clocks = emulated_kernels(self.inside.twin), AgentClocks(self.ports, self.wait)
        return open_session(self.ports, port, "", clocks, self.wait, paused=self.paused.append)


@contextmanager
def a_node(at: Path) -> Iterator[Node]:
    with InProcess(Twin(load_machine("curie"))) as inside:
        node = Node(inside, at)
        try:
            yield node
        finally:
            node.agent.stop()


def test_policies_rest_while_a_calibration_limits_the_clocks_and_decide_again_after_it(tmp_path: Path) -> None:
    with a_node(tmp_path) as node:
        node.agent.tick()
        assert node.limit_khz() == FIXED_KHZ
        with node.session() as session:
            dwell = session.dwell(FMA, "all", MEASURED_KHZ, 0.5, 4)
            assert node.limit_khz() == MEASURED_KHZ
        assert all(one.khz == pytest.approx(MEASURED_KHZ, rel=0.001) for one in dwell.windows)
        node.agent.tick()
        assert node.limit_khz() == FIXED_KHZ
    assert [line for line in node.said if line.startswith("policies ")] == [
        "policies rest: a calibration limits the clocks, and the cap stays in force",
        "policies decide again: the calibration has ended",
    ]
    report = replay(open_journal(tmp_path / "journal"))
    assert report.is_equal and 0 < report.decided < report.records - 10


def test_a_calibration_that_is_killed_is_forgotten_within_its_lease(tmp_path: Path) -> None:
    with a_node(tmp_path) as node:
        session = node.session()
        session.set_clock(MEASURED_KHZ)
        assert node.limit_khz() == MEASURED_KHZ
        node.wait(node.ports.clock.now_ns() + LEASE_NS + 200_000_000)  # nobody renews it
        assert node.limit_khz() == FIXED_KHZ


def test_a_cap_stays_in_force_under_a_calibration(tmp_path: Path) -> None:
    with a_node(tmp_path) as node, node.session() as session:
        session.dwell(FMA, "all", MEASURED_KHZ, 0.5, 4)
        node.caps.node_w = 130.0
        session.start_kernel(FMA, "all")
        with pytest.raises(GrantLostError, match="the cap still keeps the clocks low"):
            session.rest(3.0)
        assert node.limit_khz() < MEASURED_KHZ


def test_a_node_without_an_agent_is_refused_in_one_line(tmp_path: Path) -> None:
    with InProcess(Twin(load_machine("curie"))) as inside:
        ports = replace(inside.ports, lock_path=str(tmp_path / "lock-1"))
        clocks = AgentClocks(ports, ports.clock.sleep_until_ns)
        with (
            open_session(ports, emulated_kernels(inside.twin), "", clocks) as session,
            pytest.raises(SessionError, match="the agent of this node does not answer"),
        ):
            session.set_clock(MEASURED_KHZ)
        assert not CalibrationPage(ports.lock_path).request_path.exists()


class ScriptedAgent:
    """Moves the clock, and answers with the cap of its ``caps_mw`` by the time."""

    def __init__(
        self, inside: InProcess, at: Path, capped_s: tuple[float, float], held_s: float = 0.0, is_by_load: bool = False
    ) -> None:
        """``held_s``: for so long after it the cap keeps clocks low; ``is_by_load``: only those of a busy node."""
        self.ports = replace(inside.ports, lock_path=str(at / "lock-1"))
        self.page, self.twin = CalibrationPage(self.ports.lock_path), inside.twin
        self.begin_ns, self.capped_s, self.held_s = self.ports.clock.now_ns(), capped_s, held_s
        self.busy_while_capped: list[bool] = []
        self.is_by_load = is_by_load

    def wait(self, until_ns: int) -> None:
        while (now_ns := self.ports.clock.now_ns()) < until_ns:
            self.ports.clock.sleep_until_ns(min(now_ns + 100_000_000, until_ns))
            now_ns = self.ports.clock.now_ns()
            request = self.page.requested(now_ns)
            if request is None:
                continue
            for domain in range(len(self.twin.machine.domains)):
                self.twin.set_domain(domain, max_khz=request.khz)
            first, last = self.capped_s
            is_busy = self.twin.workload is not None and not self.twin.finished
            is_capped = first <= (now_ns - self.begin_ns) / 1e9 < last
            if is_capped:
                self.busy_while_capped.append(is_busy)
            is_held = (is_busy or not self.is_by_load) and 0 <= (now_ns - self.begin_ns) / 1e9 - last < self.held_s
            self.page.answer(Answer(request.khz, now_ns, 200_000 if is_capped else 500_000, 500_000, is_held))


def test_a_grant_lost_midway_pauses_and_what_was_measured_under_the_cap_counts_for_nothing(tmp_path: Path) -> None:
    with InProcess(Twin(load_machine("curie"))) as inside:
        agent, said = ScriptedAgent(inside, tmp_path, (1.0, 9.0), held_s=2.0), list[str]()
        clocks = AgentClocks(agent.ports, agent.wait)
        kernels = emulated_kernels(inside.twin)
        with open_session(agent.ports, kernels, "", clocks, agent.wait, paused=said.append) as session:
            dwell = session.dwell(FMA, "all", MEASURED_KHZ, 0.5, 8)
        began_s = (dwell.windows[0].begin_s * 1e9 - agent.begin_ns) / 1e9
    assert said == ["the cap is 200 W, 500 W are needed", ""]
    assert began_s >= 11.0, "clocks follow a raised cap step by step"
    assert len(dwell.windows) == 8 and dwell.seconds < 5.0
    assert not any(agent.busy_while_capped[3:]), "the kernel rests while the node is capped"


@pytest.mark.parametrize(("held_s", "begins_s"), [(6.0, 15.0), (1e9, 19.0)])
def test_clocks_that_rise_under_load_have_their_time_and_a_node_above_its_tdp_is_measured_after_it(
    tmp_path: Path, held_s: float, begins_s: float
) -> None:
    with InProcess(Twin(load_machine("curie"))) as inside:
        agent = ScriptedAgent(inside, tmp_path, (1.0, 9.0), held_s, is_by_load=True)
        clocks = AgentClocks(agent.ports, agent.wait)
        with open_session(agent.ports, emulated_kernels(inside.twin), "", clocks, agent.wait) as session:
            dwell = session.dwell(FMA, "all", MEASURED_KHZ, 0.5, 8)
            again = session.dwell(FMA, "one", MEASURED_KHZ, 0.5, 8)
    began_s = (dwell.windows[0].begin_s * 1e9 - agent.begin_ns) / 1e9
    assert begins_s <= began_s < begins_s + 3.0
    assert again.seconds < 4.0, "this is known by now"


def test_a_request_of_somebody_else_or_for_too_long_is_not_believed(tmp_path: Path) -> None:
    page = CalibrationPage(str(tmp_path / "lock-1"))
    page.request(Request(2_000_000, 10**9))
    assert page.requested(10**9 - 1) and not page.requested(10**9)
    page.request(Request(2_000_000, 10**12))
    assert page.requested(10**9) is None, "a lease is short"
    page.request_path.write_bytes(b'{"khz": "many"}')
    assert page.requested(1) is None
    elsewhere = tmp_path / "elsewhere"
    page.request(Request(2_000_000, 10**9))
    page.request_path.rename(elsewhere)
    page.request_path.symlink_to(elsewhere)
    assert page.requested(10**9 - 1) is None
