"""Rules of the writer about limits that others lower, about knobs that are put back, and about a node that is taken."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nodectl.knobs import open_knob
from nodectl.knobs.api import Outcome
from nodectl.knobs.recipe import Recipe
from nodectl.write.saves import read_save
from nodectl.write.setting import LAST_RETRY_S
from nodectl.write.writer import Writer
from pmu.ports import Ports
from pmu.system import system_ports
from tests.nodectl.file_tree import StillClock, limit_path
from tests.nodectl.plain_knob import REFUSED, PlainKnob
from tests.nodectl.test_ceilings import BOOT, CLOCK, LONG_TERM, W, files_node, set_uw, uw, writer_of
from tests.nodectl.test_writer_rules import A, B, C, Node, node
from tests.writer_process.tree_writer import clock_path, make_tree

__all__ = ["files_node", "node"]  # fixtures

TAKEN = "another process has put this node's knobs back while this one was stopped; start it again"


def test_the_save_says_how_each_knob_is_put_back(files_node: Ports, tmp_path: Path) -> None:
    writer_of(files_node, tmp_path).apply({CLOCK: 1_200_000})
    recipe = read_save(str(tmp_path / "captured.jsonl")).knobs[CLOCK].recipe
    assert isinstance(recipe, Recipe) and limit_path(0) in str(recipe)


def test_a_start_says_what_was_wrong_with_the_save_and_which_limits_are_low(tmp_path: Path) -> None:
    tree, path = make_tree(tmp_path / "node"), tmp_path / "captured.jsonl"
    clock_path(tree, 0).write_text("1200000\n")
    path.write_bytes(b"")
    result = Writer([open_knob(system_ports(str(tree)), CLOCK)], str(path), BOOT, StillClock()).start()
    assert "set aside" in result.remarks[0] and "found below what" in result.remarks[1] and len(result.remarks) == 2


def test_a_limit_that_somebody_lowered_between_start_and_first_write_is_its_ceiling(
    files_node: Ports, tmp_path: Path
) -> None:
    writer = writer_of(files_node, tmp_path)
    set_uw(files_node, 80 * W)
    writer.apply({LONG_TERM: 120 * W})
    assert uw(files_node) == 80 * W
    writer.apply({LONG_TERM: 60 * W})
    writer.restore_all()
    assert uw(files_node) == 80 * W


def test_an_earlier_value_of_ours_that_somebody_sets_is_found_before_a_limit_is_put_back(
    files_node: Ports, tmp_path: Path
) -> None:
    for name, put_back in (("a", Writer.restore_all), ("b", lambda writer: writer.apply({LONG_TERM: 0}))):
        (tmp_path / name).mkdir()
        set_uw(files_node, 150 * W)
        writer = writer_of(files_node, tmp_path / name)
        writer.apply({LONG_TERM: 60 * W})
        writer.apply({LONG_TERM: 120 * W})
        set_uw(files_node, 60 * W)
        put_back(writer)
        assert uw(files_node) == 60 * W, "and not the 150 W that it was captured at"


def test_a_new_ceiling_is_saved_once_and_what_follows_is_appended(files_node: Ports, tmp_path: Path) -> None:
    writer, path = writer_of(files_node, tmp_path), tmp_path / "captured.jsonl"
    writer.apply({LONG_TERM: 60 * W})
    first = path.stat().st_ino
    set_uw(files_node, 80 * W)
    writer.apply({LONG_TERM: 70 * W})
    saved = path.stat().st_ino
    assert saved != first
    writer.apply({CLOCK: 1_200_000})
    assert path.stat().st_ino == saved


def test_each_request_is_refused_once_another_process_has_taken_the_node(tmp_path: Path) -> None:
    knobs, writes = {name: PlainKnob(name=name) for name in (A, B)}, [True, True]
    writer = Writer(
        list(knobs.values()),
        str(tmp_path / "save"),
        BOOT,
        StillClock(),
        is_current=lambda: bool(writes and writes.pop()),
    )
    writer.start()
    first, second = writer.apply({A: 1000, B: 1100})
    assert (first.status, knobs[A].text) == ("written", "1000")
    assert second == Outcome(B, "refused", TAKEN) and knobs[B].text == "3000", "taken between the two"
    assert writer.apply({A: 900, B: 900}) == [Outcome(A, "refused", TAKEN), Outcome(B, "refused", TAKEN)]


def test_a_knob_that_shows_nothing_does_not_keep_others_from_being_looked_at(node: Node) -> None:
    node.apply(a=1000, b=1000)
    node.knobs[A].has_getter = False
    node.knobs[B].text = "2000"
    assert node.statuses(a=900, b=900) == ["written", "foreign"]


@pytest.mark.parametrize("names", [None, [LONG_TERM]])
def test_a_limit_that_is_back_at_its_granted_value_is_not_taken_for_somebody_elses(
    files_node: Ports, tmp_path: Path, names: list[str] | None
) -> None:
    writer = writer_of(files_node, tmp_path)
    writer.apply({LONG_TERM: 120 * W})
    writer.limit_restores({LONG_TERM: 100 * W})
    (held,) = writer.restore_all() if names is None else writer.restore(names)
    assert (held.status, uw(files_node)) == ("held", 100 * W)
    (outcome,) = writer.apply({LONG_TERM: 110 * W})
    assert (outcome.status, uw(files_node)) == ("written", 110 * W)


def test_a_limit_whose_granted_value_could_not_be_read_back_is_not_taken_for_somebody_elses(tmp_path: Path) -> None:
    knob, clock = PlainKnob(name="scmi#controller/limit_khz"), StillClock()
    writer = Writer([knob], str(tmp_path / "save"), BOOT, clock)
    writer.start()
    writer.apply({knob.name: 2000})
    writer.limit_restores({knob.name: 1000})
    knob.fails["read_back"] = REFUSED
    assert writer.restore_all()[0].status == "refused" and knob.text == "1000"
    knob.fails.clear()
    assert writer.apply({knob.name: 1500})[0].status == "written"


@pytest.mark.parametrize("way", ["put back to the granted value", "released"])
def test_a_limit_that_somebody_lowers_to_an_earlier_value_of_ours_after_it_was_put_back_is_theirs(
    files_node: Ports, tmp_path: Path, way: str
) -> None:
    writer = writer_of(files_node, tmp_path)
    for watts in (60, 120):
        writer.apply({LONG_TERM: watts * W})
    if way == "released":
        writer.apply({LONG_TERM: 0})
    else:
        writer.limit_restores({LONG_TERM: 100 * W})
        assert writer.restore([LONG_TERM])[0].status == "held"
    set_uw(files_node, 60 * W)
    (outcome,) = writer.apply({LONG_TERM: 110 * W})
    assert (outcome.status, uw(files_node)) == ("foreign", 60 * W)


def test_a_limit_that_a_release_brought_to_an_earlier_value_of_ours_is_not_taken_for_somebody_elses(
    tmp_path: Path,
) -> None:
    knob, clock = PlainKnob(name="scmi#controller/limit_khz"), StillClock()
    writer = Writer([knob], str(tmp_path / "save"), BOOT, clock)
    writer.start()
    for value in (1000, 2000):
        writer.apply({knob.name: value})
    knob.most = 1000
    assert writer.apply({knob.name: 0})[0].status == "no-effect" and knob.text == "1000"
    knob.most = 3000
    clock.time_ns += round(LAST_RETRY_S * 1e9)
    assert writer.apply({knob.name: 1500})[0].status == "written" and knob.text == "1500"


def test_a_write_after_a_release_is_compared_with_the_released_value(node: Node) -> None:
    node.apply(a=1000)
    node.apply(a=0)
    node.knobs[A].most = 3000
    ((status, _, reason),) = node.apply(a=4000)
    assert (status, reason) == ("no-effect", "firmware"), "it stayed where the release had put it"


def test_knobs_that_this_node_has_no_more_do_not_disturb_the_others_when_all_are_put_back(node: Node) -> None:
    node.apply(a=1000, b=1000)
    node.writer.close()
    del node.knobs[A]
    node.writer = node.another()
    node.writer.start()
    node.apply(b=900, c=900)
    assert {one.knob: one.status for one in node.writer.restore_all()} == {
        A: "vanished", B: "restored", C: "restored",
    }  # fmt: skip
    assert node.knobs[B].text == node.knobs[C].text == "3000" and os.path.exists(node.path)
