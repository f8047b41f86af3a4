"""A node whose knobs are in several saves: that of a version before, the node's, that of its controllers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nodectl.knobs.api import KnobError, Outcome
from nodectl.knobs.recipe import NvmlRecipe
from nodectl.write.places import LASTING_BOOT, SavePlaces, save_path, save_places
from nodectl.write.restore import left_behind, put_back, restore_node, settle
from nodectl.write.saves import Captured, Save, read_save
from tests.nodectl.plain_knob import GONE, PlainKnob

BOOT, FIRST, SECOND, THIRD = "boot-1", "a/limit_mw", "b/limit_mw", "chip#0/cap_mw"


@pytest.fixture
def places(tmp_path: Path) -> SavePlaces:
    """Each of three saves has one knob, moved from 3000 to 1200."""
    made = SavePlaces(str(tmp_path / "node"), str(tmp_path / "lasting"), str(tmp_path / "earlier"))
    for path, boot, name in (
        (made.earlier, BOOT, FIRST), (made.node, BOOT, SECOND), (made.lasting, LASTING_BOOT, THIRD),
    ):  # fmt: skip
        save = Save(path, boot)
        save.capture({name: "3000"})
        save.wrote({name: 1200})
        save.close()
    return made


@pytest.fixture
def knobs() -> dict[str, PlainKnob]:
    return {name: PlainKnob(name=name, text="1200") for name in (FIRST, SECOND, THIRD)}


def test_a_dry_run_looks_at_all_of_them_and_moves_and_writes_nothing(
    places: SavePlaces, knobs: dict[str, PlainKnob], tmp_path: Path
) -> None:
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    result = restore_node(places, BOOT, knobs.__getitem__, dry_run=True)
    assert [one.detail for one in result.outcomes] == ["would go from 1200 to 3000"] * 3
    assert {knob.text for knob in knobs.values()} == {"1200"}
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_only_a_leave_raises_what_a_grant_keeps_low(places: SavePlaces, knobs: dict[str, PlainKnob]) -> None:
    save = Save(places.node, BOOT)
    save.limit_restores({SECOND: 1100})
    save.close()
    assert {one.knob: one.status for one in restore_node(places, BOOT, knobs.__getitem__).outcomes}[SECOND] == "held"
    assert knobs[SECOND].text == "1100"
    restore_node(places, BOOT, knobs.__getitem__, leaves_cluster=True)
    assert {knob.text for knob in knobs.values()} == {"3000"} and not os.path.exists(places.node)


def test_damage_and_remarks_of_each_of_them_count(places: SavePlaces, knobs: dict[str, PlainKnob]) -> None:
    for path in (places.earlier, places.node):
        Path(path).write_bytes(Path(path).read_bytes()[:-1])
    result = restore_node(places, BOOT, knobs.__getitem__)
    assert result.is_damaged and not result.is_complete
    assert [any(path in line for line in result.remarks) for path in (places.earlier, places.node)] == [True, True]


def test_what_goes_over_into_the_nodes_save_says_how_it_is_put_back(
    places: SavePlaces, knobs: dict[str, PlainKnob], monkeypatch: pytest.MonkeyPatch
) -> None:
    knobs[FIRST].fails["read"] = GONE
    recipe = NvmlRecipe(gpu=0, call="clock_lock")
    monkeypatch.setattr(PlainKnob, "recipe", lambda knob: recipe, raising=False)
    restore_node(places, BOOT, knobs.__getitem__)
    state = read_save(places.node)
    assert list(state.knobs) == [FIRST] and state.knobs[FIRST].recipe == recipe
    assert not os.path.exists(places.earlier)


def test_the_line_about_what_a_killed_run_has_left_counts_the_knobs_of_all(tmp_path: Path) -> None:
    lock = str(tmp_path / "run/lock")
    found = save_places(str(tmp_path / "state"), lock)
    for path, name in ((save_path(str(tmp_path / "state")), FIRST), (found.node, SECOND)):
        save = Save(path, BOOT)
        save.capture({name: "3000"})
        save.close()
    assert left_behind(str(tmp_path / "state"), BOOT, lock).startswith("a killed run has left 2 knobs moved: ")


def test_a_whole_save_of_this_version_is_not_written_again_for_what_is_settled(tmp_path: Path) -> None:
    save = Save(str(tmp_path / "save"), BOOT)
    save.capture({FIRST: "1", SECOND: "2"})
    state, file = read_save(save.path), os.stat(save.path).st_ino
    settle(save, state.knobs, [Outcome(FIRST, "restored")], state)
    assert list(read_save(save.path).knobs) == [SECOND] and os.stat(save.path).st_ino == file


def test_a_dry_run_says_of_a_knob_that_cannot_be_read_where_it_would_go() -> None:
    cannot = KnobError("a/limit_mw: Input/output error", "refused")
    knob = PlainKnob(name=FIRST, fails={"read": cannot, "read_back": cannot})
    assert put_back(knob, Captured("3000", (1200,)), dry_run=True).detail == "would go from unreadable to 3000"
