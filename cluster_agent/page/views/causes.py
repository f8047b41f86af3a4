"""What bounds a node and what it waits for, in the words of ``clusterctl why``, from the fields of a row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from cluster_agent.budget.sharers.view import reason_in_words
from cluster_agent.page.views.markup import Kind
from cluster_agent.serve.people_protocol import NodeRow

WAITS: Final = {
    "mode cap": "nothing is granted, since the cluster agent only observes (`mode` in its settings)",
    "store": "the store of the cluster agent cannot be written",
    "report": "a lower cap is sent in answer to its next report",
    "older leases": "leases of the cluster agent before this one may still run; none is raised until they end",
    "watts": "other nodes must give up watts first",
    "confirmation": "the cap is granted, and the node has yet to confirm it",
}
STATES: Final = {
    "silent": "it does not report, and counts the most that it may draw",
    "never heard": "it has never reported, and counts the most that it may draw",
    "inherited": "it has not reported to this cluster agent yet, and counts what it was granted before",
    "joining": "it has just joined and has not confirmed a cap yet",
    "young": "the cluster agent has just started: caps are raised when older leases have ended",
    "leaving": "its agent is ending",
    "left": "its agent has ended in an orderly way",
    "off": "it has no power",
}
"""What a state that is not the usual one means."""


def what_helps(row: NodeRow) -> str:
    """What an administrator does about a node that is not heard; "" for any other."""
    if row.state not in ("silent", "never heard", "inherited"):
        return ""
    name = row.name[:60]
    return (
        f"Start its agent. If it is gone and has no power, revoke its key (`clusterctl keys revoke {name}`), then say"
        f" so: `clusterctl nodes forget {name} --is-off`."
    )


def kind_of_state(state: str) -> Kind:
    """In order, about to change, to be looked after, or away."""
    if state in ("off", "left"):
        return "off"
    if state == "capped":
        return "ok"
    return "bad" if state in ("silent", "never heard", "inherited") else "wait"


def kind_of(row: NodeRow) -> Kind:
    """The same of a node, with what it does for jobs."""
    kind = kind_of_state(row.state)
    if row.jobs == "drained":
        return "off"  # it does not report, and whoever drained it knows
    if row.jobs == "down" and kind != "off":
        return "bad"
    return "wait" if row.jobs == "draining" and kind == "ok" else kind


def cause(bound_by: str) -> str:
    """``even: slowed`` as what decided, and who."""
    sharer, _, reason = bound_by.partition(": ")
    reason, _, group = reason.partition(" in ")
    words = reason_in_words(reason)
    within = f", within the limit of {group}" if group else ""
    return f"{words} (sharer: {sharer}{within})" if words else bound_by


def bounding(rows: Iterable[NodeRow]) -> list[tuple[str, int]]:
    """What bounds how many nodes, the most first."""
    return Counter(row.bound_by for row in rows if row.bound_by).most_common()
