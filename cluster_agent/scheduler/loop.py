"""The engine's event loop, live and replayed.

A replay of a whole log takes the same steps in C (``csrc/replay/replay.c``); a property test checks that both are
equal.
"""

from __future__ import annotations

from collections.abc import Sequence

from cluster_agent.scheduler.interfaces import Clock, Event, Kind, Machine, Scheduler


def run(scheduler: Scheduler, clock: Clock, machine: Machine) -> None:
    """Pass events to the scheduler and start what it decides, until the clock says that it is over."""
    while True:
        now_s = clock.now_s()
        events = machine.events(now_s)
        change_s = scheduler.next_change_s()
        is_change_due = _is_change_due(now_s, change_s, events)
        if not events and not is_change_due:
            if not _wait(clock, machine.next_event_s(), change_s):
                return
            continue
        is_pass_due, has_ended = _report(scheduler, machine, now_s, events)
        # a policy reacts once per instant: when the plan changes, else to ends, before or after the pass
        has_changed = is_change_due and scheduler.advance(now_s)
        if has_changed or (has_ended and scheduler.reacts_to_ends == "before"):
            _react(scheduler, machine, now_s)
        if is_pass_due or is_change_due:
            _start(scheduler, machine, now_s)
        if has_ended and not has_changed and scheduler.reacts_to_ends == "after":
            _react(scheduler, machine, now_s)


def _is_change_due(now_s: int, change_s: int | None, events: Sequence[Event]) -> bool:
    """Not yet where estimates that are corrected are all that happens: whatever else is due comes after them."""
    are_corrections = bool(events) and all(kind is Kind.OVERRUN for kind, _ in events)
    return change_s is not None and change_s <= now_s and not are_corrections


def _wait(clock: Clock, *times_s: int | None) -> bool:
    """Until the first of these; None: never. False: the clock says that it is over."""
    return clock.wait_until(min((time_s for time_s in times_s if time_s is not None), default=None))


def _start(scheduler: Scheduler, machine: Machine, now_s: int) -> None:
    for job in scheduler.decide(now_s):
        machine.start(scheduler.begins_s(now_s, job), job, scheduler.expected_end_s(job), scheduler.level(job))


def _report(scheduler: Scheduler, machine: Machine, now_s: int, events: Sequence[Event]) -> tuple[bool, bool]:
    """Report events to the scheduler: is a pass due, and has a job ended?"""
    is_pass_due = has_ended = False
    for kind, job in events:
        if kind is Kind.SUBMITTED:
            is_pass_due |= scheduler.submit(now_s, job)
        elif kind is Kind.ENDED:
            scheduler.end(job)
            is_pass_due = has_ended = True
        elif kind in (Kind.CAP, Kind.ROOM):
            is_pass_due = True
        elif kind is Kind.RECORDED:
            scheduler.carry_out(now_s, job)
            machine.start(now_s, job, scheduler.expected_end_s(job), scheduler.level(job))
        else:
            machine.expect(now_s, job, scheduler.overrun(job))
    return is_pass_due, has_ended


def _react(scheduler: Scheduler, machine: Machine, now_s: int) -> None:
    reaction = scheduler.react(now_s)
    for job in reaction.kill:
        machine.kill(now_s, job)
    for job, level in reaction.level.items():
        machine.set_level(now_s, job, level, scheduler.expected_end_s(job))
