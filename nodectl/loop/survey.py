"""The instruments and knobs of this node, found once at the start, and what a run can therefore do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from foundation.shell.errors import NodectlError
from nodectl.config import Config
from nodectl.decide import temperature_limit
from nodectl.decide.node_cap import CAP_ROW
from nodectl.knobs import Knob, KnobError, find_knobs
from nodectl.knobs.kind import Domain
from nodectl.knobs.registry import DOMAINS, domain_of
from nodectl.policies import registry
from pmu.layout import FrequencyDomain, KnobRange, Layout
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


def at_present_limits(layout: Layout, knobs: Sequence[Knob], config: Config) -> Layout:
    """The layout with each frequency domain's present limit as its highest clock, and with the ranges of the other
    knobs that ``config`` has a policy for. Of a domain with several policies, the highest limit counts.

    An administrator may have lowered ``scaling_max_freq`` below what the hardware can do. Then a free clock is that
    limit: no policy requests more, and slowdown is measured against it.
    """
    limits = {knob.name: _limit_khz(knob) for knob in knobs if domain_of(knob.name) == "cpu"}
    domains = tuple(
        _below(domain, [limits.get(f"cpu/policy{policy}/max_khz") for policy in domain.policies])
        for domain in layout.domains
    )
    ranges = tuple(row for knob in knobs for row in _range(knob, layout, config))
    return msgspec.structs.replace(layout, domains=domains, ranges=ranges)


def _range(knob: Knob, layout: Layout, config: Config) -> list[KnobRange]:
    """The range of a knob that some policy of this run moves. A knob that has just vanished has none."""
    domain = DOMAINS.get(domain_of(knob.name))
    if domain is None or domain.range_of is None or config.choice(domain.name).name == registry.NONE:
        return []
    try:
        found = domain.range_of(knob, layout)
    except KnobError:
        return []  # the writer says so when the knob is to be moved
    return [found] if found.cpus or domain.rests_on != "cpu" else []


def fit_to_node(config: Config, found: Survey) -> tuple[Config, list[str]]:
    """The settings that this node can follow, and a line for each part that it cannot.

    To optimize a side (CPU or GPU), the node needs a sensor to decide by and a knob to move. A side that lacks either
    is left alone; ``NodectlError`` with the reasons when no side is left. A dry run needs no knobs.
    """
    lacks = {name: _lacks(config, domain, found) for name, domain in DOMAINS.items()}
    lacks["power"] = _no_power_knob(config, found)
    if not config.decides:
        return config, [f"no {reason}" for reason in _lacking_sensors(found) if reason]
    wanted = [domain for domain in DOMAINS if _is_wanted(config, domain)]
    _check_feasible([*wanted, "power"] if config.caps_power else wanted, lacks)
    notices = [f"{domain} side left alone: {lacks[domain]}" for domain in wanted if lacks[domain]]
    for limit, _ in temperature_limit.chosen(config.caps):
        if why := limit.lacks(found.layout):
            raise NodectlError(f"cannot keep caps.{limit.setting}: {why} (see `nodectl doctor`)")
    return config.without([domain for domain in DOMAINS if lacks[domain]]), notices


def _check_feasible(wanted: Sequence[str], lacks: Mapping[str, str]) -> None:
    """``NodectlError`` unless one of the wanted parts lacks nothing; a wanted cap in watts must lack nothing."""
    if not wanted:
        raise NodectlError("nothing to optimize: no policy and no cap on either side; set one, or use --mode monitor")
    if all(lacks[side] for side in wanted):
        reasons = "; ".join(lacks[side] for side in wanted)
        raise NodectlError(f"cannot optimize this node: {reasons} (see `nodectl doctor`; `--mode monitor` still runs)")
    if "power" in wanted and lacks["power"]:
        raise NodectlError(f"cannot cap this node's power: {lacks['power']} (see `nodectl doctor`)")


def _is_wanted(config: Config, domain: str) -> bool:
    caps = config.caps
    is_limited = any(limit.policy.domain == domain for limit, _ in temperature_limit.chosen(caps))
    return is_limited or caps.highest(domain) > 0 or config.choice(domain).name != registry.NONE


def _limit_khz(knob: Knob) -> int | None:
    try:
        return knob.read_back()
    except KnobError:
        return None  # its row in the survey says why; the hardware's own range applies


def _below(domain: FrequencyDomain, limits_khz: Sequence[int | None]) -> FrequencyDomain:
    limit_khz = max(domain.max_khz if limit is None else limit for limit in limits_khz)
    if not domain.min_khz <= limit_khz < domain.max_khz:
        return domain
    steps = tuple(step for step in domain.steps_khz if step <= limit_khz)
    return msgspec.structs.replace(domain, max_khz=limit_khz, steps_khz=steps)


def _lacks(config: Config, domain: Domain, found: Survey) -> str:
    has_policy = config.choice(domain.name).name != registry.NONE
    no_sensor = _no_sensor(domain.rests_on, found) if has_policy else ""  # a cap needs none
    is_delegated = any(name.startswith(f"{domain.name}/") for name in config.scmi.knobs)
    return no_sensor or ("" if config.dry_run or is_delegated else _no_knob(domain, found))


def _no_sensor(side: str, found: Survey) -> str:
    if side == "gpu":
        return "" if found.layout.gpus else f"GPUs: {_why(found.sensor_rows, 'gpu', 'none found')}"
    if side != "cpu":
        return ""
    absent = [event for event in NEEDED_EVENTS if event not in found.layout.events]
    if not absent:
        return ""
    rows = [row for row in found.sensor_rows if row.name in absent]
    return f"CPU counters ({', '.join(absent)}): {_why(rows, 'counter', 'cannot be counted')}"


def _lacking_sensors(found: Survey) -> list[str]:
    no_energy = "" if found.layout.zones else f"CPU energy: {_why(found.sensor_rows, 'energy', 'no zones')}"
    return [_no_sensor("cpu", found), no_energy, _no_sensor("gpu", found)]


def _no_knob(domain: Domain, found: Survey) -> str:
    if any(domain_of(knob.name) == domain.name for knob in found.knobs):
        return ""
    rows = [row for row in found.knob_rows if domain_of(row.name) == domain.name]
    return f"no {domain.what} to move: {_why(rows, 'knob', 'none found')}"


def _no_power_knob(config: Config, found: Survey) -> str:
    """Why a cap in watts cannot be enforced here: there is no controller for it and no knob of the node's own."""
    if CAP_ROW in config.scmi.knobs or config.dry_run:
        return ""
    if any(knob.name.startswith("rapl/") or domain_of(knob.name) == "cpu" for knob in found.knobs):
        return ""
    return "no RAPL limits, no clock limits, and no controller ([scmi]) enforces it"


def _why(rows: list[Finding], kind: str, otherwise: str) -> str:
    """The first reason given for something of this kind."""
    return next((row.why for row in rows if row.kind.startswith(kind) and row.why), otherwise)
