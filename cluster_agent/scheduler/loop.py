"""The engine's event loop, live and replayed.

A replay of a whole log takes the same steps in C (``csrc/replay.c``); a property test checks that both are equal.
"""

from __future__ import annotations

from cluster_agent.scheduler.interfaces import Clock, Kind, Machine, Scheduler


def run(scheduler: Scheduler, clock: Clock, machine: Machine) -> None:
    """Pass events to the scheduler and start what it decides, until the clock says that it is over."""
    while True:
        now_s = clock.now_s()
        events = machine.events(now_s)
        change_s = scheduler.next_change_s()
        is_change_due = change_s is not None and change_s <= now_s
        if not events and not is_change_due:
            times = [time_s for time_s in (machine.next_event_s(), change_s) if time_s is not None]
            if not clock.wait_until(min(times, default=None)):
                return
            continue
        is_pass_due = is_change_due
        has_ended = False
        for kind, job in events:
            if kind is Kind.SUBMITTED:
                is_pass_due |= scheduler.submit(now_s, job)
            elif kind is Kind.ENDED:
                scheduler.end(job)
                is_pass_due = has_ended = True
            elif kind in (Kind.CAP, Kind.ROOM):
                is_pass_due = True
            else:
                machine.expect(now_s, job, scheduler.overrun(job))
        must_react = is_change_due and scheduler.advance(now_s)
        if must_react or (has_ended and scheduler.reacts_to_ends == "before"):
            _react(scheduler, machine, now_s)
        if is_pass_due:
            for job in scheduler.decide(now_s):
                machine.start(scheduler.begins_s(now_s, job), job, scheduler.expected_end_s(job), scheduler.level(job))
        if has_ended and not must_react and scheduler.reacts_to_ends == "after":
            _react(scheduler, machine, now_s)


def _react(scheduler: Scheduler, machine: Machine, now_s: int) -> None:
    reaction = scheduler.react(now_s)
    for job in reaction.kill:
        machine.kill(now_s, job)
    for job, level in reaction.level.items():
        machine.set_level(now_s, job, level, scheduler.expected_end_s(job))
