"""How near a calibration comes to the emulated node's truth: minimal operating power, latencies of knobs, caps.

EMULATED, in virtual time. What is measured is what ``calibration.limits`` measures on a real node, through the same
files, counters, NVML and writer. The truth is the model's:

- MOP: machines drawn at random from four shipped ones (watts of cores, voltage and uncore; the hidden cap below which
  the node hangs). The truth is the higher of that cap and the power at the lowest clock, which no cap reaches;
- latency: the instant at which the model's clock changes, or at which its true power has made 90 % of its way, in steps
  of 50 us, for the very requests that were measured; of RAPL on the shipped machines, by which the method was chosen,
  and on drawn ones, by which it was not;
- caps: overshoot, settling and steady error by the model's true energy.

``--quick``: 10 machines and fewer repetitions.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np

from benchmarks.experiment import save
from calibration.kernels.port import FMA, running
from calibration.limits.knob_latency import CPU_CLOCK, GPU_CLOCK, PACKAGE_POWER, LatencyPlan, measure_latency
from calibration.limits.minimal_power import KEPT, Mop, MopPlan, find_mop
from calibration.limits.probes import EffectPort
from calibration.limits.session_probes import ClockEffect, GpuEffect, Knobs, PackagePower, PackagesCap
from calibration.limits.step_response import StepResponse, measure_step, with_settling
from lab.emulated.emulated_kernels import emulated_kernels
from lab.emulated.emulated_limits import emulated_heartbeat
from nodectl.knobs.timing import KnobLatency, deadlines
from nodectl.loop.survey import Survey, survey
from nodectl.write.writer import Writer
from twin.in_process_node import InProcess
from twin.machine import Machine, load_machine
from twin.physics.model import STEP_S, Twin
from twin.programs.workload import load_workload

CAPPED: Final = ("skylake-6146", "taurus", "curie", "a100")
"""Machines whose packages have RAPL limits, without the large ones."""
CLOCKED: Final = ("skylake-6146", "curie", "taurus", "client", "rome", "xh2415", "genoa-h100", "spr-h100")
CARDS: Final = (("v100", "v100:RNN"), ("a100", "qe-pw"), ("xh2415", "qe-pw"), ("spr-h100", "qe-pw"))
NEAR_PCT: Final = 10.0
SEED: Final = 7
"""Of the machines that are judged. The search was corrected on those of 20261124."""
JUDGED: Final = 6
"""Drawn machines whose RAPL limits are timed."""
PLAN: Final = MopPlan()


@dataclass(frozen=True, slots=True)
class Node:
    """An emulated node as a calibration sees it, and its twin."""

    inside: InProcess
    found: Survey
    knobs: Knobs

    @property
    def twin(self) -> Twin:
        return self.inside.twin


@contextlib.contextmanager
def opened(machine: Machine, workload: str = "", seed: int = 1) -> Iterator[Node]:
    """With a writer that puts everything back."""
    load = load_workload(workload, machine, seed=seed) if workload else None
    with InProcess(Twin(machine, load, seed)) as inside, tempfile.TemporaryDirectory() as folder:
        found, clock = survey(inside.ports), inside.ports.clock
        with Writer(found.knobs, f"{folder}/save.jsonl", "boot", clock) as writer:
            yield Node(inside, found, Knobs(inside.ports, writer, delayed_s=lambda: inside.tree.delayed_s))


# ---- minimal operating power ---------------------------------------------------------------------------------------


class MopRow(msgspec.Struct, frozen=True):
    """One machine: the truth, what was found, and where the search ended."""

    machine: str
    truth_w: float
    hangs_below_w: float
    floor_w: float
    mop: Mop

    @property
    def is_within_a_step(self) -> bool:
        """The node does not hang under the MOP and keeps it, and no cap a step lower is as good."""
        mop_w = self.mop.mop_w
        is_good = mop_w >= self.hangs_below_w and mop_w * (1 + KEPT) >= self.floor_w
        return is_good and mop_w - self.truth_w <= self.mop.step_w


def drawn(random: np.random.Generator) -> Machine:
    """A machine like a shipped one."""
    machine = load_machine(str(random.choice(CAPPED)))
    power = machine.power
    factor = {name: float(random.uniform(0.8, 1.25)) for name in ("dynamic_w", "leak_w_per_v", "uncore_idle_w")}
    power = msgspec.structs.replace(power, **{name: getattr(power, name) * scale for name, scale in factor.items()})
    limits_w = [zone.constraints[0].limit_w for zone in machine.zones if zone.kind == "package"]
    hangs_w = float(random.uniform(0.2, 0.7)) * sum(limits_w)
    return msgspec.structs.replace(machine, power=msgspec.structs.replace(power, responsive_above_w=hangs_w))


def floor_w(twin: Twin) -> float:
    """True watts of the packages at the lowest clock, at their present temperature."""
    for domain in range(len(twin.machine.domains)):
        twin.set_domain(domain, max_khz=twin.machine.min_khz)
    zones = [number for number, zone in enumerate(twin.machine.zones) if zone.kind == "package"]
    twin.advance(0.5)
    before = [twin.zone_energy_uj(zone) for zone in zones]
    twin.advance(2.0)
    return sum(twin.zone_energy_uj(zone) - uj for zone, uj in zip(zones, before, strict=True)) / 2e6


def search(machine: Machine, seed: int) -> MopRow:
    """Measure one machine."""
    with opened(machine, seed=seed) as node, running(emulated_kernels(node.twin), FMA, range(machine.cpus)):
        cap = PackagesCap(node.knobs, node.inside.ports, node.found)
        mop = find_mop(cap, emulated_heartbeat(node.twin, seed), node.knobs, PLAN)
        low_w, hangs_w = floor_w(node.twin), machine.power.responsive_above_w
    return MopRow(machine.name, max(low_w, hangs_w, cap.lowest_w), hangs_w, low_w, mop)


# ---- latencies -----------------------------------------------------------------------------------------------------


FINE_S: Final = 0.5
"""After a request the truth is looked at in each step of the model for so long, then every ``COARSE_S``."""
COARSE_S: Final = 0.05
LEVEL_S: Final = 0.15
"""Within the readings at rest."""


class Watched:
    """A knob's effect whose true instants are noted: a clock that advances in single steps of the model, and looks.

    ``at``: the truth as it was ``late_s`` ago. It is an ``EffectPort`` and the ``Clock`` of its measurement at once.
    """

    def __init__(self, node: Node, effect: EffectPort, at: Callable[[], float], late_s: float = 0.0) -> None:
        self._node, self._effect, self._at, self._late_s = node, effect, at, late_s
        self.knob, self.unit, self.shows = effect.knob, effect.unit, effect.shows
        self._requested_ns = 0
        self._seen: list[tuple[float, float]] = []  # seconds since the request, truth
        self.requests: list[tuple[float, list[tuple[float, float]]]] = []  # value, and what followed

    def now_ns(self) -> int:
        return self._node.knobs.now_ns()

    def sleep_until_ns(self, deadline_ns: int) -> None:
        while (now_ns := self.now_ns()) < deadline_ns:
            step_s = STEP_S if now_ns < self._requested_ns + FINE_S * 1e9 else COARSE_S
            self._node.knobs.sleep_until_ns(min(now_ns + round(step_s * 1e9), deadline_ns))
            self._seen.append(((self.now_ns() - self._requested_ns) / 1e9, self._at()))

    def request(self, value: float) -> None:
        self._requested_ns, self._seen = self.now_ns(), []
        self.requests.append((value, self._seen))
        self._effect.request(value)

    def observe(self) -> float:
        return self._effect.observe()

    def release(self) -> None:
        self._effect.release()

    def truth(self, low: float, high: float) -> tuple[list[float], list[float]]:
        """Seconds until 90 % of the way, up and down; the first two requests were for the levels."""
        top, bottom = (_level(seen) for _, seen in self.requests[:2])
        found: dict[float, list[float]] = {low: [], high: []}
        for value, seen in self.requests[2:]:
            old, new = (bottom, top) if value == high else (top, bottom)
            found[value].append(next(at_s - self._late_s for at_s, truth in seen if (truth - old) / (new - old) >= 0.9))
        return found[high], found[low]


def _level(seen: Sequence[tuple[float, float]]) -> float:
    """Of the last ``LEVEL_S``, however often the truth was looked at."""
    last = [truth for at_s, truth in seen if at_s > seen[-1][0] - LEVEL_S]
    return float(np.mean(last))


class LatencyRow(msgspec.Struct, frozen=True):
    """One knob of one machine; true medians and 95th percentiles, up and down."""

    machine: str
    measured: KnobLatency
    true_median_s: tuple[float, float]
    true_p95_s: tuple[float, float]

    @property
    def pairs(self) -> tuple[tuple[float, float], ...]:
        """Measured and true: the medians and the 95th percentiles, up and down."""
        measured = self.measured
        return (
            *zip((measured.up.median_s, measured.down.median_s), self.true_median_s, strict=True),
            *zip((measured.up.p95_s, measured.down.p95_s), self.true_p95_s, strict=True),
        )

    @property
    def errors_pct(self) -> tuple[float, ...]:
        """Of each pair."""
        return tuple(100 * (found / true - 1) for found, true in self.pairs)

    @property
    def is_near(self) -> bool:
        """Within ``NEAR_PCT`` of the truth."""
        return max(map(abs, self.errors_pct)) <= NEAR_PCT


def compared(
    node: Node, effect: EffectPort, at: Callable[[], float], values: tuple[float, float], plan: LatencyPlan,
    late_s: float = 0.0,
) -> LatencyRow:  # fmt: skip
    """Measure a knob, and its truth meanwhile."""
    watched = Watched(node, effect, at, late_s)
    measured = measure_latency(watched, watched, values, plan, np.random.default_rng(SEED))
    up, down = watched.truth(*values)
    medians = float(np.median(up)), float(np.median(down))
    return LatencyRow(
        node.twin.machine.name, measured, medians, (float(np.percentile(up, 95)), float(np.percentile(down, 95)))
    )


def cpu_latency(name: str, repeats: int) -> LatencyRow:
    """The clock limit of the first domain, under load."""
    machine = load_machine(name)
    with opened(machine) as node, running(emulated_kernels(node.twin), FMA, range(machine.cpus)):
        effect = ClockEffect(node.knobs, node.inside.ports, node.found.layout)
        plan = msgspec.structs.replace(CPU_CLOCK, repeats=repeats)
        values = float(machine.min_khz), float(machine.base_khz)
        return compared(node, effect, lambda: node.twin.domain_khz(0), values, plan)


RAPL_NS: Final = 4_000_000
"""True power is a mean over so much, in the middle of it: a capped package switches between two clocks meanwhile."""


class TruePower:
    """Mean true power of the node since the call before, or since ``window_ns`` ago if that is earlier."""

    def __init__(self, twin: Twin, window_ns: int = 0) -> None:
        self._twin, self._window_ns = twin, window_ns
        self._calls = deque([(twin.age_ns, twin.node_j)])

    def __call__(self) -> float:
        now_ns, now_j = self._twin.age_ns, self._twin.node_j
        while len(self._calls) > 1 and self._calls[1][0] <= now_ns - self._window_ns:
            self._calls.popleft()
        before_ns, before_j = self._calls[0]
        self._calls.append((now_ns, now_j))
        return (now_j - before_j) * 1e9 / (now_ns - before_ns) if now_ns > before_ns else float("nan")


def drawn_w(node: Node, cap: PackagesCap) -> float:
    """Watts of the packages without a further limit, warm."""
    node.knobs.sleep_until_ns(node.knobs.now_ns() + 10**10)
    cap.read_watts()
    node.knobs.sleep_until_ns(node.knobs.now_ns() + 10**9)
    return cap.read_watts()


def rapl(machine: Machine, repeats: int) -> tuple[LatencyRow, list[tuple[StepResponse, StepResponse]]]:
    """The latency of the packages' limits, and their step responses: measured, and by true energy."""
    with opened(machine) as node, running(emulated_kernels(node.twin), FMA, range(machine.cpus)):
        cap = PackagesCap(node.knobs, node.inside.ports, node.found)
        watts = drawn_w(node, cap)
        low_w, high_w = 0.7 * watts, 0.95 * watts
        steps = [both_steps(node, cap, caps) for caps in ((high_w, low_w), (low_w, high_w))]
        plan = msgspec.structs.replace(
            PACKAGE_POWER, repeats=repeats, settle_s=2 * cap.settle_s, give_up_s=2 * cap.settle_s
        )
        effect = PackagePower(cap)
        row = compared(node, effect, TruePower(node.twin, RAPL_NS), (low_w, high_w), plan, RAPL_NS / 2e9)
    measured = with_settling(row.measured, [found for found, _ in steps])
    return msgspec.structs.replace(row, measured=measured), steps


def both_steps(node: Node, cap: PackagesCap, caps_w: tuple[float, float]) -> tuple[StepResponse, StepResponse]:
    """The same step twice: by the energy counters, and by the node's true energy without what the caps do not reach."""
    seconds = max(4 * cap.settle_s, 2.0)
    measured = measure_step("rapl/*/long_term_uw", cap.set_cap_w, cap.read_watts, node.knobs, caps_w, seconds)
    true = TruePower(node.twin)
    others_w = _others_w(node, cap, true)
    step = measure_step("truth", cap.set_cap_w, lambda: true() - others_w, node.knobs, caps_w, seconds)
    cap.release()
    return measured, step


def _others_w(node: Node, cap: PackagesCap, true: TruePower) -> float:
    """Watts of the node outside its packages, now."""
    true(), cap.read_watts()
    node.knobs.sleep_until_ns(node.knobs.now_ns() + 10**9)
    return true() - cap.read_watts()


def gpu_latency(name: str, workload: str, knob: str, repeats: int) -> LatencyRow:
    """A card's clock lock or power limit, under load."""
    machine = load_machine(name)
    assert machine.gpu
    with opened(machine, workload) as node:
        node.knobs.sleep_until_ns(node.knobs.now_ns() + 2 * 10**9)
        effect = GpuEffect(node.knobs, node.inside.ports, 0, knob)
        card = machine.gpu
        values = card.min_khz / 1e3, card.max_khz / 1e3
        if knob == "power_limit_mw":
            watts = effect.watts()
            values = max(0.7 * watts, card.power_limit_min_w) * 1e3, card.power_limit_w * 1e3
        plan = msgspec.structs.replace(GPU_CLOCK, repeats=repeats)
        at = lambda: float(node.twin.gpus.gpu[0].sm_clock_mhz)  # noqa: E731
        return compared(node, effect, at, values, plan)


# ---- report --------------------------------------------------------------------------------------------------------


def _mops(number: int) -> list[MopRow]:
    random = np.random.default_rng(SEED)
    rows = [search(drawn(random), seed) for seed in range(number)]
    good = sum(row.is_within_a_step for row in rows)
    above = [row.mop.mop_w - row.truth_w for row in rows]
    ends = ", ".join(f"{count} {stop}" for stop, count in Counter(row.mop.stop for row in rows).most_common())
    print(f"EMULATED: minimal operating power of {number} random machines, steps of {PLAN.step_w:g} W")
    print(f"within one step: {good} of {number}; above the truth by {np.median(above):.1f} W in the median,")
    print(f"{min(above):.1f} to {max(above):.1f} W; the search ended by: {ends}")
    recovered = [row for row in rows if row.mop.has_recovered]
    worst_s = max(row.mop.back_off_s for row in rows)
    print(f"responsive again under it: {len(recovered)} of {number}; the back-off took {worst_s:.1f} s at most")
    for row in rows:
        if not row.is_within_a_step:
            print(f"  {row.machine}: {row.mop.mop_w:g} W, truth {row.truth_w:.1f} W ({row.mop.stop}: {row.mop.why})")
    return rows


def _latencies(repeats: int) -> list[LatencyRow]:
    rows = [cpu_latency(name, repeats) for name in CLOCKED]
    for name, workload in CARDS:
        rows += [gpu_latency(name, workload, knob, repeats) for knob in ("sm_clock_mhz", "power_limit_mw")]
    return rows


def _print_latencies(rows: Sequence[LatencyRow]) -> None:
    print(f"\nEMULATED: latency from request to effect, ms\n{'machine':14}{'knob':22}{'':6}", end="")
    print(f"{'n':>4}{'median':>9}{'truth':>9}{'p95':>9}{'truth':>9}{'noise %':>9}{'effect by':>10}")
    for row in rows:
        (due,) = deadlines([row.measured])
        for number, (way, spread) in enumerate((("up", row.measured.up), ("down", row.measured.down))):
            cells = spread.median_s, row.true_median_s[number], spread.p95_s, row.true_p95_s[number]
            text = "".join(f"{1e3 * cell:9.3f}" for cell in cells)
            noise = f"{100 * row.measured.noise:9.2f}{1e3 * due.effect_s:10.2f}" if way == "up" else ""
            print(f"{row.machine:14}{row.measured.knob:22}{way:6}{spread.n:4}{text}{noise}")
    for name, is_power in (("clocks", False), ("power", True)):
        errors = np.abs(
            [error for row in rows if (row.measured.seen_by == "W") == is_power for error in row.errors_pct]
        )
        print(
            f"{name}: {100 * np.mean(errors <= NEAR_PCT):.0f} % of {errors.size} medians and 95th percentiles are"
            f" within {NEAR_PCT:g} %; median error {np.median(errors):.1f} %, worst {errors.max():.1f} %"
        )


def _print_steps(rows: Sequence[tuple[str, StepResponse, StepResponse]]) -> None:
    print(f"\nEMULATED: steps of RAPL caps; measured / truth\n{'machine':14}{'watts':>16}", end="")
    print("".join(f"{title:>18}" for title in ("reach ms", "settle s", "overshoot %", "above cap %", "error %")))
    for name, found, true in rows:
        values = [
            (1e3 * one.reach_s, one.settle_s, 100 * one.overshoot, 100 * one.above, 100 * one.steady_error)
            for one in (found, true)
        ]
        cells = "".join(f"{a:9.2f} /{b:7.2f}" for a, b in zip(*values, strict=True))
        print(f"{name:14}{found.from_w:7.1f} ->{found.to_w:6.1f}{cells}")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.calibration_limits", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="10 machines and fewer repetitions")
    options = parser.parse_args(argv)
    mops = _mops(10 if options.quick else 100)
    latencies = _latencies(20 if options.quick else 60)
    steps: list[tuple[str, StepResponse, StepResponse]] = []
    random = np.random.default_rng(SEED)
    machines = [*map(load_machine, CAPPED), *(drawn(random) for _ in range(JUDGED))]
    for machine in machines[:2] if options.quick else machines:
        row, found = rapl(machine, 3 if options.quick else 10)
        latencies.append(row)
        steps += [(machine.name, *pair) for pair in found]
    _print_latencies(latencies)
    _print_steps(steps)
    content: dict[str, Any] = {"emulated": True, "mop": mops, "latency": latencies, "steps": steps}
    print("JSON:", save("calibration_limits", content))
    is_near = all(row.is_within_a_step for row in mops) and all(row.is_near for row in latencies)
    return 0 if is_near else 1


if __name__ == "__main__":
    raise SystemExit(main())
