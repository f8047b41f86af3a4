"""A year of a room: generated watts and weather, and the failures of that year."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Final

from twin.room.room_air import RoomRecord, run
from twin.room.room_failures import Failure, conditions
from twin.room.room_load import generated, outdoor
from twin.room.room_spec import RoomSpec

YEAR_S: Final = 365 * 86_400.0


def year(spec: RoomSpec, name: str, failures: Sequence[Failure], length_s: float = YEAR_S) -> RoomRecord:
    """The year of that name: its load, weather and noise are drawn from the name."""
    steps, seed = round(length_s / spec.step_s), _seed(name)
    return run(
        spec,
        generated(spec, steps, seed),
        outdoor(spec.weather, steps, spec.step_s, seed + 1),
        conditions(failures, steps, spec.step_s, spec.cooling.units),
        noise_seed(name),
    )


def noise_seed(name: str) -> int:
    """Of the noise of that year's sensors."""
    return _seed(name) + 2


def _seed(name: str) -> int:
    return zlib.crc32(name.encode())
