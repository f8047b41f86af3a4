"""What a run takes over from earlier runs of its program, and what it leaves to later ones.

    job begins   with the name of its program and one table of it: recalled at once. Without a name, or with several
                 programs of one name: as soon as the first phase is measured at the highest clock, the table whose
                 phases are near, if no other is
    meanwhile    what there is is kept once a minute, since a killed agent keeps nothing more
    job ends     its phases are kept: in place of the table that it began with if that has fitted, else next to it

A job begins and ends where the agent says so (``name``): a command that it runs, or the cluster's only job on this
node. Else the GPUs show it: one has ended when none has worked for ``REST_S``.

For a job of the cluster whose program has no phases here, those that another node has measured on such a card come by
the cluster agent (``nodectl.member.phase_exchange``). They are recalled in the same way, once the first phase looks
like one of them: the other node may have lied. At the end of the job other nodes get what it measured.

The disk is written in a thread: the loop enforces caps and must not wait for it.
"""

from __future__ import annotations

import datetime
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec.structs import replace

from foundation.phase_files import PhaseFiles, Remembered, with_run
from foundation.sealed_file import SealedFileError
from foundation.wire.phase_messages import KeptPhase, Key, Table
from nodectl.decide.decider import Remembering
from nodectl.policies.parts.gpu_memory import at_second_hand
from pmu.layout import Layout
from pmu.readings import Sample

if TYPE_CHECKING:
    from nodectl.member.phase_exchange import PhaseExchange

REST_S: Final = 10.0
"""Ours: GPUs idle for so long: the job has ended. Longer than jobs wait for input, shorter than between jobs."""

IDLE: Final = 0.005
"""Ours: utilisation below which a GPU does nothing."""

LEAST_S: Final = 30.0
"""Ours: a job that worked for less leaves nothing."""

KEEP_S: Final = 60.0
"""Ours: how often what there is is kept."""

LOOK_S: Final = 1.0
TRY_S: Final = 60.0
"""Ours: how often, and for how long, a table is looked for that resembles what runs."""

NEAR, APART = 2.0, 2.0
"""Ours: a table is recalled if the phases measured so far are within so many standard deviations, and the next one is
further away by so many."""

CANDIDATES: Final = 32
"""Ours: among the tables of so many programs, those used last, one is looked for that resembles what runs without a
name; each takes some 0.2 ms, once a second."""

FITS: Final = 0.5
"""Ours: a table has fitted if so much of the run's time went to its phases."""


@dataclass(slots=True)
class _Card:
    """One kind of card: ``first``, its first GPU, and what was found. ``place``: the table of ``own`` that is used.
    ``is_forgotten``: nothing is to be kept of this run."""

    first: int
    key: Key
    own: Remembered | None = None
    place: int | None = None
    candidates: list[tuple[Key, int, Table]] = field(default_factory=list)
    is_forgotten: bool = False


class ProgramMemory:
    """``look`` at every sample, after it was decided on; ``end`` when the run ends."""

    def __init__(
        self,
        files: PhaseFiles,
        policy: Remembering,
        layout: Layout,
        driver: str,
        log: Callable[[str], None],
        name: Callable[[], str | None],
        now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
        others: PhaseExchange | None = None,
    ) -> None:
        """``name``: the program that runs now, None while the agent does not know of one. ``driver``: of the cards.
        ``others``: from and for other nodes."""
        self._files, self._policy, self._layout, self._driver = files, policy, layout, driver
        self._log, self._name, self._now, self._others = log, name, now, others
        self._program: str | None = None
        self._cards: list[_Card] = []
        self._is_running = False
        self._worked_s = self._idle_s = self._kept_s = self._tried_s = 0.0
        self._writing: threading.Thread | None = None
        self._said = ""
        if (program := name()) is not None:
            self._begin(program)

    def look(self, sample: Sample) -> bool:
        """Begin, keep and end with the jobs; true: the policy goes on from another state than it was left in."""
        program, is_idle = self._name(), not bool((sample.gpu.gpu_utilization > IDLE).any())
        self._idle_s = self._idle_s + sample.elapsed_s if is_idle else 0.0
        if self._is_running and (program != self._program or (program is None and self._idle_s >= REST_S)):
            self._end()
        has_begun = not self._is_running and (program is not None or not is_idle)
        is_recalled = has_begun and self._begin(program)
        if self._others:
            self._forget(self._others)
            self._look_elsewhere(self._others, sample.elapsed_s)
        return is_recalled or (self._is_running and not is_idle and self._work(sample))

    def _look_elsewhere(self, others: PhaseExchange, elapsed_s: float) -> None:
        """What other nodes have measured of this program is a candidate: it is recalled if what runs looks like it."""
        if self._worked_s > TRY_S:
            others.give_up()
        for hardware, table in others.found(elapsed_s):
            card = next((one for one in self._cards if one.key.hardware == hardware and one.own is None), None)
            if card is not None and not card.is_forgotten:
                table = replace(table, phases=tuple(at_second_hand(table.phases)))
                card.own = Remembered(card.key, (table,))
                card.candidates = [(card.key, 0, table)]

    def _forget(self, others: PhaseExchange) -> None:
        """Delete what is to be deleted on all nodes."""
        for message in others.to_forget():
            digests = set(message.digests)
            for card in self._cards:
                card.is_forgotten |= card.key.digest in digests
            if self._writing:
                self._writing.join()
            try:
                self._files.forget(digests)
            except OSError as error:
                self._log(f"phases: cannot be forgotten: {error}")
                continue
            others.forgotten(message.number)

    def _work(self, sample: Sample) -> bool:
        """Keep from time to time what there is; true: a table was recalled that resembles what runs."""
        before_s, self._worked_s = self._worked_s, self._worked_s + sample.elapsed_s
        if self._worked_s - self._kept_s >= KEEP_S:
            self._kept_s = self._worked_s
            self._keep(wait=False)
        is_due = self._worked_s // LOOK_S > before_s // LOOK_S and self._worked_s <= TRY_S
        found = [self._resembles(card) for card in self._cards if card.candidates] if is_due else []
        return any(found)

    def end(self) -> None:
        """The run ends, and its job with it."""
        if self._is_running:
            self._end()
        if self._writing:
            self._writing.join()

    def _begin(self, program: str | None) -> bool:
        """A job begins; true: something was recalled."""
        self._is_running, self._program = True, program
        self._worked_s = self._kept_s = self._idle_s = 0.0
        self._cards = [self._card(first, program or "") for first in firsts(self._layout)]
        recalled = False
        for card in self._cards:
            if card.own and len(card.own.tables) == 1 and program:
                self._recall(card, card.key, 0, card.own.tables[0])
                recalled = True
            else:
                card.candidates = self._candidates(card)
        if self._others:
            self._others.begin([card.key.hardware for card in self._cards if card.own is None] if program else [])
        return recalled

    def _card(self, first: int, program: str) -> _Card:
        gpu = self._layout.gpus[first]
        card = _Card(first, Key(program, gpu.name, self._driver, gpu.default_power_limit_w))
        try:
            card.own = self._files.read(card.key, self._now())
        except SealedFileError as error:
            self._log(f"phases: {error}")
        return card

    def _candidates(self, card: _Card) -> list[tuple[Key, int, Table]]:
        """Tables that may be of what runs: of its name; without a name, all of this kind of card."""
        if card.key.program:
            return [(card.key, place, table) for place, table in enumerate(card.own.tables if card.own else ())]
        found, _ = self._files.all(CANDIDATES)
        same = [one for one in found if one.key.hardware == card.key.hardware]
        return [(one.key, place, table) for one in same for place, table in enumerate(one.tables)]

    def _resembles(self, card: _Card) -> bool:
        """Recall the table that what was seen so far resembles, if only one does."""
        far = [self._policy.distance(card.first, table.phases) for _, _, table in card.candidates]
        order = np.argsort(far)
        best = int(order[0])
        if math.isnan(far[best]) or far[best] > NEAR or (len(far) > 1 and far[int(order[1])] - far[best] < APART):
            return False
        key, place, table = card.candidates[best]
        card.candidates = []
        if key != card.key:
            card.key, card.own = key, self._read(key)
        self._recall(card, key, place, table)
        return True

    def _read(self, key: Key) -> Remembered | None:
        try:
            return self._files.read(key, self._now())
        except SealedFileError:
            return None

    def _recall(self, card: _Card, key: Key, place: int, table: Table) -> None:
        self._policy.recall(card.first, table.phases)
        card.place = place
        runs = f"{table.runs} run{'s' if table.runs > 1 else ''}"
        of = f"of {key.program}" if key.program else "of a program without a name that looks like this one"
        how = f", measured on {table.node}" if table.node else ""
        how += "" if self._worked_s == 0 else f", recognised after {self._worked_s:.0f} s"
        self._log(f"phases: begins with {len(table.phases)} of {runs} {of} on {key.card} ({key.digest}){how}")

    def _end(self) -> None:
        kept = self._keep(wait=True)
        if self._others:
            for one in kept:
                self._others.keep(one.key.hardware, one.tables[0])
        self._is_running, self._cards = False, []

    def _keep(self, wait: bool) -> list[Remembered]:
        """Keep what there is. ``wait``: for a write that is under way; else this one is left out then. What is kept."""
        if self._worked_s < LEAST_S:
            return []
        if self._writing and (wait or not self._writing.is_alive()):
            self._writing.join()
            self._writing = None
        if self._writing:
            return []
        kept = [found for card in self._cards if (found := self._found(card))]
        self._writing = threading.Thread(target=self._write, args=(kept,), name="phases")
        self._writing.start()
        return kept

    def _found(self, card: _Card) -> Remembered | None:
        phases: tuple[KeptPhase, ...] = self._policy.keep(card.first)
        if not phases or card.is_forgotten:
            return None
        fits = self._policy.fit(card.first)
        place = card.place if card.place is not None and not fits < FITS else None
        return with_run(card.own, card.key, place, phases, self._now())

    def _write(self, kept: Sequence[Remembered]) -> None:
        try:
            for found in kept:
                self._files.write(found)
        except (SealedFileError, OSError) as error:
            if str(error) != self._said:
                self._log(f"phases are not kept: {error}")
            self._said = str(error)


def firsts(layout: Layout) -> list[int]:
    """The first GPU of each model that has clocks."""
    names = [gpu.name for gpu in layout.gpus]
    return [index for index, gpu in enumerate(layout.gpus) if names.index(gpu.name) == index and gpu.clocks_mhz]
