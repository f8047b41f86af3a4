"""Nodes with a broken sensor or without a cap are drained in Slurm, and come back when that is over.

Only where the site wants it (`clusterctl slurm follow --drain`). The jobs there go on. A node is drained when its
trouble has lasted ``AFTER_S``, with a reason that begins with ``MARK``; it is resumed when all has been well for
``CALM_S``, and only while the reason in Slurm is still one of ours: what an administrator has drained stays drained.
At most ``MOST`` of Slurm's nodes are drained so at a time, since trouble of more is none of theirs.

The other way nothing is needed: a node that is down in Slurm counts in the budget as its agent reports, and one whose
agent is silent as its lease has it (docs/ledger.md), whatever Slurm says of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from cluster_agent.errors import ClusterError
from cluster_agent.serve.people_protocol import NodeRow
from cluster_agent.slurm.slurm_programs import last_line, run

MARK: Final = "nodectl: "
CALIBRATION: Final = f"{MARK}calibration"
"""The reason of nodes that ``taken_nodes`` drains and resumes: none of this module's."""

AFTER_S: Final = 60.0
"""Ours: an agent that is started again is back in some seconds."""

CALM_S: Final = 60.0
MOST: Final = 0.1
"""Ours: a part of the nodes, and at least one node."""


def trouble(row: NodeRow) -> str:
    """What is wrong with a node that its agent should keep; empty: nothing. One that was never heard, has left or is
    off is no such node."""
    if row.state == "silent":
        return "its agent is silent, so it is at its safe cap"
    if row.state in ("joining", "capped"):
        if row.quality == "missing":
            return "a sensor is broken: its power is not known"
        if row.state == "joining" or (row.granted_w is not None and row.in_force_w > row.granted_w + 0.5):
            return "its cap is not confirmed"
    return ""


class NodeDrain:
    """``turn`` compares once. ``rows`` asks the cluster agent, ``reasons`` Slurm: of each node whether it is drained
    or down, and why; ``update`` sets a node's state there."""

    def __init__(
        self,
        rows: Callable[[], list[NodeRow]],
        reasons: Callable[[], dict[str, str]],
        update: Callable[[str, str, str], None],
        say: Callable[[str], None],
        now_s: Callable[[], float],
    ) -> None:
        self._rows, self._reasons, self._update, self._say, self._now_s = rows, reasons, update, say, now_s
        self._since_s: dict[str, float] = {}
        self._calm_s: dict[str, float] = {}
        self._trouble = ""

    def turn(self) -> None:
        """Drain and resume; a line if somebody does not answer, and nothing is done then."""
        try:
            self._compare(self._rows(), self._reasons())
            self._trouble = ""
        except ClusterError as error:
            if str(error) != self._trouble:
                self._say(f"no node is drained or resumed: {error}")
            self._trouble = str(error)

    def _compare(self, rows: Iterable[NodeRow], reasons: dict[str, str]) -> None:
        now_s = self._now_s()
        found = {row.name: trouble(row) for row in rows if row.name in reasons}
        troubled = {name: what for name, what in found.items() if what}
        self._since_s = {name: self._since_s.get(name, now_s) for name in troubled}
        self._calm_s = {name: self._calm_s.get(name, now_s) for name in found.keys() - troubled.keys()}
        ours = {name for name, reason in reasons.items() if _is_ours(reason)}
        for name in sorted(ours & self._calm_s.keys()):
            if now_s - self._calm_s[name] >= CALM_S:
                self._set(name, "resume", "")
        waiting = [name for name in sorted(troubled) if now_s - self._since_s[name] >= AFTER_S and not reasons[name]]
        _refuse_many(len(ours) + len(waiting), len(reasons), next(iter(troubled.items()), ("", "")))
        for name in waiting:
            self._set(name, "drain", MARK + troubled[name])

    def _set(self, name: str, state: str, reason: str) -> None:
        self._update(name, state, reason)
        self._say(f"node {name}: {state} in Slurm{f', {reason}' if reason else ''}")


def _is_ours(reason: str) -> bool:
    return reason.startswith(MARK) and reason != CALIBRATION


def _refuse_many(count: int, nodes: int, first: tuple[str, str]) -> None:
    """``ClusterError`` if so many would be drained at a time. ``first``: one in trouble, and its trouble."""
    most = max(1, int(MOST * nodes))
    if count > most:
        raise ClusterError(
            f"{count} of {nodes} nodes are in trouble, and at most {most} are drained: {': '.join(first)}"
        )


def read_reasons(sinfo: str = "sinfo") -> dict[str, str]:
    """Each node of Slurm with the reason why it is drained or down; empty: it is neither."""
    found = {}
    for line in _answer([sinfo, "-h", "-N", "-o", "%N|%T|%E"]).splitlines():
        name, state, reason = [*line.split("|", 2), "", ""][:3]
        is_out = any(word in state for word in ("drain", "down", "fail", "maint"))
        found[name] = (reason if reason != "none" else state) if is_out else ""
    return found


def set_state(name: str, state: str, reason: str, scontrol: str = "scontrol") -> None:
    """``scontrol update``; a drained node needs a reason."""
    _answer([scontrol, "update", f"nodename={name}", f"state={state}", *([f"reason={reason}"] if reason else [])])


def _answer(command: list[str]) -> str:
    done = run(command)
    if done.returncode:
        raise ClusterError(f"{command[0]} failed: {last_line(done.stderr, done.stdout)}")
    return done.stdout.decode(errors="replace")
