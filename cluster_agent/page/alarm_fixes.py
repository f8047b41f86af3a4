"""What an administrator does about an alarm: a sentence or two for each kind of ``serve.alarms.KINDS``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

UNKNOWN: Final = "`clusterctl budget show` has it in words; look at the log of the cluster agent."

FIXES: Final[Mapping[str, str]] = {
    "declared": "Look at what that node's agent declares (`nodectl doctor` there). If its watts are right, raise"
    " `nodes.most_w` in the settings.",
    "descriptors": "Raise `LimitNOFILE=` of clusterctl.service: nodes above the limit cannot connect.",
    "disbelieved": "Restart the agents of these nodes. If that does not help, revoke their keys: they hear another"
    " cluster agent.",
    "dispatched": "Make room on the disk of the store: jobs that nodes have started by themselves are counted, but a"
    " restart of the cluster agent would forget them.",
    "feed": "See whether the program that writes the feed still runs, and what its file has. Until then the last budget"
    " stays.",
    "hazard": "Look at the cooling of the room. `clusterctl budget lower 0` ends it at once, and so does"
    " `clusterctl budget set`; else it ends by itself (docs/hazard.md).",
    "history": "Make room on the disk of the store: jobs that end now are missing from the history.",
    "jobs": "Look for processes that do not end on the node named (`ps -eo pid,stat,wchan,cmd`); when nothing else"
    " helps, restart the node.",
    "joules": "Make room on the disk of the store: joules of other managers' jobs are not kept meanwhile.",
    "links": "It has been started again. If that goes on and the same key is named each time, revoke that key"
    " (`clusterctl keys revoke NAME`).",
    "over": "Find the nodes that do not confirm a lower cap, or that draw more than theirs: `clusterctl nodes`, then"
    " `clusterctl why NODE`. Start the agents of silent nodes.",
    "queues": "Correct the names in `[jobs] queues` or `[[budget.group]]` of the settings, or allow the keys of these"
    " nodes (`clusterctl keys allow`); of queues `clusterctl config check` says the same before a start.",
    "raised": "End the program that is named: it sets power limits. `[foreign] end_jobs` ends the jobs of such a node.",
    "sharer": "Correct the sharer that is named, or choose another in the settings (`sharer`); the log of the cluster"
    " agent has the whole error. Meanwhile `fspc` shares the watts.",
    "short": "Where nodes are named that cannot be reached, start their agents; of those that are gone, revoke the keys"
    " (`clusterctl keys revoke NAME`), then forget them (`clusterctl nodes forget NAME --is-off`)."
    " Else set at least the budget that is named, or switch nodes off (`clusterctl power off NODE`).",
    "silent": "Start the agents of these nodes (`systemctl status nodectl-agent` there); until then others lack the"
    " watts that they may draw. A node that is away on purpose: `clusterctl drain NODE`, where jobs run here. One that"
    " is gone: `clusterctl keys revoke NAME`, then `clusterctl nodes forget NAME --is-off`.",
    "store": "Make room on the disk of `store`, or mend it (`clusterctl store check`). No cap is raised and no job"
    " starts until then; it goes on by itself.",
}


def fix_of(kind: str) -> str:
    """What to do about an alarm of this kind."""
    return FIXES.get(kind, UNKNOWN)
