"""Nodes that are switched off while nobody needs them, and on again: what is to be done, and what came of it.

    on ──► powering-off ──► off ──► booting ──► on
                └─────────┬───────────┘
                          ▼
                       failed (tried ``retries`` times more, in vain): down, with the reason

The site's own commands switch; whoever runs them (``serve.power``) asks ``to_run`` and tells ``ended``. A node is off
once its command has ended well *and* it is silent; it is back once it is heard in another boot. Every change is on the
disk before anything is done about it, so the agent may be killed at any instant. A command that was under way then is
run again: commands must bear that.

Here is no clock and no process; times are Unix seconds that do not jump.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec

if TYPE_CHECKING:
    from cluster_agent.jobs.job_nodes import Node
    from cluster_agent.jobs.job_store import JobStore

PowerState: TypeAlias = Literal["powering-off", "off", "booting", "failed"]

RETRY_S: Final = 10.0
"""Ours: how long after a command that failed it is run again."""


@dataclass(frozen=True, slots=True)
class PowerTimes:
    """``idle_off_s``: a node that was idle for so long is switched off; 0 never, by itself. ``keep_idle``: so many idle
    nodes stay on. ``off_within_s``, ``boot_within_s``: for each of 1 + ``retries`` tries; a command must have ended by
    then, and a node have booted."""

    idle_off_s: float = 0.0
    off_within_s: float = 120.0
    boot_within_s: float = 600.0
    retries: int = 2
    keep_idle: int = 0


class Switched(msgspec.Struct, kw_only=True):
    """A node whose power was switched; a row of the store.

    ``since_s``: in this state. ``tried_s``: when this try began (it is the ``tries``-th). ``is_done``: its command has
    ended well. ``boot_id``: the boot in which it was switched off. ``is_wanted``: to be switched on, once there are
    watts. ``is_by_hand``: somebody has said what it is to be, and no queue changes that.
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
    reason: str = ""

    @property
    def is_moving(self) -> bool:
        """Whether something is under way."""
        return self.state in ("powering-off", "booting")


class Power:
    """Over the nodes of a live partition, which it is given. ``silence_s``: so long a node must have said nothing
    before it can be off; whoever counts watts makes it longer."""

    def __init__(
        self, times: PowerTimes, store: JobStore, now: Callable[[], float], say: Callable[[str], None],
        silence_s: float,
    ) -> None:  # fmt: skip
        self.times = times
        self.silence_s = silence_s
        self._store, self._now, self._say = store, now, say
        self._began_s = now()

    def load(self, nodes: dict[str, Node]) -> None:
        """As the disk has it."""
        for one in self._store.switched():
            if one.name in nodes:
                nodes[one.name].switched = one
                if one.is_moving:  # no try is over because we were away
                    one.tried_s = self._began_s

    # --- time and the queue

    def watch(self, nodes: Iterable[Node], queued: Iterable[int]) -> None:
        """What follows from time and from the nodes that each queued job wants, in the queue's order."""
        now_s, nodes = self._now(), list(nodes)
        for node in nodes:
            self._follow(node, now_s)
        idle = [node for node in nodes if node.state == "idle"]
        coming = sum(node.state == "booting" and not node.drained for node in nodes)
        can_boot = [node for node in nodes if _may_boot_by_itself(node)]
        needed = _needed(queued, len(idle) + coming + len(can_boot))
        for n, node in enumerate(can_boot):
            self._want(node, n < needed - len(idle) - coming)
        if self.times.idle_off_s > 0:
            self._switch_off_idle(idle, len(idle) + coming - max(needed, self.times.keep_idle), now_s)

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
            return  # whoever runs the command ends it in time
        if one.state == "powering-off":
            if now_s - one.tried_s >= self.times.off_within_s + self.silence_s:
                self._again(one, "it still speaks")
        elif now_s - one.tried_s >= self.times.boot_within_s:
            self._again(one, f"not heard within {self.times.boot_within_s:.0f} s")

    def _want(self, node: Node, is_wanted: bool) -> None:
        assert node.switched is not None
        if node.switched.is_wanted != is_wanted:
            node.switched.is_wanted = is_wanted
            self._store.switch(node.switched)

    # --- what is to be done, and what came of it

    def to_run(self, nodes: Iterable[Node]) -> list[Switched]:
        """Whose command is to run, or runs; each try's once."""
        now_s = self._now()
        moving = (node.switched for node in nodes if node.switched is not None and node.switched.is_moving)
        return [one for one in moving if not one.is_done and now_s >= one.tried_s]

    def ended(self, one: Switched, problem: str) -> None:
        """The command of this try has ended; ``problem`` is empty if it has ended well."""
        if problem:
            self._again(one, problem, RETRY_S)
        else:
            one.is_done = True
            self._store.switch(one)

    def is_silent(self, node: Node) -> bool:
        """Whether nothing came from it for as long as it takes, as far as this agent could have heard."""
        return self._now() - max(node.spoke_s, node.heard_s, self._began_s) > self.silence_s

    def can_confirm_off(self, node: Node) -> bool:
        """Whether its command has ended well and it is silent."""
        one = node.switched
        return one is not None and one.state == "powering-off" and one.is_done and self.is_silent(node)

    def confirm_off(self, node: Node) -> bool:
        """Whether the node is off as of now, which is on the disk then."""
        if not self.can_confirm_off(node):
            return False
        one = node.switched
        assert one is not None
        one.state, one.since_s, one.reason, one.tries = "off", self._now(), "", 1
        self._store.switch(one)
        self._say(f"{node.name}: off")
        return True

    def boot(self, node: Node) -> None:
        """Switch it on: there are watts for it."""
        one, now_s = node.switched, self._now()
        assert one is not None and one.is_wanted
        one.state, one.since_s, one.tried_s, one.tries = "booting", now_s, now_s, 1
        one.is_done = one.is_wanted = one.is_by_hand = False
        one.reason = ""
        self._store.switch(one)
        self._say(f"{node.name}: booting")

    def heard(self, node: Node, boot_id: str) -> None:
        """The node has spoken."""
        one = node.switched
        node.spoke_s = self._now()
        if one is None or one.state == "powering-off":
            if one is not None and not one.boot_id:
                one.boot_id = boot_id
                self._store.switch(one)
            return
        if one.state == "off":
            self._say(f"{node.name}: is heard although it was off")
        elif one.boot_id == boot_id:
            return  # a late message, or it never was off
        self._is_on(node)

    # --- by hand

    def switch_off(self, node: Node, is_by_hand: bool = False) -> None:
        """Off with it, as soon as that is on the disk."""
        now_s = self._now()
        node.switched = Switched(
            name=node.name, state="powering-off", since_s=now_s, tried_s=now_s, boot_id=node.boot_id,
            is_by_hand=is_by_hand,
        )  # fmt: skip
        node.idle_s = None
        self._store.switch(node.switched)
        why = "by hand" if is_by_hand else f"idle for {self.times.idle_off_s:.0f} s"
        self._say(f"{node.name}: powering off, {why}")

    def switch_on(self, node: Node) -> None:
        """On with it, once there are watts for its boot."""
        now_s = self._now()
        if node.switched is None:
            node.switched = Switched(
                name=node.name, state="failed", since_s=now_s, tried_s=now_s, boot_id=node.boot_id,
                reason="nothing is heard of it",
            )  # fmt: skip
        node.switched.is_wanted = node.switched.is_by_hand = True
        self._store.switch(node.switched)

    def stay_off(self, node: Node) -> None:
        """Until somebody switches it on by hand."""
        assert node.switched is not None
        node.switched.is_wanted, node.switched.is_by_hand = False, True
        self._store.switch(node.switched)

    def forgive(self, node: Node) -> None:
        """What it did not do is forgotten."""
        if node.switched is not None and node.switched.state == "failed":
            self._is_on(node)

    def doubt(self, node: Node) -> None:
        """It was off, but whether it still is nobody knows: switch it off again."""
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


def _may_boot_by_itself(node: Node) -> bool:
    """Whether the queue may have it switched on: it is off, and nobody has said what it is to be."""
    one = node.switched
    return one is not None and one.state == "off" and not one.is_by_hand and not node.drained


def _needed(queued: Iterable[int], most: int) -> int:
    """How many nodes the queue could use of so many: those of the jobs, in their order, that fit beside each other."""
    needed = 0
    for nodes in queued:
        if needed + nodes <= most:
            needed += nodes
    return needed
