"""A gymnasium environment on a stepped world: at each decision the agent chooses who is the head of the queue.

What follows is the policy's own pass: the head starts if there is room for it, and others backfill behind it. So an
agent that always chooses the first job gets ``easy``, job for job, and no choice leaves the machine idle for long.
"""

from __future__ import annotations

from functools import partial
from math import log1p
from operator import index
from typing import Any, Final, TypeAlias

import gymnasium
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from cluster_agent.errors import StepError
from cluster_agent.replay.measures import bounded_slowdown
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.world import World
from cluster_agent.stepping.steps import Steps

EASY: Final = Composition(backfill="easy")
LONGEST_S: Final = 10**7
"""Times are seen as log(1 + s) over that of this one, ours; longer ones count as this."""
_PER_LOG: Final = 1 / log1p(LONGEST_S)
OF_A_JOB: Final = ("waited", "estimate", "width", "fits", "is_there")
OF_THE_MACHINE: Final = ("free", "waiting", "next_end")

Seen: TypeAlias = dict[str, Any]  # of arrays of float32


class Backfilling(gymnasium.Env[Seen, np.int64]):
    """Episodes of ``window`` jobs of the world's log, on an empty machine.

    Action: the place in the queue of the job that is the head; a place that no job has is the first. Observation:
    ``queue`` (``most``, 5), the first jobs of the queue with ``OF_A_JOB``, and ``machine`` (3), ``OF_THE_MACHINE``, all
    between 0 and 1. Reward: minus the bounded slowdowns of the jobs that have started since the last step, over the
    window's jobs; so an episode's return is minus its mean bounded slowdown. Decisions are where two jobs or more wait
    and one may fit. No threads; a vector of them is ``vector``.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 as gymnasium declares it

    def __init__(self, world: World, policy: Composition = EASY, window: int | None = 256, most: int = 64) -> None:
        """``window`` None: the whole log. ``StepError`` if the world or the policy cannot be stepped."""
        if not isinstance(world, World) or not isinstance(policy, Composition):
            raise StepError("give the world and the policy of Steps: Steps.of(World(...)).world, policy(P).composition")
        n = len(world.jobs)
        if not 2 <= _whole("window", n if window is None else window) <= n or _whole("most", most) < 1:
            raise StepError(f"window={window}, most={most}: the log has {n} jobs, a window 2 or more, the queue one")
        self._world, self._policy, self._window, self._most = world, policy, n if window is None else window, most
        self._kills = policy.power is not None and policy.power.react is not None
        self._steps: Steps | None = None
        shape = {"queue": (most, len(OF_A_JOB)), "machine": (len(OF_THE_MACHINE),)}
        self.observation_space = gymnasium.spaces.Dict(
            {name: gymnasium.spaces.Box(0.0, 1.0, one, np.float32) for name, one in shape.items()}
        )
        self.action_space = gymnasium.spaces.Discrete(most)

    @property
    def steps(self) -> Steps:
        """The world of this episode. ``StepError`` before the first ``reset``."""
        if self._steps is None:
            raise StepError("the environment has no world yet: call reset first")
        return self._steps

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Seen, dict[str, Any]]:
        """Draw a window in which there is something to decide. ``options["first"]``: its first job instead."""
        super().reset(seed=seed)
        last, given = len(self._world.jobs) - self._window, (options or {}).get("first")
        if given is not None and not 0 <= _whole("reset: first", given) <= last:
            raise StepError(f"reset: first={given}: a window of {self._window} jobs begins at 0 to {last}")
        for _ in range(1 if given is not None or not last else 1000):
            first = int(self.np_random.integers(0, last + 1)) if given is None else int(given)
            rows = np.arange(first, first + self._window)
            self._steps, self._seen, self._cost = Steps(self._of(rows), self._policy, "choices"), 0, 0.0
            if not self._steps.is_over:
                return self._observation(), {"first": first, "reward": self._reward()}
        raise StepError("reset: in no window does one job wait for another, so there is nothing to decide")

    def step(self, action: np.int64) -> tuple[Seen, float, bool, bool, dict[str, Any]]:
        """Make it the head, let the policy's pass follow, and go on to the next decision."""
        steps, place = self.steps, _whole("action", action)
        steps.order([place if place < len(steps.queue) else 0])
        steps.advance()
        return self._observation(), self._reward(), steps.is_over, False, {}

    def _of(self, rows: npt.NDArray[np.int64]) -> World:
        watts = self._world.watts
        return replace(self._world.only(rows), watts=None if watts is None else watts.only(rows))

    def _reward(self) -> float:
        new = slice(0 if self._kills else self._seen, None)
        started = self.steps.started[new]
        if not len(started):
            return 0.0
        wait_s = self.steps.wait_s[new]
        cost, before = float(bounded_slowdown(wait_s, self.steps.jobs.run_s[started]).sum()), self._cost
        self._seen += len(started)
        self._cost = cost if self._kills else 0.0  # a job that was killed may count again
        return (before - cost) / self._window

    def _observation(self) -> Seen:
        steps = self.steps
        free, processors = steps.free, steps.processors
        waiting, running = steps.tables(self._most)
        jobs = np.zeros((self._most, len(OF_A_JOB)), np.float32)
        own = jobs[: len(waiting)]
        own[:, 3] = waiting[:, 2] <= free
        own[:, 4] = 1.0
        times_s = waiting[:, :2]
        np.log1p(times_s, out=times_s)
        np.multiply(waiting, (_PER_LOG, _PER_LOG, 1 / processors), out=own[:, :3])
        np.minimum(own, 1.0, out=own)
        next_end = min(log1p(max(running[0, 0], 0.0)) * _PER_LOG, 1.0) if len(running) else 0.0
        machine = (free / processors, min(len(steps.queue) / self._most, 1.0), next_end)
        return {"queue": jobs, "machine": np.array(machine, np.float32)}


def _whole(what: str, given: Any) -> int:
    """``StepError`` if it is no whole number."""
    try:
        return index(given)
    except TypeError:
        raise StepError(f"{what}={given!r}: give a whole number") from None


def vector(world: World, count: int, **options: Any) -> gymnasium.vector.SyncVectorEnv:
    """``count`` environments on one log, stepped in turn; ``options``: those of ``Backfilling``."""
    return gymnasium.vector.SyncVectorEnv([partial(Backfilling, world, **options)] * count)
