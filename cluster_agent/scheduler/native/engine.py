"""What the native engine is made of, for one world and one policy: the same in a replay of a whole log
(``NativeReplay``), in a loop of events, and on a live partition (``NativeScheduler``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.world import World

if TYPE_CHECKING:  # a short replay is as long as its imports
    from cluster_agent.scheduler.job_columns import Jobs
    from cluster_agent.scheduler.native.answering import Answering
    from cluster_agent.scheduler.native.native_moldable import CMoldable
    from cluster_agent.scheduler.native.native_unlike import CUnlike
    from cluster_agent.scheduler.switches.limits import CLimits


class Looped(Protocol):
    """A closed loop: ``jobs`` are filled in as they come."""

    jobs: Jobs
    answers: Answering

    def in_order(self, predictor: Any) -> Any:
        """The predictor, which knows the jobs by their places in the trace."""


class Engine:
    """``composition``, ``jobs``, ``processors`` and ``given`` are the native engine's arguments."""

    def __init__(self, world: World, composition: Composition, looped: Looped | None = None) -> None:
        self.composition, self.jobs = composition, world.jobs if looped is None else looped.jobs
        self.unlike: CUnlike | None = None
        self.moldable: CMoldable | None = None
        self.given: dict[str, Any] = {"recorded": world.recorded}
        self.limits: CLimits | None = None
        if world.limits is not None:
            from cluster_agent.scheduler.switches.limits import CLimits  # only here: most worlds have none

            self.limits = CLimits(world.limits) if looped is None else CLimits(world.limits, looped.answers.table)
            self.given["limits"] = self.limits
        if world.nodes is not None:
            self.unlike = self._on_nodes(world, looped)
            self.composition, self.processors = self.unlike.phases, self.unlike.processors
            self.given["unlike"] = self.unlike
            return
        source = world.on_processors
        self.processors = source.processors
        if world.ways is not None:
            self.moldable = self._in_ways(world, looped)
            self.jobs = self.moldable.jobs(self.jobs)
            self.given["moldable"] = self.moldable
            return
        users = source.users if composition.priority else None
        self.given |= {"watts": world.watts, "caps": world.caps, "users": users, "looks": world.looks}

    @property
    def switches(self) -> dict[str, int]:
        """What of the site is modelled, and how many jobs each has changed so far."""
        return {name: count for part in (self.unlike, self.limits) if part for name, count in part.switches.items()}

    def _on_nodes(self, world: World, looped: Looped | None) -> CUnlike:
        # only here: a short replay is as long as its imports
        from cluster_agent.scheduler.native.native_unlike import CUnlike

        assert world.nodes is not None
        power = None if world.new_predictor is None else world.new_predictor(world.node_trace, world.nodes)
        given = self.composition, self.jobs, world.nodes, world.caps
        if looped is None:
            return CUnlike(*given, power, world.plan, on=world.on, say=world.say)
        return CUnlike(*given, None if power is None else looped.in_order(power), world.plan, looped.answers.table)

    def _in_ways(self, world: World, looped: Looped | None) -> CMoldable:
        from cluster_agent.scheduler.native.native_moldable import CMoldable  # as above

        assert world.ways is not None
        given = self.composition, world.jobs, world.ways, self.processors, world.caps
        return CMoldable(*given) if looped is None else CMoldable(*given, looped.answers.table)
