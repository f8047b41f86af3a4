"""What a node and the cluster agent tell each other about power: reports up, grants down.

Both sides read these types and nothing of each other. Watts travel as whole milliwatts, so that sums of thousands of
caps are exact. A node's clock is its CLOCK_BOOTTIME in nanoseconds, which goes on through suspend and knows no wall
clock; the time at which a report was sent is also its name, so a report is newer than another of the same boot if its
name is greater, also across restarts of the node's agent.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

LeaseClass: TypeAlias = Literal["hw", "os", "sticky"]
"""What ends a lease on the node: the controller itself (``hw``), software with a hardware watchdog behind it (``os``),
or nothing at all: a controller that keeps its last cap whatever happens above it (``sticky``)."""

Effect: TypeAlias = Literal["seen", "provisional", "unseen"]
"""How sure the node is that its newest cap acts. ``seen``: limit read back, enabled, not shadowed by another interface,
and clock or power followed. ``provisional``: nothing followed, but the draw stayed below the cap over a window (an
idle node). ``unseen``: neither, or not yet."""


class Declaration(msgspec.Struct, frozen=True):
    """What a node says of itself, and ``doctor`` checks. Powers in mW, DC, of the whole node.

    ``safe_mw`` is what the node falls to without a lease; ``boot_mw`` the most it draws from power-on until its agent
    has set a cap; ``settle_ms`` how long its slowest knob takes to act, ``watchdog_ms`` (class ``os``) how long until
    the hardware watchdog resets a hung kernel.
    """

    tdp_mw: int
    mop_mw: int
    safe_mw: int
    boot_mw: int
    lease_class: LeaseClass
    settle_ms: int = 500
    watchdog_ms: int = 0


class Report(msgspec.Struct, frozen=True):
    """A node's state. ``limit_mw`` is the highest cap that may still act: the old one until a lower one is confirmed.

    ``epoch`` and ``sequence`` name the newest grant whose cap is confirmed (0, 0: none in this boot), ``seen_epoch``
    the newest epoch heard of. ``power_mw`` is the mean draw since the report before; -1: not measured.
    """

    node: str
    boot_id: str
    report_id: int  # CLOCK_BOOTTIME of the node at sending, ns
    seen_epoch: int
    epoch: int
    sequence: int
    limit_mw: int
    effect: Effect
    power_mw: int
    declaration: Declaration
    is_leaving: bool = False  # it asks to put back what it found and to go uncapped


class Grant(msgspec.Struct, frozen=True):
    """Leave to draw up to ``cap_mw`` until ``lease_ns`` after the node sent report ``report_id``, and not longer."""

    node: str
    epoch: int
    boot_id: str
    sequence: int
    cap_mw: int
    report_id: int
    lease_ns: int
    is_leave: bool = False  # the node may put back what it found, and end
