"""The one place that moves hardware.

``apply`` takes the values that the arbiter settled and returns one outcome per knob; ``restore_all`` puts all knobs
back. Both take names and numbers and return outcomes; neither raises for what hardware or kernel refuse. So the writer
could run in a process of its own without a change for its callers.

The order inside ``apply`` is what makes it safe:

1. read every knob that is about to be moved for the first time, and save its value on the disk (fsync);
2. find knobs that somebody else has moved since our last write; they belong to the other one from then on;
3. record what is about to be written;
4. set each knob, and read it back.

If step 1 or 3 fails, nothing is written. Whenever the agent is killed, the save has what to put back
(``nodectl restore``). No limit is written above its ceiling (``nodectl.write.ceilings``).

A knob that enforces a cap never belongs to whoever raises it: it is looked at in a turn of its own and set again
(``nodectl.write.cap_guard``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from nodectl.config import Foreign
from nodectl.knobs.api import UNKNOWN, Knob, KnobError, Outcome, Raised
from nodectl.write.cap_guard import Above, CapGuard, is_for_caps
from nodectl.write.ceilings import Ceilings, under
from nodectl.write.device_names import DeviceNames, NamedSave
from nodectl.write.foreign_writers import ForeignRule
from nodectl.write.many_files import ManyFiles, as_written
from nodectl.write.places import SavePlaces, open_save
from nodectl.write.restore import (
    SETTLED,
    Restoration,
    deaf_to_signals,
    is_ours,
    last_of_ours,
    put_back,
    put_back_all,
    put_back_together,
    read_node,
    recipe_of,
    restore_node,
    settle,
)
from nodectl.write.saves import Captured, SaveError
from nodectl.write.setting import Setting
from pmu.driver_values import digits
from pmu.ports import Clock

CHECKS_PER_APPLY = 2
"""Ours: unchanged knobs that are read again at each ``apply``, in turn, so that a foreign writer is found even while
nothing is written. It costs two file reads."""

ATTEMPTS = 3
"""Ours: how often a value above the cap is overwritten at once, where somebody sets it between our write and our
look."""

YIELD = Foreign()

_TAKEN = "another process has put this node's knobs back while this one was stopped; start it again"


class Writer:
    """Writes knobs, and nobody else does. Also a context manager: ``start``, and restore at the end in any case."""

    def __init__(
        self,
        knobs: Sequence[Knob],
        saves: str | SavePlaces,
        boot_id: str,
        clock: Clock,
        is_current: Callable[[], bool] = lambda: True,
        may_raise: Sequence[str] = (),
        foreign: Foreign = YIELD,
        many: ManyFiles | None = None,
        root: str = "",
    ) -> None:
        """``saves``: where what the knobs were is saved. ``is_current`` turns false when another process has taken the
        node: the restorer, while this one was stopped. Then nothing is written any more. ``may_raise``: patterns of
        knobs that have no ceiling of the site's. ``foreign``: what to do about other programs that move a knob.
        ``many``: writes clock limits together; without it knobs are written one by one. ``root``: the directory that
        the paths of knobs are below."""
        self._settings = {knob.name: Setting(knob, Outcome(knob.name, "unchanged")) for knob in knobs}
        self._places = SavePlaces(saves) if isinstance(saves, str) else saves
        self._names = DeviceNames(knobs)
        save = open_save(self._places, boot_id, lambda name: recipe_of(name, self._find))
        self._save = NamedSave(save, self._names)
        self._is_current = is_current
        self._boot_id = boot_id
        self._clock, self._many = clock, many
        self._captured: dict[str, Captured] = {}
        self._restore_limits: dict[str, int] = {}
        self._round: Iterator[str] = iter(())
        self._ceilings = Ceilings(knobs, may_raise)
        self._has_unsaved_ceiling = False
        self._foreign = ForeignRule(foreign)
        self.guard = CapGuard(knobs, root)
        self._raised: dict[str, Raised] = {}
        self._seen: dict[str, Outcome] = {}  # what looks at caps have found since the last ``apply``

    def start(self) -> Restoration:
        """Restore what an earlier run of this boot left moved. Where that fails the earlier capture stays, since it is
        the older one and may be the true original. ``SaveError`` if the save is unusable; then nothing may be
        written."""
        result = restore_node(self._places, self._boot_id, self._find)
        state = read_node(self._places, self._boot_id)
        self._captured = self._names.all_here(state.knobs)
        self._restore_limits = self._names.all_here(state.restore_limits)
        if self._names.are_old(state.knobs):
            self._save.rewrite(self._captured, self._restore_limits)
        self._ceilings.start(self._captured)
        self.guard.start()
        result.remarks += self._ceilings.below_hardware()
        return result

    @property
    def ceilings(self) -> Ceilings:
        """How high each limit may be written."""
        return self._ceilings

    @property
    def captured(self) -> Mapping[str, str]:
        """Knobs that have been moved, and what they were before."""
        return {name: captured.value for name, captured in self._captured.items()}

    @property
    def restore_limits(self) -> Mapping[str, int]:
        """The values of the last ``limit_restores``, by this run or by an earlier one whose knobs are still limited."""
        is_limited = any(captured.restore_limit is not None for captured in self._captured.values())
        return self._restore_limits if is_limited else {}

    def limit_restores(self, values: Mapping[str, int]) -> None:
        """On restore use min(present value, limit) instead of the captured value for these knobs. An empty mapping
        cancels this: the node may leave its cluster. On return the limits are on the disk; ``SaveError`` otherwise."""
        values = under(self._ceilings.values, values)
        if values == self._restore_limits:
            return
        if not self._is_current():
            raise SaveError(_TAKEN)
        self._record_applied_limits(values)
        self._save.limit_restores(values)
        self._restore_limits = dict(values)
        for name, captured in self._captured.items():
            captured.restore_limit = values.get(name)

    def apply(self, settings: Mapping[str, int], clocks_too: bool = False) -> list[Outcome]:
        """Bring knobs to ``settings`` (``{name: value}``; 0 puts the knob back to its captured value). ``clocks_too``:
        clock limits enforce a cap now.

        Returns one outcome per name, in order. Never raises for a refusal; a knob in trouble is left alone for a while
        (its last outcome is repeated) unless another value is requested.
        """
        if not self._is_current():
            return [Outcome(name, "refused", _TAKEN) for name in settings]
        now_ns = self._clock.now_ns()
        settings = under(self._ceilings.values, settings)
        self.guard.follow(settings, clocks_too)
        outcomes: dict[str, Outcome] = {}
        changes: dict[str, int] = {}
        for name, value in settings.items():
            setting = self._settings.get(name)
            if setting is None:
                outcomes[name] = Outcome(name, "unchanged" if value == 0 else "vanished", "this node has no such knob")
            elif setting.trouble is None and value == setting.written:
                outcomes[name] = setting.at_rest
            elif setting.trouble and now_ns < setting.retry_ns and setting.waits_with(value, self.guard.guards(name)):
                outcomes[name] = setting.trouble
            else:
                outcomes[name] = setting.at_rest
                changes[name] = value
        outcomes |= self._noted(self._carry_out(changes), changes, now_ns)
        for outcome in self._check_some(changes):
            outcomes[outcome.knob] = self._take_note(outcome, self._settings[outcome.knob].written, now_ns)
        if self.guard.left_ns(now_ns) == 0:
            self.look_at_caps()
        if self._seen:
            outcomes |= self._seen
            self._seen = {}
        return list(outcomes.values())

    def look_at_caps(self) -> None:
        """Look at every knob that enforces a cap, and set those again that allow more. What is found is in the outcomes
        of the next ``apply``."""
        if not self._is_current():
            return
        now_ns = self._clock.now_ns()
        self.guard.hear()
        known = self._many.present(self.guard.goals) if self._many else {}
        above, below = self.guard.look(now_ns, self._ceilings.values, known)
        for one in above:
            if one.knob in self._captured and self._is_raised(self._settings[one.knob], one):
                self._seen[one.knob] = self._take_note(self._set_again(one), one.goal, now_ns)
        strict = [name for name in below if name in self._captured and self._settings[name].trouble is None]
        for outcome in self._left(self._find_foreign(strict, are_at_rest=True)) if strict else ():
            self._seen[outcome.knob] = self._take_note(outcome, self._settings[outcome.knob].written, now_ns)

    def take_raised(self) -> dict[str, Raised]:
        """The knobs that somebody has set above the cap that they enforce, since the last call."""
        found, self._raised = self._raised, {}
        return found

    def restore(self, names: Iterable[str]) -> list[Outcome]:
        """Put some knobs back, newest capture first, for example where a sensor failed. They may be moved again."""
        wanted = set(names)
        return self._put_back({name: captured for name, captured in self._captured.items() if name in wanted})

    def restore_all(self) -> list[Outcome]:
        """Put every knob back, newest capture first. Doing it twice does nothing more; signals wait until it is done.

        What cannot be put back now (busy, vanished) stays in the save for the next start or ``nodectl restore``.
        """
        return self._put_back(self._captured)

    def close(self) -> None:
        """Release the save file. Knobs are not touched: ``restore_all`` comes first."""
        self._save.close()
        self.guard.close()

    def __enter__(self) -> Writer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.restore_all()
        finally:
            self.close()

    def _find(self, name: str) -> Knob:
        name = self._names.here(name)
        if name not in self._settings:
            raise KnobError(f"this node has no knob {name} now", "vanished")
        return self._settings[name].knob

    def _carry_out(self, changes: Mapping[str, int]) -> list[Outcome]:
        """Steps 1 to 4 for all knobs that are to change."""
        releases = [name for name, value in changes.items() if value == 0]
        writes = {name: value for name, value in changes.items() if value != 0}
        together = self._release_together(releases)
        outcomes = [together.get(name) or self._release(name) for name in releases]
        outcomes += self._capture([name for name in writes if name not in self._captured])
        outcomes += self._left(self._find_foreign([name for name in writes if name in self._captured]))
        for outcome in outcomes:
            writes.pop(outcome.knob, None)
        return outcomes + self._record_and_write(writes) if writes else outcomes

    def _record_and_write(self, writes: Mapping[str, int]) -> list[Outcome]:
        """Steps 3 and 4: nothing is written that the save does not have."""
        writes = under(self._ceilings.values, writes)
        try:
            self._save_ceilings()
            self._save.wrote(writes)
        except SaveError as error:
            return [Outcome(name, "refused", str(error)) for name in writes]
        for name, value in writes.items():
            self._captured[name].note(value)
        together = self._write_together(writes)
        if len(together) < len(writes):  # somebody may have set a stricter limit meanwhile
            writes = under(self._ceilings.values, writes)
        outcomes = [together.get(name) or self._write(self._settings[name], value) for name, value in writes.items()]
        if self._foreign.is_setting_again:
            outcomes = [self._foreign.done(outcome) for outcome in outcomes]
        with contextlib.suppress(SaveError):  # the longer file is as good; the next append reports what is wrong
            self._save.compact(self._captured, self._restore_limits)
        return outcomes

    def _capture(self, names: Sequence[str]) -> list[Outcome]:
        """Read captured values and put them on the disk; outcomes for the knobs where that failed."""
        failed: list[Outcome] = []
        values: dict[str, str] = {}
        for name in names:
            setting = self._settings[name]
            try:
                values[name] = setting.knob.read()
                setting.present = setting.knob.number(values[name])
            except KnobError as error:
                failed.append(Outcome(name, error.status, str(error), error.reason))
        if values:
            try:
                self._save.capture(values)
            except SaveError as error:
                return failed + [Outcome(name, "refused", str(error)) for name in values]
            limits = self._restore_limits
            self._captured |= {name: Captured(value, restore_limit=limits.get(name)) for name, value in values.items()}
            for name, value in values.items():
                self._ceilings.found(name, value)
                self._tighten(name)
        return failed

    def _find_foreign(self, names: Iterable[str], are_at_rest: bool = False) -> list[Outcome]:
        """Which of these captured knobs are no longer at our value? Only those get an outcome. A knob that somebody has
        put back to its captured value may be set again, but ``are_at_rest`` nobody would notice: so that is foreign."""
        outcomes: list[Outcome] = []
        names = list(names)
        known = self._many.present(names) if self._many else {}
        for name in names:
            setting, captured = self._settings[name], self._captured[name]
            if captured.ours and known.get(name) == captured.ours[-1]:
                setting.present = known[name]
                continue
            try:
                found = self._foreign_value(setting, captured, are_at_rest)
            except KnobError as error:
                found = Outcome(name, error.status, str(error), error.reason)
            if found:
                outcomes.append(found)
        return outcomes

    def _foreign_value(self, setting: Setting, captured: Captured, are_at_rest: bool) -> Outcome | None:
        """Read one of these knobs; an outcome if somebody else has set it. ``KnobError`` if it cannot be read."""
        knob, before = setting.knob, setting.present
        present = setting.present = knob.read_back()
        if present is None or (captured.ours and present == captured.ours[-1]):
            return None
        if self._is_back(setting, captured, present):
            return None
        if self.guard.is_above(knob.name, present):  # nobody's: it is overwritten now, or at the next look
            self._note_above(setting, captured, present)
            return None
        is_first = are_at_rest and present == knob.number(captured.value)
        is_put_back = is_first and not knob.matches(setting.written, present)
        is_lowered = self._is_lowered(knob, captured, before, present)
        if is_ours(knob, captured, present) and not is_put_back and not is_lowered:
            return None
        _, text = knob.explain(last_of_ours(knob, captured), present)
        if text:  # firmware or temperature, and nobody
            return None
        self._note_foreign(knob.name, present)
        detail = f"somebody else set it to {knob.shown(present)}; it is left to them"
        if is_put_back:
            detail = f"somebody else put it back to {knob.shown(present)}; it is set again later"
        return Outcome(knob.name, "foreign", detail, "foreign writer")

    def _is_back(self, setting: Setting, captured: Captured, present: int) -> bool:
        """Was the knob gone at the last look? What it is at now is not somebody's, but what its device begins with. A
        limit that is lower than the captured one stays its ceiling."""
        if setting.trouble is None or setting.trouble.status != "vanished":
            return False
        if not is_ours(setting.knob, captured, present):
            self._note_foreign(setting.knob.name, present)
        return True

    def _is_lowered(self, knob: Knob, captured: Captured, before: int | None, present: int) -> bool:
        """Has somebody lowered this limit since the last look, to what happens to be an earlier value of ours?"""
        if not before or present >= before or not self._ceilings.is_limit(knob.name):
            return False
        return not knob.matches(last_of_ours(knob, captured), present)

    def _note_above(self, setting: Setting, captured: Captured, present: int) -> None:
        """A knob that is about to be set under a cap allows more. Somebody may have raised it, or have set a limit that
        is above the new cap and was below the one before."""
        knob = setting.knob
        one = Above(knob.name, 0, present, f"set it to {knob.shown(present) if present else 'no limit'}")
        if self._is_raised(setting, one):
            self._note_raised(one)
        elif not is_ours(knob, captured, present):
            self._note_foreign(knob.name, present)  # it may still be lower than what the site had

    @staticmethod
    def _is_raised(setting: Setting, above: Above) -> bool:
        """Has somebody raised it? It may also be at a value of ours that a write which failed was to lower."""
        if not setting.written:
            return False
        if above.companions or above.present == 0:
            return True
        return above.present > setting.written and not setting.knob.matches(setting.written, above.present)

    def _note_raised(self, above: Above) -> None:
        """For the outcome of the write that follows, and for whoever counts what the knob allowed."""
        knob, captured = self._settings[above.knob].knob, self._captured[above.knob]
        if above.present and not is_ours(knob, captured, above.present):
            self._note_foreign(above.knob, above.present)  # it may still be lower than what the site had
        by = self.guard.who(above.knob)
        highest = self._ceilings.highest(above.knob) or 0
        present = above.present if is_for_caps(above.knob) else 0  # a clock allows no watts that are known
        self._raised[above.knob] = Raised(min(present, highest or present) if present else highest, by)
        subject = "somebody (unknown)" if by == UNKNOWN else by
        self._foreign.raised(above.knob, by, f"ALARM: {subject} {above.what}, above the cap")

    def _set_again(self, above: Above) -> Outcome:
        """Put a knob back under its cap. A value that the save has needs no room on the disk."""
        self._note_raised(above)
        name, goal = above.knob, above.goal
        try:
            self.guard.put_back(above)
        except KnobError as error:
            return self._foreign.done(Outcome(name, error.status, str(error), error.reason))
        if self._captured[name].ours[-1:] == (goal,):
            return self._foreign.done(self._write(self._settings[name], goal))
        return self._record_and_write({name: goal})[0]

    def _note_foreign(self, name: str, value: int) -> None:
        """Somebody else has set the knob: the value of a limit is its ceiling now, if it is the lowest so far."""
        if self._ceilings.note(name, value):
            self._tighten(name)
            with contextlib.suppress(SaveError):  # until it is saved, nothing is written
                self._save_ceilings()

    def _tighten(self, name: str) -> None:
        """Restore the knob to at most its ceiling."""
        captured = self._captured[name]
        ceiling = self._ceilings.below(name, captured.value)
        if ceiling is None or ceiling == captured.ceiling:
            return
        captured.ceiling = ceiling
        if captured.restore_limit is not None:
            captured.restore_limit = min(captured.restore_limit, ceiling)
            self._restore_limits = {**self._restore_limits, name: captured.restore_limit}
        self._has_unsaved_ceiling = True

    def _look_for_ceilings(self, names: Iterable[str]) -> None:
        """Before limits are put back: what somebody else has set since the last look counts as well."""
        self._find_foreign([name for name in names if self._ceilings.is_limit(name)])

    def _save_ceilings(self) -> None:
        """Record new ceilings, for a restore by another process. ``SaveError``: they are not on the disk."""
        if self._has_unsaved_ceiling:
            self._save.rewrite(self._captured, self._restore_limits)
            self._has_unsaved_ceiling = False

    def _left(self, found: Sequence[Outcome]) -> list[Outcome]:
        """The outcomes without those of knobs that somebody else has moved and that are to be set again."""
        now_ns = self._clock.now_ns()
        return [left for outcome in found if (left := self._foreign.left(outcome, now_ns))]

    def _record_applied_limits(self, values: Mapping[str, int]) -> None:
        """A restore may have put a knob to its restore limit. That value counts as ours only while it is the limit, so
        before another limit replaces it, record it as written by us where the knob is still at it."""
        put: dict[str, int] = {}
        for name, captured in self._captured.items():
            limit = captured.restore_limit
            if limit is not None and limit != values.get(name) and name in self._settings:
                with contextlib.suppress(KnobError):
                    present = self._settings[name].knob.read_back()
                    if present is not None and self._settings[name].knob.matches(limit, present):
                        put[name] = limit
        if put:
            self._save.wrote(put)
            for name, value in put.items():
                self._captured[name].note(value)

    def _write_together(self, writes: Mapping[str, int]) -> dict[str, Outcome]:
        """Set the clock limits that are not raised above their captured value. Those that then read as they were set
        get an outcome, and those that somebody else has set meanwhile; the others are set again, one by one."""
        if not self._many:
            return {}
        captured = self._captured
        highest: dict[str, int] = {}  # few, however many knobs there are
        lower: dict[str, int] = {}
        for name, value in writes.items():
            text = captured[name].value
            most = highest.get(text)
            if most is None:
                most = highest[text] = digits(text) or 0
            if value <= most:
                lower[name] = value
        try:
            present = self._many.write(lower)
        except KnobError:
            return {}
        outcomes: dict[str, Outcome] = {}
        settings, is_at = self._settings, present.get
        for name, value in lower.items():
            if is_at(name) == value:
                setting = settings[name]
                setting.written = setting.present = value
                outcomes[name] = as_written(name, value)
        return outcomes if len(outcomes) == len(lower) else outcomes | self._set_meanwhile(lower, present, outcomes)

    def _set_meanwhile(
        self, writes: Mapping[str, int], present: Mapping[str, int], taken: Collection[str]
    ) -> dict[str, Outcome]:
        """Which clock limits has somebody else set between our write and our look? Those whose requested value another
        one, captured at the same value, took as it was (``taken``): it was not the driver that rounded it."""
        found: list[Outcome] = []
        exact = {(self._captured[name].value, writes[name]) for name in taken}
        for name, value in writes.items():
            setting = self._settings[name]
            is_alike = name in present and (self._captured[name].value, value) in exact
            if name in taken or not is_alike or present[name] == setting.present:  # then the long way finds out why
                continue
            if self.guard.is_above(name, present[name]):
                continue  # it is set again
            with contextlib.suppress(KnobError):
                if not setting.knob.explain(value, present[name])[1]:
                    setting.present = present[name]
                    self._note_foreign(name, present[name])
                    detail = f"somebody else set it to {setting.knob.shown(present[name])}; it is left to them"
                    found.append(Outcome(name, "foreign", detail, "foreign writer"))
        return {outcome.knob: outcome for outcome in self._left(found)}

    def _write(self, setting: Setting, value: int) -> Outcome:
        """Set one knob and read it back."""
        knob, before = setting.knob, setting.present
        if not self._is_current():  # stopped since the beginning of this apply
            return Outcome(knob.name, "refused", _TAKEN)
        try:
            present = self._put(setting, value)
            if present is None or knob.matches(value, present):
                setting.written = value
                reason, text = knob.overruled(value)
                if text:
                    return Outcome(knob.name, "no-effect", f"is at {knob.shown(value)}, but {text}", reason)
                return Outcome(knob.name, "written", str(value))
            reason, text = knob.explain(value, present)
        except KnobError as error:
            return Outcome(knob.name, error.status, str(error), error.reason)
        above = Above(knob.name, value, present, f"sets it to {knob.shown(present)} again and again")
        if self.guard.is_above(knob.name, present) and (present != before or self._is_raised(setting, above)):
            self._note_raised(above)
            detail = f"requested {knob.shown(value)}, is at {knob.shown(present)}"
            return self._foreign.done(Outcome(knob.name, "no-effect", detail, "foreign writer"))
        self._captured[knob.name].note(present)
        with contextlib.suppress(SaveError):  # worth recording, but the hardware is at it already
            self._save.wrote({knob.name: present})
        if not text and present == before:
            reason, text = "firmware", "the write was accepted and changed nothing"
        elif not text:
            reason, text = "foreign writer", "somebody else wrote at the same time"
        detail = f"requested {knob.shown(value)}, is at {present}: {text}"
        return Outcome(knob.name, "no-effect", detail, reason)

    def _put(self, setting: Setting, value: int) -> int | None:
        """Set a knob and return what it is at then. One that enforces a cap is set again at once where it is above."""
        knob = setting.knob
        for _ in range(ATTEMPTS):
            knob.set(value)
            present = setting.present = knob.read_back()
            if present is None or present == value or not self.guard.is_above(knob.name, present):
                break
        return present

    def _release_together(self, names: Iterable[str]) -> dict[str, Outcome]:
        """Put back those clock limits for which nothing speaks against it; the others go back one by one."""
        captured = {name: self._captured[name] for name in names if name in self._captured}
        if not self._many or not captured:
            return {}
        try:
            found = put_back_together(self._many, captured, self._find)
        except KnobError:
            return {}
        for name, (outcome, present) in found.items():
            setting = self._settings[name]
            setting.present = present
            if outcome.status == "restored":
                setting.written = 0
        return {name: outcome for name, (outcome, _) in found.items()}

    def _release(self, name: str) -> Outcome:
        """Put the knob back to its captured value. The capture stays: the next write needs no new one."""
        captured = self._captured.get(name)
        setting = self._settings[name]
        if captured is None:  # it is not at a value of ours: only its trouble ends
            return setting.at_rest
        self._look_for_ceilings([name])
        try:
            outcome = put_back(setting.knob, captured)
            setting.present = setting.knob.read_back()
        except KnobError as error:
            return Outcome(name, error.status, str(error), error.reason)
        if outcome.status == "left":
            return Outcome(name, "foreign", outcome.detail, "foreign writer")
        if outcome.status == "restored":
            setting.written = 0
        return outcome

    def _put_back(self, captured: Mapping[str, Captured]) -> list[Outcome]:
        if not captured or not self._is_current():
            return []
        with deaf_to_signals():
            self.guard.release(captured)
            self._look_for_ceilings(captured)
            outcomes = put_back_all(captured, self._find)
            for outcome in outcomes:
                setting = self._settings.get(outcome.knob)
                if setting and outcome.status in SETTLED:
                    self._forget(setting, outcome)
                elif setting:  # it stays captured, and what it is at now is what the next look compares with
                    setting.present = None
                    with contextlib.suppress(KnobError):
                        setting.present = setting.knob.read_back()
            with contextlib.suppress(SaveError):  # the knobs are back; a save that remains does no harm
                settle(self._save, self._captured, outcomes)
        return outcomes

    def _forget(self, setting: Setting, outcome: Outcome) -> None:
        """A restored knob may be moved again; one that was left to somebody else stays theirs."""
        setting.is_put_back()
        if outcome.status == "left":
            setting.is_theirs(outcome.detail)

    def _check_some(self, changes: Mapping[str, int]) -> list[Outcome]:
        """Read again a few knobs that are at a value of ours and do not change now, in turn. Those that enforce a cap
        have a turn of their own."""
        names: list[str] = []
        for _ in range(min(CHECKS_PER_APPLY, len(self._captured))):
            name = next(self._round, None)
            if name is None:
                self._round = iter(list(self._captured))
                name = next(self._round)
            setting = self._settings.get(name)
            is_quiet = setting and setting.written and setting.trouble is None and not self.guard.guards(name)
            if is_quiet and name not in changes and name in self._captured:
                names.append(name)
        found = self._find_foreign(names, are_at_rest=True)
        left = self._left(found)
        again = {one.knob for one in found} - {one.knob for one in left}
        writes = {name: self._settings[name].written for name in names if name in again}
        return left + self._record_and_write(writes) if writes else left

    def _noted(self, outcomes: Iterable[Outcome], values: Mapping[str, int], now_ns: int) -> dict[str, Outcome]:
        """Of many at once; what was written without trouble needs no note."""
        for outcome in outcomes:
            if self._settings[outcome.knob].trouble or outcome.status != "written":
                self._take_note(outcome, values[outcome.knob], now_ns)
        return {outcome.knob: outcome for outcome in outcomes}

    def _take_note(self, outcome: Outcome, value: int, now_ns: int) -> Outcome:
        return self._settings[outcome.knob].take_note(outcome, value, now_ns, self.guard.guards(outcome.knob))
