"""The node's side of the power ledger: which grants it takes, and what it falls to when they run out.

A grant may come late, twice, from a cluster agent that has been replaced, or from before a reboot; only one that is
newer than all before it and not over yet may raise a cap. Its lease runs on CLOCK_BOOTTIME from the moment *this node*
sent the report that the grant answers, so neither the way nor any clock but the node's own counts. Without a lease the
cap becomes the lesser of itself and the safe cap: never higher, and never what it was before nodectl came.

This class decides and remembers; the agent writes the caps, and says here what came of it. Nothing needs to be kept on
disk: a grant that answers a report from before this agent's start is refused, so a restart forgets without harm.
"""

from __future__ import annotations

from nodectl.wire.power_messages import Declaration, Effect, Grant, Report


class NodeLease:
    """The leases of one agent's life. Times are CLOCK_BOOTTIME in ns, powers in mW."""

    def __init__(self, node: str, boot_id: str, declaration: Declaration, limit_mw: int, now_ns: int) -> None:
        """``limit_mw``: the cap that acts at the start, as read from the hardware (TDP where there is none)."""
        self.declaration = declaration
        self.limit_mw = limit_mw  # the highest cap that may act
        self.cap_mw = limit_mw  # the cap that should act
        self.lease_end_ns = now_ns
        self._node = node
        self._boot_id = boot_id
        self._started_ns = now_ns
        self._reported_ns = -1
        self._seen_epoch = 0
        self._taken = (0, 0)
        self._confirmed = (0, 0)
        self._effect: Effect = "unseen"

    def report(self, now_ns: int, power_mw: int, is_leaving: bool = False) -> Report:
        """What to send now. Two reports never share a name, however close in time."""
        self._reported_ns = max(now_ns, self._reported_ns + 1)
        epoch, sequence = self._confirmed
        return Report(
            self._node,
            self._boot_id,
            self._reported_ns,
            self._seen_epoch,
            epoch,
            sequence,
            self.limit_mw,
            self._effect,
            power_mw,
            self.declaration,
            is_leaving,
        )

    def take(self, now_ns: int, grant: Grant) -> str:
        """Take the grant: then ``cap_mw`` is to be written. Returns why it is refused, empty if it is taken."""
        why = self.refusal(now_ns, grant)
        if why:
            return why
        self._seen_epoch = grant.epoch
        self._taken = (grant.epoch, grant.sequence)
        self.cap_mw = grant.cap_mw
        self.limit_mw = max(self.limit_mw, grant.cap_mw)
        self.lease_end_ns = grant.report_id + grant.lease_ns
        self._effect = "unseen"
        return ""

    def refusal(self, now_ns: int, grant: Grant) -> str:
        """Why this grant is void here; empty if it is not."""
        if grant.boot_id != self._boot_id:
            return "it was made for another boot of this node"
        if grant.epoch < self._seen_epoch:
            return "a newer cluster agent has taken over since"
        if (grant.epoch, grant.sequence) <= self._taken:
            return "a newer one is in force"
        if not self._started_ns <= grant.report_id <= self._reported_ns:
            return "it answers a report that this agent has not sent"
        if now_ns >= grant.report_id + grant.lease_ns:
            return "its lease is over"
        return ""

    def confirm(self, effect: Effect) -> None:
        """``cap_mw`` has been written, read back, is enabled and not shadowed. Once its effect shows, nothing above it
        acts any more, and the next report says so."""
        self._effect = effect
        if effect != "unseen":
            self.limit_mw = self.cap_mw
            self._confirmed = self._taken

    def lapse(self, now_ns: int) -> bool:
        """End a lease that is over: True if ``cap_mw`` has fallen to the safe cap and is to be written."""
        if now_ns < self.lease_end_ns or self.cap_mw <= self.declaration.safe_mw:
            return False
        self.cap_mw = self.declaration.safe_mw
        self._effect = "unseen"
        return True
