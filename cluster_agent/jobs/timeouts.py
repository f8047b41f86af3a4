"""What time alone brings: nodes that fall silent, starts that nobody confirms, jobs that are given up."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from cluster_agent.jobs.job_nodes import Node
from cluster_agent.jobs.job_runs import Part, Run, Runs
from cluster_agent.jobs.times import Times


def watch(
    nodes: Iterable[Node],
    runs: Runs,
    times: Times,
    now_s: float,
    drain: Callable[[str, str], None],
    say: Callable[[str], None],
) -> None:
    """Check all nodes; ``drain`` takes a node's name and the reason."""

    def watch_run(one: Run, node: Node, silent_s: float) -> None:
        """The job loses its node if that was silent for too long, or did not start the job in time."""
        if silent_s > times.lost_after_s:
            runs.lose(one, node, f"{node.name} was silent for {silent_s:.0f} s")
        elif node.is_up and _is_start_overdue(one.parts[node.name], now_s - times.start_within_s):
            reason = f"did not start job {one.job.id} within {times.start_within_s:.0f} s"
            drain(node.name, reason)
            say(f"{node.name}: {reason}: draining")
            runs.lose(one, node, f"{node.name} {reason}")

    for node in nodes:
        silent_s = now_s - node.heard_s
        if node.is_up and silent_s > times.down_after_s:
            node.is_up = False
            if node.switched is None:
                say(f"{node.name}: no report for {silent_s:.0f} s: down")
        if (one := runs.on(node)) is not None:
            watch_run(one, node, silent_s)


def _is_start_overdue(part: Part, sent_before_s: float) -> bool:
    """Whether the node got the start long ago, and has reported nothing of it."""
    return part.last is None and part.first_start_sent_s is not None and part.first_start_sent_s < sent_before_s
