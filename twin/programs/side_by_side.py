"""Several workloads on one node, each on CPUs of its own, as jobs that share a node run."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from twin.errors import TwinError
from twin.machine import Machine
from twin.programs.workload import Group, Workload, group_truth


def on_cpus(workload: Workload, machine: Machine, cpus: Sequence[int]) -> Workload:
    """The same workload on these CPUs instead of its own. TwinError if it has GPUs or groups of unlike CPUs, or if the
    machine has no such CPUs."""
    if len(workload.groups) != 1 or workload.groups[0].on_gpu:
        raise TwinError(f'workload "{workload.name}" cannot run on some of the CPUs: it is not one group of CPUs')
    if not cpus:
        raise TwinError("no CPUs")
    if max(cpus) >= machine.cpus:
        which = f"CPUs {min(cpus)} to {max(cpus)}"
        raise TwinError(f'{which}: machine "{machine.name}" has CPUs 0 to {machine.cpus - 1}')
    (group,) = workload.groups
    shares_core = len({machine.core_of[cpu] for cpu in cpus}) < len(set(cpus))
    placed = msgspec.structs.replace(
        group,
        units=tuple(cpus),
        weight=np.resize(group.weight, len(cpus)),
        nominal_share=machine.smt_throughput / machine.threads_per_core if shares_core else 1.0,
    )
    return _of_groups(workload, [placed])


def together(workloads: Sequence[Workload]) -> Workload:
    """All of them at once. TwinError if two want one CPU."""
    groups = [group for workload in workloads for group in workload.groups]
    cpus = [cpu for group in groups if not group.on_gpu for cpu in group.units]
    if len(cpus) > len(set(cpus)):
        raise TwinError("two workloads on one CPU")
    made = msgspec.structs.replace(
        workloads[0],
        name=" + ".join(workload.name for workload in workloads),
        noise=max(workload.noise for workload in workloads),
        seconds=max(workload.seconds for workload in workloads),
    )
    return _of_groups(made, groups)


def _of_groups(workload: Workload, groups: Sequence[Group]) -> Workload:
    truth = msgspec.structs.replace(workload.truth, groups=tuple(group_truth(group) for group in groups))
    return msgspec.structs.replace(workload, groups=tuple(groups), truth=truth)
