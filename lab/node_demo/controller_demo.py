"""A cap's way through the controller, in virtual time: the real agent, the real firmware, the emulated chip.

The administrator changes the node's cap; the agent captures, sets and verifies it over SCMI; the firmware lowers clocks
and voltages; the chip's power is recorded in every control slot. Then the controller is killed, the load gets heavier
and the cap lower while it is dead, and it restarts without any state. The printed figures are read from the chip and
the firmware, not from the agent.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from lab.node_demo.node_figures import LABEL, pyplot
from lab.node_demo.pulp_node import MAX_KHZ, SLOT_NS, TICK_NS, PulpNode
from nodectl.config import Budget, Caps, Config, PolicyChoice, Scmi
from nodectl.decide.node_cap import CapRequest
from nodectl.journal import open_journal
from nodectl.journal.decide_again import replay
from nodectl.loop.agent import Agent
from nodectl.policies.registry import NONE
from twin.pulp.plant import CLASSES

REST_W: Final = 40.0
LIGHT, HEAVY = CLASSES[2], CLASSES[3]

CAPS_W: Final = (
    (0.55, 260.0),
    (1.55, 160.0),
    (2.55, 220.0),
    (3.55, 130.0),
    (4.55, 190.0),
    (6.25, 150.0),
    (8.55, 230.0),
)
"""When the administrator requests which cap, in seconds and watts of the whole node."""

KILLED_S, HEAVIER_S, RETURNED_S, END_S = 5.23, 5.6, 7.53, 9.6

WITHIN: Final = 2
"""Control slots from the change at the firmware to the first in which the package must be at or below the cap."""

AT_CAP: Final = 1.02
"""A slot counts as within the cap up to here: the chip's sensors are exact and its load is constant."""

SETTLED_SLOTS: Final = 10


class Step(msgspec.Struct, frozen=True):
    """One change of the cap while the controller ran; watts are the packages', ``None``: not reached within the step.

    ``delay_ms``: from the agent's tick that learns of it (at ``tick_s``) to the change at the firmware. ``slots``: from
    there to the first slot at or below the cap. ``highest_w``: of all slots after ``WITHIN``; ``settled_w``: mean from
    the tenth on.
    """

    at_s: float
    tick_s: float
    asked_w: float
    enforced_w: float
    before_w: float
    delay_ms: float
    slots: int | None
    highest_w: float
    settled_w: float

    @property
    def is_followed(self) -> bool:
        """Whether it was in force as requested, and the package at or below it in time and afterwards."""
        in_time = self.slots is not None and self.slots <= WITHIN
        return self.enforced_w == self.asked_w and in_time and self.highest_w <= AT_CAP * self.enforced_w


class Outage(msgspec.Struct, frozen=True):
    """The controller's death and return; times in seconds of the run, ``None``: that did not happen.

    ``slots_above_after``: slots above the cap, from two slots after the present cap was in force again; and the highest
    of them. The controller takes its own last clocks as the chip's, but the node's own limits have kept clocks lower,
    so its model of the chip is wrong until new measurements correct it.
    """

    killed_s: float
    found_out_s: float | None
    highest_w: float
    under_control_s: float | None
    cap_then_w: float
    returned_s: float
    in_force_again_s: float | None
    uncapped_peak_w: float
    handed_back_s: float | None
    slots_above_after: int
    highest_after_w: float


class Run(msgspec.Struct, frozen=True):
    """The whole demonstration. ``replayed_equal``: a replay of the journal made the same decisions."""

    steps: list[Step]
    outage: Outage
    restored_to: str
    alarms: int
    said: list[tuple[float, str]]
    replayed_equal: bool
    emulated: bool = True

    @property
    def is_as_promised(self) -> bool:
        """Whether every cap was followed, the outage was noticed and overcome, and everything was restored."""
        outage = self.outage
        ends = (outage.found_out_s, outage.under_control_s, outage.in_force_again_s, outage.handed_back_s)
        is_over = all(end is not None for end in ends)
        return (
            all(step.is_followed for step in self.steps)
            and is_over
            and self.restored_to == "no cap, as captured"
            and self.replayed_equal
        )


class Traces(msgspec.Struct, frozen=True):
    """What the figure shows. ``power_w`` per slot; ``in_force_w`` every 125 us (NaN: none, or no controller);
    ``limit_ghz`` of the node's own clock limits at each tick."""

    power_w: NDArray[np.float64]
    in_force_w: NDArray[np.float64]
    tick_s: NDArray[np.float64]
    limit_ghz: NDArray[np.float64]


class _Administrator:
    """The source of caps: which is requested when. ``heard_s``: when the agent learned of each cap."""

    def __init__(self) -> None:
        self.heard_s: list[float] = []

    def request(self, now_ns: int) -> CapRequest | None:
        """The last cap of ``CAPS_W`` whose time has come."""
        requested = [watts for at_s, watts in CAPS_W if now_ns >= at_s * 1e9]
        if len(requested) > len(self.heard_s):
            self.heard_s.append(now_ns / 1e9)
        return CapRequest(requested[-1], "the demonstration's administrator") if requested else None


def run(progress: Callable[[float], None] = lambda share: None) -> tuple[Run, Traces]:
    """Some ten seconds of a node, in about as many of this machine."""
    node = PulpNode(LIGHT)
    power = node.plant.trace(round(END_S * 1e9) // SLOT_NS + 2000)
    node.events = [
        (round(KILLED_S * 1e9), node.kill_controller),
        (round(HEAVIER_S * 1e9), lambda: node.plant.capacitance.fill(HEAVY)),
        (round(RETURNED_S * 1e9), node.start_controller),
    ]
    administrator = _Administrator()
    said: list[tuple[float, str]] = []
    ticks: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory(prefix="nodectl-demo-") as state_dir:
        with Agent.open(
            node.ports, _config(state_dir), lambda line: said.append((node.now_ns / 1e9, line)),
            caps=administrator, connect=node.connect,
        ) as agent:  # fmt: skip
            while node.now_ns < END_S * 1e9:
                agent.tick()
                ticks.append((node.now_ns / 1e9, min(node.limits_khz) / 1e6))
                progress(node.now_ns / 1e9 / END_S)
        report = replay(open_journal(Path(state_dir) / "journal"))
    after = node.cap_in_force_mw()
    watts = power[: node.plant.traced].astype(np.float64)
    caps = np.array(node.caps_mw, np.float64)
    result = Run(
        steps=[
            _step(watts, caps, number, heard_s)
            for number, heard_s in enumerate(administrator.heard_s)
            if not _is_during_outage(CAPS_W[number][0])
        ],
        outage=_outage(watts, caps, ticks, said),
        restored_to="no cap, as captured" if after == 0 else f"{after} mW, which was not captured",
        alarms=sum("ALARM" in line for _, line in said),
        said=said,
        replayed_equal=report.is_equal and report.decided > 0,
    )
    tick_s, limit_ghz = np.array(ticks).T
    return result, Traces(watts, np.where(caps > 0, caps / 1e3, np.nan), tick_s, limit_ghz)


def _config(state_dir: str) -> Config:
    return Config(
        mode="optimize",
        cpu_policy=PolicyChoice(NONE),
        gpu_policy=PolicyChoice(NONE),
        caps=Caps(rest_w=REST_W),
        scmi=Scmi("scmi+inproc:", {"node/cap_mw": "package"}),
        budget=Budget(core_share=0.0),
        state_dir=state_dir,
    )


def _is_during_outage(at_s: float) -> bool:
    return KILLED_S <= at_s < RETURNED_S


def _slot(seconds: float) -> int:
    """The first slot that begins at or after a moment."""
    return -int(-seconds * 1e9 // SLOT_NS)


def _step(watts: NDArray[np.float64], caps: NDArray[np.float64], number: int, tick_s: float) -> Step:
    at_s, node_w = CAPS_W[number]
    requested_w = node_w - REST_W
    ends = [at_s for at_s, _ in CAPS_W[number + 1 :]] + [KILLED_S if at_s < KILLED_S else END_S]
    first, last = round(tick_s * 1e9) // TICK_NS - 1, round(min(ends) * 1e9) // TICK_NS
    changed = first + int(np.argmax(caps[first:last] != caps[first]))
    changed_s = (changed + 1) * TICK_NS / 1e9
    enforced_w = float(caps[changed]) / 1e3
    begin, end = _slot(changed_s), _slot(min(ends)) - 1
    at_cap = np.flatnonzero(watts[begin:end] <= AT_CAP * enforced_w)
    return Step(
        at_s=at_s,
        tick_s=tick_s,
        asked_w=requested_w,
        enforced_w=enforced_w,
        before_w=float(watts[begin - 2]),
        delay_ms=(changed_s - tick_s) * 1e3,
        slots=int(at_cap[0]) if at_cap.size else None,
        highest_w=float(watts[begin + WITHIN : end].max()),
        settled_w=float(watts[begin + SETTLED_SLOTS : end].mean()),
    )


def _outage(
    watts: NDArray[np.float64],
    caps: NDArray[np.float64],
    ticks: list[tuple[float, float]],
    said: list[tuple[float, str]],
) -> Outage:
    killed, returned = _slot(KILLED_S), _slot(RETURNED_S)
    lowest_w = min(node_w for at_s, node_w in CAPS_W if _is_during_outage(at_s)) - REST_W
    above = np.flatnonzero(watts[killed:returned] > AT_CAP * lowest_w)
    under = killed + int(above[-1]) + 1 if above.size else killed
    again_s = _in_force_again_s(caps, lowest_w)
    next_s = min(at_s for at_s, _ in CAPS_W if at_s > RETURNED_S)
    handed = [at_s for at_s, ghz in ticks if at_s > RETURNED_S and ghz * 1e6 >= MAX_KHZ]
    since = watts[_slot(again_s or RETURNED_S) + WITHIN : _slot(next_s)]
    return Outage(
        killed_s=KILLED_S,
        found_out_s=next((at_s for at_s, line in said if "silent" in line), None),
        highest_w=float(watts[killed:returned].max()),
        under_control_s=under * SLOT_NS / 1e9 if under < returned else None,
        cap_then_w=lowest_w,
        returned_s=RETURNED_S,
        in_force_again_s=again_s,
        uncapped_peak_w=float(watts[returned : _slot(again_s or END_S) + WITHIN].max()),
        handed_back_s=handed[0] if handed else None,
        slots_above_after=int((since > AT_CAP * lowest_w).sum()),
        highest_after_w=float(since.max()),
    )


def _in_force_again_s(caps: NDArray[np.float64], cap_w: float) -> float | None:
    """When the returned controller has a cap in force again that is no higher than this; None: never."""
    since_return = caps[round(RETURNED_S * 1e9) // TICK_NS :]
    again = np.flatnonzero((since_return > 0) & (since_return <= cap_w * 1e3))
    return RETURNED_S + int(again[0]) * TICK_NS / 1e9 if again.size else None


def lines(result: Run) -> list[str]:
    """The figures, as lines of text."""
    head = "requested  in force   before   agent to firmware   slots to the cap   highest after 2   settled mean"
    rows = [head]
    for step in result.steps:
        slots = "never" if step.slots is None else f"{step.slots} ({step.slots * SLOT_NS / 1e6:g} ms)"
        rows.append(
            f"{step.asked_w:6.0f} W {step.enforced_w:8.1f} W {step.before_w:6.1f} W {step.delay_ms:16.2f} ms"
            f" {slots:>18}"
            f" {step.highest_w:11.1f} ({step.highest_w / step.enforced_w:.3f}) {step.settled_w:7.1f} W"
            f" ({step.settled_w / step.enforced_w:.3f})"
        )
    outage = result.outage

    def after(moment: float | None, since: float) -> str:
        return "never" if moment is None else f"{(moment - since) * 1e3:.0f} ms after"

    rows += [
        "",
        f"   controller killed at {outage.killed_s:.2f} s: alarm {after(outage.found_out_s, outage.killed_s)};"
        f" without it the package drew up to {outage.highest_w:.1f} W;",
        f"   kept by the node's own clock limits at or below {outage.cap_then_w:.0f} W"
        f" {after(outage.under_control_s, CAPS_W[5][0])} that cap was requested",
        f"   started again at {outage.returned_s:.2f} s, without any state: cap in force"
        f" {after(outage.in_force_again_s, outage.returned_s)} (peak until then {outage.uncapped_peak_w:.1f} W),"
        f" handed back {after(outage.handed_back_s, outage.returned_s)}",
        f"   slots above the cap since it was in force again: {outage.slots_above_after}"
        f" (highest {outage.highest_after_w:.1f} W)",
        f"   at the end: {result.restored_to}; {result.alarms} alarm; decisions replayed from the journal:"
        f" {'equal' if result.replayed_equal else 'NOT EQUAL'}",
    ]
    return rows


def plot(result: Run, traces: Traces, out: Path) -> None:
    """The whole run, one change of the cap slot by slot, the outage, and the node's own clock limits."""
    plots = pyplot()
    figure, axes = plots.subplot_mosaic(
        [["all", "all"], ["step", "outage"], ["limits", "limits"]],
        figsize=(12, 10), height_ratios=[3, 3, 1.3], constrained_layout=True,
    )  # fmt: skip
    slot_s = (np.arange(len(traces.power_w)) + 1) * SLOT_NS / 1e9
    cap_s = (np.arange(len(traces.in_force_w)) + 1) * TICK_NS / 1e9
    requested_s = [0.0, *np.repeat([at_s for at_s, _ in CAPS_W], 2), END_S]
    requested_w = [np.nan, np.nan, *np.repeat([watts - REST_W for _, watts in CAPS_W], 2)]

    def draw(axis: Any, from_s: float, to_s: float, by_slot: bool) -> None:
        shown = (slot_s >= from_s) & (slot_s <= to_s)
        style = {"marker": ".", "drawstyle": "steps-pre"} if by_slot else {}
        axis.plot(
            slot_s[shown], traces.power_w[shown], lw=0.9, color="black", label="package, mean of each slot", **style
        )
        shown = (cap_s >= from_s) & (cap_s <= to_s)
        axis.plot(cap_s[shown], traces.in_force_w[shown], lw=1.6, color="tab:red", label="cap in force at the firmware")
        axis.plot(requested_s, requested_w, lw=1.2, ls="--", color="tab:blue", label="cap requested for the packages")
        axis.set_xlim(from_s, to_s)
        axis.set_ylabel("W")
        axis.grid(alpha=0.3)

    draw(axes["all"], 0.0, END_S, by_slot=False)
    axes["all"].axvspan(KILLED_S, RETURNED_S, color="tab:red", alpha=0.08, label="controller dead")
    axes["all"].axvline(HEAVIER_S, color="0.5", lw=0.8, ls=":", label="load gets heavier")
    axes["all"].legend(loc="upper right", fontsize=8, ncols=3)
    second = result.steps[1]
    changed_s = second.tick_s + second.delay_ms / 1e3
    draw(axes["step"], changed_s - 0.004, changed_s + 0.008, by_slot=True)
    axes["step"].axvspan(changed_s, changed_s + WITHIN * SLOT_NS / 1e9, color="tab:green", alpha=0.15)
    axes["step"].set_title("one change, slot by slot; green: two control periods", fontsize=10)
    draw(axes["outage"], KILLED_S - 0.2, RETURNED_S + 0.5, by_slot=False)
    axes["outage"].set_title("the controller dies and returns", fontsize=10)
    axes["limits"].plot(traces.tick_s, traces.limit_ghz, color="tab:green", drawstyle="steps-post")
    axes["limits"].set_ylabel("node's own\nclock limit, GHz")
    axes["limits"].set_xlabel("time, s")
    axes["limits"].grid(alpha=0.3)
    axes["limits"].set_xlim(0.0, END_S)
    figure.suptitle(f"A node's cap through SCMI to the firmware ({LABEL})")
    figure.savefig(out, dpi=110)
    plots.close(figure)
