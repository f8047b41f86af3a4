"""What time alone brings: nodes that fall silent, starts that nobody confirms, jobs that are given up."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from cluster_agent.jobs.job_nodes import Node
from cluster_agent.jobs.job_runs import Run, Runs
from cluster_agent.jobs.times import Times

CHECK_S: Final = 0.5
"""Ours: how often timeouts are checked; all of them are seconds long. A check looks at every node, so not every turn
makes one."""

LATE_S: Final = 10.0
"""Ours: how late a node may report the end of a job. Its job step and its agent both end it within 5 s."""


class Timeouts:
    """``drain`` takes a node's name and the reason."""

    def __init__(
        self,
        times: Times,
        runs: Runs,
        now: Callable[[], float],
        drain: Callable[[str, str], None],
        say: Callable[[str], None],
    ) -> None:
        self._times, self._runs, self._now, self._drain, self._say = times, runs, now, drain, say
        self._checked_s = now()
        self.late: dict[str, str] = {}
        """By node, what has not ended there that should have, in words."""

    def check(self, nodes: Collection[Node]) -> None:
        """Check all nodes, if it is time."""
        now_s = self._now()
        if 0 <= now_s - self._checked_s < CHECK_S:
            return
        if now_s - self._checked_s > self._times.down_after_s:  # this process was suspended, not the nodes
            for node in nodes:
                node.heard_s = now_s if node.is_up or node.runs else node.heard_s
        self._checked_s = now_s
        self.late.clear()
        for node in nodes:
            silent_s = now_s - node.heard_s
            if node.is_up and silent_s > self._times.down_after_s:
                node.is_up = False
                if node.switched is None:
                    self._say(f"{node.name}: no report for {silent_s:.0f} s: down")
            for one in self._runs.on(node):
                self._check_run(one, node, now_s)

    def _check_run(self, one: Run, node: Node, now_s: float) -> None:
        """The job loses its node if that was silent for too long, or did not start the job in time."""
        part, silent_s = one.parts[node.name], now_s - node.heard_s
        unconfirmed_s = 0.0
        if part.last is None and part.first_start_sent_s is not None:
            unconfirmed_s = now_s - part.first_start_sent_s
        if silent_s > self._times.lost_after_s:
            self._runs.lose(one, node, f"{node.name} was silent for {silent_s:.0f} s", may_live=True)
        elif node.is_up and unconfirmed_s > self._times.start_within_s:
            reason = f"did not start job {one.job.id} within {self._times.start_within_s:.0f} s"
            self._drain(node.name, reason)
            self._say(f"{node.name}: {reason}: draining")
            self._runs.lose(one, node, f"{node.name} {reason}", may_live=True)
        elif (due_s := one.due_s(node.name)) is not None and now_s - due_s > LATE_S and not node.runs_only:
            # an emulated node's walltimes run on a clock of its own
            self.late[node.name] = (
                f"job {one.job.id} has not ended on {node.name}, {now_s - due_s:.0f} s after it had to"
            )
            self._runs.kill(one, node)
