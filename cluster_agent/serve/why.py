"""Why a node has its cap: the answer in named fields, and the sentences that people read, made from the fields.

The terms are those of the ledger (docs/ledger.md). A cap is *wanted* by the plan, *granted* by the ledger, and *in
force* on the node by its last report. The most that the node may draw, by all that is known, *counts* in the budget.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from cluster_agent.budget.group_views import GroupView
from cluster_agent.budget.tag_sources import in_words
from cluster_agent.fabric.people import Finite

WaitsFor: TypeAlias = Literal["", "mode cap", "store", "report", "older leases", "watts", "confirmation"]
"""What keeps a node from the wanted cap: nothing is granted in observe mode; the store cannot be written; a lower cap
is sent in answer to the node's next report; leases of the cluster agent before this one may still run; other nodes must
give up watts first; the cap is granted, and the node has yet to confirm it. "": nothing."""

_WORDS: Final[dict[WaitsFor, str]] = {
    "store": "the store cannot be written",
    "report": "its next report",
    "older leases": "leases of the cluster agent before this one may still run; none is raised until they end",
}


class Why(msgspec.Struct, frozen=True):
    """Watts, seconds and shares; None: not known. The fields are in the order in which watts go from the budget to the
    node."""

    node: str
    state: str
    budget_w: Finite
    fixed_w: Finite
    reserve_w: Finite
    failing_together: int
    """How many nodes may reboot at once, for which the reserve is."""
    shared_w: Finite
    shared_among: int
    """Among how many nodes the rest was shared."""
    short_w: Finite
    """What is missing for every node's MOP."""
    job: str
    tag: str
    tag_source: str
    agent_tag: str
    """The node agent's tag of its load, and what it measured it by."""
    agent_tag_source: str
    wanted_w: Finite | None
    sharer: str
    reason: str
    """The sharer's reason in one word; "" if no cap was planned."""
    slowdown: Finite | None
    """Predicted extra time of the job at this cap, as a share."""
    words: str
    """The sharer's reason as a sentence."""
    granted_w: Finite | None
    in_force_w: Finite
    counts_w: Finite
    tdp_w: Finite
    mop_w: Finite
    safe_w: Finite
    boot_w: Finite
    lease_class: str
    heard_s_ago: Finite | None
    is_silent: bool
    waits_for: WaitsFor
    free_w: Finite
    freeing_w: dict[str, Finite]
    """Watts that some other nodes are about to free, by node."""
    next_plan_s: Finite | None
    gap_s: Finite
    """Least time between two plans, except for what cannot wait."""
    alarms: list[str]
    levels: list[GroupView] = []
    """The groups of the node that have limits of their own, the widest first."""
    bound_within: str = ""
    """The group whose limit was shared among its nodes, ``shared_w`` among ``shared_among``; "": the whole budget."""

    @property
    def lines(self) -> list[str]:
        """One sentence each."""
        lines = [
            f"state: {self.state}",
            f"budget {self.budget_w:g} W, of it {self.fixed_w:g} W fixed and {self.reserve_w:g} W in reserve for"
            f" {self.failing_together} node(s) that may reboot at once" + ("" if self.bound_within else self._shared()),
        ]
        for one in self.levels:
            short = f", {one.short_w:g} W less than its nodes' MOPs need" if one.short_w else ""
            binds = f" and decides the cap{self._shared()}" if one.name == self.bound_within else ""
            lines.append(f"in {one.name}: its limit of {one.limit_w:g} W has {one.free_w:g} W free{short}{binds}")
        if self.tag:
            by = f", {self.agent_tag_source}" if self.agent_tag_source else ""
            own = f"; its agent says {self.agent_tag}{by}" if self.agent_tag else ""
            lines.append(f"tag: {in_words(self.tag, self.tag_source)}{own}")
        granted = "none in this boot" if self.granted_w is None else f"{self.granted_w:g} W"
        known = "as far as is known" if self.heard_s_ago is None else "by its last report"
        lines += [
            f"wanted: {self._wanted()}",
            f"granted: {granted}",
            f"in force: {self.in_force_w:g} W, {known}",
            f"counts: {self.counts_w:g} W (TDP {self.tdp_w:g}, MOP {self.mop_w:g}, safe {self.safe_w:g}, boot"
            f" {self.boot_w:g} W, class {self.lease_class})",
        ]
        if waits := self._waits():
            lines.append(waits)
        if self.next_plan_s is not None:
            lines.append(
                f"the next plan is due in {self.next_plan_s:.1f} s: starts and changes of the budget are planned for at"
                f" once, all else {self.gap_s:g} s after the last plan"
            )
        return lines + [f"alarm: {alarm}" for alarm in self.alarms]

    def _shared(self) -> str:
        return f"; {self.shared_w:g} W were shared among {self.shared_among} nodes"

    def _wanted(self) -> str:
        if self.wanted_w is None:
            return "none was planned, since the node cannot be reached"
        if lacking := next((one for one in self.levels if one.short_w), None):
            return f"{self.wanted_w:g} W, its MOP: the limit of {lacking.name} is {lacking.short_w:g} W short"
        if self.short_w:
            return f"{self.wanted_w:g} W, its MOP: the budget is {self.short_w:g} W short"
        return self.words if self.sharer else f"{self.wanted_w:g} W; {self.words}"

    def _waits(self) -> str:
        if self.is_silent:
            since = "since this cluster agent started" if self.heard_s_ago is None else f"for {self.heard_s_ago:.0f} s"
            return (
                f"no report {since}: it counts the most that it may draw, and gets no other cap, until it reports, is"
                " known to be off, or is forgotten (`clusterctl nodes forget`)"
            )
        if self.waits_for == "":
            return ""
        if self.waits_for == "confirmation":
            return "waiting for the node to confirm it"
        if self.waits_for == "mode cap":
            return "nothing is granted: observe mode"
        what = _WORDS.get(self.waits_for, f"{self.free_w:g} W are free now")
        falling = ", ".join(f"{node} ({watts:g} W)" for node, watts in self.freeing_w.items())
        return f"waiting for {self.wanted_w:g} W: {what}" + (f"; to be freed by {falling}" if falling else "")
