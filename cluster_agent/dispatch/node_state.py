"""What a node manager knows: its plan of reservations, the offer that it has made, and what it may draw."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec.structs import replace

from cluster_agent.dispatch import messages as m
from cluster_agent.dispatch.fitting_index import Need, Profile

MOST_VOID: Final = 256
"""Ours: that many attempts are later than any message of theirs, in seconds, can be late."""

Step = tuple["NodeState", list[m.Order]]
RUNS: Final = ("joined", "running")


class NodeState(msgspec.Struct, frozen=True):
    """``rows`` take room, ``closing`` do not: both are in the journal, the rest is lost in a crash."""

    node: m.Address
    has: Need
    profile: Profile
    rules: m.Rules
    safe_mw: int
    grant: m.Grant
    rows: tuple[m.Reservation, ...] = ()
    closing: tuple[m.Reservation, ...] = ()
    offer: m.Submit | None = None
    offer_until_us: int = 0
    offered: tuple[tuple[int, int, float], ...] = ()
    waiting: tuple[tuple[int, m.Submit], ...] = ()
    """Requests, and until when each is worth an answer."""
    void: tuple[tuple[int, int], ...] = ()
    """The last attempts that are over: a late confirmation does not bring one back."""
    joined: tuple[tuple[int, m.Address], ...] = ()
    """Of jobs that this node leads and that are about to run: who has joined."""
    begun: frozenset[tuple[int, m.Address]] = frozenset()
    """Of jobs that this node leads and that run: whose unit has begun."""
    left: frozenset[tuple[int, m.Address]] = frozenset()
    """The same: whose unit has ended."""

    def cap_mw(self, now_us: int) -> int:
        """What the node may draw for jobs: without a lease the safe cap, if that is lower."""
        return self.grant.cap_mw if now_us < self.grant.until_us else min(self.grant.cap_mw, self.safe_mw)

    def row(self, job: int, attempt: int) -> m.Reservation | None:
        """That reservation, if it takes room."""
        return next((row for row in self.rows if row.job == job and row.attempt == attempt), None)

    def running(self) -> Need:
        """What the units that run here take."""
        needs = [row.need for row in self.rows if row.phase in RUNS]
        return Need(sum(need.cores for need in needs), sum(need.mw for need in needs))


def put(state: NodeState, row: m.Reservation) -> Step:
    """In place of the row of the same attempt."""
    key = row.job, row.attempt
    rows = tuple(row if (one.job, one.attempt) == key else one for one in state.rows)
    return replace(state, rows=rows), [m.Write(row)]


def drop(state: NodeState, row: m.Reservation) -> Step:
    """It takes no room any more, and nobody needs to know."""
    rows = tuple(one for one in state.rows if (one.job, one.attempt) != (row.job, row.attempt))
    return replace(state, rows=rows, void=void(state, row)), [m.Erase(row.job, row.attempt)]


def void(state: NodeState, over: m.Message | m.Reservation) -> tuple[tuple[int, int], ...]:
    """The attempts that are over, with this one."""
    return (*state.void[1 - MOST_VOID :], (over.job, over.attempt))
