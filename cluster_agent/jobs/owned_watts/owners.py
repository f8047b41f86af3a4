"""Which of the owners next to this a partition has."""

from __future__ import annotations

from collections.abc import Mapping

from cluster_agent.cluster import Machine
from cluster_agent.jobs.owned_watts.live_configurations import OwnedConfigurations
from cluster_agent.jobs.owned_watts.live_nodes import OwnedNodes
from cluster_agent.jobs.owned_watts.live_owner import Owner
from cluster_agent.jobs.owned_watts.live_watts import OwnedWatts
from cluster_agent.scheduler.configurations.table import Rows
from cluster_agent.scheduler.interfaces import Meter, unmetered
from cluster_agent.scheduler.policy_phases import Composition


def owner_of(
    composition: Composition,
    machine: Machine | None = None,
    configurations: Mapping[str, Rows] | None = None,
    meter: Meter = unmetered,
) -> Owner:
    """Who owns the watts of a partition of this machine; ``WrongUseError`` for a machine that does not fit."""
    if composition.choose is not None:
        assert machine is not None, "check_live has said so"
        return OwnedConfigurations(machine, composition, configurations or {})
    if composition.placing is not None:
        assert machine is not None, "check_live has said so"
        return OwnedNodes(machine, composition)
    if machine is not None and composition.power is not None:
        return OwnedWatts(machine, composition, meter)
    full_w = machine.node.busy_w[0] if machine is not None and machine.has_watts else None
    return Owner(composition, full_w, meter)
