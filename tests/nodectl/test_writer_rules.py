"""What the writer does with one request at one tick, case by case, on knobs that are numbers in memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from nodectl.knobs.api import KnobError, Outcome
from nodectl.write.restore import Restoration
from nodectl.write.saves import Captured, SaveError, read_save
from nodectl.write.writer import CHECKS_PER_APPLY, Writer
from tests.nodectl.file_tree import StillClock
from tests.nodectl.plain_knob import GONE, HOT, REFUSED, PlainKnob
from tests.open_files import n_open

A, B, C = "a/limit_mw", "b/limit_mw", "c/limit_mw"


class Node:
    """Three knobs at 3000, their writer, and a clock that is moved by hand."""

    def __init__(self, path: Path) -> None:
        self.knobs = {name: PlainKnob(name=name) for name in (A, B, C)}
        self.clock, self.path = StillClock(), str(path / "captured.jsonl")
        self.writer = self.another()

    def another(self) -> Writer:
        return Writer(list(self.knobs.values()), self.path, "boot-1", self.clock)

    def wait(self, seconds: float) -> None:
        self.clock.time_ns += round(seconds * 1e9)

    def apply(self, **values: int) -> list[tuple[str, str, str]]:
        """By letter: one row for each outcome."""
        outcomes = self.writer.apply({f"{letter}/limit_mw": value for letter, value in values.items()})
        return [(one.status, one.detail, one.reason) for one in outcomes]

    def statuses(self, **values: int) -> list[str]:
        return [status for status, _, _ in self.apply(**values)]

    def saved(self, name: str = A) -> Captured:
        return read_save(self.path).knobs[name]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


# --- apply


def test_each_request_has_one_outcome_in_its_order(node: Node) -> None:
    assert node.apply(b=1000, z=5, a=1100, y=0, c=0) == [
        ("written", "1000", ""),
        ("vanished", "this node has no such knob", ""),
        ("written", "1100", ""),
        ("unchanged", "this node has no such knob", ""),
        ("unchanged", "", ""),
    ]
    assert [outcome.knob for outcome in node.writer.apply({B: 1000, "z": 5, A: 1200})] == [B, "z", A]


def test_a_written_knob_is_left_alone_while_the_request_stays(node: Node) -> None:
    assert node.apply(a=1000) == [("written", "1000", "")]
    assert node.apply(a=1000) == [("unchanged", "", "")]
    assert node.knobs[A].log == ["1000"]


def test_what_is_recorded_is_what_was_captured_and_what_is_about_to_be_written(node: Node) -> None:
    node.knobs[A].fails["set"] = REFUSED
    assert node.apply(a=1000, b=1100) == [("refused", "a/limit_mw: busy", "lock bit"), ("written", "1100", "")]
    assert node.saved(A) == Captured("3000", (1000,)), "it may have come that far"
    node.apply(b=1200)
    node.apply(b=1300)
    assert node.saved(B) == Captured("3000", (1200, 1300))
    assert node.writer.captured == {A: "3000", B: "3000"}


def test_a_knob_that_cannot_be_read_is_not_moved_and_the_others_are(node: Node) -> None:
    node.knobs[A].fails["read"] = REFUSED
    assert node.apply(a=1000, b=1100) == [("refused", "a/limit_mw: busy", "lock bit"), ("written", "1100", "")]
    assert node.knobs[A].log == [] and list(read_save(node.path).knobs) == [B]


def test_a_write_that_changes_nothing_is_the_firmwares_and_one_that_ends_elsewhere_somebody_elses(node: Node) -> None:
    node.knobs[A].most = 3000
    assert node.apply(a=4000) == [
        ("no-effect", "requested 4000 mW, is at 3000: the write was accepted and changed nothing", "firmware")
    ]
    node.knobs[B].most = 800
    assert node.apply(b=1000) == [
        ("no-effect", "requested 1000 mW, is at 800: somebody else wrote at the same time", "foreign writer")
    ]
    node.knobs[C].most, node.knobs[C].why = 800, HOT
    assert node.apply(c=1000) == [("no-effect", "requested 1000 mW, is at 800: it is hot", "thermal")]
    assert node.knobs[C].explained == [(1000, 800)]
    assert node.saved(B) == node.saved(C) == Captured("3000", (1000, 800)), "what it has now is ours too"
    assert {one.status for one in node.writer.restore_all()} == {"no-effect", "restored"}


def test_what_a_write_is_compared_with_is_what_the_knob_was_at_the_last_look(node: Node) -> None:
    node.apply(a=2000)
    node.knobs[A].most = 2000
    assert node.apply(a=2500)[0][1:] == (
        "requested 2500 mW, is at 2000: the write was accepted and changed nothing", "firmware",
    )  # fmt: skip


def test_a_limit_that_another_one_overrules_has_no_effect(node: Node) -> None:
    node.knobs[A].most_elsewhere = 900
    outcome = ("no-effect", "is at 1000 mW, but 900 is in force", "second RAPL interface")
    assert node.apply(a=1000) == [outcome]
    assert node.apply(a=1000) == [outcome] and node.knobs[A].log == ["1000"]


def test_a_knob_without_a_getter_is_written_as_requested(node: Node) -> None:
    node.knobs[A].has_getter = False
    assert node.statuses(a=1000) == ["written"]
    assert node.statuses(a=1100) == ["written"]
    assert node.saved() == Captured("unknown", (1000, 1100))


# --- knobs that somebody else moves


def test_a_knob_that_somebody_else_has_moved_is_not_written(node: Node) -> None:
    node.apply(a=1000)
    node.knobs[A].text = "2000"
    assert node.apply(a=1100) == [("foreign", "somebody else set it to 2000 mW; it is left to them", "foreign writer")]
    assert node.knobs[A].log == ["1000"] and node.knobs[A].explained == [(1000, 2000)]
    assert node.statuses(a=1200) == ["foreign"], "whatever the request"
    assert node.saved().ours == (1000,)


def test_a_knob_that_was_captured_and_never_written_is_found_to_be_somebody_elses_too(node: Node) -> None:
    node.writer._save.capture({A: "3000"})  # and then killed
    node.knobs[A].text, node.knobs[A].fails["read"] = "2000", GONE
    again = node.another()
    again.start()
    node.knobs[A].fails.clear()
    assert again.apply({A: 1100})[0].status == "foreign"
    assert node.knobs[A].explained == [(3000, 2000)] and node.knobs[A].log == []


def test_a_knob_that_temperature_has_moved_is_still_ours(node: Node) -> None:
    node.apply(a=1000)
    node.knobs[A].text, node.knobs[A].why = "800", HOT
    assert node.apply(a=1100) == [("written", "1100", "")]


def test_a_knob_that_cannot_be_compared_is_an_outcome_and_the_next_one_is_looked_at(node: Node) -> None:
    node.apply(a=1000, b=1000)
    node.knobs[A].fails["read_back"] = REFUSED
    node.knobs[B].text = "2000"
    assert node.apply(a=1100, b=1100) == [
        ("refused", "a/limit_mw: busy", "lock bit"),
        ("foreign", "somebody else set it to 2000 mW; it is left to them", "foreign writer"),
    ]
    assert node.knobs[A].log == node.knobs[B].log == ["1000"], "neither is written"


def test_knobs_at_rest_are_looked_at_in_turn_two_at_each_tick(node: Node) -> None:
    node.apply(a=1000, b=1000, c=1000)
    for knob in node.knobs.values():
        knob.text = "2000"
    node.writer.apply({})
    assert CHECKS_PER_APPLY == 2
    assert [len(knob.explained) for knob in node.knobs.values()].count(1) == 2
    found = {outcome.knob for _ in range(2) for outcome in node.writer.apply({})}
    assert sum(len(knob.explained) for knob in node.knobs.values()) == 3, "each once: then it is known"
    assert len(found) >= 1
    assert node.statuses(a=1000, b=1000, c=1000) == ["foreign"] * 3
    assert all(knob.text == "2000" for knob in node.knobs.values())


def test_a_single_knob_at_rest_is_looked_at_at_each_tick(node: Node) -> None:
    node.apply(a=1000)
    node.knobs[A].text, node.knobs[A].why = "900", HOT
    for n in (1, 2, 3):
        node.writer.apply({})
        assert node.knobs[A].explained == [(1000, 900)] * n


def test_a_knob_that_was_put_back_is_nobodys_to_look_at(node: Node) -> None:
    node.apply(a=1000)
    node.apply(a=0)
    node.knobs[A].text = "2000"
    assert [node.writer.apply({}) for _ in range(3)] == [[]] * 3


# --- trouble, and when it is over


def test_trouble_is_repeated_until_it_is_time_to_try_again(node: Node) -> None:
    tried: list[float] = []
    began_ns = node.clock.time_ns

    def attempt(_: int) -> None:
        tried.append((node.clock.time_ns - began_ns) / 1e9)
        raise REFUSED

    node.knobs[A].set = attempt  # type: ignore[method-assign]
    for _ in range(400):
        assert node.statuses(a=1000) == ["refused"]
        node.wait(0.5)
    assert tried == [0, 1, 3, 7, 15, 31, 63, 123, 183], "twice as long each time, a minute at most"


def test_a_knob_that_is_gone_is_looked_for_again_after_a_second(node: Node) -> None:
    node.knobs[A].fails["read"] = GONE
    assert node.statuses(a=1000) == ["vanished"]
    node.knobs[A].fails.clear()
    node.wait(0.9)
    assert node.statuses(a=1000) == ["vanished"]
    node.wait(0.1)
    assert node.statuses(a=1000) == ["written"]


@pytest.mark.parametrize("value", [1, 2**40])
def test_whatever_number_is_the_first_request_is_written(node: Node, value: int) -> None:
    assert node.statuses(a=value) == ["written"]
    assert node.knobs[A].log == [str(value)]


def test_another_request_is_tried_at_once_and_waits_a_second_again(node: Node) -> None:
    node.knobs[A].fails["set"] = REFUSED
    for _ in range(8):
        node.statuses(a=1000)
        node.wait(1.0)
    node.statuses(a=1100)
    node.knobs[A].fails.clear()
    node.wait(0.999)
    assert node.statuses(a=1100) == ["refused"]
    node.wait(0.001)
    assert node.statuses(a=1100) == ["written"]


def test_after_a_write_that_came_through_trouble_begins_with_a_second_again(node: Node) -> None:
    node.knobs[A].fails["set"] = REFUSED
    for _ in range(8):
        node.statuses(a=1000)
        node.wait(1.0)
    node.knobs[A].fails.clear()
    node.wait(60.0)
    assert node.statuses(a=1000) == ["written"]
    assert node.statuses(a=1000) == ["unchanged"]
    node.knobs[A].fails["set"] = REFUSED
    assert node.statuses(a=1100) == ["refused"]
    node.knobs[A].fails.clear()
    node.wait(1.0)
    assert node.statuses(a=1100) == ["written"]


def test_a_refusal_of_one_request_does_not_keep_the_knob_from_its_former_value(node: Node) -> None:
    node.apply(a=1000)
    node.knobs[A].fails["set"] = REFUSED
    assert node.statuses(a=1100) == ["refused"]
    node.knobs[A].fails.clear()
    assert node.statuses(a=1000) == ["written"], "it may have come half-way: it is written again"


# --- putting back


def test_zero_puts_a_knob_back_and_says_what_it_says_of_any_other_release(node: Node) -> None:
    node.apply(a=1000)
    assert node.apply(a=0) == [("restored", "1000 to 3000", "")]
    assert node.apply(a=0) == [("unchanged", "", "")]
    assert node.knobs[A].log == ["1000", "3000"]
    assert node.saved() == Captured("3000", (1000,)), "it stays captured"
    node.apply(a=1100)
    node.knobs[A].text = "2000"
    assert node.apply(a=0) == [
        ("foreign", "somebody else set it to 2000; it was 3000 before this agent", "foreign writer")
    ]


def test_a_knob_that_cannot_be_put_back_is_tried_again(node: Node) -> None:
    node.apply(a=1000)
    node.knobs[A].fails["restore"] = REFUSED
    assert node.apply(a=0) == [("refused", "a/limit_mw: busy", "lock bit")]
    node.knobs[A].fails.clear()
    node.wait(1.0)
    assert node.apply(a=0) == [("restored", "1000 to 3000", "")]


def test_zero_for_a_knob_that_was_never_moved_ends_its_trouble(node: Node) -> None:
    node.knobs[A].fails["read"] = REFUSED
    assert node.statuses(a=1000) == ["refused"]
    assert node.apply(a=0) == [("unchanged", "", "")]
    node.knobs[A].fails.clear()
    assert node.apply(a=0) == [("unchanged", "", "")]
    assert node.statuses(a=1) == ["written"]


@pytest.mark.parametrize("value", [1, 1000])
def test_whatever_number_is_the_first_request_after_a_knob_was_put_back_is_written(node: Node, value: int) -> None:
    node.apply(a=1000)
    assert node.writer.restore([A])[0].status == "restored"
    assert node.statuses(a=value) == ["written"]
    assert node.knobs[A].text == str(value)


def test_some_knobs_are_put_back_newest_capture_first_and_may_be_moved_again(node: Node) -> None:
    for letter in "cab":
        node.apply(**{letter: 1000})
    assert node.writer.restore([A, C, "z/limit_mw"]) == [
        Outcome(A, "restored", "1000 to 3000"), Outcome(C, "restored", "1000 to 3000"),
    ]  # fmt: skip
    assert node.writer.captured == {B: "3000"}
    assert node.writer.restore([A]) == []
    assert node.statuses(a=1000) == ["written"], "the value that it had before is written again"
    assert [outcome.knob for outcome in node.writer.restore_all()] == [A, B]
    assert not os.path.exists(node.path)


def test_a_knob_in_trouble_that_was_put_back_is_tried_at_once(node: Node) -> None:
    node.apply(a=1000)
    node.knobs[A].fails["set"] = REFUSED
    for _ in range(5):
        node.statuses(a=1100)
        node.wait(1.0)
    node.knobs[A].fails.clear()
    assert node.writer.restore([A])[0].status == "restored"
    assert node.statuses(a=1100) == ["written"]
    node.knobs[A].fails["set"] = REFUSED
    node.statuses(a=1200)
    node.knobs[A].fails.clear()
    node.wait(1.0)
    assert node.statuses(a=1200) == ["written"]


def test_a_knob_that_is_left_to_somebody_is_theirs_for_good(node: Node) -> None:
    node.apply(a=1000, b=1000)
    node.knobs[A].text = "2000"
    left = Outcome(A, "left", "somebody else set it to 2000; it was 3000 before this agent", "foreign writer")
    assert node.writer.restore([A]) == [left]
    for value in (0, 1000, 1100):
        node.wait(1e9)
        assert node.writer.apply({A: value}) == [Outcome(A, "foreign", left.detail, "foreign writer")]
    assert node.knobs[A].text == "2000"


def test_a_knob_that_could_not_be_put_back_stays_in_the_save(node: Node) -> None:
    node.apply(a=1000, b=1000)
    node.knobs[A].fails["restore"] = REFUSED
    assert [one.status for one in node.writer.restore_all()] == ["restored", "refused"]
    assert list(read_save(node.path).knobs) == [A] == list(node.writer.captured)


def test_putting_back_does_not_fail_for_a_save_that_cannot_be_written(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.apply(a=1000)

    def full() -> None:
        raise SaveError("the disk is full")

    monkeypatch.setattr(node.writer._save, "remove", full)
    assert [one.status for one in node.writer.restore_all()] == ["restored"]
    assert node.knobs[A].text == "3000"


# --- the start


def test_a_start_puts_back_what_a_killed_run_left_and_keeps_what_cannot_be(node: Node) -> None:
    node.apply(a=1000, b=1100)
    node.writer.close()
    node.knobs[A].fails["restore"] = REFUSED
    again = node.another()
    result = again.start()
    assert result == Restoration(
        [Outcome(B, "restored", "1100 to 3000"), Outcome(A, "refused", "a/limit_mw: busy", "lock bit")]
    )
    assert again.captured == {A: "3000"}
    del node.knobs[B]
    node.knobs[A].fails.clear()
    assert node.another().start().outcomes == [Outcome(A, "restored", "1000 to 3000")]


def test_a_knob_that_this_node_has_no_more_waits_in_the_save_and_disturbs_nothing(node: Node) -> None:
    node.apply(a=1000, b=1000)
    node.writer.limit_restores({A: 900})
    node.writer.close()
    gone = node.knobs.pop(A)
    node.writer = node.another()
    (first, second) = node.writer.start().outcomes
    assert (first.knob, first.status) == (B, "restored")
    assert second == Outcome(A, "vanished", f"this node has no knob {A} now")
    for cap in (800, 700):
        node.writer.limit_restores({A: cap, B: cap})
        node.apply(b=600)
        node.writer.apply({})
    assert node.saved(A).value == "3000" and gone.text == "1000"


# --- grants


def test_a_grant_is_on_the_disk_once_and_limits_knobs_captured_before_it_and_after_it(node: Node) -> None:
    node.apply(a=1000)
    assert node.writer.restore_limits == {}
    node.writer.limit_restores({A: 800, B: 900})
    size = os.path.getsize(node.path)
    node.writer.limit_restores({B: 900, A: 800})
    assert os.path.getsize(node.path) == size, "the same grant is not written again"
    node.apply(b=1000)
    assert (node.saved(A).restore_limit, node.saved(B).restore_limit) == (800, 900)
    assert node.writer.restore_limits == {A: 800, B: 900}
    assert [(one.knob, one.status) for one in node.writer.restore_all()] == [(B, "held"), (A, "held")]
    assert (node.knobs[A].text, node.knobs[B].text) == ("800", "900")
    node.writer.limit_restores({})
    assert node.writer.restore_limits == {}
    assert [one.status for one in node.writer.restore_all()] == ["restored"] * 2
    assert not os.path.exists(node.path)


def test_a_grant_is_known_while_one_of_its_knobs_has_been_moved(node: Node) -> None:
    node.apply(a=1000, b=1000)
    node.writer.limit_restores({A: 800})
    assert node.writer.restore_limits == {A: 800}


def test_a_grant_of_knobs_that_were_never_moved_limits_nothing(node: Node) -> None:
    node.writer.limit_restores({B: 900})
    node.apply(a=1000)
    assert node.writer.restore_limits == {}
    assert node.writer.restore_all()[0].status == "restored"


def test_a_grant_that_cannot_be_stored_is_not_in_force(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.apply(a=1000)

    def full(_: object) -> None:
        raise SaveError("the disk is full")

    with monkeypatch.context() as patch, pytest.raises(SaveError):
        patch.setattr(node.writer._save, "limit_restores", full)
        node.writer.limit_restores({A: 800})
    assert node.writer.restore_all()[0].status == "restored"


def restarted_under(node: Node, hold: int) -> Callable[..., list[Outcome]]:
    """A run is killed under a grant; the next one's start has put the knob to its safe value. Returns ``apply``."""
    node.apply(a=1000)
    node.writer.limit_restores({A: hold})
    node.writer.close()
    node.writer = node.another()
    assert node.writer.start().outcomes[0].status == "held" and node.knobs[A].text == str(hold)
    return node.writer.apply


def test_where_a_restore_has_put_a_knob_counts_as_ours_under_the_next_grant(node: Node) -> None:
    restarted_under(node, 800)
    node.writer.limit_restores({A: 700})
    assert node.saved().ours == (1000, 800)
    node.writer.limit_restores({})
    assert node.writer.restore_all()[0].status == "restored"


def test_a_safe_value_that_stays_in_force_is_not_noted_as_ours(node: Node) -> None:
    restarted_under(node, 800)
    node.writer.limit_restores({A: 800, B: 700})
    assert node.saved().ours == (1000,)


@pytest.mark.parametrize("trouble", ["moved", "refused", "no getter"])
def test_a_safe_value_that_the_hardware_does_not_keep_is_not_noted_as_ours(node: Node, trouble: str) -> None:
    restarted_under(node, 800)
    if trouble == "moved":
        node.knobs[A].text = "750"
    elif trouble == "refused":
        node.knobs[A].fails["read_back"] = KnobError("busy")
    else:
        node.knobs[A].has_getter = False
    node.writer.limit_restores({A: 700})
    assert (node.saved().ours, node.saved().restore_limit) == ((1000,), 700)


def test_a_block_puts_back_what_a_killed_run_left_before_it_begins(node: Node) -> None:
    node.apply(a=1000)
    node.writer.close()
    with node.another():
        assert node.knobs[A].text == "3000"


def test_trouble_at_rest_is_repeated_for_the_same_request_until_it_is_time(node: Node) -> None:
    node.apply(a=1000)
    node.knobs[A].fails["read_back"] = REFUSED
    assert [one.status for one in node.writer.apply({})] == ["refused"]
    node.knobs[A].fails.clear()
    assert node.statuses(a=1000) == ["refused"]
    node.wait(1.0)
    assert node.statuses(a=1000) == ["written"]


# --- the save


def test_a_save_that_cannot_be_compacted_serves_as_it_is(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise SaveError("the disk is full")

    monkeypatch.setattr(node.writer._save, "compact", full)
    assert node.statuses(a=1000) == ["written"]


def test_nothing_is_moved_while_the_save_cannot_be_written(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: object) -> None:
        raise SaveError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(node.writer._save, "capture", full)
        assert node.apply(a=1000) == [("refused", "the disk is full", "")]
    assert node.writer.captured == {}
    node.wait(1.0)
    node.apply(a=1000)
    with monkeypatch.context() as patch:
        patch.setattr(node.writer._save, "wrote", full)
        assert node.apply(a=1100, b=0) == [("refused", "the disk is full", ""), ("unchanged", "", "")]
    assert node.knobs[A].log == ["1000"]


def test_a_write_that_ends_elsewhere_is_an_outcome_where_that_cannot_be_saved_too(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = node.writer._save.wrote

    def full_after_the_first(values: Mapping[str, int]) -> None:
        if values != {A: 1000}:
            raise SaveError("the disk is full")
        save(values)

    monkeypatch.setattr(node.writer._save, "wrote", full_after_the_first)
    node.knobs[A].most = 800
    assert node.statuses(a=1000) == ["no-effect"]
    assert node.saved().ours == (1000,)
    assert node.writer.restore_all() == [Outcome(A, "no-effect", "requested 3000, still at 800", "firmware")]


def test_a_run_that_ends_leaves_no_file_open(node: Node) -> None:
    n = n_open()
    node.knobs[A].fails["restore"] = REFUSED
    with node.another() as writer:
        writer.apply({A: 1000})
    assert n_open() == n
    assert list(read_save(node.path).knobs) == [A]
    node.apply(b=1000)
    node.writer.close()
    assert n_open() == n
