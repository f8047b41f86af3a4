"""A run over all its segments: where hardware comes while it lasts, it begins again inside, with all of it.

One segment is an ``Agent`` with one layout. Everything that is made of the layout (sample arrays, policies' states,
knobs, the journal's records) is made again for the next one, by the code that makes it at the start of a run. So a
segment is as simple as a run that finds everything at its start, and its part of the journal replays like one. Knobs
are put back in between, under a cluster's grant to their restore limits. The price is that policies learn again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from nodectl.config import Config
from nodectl.loop.agent import Agent
from nodectl.loop.hardware_watch import Patience
from nodectl.loop.notices import Notices
from nodectl.loop.summary import Summary, joined
from pmu.ports import Clock

OpenAgent: TypeAlias = Callable[[Notices, Patience, bool], Agent]
"""Opens the agent of one segment; true: a segment was there before, so what is outside of the agent is found again."""


class WholeRun:
    """``with WholeRun(...) as run``, then ``run.run``. Leaving the block restores."""

    def __init__(self, clock: Clock, log: Callable[[str], None], open_agent: OpenAgent) -> None:
        self._clock, self._open = clock, open_agent
        self._notices, self._patience = Notices(clock, log), Patience()
        self._ended: list[Summary] = []
        self.agent = open_agent(self._notices, self._patience, False)

    def __enter__(self) -> WholeRun:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def config(self) -> Config:
        """The settings that this node can follow."""
        return self.agent.config

    def run(
        self,
        until_ns: int | None = None,
        is_over: Callable[[], bool] = lambda: False,
        each_tick: Callable[[], None] = lambda: None,
    ) -> None:
        """As ``Agent.run``, over all segments."""
        while True:
            self.agent.run(until_ns, is_over, each_tick)
            if not self.agent.more_hardware or is_over():
                return
            if until_ns is not None and self._clock.now_ns() >= until_ns:
                return
            self._begin_again()

    def status(self) -> str:
        """As ``Agent.status``; of the present segment."""
        return self.agent.status()

    def stop(self) -> None:
        """Restore every knob, then close everything; once."""
        self.agent.stop()

    def summary(self) -> Summary:
        """All segments so far."""
        return joined([*self._ended, self.agent.summary()])

    def _begin_again(self) -> None:
        """End this segment and begin the next. A node that cannot be run any more ends the run, as at its start."""
        self._notices.add(f"{self.agent.more_hardware}: knobs are put back, and the run begins again with all of it")
        self.agent.stop(goes_on=True)
        self._ended.append(self.agent.summary())
        self._patience.began_again(self._clock.now_ns(), self.agent.reasons)
        self.agent = self._open(self._notices, self._patience, True)
