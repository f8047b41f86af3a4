"""Clock limits that are written together: what is done at once, and what is left to the long way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from nodectl.config import Foreign
from nodectl.knobs import Knob, Outcome, open_knob
from nodectl.knobs.api import KnobError
from nodectl.knobs.clock_limit import ClockLimit
from nodectl.write.many_files import ManyFiles
from nodectl.write.setting import LAST_RETRY_S
from nodectl.write.writer import CHECKS_PER_APPLY, YIELD, Writer
from pmu.system import MonotonicClock, system_ports
from tests.nodectl.file_tree import StillClock
from tests.nodectl.plain_knob import PlainKnob
from tests.writer_process.tree_writer import clock_path, limits, make_tree

NAMES = [f"cpu/policy{policy}/max_khz" for policy in range(10)]


def allow(name: str) -> None:
    """Any write."""


def knobs_of(tree: Path) -> list[Knob]:
    ports = system_ports(str(tree))
    return [open_knob(ports, name) for name in (*NAMES, "rapl/package-0/long_term_uw")]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "node", len(NAMES))


def test_a_write_that_is_not_allowed_any_more_ends_the_round(tree: Path) -> None:
    written: list[str] = []

    def check(name: str) -> None:
        if len(written) == 3:
            raise KnobError(f"{name}: not now")
        written.append(name)

    many = ManyFiles(knobs_of(tree), str(tree), check)
    with pytest.raises(KnobError, match=r"policy3.*not now"):
        many.write(dict.fromkeys(NAMES, 1_000_000))
    many.close()
    texts = [clock_path(tree, policy).read_text() for policy in range(len(NAMES))]
    assert texts == ["1000000\n"] * 3 + ["3200000\n"] * (len(NAMES) - 3)


def test_nothing_of_a_longer_number_is_left(tree: Path) -> None:
    many = ManyFiles(knobs_of(tree), str(tree), allow)
    for value in (1_000_000, 12, 900_000):
        assert many.write(dict.fromkeys(NAMES, value)) == dict.fromkeys(NAMES, value)
        assert {clock_path(tree, policy).read_text() for policy in range(len(NAMES))} == {f"{value}\n"}
    many.close()


def test_what_is_no_clock_or_is_gone_is_left_to_the_long_way(tree: Path) -> None:
    knobs = knobs_of(tree)
    clock_path(tree, 1).unlink()
    many = ManyFiles(knobs, str(tree), allow)
    found = many.write({**dict.fromkeys(NAMES, 1_000_000), "rapl/package-0/long_term_uw": 5})
    assert found == {name: 1_000_000 for name in NAMES if name != NAMES[1]}
    many.close()


def test_no_clock_is_raised_above_its_captured_value_together_with_others(tree: Path, tmp_path: Path) -> None:
    clock_path(tree, 0).write_text("1500000\n")
    seen: list[str] = []
    many = ManyFiles(knobs_of(tree), str(tree), seen.append)
    ports = system_ports(str(tree))
    found = limits(tree)
    with Writer(knobs_of(tree), str(tmp_path / "save"), "boot", ports.clock, may_raise=["*"], many=many) as writer:
        outcomes = writer.apply(dict.fromkeys(NAMES, 2_000_000))
    many.close()
    assert seen == NAMES[1:] and len(outcomes) == len(NAMES)
    assert limits(tree) == found


class Interrupted(ManyFiles):
    """Somebody else sets some clocks after our write and before we look."""

    path: Path
    looks: Iterator[dict[int, int]] = iter(())

    def present(self, names: Iterable[str]) -> dict[str, int]:
        for policy, khz in next(self.looks, {}).items():
            clock_path(self.path, policy).write_text(f"{khz}\n")
        return super().present(names)


def interrupted(tree: Path, state: Path, foreign: dict[int, int], rule: Foreign = YIELD) -> list[Outcome]:
    """Outcomes of a write of 1.5 GHz that somebody else interrupts, and of the restore that follows."""
    knobs = knobs_of(tree)
    many = Interrupted(knobs, str(tree), allow)
    many.path = tree
    writer = Writer(knobs, str(state / "captured.jsonl"), "boot", MonotonicClock(), many=many, foreign=rule)
    writer.start()
    writer.apply(dict.fromkeys(NAMES, 1_800_000))
    many.looks = iter(({}, foreign))  # the one before the write, and the one after it
    outcomes = [*writer.apply(dict.fromkeys(NAMES, 1_500_000)), *writer.restore_all()]
    writer.close()
    many.close()
    return outcomes


def test_a_clock_that_somebody_else_lowers_once_more_to_an_earlier_value_of_ours_stays_theirs(tree: Path) -> None:
    knobs, clock = knobs_of(tree), StillClock()
    many = Interrupted(knobs, str(tree), allow)
    many.path = tree
    writer = Writer(knobs, str(tree.parent / "captured.jsonl"), "boot", clock, many=many)
    writer.start()
    writer.apply(dict.fromkeys(NAMES, 1_800_000))
    many.looks = iter(({}, {2: 2_000_000}))  # the one before the write, and the one after it
    assert writer.apply(dict.fromkeys(NAMES, 1_500_000))[2].status == "foreign"
    clock_path(tree, 2).write_text("1800000\n")
    clock.time_ns += round(LAST_RETRY_S * 1e9)
    assert writer.apply({NAMES[2]: 1_900_000})[0].status == "foreign"
    assert clock_path(tree, 2).read_text() == "1800000\n"
    writer.close()
    many.close()


def test_a_clock_that_somebody_else_sets_between_our_write_and_our_look_is_left_to_them(tree: Path) -> None:
    found = limits(tree)
    outcomes = interrupted(tree, tree.parent, {2: 1_100_000, 5: 2_900_000})
    assert [one.status for one in outcomes[: len(NAMES)]] == [
        "foreign" if policy in (2, 5) else "written" for policy in range(len(NAMES))
    ]
    assert outcomes[2] == Outcome(
        NAMES[2], "foreign", "somebody else set it to 1100000 kHz; it is left to them", "foreign writer"
    )
    theirs = {
        str(clock_path(tree, policy).relative_to(tree)): str(khz) for policy, khz in ((2, 1_100_000), (5, 2_900_000))
    }
    assert limits(tree) == found | theirs, "a restore leaves them too"


def test_a_value_that_no_clock_takes_as_it_is_was_rounded_by_the_driver_and_is_put_back(tree: Path) -> None:
    found = limits(tree)
    outcomes = interrupted(tree, tree.parent, dict.fromkeys(range(len(NAMES)), 1_400_000))
    assert "foreign" not in {one.status for one in outcomes}
    assert limits(tree) == found


def test_a_clock_that_somebody_else_sets_meanwhile_is_set_again_where_the_settings_say_so(tree: Path) -> None:
    outcomes = interrupted(tree, tree.parent, {2: 1_100_000, 5: 2_900_000}, Foreign(action="reassert"))
    assert [outcomes[policy].status for policy in (2, 5)] == ["written"] * 2
    assert outcomes[2].detail.startswith("1100000: "), "no limit is widened"
    assert outcomes[5].detail.startswith("1500000: somebody else set it to 2900000 kHz; set again (1 of 3)")


class Together:
    """A node whose clocks are written together, and which policies' clocks were."""

    def __init__(self, tree: Path, *more: Knob, rule: Foreign = YIELD) -> None:
        self.tree, self.checked = tree, list[str]()
        knobs = [*knobs_of(tree), *more]
        self.many = ManyFiles(knobs, str(tree), self.checked.append)
        save = str(tree.parent / "captured.jsonl")
        self.writer = Writer(knobs, save, "boot", MonotonicClock(), many=self.many, foreign=rule)
        self.writer.start()

    def apply(self, khz: int, **more: int) -> list[Outcome]:
        self.checked.clear()
        return self.writer.apply({**dict.fromkeys(NAMES, khz), **more})

    def close(self) -> None:
        self.writer.restore_all()
        self.writer.close()
        self.many.close()


def test_clocks_that_were_written_together_are_at_rest_while_the_request_stays(tree: Path) -> None:
    together = Together(tree)
    outcomes = together.apply(1_800_000)
    assert outcomes == [Outcome(name, "written", "1800000") for name in NAMES] and together.checked == NAMES
    assert {one.status for one in together.apply(1_800_000)} == {"unchanged"} and together.checked == []
    together.close()


def test_a_clock_that_somebody_else_has_set_before_is_found_among_many(tree: Path) -> None:
    together = Together(tree)
    together.apply(1_800_000)
    clock_path(tree, 5).write_text("1100000\n")
    outcomes = together.apply(1_500_000)
    assert [one.status for one in outcomes] == ["foreign" if policy == 5 else "written" for policy in range(len(NAMES))]
    assert clock_path(tree, 5).read_text() == "1100000\n"
    together.close()


@pytest.mark.parametrize("khz", [1_100_000, 2_500_000, 3_200_000], ids=["lower", "higher", "as it was before us"])
def test_a_clock_that_somebody_else_has_set_is_found_in_its_turn_while_nothing_or_one_clock_changes(
    tree: Path, khz: int
) -> None:
    """Two knobs are read again at each ``apply``, and those of the request; a restore leaves what it is at."""
    for is_changing in (False, True):
        together = Together(tree)
        together.apply(1_800_000)
        clock_path(tree, 7).write_text(f"{khz}\n")
        found = ""
        for turn in range(len(NAMES) // CHECKS_PER_APPLY + 1):
            changed = 1_700_000 - 10_000 * turn if is_changing else 1_800_000
            outcomes = together.writer.apply({**dict.fromkeys(NAMES, 1_800_000), NAMES[0]: changed})
            found = found or next((one.knob for one in outcomes if one.status == "foreign"), "")
        assert found == NAMES[7]
        together.close()
        assert clock_path(tree, 7).read_text() == f"{khz}\n"
        clock_path(tree, 7).write_text("3200000\n")


def test_a_knob_that_was_at_no_number_is_written_beside_many_clocks(tree: Path) -> None:
    preference = PlainKnob(name="preference", text="disabled")
    together = Together(tree, preference)
    outcomes = together.apply(1_500_000, preference=700)
    assert {one.status for one in outcomes} == {"written"} and preference.text == "700"
    together.close()
    assert preference.text == "disabled"


def test_a_clock_that_cannot_say_why_it_is_elsewhere_goes_the_long_way(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot(*_: object) -> None:
        raise KnobError("it is gone for a moment")

    monkeypatch.setattr(ClockLimit, "explain", cannot)
    outcomes = interrupted(tree, tree.parent, {2: 1_100_000})
    assert [one.status for one in outcomes[: len(NAMES)]] == ["written"] * len(NAMES)


def no_long_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def restore(knob: ClockLimit, _captured: str) -> None:
        raise KnobError(f"{knob.name} goes back alone")

    monkeypatch.setattr(ClockLimit, "restore", restore)


def test_clocks_that_are_released_go_back_together(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, together = limits(tree), Together(tree)
    together.apply(1_800_000)
    no_long_way(monkeypatch)
    assert together.apply(0) == [Outcome(name, "restored", "1800000 to 3200000") for name in NAMES]
    assert together.checked == NAMES and limits(tree) == found
    assert {one.status for one in together.apply(0)} == {"unchanged"} and together.checked == []
    assert {one.status for one in together.apply(1_500_000)} == {"written"}, "their capture stays"
    monkeypatch.undo()
    together.close()
    assert limits(tree) == found


def test_a_clock_that_somebody_else_has_set_is_left_to_them_when_many_are_released(tree: Path) -> None:
    found, together = limits(tree), Together(tree)
    together.apply(1_800_000)
    clock_path(tree, 5).write_text("1100000\n")
    outcomes = together.apply(0)
    assert [one.status for one in outcomes] == [
        "foreign" if policy == 5 else "restored" for policy in range(len(NAMES))
    ]
    theirs = {str(clock_path(tree, 5).relative_to(tree)): "1100000"}
    assert limits(tree) == found | theirs
    together.close()
    assert limits(tree) == found | theirs


def test_a_released_clock_goes_no_higher_than_somebody_else_has_set_it_meanwhile(tree: Path) -> None:
    together = Together(tree, rule=Foreign(action="reassert"))
    together.apply(1_800_000)
    clock_path(tree, 5).write_text("2500000\n")
    assert together.apply(1_500_000)[5].status == "written"
    together.apply(0)
    texts = [clock_path(tree, policy).read_text().strip() for policy in range(len(NAMES))]
    assert texts == ["2500000" if policy == 5 else "3200000" for policy in range(len(NAMES))]
    together.close()


@pytest.mark.parametrize("is_firmware", [True, False])
def test_a_released_clock_that_is_elsewhere_is_explained(tree: Path, is_firmware: bool) -> None:
    if is_firmware:
        (clock_path(tree, 2).parent / "bios_limit").write_text("2000000\n")
    knobs = knobs_of(tree)
    many = Interrupted(knobs, str(tree), allow)
    many.path = tree
    writer = Writer(knobs, str(tree.parent / "captured.jsonl"), "boot", MonotonicClock(), many=many)
    writer.start()
    writer.apply(dict.fromkeys(NAMES, 1_800_000))
    many.looks = iter(({}, {2: 2_000_000}))  # the one before the write, and the one after it
    outcome = writer.apply(dict.fromkeys(NAMES, 0))[2]
    if is_firmware:
        assert (outcome.status, outcome.reason) == ("restored", "firmware")
        assert outcome.detail.startswith("3200000 requested, 2000000 in force: the firmware limits")
    else:
        assert (outcome.status, outcome.detail) == ("no-effect", "requested 3200000, still at 2000000")
    writer.close()
    many.close()


def test_what_may_not_be_released_together_any_more_goes_back_one_by_one(tree: Path) -> None:
    found, together = limits(tree), Together(tree)
    together.apply(1_800_000)

    def check(name: str) -> None:
        together.checked.append(name)
        if name == NAMES[3]:
            raise KnobError(f"{name}: not now")

    together.many._check = check
    assert {one.status for one in together.apply(0)} == {"restored"} and together.checked == NAMES[:4]
    assert limits(tree) == found
    together.close()
