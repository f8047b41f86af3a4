"""Every instrument that registers columns."""

from __future__ import annotations

from typing import Final

from pmu.bmc import bmc_inlets
from pmu.instruments import hwmon
from pmu.instruments.instrument import Instrument

INSTRUMENTS: Final[tuple[Instrument, ...]] = (hwmon.INSTRUMENT, bmc_inlets.INSTRUMENT)
