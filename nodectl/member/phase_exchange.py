"""Phases of programs from and for other nodes, by way of the cluster agent (``foundation.wire.phase_messages``).

    job begins   ``want`` what this node has not; again every ``AGAIN_S`` until it is ``found`` or ``given_up``
    job ends     ``keep`` what was measured, if this node is the job's first and was the only one to run it here

Neither waits. What cannot be sent is left out: the next run of the program measures it again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from foundation.wire.phase_messages import (
    MOST_CARDS,
    Card,
    PhasesForget,
    PhasesForgotten,
    PhasesKept,
    PhasesWanted,
    Table,
    problem_of,
)
from nodectl.jobs.job_runner import RunningJob
from nodectl.member.cluster_link import ClusterLink

AGAIN_S: Final = 5.0
"""Ours: how often a node that has no answer repeats what it wants: messages get lost, and a head is replaced."""


class PhaseExchange:
    """Of one node. ``job``: the only job that runs on it, None where there is none, or several."""

    def __init__(self, link: ClusterLink, node: str, job: Callable[[], RunningJob | None]) -> None:
        self._link, self._node, self._job = link, node, job
        self._began: RunningJob | None = None
        self._wanted: list[Card] = []
        self._waits_s = 0.0

    def begin(self, missing: Sequence[Card]) -> None:
        """A job begins, and this node has no phases of it on these cards."""
        job = self._job()
        self._began = job if job is not None and job.keeps_phases else None
        self._wanted, self._waits_s = [card for card in missing if _can_be_sent(card)][:MOST_CARDS], math.inf

    def found(self, elapsed_s: float) -> list[tuple[Card, Table]]:
        """What has come of what this job wants; after ``begin``, with the time since the last call."""
        began, found = self._began, dict[Card, Table]()
        for message in self._link.phase_messages():
            if began and (message.job, message.attempt) == began.key:
                found |= {card: table for card, table in message.cards if card in self._wanted}
        self._wanted = [card for card in self._wanted if card not in found]
        self._waits_s += elapsed_s
        if began and self._wanted and self._waits_s >= AGAIN_S:
            self._waits_s = 0.0
            self._link.send_phases(PhasesWanted(self._node, *began.key, self._wanted))
        return list(found.items())

    def give_up(self) -> None:
        """What comes from now on is too late: this run has measured phases of its own."""
        self._wanted = []

    def keep(self, card: Card, table: Table) -> None:
        """The job that began has measured this, and ends."""
        began = self._began
        if began and began.rank == 0 and _can_be_sent(card) and not problem_of(card, table):
            self._link.send_phases(PhasesKept(self._node, *began.key, card, table))

    def to_forget(self) -> list[PhasesForget]:
        """What is to be deleted. ``forgotten`` when that is done."""
        return self._link.phases_to_forget()

    def forgotten(self, number: int) -> None:
        """All that was to be deleted up to this number is."""
        self._link.send_phases(PhasesForgotten(self._node, number))


def _can_be_sent(card: Card) -> bool:
    return 0.0 < card.limit_w <= 1e5 and bool(card.card)
