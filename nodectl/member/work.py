"""The work of this node, for the cluster agent: units that its job reports, and instructions that its CPUs retired.

Both are counts from this agent's start, so that a lost report loses nothing. A count that has a gap since the last
report is left out of the next one: a difference across the gap would look like a slow second. CPUs that spin while they
wait for a GPU retire instructions too, so a node with a busy GPU reports no instructions.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from nodectl.decide.load_tag import has_gpu_work
from pmu.readings import Quality, Sample

UNKNOWN: Final = -1


class WorkDone:
    """``add`` every sample; ``totals`` once for every report."""

    def __init__(self) -> None:
        self._units = self._instructions = 0.0
        self._has_units = self._has_instructions = True

    def add(self, sample: Sample) -> None:
        """Count one interval."""
        if sample.progress.quality == Quality.MEASURED:
            self._units += sample.progress.units
        else:
            self._has_units = False
        retired = float(sample.cpu.instructions.sum())  # NaN where a CPU could not be read
        if np.isfinite(retired) and not has_gpu_work(sample):
            self._instructions += retired
        else:
            self._has_instructions = False

    def totals(self) -> tuple[int, int]:
        """Units and instructions; ``UNKNOWN`` where not all since the last call was counted."""
        units = round(self._units) if self._has_units else UNKNOWN
        instructions = round(self._instructions) if self._has_instructions else UNKNOWN
        self._has_units = self._has_instructions = True
        return units, instructions
