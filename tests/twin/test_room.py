"""The emulated machine room: what it does to inlet temperatures, and that the judged one stays what it was."""

from __future__ import annotations

import hashlib
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pytest

from twin.errors import TwinError
from twin.room.room_air import RoomAir, run
from twin.room.room_failures import ANNOUNCED, FAILURES, KINDS, Failure, conditions, drawn, read_failures
from twin.room.room_load import generated, outdoor, replayed
from twin.room.room_spec import ROOM, read_room
from twin.room.room_year import year

SPEC = read_room()
DAY = round(86_400 / SPEC.step_s)

FROZEN = {
    ROOM: "b0a912239bb76e474c18d13beda4f6661cf44013472557d4042bc5329dd4df2a",
    FAILURES: "a074bdc65215b550f6f64bd825c7cc0af5fffc029f2ddd44120830929ba69f5b",
}
"""Fixed before the first model was trained. With other files, the tables of docs/hazard.md are of another room."""


@pytest.mark.parametrize("path", FROZEN, ids=lambda path: path.name)
def test_the_judged_room_and_its_failures_are_those_that_were_fixed_before_any_model(path: Path) -> None:
    assert hashlib.sha256(path.read_bytes()).hexdigest() == FROZEN[path]


def test_the_judged_room_gives_the_same_temperatures_as_when_it_was_fixed() -> None:
    """To a tenth of what a sensor resolves, so another NumPy may round otherwise, and the code may become shorter."""
    found = year(SPEC, "decay-1", read_failures()["decay-1"], 20 * 86_400.0)
    assert found.inlet_c[[0, 700, -1]].mean(1) == pytest.approx([22.35, 22.4, 22.14], abs=0.01)
    assert found.inlet_c.mean(0)[[0, 71, 143]] == pytest.approx([21.47, 22.52, 22.16], abs=0.01)


def test_every_kind_is_judged_and_two_that_announce_themselves_are_in_no_training() -> None:
    years = read_failures()
    seen = {one.kind for name, of in years.items() if name.startswith(("train", "choose")) for one in of}
    judged = {name.partition("-")[0]: {one.kind for one in of} for name, of in years.items() if "-" in name}
    assert {kind for kind in KINDS if judged.get(kind) == {kind}} == set(KINDS)
    assert set(ANNOUNCED) - seen == {"decay", "drift"}


def still(steps: int, use: float = 0.7) -> tuple[np.ndarray, np.ndarray]:
    """The same watts and weather at each step."""
    watts = SPEC.load.idle_w + use * (SPEC.load.most_w - SPEC.load.idle_w)
    return np.full((steps, SPEC.n_racks), watts), np.full(steps, 12.0)


def supply(*failures: Failure, steps: int = 3 * DAY, use: float = 0.7) -> np.ndarray:
    found = conditions(failures, steps, SPEC.step_s, SPEC.cooling.units)
    return run(SPEC, *still(steps, use), found, 0).supply_c


def test_a_sound_room_is_at_its_set_point() -> None:
    assert supply()[-1] == pytest.approx(SPEC.cooling.supply_c, abs=0.01)


def test_a_tripped_unit_warms_its_own_zone_most_at_once_and_it_cools_again() -> None:
    found = supply(Failure("trip", 2, 24.0, 6.0, 1.0))
    begin, end = DAY, DAY + DAY // 4
    assert found[begin - 1] == pytest.approx(SPEC.cooling.supply_c, abs=0.01)
    assert found[begin + 1, 2] > SPEC.cooling.supply_c + 3.0
    assert found[end - 1].argmax() == 2 and found[end - 1, 2] > found[end - 1, [0, 1, 3]].max() + 3.0
    assert found[-1] == pytest.approx(SPEC.cooling.supply_c, abs=0.01)


@pytest.mark.parametrize("kind", ANNOUNCED)
def test_the_other_kinds_warm_the_room_by_and_by(kind: str) -> None:
    """No step of the room's mean inlet temperature is a tenth of what the failure comes to, until it is repaired."""
    severity = 8.0 if kind in ("drift", "heat") else 0.6
    steps, last = 5 * DAY, 4 * DAY
    found = conditions([Failure(kind, 0, 24.0, 72.0, severity)], steps, SPEC.step_s, SPEC.cooling.units)
    spec = msgspec.structs.replace(SPEC, racks=msgspec.structs.replace(SPEC.racks, noise_c=0.0, wander_c=0.0))
    watts, outdoor_c = still(steps, 0.9)
    mean_c = run(spec, watts, outdoor_c + 15.0, found, 0).inlet_c.mean(1)[DAY - 1 : last]
    rise_c = mean_c.max() - mean_c[0]
    assert rise_c > 0.3
    assert np.diff(mean_c).max() < rise_c / 10


def test_less_power_is_a_cooler_room_under_the_same_failure() -> None:
    failure = Failure("trip", 0, 24.0, 12.0, 1.0)
    warm, cool = (supply(failure, use=use)[DAY : DAY + DAY // 2].mean() for use in (0.9, 0.5))
    assert cool < warm - 1.0


def test_lost_air_lets_exhaust_come_back_in_its_own_zone_alone() -> None:
    air = RoomAir(SPEC)
    watts, _ = still(1)
    full, less = np.ones((1, 4)), np.array([[1.0, 0.5, 1.0, 1.0]])
    sound, lost = (air.inlets(np.full((1, 4), 20.0), watts, one)[0].reshape(4, -1) for one in (full, less))
    assert (lost[1] > sound[1]).all() and (lost[[0, 2, 3]] == sound[[0, 2, 3]]).all()
    tops = sound.reshape(-1, 3)
    assert (np.diff(tops, axis=1) > 0).all(), "the top of a rack sees most exhaust"


def test_a_replay_drives_the_room_with_its_own_watts() -> None:
    steps = 2 * DAY
    time_s, watts = np.array([0.0, 43_200.0, 86_400.0, 200_000.0]), np.array([800.0, 1600.0, 1000.0, 1000.0])
    found = replayed(SPEC, time_s, watts, steps, 1)
    full = SPEC.load.most_w * SPEC.n_racks
    total = found.sum(1)[[0, DAY // 2, DAY + 1]]
    assert total == pytest.approx(np.array([0.5, 1.0, 0.625]) * full, rel=0.02)
    assert found[0].std() > 500.0, "racks differ"


@pytest.mark.parametrize(
    ("time_s", "watts", "says"),
    [
        ([0.0], [1.0], "at least two steps"),
        ([0.0, 1.0], [1.0, float("nan")], "finite"),
        ([1.0, 0.0], [1.0, 1.0], "ascending"),
        ([0.0, 1.0], [0.0, 0.0], "from 0 on"),
    ],
)
def test_a_power_that_is_none_is_refused(time_s: list[float], watts: list[float], says: str) -> None:
    with pytest.raises(TwinError, match=says):
        replayed(SPEC, np.array(time_s), np.array(watts), 10, 0)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("a,trip,0,1,2,x", ":2: .*is no failure"),
        ("a,flood,0,1,2,1", ":2: kind 'flood' is none of fouling"),
        ("a,trip,0,1,0,1", ":2: .*length above 0 h"),
        ("a,trip,0,nan,1,1", ":2: .*finite"),
        ("a,trip", ":2: .*is no failure"),
    ],
)
def test_a_failure_that_is_none_is_refused_with_its_line(tmp_path: Path, line: str, says: str) -> None:
    file = tmp_path / "failures.csv"
    file.write_text(f"year,kind,unit,start_h,length_h,severity\n{line}\n")
    with pytest.raises(TwinError, match=says):
        read_failures(file)


def test_failures_of_a_kind_follow_each_other_and_heat_comes_in_summer() -> None:
    for kind in KINDS:
        found = drawn(kind, 8760.0, 20.0, 4, seed=3)
        assert len(found) >= 3
        assert all(one.start_h + one.length_h < after.start_h for one, after in pairwise(found))
        if kind == "heat":
            assert all(2600.0 < one.start_h < 7100.0 for one in found)


def test_summers_and_afternoons_are_warm_and_jobs_keep_racks_apart() -> None:
    degrees = outdoor(SPEC.weather, 365 * DAY, SPEC.step_s, 1).reshape(365, DAY)
    assert degrees[180:240].mean() > degrees[:60].mean() + 10.0
    assert degrees[:, DAY * 2 // 3].mean() > degrees[:, DAY // 6].mean() + 5.0
    watts = generated(SPEC, 20 * DAY, 1)
    assert SPEC.load.idle_w <= watts.min() and watts.max() <= SPEC.load.most_w
    assert watts.std(1).mean() > 1500.0
