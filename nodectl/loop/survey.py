"""The instruments and knobs of this node, found once at the start, and what a run can therefore do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from nodectl.config import Config, PolicyChoice
from nodectl.decide.decider import knob_names
from nodectl.decide.node_cap import CAP_ROW
from nodectl.knobs import Knob, KnobError, find_knobs
from nodectl.policies import registry
from nodectl.shell.errors import NodectlError
from pmu.layout import FrequencyDomain, Layout
from pmu.node import Finding, discover
from pmu.ports import Ports

NEEDED_EVENTS = ("instructions", "reference-cycles")
"""Without these a CPU policy has no IPC (REGALE D2.3 §3.4)."""


@dataclass(frozen=True, slots=True)
class Survey:
    """What was found on a node. ``knobs``: those that can be moved; ``sensor_rows`` and ``knob_rows``: a finding for
    every sensor and knob, with the reason where it cannot be used."""

    layout: Layout
    knobs: list[Knob]
    sensor_rows: list[Finding]
    knob_rows: list[Finding]


def survey(ports: Ports) -> Survey:
    """Find everything there is; what is missing is a row with its reason, never an exception."""
    layout, sensor_rows = discover(ports)
    knobs, knob_rows = find_knobs(ports, layout)
    return Survey(layout, knobs, sensor_rows, knob_rows)


def at_present_limits(layout: Layout, knobs: Sequence[Knob]) -> Layout:
    """The layout with each frequency domain's present limit as its highest clock.

    An administrator may have lowered ``scaling_max_freq`` below what the hardware can do. Then a free clock is that
    limit: no policy requests more, and slowdown is measured against it.
    """
    limits = {knob.name: _limit_khz(knob) for knob in knobs if knob.unit == "khz"}
    domains = tuple(_below(domain, limits.get(f"cpu/policy{domain.policy}/max_khz")) for domain in layout.domains)
    return msgspec.structs.replace(layout, domains=domains)


def fit_to_node(config: Config, found: Survey) -> tuple[Config, list[str]]:
    """The settings that this node can follow, and a line for each part that it cannot.

    To optimize a side (CPU or GPU), the node needs a sensor to decide by and a knob to move. A side that lacks either
    is left alone; ``NodectlError`` with the reasons when no side is left. A dry run needs no knobs.
    """
    lacks = {side: _lacks(config, side, found) for side in registry.DOMAINS} | {"power": _no_power_knob(config, found)}
    if not config.decides:
        return config, [f"no {reason}" for reason in _lacking_sensors(found) if reason]
    wanted = [
        *(side for side in registry.DOMAINS if _is_wanted(config, side)),
        *(["power"] if config.caps_power else []),
    ]
    if not wanted:
        raise NodectlError("nothing to optimize: no policy and no cap on either side; set one, or use --mode monitor")
    if all(lacks[side] for side in wanted):
        reasons = "; ".join(lacks[side] for side in wanted)
        raise NodectlError(f"cannot optimize this node: {reasons} (see `nodectl doctor`; `--mode monitor` still runs)")
    notices = [f"{side} side left alone: {lacks[side]}" for side in wanted if lacks[side] and side != "power"]
    if config.caps_power and lacks["power"]:
        raise NodectlError(f"cannot cap this node's power: {lacks['power']} (see `nodectl doctor`)")
    none = PolicyChoice(registry.NONE)
    fitted = msgspec.structs.replace(
        config,
        cpu_policy=none if lacks["cpu"] else config.cpu_policy,
        gpu_policy=none if lacks["gpu"] else config.gpu_policy,
    )
    return fitted, notices


def _is_wanted(config: Config, side: str) -> bool:
    caps = config.caps
    if side == "cpu":
        return config.cpu_policy.name != registry.NONE or caps.cpu_max_khz > 0
    return config.gpu_policy.name != registry.NONE or caps.gpu_max_mhz > 0 or caps.gpu_temperature_c > 0


def _limit_khz(knob: Knob) -> int | None:
    try:
        return knob.read_back()
    except KnobError:
        return None  # its row in the survey says why; the hardware's own range applies


def _below(domain: FrequencyDomain, limit_khz: int | None) -> FrequencyDomain:
    if limit_khz is None or not domain.min_khz <= limit_khz < domain.max_khz:
        return domain
    steps = tuple(step for step in domain.steps_khz if step <= limit_khz)
    return msgspec.structs.replace(domain, max_khz=limit_khz, steps_khz=steps)


def _lacks(config: Config, side: str, found: Survey) -> str:
    policy = config.cpu_policy if side == "cpu" else config.gpu_policy
    no_sensor = "" if policy.name == registry.NONE else _no_sensor(side, found)  # a cap needs none
    is_delegated = any(name.startswith(f"{side}/") for name in config.scmi.knobs)
    return no_sensor or ("" if config.dry_run or is_delegated else _no_knob(side, found))


def _no_sensor(side: str, found: Survey) -> str:
    if side == "gpu":
        return "" if found.layout.gpus else f"GPUs: {_why(found.sensor_rows, 'gpu', 'none found')}"
    absent = [event for event in NEEDED_EVENTS if event not in found.layout.events]
    if not absent:
        return ""
    rows = [row for row in found.sensor_rows if row.name in absent]
    return f"CPU counters ({', '.join(absent)}): {_why(rows, 'counter', 'cannot be counted')}"


def _lacking_sensors(found: Survey) -> list[str]:
    no_energy = "" if found.layout.zones else f"CPU energy: {_why(found.sensor_rows, 'energy', 'no zones')}"
    return [_no_sensor("cpu", found), no_energy, _no_sensor("gpu", found)]


def _no_knob(side: str, found: Survey) -> str:
    driven = {name for name in knob_names(found.layout) if name.startswith(f"{side}/")}
    if any(knob.name in driven for knob in found.knobs):
        return ""
    what = "CPU clock limits" if side == "cpu" else "GPU clock locks"
    return f"no {what} to move: {_why([row for row in found.knob_rows if row.name in driven], 'knob', 'none found')}"


def _no_power_knob(config: Config, found: Survey) -> str:
    """Why a cap in watts cannot be enforced here: there is no controller for it and no knob of the node's own."""
    if CAP_ROW in config.scmi.knobs or config.dry_run:
        return ""
    if any(knob.name.startswith("rapl/") or knob.unit == "khz" for knob in found.knobs):
        return ""
    return "no RAPL limits, no clock limits, and no controller ([scmi]) enforces it"


def _why(rows: list[Finding], kind: str, otherwise: str) -> str:
    """The first reason given for something of this kind."""
    return next((row.why for row in rows if row.kind.startswith(kind) and row.why), otherwise)
