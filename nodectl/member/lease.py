"""The node's side of the power ledger: which grants it accepts, and the cap when its lease is over.

A grant may arrive late, twice, from a cluster agent that has been replaced, or from before a reboot. Only a grant that
is newer than all before it and whose lease is not over may raise a cap. The lease runs on CLOCK_BOOTTIME from the
moment at which *this node* sent the report that the grant answers, so neither delays on the network nor another clock
matter. When the lease is over, the cap becomes the lower of itself and the safe cap: it never rises, not even to what
it was before nodectl started.

This class decides; the agent writes the caps and reports the result by ``confirm``. Nothing is kept on disk: a grant
that answers a report from before this agent's start is refused, so a restart may forget it safely.
"""

from __future__ import annotations

from foundation.wire.power_messages import Declaration, Effect, Grant, Report


class NodeLease:
    """The leases of one agent's life. Times are CLOCK_BOOTTIME in ns, powers in mW."""

    def __init__(self, node: str, boot_id: str, declaration: Declaration, limit_mw: int, now_ns: int) -> None:
        """``limit_mw``: the cap that is in force at the start (TDP where there is none)."""
        self.declaration = declaration
        self.limit_mw = limit_mw  # the highest cap that may be in force
        self.cap_mw = limit_mw  # the cap that should be in force
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
        """The report to send now. Two reports never have the same id, however close in time."""
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
        """Accept the grant; the caller then writes ``cap_mw``. Returns why it is refused, empty if it is accepted."""
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
        """Why this grant is void here; empty if it is valid."""
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
        """``cap_mw`` was written and read back, is enabled and not overruled. Once its effect shows, no higher cap is
        in force any more, and the next report says so."""
        self._effect = effect
        if effect != "unseen":
            self.limit_mw = self.cap_mw
            self._confirmed = self._taken

    def overrule(self, limit_mw: int) -> bool:
        """Somebody else, or the hardware, allows up to ``limit_mw`` whatever this node has set. That counts until
        ``cap_mw`` is confirmed again. True if it is more than was known."""
        self._effect = "unseen"
        is_more = limit_mw > self.limit_mw
        self.limit_mw = max(self.limit_mw, limit_mw)
        return is_more

    def lapse(self, now_ns: int) -> bool:
        """End the lease if it is over: True if ``cap_mw`` has fallen to the safe cap, which the caller then writes."""
        if now_ns < self.lease_end_ns or self.cap_mw <= self.declaration.safe_mw:
            return False
        self.cap_mw = self.declaration.safe_mw
        self._effect = "unseen"
        return True
