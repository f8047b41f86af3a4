"""Putting knobs back to what was captured: by the writer when it stops, from disk when it could not.

One rule decides each knob. Where the hardware still holds the captured value, or a value of ours, the captured value
is put (back). Where it holds anything else somebody has set it since, and it is left alone and reported; unless
firmware or temperature is what holds it down, which is no reason to leave our limit behind. A knob without a getter is
always put back. One exception: a knob that holds a cap under a cluster's grant is put to the lesser of where it is and
its safe value, never upward, until the node may leave. The order is the reverse of the capture.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from nodectl.config import Config
from nodectl.knobs.api import Knob, KnobError, Outcome
from nodectl.write.lock import is_held, lock_path
from nodectl.write.saves import SAVE_NAME, Captured, Save, SaveError, is_there, read_save, set_aside

SETTLED = ("restored", "left")
"""Statuses after which a knob needs no restoring any more."""

_UNTOLD = "cannot be asked (no getter)"

type_find = Callable[[str], Knob]
"""Gives the knob of a name; KnobError when this node has none."""


@dataclass(slots=True)
class Restoration:
    """What a restore did: one outcome per knob, newest capture first, and remarks on the save itself."""

    outcomes: list[Outcome] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """Every knob is back, belongs to somebody else, or is where a cluster's grant wants it."""
        return all(outcome.status in (*SETTLED, "held") for outcome in self.outcomes)


def save_path(state_dir: str) -> str:
    """Where the save of a state directory is."""
    return os.path.join(state_dir, SAVE_NAME)


def restore_saved(
    path: str, boot_id: str, find: type_find, dry_run: bool = False, leaves_cluster: bool = False
) -> Restoration:
    """Restore from the save at ``path``; doing it again does nothing more.

    Knobs that could not be put back (busy, vanished) stay in the save for the next attempt. A save of another boot is
    not applied, since the hardware lost those settings when it went down: it is set aside under another name.
    ``leaves_cluster``: as if its ledger had granted the leave. With ``dry_run`` nothing is written: outcomes say what
    would be done. Raises ``SaveError`` only.
    """
    state = read_save(path)
    result = Restoration(remarks=list(state.problems))
    if not is_there(path):
        return result
    if not state.boot_id or state.boot_id != boot_id:
        why = "is of another boot or another (emulated) node" if state.boot_id else "holds nothing legible"
        kept = "it would be set aside" if dry_run else f"set aside as {set_aside(path)}"
        result.remarks.append(f"{path} {why}: {kept}")
        return result
    with deaf_to_signals():
        result.outcomes = put_back_all(state.knobs, find, dry_run, leaves_cluster)
        if not dry_run:
            settle(Save(path, boot_id), state.knobs, result.outcomes)
    return result


def left_behind(state_dir: str, boot_id: str) -> str:
    """One line on what a killed run of this boot has left moved, for those who only look; "" if there is nothing.

    A run that is still at work has a save too, but also the lock.
    """
    path = save_path(state_dir)
    try:
        state = read_save(path)
    except SaveError as error:
        return f"{error}: whether a killed run has left knobs moved is not known"
    if not state.knobs or state.boot_id != boot_id or is_held(lock_path(state_dir)):
        return ""
    where = "" if state_dir == Config().state_dir else f" --state-dir {state_dir}"
    count = f"{len(state.knobs)} knob{'s' if len(state.knobs) > 1 else ''}"
    return f"a killed run has left {count} moved: `nodectl restore{where}` puts them back"


def put_back_all(
    knobs: Mapping[str, Captured], find: type_find, dry_run: bool = False, leaves_cluster: bool = False
) -> list[Outcome]:
    """Put back every knob, newest capture first; one that fails does not keep the others from it."""
    newest_first = reversed(list(knobs.items()))
    return [_put_back_named(name, captured, find, dry_run, leaves_cluster) for name, captured in newest_first]


def settle(save: Save, knobs: dict[str, Captured], outcomes: list[Outcome]) -> None:
    """Take the settled knobs out of ``knobs`` and out of the save; the save goes when nothing is left in it."""
    settled = [outcome.knob for outcome in outcomes if outcome.status in SETTLED]
    for name in settled:
        knobs.pop(name, None)
    if not knobs:
        save.remove()
    elif settled:
        save.restored(settled)
        save.close()


def put_back(knob: Knob, captured: Captured, dry_run: bool = False) -> Outcome:
    """Put one knob back by the rule above. Raises ``KnobError``."""
    present = _present(knob)
    # what a controller holds may be another agent's, with ours above it, which is to be withdrawn all the same
    is_alone = "#" not in knob.name
    number = knob.number(present)
    if is_alone and present == captured.value and number is not None:
        return Outcome(knob.name, "restored", f"is at {present}, as captured")
    if number is not None and not is_ours(knob, captured, number):
        _, text = knob.explain(last_of_ours(knob, captured), number)
        if not text:
            detail = f"somebody else set it to {present}; it was {captured.value} before this agent"
            return Outcome(knob.name, "left", detail, "foreign writer")
    if dry_run:
        is_told = number is not None or knob.read_back() is not None
        way = f"go from {present} to {captured.value}" if is_told else f"be {captured.value}; where it is {_UNTOLD}"
        return Outcome(knob.name, "restored", f"would {way}")
    knob.restore(captured.value)
    return _after_restoring(knob, captured, present)


def _after_restoring(knob: Knob, captured: Captured, before: str) -> Outcome:
    """Read the knob back: is it at its captured value, and if not, who is in the way?"""
    held = knob.read_back()
    if held is None:
        return Outcome(knob.name, "restored", f"{captured.value}; where it was {_UNTOLD}")
    first = knob.number(captured.value)
    if first is not None and not knob.holds(first, held):
        reason, text = knob.explain(first, held)
        if not text:  # held down by firmware or temperature our own limit is gone all the same
            return Outcome(knob.name, "no-effect", f"asked {captured.value}, it still holds {held}", "firmware")
        return Outcome(knob.name, "restored", f"{captured.value} asked, {held} in force: {text}", reason)
    if held and first is None:
        if any(knob.holds(value, held) for value in captured.ours):
            detail = f"our value was withdrawn, and {held} is still in force: is it now another agent's channel?"
            return Outcome(knob.name, "no-effect", detail, "firmware")
        return Outcome(knob.name, "restored", f"our value was withdrawn; {held} is somebody else's and stays")
    return Outcome(knob.name, "restored", f"{before} to {captured.value}")


def put_under(knob: Knob, captured: Captured, dry_run: bool = False) -> Outcome:
    """Put a knob to the lesser of where it is and its safe value: watts that were granted are not taken back before the
    cluster's ledger knows (rule 4 of docs/ledger.md). Raises ``KnobError``."""
    assert captured.hold is not None
    present = _present(knob)
    waits = f"{captured.value} as captured only when this node may leave its cluster"
    if present.isdigit() and int(present) <= captured.hold:
        return Outcome(knob.name, "held", f"stays at {present}; {waits}")
    if dry_run:
        return Outcome(knob.name, "held", f"would go from {present} to {captured.hold}; {waits}")
    knob.set(captured.hold)
    held = knob.read_back()
    if held is not None and not knob.holds(captured.hold, held):
        return Outcome(knob.name, "no-effect", f"asked {captured.hold}, it holds {held}", "firmware")
    return Outcome(knob.name, "held", f"{present} to {captured.hold}; {waits}")


def is_ours(knob: Knob, captured: Captured, present: int) -> bool:
    """Does the hardware hold what this agent last put there, or meant to?"""
    first = knob.number(captured.value) or 0
    if present == first or (captured.hold is not None and knob.holds(captured.hold, present)):
        return True
    return any(knob.holds(value, present) for value in captured.ours)


def last_of_ours(knob: Knob, captured: Captured) -> int:
    """What the hardware should hold if nobody else has set it: our last value, before that the original. 0 stands for
    an original that is a released state ("disabled")."""
    return captured.ours[-1] if captured.ours else knob.number(captured.value) or 0


@contextlib.contextmanager
def deaf_to_signals() -> Iterator[None]:
    """Let SIGTERM, SIGINT and SIGHUP wait: a second Ctrl-C must not stop a restore half-way.

    Only the main thread receives Python's signals, so elsewhere there is nothing to hold back.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers: tuple[int, ...] = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    arrived: list[int] = []
    before = [(number, signal.signal(number, lambda got, _frame: arrived.append(got))) for number in numbers]
    try:
        yield
    finally:
        for number, action in before:
            signal.signal(number, signal.SIG_DFL if action is None else action)
        for number in dict.fromkeys(arrived):
            signal.raise_signal(number)


def _present(knob: Knob) -> str:
    """What the knob is at. One that is there but cannot be read says nothing of anybody else: it is put back."""
    try:
        return knob.read()
    except KnobError as error:
        if error.status == "vanished":
            raise
        return "unreadable"


def _put_back_named(name: str, captured: Captured, find: type_find, dry_run: bool, leaves_cluster: bool) -> Outcome:
    put = put_back if captured.hold is None or leaves_cluster else put_under
    try:
        return put(find(name), captured, dry_run)
    except KnobError as error:
        return Outcome(name, error.status, str(error), error.reason)
    except Exception as error:  # a defect in one knob must not leave the others moved
        return Outcome(name, "refused", f"{type(error).__name__}: {error}")
