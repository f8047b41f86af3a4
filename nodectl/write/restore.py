"""Put knobs back to their captured values: by the writer when it stops, from the save on disk when it was killed.

One rule decides for each knob. If the hardware is at the captured value or at a value of ours, the captured value is
written. If it is at any other value, somebody else has set it since: the knob is left alone and reported, unless
firmware or temperature explains the value, since then our limit is still there. A knob that cannot be read is always
put back. Where somebody else had set a limit below the captured value meanwhile, it goes back to that one
(``Captured.to_restore``). The order is the reverse of the capture. Two exceptions:

- A knob that enforces a cap under a cluster's grant goes to the lower of its present value and its restore limit, never
  upward, until the node may leave its cluster.
- A value above ours of a knob that nothing but a cap moves is nobody's (``nodectl.write.cap_guard``): the captured
  value is written. So it is at 0, "no limit" to some firmware. A zone whose limits somebody has switched off is
  switched on.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from nodectl.config import Config
from nodectl.knobs.api import Knob, KnobError, Outcome
from nodectl.knobs.recipe import Recipe
from nodectl.write.cap_guard import is_for_caps
from nodectl.write.device_names import NamedSave
from nodectl.write.lock import is_locked, lock_path
from nodectl.write.places import SavePlaces, SplitSave, save_path, save_places
from nodectl.write.saves import (
    SCHEMA_VERSION,
    Captured,
    Save,
    SavedState,
    SaveError,
    is_there,
    keep,
    read_save,
    set_aside,
)
from pmu.driver_values import digits

if TYPE_CHECKING:
    from nodectl.write.many_files import ManyFiles

SETTLED = ("restored", "left")
"""Statuses after which a knob needs no restoring any more."""

_UNREAD = "cannot be read (no getter)"
_UNREADABLE = "unreadable"

type_find = Callable[[str], Knob]
"""Gives the knob of a name; KnobError when this node has none."""


@dataclass(slots=True)
class Restoration:
    """What a restore did: one outcome per knob, newest capture first, and remarks on the save itself."""

    outcomes: list[Outcome] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    is_damaged: bool = False
    """The save was damaged: what it said of other knobs is lost, so nobody can say that the node is as it was."""

    @property
    def is_complete(self) -> bool:
        """Every knob is restored, belongs to somebody else, or is at its restore limit."""
        return not self.is_damaged and all(outcome.status in (*SETTLED, "held") for outcome in self.outcomes)


def restore_node(
    places: SavePlaces, boot_id: str, find: type_find, dry_run: bool = False, leaves_cluster: bool = False
) -> Restoration:
    """Restore from every save of a node, as ``restore_saved`` does; the one with the oldest captures first. What an
    earlier version's save still has afterwards goes over into the node's."""
    result = Restoration()
    for path, boot in places.with_boots(boot_id):
        done = restore_saved(path, boot, find, dry_run, leaves_cluster)
        result.outcomes += done.outcomes
        result.remarks += done.remarks
        result.is_damaged |= done.is_damaged
    if places.earlier and not dry_run and is_there(places.earlier):
        earlier, node = read_save(places.earlier), read_save(places.node)
        save = Save(places.node, boot_id, lambda name: recipe_of(name, find))
        save.replace(_merged(earlier.knobs, node.knobs), earlier.restore_limits | node.restore_limits)
        Save(places.earlier, boot_id).remove()
    return result


def _merged(earlier: Mapping[str, Captured], later: Mapping[str, Captured]) -> dict[str, Captured]:
    """The older original, and our last values, of each knob."""
    both = {name: replace(later[name], value=earlier[name].value) for name in earlier if name in later}
    return {**earlier, **later, **both}


def read_node(places: SavePlaces, boot_id: str) -> SavedState:
    """What the saves of a node have, as one; a save of another boot says nothing of the knobs as they are now."""
    state = SavedState()
    for path, boot in places.with_boots(boot_id):
        found = read_save(path)
        if found.boot_id == boot:
            state.knobs |= found.knobs
            state.restore_limits = state.restore_limits | found.restore_limits
    return state


def restore_saved(
    path: str, boot_id: str, find: type_find, dry_run: bool = False, leaves_cluster: bool = False
) -> Restoration:
    """Restore from the save at ``path``; doing it again does nothing more.

    Knobs that could not be put back (busy, vanished) stay in the save for the next attempt. A save of another boot is
    not applied, since the hardware lost those settings when it went down: it is set aside under another name.
    ``leaves_cluster``: ignore restore limits, as after the ledger has let the node go. With ``dry_run`` nothing is
    written: outcomes say what would be done. Of a damaged save, all that is legible is put back; the file is kept
    under another name, and the restore is not complete. Raises ``SaveError`` only.
    """
    state = read_save(path)
    result = Restoration(remarks=list(state.problems))
    if not is_there(path):
        return result
    result.is_damaged = not state.boot_id or (bool(state.lost) and state.boot_id == boot_id)
    if not state.boot_id or state.boot_id != boot_id:
        why = "is of another boot or another (emulated) node" if state.boot_id else "has no readable line"
        kept = "it would be set aside" if dry_run else f"set aside as {set_aside(path)}"
        result.remarks.append(f"{path} {why}: {kept}")
        return result
    with deaf_to_signals():
        result.outcomes = put_back_all(state.knobs, find, dry_run, leaves_cluster)
        save = Save(path, boot_id, lambda name: recipe_of(name, find))
        if state.lost:
            aside = "it would be kept" if dry_run else f"kept as {keep(path)}"
            result.remarks.append(f"{path} is damaged ({state.lost}): {aside}; other knobs may have been moved")
        if not dry_run:
            settle(save, state.knobs, result.outcomes, state)
    return result


def recipe_of(name: str, find: type_find) -> Recipe | None:
    """How the restorer puts the knob of that name back; None where it cannot, or where the knob is gone."""
    try:
        return find(name).recipe()
    except KnobError:
        return None


def left_behind(state_dir: str, boot_id: str, node_lock: str = "") -> str:
    """One line on what a killed run has left moved, for commands that restore nothing; "" if nothing.

    A run that still works has a save too, but it also has the lock.
    """
    places = save_places(state_dir, node_lock)
    knobs: dict[str, Captured] = {}
    where = ""
    for path, boot in places.with_boots(boot_id):
        try:
            state = read_save(path)
        except SaveError as error:
            return f"{error}: it is unknown whether a killed run has left knobs moved"
        if state.boot_id == boot:
            knobs |= state.knobs
            is_elsewhere = path == save_path(state_dir) and state_dir != Config().state_dir
            where = f" --state-dir {state_dir}" if state.knobs and is_elsewhere else where
    if not knobs or is_locked(node_lock or lock_path(state_dir)):
        return ""
    count = f"{len(knobs)} knob{'s' if len(knobs) > 1 else ''}"
    return f"a killed run has left {count} moved: `nodectl restore{where}` puts them back"


def put_back_all(
    knobs: Mapping[str, Captured], find: type_find, dry_run: bool = False, leaves_cluster: bool = False
) -> list[Outcome]:
    """Put back every knob, newest capture first; one that fails does not stop the others."""
    newest_first = reversed(list(knobs.items()))
    return [_put_back_named(name, captured, find, dry_run, leaves_cluster) for name, captured in newest_first]


def settle(
    save: Save | SplitSave | NamedSave,
    knobs: dict[str, Captured],
    outcomes: list[Outcome],
    found: SavedState | None = None,
) -> None:
    """Take the settled knobs out of ``knobs`` and out of the save; the save goes when nothing is left in it.

    ``found``: the save as read; one that was damaged or of an older version is written again.
    """
    settled = [outcome.knob for outcome in outcomes if outcome.status in SETTLED]
    for name in settled:
        knobs.pop(name, None)
    if not knobs:
        save.remove()
    elif found and (found.lost or found.version < SCHEMA_VERSION):
        save.replace(knobs, found.restore_limits)
    elif settled:
        save.restored(settled)
        save.close()


def put_back(knob: Knob, captured: Captured, dry_run: bool = False) -> Outcome:
    """Put one knob back by the rule above. Raises ``KnobError``."""
    present = _present(knob)
    # behind a controller the value in force may be another agent's, with ours above it, which must still be withdrawn
    is_alone = "#" not in knob.name
    number = knob.number(present)
    if is_alone and present == captured.value and number is not None:
        return Outcome(knob.name, "restored", f"is at {present}, as captured")
    if number is not None and not is_ours(knob, captured, number) and not is_nobodys(knob, captured, number):
        _, text = knob.explain(last_of_ours(knob, captured), number)
        if not text:
            detail = f"somebody else set it to {present}; it was {captured.value} before this agent"
            return Outcome(knob.name, "left", detail, "foreign writer")
    if dry_run:
        is_readable = number is not None or present == _UNREADABLE or knob.read_back() is not None
        goal = captured.to_restore
        way = f"go from {present} to {goal}" if is_readable else f"be {goal}; where it is {_UNREAD}"
        return Outcome(knob.name, "restored", f"would {way}")
    knob.restore(captured.to_restore)
    _switch_on(knob)
    return _after_restoring(knob, captured, present)


def put_back_together(
    many: ManyFiles, captured: Mapping[str, Captured], find: type_find
) -> dict[str, tuple[Outcome, int]]:
    """``put_back`` of those clock limits that are at our last value, one read before and one after all writes: the
    outcome of each, and what it is at. A limit whose file took no write is left out. ``KnobError`` where a write must
    not be done any more; some of them may be done then."""
    before = many.present(captured)
    plain = {
        name: goal
        for name, one in captured.items()
        if one.ours and before.get(name) == one.ours[-1] and one.ceiling is None and (goal := digits(one.value))
    }
    found: dict[str, tuple[Outcome, int]] = {}
    for name, after in many.write(plain).items():
        if after == plain[name]:
            found[name] = Outcome(name, "restored", f"{before[name]} to {after}"), after
        elif after != before[name]:
            found[name] = _after_restoring(find(name), captured[name], str(before[name])), after
    return found


def _after_restoring(knob: Knob, captured: Captured, before: str) -> Outcome:
    """Read the knob back: is it at its captured value, and if not, who is in the way?"""
    after, goal = knob.read_back(), captured.to_restore
    if after is None:
        return Outcome(knob.name, "restored", f"{goal}; where it was {_UNREAD}")
    first = knob.number(goal)
    if first is not None and not knob.matches(first, after):
        reason, text = knob.explain(first, after)
        if not text:
            return Outcome(knob.name, "no-effect", f"requested {goal}, still at {after}", "firmware")
        # firmware or temperature keeps it lower, but our own limit is gone
        return Outcome(knob.name, "restored", f"{goal} requested, {after} in force: {text}", reason)
    if after and first is None:
        if any(knob.matches(value, after) for value in captured.ours):
            detail = f"our value was withdrawn, and {after} is still in force: is it now another agent's channel?"
            return Outcome(knob.name, "no-effect", detail, "firmware")
        return Outcome(knob.name, "restored", f"our value was withdrawn; {after} is somebody else's and stays")
    return Outcome(knob.name, "restored", f"{before} to {goal}")


def put_to_limit(knob: Knob, captured: Captured, dry_run: bool = False) -> Outcome:
    """Put a knob to the lower of its present value and its restore limit: a node must not draw more than it was granted
    before the cluster's ledger knows (rule 4 of docs/ledger.md). Raises ``KnobError``."""
    assert captured.restore_limit is not None
    present = _present(knob)
    waits = f"{captured.value} as captured only when this node may leave its cluster"
    number = digits(present)
    if number is not None and 0 < number <= captured.restore_limit:
        if not dry_run:
            _switch_on(knob)
        return Outcome(knob.name, "held", f"stays at {present}; {waits}")
    if dry_run:
        return Outcome(knob.name, "held", f"would go from {present} to {captured.restore_limit}; {waits}")
    knob.set(captured.restore_limit)
    _switch_on(knob)
    after = knob.read_back()
    if after is not None and not knob.matches(captured.restore_limit, after):
        return Outcome(knob.name, "no-effect", f"requested {captured.restore_limit}, is at {after}", "firmware")
    return Outcome(knob.name, "held", f"{present} to {captured.restore_limit}; {waits}")


def is_ours(knob: Knob, captured: Captured, present: int) -> bool:
    """Is the hardware at a value that this agent wrote, or was about to write?"""
    limits = () if captured.restore_limit is None else (captured.restore_limit,)
    first = knob.number(captured.value) or 0
    return present == first or any(knob.matches(value, present) for value in (*captured.ours, *limits))


def is_nobodys(knob: Knob, captured: Captured, present: int) -> bool:
    """Is the hardware at a value above ours, or at "no limit", that a cap did not allow? Behind a controller it may be
    another agent's."""
    if not captured.ours or "#" in knob.name or not is_for_caps(knob.name):
        return False
    return present == 0 or present > captured.ours[-1]


def _switch_on(knob: Knob) -> None:
    """Have the limit count, where somebody has switched it off."""
    switch_on: Callable[[], None] | None = getattr(knob, "switch_on", None)
    if switch_on:
        switch_on()


def last_of_ours(knob: Knob, captured: Captured) -> int:
    """What the hardware should be at if nobody else has set it: our last value, before that the original. 0 stands for
    an original that is a released state ("disabled")."""
    return captured.ours[-1] if captured.ours else knob.number(captured.value) or 0


@contextlib.contextmanager
def deaf_to_signals() -> Iterator[None]:
    """Let SIGTERM, SIGINT and SIGHUP wait: a second Ctrl-C must not stop a restore half-way.

    Only the main thread receives Python's signals, so in other threads there is nothing to do.
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
    """The knob's present value. One that is there but cannot be read is "unreadable", which counts as ours: nothing
    shows that somebody else has set it."""
    try:
        return knob.read()
    except KnobError as error:
        if error.status == "vanished":
            raise
        return _UNREADABLE


def _put_back_named(name: str, captured: Captured, find: type_find, dry_run: bool, leaves_cluster: bool) -> Outcome:
    put = put_back if captured.restore_limit is None or leaves_cluster else put_to_limit
    try:
        return put(find(name), captured, dry_run)
    except KnobError as error:
        return Outcome(name, error.status, str(error), error.reason)
    except Exception as error:  # a defect in one knob must not leave the others moved
        return Outcome(name, "refused", f"a defect in nodectl, please report it: {error!r}")
