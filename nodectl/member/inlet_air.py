"""The temperature of the air that this node takes in, for the cluster agent."""

from __future__ import annotations

from typing import Final

from pmu.layout import Layout
from pmu.readings import Quality, Sample

KELVIN: Final = 273.15
UNKNOWN: Final = -1


class InletAir:
    """Of a node whose readings are in this layout."""

    def __init__(self, layout: Layout) -> None:
        self._rows = [row for row, column in enumerate(layout.columns) if column.part == "inlet" and column.unit == "C"]

    def mk(self, sample: Sample) -> int:
        """Millikelvin at the warmest inlet that gave a sound reading; ``UNKNOWN`` if none did."""
        columns = sample.columns
        sound = [float(columns.value[row]) for row in self._rows if columns.quality[row] == Quality.MEASURED]
        return round((max(sound) + KELVIN) * 1000) if sound else UNKNOWN
