"""What policies wait for their knobs: measured times in place of defaults that are the same for every machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nodectl.knobs.api import Knob
from nodectl.knobs.registry import KINDS, kind_of
from nodectl.knobs.timing import Deadline, deadline_of, slowest_of
from nodectl.policies.api import Policy


def knob_waits(
    policy: Policy, settings: Mapping[str, Any], table: Mapping[str, float], known: Sequence[Deadline]
) -> tuple[dict[str, float], list[str]]:
    """Parameters that follow the times of the policy's knobs, and a line for those that stay at a default.

    What the ``settings`` have stays. A wait of the ``table``, or the default, is for noise: it becomes longer where the
    knob needs more, never shorter: `gpu-ladder` with the 0.06 s that a V100 needs, in place of 0.2 s, loses 10 points
    of its median share (docs/notes/calibration-measurements.md).
    """
    waits = {key: wait for key, wait in policy.waits.items() if key not in settings}
    kind = next(kind.name for kind in KINDS if kind.domain and kind.domain.name == policy.domain)
    due = slowest_of(kind, known)
    defaults = policy.params()
    found: dict[str, float] = {}
    for key, wait in waits.items():
        if due is None:
            break
        needed_s = _digits(due.dwell_s if wait == "dwell_s" else due.effect_s)
        if needed_s > table.get(key, getattr(defaults, key)):
            found[key] = needed_s
    kept = ", ".join(f"{key} {getattr(defaults, key):g}" for key in waits if key not in found and key not in table)
    if not kept:
        return found, []
    why = f"{kind} needs less" if due else f"no latency of {kind} was measured"
    return found, [f"{policy.name} waits by default ({kept} s): {why}"]


def default_latencies(knobs: Sequence[Knob], known: Sequence[Deadline]) -> list[str]:
    """A line with the kinds of knobs whose effect is due after a default, since none was measured."""
    found: dict[str, float] = {}
    for knob in knobs:
        kind = kind_of(knob.name)
        if kind and kind.effect and deadline_of(knob.name, known) is None:
            place, _, what = knob.name.rpartition("/")
            name = f"{place.partition('/')[0]}/*/{what}"
            found[name] = max(knob.latency_s, found.get(name, 0.0))
    shown = ", ".join(f"{name} {seconds:.3g} s" for name, seconds in found.items())
    return [f"effects of knobs are due after defaults: {shown}"] if found else []


def _digits(seconds: float) -> float:
    """Four digits: no latency is known better."""
    return float(f"{seconds:.4g}")
