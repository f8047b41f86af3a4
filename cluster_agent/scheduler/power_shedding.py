"""Which nodes to switch off, or which frequency to set, for an announced cap (Glesser, PhD thesis, Grenoble 2016).

N equal nodes of which some may be off, some at the lowest frequency, the rest at the highest, under P watts. The work
done per second is W = (N - Noff - Ndvfs) + Ndvfs / deg. It is linear, so its maximum is at an end: only switch-off,
only lower frequencies, or, where the cap is below N x Pmin, both. Which end is best is the sign of

    rho = 1 - 1/deg - (Pmax - Pmin) / (Pmax - Poff)

Substituted into W, switch-off does more work if rho > 0. The thesis prints the opposite, and takes "both" wherever
P < N x Pmin although switch-off alone may do more: that is the rule ``printed``, the other one is ``corrected``.
"""

from __future__ import annotations

from math import ceil
from typing import Literal, NamedTuple, TypeAlias

from cluster_agent.cluster import Machine

Rule: TypeAlias = Literal["corrected", "printed"]
Lever: TypeAlias = Literal["none", "off", "dvfs", "both"]


class SwitchOff(NamedTuple):
    """Whole racks, whole chassis and single nodes, contiguous from the machine's last node downwards."""

    racks: int
    chassis: int
    nodes: int  # all of them, those in racks and chassis included


def rho(degradation: float, off_w: float, lowest_w: float, highest_w: float) -> float:
    """Above 0: switch-off loses less work than the lowest frequency. Watts per node; ``degradation`` 1 or more."""
    return 1 - 1 / degradation - (highest_w - lowest_w) / (highest_w - off_w)


def lever(machine: Machine, watts: float, degradation: float, floor: int, rule: Rule = "corrected") -> Lever:
    """What keeps a full machine's nodes under ``watts`` (without chassis and racks) with most work done.

    ``floor`` is the index of the lowest frequency that may be used, ``degradation`` the slowdown at it.
    """
    node = machine.node
    busy_w = node.busy_max_w or node.busy_w
    if watts >= machine.nodes * busy_w[0]:
        return "none"
    value = rho(degradation, node.off_w, busy_w[floor], busy_w[0])
    dvfs_suffices = watts >= machine.nodes * busy_w[floor]
    if rule == "printed":
        return "both" if not dvfs_suffices else "off" if value <= 0 else "dvfs"
    if value > 0:
        return "off"
    return "dvfs" if dvfs_suffices else "both"


def nodes_off(machine: Machine, watts: float, degradation: float, floor: int, chosen: Lever) -> SwitchOff:
    """What to switch off so that the rest, busy at the highest frequency (``both``: at the floor), stays under
    ``watts``."""
    if chosen in ("none", "dvfs"):
        return SwitchOff(0, 0, 0)
    busy_w = (machine.node.busy_max_w or machine.node.busy_w)[floor if chosen == "both" else 0]
    return switch_off(machine, machine.nodes * busy_w - watts, busy_w)


def switch_off(machine: Machine, shed_w: float, busy_w: float | None = None) -> SwitchOff:
    """The fewest nodes whose switching off sheds ``shed_w``, whole racks and chassis first.

    ``busy_w``: what each node would draw otherwise (default: busy at the highest frequency). A chassis that is off as
    a whole saves its own watts and the off watts of its nodes too, a rack its own on top.
    """
    node, topology = machine.node, machine.topology
    per_node_w = (busy_w if busy_w is not None else (node.busy_max_w or node.busy_w)[0]) - node.off_w
    per_chassis = topology.nodes_per_chassis
    per_rack = per_chassis * topology.chassis_per_rack
    chassis_w = per_chassis * (per_node_w + node.off_w) + topology.chassis_w
    rack_w = topology.chassis_per_rack * chassis_w + topology.rack_w
    left_w = max(shed_w, 0.0)
    racks = int(left_w // rack_w) if per_rack else 0
    left_w -= racks * rack_w
    chassis = int(left_w // chassis_w) if per_chassis else 0
    left_w -= chassis * chassis_w
    single = ceil(left_w / per_node_w - 1e-9)
    if per_chassis and single >= per_chassis:  # a chassis costs no more nodes and saves more
        chassis, single = chassis + 1, 0
    if per_rack and chassis * per_chassis + single >= per_rack:
        racks, chassis, single = racks + 1, 0, 0
    count = racks * per_rack + chassis * per_chassis + single
    return SwitchOff(racks, chassis, count) if count <= machine.nodes else _all(machine)


def off_watts(machine: Machine, count: int) -> tuple[float, float]:
    """What the last ``count`` nodes draw when off, and what the chassis and racks draw then."""
    node, topology = machine.node, machine.topology
    chassis = machine.chassis - _first_full(machine.nodes - count, topology.nodes_per_chassis, machine.chassis)
    racks = machine.racks - _first_full(machine.chassis - chassis, topology.chassis_per_rack, machine.racks)
    in_chassis = machine.nodes - (machine.chassis - chassis) * topology.nodes_per_chassis if chassis else 0
    return (
        (count - in_chassis) * node.off_w,
        machine.fixed_w - chassis * topology.chassis_w - racks * topology.rack_w,
    )


def _first_full(kept: int, size: int, groups: int) -> int:
    """How many groups have one of the ``kept`` first members."""
    return -(-kept // size) if size else groups


def _all(machine: Machine) -> SwitchOff:
    return SwitchOff(machine.racks, 0 if machine.racks else machine.chassis, machine.nodes)
