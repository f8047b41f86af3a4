"""The minimal operating power (MOP): the lowest cap under which the node stays responsive (REGALE D2.3 section 4.2).

A cluster agent counts on each node's MOP: it is what a node without work may be capped to, and the ledger refuses a
budget below the sum of them. Some caps that can be set hang a component, so the MOP is found by trying, under a load
that draws all it may, from the top downwards in small steps:

    set the cap -> let power settle -> look at ``beats`` heartbeats -> next cap, or back to the last good one

A step is left at its first bad sign: one beat far too late ends it at once, since a node that hangs may not get to the
end of a window. A package that gets too hot in any step ends the search without an answer, since leakage grows with
heat: caps that seemed good before may not be in the long run. If this process itself hangs, the writer's leases put
the knob back without it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Final, Literal

import msgspec
import numpy as np

from calibration.limits.probes import CapPort, HeartbeatPort, LimitsError
from pmu.ports import Clock

LOOK_S: Final = 0.05
"""Ours: how often a step is looked at; a bad cap is in force no longer than this after its first bad beat."""

PATIENCE: Final = 3
"""Ours: how much longer, in settling times, power may stay above a cap before that is called the rest. A limit is for a
running average, so after an idle time a package may exceed it for up to two windows."""

KEPT: Final = 0.01
"""Ours: power may be above a cap by so much, which energy counters and a firmware's regulation err by."""

type_stop = Literal["lowest cap", "heartbeat", "writer", "rest", "node"]
"""
========== =======================================================================================
lowest cap the knob's lowest value is still good
heartbeat  wake-ups were late
writer     the writer was slow, or refused
rest       power did not follow any further: what is left is what no cap reaches
node       something else; since heat ends a search without an answer, in older files only
========== =======================================================================================
"""


class MopPlan(msgspec.Struct, frozen=True):
    """How to search. All numbers are ours.

    ``bound_s``: what the 99th percentile of the heartbeat must stay below. ``alarm_s``: one beat later than this ends
    the step. ``answer_s``: the writer must answer within it. ``beats``: looked at for each cap.
    """

    step_w: float = 5.0
    bound_s: float = 0.005
    alarm_s: float = 0.050
    answer_s: float = 0.5
    beats: int = 200


PLAN: Final = MopPlan()


class MopStep(msgspec.Struct, frozen=True):
    """One cap, and what the node did under it. ``late_s``: 99th percentile of the heartbeat, or the beat that ended the
    step. ``why``: what was wrong; empty for a good cap."""

    cap_w: float
    power_w: float
    late_s: float
    answer_s: float
    stop: type_stop | Literal[""] = ""
    why: str = ""


class Mop(msgspec.Struct, frozen=True):
    """``mop_w``: the lowest good cap, of what the cap limits. ``back_off_s``: until the writer had set that cap again
    after a bad sign. ``has_recovered``: whether the node was then responsive. The cap is released in any case."""

    mop_w: float
    stop: type_stop
    why: str
    back_off_s: float
    has_recovered: bool
    bound_s: float
    step_w: float
    steps: tuple[MopStep, ...]


def find_mop(
    cap: CapPort,
    heartbeat: HeartbeatPort,
    clock: Clock,
    plan: MopPlan = PLAN,
    note: Callable[[MopStep], None] = lambda step: None,
) -> Mop:
    """Search from the highest cap downwards, under a load that somebody else runs. The cap is released at the end in
    any case. ``LimitsError`` when not even the highest cap is good, or the node gets hot."""
    search = _Search(cap, heartbeat, clock, plan, note)
    heartbeat.start()
    try:
        return search.run()
    finally:
        heartbeat.stop()
        with contextlib.suppress(LimitsError):  # refused: it is put back, and reported, when the writer ends
            cap.release()


class _Search:
    def __init__(
        self, cap: CapPort, heartbeat: HeartbeatPort, clock: Clock, plan: MopPlan, note: Callable[[MopStep], None]
    ) -> None:
        self._cap, self._heartbeat, self._clock, self._plan, self._note = cap, heartbeat, clock, plan, note
        self._steps: list[MopStep] = []

    def run(self) -> Mop:
        good = self._try(self._cap.highest_w)
        if good.stop:
            raise LimitsError(f"no minimal operating power: at the highest cap, {good.cap_w:g} W, {good.why}")
        while good.cap_w > self._cap.lowest_w:
            step = self._try(self._next_w(good))
            if step.stop:
                return self._back_to(self._kept(good), step, step.stop)
            good = step
        good = self._kept(good)
        return self._result(good, "lowest cap", "the lowest cap that can be set is good")

    def _kept(self, good: MopStep) -> MopStep:
        """The lowest good cap that power also kept: a ledger that counts on a cap must get it."""
        kept = [step for step in self._steps if not step.stop and not step.power_w > step.cap_w * (1 + KEPT)]
        return kept[-1] if kept else good

    def _next_w(self, good: MopStep) -> float:
        """The next lower multiple of a step. None is left out, though a cap above what the node draws limits nothing: a
        larger step down may be one too many."""
        step_w = self._plan.step_w
        return max((math.ceil(good.cap_w / step_w) - 1) * step_w, self._cap.lowest_w)

    def _try(self, watts: float) -> MopStep:
        """Set a cap and judge it: the first of trouble, writer, heartbeat and power that is wrong."""
        before = self._steps[-1] if self._steps else None
        step = self._measure(watts)
        for _ in range(PATIENCE):
            if step.stop or not before or not self._is_rest(before, step):
                break
            step = self._look(watts, step.answer_s)
        if not step.stop and before and self._is_rest(before, step):
            why = f"power stays at {step.power_w:.1f} W: no cap reaches the rest"
            step = msgspec.structs.replace(step, stop="rest", why=why)
        self._steps.append(step)
        self._note(step)
        return step

    def _is_rest(self, before: MopStep, step: MopStep) -> bool:
        """Above the cap by more than half a step, and hardly lower than under the cap before."""
        margin_w = before.cap_w - step.cap_w
        return step.power_w > step.cap_w + margin_w / 2 and before.power_w - step.power_w < margin_w / 4

    def _measure(self, watts: float) -> MopStep:
        self._refuse_heat()
        try:
            answer_s = self._cap.set_cap_w(watts)
        except LimitsError as error:
            return MopStep(watts, math.nan, math.nan, math.nan, "writer", str(error))
        if answer_s > self._plan.answer_s:
            why = f"the writer took {answer_s:.2f} s, {self._plan.answer_s:g} s are allowed"
            return MopStep(watts, math.nan, math.nan, answer_s, "writer", why)
        return self._look(watts, answer_s)

    def _refuse_heat(self) -> None:
        if why := self._cap.trouble():
            raise LimitsError(f"no minimal operating power: {why}")

    def _look(self, watts: float, answer_s: float) -> MopStep:
        """Let power settle under a cap that is set, and judge."""
        late_s = self._watch(self._cap.settle_s)
        self._cap.read_watts()
        if not late_s or late_s[-1] <= self._plan.alarm_s:
            late_s = self._watch(self._plan.beats * self._heartbeat.period_s)
        return self._judged(watts, answer_s, late_s)

    def _judged(self, watts: float, answer_s: float, late_s: list[float]) -> MopStep:
        plan, power_w = self._plan, self._cap.read_watts()
        if not late_s:
            return MopStep(watts, power_w, math.nan, answer_s, "heartbeat", "the heartbeat gave no beat")
        if late_s[-1] > plan.alarm_s:
            why = f"a heartbeat was {late_s[-1] * 1e3:.0f} ms late"
            return MopStep(watts, math.nan, late_s[-1], answer_s, "heartbeat", why)  # too short for watts
        p99_s = float(np.percentile(late_s, 99))
        if p99_s > plan.bound_s:
            why = f"one heartbeat in a hundred is {p99_s * 1e3:.1f} ms late, {plan.bound_s * 1e3:g} ms are allowed"
            return MopStep(watts, power_w, p99_s, answer_s, "heartbeat", why)
        return MopStep(watts, power_w, p99_s, answer_s)

    def _watch(self, seconds: float) -> list[float]:
        """The beats of so many seconds; it ends early at one beyond the alarm, which is then the last."""
        self._heartbeat.beats()
        late_s: list[float] = []
        end_ns = self._clock.now_ns() + round(seconds * 1e9)
        while (now_ns := self._clock.now_ns()) < end_ns:
            self._clock.sleep_until_ns(min(now_ns + round(LOOK_S * 1e9), end_ns))
            self._refuse_heat()
            beats = self._heartbeat.beats()
            late_s += beats.late_s
            worst_s = max([beats.overdue_s, *beats.late_s])
            if worst_s > self._plan.alarm_s:
                return [*late_s, worst_s]
        return late_s

    def _back_to(self, good: MopStep, bad: MopStep, stop: type_stop) -> Mop:
        """The last good cap again, and whether the node is responsive under it. Its first beats may be of the bad cap,
        so they are left out."""
        try:
            answer_s = self._cap.set_cap_w(good.cap_w)
        except LimitsError as error:
            return self._result(
                good, stop, f"{bad.why}; {good.cap_w:g} W could not be set again: {error}", math.inf, False
            )
        self._clock.sleep_until_ns(self._clock.now_ns() + round(self._cap.settle_s * 1e9))
        self._cap.read_watts()
        step = self._judged(good.cap_w, answer_s, self._watch(self._plan.beats * self._heartbeat.period_s))
        after = f"; not responsive again under {good.cap_w:g} W: {step.why}" if step.stop else ""
        return self._result(good, stop, bad.why + after, answer_s, not step.stop)

    def _result(
        self, good: MopStep, stop: type_stop, why: str, back_off_s: float = 0.0, has_recovered: bool = True
    ) -> Mop:
        plan = self._plan
        return Mop(good.cap_w, stop, why, back_off_s, has_recovered, plan.bound_s, plan.step_w, tuple(self._steps))
