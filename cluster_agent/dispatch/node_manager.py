"""The node manager: one node's plan of reservations, what it offers, and what becomes of an accepted start.

It makes one offer at a time, so that no two jobs are promised the same place; whoever comes meanwhile waits. A
reservation is in the journal before it is accepted. All nodes of an attempt accept first, then the *lead* of them is
given the job (``job_units``): this one entry in one journal decides, as for a commit, so a job cannot be started
twice. When its slot begins, the lead collects the others; if one is missing, or has no watts, it returns the job to its
task manager.

What only one side can end, time ends on the other: an offer after ``offer_us``, a reservation ``grace_us`` after its
start, a unit at the end of its requested time.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import Any, Final

from msgspec.structs import replace

from cluster_agent.dispatch import job_units
from cluster_agent.dispatch import messages as m
from cluster_agent.dispatch.fitting_index import Booked, Need, packed
from cluster_agent.dispatch.node_state import RUNS, NodeState, Step, drop
from cluster_agent.dispatch.start_choices import offered

MOST_WAITING: Final = 64
"""Ours: requests that wait for an offer to end; more are dropped, and their task managers go on without this node."""


def recovered(
    state: NodeState,
    journal: Iterable[m.Reservation],
    now_us: int,
    alive: Container[tuple[int, int]] = (),
) -> Step:
    """After a crash: of ``state`` what the settings say, the rest from the journal. ``alive``: jobs and attempts whose
    programs, if they had begun, have not died with the node."""
    state = NodeState(state.node, state.has, state.profile, state.rules, state.safe_mw, m.Grant(state.safe_mw, 0))
    orders: list[m.Order] = []
    for row in journal:
        if row.phase in ("accepted", "started"):
            state = replace(state, rows=(*state.rows, row))
            orders.append(job_units.due_at_start(state, row, now_us))
        elif row.phase in RUNS and (row.job, row.attempt) in alive:
            state = replace(state, rows=(*state.rows, row))
            orders += job_units.goes_on(state, row, now_us)
        elif row.phase in RUNS and row.lead != state.node:
            state, more = job_units.close(state, row, "lost", now_us)
            orders += more
        elif row.phase == "running":
            state, more = job_units.close(state, row, "cut", now_us)
            orders += more
        else:
            state = replace(state, closing=(*state.closing, row))
            orders.append(m.Later(now_us, m.Due(row.job, row.attempt, "closing", state.rules.retry_us)))
    return state, orders


def step(state: NodeState, message: m.Message | m.Grant, now_us: int) -> Step:
    """The state after a message, and what is to be done, in order. Messages may be lost, late, or come twice."""
    if isinstance(message, m.Grant):
        is_more = message.cap_mw > state.cap_mw(now_us)
        state = replace(state, grant=message)
        return state, job_units.hints(state, now_us) if is_more else []
    if isinstance(message, m.Due):
        return _DUE[message.what](state, message, now_us)
    return _MESSAGES[type(message)](state, message, now_us)


# --- offers


def _submit(state: NodeState, message: m.Submit, now_us: int) -> Step:
    if state.offer is None or now_us >= state.offer_until_us:
        return _offer(replace(state, offer=None), message, now_us)
    if state.offer == message or len(state.waiting) >= MOST_WAITING:
        return state, []
    return replace(state, waiting=(*state.waiting, (now_us + state.rules.reply_us, message))), []


def _offer(state: NodeState, request: m.Submit, now_us: int) -> Step:
    """Candidates. A node that has none to offer is free for the next request at once."""
    rules, need, ever = state.rules, request.need, _can_ever(state, request.need)
    first = max(request.window.first, rules.slot_after(now_us + rules.ahead_us))
    spans: tuple[tuple[int, int, float], ...] = ()
    if ever and first < request.window.last:
        window = request.window._replace(first=first)
        booked = b"".join([row.packed for row in state.rows if row.job != request.job])
        capacity = Need(state.has.cores, state.cap_mw(now_us))
        given = need, window, request.starts, request.way, request.within, request.seed
        spans = offered(booked, state.profile, capacity, *given)
    free_from = max([row.last for row in state.rows], default=first)
    reply = m.Candidates(request.job, request.attempt, state.node, spans, now_us, free_from, ever)
    orders: list[m.Order] = [m.Send(m.owner_of(request.job), reply)]
    if not spans:
        return state, orders
    until_us = now_us + rules.offer_us
    orders.append(m.Later(until_us, m.Due(request.job, request.attempt, "offer")))
    return replace(state, offer=request, offer_until_us=until_us, offered=spans), orders


def _can_ever(state: NodeState, need: Need) -> bool:
    return need.cores <= state.has.cores and need.mw <= state.has.mw


def _next(state: NodeState, now_us: int, orders: list[m.Order]) -> Step:
    """The offer is over: answer whoever waits, until one of them gets an offer."""
    state = replace(state, offer=None, offered=())
    while state.waiting and state.offer is None:
        (until_us, request), *rest = state.waiting
        state = replace(state, waiting=tuple(rest))
        if now_us < until_us:
            state, more = _offer(state, request, now_us)
            orders += more
    return state, orders


def _is_of(state: NodeState, message: m.Message) -> bool:
    offer = state.offer
    return offer is not None and (offer.job, offer.attempt) == (message.job, message.attempt)


def _offer_due(state: NodeState, due: m.Due, now_us: int) -> Step:
    return _next(state, now_us, []) if _is_of(state, due) else (state, [])


def _confirm(state: NodeState, message: m.Confirm, now_us: int) -> Step:
    job, attempt, first = message.job, message.attempt, message.first
    owner, accepted = m.owner_of(job), m.Accepted(job, attempt, state.node)
    if state.row(job, attempt) is not None:
        return state, [m.Send(owner, accepted)]
    offer, why = state.offer, ""
    if (job, attempt) in state.void:
        why = "that attempt is over"
    elif offer is None or not _is_of(state, message):
        why = "its offer has lapsed: the confirmation came late"
    elif first < state.rules.slot_after(now_us) or not any(begin <= first < end for begin, end, _ in state.offered):
        why = "that start is over, or was not offered"
    if why or offer is None:
        return state, [m.Send(owner, m.Refused(job, attempt, state.node, why))]
    last = first + offer.window.length
    row = m.Reservation(job, attempt, first, last, offer.need, packed(Booked(first, last, offer.need)))
    state = replace(state, rows=(*state.rows, row))
    return _next(state, now_us, [m.Write(row), job_units.due_at_start(state, row, now_us), m.Send(owner, accepted)])


def _release(state: NodeState, message: m.Release, now_us: int) -> Step:
    orders: list[m.Order] = []
    row = state.row(message.job, message.attempt)
    if row is not None and row.phase == "accepted":
        state, orders = drop(state, row)
    waiting = tuple(one for one in state.waiting if one[1].job != message.job or one[1].attempt != message.attempt)
    state = replace(state, waiting=waiting)
    return _next(state, now_us, orders) if _is_of(state, message) else (state, orders)


_Handler = Callable[[NodeState, Any, int], Step]
_MESSAGES: Final[dict[type[m.Message], _Handler]] = {
    m.Submit: _submit,
    m.Confirm: _confirm,
    m.Release: _release,
    m.Start: job_units.start,
    m.Cancel: job_units.cancel,
    m.Closed: job_units.closed,
    m.Join: job_units.join,
    m.Joined: job_units.joined,
    m.NotJoined: job_units.not_joined,
    m.Begin: job_units.begin_unit,
    m.Begun: job_units.begun,
    m.Left: job_units.left,
    m.End: job_units.end,
    m.Lost: job_units.lost,
    m.ProgramEnded: job_units.program_ended,
}
_DUE: Final[dict[str, _Handler]] = {
    "offer": _offer_due,
    "begin": job_units.begin,
    "lapse": job_units.lapse,
    "closing": job_units.closing_due,
    "members": job_units.members_due,
    "over": job_units.over,
}
