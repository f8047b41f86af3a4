"""Opportunistic switch-off: a node that has been idle for ``idle_off_s`` goes off, and boots when a job needs it.

A part of the phase *idle* (Glesser, PhD thesis, Grenoble 2016, ch. 5, which gives no time; the simulator of Dutot et
al., CCGrid 2017, has 300 s). What the sources leave open is decided as follows:

- A job gets processors of nodes that are on before any other. If these are too few, nodes boot for it at once; a node
  that is going off boots once it is off. The job begins when the last of them is on, and has all its processors until
  then.
- A timer that is due comes after the pass of that instant: a job that starts then takes the node first.
- Under a cap or a budget a node that is off counts as off for the cap in force; a later row of the plan counts it as
  idle, since a job may boot it before. A job that boots nodes asks for what they have saved too, and from its decision
  on for its own watts or, if those are more, for the boot's.
- Going off must not exceed a cap either. Where it would, the nodes wait for their time again.
- Nodes that a plan switches off for a window (``powercap:mode=shut``) are the plan's while it lasts, and idle then.
- A job that is killed while its nodes boot leaves them off. Chassis and racks stay on.
- ``keep_idle`` and ``keep_on`` (ours): so many nodes without a job, or so many in all (``kept_on``), are on or boot.
  Where they are too few, the first ones that are off boot without a job, and a job may get them while they do. Of
  those that are too many, the ones that have been idle for longest go first.

On unlike nodes (``csrc/resources/nodes.c``) a cap is one of jobs' watts, of which an idle node draws none:

- A node goes off whatever the cap. Until a job begins it counts the watts of the nodes that boot for it, if these are
  more than its own. They are free again with the next pass: a begin is no event.
- What has to fit, a reservation included, is tried for the longest boot of any node.
- Nodes that are on come first; with ``placing=pack`` only among those whose accelerators the job blocks alike.
"""

from __future__ import annotations

from math import ceil

import msgspec

from cluster_agent.cluster import UW, Machine, NodeGroup
from cluster_agent.kept_on import NONE_KEPT, Kept


def switch_s(node: NodeGroup) -> tuple[int, int]:
    """How long switching off and a boot take. A switch that costs joules and no time takes a second."""
    return (
        ceil(node.switch_off_s) or int(node.switch_off_j > 0),
        ceil(node.boot_s) or int(node.boot_j > 0),
    )


class IdleOff(msgspec.Struct, frozen=True):
    """``idle_off_t`` in ``csrc/power.h``: watts are those of one of a node's processors, spans whole seconds."""

    idle_off_s: int
    cores: int
    switch_off_s: int
    boot_s: int
    off_uw: int
    switch_off_uw: int
    boot_uw: int
    kept_on: tuple[tuple[int, int, int], ...] = ()

    @classmethod
    def of(cls, machine: Machine, idle_off_s: int, kept: Kept = NONE_KEPT) -> IdleOff:
        """Of the machine's first group of nodes."""
        node = machine.node
        switch_off_s, boot_s = switch_s(node)

        def share(watts: float) -> int:
            return round(watts * UW / node.cores)

        return cls(
            idle_off_s,
            node.cores,
            switch_off_s,
            boot_s,
            share(node.off_w),
            share(node.switch_off_j / max(switch_off_s, 1)),
            share(node.boot_j / max(boot_s, 1)),
            tuple(kept.rows(node.cores, boot_s)),
        )
