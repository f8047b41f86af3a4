"""All limits of one node, one part after the other, in one session. What cannot be measured is a line.

idle   ─ packages and meter without load
load   ─ one thread of ``fma`` on each core, which draws all that a cap can take away
energy ─ as other readers see it
clock  ─ latency of a clock limit, of cores and of the uncore
power  ─ step responses and latency of the packages' power limits, the rest of the node
SCMI   ─ the same of a controller's cap, where one is named
MOP    ─ last, since it is the one that may hang the node
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import math
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec
import numpy as np

from calibration.kernels.port import FMA
from calibration.limits import scmi_cap
from calibration.limits.knob_latency import CPU_CLOCK, GPU_CLOCK, PACKAGE_POWER, UNCORE_CLOCK, measure_latency
from calibration.limits.minimal_power import Mop, MopPlan, MopStep, find_mop
from calibration.limits.other_readers import EnergyReader, ReaderCheck, check_of, compare
from calibration.limits.probes import HeartbeatPort, LimitsError
from calibration.limits.scmi_cap import ScmiCap
from calibration.limits.session_probes import (
    ClockEffect,
    GpuEffect,
    Knobs,
    PackageEnergy,
    PackagePower,
    PackagesCap,
    UncoreEffect,
)
from calibration.limits.standing_power import StandingPower, highest_recorded_w, mean_watts, standing_power
from calibration.limits.step_response import StepResponse, measure_step, with_settling
from calibration.measure.node_session import METERS, NodeMeter, NodeSession
from nodectl.calibrated.node_calibration import expiry
from nodectl.calibrated.node_identity import Identity, identity
from nodectl.knobs.timing import KnobLatency
from nodectl.knobs.uncore_limit import KIND as UNCORE
from pmu.instruments import hwmon
from pmu.layout import Column

STEP_FROM: Final = 0.95
STEP_TO: Final = 0.7
"""Ours: the caps of a step response, as shares of what the packages draw under the load."""

WARM_S: Final = 10.0
"""Ours: the die has settled by then; the heat sink has not, which changes watts by some per cent."""

IDLE_S: Final = 5.0

BY_METER: Final = "packages and DRAM, idle to load"

SEED: Final = 1
"""Of the moments at which knobs are moved."""

type_found = TypeVar("type_found")


class Limits(msgspec.Struct, frozen=True):
    """What was measured of a node. ``missing``: a line for each part that was not."""

    measured_at: str
    is_emulated: bool
    standing: StandingPower | None
    mop: Mop | None
    node_mop_w: float | None
    latency: tuple[KnobLatency, ...]
    step: tuple[StepResponse, ...]
    missing: tuple[str, ...]
    expires_at: str = ""
    identity: Identity | None = None
    reader: tuple[ReaderCheck, ...] = ()


def measure_limits(
    session: NodeSession,
    knobs: Knobs,
    heartbeat: HeartbeatPort,
    plan: MopPlan,
    with_gpus: bool = False,
    scmi: ScmiCap | None = None,
    note: Callable[[str], None] = lambda line: None,
    open_reader: Callable[[], EnergyReader] | None = None,
) -> Limits:
    """Measure every part. ``knobs``: of the session's writer. ``with_gpus``: measure their knobs too, under a load that
    is already running there. ``scmi``: the cap of a controller, whose knob the session's writer has. ``open_reader``:
    opens another program's reader of RAPL. ``KeyboardInterrupt`` passes; the session puts every knob back."""
    run = _Run(session, knobs, note)
    standing = run.standing()
    if open_reader:
        run.part("RAPL by another reader", lambda: run.other_reader(open_reader()))
    run.part("latency of clock limits", run.clock_latency)
    run.part(f"latency of {UNCORE.name}", run.uncore_latency)
    for name in ("sm_clock_mhz", "power_limit_mw") if with_gpus else ():
        run.part(f"latency of gpu/*/{name}", functools.partial(run.gpu_latency, name))
    run.part("power limits of the packages", run.package_limits)
    if scmi:
        run.part(f"cap {scmi.knob}", lambda: run.scmi_cap(scmi))
    mop = run.part("minimal operating power", lambda: run.mop(heartbeat, plan))
    session.stop_kernel()
    now = datetime.datetime.now(datetime.UTC)
    at, until = now.isoformat(timespec="seconds"), expiry(now)
    who = identity(session.ports, session.found.layout)
    boards_w = sum(gpu.min_power_limit_w for gpu in session.found.layout.gpus)
    node_w = mop.mop_w + standing.rest_w + boards_w if mop and standing.rest_w is not None else None
    is_emulated, missing = session.kernels.is_emulated, (*run.missing, *standing.missing)
    return Limits(
        at, is_emulated, standing, mop, node_w, tuple(run.latency), tuple(run.steps), missing, until, who,
        tuple(run.readers),
    )  # fmt: skip


class _Run:
    """The parts, and what they have found so far."""

    def __init__(self, session: NodeSession, knobs: Knobs, note: Callable[[str], None]) -> None:
        self._session, self._knobs, self._note = session, knobs, note
        self._random = np.random.default_rng(SEED)
        self._loaded_w = math.nan
        self.latency: list[KnobLatency] = []
        self.steps: list[StepResponse] = []
        self.readers: list[ReaderCheck] = []
        self.missing: list[str] = []

    def part(self, name: str, measure: Callable[[], type_found]) -> type_found | None:
        """What it found; None, and a line, if it cannot be measured."""
        self._note(name)
        try:
            return measure()
        except LimitsError as error:
            self.missing.append(f"{name}: {error}")
            return None

    def standing(self) -> StandingPower:
        """Idle, then under the load, which stays."""
        self._note("idle power")
        session, knobs = self._session, self._knobs
        columns = [one for one in hwmon.find(session.ports).shown if one.unit == "W" and _is_meter(one)]
        meter, layout = NodeMeter(session.ports, columns).watts, session.found.layout
        with (
            contextlib.closing(PackageEnergy(session.ports, layout)) as energy,
            contextlib.closing(PackageEnergy(session.ports, layout, with_dram=True)) as with_dram,
        ):
            idle, idle_w = mean_watts(energy, meter, knobs, IDLE_S), with_dram.watts()
            session.start_kernel(FMA, "all")
            self._note("power under load")
            knobs.sleep_until_ns(knobs.now_ns() + round(WARM_S * 1e9))
            with_dram.watts()
            loaded, loaded_w = mean_watts(energy, meter, knobs, IDLE_S), with_dram.watts()
        self._loaded_w = loaded[0]
        if not math.isnan(loaded[1] - idle[1]):
            self.readers.append(check_of("the node's meter", BY_METER, loaded_w - idle_w, loaded[1] - idle[1]))
        gpus_w = sum(GpuEffect(knobs, session.ports, gpu.index, "").watts() for gpu in session.found.layout.gpus)
        return standing_power(idle, loaded, gpus_w, highest_recorded_w(session.ports.files, columns))

    def other_reader(self, reader: EnergyReader) -> None:
        """The same counters by another program, under the load."""
        self.readers += compare(reader, self._session.ports.files, self._session.found.layout, self._knobs)

    def clock_latency(self) -> None:
        """Of the first domain: all are of one kind."""
        layout = self._session.found.layout
        domain = layout.domains[0]
        values = float(domain.min_khz), float(domain.base_khz or domain.max_khz)
        with contextlib.closing(ClockEffect(self._knobs, self._session.ports, layout)) as effect:
            self.latency.append(measure_latency(effect, self._knobs, values, CPU_CLOCK, self._random))

    def uncore_latency(self) -> None:
        """Of the first package: all are of one kind."""
        effect = UncoreEffect(self._knobs, self._session.ports, self._session.found)
        self.latency.append(measure_latency(effect, self._knobs, effect.values, UNCORE_CLOCK, self._random))

    def gpu_latency(self, name: str) -> None:
        """Of the first card."""
        if not self._session.found.layout.gpus:
            raise LimitsError(f"no GPU to measure: {self._session.ports.nvml_why}")
        gpu = self._session.found.layout.gpus[0]
        effect = GpuEffect(self._knobs, self._session.ports, gpu.index, name)
        values = float(gpu.clocks_mhz[0]), float(gpu.clocks_mhz[-1])
        if name == "power_limit_mw":
            least_w = max(STEP_TO * effect.watts(), gpu.min_power_limit_w)
            values = 1e3 * least_w, 1e3 * gpu.default_power_limit_w
        self.latency.append(measure_latency(effect, self._knobs, values, GPU_CLOCK, self._random))

    def package_limits(self) -> None:
        """Step responses, and the latency."""
        cap, knobs = self._cap(), self._knobs
        high_w, low_w = STEP_FROM * self._loaded_w, STEP_TO * self._loaded_w
        try:
            for caps_w in ((high_w, low_w), (low_w, high_w)):
                seconds = max(4 * cap.settle_s, 2.0)
                step = measure_step(PackagePower.knob, cap.set_cap_w, cap.read_watts, knobs, caps_w, seconds)
                self.steps.append(step)
        finally:
            with contextlib.suppress(LimitsError):
                cap.release()
        plan = msgspec.structs.replace(PACKAGE_POWER, settle_s=cap.settle_s, give_up_s=2 * cap.settle_s)
        found = measure_latency(PackagePower(cap), knobs, (low_w, high_w), plan, self._random)
        self.latency.append(with_settling(found, self.steps))

    def scmi_cap(self, cap: ScmiCap) -> None:
        """Step responses, and the latency, between shares of what is drawn without the cap."""
        knobs = self._knobs
        with contextlib.closing(cap):
            cap.attach(knobs, self._session.ports, self._session.found.layout)
            cap.observe()
            knobs.sleep_until_ns(knobs.now_ns() + round(scmi_cap.SETTLE_S * 1e9))
            drawn_w = cap.observe()
            low_w, high_w = max(STEP_TO * drawn_w, cap.lowest_w), min(STEP_FROM * drawn_w, cap.highest_w)
            try:
                for caps_w in ((high_w, low_w), (low_w, high_w)):
                    self.steps.append(
                        measure_step(cap.knob, cap.request, cap.observe, knobs, caps_w, scmi_cap.SETTLE_S)
                    )
                found = measure_latency(cap, knobs, (low_w, high_w), scmi_cap.PLAN, self._random)
            finally:
                with contextlib.suppress(LimitsError):
                    cap.release()
        self.latency.append(with_settling(found, self.steps))

    def mop(self, heartbeat: HeartbeatPort, plan: MopPlan) -> Mop:
        """The search."""
        return find_mop(self._cap(), heartbeat, self._knobs, plan, lambda step: self._note(_line(step)))

    def _cap(self) -> PackagesCap:
        return PackagesCap(self._knobs, self._session.ports, self._session.found)


def _is_meter(column: Column) -> bool:
    return column.name.split("/")[1] in METERS


def _line(step: MopStep) -> str:
    verdict = step.why or f"heartbeat {step.late_s * 1e3:.2f} ms late (99 %)"
    return f"cap {step.cap_w:g} W: {step.power_w:.1f} W, {verdict}"
