"""Nodes are switched off while no job needs them, and on again: what to switch, and what came of it.

    on ──► powering-off ──► off ──► booting ──► on
                └─────────┬───────────┘
                          ▼
                       failed (after ``retries`` more tries): down, with the reason

The site's own commands switch; ``serve.power_switching`` runs them: ``to_run`` gives the commands that are due,
``ended`` takes the result. A node is off once its command has ended well *and* the node is silent. It is back once it
reports in another boot. Every change is on the disk before a command runs, so the agent may be killed at any instant. A
command that was running then is run again: commands must allow that.

No clock and no process here; times are Unix seconds that do not jump.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

import msgspec

from cluster_agent.kept_on import NodesAhead

if TYPE_CHECKING:
    from cluster_agent.jobs.job_nodes import Node
    from cluster_agent.store.job_store import JobStore

PowerState: TypeAlias = Literal["powering-off", "off", "booting", "failed"]

RETRY_S: Final = 10.0
"""Ours: how long after a failed command it is run again."""


class PowerTimes(msgspec.Struct, frozen=True):
    """``idle_off_s``: a node that was idle for so long is switched off; 0: never. ``keep_idle``: so many idle nodes
    stay on. ``off_within_s``, ``boot_within_s``: limit of each of 1 + ``retries`` tries; until then the command must
    have ended and the node must be silent or have booted. ``keep_on``: a profile of cores (``kept_on``), of nodes
    with so many ``cores`` that boot in ``boot_s``; empty: none."""

    idle_off_s: float = 0.0
    off_within_s: float = 120.0
    boot_within_s: float = 600.0
    retries: int = 2
    keep_idle: int = 0
    keep_on: str = ""
    cores: int = 1
    boot_s: float = 0.0

    @property
    def is_used(self) -> bool:
        """Whether nodes are switched without anybody's word."""
        return self.idle_off_s > 0 or bool(self.keep_on)


class Switched(msgspec.Struct, kw_only=True):
    """A node whose power is switched; a row of the store.

    ``since_s``: since when it is in this state. ``tried_s``: when this try, the ``tries``-th, began. ``is_done``: its
    command has ended well. ``boot_id``: the boot in which it was switched off. ``is_wanted``: to be switched on, once
    there are watts. ``is_by_hand``: an administrator has set the state, and the queue does not change it.
    """

    name: str
    state: PowerState
    since_s: float
    tried_s: float
    tries: int = 1
    is_done: bool = False
    boot_id: str = ""
    is_wanted: bool = False
    is_by_hand: bool = False
    is_for_cap: bool = False
    """Off for a power cap: the policy decides when it is switched on again."""
    reason: str = ""

    @property
    def is_moving(self) -> bool:
        """Whether it is being switched off or on."""
        return self.state in ("powering-off", "booting")


class Wanted(NamedTuple):
    """What a queued job needs: nodes that can run it, ``chosen`` of these, or up to ``most_nodes``, as the policy will
    choose."""

    can_run: Callable[[Node], bool]
    chosen: Callable[[Sequence[Node]], Sequence[Node]]
    nodes: int
    most_nodes: int


class Power:
    """Switches the nodes of a live partition. ``silence_s``: how long a node must be silent before it counts as off;
    the ledger's user makes it longer."""

    def __init__(
        self, times: PowerTimes, store: JobStore, now: Callable[[], float], say: Callable[[str], None],
        silence_s: float,
    ) -> None:  # fmt: skip
        self.times = times
        self.silence_s = silence_s
        self._store, self._now, self._say = store, now, say
        self._began_s = now()
        self._ahead = NodesAhead(times.keep_on, times.cores, times.boot_s, say) if times.keep_on else None

    def load(self, nodes: dict[str, Node]) -> None:
        """Load the state from the disk."""
        for one in self._store.switched():
            if one.name in nodes:
                nodes[one.name].switched = one
                if one.is_moving:  # the time of a try begins again after a restart
                    one.tried_s = self._began_s

    # --- time and the queue

    def watch(self, nodes: Iterable[Node], queued: Iterable[Wanted]) -> None:
        """Check timeouts, and switch by what the queued jobs need, in the queue's order."""
        now_s, nodes = self._now(), list(nodes)
        for node in nodes:
            self._follow(node, now_s)
        idle = [node for node in nodes if node.state == "idle"]
        coming = [node for node in nodes if node.state == "booting" and not node.drained]
        can_boot = [node for node in nodes if _may_boot_by_itself(node)]
        needed = _needed(queued, [*coming, *idle, *can_boot])
        kept = self._surplus(nodes, coming, now_s)
        self._boot(can_boot, needed, -kept - self._unheard(nodes, now_s))
        if self.times.idle_off_s > 0:
            surplus = min(len(idle) + len(coming) - max(len(needed), self.times.keep_idle), kept)
            self._switch_off_idle([node for node in idle if node.name not in needed], surplus, now_s)

    def _surplus(self, nodes: Sequence[Node], coming: Sequence[Node], now_s: float) -> int:
        """How many more nodes are on or boot than the profile wants; below 0: so many are missing."""
        on = len(coming) + sum(node.is_up and node.switched is None and not node.gets_none for node in nodes)
        return on - (self._ahead.wanted(now_s) if self._ahead else 0)

    def _unheard(self, nodes: Sequence[Node], now_s: float) -> int:
        """How many nodes nobody has heard yet, right after a start: others shall not boot in their place."""
        if now_s - self._began_s > self.silence_s:
            return 0
        return sum(node.spoke_s == float("-inf") and node.switched is None for node in nodes)

    def _boot(self, can_boot: Sequence[Node], needed: set[str], missing: int) -> None:
        """Boot the nodes that jobs need, and the first of the others until so many are on as the profile wants."""
        missing -= sum(node.name in needed for node in can_boot)
        for node in can_boot:
            is_ahead = node.name not in needed and missing > 0
            missing -= is_ahead
            self._want(node, is_ahead or node.name in needed)

    def _follow(self, node: Node, now_s: float) -> None:
        """Since when the node is idle; a switch under way may have taken too long."""
        if node.state != "idle":
            node.idle_s = None
        elif node.idle_s is None:
            node.idle_s = now_s
        if node.switched is not None and node.switched.is_moving:
            self._progress(node, node.switched, now_s)

    def _switch_off_idle(self, idle: Sequence[Node], surplus: int, now_s: float) -> None:
        """Switch off as many as ``surplus`` of the nodes that were idle for long, the last ones first: the scheduler
        gives jobs the first ones."""
        for node in reversed(idle):
            if surplus <= 0:
                return
            if node.idle_s is not None and now_s - node.idle_s >= self.times.idle_off_s:
                self.switch_off(node)
                surplus -= 1

    def _progress(self, node: Node, one: Switched, now_s: float) -> None:
        if not one.is_done or self.can_confirm_off(node):
            return  # the command's own time limit comes first
        if one.state == "powering-off":
            if now_s - one.tried_s >= self.times.off_within_s + self.silence_s:
                self._again(one, "it still reports")
        elif now_s - one.tried_s >= self.times.boot_within_s:
            self._again(one, f"no report within {self.times.boot_within_s:.0f} s")

    def _want(self, node: Node, is_wanted: bool) -> None:
        assert node.switched is not None
        if node.switched.is_wanted != is_wanted:
            node.switched.is_wanted = is_wanted
            self._store.switch(node.switched)

    def keep_off(self, nodes: Iterable[Node], count: int) -> None:
        """For a cap, so many nodes are off or going off: first those that are off anyway, then idle ones, the last ones
        first. More than that are switched on again."""
        nodes = list(nodes)
        now_off = [node for node in nodes if is_off_for_cap(node) and not is_coming(node)]
        for node in now_off[count:]:
            self.switch_on(node)
        missing = count - len(now_off)
        idle = [node for node in reversed(nodes) if node.state == "idle"]
        for node in [*(node for node in reversed(nodes) if _may_boot_by_itself(node)), *idle][: max(missing, 0)]:
            if node.switched is None:
                self.switch_off(node, is_for_cap=True)
                continue
            node.switched.is_for_cap, node.switched.is_wanted = True, False
            self._store.switch(node.switched)

    # --- commands, and their results

    def to_run(self, nodes: Iterable[Node]) -> list[Switched]:
        """The nodes whose command is to run or runs; once per try."""
        now_s = self._now()
        moving = (node.switched for node in nodes if node.switched is not None and node.switched.is_moving)
        return [one for one in moving if not one.is_done and now_s >= one.tried_s]

    def ended(self, one: Switched, problem: str) -> None:
        """Take the end of this try's command; ``problem`` is empty if it ended well."""
        if problem:
            self._again(one, problem, RETRY_S)
        else:
            one.is_done = True
            self._store.switch(one)

    def is_silent(self, node: Node) -> bool:
        """Whether the node has been silent for long enough, and this agent was up to hear it."""
        return self._now() - max(node.spoke_s, node.heard_s, self._began_s) > self.silence_s

    def can_confirm_off(self, node: Node) -> bool:
        """Whether its command has ended well and it is silent."""
        one = node.switched
        return one is not None and one.state == "powering-off" and one.is_done and self.is_silent(node)

    def confirm_off(self, node: Node) -> bool:
        """Whether the node is off now; if so, that is on the disk."""
        if not self.can_confirm_off(node):
            return False
        one = node.switched
        assert one is not None
        one.state, one.since_s, one.reason, one.tries = "off", self._now(), "", 1
        self._store.switch(one)
        self._say(f"{node.name}: off")
        return True

    def boot(self, node: Node) -> None:
        """Switch the node on: there are watts for its boot."""
        one, now_s = node.switched, self._now()
        assert one is not None and one.is_wanted
        one.state, one.since_s, one.tried_s, one.tries = "booting", now_s, now_s, 1
        one.is_done = one.is_wanted = one.is_by_hand = False
        one.reason = ""
        self._store.switch(one)
        self._say(f"{node.name}: booting")

    def heard(self, node: Node, boot_id: str) -> None:
        """The node has sent something."""
        one = node.switched
        node.spoke_s = self._now()
        if one is None or one.state == "powering-off":
            if one is not None and not one.boot_id:
                one.boot_id = boot_id
                self._store.switch(one)
            return
        if one.state == "off":
            self._say(f"{node.name}: reports although it was off")
        elif one.boot_id == boot_id:
            return  # a late message, or it never was off
        self._is_on(node)

    # --- by hand

    def switch_off(self, node: Node, is_by_hand: bool = False, is_for_cap: bool = False) -> None:
        """Switch the node off; the command runs once this is on the disk."""
        now_s = self._now()
        node.switched = Switched(
            name=node.name, state="powering-off", since_s=now_s, tried_s=now_s, boot_id=node.boot_id,
            is_by_hand=is_by_hand, is_for_cap=is_for_cap,
        )  # fmt: skip
        node.idle_s = None
        self._store.switch(node.switched)
        idle = "for a power cap" if is_for_cap else f"idle for {self.times.idle_off_s:.0f} s"
        why = "by hand" if is_by_hand else idle
        self._say(f"{node.name}: powering off, {why}")

    def switch_on(self, node: Node) -> None:
        """Switch the node on, once there are watts for its boot."""
        now_s = self._now()
        if node.switched is None:
            node.switched = Switched(
                name=node.name, state="failed", since_s=now_s, tried_s=now_s, boot_id=node.boot_id,
                reason="it does not report",
            )  # fmt: skip
        node.switched.is_wanted = node.switched.is_by_hand = True
        self._store.switch(node.switched)

    def stay_off(self, node: Node) -> None:
        """Keep the node off until somebody switches it on by hand."""
        assert node.switched is not None
        node.switched.is_wanted, node.switched.is_by_hand = False, True
        self._store.switch(node.switched)

    def forgive(self, node: Node) -> None:
        """Forget that switching the node failed."""
        if node.switched is not None and node.switched.state == "failed":
            self._is_on(node)

    def doubt(self, node: Node) -> None:
        """Switch a node off again that was off, but may not be any more."""
        one = node.switched
        if one is not None and one.state == "off":
            one.state, one.since_s, one.tried_s, one.is_done = "powering-off", self._now(), self._now(), False
            self._store.switch(one)
            self._say(f"{node.name}: was off before this machine was started: switched off again")

    # --- inside

    def _is_on(self, node: Node) -> None:
        self._say(f"{node.name}: on again")
        node.switched = None
        self._store.is_on(node.name)

    def _again(self, one: Switched, problem: str, after_s: float = 0.0) -> None:
        verb = "switching it off" if one.state == "powering-off" else "switching it on"
        if one.tries > self.times.retries:
            self._say(f"{one.name}: {verb} failed {one.tries} times: {problem}: down")
            one.state, one.reason = "failed", f"{verb} failed {one.tries} times: {problem}"
            one.since_s = self._now()
        else:
            self._say(f"{one.name}: {verb}: {problem}; once more")
            one.reason = problem
            one.tries, one.tried_s, one.is_done = one.tries + 1, self._now() + after_s, False
        self._store.switch(one)


def is_off_for_cap(node: Node) -> bool:
    """Whether the policy has it off for a power cap, until it is on again."""
    return node.switched is not None and node.switched.is_for_cap


def is_coming(node: Node) -> bool:
    """Whether it boots, or is to."""
    return node.switched is not None and (node.switched.state == "booting" or node.switched.is_wanted)


def _may_boot_by_itself(node: Node) -> bool:
    """Whether the queue may have it switched on: it is off, and nobody has said what it is to be."""
    one = node.switched
    is_free = one is not None and one.state == "off" and not one.is_by_hand and not one.is_for_cap
    return is_free and not node.drained


def _needed(queued: Iterable[Wanted], there: Sequence[Node]) -> set[str]:
    """The nodes that the queue could use, of these the first: those of the jobs that fit side by side, in order."""
    needed: set[str] = set()
    for job in queued:
        if job.nodes > len(there) - len(needed):
            continue
        could = [node for node in there if node.name not in needed and job.can_run(node)]
        if chosen := job.chosen(could):
            own = chosen if job.most_nodes == job.nodes else could[: job.most_nodes]
            needed.update(node.name for node in own)
    return needed
