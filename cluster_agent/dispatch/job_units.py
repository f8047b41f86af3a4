"""A job on its nodes: the lead has it, collects the others when its slot begins, and hears of the end of every unit.

The journal entry *started* of the lead is the one decision, as for a commit. All messages come again until they are
answered, so any of them may be lost.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from cluster_agent.dispatch import messages as m
from cluster_agent.dispatch.fitting_index import Need, Window, fittings
from cluster_agent.dispatch.node_state import RUNS, NodeState, Step, drop, put, void

# --- the lead of a job


def start(state: NodeState, message: m.Start, now_us: int) -> Step:
    """The one decision: from this entry on the node answers for the job."""
    job, attempt, owner = message.job, message.attempt, m.owner_of(message.job)
    closing = next((row for row in state.closing if row.job == job and row.attempt == attempt), None)
    if closing is not None:
        return state, [_report(state, closing)]
    row = state.row(job, attempt)
    if row is not None and row.phase != "accepted":
        return state, [m.Send(owner, m.Started(job, attempt))]
    why = _not_startable(state, row, job, now_us)
    if why or row is None:
        state, orders = (state, []) if row is None else drop(state, row)
        return state, [*orders, m.Send(owner, m.Refused(job, attempt, state.node, why, True))]
    row = replace(row, phase="started", lead=state.node, members=message.members)
    state, orders = put(state, row)
    for earlier in [one for one in state.rows if one.job == job and one.attempt != attempt]:
        state, more = drop(state, earlier)
        orders += more
    return state, [*orders, due_at_start(state, row, now_us), m.Send(owner, m.Started(job, attempt))]


def _not_startable(state: NodeState, row: m.Reservation | None, job: int, now_us: int) -> str:
    if row is None:
        return "its reservation has lapsed"
    if row.first * state.rules.slot_us < now_us:
        return "its start is over: the task manager was late"
    has_begun = any(one.job == job and one.phase in RUNS for one in state.rows)
    return "the job has begun in an earlier attempt" if has_begun else ""


def due_at_start(state: NodeState, row: m.Reservation, now_us: int) -> m.Later:
    """When the reservation is looked at again: its start, or the end of its grace."""
    begin_us, rules = row.first * state.rules.slot_us, state.rules
    if row.phase == "started":
        return m.Later(max(begin_us, now_us), m.Due(row.job, row.attempt, "begin", rules.retry_us))
    return m.Later(max(begin_us + rules.grace_us, now_us), m.Due(row.job, row.attempt, "lapse"))


def begin(state: NodeState, due: m.Due, now_us: int) -> Step:
    """The slot has come: collect the others, and again until all are there or the grace is over."""
    row = state.row(due.job, due.attempt)
    if row is None or row.phase != "started":
        return state, []
    why, missing = _no_room(state, row, now_us), _missing(state, row)
    if now_us >= row.first * state.rules.slot_us + state.rules.grace_us:
        late = f"node {missing[0]} did not come" if missing else f"node {state.node} was down when its start came"
        return _return(state, row, why or late, now_us)
    if not (why or missing):
        return _run(state, row, now_us)
    orders: list[m.Order] = [m.Send(node, m.Join(row.job, row.attempt, state.node)) for node in missing]
    return state, [*orders, _again(state, due, now_us)]


def _missing(state: NodeState, row: m.Reservation) -> list[m.Address]:
    there = {node for job, node in state.joined if job == row.job}
    return [node for node in row.members if node != state.node and node not in there]


def _again(state: NodeState, due: m.Due, now_us: int) -> m.Later:
    wait_us = min(2 * due.wait_us, state.rules.slowest_us)
    return m.Later(now_us + due.wait_us, replace(due, wait_us=wait_us))


def _no_room(state: NodeState, row: m.Reservation, now_us: int) -> str:
    """Why its unit cannot run now, by what does run here; "": it can."""
    cores, mw = state.running()
    if cores + row.need.cores > state.has.cores:
        return f"node {state.node} has {state.has.cores} cores and promised {cores + row.need.cores}: a job too many"
    if mw + row.need.mw > state.cap_mw(now_us):
        return f"node {state.node} may draw {state.cap_mw(now_us) / 1000:.0f} W for jobs now, and it needs more"
    return ""


def _run(state: NodeState, row: m.Reservation, now_us: int) -> Step:
    row = replace(row, phase="running")
    state, orders = put(state, row)
    there = tuple(one for one in state.joined if one[0] != row.job)
    orders.append(m.Run(row))
    if len(row.members) > 1:
        orders.append(m.Later(_over_us(state, row), m.Due(row.job, row.attempt, "over")))
    return _members_due(replace(state, joined=there), _members(state, row), now_us, orders)


def goes_on(state: NodeState, row: m.Reservation, now_us: int) -> list[m.Order]:
    """After a restart of the manager alone, while the unit's program may live: the row's timers."""
    if row.lead != state.node:
        return [m.Later(_over_us(state, row), m.Due(row.job, row.attempt, "lapse"))]
    over_due = m.Later(_over_us(state, row), m.Due(row.job, row.attempt, "over"))
    return [*([m.Stop(row)] if row.why else []), over_due, m.Later(now_us, _members(state, row))]


def _members(state: NodeState, row: m.Reservation) -> m.Due:
    return m.Due(row.job, row.attempt, "members", state.rules.retry_us)


def members_due(state: NodeState, due: m.Due, now_us: int) -> Step:
    """Have the other units begin, or stop, until all have."""
    return _members_due(state, due, now_us, [])


def _members_due(state: NodeState, due: m.Due, now_us: int, orders: list[m.Order]) -> Step:
    row = state.row(due.job, due.attempt)
    if row is None or row.phase != "running" or row.lead != state.node:
        return state, orders
    stops = bool(row.why)
    done = state.left if stops else state.begun | state.left
    missing = [node for node in row.members if node != state.node and (row.job, node) not in done]
    if not missing:
        return state, orders
    order = m.Begin(row.job, row.attempt, row.members, stops)
    return state, [*orders, *(m.Send(node, order) for node in missing), _again(state, due, now_us)]


def begun(state: NodeState, message: m.Begun, now_us: int) -> Step:
    """To the lead."""
    return replace(state, begun=state.begun | {(message.job, message.node)}), []


def joined(state: NodeState, message: m.Joined, now_us: int) -> Step:
    """To the lead: with the last one the job runs."""
    row, one = state.row(message.job, message.attempt), (message.job, message.node)
    if row is None or row.phase != "started" or one in state.joined or message.node not in row.members:
        return state, []
    state = replace(state, joined=(*state.joined, one))
    return (state, []) if _missing(state, row) or _no_room(state, row, now_us) else _run(state, row, now_us)


def not_joined(state: NodeState, message: m.NotJoined, now_us: int) -> Step:
    """Room may still come: a job there may end in these seconds. A reservation that has lapsed does not come back."""
    row = state.row(message.job, message.attempt)
    if row is None or row.phase != "started":
        return state, []
    if message.final:
        return _return(state, row, message.why, now_us)
    return state, [m.Note(f"job {row.job} waits for its start: {message.why}")]


def _return(state: NodeState, row: m.Reservation, why: str, now_us: int) -> Step:
    """The job was not run: its task manager needs to find another start. Other attempts on this node are void, so that
    no word from before can start it."""
    orders: list[m.Order] = [m.Note(f"job {row.job} is returned, not run: {why}")]
    for other in [one for one in state.rows if one.job == row.job and one.attempt != row.attempt]:
        state, more = drop(state, other)
        orders += more
    state, more = close(state, replace(row, why=why), "returned", now_us)
    return state, [*orders, *more]


def program_ended(state: NodeState, message: m.ProgramEnded, now_us: int) -> Step:
    """A node's own unit is over: the lead waits for the others, another node is free."""
    row = state.row(message.job, message.attempt)
    if row is None or row.phase not in RUNS:
        return state, []
    if row.lead == state.node:
        return _unit_over(state, row, state.node, message.why, now_us)
    state, orders = close(state, replace(row, why=message.why), "left", now_us)
    return state, [*orders, *hints(state, now_us)]


def left(state: NodeState, message: m.Left, now_us: int) -> Step:
    """To the lead."""
    row = state.row(message.job, message.attempt)
    if row is None:
        return state, [m.Send(message.node, m.End(message.job, message.attempt))]
    if row.phase != "running":
        return state, []
    return _unit_over(state, row, message.node, message.why, now_us)


def _unit_over(state: NodeState, row: m.Reservation, node: m.Address, why: str, now_us: int) -> Step:
    """One that fails ends the others; with the last one the job is over."""
    state = replace(state, left=state.left | {(row.job, node)})
    if all((row.job, one) in state.left for one in row.members):
        state, orders = close(state, replace(row, why=row.why or why), "done", now_us)
        return state, [*orders, *hints(state, now_us)]
    return _end_units(state, row, why, now_us) if why and not row.why else (state, [])


def _end_units(state: NodeState, row: m.Reservation, why: str, now_us: int) -> Step:
    """All that still run. It is in the journal, so that a manager that restarts goes on with it."""
    row = replace(row, why=why)
    state, orders = put(state, row)
    if (row.job, state.node) not in state.left:
        orders.append(m.Stop(row))
    return _members_due(state, _members(state, row), now_us, orders)


def cancel(state: NodeState, message: m.Cancel, now_us: int) -> Step:
    """To the lead, which ends the job whatever it has come to; the task manager hears of its end as of any other."""
    orders: list[m.Order] = []
    for row in [one for one in state.rows if one.job == message.job and one.phase == "accepted"]:
        state, more = drop(state, row)
        orders += more
    led = next((one for one in state.rows if one.job == message.job and one.lead == state.node), None)
    if led is None:
        over = next((one for one in state.closing if one.job == message.job), None)
        why = "it has no such job"
        refused = m.Send(m.owner_of(message.job), m.Refused(message.job, message.attempt, state.node, why, True))
        return state, [*orders, _report(state, over) if over is not None else refused]
    if led.phase == "started":
        state, more = close(state, replace(led, why=m.cancelled_by(message.by)), "done", now_us)
        return state, [*orders, *more, *hints(state, now_us)]
    state, more = (state, []) if led.why else _end_units(state, led, m.cancelled_by(message.by), now_us)
    return state, [*orders, *more]


def over(state: NodeState, due: m.Due, now_us: int) -> Step:
    """The job's time is over on the lead: what has not ended on another node by now is not waited for."""
    row = state.row(due.job, due.attempt)
    if row is None or row.phase != "running":
        return state, []
    if (row.job, state.node) not in state.left:  # its own program is about to end
        return state, [m.Later(now_us + state.rules.slowest_us, due)]
    gone = [node for node in row.members if (row.job, node) not in state.left]
    why = f"node {gone[0]} has not said that its unit has ended"
    return close(state, replace(row, why=why), "cut", now_us)


def lost(state: NodeState, message: m.Lost, now_us: int) -> Step:
    """A node of the job crashed. If the job runs, it is over."""
    row, end = state.row(message.job, message.attempt), m.End(message.job, message.attempt)
    if row is None:
        return state, [m.Send(message.node, end)]
    if row.phase == "running":
        return close(state, replace(row, why=f"node {message.node} crashed"), "cut", now_us)
    return _return(state, row, f"node {message.node} crashed", now_us) if row.phase == "started" else (state, [])


def close(state: NodeState, row: m.Reservation, result: Any, now_us: int) -> Step:
    """It takes no room any more; whoever must know hears it again and again."""
    row = replace(row, phase=result)
    rows = tuple(one for one in state.rows if (one.job, one.attempt) != (row.job, row.attempt))
    state = replace(
        state, rows=rows, closing=(*state.closing, row),
        joined=tuple(one for one in state.joined if one[0] != row.job),
        begun=frozenset(one for one in state.begun if one[0] != row.job),
        left=frozenset(one for one in state.left if one[0] != row.job),
    )  # fmt: skip
    due = m.Due(row.job, row.attempt, "closing", state.rules.retry_us)
    orders: list[m.Order] = [m.Write(row)]
    state, more = closing_due(state, due, now_us)
    return state, [*orders, *more]


def closing_due(state: NodeState, due: m.Due, now_us: int) -> Step:
    """Say again what whoever must know has not answered yet."""
    row = next((one for one in state.closing if one.job == due.job and one.attempt == due.attempt), None)
    if row is None:
        return state, []
    ends: list[m.Order] = [
        m.Send(node, m.End(row.job, row.attempt))
        for node in row.members
        if node != state.node and row.lead == state.node
    ]
    return state, [*ends, _report(state, row), _again(state, due, now_us)]


def _report(state: NodeState, row: m.Reservation) -> m.Send:
    job, attempt = row.job, row.attempt
    if row.phase == "lost":
        return m.Send(row.lead, m.Lost(job, attempt, state.node))
    if row.phase == "left":
        return m.Send(row.lead, m.Left(job, attempt, state.node, row.why))
    result: Any = row.phase
    return m.Send(m.owner_of(job), m.Ended(job, attempt, state.node, result, row.why))


def closed(state: NodeState, message: m.Closed | m.End, now_us: int) -> Step:
    """Whoever had to know, knows."""
    closing = tuple(one for one in state.closing if (one.job, one.attempt) != (message.job, message.attempt))
    if len(closing) == len(state.closing):
        return state, []
    return replace(state, closing=closing, void=void(state, message)), [m.Erase(message.job, message.attempt)]


# --- the other nodes of a job


def join(state: NodeState, message: m.Join, now_us: int) -> Step:
    """The lead has the job, and its slot has come: take the place, if there is room and there are watts."""
    row, job, attempt = state.row(message.job, message.attempt), message.job, message.attempt
    why = "its reservation has lapsed" if row is None else ""
    if row is not None and row.phase == "accepted":
        why = _no_room(state, row, now_us)
    if why or row is None:
        return state, [m.Send(message.lead, m.NotJoined(job, attempt, state.node, why, row is None))]
    orders: list[m.Order] = []
    if row.phase == "accepted":
        row = replace(row, phase="joined", lead=message.lead)
        state, orders = put(state, row)
        orders.append(m.Later(_over_us(state, row), m.Due(job, attempt, "lapse")))
    return state, [*orders, m.Send(message.lead, m.Joined(job, attempt, state.node))]


def begin_unit(state: NodeState, message: m.Begin, now_us: int) -> Step:
    """All nodes of the job have joined: its program starts here, once."""
    row = state.row(message.job, message.attempt)
    if row is None or row.phase not in RUNS:
        gone = next((one for one in state.closing if (one.job, one.attempt) == (message.job, message.attempt)), None)
        return state, [_report(state, gone)] if gone else []
    orders: list[m.Order] = []
    if row.phase == "joined":
        row = replace(row, phase="running", members=message.members)
        if message.stops:  # it never began
            return close(state, row, "left", now_us)
        state, orders = put(state, row)
        orders.append(m.Run(row))
    stops: list[m.Order] = [m.Stop(row)] if message.stops else []
    return state, [*orders, *stops, m.Send(row.lead, m.Begun(row.job, row.attempt, state.node))]


def end(state: NodeState, message: m.End, now_us: int) -> Step:
    """The lead says that the job is over."""
    row = state.row(message.job, message.attempt)
    if row is None:
        return closed(state, message, now_us)
    state, orders = drop(state, row)
    return state, [*orders, *hints(state, now_us)]


def lapse(state: NodeState, due: m.Due, now_us: int) -> Step:
    """Nobody needed the reservation, or its time is over."""
    row = state.row(due.job, due.attempt)
    if row is None or row.phase == "started" or (row.phase == "running" and row.lead == state.node):
        return state, []
    if row.phase in RUNS and now_us < _over_us(state, row):
        return state, []
    return drop(state, row)


def _over_us(state: NodeState, row: m.Reservation) -> int:
    """When a job must have ended: it may have begun late, by the lead's clock, which is a little apart."""
    return row.last * state.rules.slot_us + 2 * state.rules.grace_us


def hints(state: NodeState, now_us: int) -> list[m.Order]:
    """Room has become free before its time, or watts have come: to the next jobs planned here that could start earlier
    on this node."""
    slot = state.rules.slot_after(now_us + state.rules.ahead_us)
    planned = sorted(
        (row for row in state.rows if row.phase in ("accepted", "started") and row.first > slot),
        key=lambda row: row.first,
    )
    capacity, found = Need(state.has.cores, state.cap_mw(now_us)), list[m.Order]()
    for row in planned[: state.rules.depth]:
        booked = b"".join([one.packed for one in state.rows if one.job != row.job])
        window = Window(row.last - row.first, slot, row.first)
        if fittings(booked, state.profile, capacity, row.need, window, False, 1):
            found.append(m.Send(m.owner_of(row.job), m.Hint(row.job, row.attempt)))
    return found
