"""The file of a node's limits: TOML, as people read it, and as ``nodectl run`` takes latencies from it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from calibration.limits.limits_of_node import Limits
from calibration.limits.minimal_power import MopStep
from nodectl.knobs.timing import deadlines

HEAD = """\
# Limits of one node, by `nodectl calibrate limits`. The agent takes latencies from it (docs/calibration.md).
# The last line seals the text: a changed file is refused.
"""


def text_of_limits(limits: Limits) -> str:
    """The whole text, without its seal."""
    plain: dict[str, Any] = msgspec.to_builtins(limits)
    mop, standing, who = plain.pop("mop"), plain.pop("standing"), plain.pop("identity")
    tables = {name: plain.pop(name) for name in ("latency", "step", "reader")}
    lines = [HEAD.rstrip(), *_pairs(plain)]
    if mop:
        steps = mop.pop("steps")
        lines += ["", "[mop]", *_pairs(mop), f"columns = {_value(list(MopStep.__struct_fields__))}", "steps = ["]
        lines += [f"  {_value(list(step.values()))}," for step in steps]
        lines.append("]")
    for name, values in (("standing", standing), ("identity", who)):
        if values:
            lines += ["", f"[{name}]", *_pairs(values)]
    for name, rows in tables.items():
        for row in rows:
            lines += ["", f"[[{name}]]", *_pairs(row)]
    return "\n".join(lines) + "\n"


def report_of_limits(limits: Limits) -> Iterator[str]:
    """For people, line by line."""
    label = "EMULATED: " if limits.is_emulated else ""
    if mop := limits.mop:
        yield f"{label}minimal operating power of the packages: {mop.mop_w:g} W, to {mop.step_w:g} W"
        yield f"  the search ended by {mop.stop}: {mop.why}"
        if mop.stop in ("heartbeat", "writer"):
            again = "responsive again" if mop.has_recovered else "NOT responsive again"
            yield f"  back-off took {mop.back_off_s:.2f} s; the node was {again}"
    if limits.node_mop_w is not None:
        yield f"{label}mop_w of the node (packages, rest, GPUs at their lowest limits): {limits.node_mop_w:.0f} W"
    standing = limits.standing
    if standing:
        parts = {"idle": standing.idle_w, "idle node": standing.idle_node_w, "rest": standing.rest_w}
        parts["boot at most"] = standing.boot_w
        known = ", ".join(f"{name} {watts:.1f} W" for name, watts in parts.items() if watts is not None)
        yield f"{label}{known}"
    for one, due in zip(limits.latency, deadlines(limits.latency), strict=True):
        up, down = one.up, one.down
        yield (
            f"{label}{one.knob}: up {up.median_s * 1e3:.2f} ms (95 %: {up.p95_s * 1e3:.2f}, n {up.n}), down"
            f" {down.median_s * 1e3:.2f} ms (95 %: {down.p95_s * 1e3:.2f}, n {down.n}), noise {one.noise:.2%};"
            f" effect due within {due.effect_s * 1e3:.1f} ms"
        )
    for step in limits.step:
        yield (
            f"{label}{step.knob}: {step.from_w:.0f} -> {step.to_w:.0f} W: there after {step.reach_s * 1e3:.0f} ms,"
            f" settled after {step.settle_s:.2f} s, overshoot {step.overshoot:.1%}, above {step.above:.1%}, error"
            f" {step.steady_error:+.2%}"
        )
    for check in limits.reader:
        yield (
            f"{label}{check.of}: {check.rapl_w:.2f} W by RAPL, {check.reader_w:.2f} W by {check.reader}:"
            f" {check.difference:+.2%}"
        )
    for line in limits.missing:
        yield f"not measured: {line}"


def _pairs(values: Mapping[str, Any]) -> Iterator[str]:
    """TOML has no null: what is not known is left out."""
    for name, value in values.items():
        if value is not None:
            yield f"{name} = {_value(value)}"


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(_pairs(value)) + " }"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, float):
        return f"{value:.6g}" if value % 1 or abs(value) >= 1e6 else f"{value:.1f}"
    return "nan" if value is None else json.dumps(value, ensure_ascii=False)
