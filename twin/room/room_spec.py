"""What a room is, as a TOML file: racks, cooling units, weather, and the power of its racks. All numbers are ours.

The file that ships, ``data/room.toml``, is the room on which predictions of thermal hazard are judged. It was fixed
before the first model was trained, and so were the failures next to it (``room_failures``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import msgspec

from twin.toml_table import Count, NotNegative, Positive, Share, read_toml

DATA: Final = Path(__file__).parents[1] / "data"
ROOM: Final = DATA / "room.toml"

Several = Annotated[list[Positive], msgspec.Meta(min_length=1)]


class Racks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The racks of one cooling unit's zone are a row, and each has a sensor at each height.

    ``heights``: how much of the recirculated air a sensor sees, relative to the middle of its rack (the top sees most).
    ``air_w_per_k``: heat that the air through a rack takes up per kelvin. ``own``, ``neighbour``, ``other_row``: shares
    of a rack's inlet air that come from its own exhaust, the next rack's (falling off by 1/e over ``reach`` racks), and
    each rack of another row; ``spread``: of these shares among pairs, as a standard deviation.
    """

    per_unit: Count
    heights: Several
    air_w_per_k: Positive
    own: Share
    neighbour: Share
    other_row: Share
    reach: Positive
    spread: Share
    noise_c: NotNegative
    offset_c: NotNegative
    wander_c: NotNegative
    wander_h: Positive
    """Of each sensor, as standard deviations: white noise, an offset for good, and air that comes and goes (tiles,
    openings, the nodes' own fans) over ``wander_h`` hours."""


class Cooling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Cooling units of one chiller. A unit removes what it must to keep ``supply_c``, and ``unit_w`` at most at that
    temperature and full health; ``gain_per_k`` more for each kelvin that the air is warmer. ``zone_j_per_k``: heat that
    a zone stores; ``exchange_w_per_k``: between a zone and the room. Above ``derate_from_c`` outdoors the chiller loses
    ``derate_per_k`` of its capacity per kelvin, and its supply rises by ``approach`` of each kelvin above ``mild_c``.
    ``bypass``: by how much more of the exhaust comes back per share of a unit's air that is missing."""

    units: Count
    supply_c: float
    unit_w: Positive
    gain_per_k: NotNegative
    zone_j_per_k: Positive
    exchange_w_per_k: NotNegative
    control_s: Positive
    derate_from_c: float
    derate_per_k: Share
    mild_c: float
    approach: Share
    bypass: NotNegative


class Weather(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Outdoor air: a year's and a day's wave, and weather that lasts ``lasts_h`` hours."""

    mean_c: float
    year_c: NotNegative
    day_c: NotNegative
    weather_c: NotNegative
    lasts_h: Positive


class Load(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The watts of racks, where no replay gives them: ``idle_w`` to ``most_w`` by a utilisation that is one of the
    whole room (``mean``, ``room`` as a standard deviation, ``room_h``), with a day's and a week's wave, plus steps of
    each rack's own jobs (``rack``, ``job_h``)."""

    idle_w: Positive
    most_w: Positive
    mean: Share
    room: Share
    room_h: Positive
    day: Share
    week: Share
    rack: Share
    job_h: Positive


class RoomSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A room. ``seed``: of what differs between its racks and sensors."""

    seed: int
    step_s: Positive
    racks: Racks
    cooling: Cooling
    weather: Weather
    load: Load

    @property
    def n_racks(self) -> int:
        """Of all zones."""
        return self.cooling.units * self.racks.per_unit


def read_room(path: Path = ROOM) -> RoomSpec:
    """The room of a file; ``TwinError`` with file, line and key."""
    return read_toml(path, RoomSpec)
