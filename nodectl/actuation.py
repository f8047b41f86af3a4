"""From decisions to hardware: this node's lock, the writer, and the watch over whether clocks follow."""

from __future__ import annotations

import numpy as np

from nodectl.config import Config
from nodectl.decider import knob_names
from nodectl.decisions import Decisions
from nodectl.knobs import EffectWatch, Outcome
from nodectl.lock import NodeLock
from nodectl.restore import save_path
from nodectl.saves import node_id
from nodectl.survey import Survey
from nodectl.writer import Writer
from pmu.ports import Ports
from pmu.readings import Sample


class Actuation:
    """Everything that a run which writes has and one that only looks has not.

    The node's lock is taken before the writer looks at an earlier save and given up after the last knob is back: two
    agents, whatever their state directories, never see each other's values as captured ones.
    """

    def __init__(self, ports: Ports, config: Config, survey: Survey) -> None:
        self._clock = ports.clock
        self._lock = NodeLock(config.state_dir, ports.lock_path)
        self._writer = Writer(survey.knobs, save_path(config.state_dir), node_id(ports.lock_path), ports.clock)
        self._watch = EffectWatch(survey.knobs, survey.layout)
        movable = {knob.name for knob in survey.knobs}
        rows = [(row, name) for row, name in enumerate(knob_names(survey.layout)) if name in movable]
        self._rows = np.array([row for row, _ in rows], np.int64)
        self._names = [name for _, name in rows]

    def start(self) -> tuple[list[Outcome], list[str]]:
        """Take the node and put back what an earlier run left moved; outcomes and remarks on its save."""
        self._lock.acquire()
        earlier = self._writer.start()
        return earlier.outcomes, earlier.remarks

    def apply(self, decisions: Decisions, sample: Sample) -> list[Outcome]:
        """Look whether the clocks of this interval followed the last writes, then move what should move."""
        outcomes = self._watch.judge(sample)
        settings = dict(zip(self._names, decisions.values[self._rows].tolist(), strict=True))
        written = self._writer.apply(settings)
        self._watch.wrote(written, settings, self._clock.now_ns())
        return outcomes + written

    def stop(self) -> list[Outcome]:
        """Put every knob back and give up the node."""
        try:
            return self._writer.restore_all()
        finally:
            self._writer.close()
            self._lock.release()
