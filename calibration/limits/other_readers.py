"""Energy as others see it: RAPL as nodectl reads it against pyRAPL, and against the node's own meter.

pyRAPL (https://pypi.org/project/pyRAPL) reads the same counters with a program of its own: where both differ, one of
them reads, wraps or times them wrongly. What the counters themselves are wrong by only a meter shows, and it sees more:
losses of the supply, and fans. So its step from the idle to the loaded node is compared, in which what is constant
cancels.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any, Final, Protocol

import msgspec

from calibration.limits.probes import LimitsError
from foundation.shell.command_line import needs_extras
from pmu.instruments import rapl
from pmu.layout import EnergyZone, Layout
from pmu.ports import Clock, Files

READ_S: Final = 5.0
"""Ours: a counter moves in steps of about 1 ms, so both readers agree to some 0.02 %."""

TRIES: Final = 3
"""Ours: pyRAPL does not know that counters start again from zero, which the next try has behind it."""


class EnergyReader(Protocol):
    """Another program's reader of the same zones."""

    name: str

    def begin(self) -> None:
        """Note what the counters have."""

    def end(self) -> Mapping[str, float]:
        """Joules since then by zone, as ``EnergyZone.name``; NaN where it cannot say."""


class ReaderCheck(msgspec.Struct, frozen=True):
    """The same joules by two readers, as watts. ``of``: a zone, or what is compared; ``difference``: of ours, relative
    to the other's."""

    reader: str
    of: str
    rapl_w: float
    reader_w: float
    difference: float


def check_of(reader: str, of: str, rapl_w: float, reader_w: float) -> ReaderCheck:
    """Both, and by what share ours differs."""
    return ReaderCheck(reader, of, rapl_w, reader_w, rapl_w / reader_w - 1 if reader_w else math.nan)


def compare(reader: EnergyReader, files: Files, layout: Layout, clock: Clock) -> tuple[ReaderCheck, ...]:
    """Every zone that both have, over the same seconds. ``LimitsError`` if it never says anything."""
    zones = [zone for zone in layout.zones if zone.kind in ("package", "dram")]
    for _ in range(TRIES):
        before, begin_ns = _counted(files, zones), clock.now_ns()
        reader.begin()
        clock.sleep_until_ns(begin_ns + round(READ_S * 1e9))
        after, seconds = _counted(files, zones), (clock.now_ns() - begin_ns) / 1e9
        theirs = reader.end()
        found = [
            check_of(reader.name, zone.name, (now - then) % (zone.max_energy_uj + 1) / 1e6 / seconds, joules / seconds)
            for zone, then, now in zip(zones, before, after, strict=True)
            if (joules := theirs.get(zone.name, math.nan)) > 0
        ]
        if len(found) == sum(zone.name in theirs for zone in zones) > 0:
            return tuple(found)
    raise LimitsError(f"{reader.name} gives no energy of the packages")


def _counted(files: Files, zones: list[EnergyZone]) -> list[int]:
    try:
        return [int(files.read(rapl.column(zone).source)) for zone in zones]
    except (OSError, ValueError) as error:
        raise LimitsError(f"energy cannot be read: {error}") from None


class PyRapl:
    """pyRAPL of this Python. ``LimitsError`` where it is not installed, or finds no RAPL."""

    name = "pyRAPL"

    def __init__(self) -> None:
        level = logging.root.manager.disable
        logging.disable(logging.WARNING)  # it warns of outputs that are not used here
        try:
            import pyRAPL
        except ModuleNotFoundError:
            raise LimitsError(needs_extras(["pyRAPL"])) from None
        finally:
            logging.disable(level)
        try:
            pyRAPL.setup()
        except (OSError, ValueError, pyRAPL.PyRAPLException) as error:
            raise LimitsError(f"pyRAPL finds no energy: {error or type(error).__name__}") from None
        self._measurement: Any = pyRAPL.Measurement("nodectl")

    def begin(self) -> None:
        """Begin its measurement."""
        self._measurement.begin()

    def end(self) -> Mapping[str, float]:
        """End it. A counter that has started again from zero, or that it has none of, is negative there."""
        self._measurement.end()
        result = self._measurement.result
        named = {"package-{}": result.pkg or [], "package-{}/dram": result.dram or []}
        return {
            name.format(socket): uj / 1e6 if uj >= 0 else math.nan
            for name, values in named.items()
            for socket, uj in enumerate(values)
        }
