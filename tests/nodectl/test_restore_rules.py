"""What becomes of one knob at a restore, case by case: the rule at the top of ``nodectl.write.restore``."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from nodectl.config import Config
from nodectl.knobs.api import KnobError, Outcome
from nodectl.write.lock import NodeLock
from nodectl.write.restore import (
    Restoration,
    deaf_to_signals,
    is_ours,
    last_of_ours,
    left_behind,
    put_back,
    put_back_all,
    put_to_limit,
    restore_saved,
    save_path,
    settle,
)
from nodectl.write.saves import Captured, Save, SaveError, read_save
from tests.nodectl.plain_knob import GONE, HOT, REFUSED, PlainKnob
from tests.open_files import n_open

NAME = "a/limit_mw"
CAPTURED = Captured("3000", (1000, 1200))


def row(outcome: Outcome) -> tuple[str, str, str]:
    assert outcome.knob.startswith(NAME)
    return outcome.status, outcome.detail, outcome.reason


# --- put_back: a knob whose captured value is a number


def test_a_knob_at_its_captured_value_is_not_written() -> None:
    knob = PlainKnob(text="3000")
    assert row(put_back(knob, CAPTURED)) == ("restored", "is at 3000, as captured", "")
    assert knob.log == []


@pytest.mark.parametrize("present", ["1000", "1200"])
def test_a_knob_at_one_of_our_last_two_values_goes_back(present: str) -> None:
    knob = PlainKnob(text=present)
    assert row(put_back(knob, CAPTURED)) == ("restored", f"{present} to 3000", "")
    assert knob.log == ["3000"]


def test_a_knob_at_anything_else_is_somebody_elses_and_left_to_them() -> None:
    knob = PlainKnob(text="1100")
    detail = "somebody else set it to 1100; it was 3000 before this agent"
    assert row(put_back(knob, CAPTURED)) == ("left", detail, "foreign writer")
    assert knob.log == [] and knob.explained == [(1200, 1100)], "the last of our values is what it should have"
    assert put_back(knob, Captured("3000")).status == "left"
    assert knob.explained[1:] == [(3000, 1100)], "with none of ours, the captured one"


def test_a_knob_that_temperature_keeps_low_is_put_back_all_the_same() -> None:
    knob = PlainKnob(text="1100", why=HOT)
    assert row(put_back(knob, CAPTURED)) == ("restored", "1100 to 3000", "")
    knob = PlainKnob(text="1200", most=900, why=HOT)
    assert row(put_back(knob, CAPTURED)) == ("restored", "3000 requested, 900 in force: it is hot", "thermal")
    assert knob.explained == [(3000, 900)]


def test_a_knob_that_shows_something_else_after_the_restore_without_a_cause_is_not_back() -> None:
    knob = PlainKnob(text="1200", most=900)
    assert row(put_back(knob, CAPTURED)) == ("no-effect", "requested 3000, still at 900", "firmware")


def test_a_knob_that_rounds_is_back_at_what_the_hardware_makes_of_its_captured_value() -> None:
    knob = PlainKnob(text="1125", step=125)
    assert row(put_back(knob, Captured("3010", (1200,)))) == ("restored", "1125 to 3010", "")


def test_a_knob_that_cannot_be_read_is_put_back_and_one_that_is_gone_is_not() -> None:
    knob = PlainKnob(text="1200", fails={"read": REFUSED})
    assert row(put_back(knob, CAPTURED)) == ("restored", "unreadable to 3000", "")
    knob = PlainKnob(fails={"read": GONE})
    with pytest.raises(KnobError, match="gone"):
        put_back(knob, CAPTURED)
    assert knob.log == []


def test_a_knob_without_a_getter_is_always_put_back() -> None:
    knob = PlainKnob(has_getter=False)
    assert row(put_back(knob, CAPTURED)) == ("restored", "3000; where it was cannot be read (no getter)", "")
    assert knob.log == ["3000"]


# --- put_back: a knob whose captured value is a released state


def test_a_lock_that_was_released_is_released_again() -> None:
    knob = PlainKnob(text="1200")
    assert row(put_back(knob, Captured("disabled", (1200,)))) == ("restored", "1200 to disabled", "")
    assert knob.log == ["disabled"]
    assert row(put_back(knob, Captured("disabled", (1200,)))) == ("restored", "disabled to disabled", "")


class Shared(PlainKnob):
    """Another agent's value stays in force when ours is withdrawn."""

    theirs = 900

    def restore(self, captured: str) -> None:
        super().restore(captured)
        self.text = str(self.theirs)


def test_what_another_agent_has_set_stays_when_ours_is_withdrawn() -> None:
    knob = Shared(text="1200")
    detail = "our value was withdrawn; 900 is somebody else's and stays"
    assert row(put_back(knob, Captured("disabled", (1000, 1200)))) == ("restored", detail, "")


def test_a_value_of_ours_that_stays_in_force_after_it_was_withdrawn_is_no_restore() -> None:
    knob = Shared(text="1200")
    detail = "our value was withdrawn, and 900 is still in force: is it now another agent's channel?"
    assert row(put_back(knob, Captured("disabled", (900, 1200)))) == ("no-effect", detail, "firmware")


def test_at_a_controller_ours_is_withdrawn_even_where_the_captured_value_is_in_force() -> None:
    knob = PlainKnob(name=f"{NAME}#3", text="3000")
    assert row(put_back(knob, CAPTURED)) == ("restored", "3000 to 3000", "")
    assert knob.log == ["3000"]


# --- a dry run


def test_a_dry_run_says_what_a_restore_would_do_and_writes_nothing() -> None:
    there, silent, unreadable = PlainKnob(text="1200"), PlainKnob(has_getter=False), PlainKnob(text="1200")
    unreadable.fails["read"] = REFUSED
    knobs = (there, silent, unreadable, PlainKnob(text="1100"))
    assert [row(put_back(knob, CAPTURED, dry_run=True))[:2] for knob in knobs] == [
        ("restored", "would go from 1200 to 3000"),
        ("restored", "would be 3000; where it is cannot be read (no getter)"),
        ("restored", "would go from unreadable to 3000"),
        ("left", "somebody else set it to 1100; it was 3000 before this agent"),
    ]
    assert all(knob.log == [] for knob in knobs)


# --- put_to_limit: a knob that has a cap under a cluster's grant

HELD = Captured("3000", (1200,), restore_limit=1000)
WAITS = "; 3000 as captured only when this node may leave its cluster"


@pytest.mark.parametrize("present", ["1", "999", "1000"])
def test_a_knob_at_its_safe_value_or_below_stays_there(present: str) -> None:
    knob = PlainKnob(text=present)
    assert row(put_to_limit(knob, HELD)) == ("held", f"stays at {present}{WAITS}", "")
    assert knob.log == []


def test_a_knob_above_its_safe_value_goes_down_to_it() -> None:
    knob = PlainKnob(text="1001")
    assert row(put_to_limit(knob, HELD, dry_run=True)) == ("held", f"would go from 1001 to 1000{WAITS}", "")
    assert knob.log == []
    assert row(put_to_limit(knob, HELD)) == ("held", f"1001 to 1000{WAITS}", "")
    assert knob.log == ["1000"]


def test_a_knob_that_does_not_go_down_to_its_safe_value_is_not_at_its_restore_limit() -> None:
    knob = PlainKnob(text="1200", step=300)
    assert put_to_limit(knob, HELD).status == "held", "900 is what the hardware makes of 1000"
    knob = PlainKnob(text="1200", most=950)
    assert row(put_to_limit(knob, HELD)) == ("no-effect", "requested 1000, is at 950", "firmware")


def test_a_knob_without_a_getter_or_a_number_is_put_to_its_safe_value() -> None:
    knob = PlainKnob(has_getter=False)
    assert row(put_to_limit(knob, HELD)) == ("held", f"unknown to 1000{WAITS}", "")
    knob = PlainKnob(text="disabled")
    assert row(put_to_limit(knob, HELD)) == ("held", f"disabled to 1000{WAITS}", "")
    assert knob.log == ["1000"]


def test_only_a_leave_puts_a_knob_under_a_grant_back() -> None:
    knob = PlainKnob(text="1200")
    assert row(put_back_all({NAME: HELD}, lambda _: knob)[0])[0] == "held"
    assert knob.text == "1000"
    assert row(put_back_all({NAME: HELD}, lambda _: knob, leaves_cluster=True)[0]) == ("restored", "1000 to 3000", "")


# --- is_ours


def test_ours_is_what_was_captured_what_we_put_last_and_what_a_grant_put() -> None:
    knob = PlainKnob(step=100)
    held = Captured("3000", (1050, 1250), restore_limit=850)
    assert [value for value in range(0, 3101, 50) if is_ours(knob, held, value)] == [800, 1000, 1200, 3000]
    assert not is_ours(knob, Captured("3000", (1050, 1250)), 800)
    assert is_ours(knob, Captured("disabled"), 0) and not is_ours(knob, Captured("3000"), 0)


# --- several knobs


def test_a_knob_that_fails_is_an_outcome_and_the_others_go_back() -> None:
    knobs = {f"{NAME}/{n}": PlainKnob(name=f"{NAME}/{n}", text="1200") for n in range(4)}
    knobs[f"{NAME}/1"].fails["restore"] = REFUSED
    knobs[f"{NAME}/2"].fails["restore"] = ZeroDivisionError("a bug")
    knobs[f"{NAME}/3"].fails["read"] = GONE
    outcomes = put_back_all(dict.fromkeys(knobs, CAPTURED), knobs.__getitem__)
    assert outcomes == [
        Outcome(f"{NAME}/3", "vanished", "a/limit_mw: gone"),
        Outcome(f"{NAME}/2", "refused", "a defect in nodectl, please report it: ZeroDivisionError('a bug')"),
        Outcome(f"{NAME}/1", "refused", "a/limit_mw: busy", "lock bit"),
        Outcome(f"{NAME}/0", "restored", "1200 to 3000"),
    ]
    assert [Restoration([one]).is_complete for one in outcomes] == [False, False, False, True]
    assert not Restoration(outcomes).is_complete


def test_a_restore_is_complete_where_each_knob_is_back_left_or_at_its_restore_limit() -> None:
    assert Restoration().is_complete
    assert Restoration([Outcome(NAME, "restored"), Outcome(NAME, "left"), Outcome(NAME, "held")]).is_complete
    assert not Restoration([Outcome(NAME, "restored"), Outcome(NAME, "no-effect")]).is_complete


def test_what_is_settled_leaves_the_save_and_the_save_goes_with_the_last(tmp_path: Path) -> None:
    before = n_open()
    save = Save(save_path(str(tmp_path)), "boot-1")
    save.capture({"a": "1", "b": "2", "c": "3"})
    knobs = read_save(save.path).knobs
    size = os.path.getsize(save.path)
    settle(save, knobs, [Outcome("c", "refused"), Outcome("b", "held")])
    assert (os.path.getsize(save.path), list(knobs)) == (size, ["a", "b", "c"]), "nothing is settled"
    settle(save, knobs, [Outcome("c", "refused"), Outcome("b", "left"), Outcome("gone", "restored")])
    assert list(knobs) == ["a", "c"] == list(read_save(save.path).knobs)
    assert n_open() == before, "it is closed"
    settle(save, knobs, [Outcome("a", "restored")])
    assert n_open() == before
    settle(save, knobs, [Outcome("c", "restored")])
    assert knobs == {} and os.listdir(tmp_path) == []


# --- the save of a state directory


def saved(state_dir: Path, n: int = 1, boot: str = "boot-1") -> str:
    save = Save(save_path(str(state_dir)), boot)
    save.capture({NAME if not at else f"{NAME}/{at}": "3000" for at in range(n)})
    save.wrote({NAME: 1200})
    save.close()
    return save.path


def test_a_dry_run_leaves_the_save_as_it_is_and_the_restore_removes_it(tmp_path: Path) -> None:
    path, knob = saved(tmp_path), PlainKnob(text="1200")
    before = Path(path).read_bytes()
    result = restore_saved(path, "boot-1", lambda _: knob, dry_run=True)
    assert result == Restoration([Outcome(NAME, "restored", "would go from 1200 to 3000")])
    assert Path(path).read_bytes() == before and knob.log == []
    result = restore_saved(path, "boot-1", lambda _: knob)
    assert result == Restoration([Outcome(NAME, "restored", "1200 to 3000")])
    assert knob.log == ["3000"] and os.listdir(tmp_path) == []
    assert restore_saved(path, "boot-1", lambda _: knob) == Restoration()


def test_a_save_of_another_boot_or_of_none_is_set_aside_and_a_dry_run_says_so(tmp_path: Path) -> None:
    path, knob = saved(tmp_path), PlainKnob(text="1200")
    why = f"{path} is of another boot or another (emulated) node: "
    assert restore_saved(path, "boot-2", lambda _: knob, dry_run=True).remarks == [f"{why}it would be set aside"]
    assert os.listdir(tmp_path) == ["captured.jsonl"]
    result = restore_saved(path, "boot-2", lambda _: knob)
    assert result == Restoration([], [f"{why}set aside as {path}.old-1"])
    Path(path).write_text("garbage\n")
    result = restore_saved(path, "boot-2", lambda _: knob)
    remarks = [f"{path}:1: line is damaged, skipped", f"{path} has no readable line: set aside as {path}.old-2"]
    assert result == Restoration([], remarks, is_damaged=True) and not result.is_complete
    assert knob.log == []


def test_a_damaged_line_is_a_remark_and_the_others_are_restored(tmp_path: Path) -> None:
    path, knob = saved(tmp_path), PlainKnob(text="1200")
    with open(path, "a") as file:
        file.write("garbage\n")
    result = restore_saved(path, "boot-1", lambda _: knob)
    assert result == Restoration([Outcome(NAME, "restored", "1200 to 3000")], [f"{path}:4: line is damaged, skipped"])


def test_under_a_grant_a_restore_limits_the_knob_and_keeps_the_save_until_the_leave(tmp_path: Path) -> None:
    path, knob = saved(tmp_path), PlainKnob(text="1200")
    Save(path, "boot-1").limit_restores({NAME: 1000})
    result = restore_saved(path, "boot-1", lambda _: knob)
    assert (result.outcomes[0].status, result.is_complete, knob.text) == ("held", True, "1000")
    assert list(read_save(path).knobs) == [NAME]
    result = restore_saved(path, "boot-1", lambda _: knob, leaves_cluster=True)
    assert (result.outcomes[0].status, knob.text, os.listdir(tmp_path)) == ("restored", "3000", [])


def test_what_a_killed_run_has_left_is_one_line_with_the_command(tmp_path: Path) -> None:
    assert left_behind(str(tmp_path), "boot-1") == ""
    path = saved(tmp_path)
    command = f"`nodectl restore --state-dir {tmp_path}` puts them back"
    assert left_behind(str(tmp_path), "boot-1") == f"a killed run has left 1 knob moved: {command}"
    assert left_behind(str(tmp_path), "boot-2") == ""
    with NodeLock(str(tmp_path)):
        assert left_behind(str(tmp_path), "boot-1") == "", "it is still at work"
    for n in (2, 3):
        saved(tmp_path, n)
        assert left_behind(str(tmp_path), "boot-1") == f"a killed run has left {n} knobs moved: {command}"
    os.unlink(path)
    os.mkdir(path)
    why = f"{path}: cannot read what the knobs were: Is a directory"
    assert left_behind(str(tmp_path), "boot-1") == f"{why}: it is unknown whether a killed run has left knobs moved"


def test_of_the_usual_state_directory_the_command_needs_no_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path)
    monkeypatch.setattr("nodectl.write.restore.Config", lambda: Config(state_dir=str(tmp_path)))
    line = "a killed run has left 1 knob moved: `nodectl restore` puts them back"
    assert left_behind(str(tmp_path), "boot-1") == line


def test_a_save_that_cannot_be_read_is_an_error_and_moves_nothing(tmp_path: Path) -> None:
    knob = PlainKnob(text="1200")
    with pytest.raises(SaveError, match="cannot read what the knobs were"):
        restore_saved(str(tmp_path), "boot-1", lambda _: knob)
    assert knob.log == []


# --- signals


def test_signals_wait_until_a_restore_is_done_and_each_comes_once_to_whom_it_went_before() -> None:
    came: list[int] = []
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = {number: signal.signal(number, lambda got, _frame: came.append(got)) for number in numbers}
    handlers = [signal.getsignal(number) for number in numbers]
    try:
        with deaf_to_signals():
            for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.raise_signal(number)
            assert came == []
        assert came == [signal.SIGHUP, signal.SIGINT, signal.SIGTERM]
        assert [signal.getsignal(number) for number in numbers] == handlers
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_signals_arrive_also_after_a_restore_that_failed() -> None:
    with pytest.raises(KeyboardInterrupt), deaf_to_signals():
        signal.raise_signal(signal.SIGINT)
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_where_a_handler_of_c_was_before_a_restore_the_default_is_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python names such a handler None, and cannot install it again."""
    install = signal.signal
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}

    def install_over_c(number: int, action: Callable[..., object]) -> None:
        install(number, action)

    monkeypatch.setattr(signal, "signal", install_over_c)
    try:
        with deaf_to_signals():
            pass
        assert [signal.getsignal(number) for number in before] == [signal.SIG_DFL] * 3
    finally:
        for number, handler in before.items():
            install(number, handler)


def test_another_thread_than_the_main_one_restores_without_touching_signals() -> None:
    done: list[object] = []

    def work() -> None:
        with deaf_to_signals():
            done.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [signal.getsignal(signal.SIGINT)]


@pytest.mark.parametrize(("captured", "number"), [("3200000", 3_200_000), ("0", 0), ("disabled", 0), ("", 0)])
def test_a_released_state_reads_back_as_0(captured: str, number: int) -> None:
    knob = PlainKnob()
    assert is_ours(knob, Captured(captured), number) and not is_ours(knob, Captured(captured), number + 1)
    assert last_of_ours(knob, Captured(captured)) == number
    assert last_of_ours(knob, Captured(captured, ours=(1, 7))) == 7
