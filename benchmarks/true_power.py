"""What sixteen capped nodes truly draw, while agents are killed and hang, links are cut and cluster agents replaced.

The ledger's trial (``ledger_world``) adds up what nodes *could* draw by their caps. Here each node is an emulated one
with package limits that really throttle, under the real agent: ``nodectl.loop.agent``, ``cluster_cap``, ``shares``,
``split``, ``lease``, the writer with its save, and ``nodectl restore`` after a kill. Faults, network, ledger and budget
are the world's. All of it is in one virtual time and comes out the same again for a seed.

What goes wrong, beyond the world's network and cluster agents: a killed agent leaves its caps as they are until
``nodectl restore`` runs, at the latest when its lease ends; on a sticky node nothing runs until the next agent starts.
A hung agent's node stays under its last cap until it wakes, or until its watchdog kills it (class os). Kernels
that hang and nodes that reboot are left to ``ledger_world``. Jobs come, and end when their work is done: throttled they
take longer.

How it is judged. A package limit does not bound each instant: by Intel's manual (SDM vol. 3, 15.10.3) it bounds the
running average of power over its time window, and power saved up before may be spent in a burst. A(t) is the sum over
all nodes of such running averages (exponential, each with the window its own limit has in sysfs) of the node's true
power, packages, DRAM and all else, in steps of 50 ms of exact energy. B(t) is the same running average of the budget in
force, the least over the nodes' windows. A(t) above B(t) is a violation. What plain means over the same windows give is
shown too, but not judged: no package limit promises that.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from twin._model import lib

from benchmarks.experiment import save
from benchmarks.ledger_node import Node
from benchmarks.ledger_world import Faults, World
from foundation.wire.link_options import QUEUED
from foundation.wire.power_messages import Declaration, Grant, LeaseClass, Report
from nodectl.config import Budget, Caps, Cluster, Config, JournalSettings, PolicyChoice
from nodectl.loop.agent import Agent
from nodectl.loop.survey import survey
from nodectl.member.cluster_cap import ClusterCap, declaration
from nodectl.policies.registry import NONE
from nodectl.write.places import save_path
from nodectl.write.restore import restore_saved
from nodectl.write.saves import node_id
from twin.in_process_node import InProcess
from twin.machine import load_machine
from twin.physics.model import Twin
from twin.programs.workload import Workload, load_workload

Floats = npt.NDArray[np.float64]

MACHINE: Final = "skylake-6146"
NODES: Final = 16
HOUR_S: Final = 3600.0
TICK_S: Final = 0.5
STEP_S: Final = 0.05
LOADS: Final = ("hpl", "stream", "nas", "imb")
JOB_S: Final = (60.0, 600.0)
PAUSE_S: Final = 20.0
"""Ours: work at full speed, and the mean of what a node is idle between two jobs."""

SETTLE_S: Final = 2.5
WATCHDOG_S: Final = 8.0
FAULTS: Final = Faults(
    loss=0.05, duplicate=0.05, late=0.05, cut_s=90.0, agent_kill_s=60.0, agent_hang_s=45.0,
    cluster_kill_s=500.0, cluster_crash_s=600.0, takeover_s=700.0, change_s=150.0,
)  # fmt: skip


@cache
def load(name: str, seed: int, seconds: float) -> Workload:
    return load_workload(name, load_machine(MACHINE), seed=seed, duration_s=seconds)


@dataclass(frozen=True, slots=True)
class Measured:
    """What a calibration of the node type says, watts: the most outside the packages, and of them both at the least
    that a limit brings them to."""

    rest_w: float
    floor_w: float


@cache
def calibrated() -> Measured:
    """Each load at full clocks and under a limit that cannot be kept, on a node of another seed."""
    rest_w = floor_w = 0.0
    for name in LOADS:
        for is_capped in (False, True):
            twin = Twin(load_machine(MACHINE), load(name, 999, 60.0), seed=999)
            if is_capped:
                for zone in _packages(twin):
                    twin.set_zone_limit(zone, 0, limit_uw=1_000_000)
            twin.advance(3.0)
            for _ in range(300):
                twin.advance(0.01)
                packages_w = sum(float(lib.twin_model_power_w(twin._model, lib.TWIN_ZONE_PACKAGE, i)) for i in (0, 1))
                node_w = float(lib.twin_model_power_w(twin._model, lib.TWIN_ZONE_PSYS, 0))
                rest_w = max(rest_w, node_w - packages_w)
                if is_capped:
                    floor_w = max(floor_w, packages_w)
    return Measured(math.ceil(rest_w + 1), math.ceil(floor_w + 2))


def _packages(twin: Twin) -> list[int]:
    return [i for i, zone in enumerate(twin.machine.zones) if zone.kind == "package"]


class Wire:
    """A node's link, over the world's network."""

    url, is_up, why_down = "virtual", True, ""

    def __init__(self, node: TwinNode) -> None:
        self.node = node
        self.waiting: list[Grant] = []

    def send(self, report: Report) -> None:
        self.node.world.send_report(report)

    def receive(self) -> list[Grant]:
        taken, self.waiting = self.waiting[-QUEUED:], []
        return taken

    def wait(self, timeout_ms: int) -> None: ...

    def close(self) -> None: ...


class TwinNode(Node):
    """A node of the world whose agent and hardware are the real agent and the emulated node."""

    def __init__(self, world: World, name: str, declaration: Declaration) -> None:
        super().__init__(world, name, declaration)
        assert isinstance(world, TwinWorld)
        self.at = int(name[1:])
        self.twin = Twin(load_machine(MACHINE), None, seed=100 + self.at)
        self.inside = InProcess(self.twin)
        self.state_dir = str(Path(world.folder) / name)
        self.power_w: Floats = np.zeros(world.steps)
        self.window_s = self.twin.machine.zones[_packages(self.twin)[0]].constraints[0].window_us / 1e6
        self.zones = range(len(self.twin.machine.zones))
        self.counters = [self.twin.zone_energy_uj(zone) for zone in self.zones]
        self.ranges = [zone.range_uj for zone in self.twin.machine.zones]
        self.rest_of_node_w = self.twin.machine.power.rest_w
        self.job_from_s = world.dice.expovariate(1 / PAUSE_S)
        self.jobs_ended = 0
        self.is_busy = False
        self.agent_now: Agent | None = None
        self.cap: ClusterCap | None = None
        self.wire = Wire(self)
        self.config = _config(name, self.state_dir, self.declaration)
        world.after(world.dice.uniform(0, TICK_S), self._loop)

    # --- time

    def _loop(self) -> None:
        """Every half a second: the node has gone on, whether or not its agent has; then the agent ticks."""
        self.advance(self.world.now_s)
        self._work()
        if self.agent == "alive" and self.agent_now is not None:
            self.agent_now.tick()
        self.world.after(TICK_S, self._loop)

    def advance(self, now_s: float) -> None:
        """Let the hardware go on until now; the energy of each step of the grid is its counters'."""
        if self.world.ignores_caps_from_s <= now_s:  # type: ignore[attr-defined]
            for zone in _packages(self.twin):  # what sysfs shows stays as it was written
                lib.twin_model_set_limit(self.twin._model, zone, 0, 1000.0, 1.0)
        end_ns, step_ns = round(now_s * 20_000) * 50_000, round(STEP_S * 1e9)
        while (age_ns := self.twin.age_ns) < end_ns:
            step = age_ns // step_ns
            self.twin.advance((min(end_ns, (step + 1) * step_ns) - age_ns) / 1e9)
            after = [self.twin.zone_energy_uj(zone) for zone in self.zones]
            drawn_uj = sum((new - old) % size for new, old, size in zip(after, self.counters, self.ranges, strict=True))
            self.counters = after
            if step < len(self.power_w):
                self.power_w[step] += drawn_uj / 1e6 / STEP_S

    def _work(self) -> None:
        now_s, dice = self.world.now_s, self.world.dice
        if self.is_busy and self.twin.finished:
            self.is_busy, self.job_from_s = False, now_s + dice.expovariate(1 / PAUSE_S)
            self.jobs_ended += 1
        if not self.is_busy and now_s >= self.job_from_s:
            seconds = 30.0 * round(dice.uniform(*JOB_S) / 30.0)
            self.twin.start_workload(load(dice.choice(LOADS), dice.randrange(4), seconds))
            self.is_busy = True
        self.world.demand[self.name] = 1.0 if self.is_busy else 0.1

    # --- the agent, in place of the world's

    def now_ns(self) -> int:
        """CLOCK_BOOTTIME of this node, off by its own rate."""
        return self.offset_ns + int(self.twin.age_ns * self.rate)

    def start_agent(self) -> None:
        if self.agent != "none":
            return
        self.advance(self.world.now_s)
        self.agent, self.agents = "alive", self.agents + 1
        self.wire = Wire(self)
        self.cap = ClusterCap(self.config.cluster, self.wire, self.boot_id, now_ns=self.now_ns)  # type: ignore[arg-type]
        self.agent_now = Agent.open(self.inside.ports, self.config, wait=lambda deadline_ns: None, cluster=self.cap)

    def receive(self, grant: Grant) -> None:
        if self.agent != "none":
            self.wire.waiting.append(grant)

    def act(self, cap_mw: int) -> None:
        """What a node may draw is the hardware's affair here."""

    def kill_agent(self) -> None:
        """SIGKILL: the kernel takes its locks, and nothing else happens until ``nodectl restore`` or the next start."""
        if self.agent == "none" or self.agent_now is None or self.agent_now._actuation is None:
            return
        self.advance(self.world.now_s)
        assert self.cap is not None
        left_s = max((self.cap._lease.lease_end_ns - self.now_ns()) / 1e9, 0.0)
        actuation = self.agent_now._actuation
        actuation._lock.release()
        actuation._writer.close()
        self.agent, self.agent_now, self.agents = "none", None, self.agents + 1
        wait_s = self.world.dice.uniform(0.0, left_s)
        if self.declaration.lease_class == "os":
            self.world.after(wait_s, self._restore)
        self.world.after(wait_s + self.world.dice.uniform(1, 20), self.start_agent)

    def hang_agent(self) -> None:
        """It hangs; the watchdog ends it unless it wakes before."""
        if self.agent != "alive":
            return
        self.agent = "hung"
        lasts_s, number = self.world.dice.uniform(1, 40), self.agents
        is_watched = self.declaration.lease_class == "os" and lasts_s > WATCHDOG_S

        def end() -> None:
            if number != self.agents or self.agent != "hung":
                return
            if is_watched:
                self.kill_agent()
            else:
                self.agent = "alive"

        self.world.after(WATCHDOG_S if is_watched else lasts_s, end)

    def _restore(self) -> None:
        """``nodectl restore``, as ExecStopPost runs it."""
        if self.agent == "none":
            self.advance(self.world.now_s)
            knobs = {knob.name: knob for knob in survey(self.inside.ports).knobs}
            boot = node_id(self.inside.ports.lock_path)
            restore_saved(save_path(self.state_dir), boot, knobs.__getitem__)


class TwinWorld(World):
    """The world with emulated nodes; what they draw is judged afterwards."""

    def __init__(self, seed: int, n: int, seconds: float, folder: str,
                 ignores_caps_from_s: float = math.inf, faults: Faults = FAULTS) -> None:  # fmt: skip
        self.folder, self.steps = folder, round(seconds / STEP_S)
        self.budget_w: Floats = np.full(self.steps, math.inf)
        self.ignores_caps_from_s = ignores_caps_from_s
        super().__init__(seed, n, faults, node_type=TwinNode)
        self.keeps_demand = True
        self.most_mw -= (self.most_mw - self.least_mw) * 3 // 4  # of budgets to come: such as bind
        first_mw = (self.least_mw + self.most_mw) // 2
        self.line.steps, self._promises = [(60.0, first_mw)], [(60.0, first_mw, 60.0)]

    def _declaration(self, i: int) -> Declaration:
        return declaration(_cluster(f"n{i:02d}", "sticky" if i % 8 == 7 else "os"))

    def _judge(self, seconds: float) -> None:
        """The budget in force, for each step that this time touches the least."""
        first, last = int(self.now_s / STEP_S), math.ceil((self.now_s + seconds) / STEP_S)
        nodes_w = (self.promised_mw - self.terms.fixed_mw) / 1000
        self.budget_w[first:last] = np.minimum(self.budget_w[first:last], nodes_w)

    def judge_until(self, end_s: float) -> None:
        """The time after the last event, too."""
        self._account(end_s)


def _cluster(name: str, lease_class: LeaseClass) -> Cluster:
    measured, zones = calibrated(), load_machine(MACHINE).zones
    tdp_w = measured.rest_w + sum(zone.constraints[0].limit_w for zone in zones if zone.kind == "package")
    mop_w = measured.rest_w + measured.floor_w
    return Cluster(
        url="virtual", name=name, tdp_w=tdp_w, mop_w=mop_w, safe_w=mop_w + 10, boot_w=tdp_w, lease_class=lease_class,
        settle_s=SETTLE_S, watchdog_s=WATCHDOG_S,
    )  # fmt: skip


def _config(name: str, state_dir: str, declared: Declaration) -> Config:
    return Config(
        mode="optimize",
        period_ms=1000 * TICK_S,
        cpu_policy=PolicyChoice(NONE),
        gpu_policy=PolicyChoice(NONE),
        journal=JournalSettings(max_bytes=0),
        caps=Caps(rest_w=calibrated().rest_w),
        cluster=_cluster(name, declared.lease_class),
        budget=Budget(core_share=0.0),
        state_dir=state_dir,
    )


# --- judging


def running_average(power_w: Floats, window_s: float) -> Floats:
    """What a limit's own meter shows, along the first axis; it begins at its first value."""
    part = 1 - math.exp(-STEP_S / window_s)
    averages = np.empty_like(power_w)
    average = averages[0] = power_w[0]
    for at in range(1, len(power_w)):
        average = average + part * (power_w[at] - average)
        averages[at] = average
    return averages


def plain_mean(power_w: Floats, window_s: float) -> Floats:
    """Means over the last window."""
    n = max(round(window_s / STEP_S), 1)
    sums = np.cumsum(np.concatenate((np.zeros((1, *power_w.shape[1:])), power_w)), axis=0)
    means: Floats = (sums[n:] - sums[:-n]) / n
    return means


def judged(power_w: Floats, windows_s: list[float], budget_w: Floats) -> dict[str, float]:
    """``power_w``: steps x nodes, ``budget_w``: steps. See the module."""
    nodes = range(power_w.shape[1])
    drawn = sum(running_average(power_w[:, at], windows_s[at]) for at in nodes)
    allowed = np.minimum.reduce([running_average(budget_w, window_s) for window_s in set(windows_s)])
    over_w = np.asarray(drawn) - allowed
    longest = max(windows_s)
    plain_over_w = plain_mean(power_w.sum(axis=1), longest) - plain_mean(budget_w, longest)
    instant_over_w = power_w.sum(axis=1) - budget_w
    return {
        "over_ws": float(np.clip(over_w, 0, None).sum() * STEP_S),
        "over_s": float((over_w > 0).sum() * STEP_S),
        "worst_over_w": float(max(over_w.max(), 0.0)),
        "least_margin_w": float(-over_w.max()),
        "used": float(power_w.sum() / budget_w.sum()),
        "mean_w": float(power_w.sum(axis=1).mean()),
        "plain_over_ws": float(np.clip(plain_over_w, 0, None).sum() * STEP_S),
        "instant_over_ws": float(np.clip(instant_over_w, 0, None).sum() * STEP_S),
    }


def run(seed: int, n: int, seconds: float, **given: Any) -> dict[str, Any]:
    """One world, judged."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="nodectl-true-power-") as folder:
        world = TwinWorld(seed, n, seconds, folder, **given)
        world.run_for(seconds)
        world.judge_until(seconds)
        nodes = [node for node in world.nodes.values() if isinstance(node, TwinNode)]
        for node in nodes:
            node.advance(seconds)
    power_w = np.column_stack([node.power_w + node.rest_of_node_w for node in nodes])
    figures = judged(power_w, [node.window_s for node in nodes], world.budget_w)
    figures["jobs"] = sum(node.jobs_ended for node in nodes)
    return figures | {"counted": dict(world.totals.counted), "cost_s": time.monotonic() - begun}


def show(name: str, found: dict[str, Any]) -> None:
    print(
        f"{name:40} {found['over_ws']:9.1f} {found['over_s']:7.1f} {found['least_margin_w']:9.1f}"
        f" {100 * found['used']:7.1f} {found['plain_over_ws']:10.1f} {found['instant_over_ws']:8.1f}"
        f" {found['jobs']:4.0f}",
        flush=True,
    )


IGNORED: Final = "limits lose their effect, and nobody sees it"
SMALL: Final = (6, 180.0)
"""Nodes and seconds of the short run, under budgets that bind all the time after the first minute."""


def short(seed: int, is_broken: bool) -> dict[str, Any]:
    """The short run; broken: after 72 s no package limit is in force, though all of them read back as written. That
    has to be seen, or the trial could not have failed."""
    n, seconds = SMALL
    return run(seed, n, seconds, **({"ignores_caps_from_s": 0.4 * seconds} if is_broken else {}))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="six nodes and three minutes only")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    measured = calibrated()
    print(
        f"emulated: {MACHINE}, the real agent, virtual time; calibrated: {measured.rest_w:g} W outside the packages,"
        f" {measured.floor_w:g} W the packages' floor"
    )
    print(f"{'':40} {'W s over':>9} {'s over':>7} {'margin W':>9} {'used %':>7} {'plain W s':>10} {'instant':>8} jobs")
    n, seconds = SMALL
    rows = {f"{n} nodes, {seconds:g} s": short(options.seed, False), IGNORED: short(options.seed, True)}
    if not options.quick:
        rows[f"{NODES} nodes, {HOUR_S:g} s"] = run(options.seed, NODES, HOUR_S)
    for name, found in rows.items():
        show(name, found)
        print("    " + ", ".join(f"{number} {what}" for what, number in sorted(found["counted"].items())))
    save("true_power", {"machine": MACHINE, "rows": rows})
    is_kept = all(found["over_ws"] == 0 for name, found in rows.items() if name != IGNORED)
    return 0 if is_kept and rows[IGNORED]["over_ws"] > 0 else 1


if __name__ == "__main__":
    raise SystemExit(main())
