"""The task manager: it finds nodes for one job, and hears when the job is over.

It requests candidates of some nodes, chooses a start that enough of them offer, has that confirmed by all, and then
gives the job to one of them, the lead. It takes no further step with another attempt before the lead has answered: the
lead may have the job in its journal. If it dies, what it has reserved ends by itself; a job that a lead has is run.

A job has a window of starts. If no start is found there, the next window begins where it ended, twice as long, and
after ``RETRIES`` of these one after everything that is planned (Bridi §5).
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final, Literal

import msgspec
from msgspec.structs import replace

from cluster_agent.dispatch import messages as m
from cluster_agent.dispatch.fitting_index import Need, Window
from cluster_agent.dispatch.start_choices import Choice, chosen

RETRIES: Final = 3
CONFIRMS: Final = 4
"""Ours: so often a confirmation is sent before the attempt is given up."""
MOST_TRIES: Final = 12
"""Ours: windows without a common start, or refusals, before the task manager waits for ``pause_us``."""

Step = tuple["TaskState", list[m.Order]]


class Setup(msgspec.Struct, frozen=True):
    """``asks``: how many nodes are requested for each unit; 0: all. ``keeps``: only starts at which the desired profile
    has room, as the rule of ``profile_rule``: later windows are searched until there is one."""

    way: m.Way
    choice: Choice
    keeps: bool = False
    asks: int = 0
    least: int = 8
    """Nodes that are requested at least."""
    backfills: bool = False


class TaskState(msgspec.Struct, frozen=True):
    """``placed``: the start that a lead answers for. While a better one is looked for, it stays."""

    job: int
    units: int
    need: Need
    length: int
    slots: int
    """Of its window."""
    nodes: int
    """Of the machine."""
    setup: Setup
    rules: m.Rules
    seed: int
    phase: Literal["new", "candidates", "confirms", "start", "placed", "pause", "cancel", "over"] = "new"
    attempt: int = 0
    tries: int = 0
    refusals: int = 0
    window: Window = Window(0, 0, 0)
    sent: tuple[m.Address, ...] = ()
    replies: tuple[m.Candidates, ...] = ()
    heard: tuple[m.Address, ...] = ()
    """From whom they came."""
    members: tuple[m.Address, ...] = ()
    first: int = 0
    accepted: tuple[m.Address, ...] = ()
    confirms: int = 0
    placed: tuple[int, int, tuple[m.Address, ...]] | None = None
    """Attempt, slot, nodes."""
    hinted_us: int = -(1 << 60)


def begin(state: TaskState, now_us: int) -> Step:
    """Submit the job."""
    first = state.rules.slot_after(now_us + state.rules.ahead_us)
    state = replace(state, tries=0, refusals=0, window=Window(state.length, first, first + state.slots))
    return _request(state, now_us)


def resume(state: TaskState, now_us: int) -> Step:
    """In place of a task manager that died in this state, which it had kept before each thing that it sent."""
    if state.phase in ("start", "cancel"):
        again = _start if state.phase == "start" else _cancel
        return again(state, m.Due(state.job, state.attempt, state.phase, state.rules.retry_us), now_us)
    if state.placed is None:
        return begin(state, now_us)
    return replace(state, phase="placed"), presence(state)


def cancel(state: TaskState, now_us: int) -> Step:
    """End the job. Where a lead has it, or may have it, the job is over when that has answered."""
    if state.phase in ("cancel", "over"):
        return state, []
    orders = _releases(state, tuple({*state.sent, *state.members})) if state.phase != "start" else []
    if state.phase != "start" and state.placed is None:
        return replace(state, phase="over"), orders
    state, more = _cancel(
        replace(state, phase="cancel"), m.Due(state.job, state.attempt, "cancel", state.rules.retry_us), now_us
    )
    return state, [*orders, *more]


def presence(state: TaskState) -> list[m.Order]:
    """Where the lead finds this task manager. It answers with the job's end, if that has come."""
    if state.placed is None:
        return []
    attempt, _, members = state.placed
    return [m.Send(members[0], m.Start(state.job, attempt, members))]


def step(state: TaskState, message: m.Message, now_us: int) -> Step:
    """The state after a message, and what is to be done, in order. Messages may be lost, late, or come twice."""
    if isinstance(message, m.Due):
        due = _DUE.get((state.phase, message.what))
        return due(state, message, now_us) if due and message.attempt == state.attempt else (state, [])
    return _MESSAGES[type(message)](state, message, now_us)


# --- candidates


def _request(state: TaskState, now_us: int) -> Step:
    attempt, setup = state.attempt + 1, state.setup
    seed = (state.seed * 1_000_003 + state.job) * 1009 + attempt
    if state.placed is not None:
        sent = state.placed[2]
    else:
        count = min(max(setup.asks * state.units, setup.least), state.nodes) if setup.asks else state.nodes
        sent = tuple(Random(seed).sample(range(state.nodes), count))
    window = state.window
    starts = (state.units - 1) * (window.last - window.first) // len(sent) + 1
    orders: list[m.Order] = [
        m.Send(node, m.Submit(state.job, attempt, state.need, window, starts, setup.way, setup.keeps, seed + node))
        for node in sent
    ]
    orders.append(m.Later(now_us + state.rules.reply_us, m.Due(state.job, attempt, "replies")))
    state = replace(
        state, phase="candidates", attempt=attempt, sent=sent, replies=(), heard=(), members=(), accepted=()
    )
    return state, orders


def _candidates(state: TaskState, message: m.Candidates, now_us: int) -> Step:
    if message.attempt != state.attempt or state.phase != "candidates":
        late = message.attempt != state.attempt or message.node not in state.members
        is_free = late and message.spans and (state.placed is None or message.attempt != state.placed[0])
        return state, [m.Send(message.node, m.Release(state.job, message.attempt))] if is_free else []
    if message.node in state.heard:
        return state, []
    orders: list[m.Order] = []
    if abs(message.clock_us - now_us) > state.rules.skew_us:
        apart_s = (message.clock_us - now_us) / 1e6
        orders.append(m.Note(f"node {message.node}: its clock is {apart_s:+.0f} s from here: set it; it is left out"))
        message = replace(message, spans=(), ever=True, free_from=0)
    state = replace(state, replies=(*state.replies, message), heard=(*state.heard, message.node))
    if len(state.replies) < len(state.sent):
        return state, orders
    state, more = _choose(state, now_us)
    return state, [*orders, *more]


def _replies_due(state: TaskState, due: m.Due, now_us: int) -> Step:
    return _choose(state, now_us)


def _choose(state: TaskState, now_us: int) -> Step:
    """Of the replies that have come."""
    found = chosen(state.replies, state.window, state.units, state.setup.choice, state.seed + state.attempt)
    if found is None:
        return _none_found(state, now_us)
    nodes = [state.replies[place].node for place in found[1]]
    if state.placed is not None:  # the same lead decides between the two attempts
        nodes.sort(key=lambda node: state.placed is not None and node != state.placed[2][0])
    state = replace(state, first=found[0], members=tuple(nodes), phase="confirms", confirms=1)
    members = set(state.members)
    orders: list[m.Order] = [m.Send(node, m.Confirm(state.job, state.attempt, state.first)) for node in state.members]
    orders += [m.Send(node, m.Release(state.job, state.attempt)) for node in state.sent if node not in members]
    wait_us = state.rules.retry_us
    return state, [*orders, m.Later(now_us + wait_us, m.Due(state.job, state.attempt, "confirms", 2 * wait_us))]


def _none_found(state: TaskState, now_us: int) -> Step:
    """The next window, unless the job can never run."""
    orders: list[m.Order] = _releases(state, state.sent)
    if state.placed is not None:  # it stays where it is
        return replace(state, phase="placed"), orders
    can = sum(reply.ever for reply in state.replies)
    if len(state.sent) == state.nodes and can + state.nodes - len(state.replies) < state.units:
        need = f"{state.need.cores} cores and {state.need.mw / 1000:.0f} W"
        why = f"job {state.job} can never run: {state.units} nodes with {need} each are needed, and {can} have them"
        return replace(state, phase="over"), [*orders, m.Note(why)]
    if state.tries >= MOST_TRIES or len(state.replies) < state.units:
        return _pause(state, now_us, orders)
    state = replace(state, tries=state.tries + 1, window=_next_window(state))
    if can < state.units:  # of those requested: is it so of all?
        state = replace(state, setup=replace(state.setup, asks=0))
    state, more = _request(state, now_us)
    return state, [*orders, *more]


def _next_window(state: TaskState) -> Window:
    length, first, last = state.window
    if state.tries < RETRIES or state.setup.keeps:
        return Window(length, last, last + 2 * (last - first))
    end = max(reply.free_from for reply in state.replies)
    return Window(length, max(end, last), max(end, last) + state.slots)


def _pause(state: TaskState, now_us: int, orders: list[m.Order]) -> Step:
    short = f"only {len(state.replies)} of {len(state.sent)} nodes answer"
    why = short if len(state.replies) < len(state.sent) else "no start that enough nodes offer was found or accepted"
    wait_us = state.rules.pause_us
    wait = "a minute" if wait_us == 60_000_000 else f"{wait_us / 1e6:g} s"
    note = m.Note(f"job {state.job}: {why}: it is tried again in {wait}")
    due = m.Later(now_us + wait_us, m.Due(state.job, state.attempt, "pause"))
    return replace(state, phase="pause"), [*orders, note, due]


def _pause_due(state: TaskState, due: m.Due, now_us: int) -> Step:
    return begin(state, now_us)


def _releases(state: TaskState, nodes: tuple[m.Address, ...]) -> list[m.Order]:
    return [m.Send(node, m.Release(state.job, state.attempt)) for node in nodes]


# --- confirmations


def _accepted(state: TaskState, message: m.Accepted, now_us: int) -> Step:
    if message.attempt != state.attempt:
        is_placed = state.placed is not None and message.attempt == state.placed[0]
        return state, [] if is_placed else [m.Send(message.node, m.Release(state.job, message.attempt))]
    if state.phase != "confirms" or message.node in state.accepted:
        return state, []
    state = replace(state, accepted=(*state.accepted, message.node))
    if len(state.accepted) < state.units:
        return state, []
    return _start(replace(state, phase="start"), m.Due(state.job, state.attempt, "start", state.rules.retry_us), now_us)


def _confirms_due(state: TaskState, due: m.Due, now_us: int) -> Step:
    if state.confirms >= CONFIRMS:
        return _failed(state, now_us)
    missing = [node for node in state.members if node not in state.accepted]
    orders: list[m.Order] = [m.Send(node, m.Confirm(state.job, state.attempt, state.first)) for node in missing]
    later = m.Later(now_us + due.wait_us, replace(due, wait_us=2 * due.wait_us))
    return replace(state, confirms=state.confirms + 1), [*orders, later]


def _refused(state: TaskState, message: m.Refused, now_us: int) -> Step:
    if state.phase == "cancel":
        return _not_led(state, message)
    if message.attempt != state.attempt or state.phase != ("start" if message.start else "confirms"):
        return state, []
    if message.node in state.accepted and not message.start:  # a confirmation that came twice
        return state, []
    state, orders = _failed(state, now_us)
    return state, [m.Note(f"job {state.job}: node {message.node} refuses: {message.why}"), *orders]


def _failed(state: TaskState, now_us: int) -> Step:
    """The attempt comes to nothing. If the job has no start yet, the same window is tried again."""
    orders = _releases(state, state.members)
    if state.placed is not None:
        return replace(state, phase="placed"), orders
    if state.refusals >= MOST_TRIES:
        return _pause(state, now_us, orders)
    state = replace(state, refusals=state.refusals + 1)
    first = state.rules.slot_after(now_us + state.rules.ahead_us)
    if state.window.first < first:  # time has passed
        state = replace(state, window=Window(state.length, first, max(state.window.last, first + state.slots)))
    state, more = _request(state, now_us)
    return state, [*orders, *more]


# --- the lead has the job


def _start(state: TaskState, due: m.Due, now_us: int) -> Step:
    """To the lead, until it answers."""
    message = m.Start(state.job, state.attempt, state.members)
    wait_us = min(2 * due.wait_us, state.rules.slowest_us)
    later = m.Later(now_us + due.wait_us, replace(due, wait_us=wait_us))
    return state, [m.Send(state.members[0], message), later]


def _lead(state: TaskState) -> tuple[int, m.Address]:
    """Of a job that is being cancelled: the attempt that it knows of, and its node."""
    attempt, members = (state.attempt, state.members) if state.placed is None else (state.placed[0], state.placed[2])
    return attempt, members[0]


def _cancel(state: TaskState, due: m.Due, now_us: int) -> Step:
    """To the lead, until it answers."""
    attempt, lead = _lead(state)
    wait_us = min(2 * due.wait_us, state.rules.slowest_us)
    later = m.Later(now_us + due.wait_us, replace(due, wait_us=wait_us))
    note = f"job {state.job}: node {lead} does not answer: the job ends there as soon as it does"
    is_silent = due.wait_us >= min(state.rules.retry_us << CONFIRMS, state.rules.slowest_us)
    notes: list[m.Order] = [m.Note(note)] if is_silent else []
    return state, [*notes, m.Send(lead, m.Cancel(state.job, attempt)), later]


def _not_led(state: TaskState, message: m.Refused) -> Step:
    """The lead has nothing of a job that is being cancelled."""
    if not message.start or (message.attempt, message.node) != _lead(state):
        return state, []
    return replace(state, phase="over"), _releases(state, state.members)


def _started(state: TaskState, message: m.Started, now_us: int) -> Step:
    if message.attempt != state.attempt or state.phase != "start":
        return state, []
    orders: list[m.Order] = []
    if state.placed is not None:  # a better start: the one before is over
        earlier, _, nodes = state.placed
        orders += [m.Send(node, m.Release(state.job, earlier)) for node in nodes if node != state.members[0]]
    placed = state.attempt, state.first, state.members
    return replace(state, phase="placed", placed=placed, sent=(), replies=(), heard=()), orders


def _hint(state: TaskState, message: m.Hint, now_us: int) -> Step:
    """Look for an earlier start, on the nodes that it has: a little later, since all nodes of a job that has ended send
    hints, and one search is enough."""
    if not state.setup.backfills or state.phase != "placed" or state.placed is None:
        return state, []
    wait_us = state.rules.reply_us
    if message.attempt != state.placed[0] or now_us < state.hinted_us + wait_us:
        return state, []
    return replace(state, hinted_us=now_us), [m.Later(now_us + wait_us, m.Due(state.job, state.attempt, "move"))]


def _move(state: TaskState, due: m.Due, now_us: int) -> Step:
    first = state.rules.slot_after(now_us + state.rules.ahead_us)
    if state.placed is None or first >= state.placed[1]:
        return state, []
    return _request(replace(state, window=Window(state.length, first, state.placed[1])), now_us)


def _ended(state: TaskState, message: m.Ended, now_us: int) -> Step:
    orders: list[m.Order] = [m.Send(message.node, m.Closed(state.job, message.attempt))]
    is_placed = state.placed is not None and message.attempt == state.placed[0]
    is_starting = state.phase in ("start", "cancel") and message.attempt == state.attempt
    if state.phase == "over" or not (is_placed or is_starting):
        return state, orders
    if state.phase in ("candidates", "confirms"):  # a better start was looked for
        orders += _releases(state, state.members or state.sent)
    if state.phase == "cancel":
        return replace(state, phase="over"), [*orders, *_releases(state, state.members)]
    if message.result != "returned":
        return replace(state, phase="over"), orders
    if state.phase == "start" and not is_starting:  # the lead has yet to answer for the later attempt
        return replace(state, placed=None), orders
    state, more = begin(replace(state, placed=None), now_us)
    return state, [*orders, *more]


_Handler = Callable[[TaskState, Any, int], Step]
_MESSAGES: Final[dict[type[m.Message], _Handler]] = {
    m.Candidates: _candidates,
    m.Accepted: _accepted,
    m.Refused: _refused,
    m.Started: _started,
    m.Hint: _hint,
    m.Ended: _ended,
}
_DUE: Final[dict[tuple[str, str], _Handler]] = {
    ("candidates", "replies"): _replies_due,
    ("confirms", "confirms"): _confirms_due,
    ("start", "start"): _start,
    ("cancel", "cancel"): _cancel,
    ("pause", "pause"): _pause_due,
    ("placed", "move"): _move,
}
