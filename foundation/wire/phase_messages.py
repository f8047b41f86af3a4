"""Messages about phases of programs between a node and its cluster agent, which keeps them for other nodes.

A node that begins a job with GPUs and has no phases of its program requests them (``PhasesWanted``), again from time
to time while it has no answer; the cluster agent sends the newest that were measured on such a card (``PhasesFound``).
When the job ends, the node of rank 0 sends what it has measured (``PhasesKept``). A message that is lost costs one run
what it could have known. Only jobs whose ``JobStart`` says so take part, so an older cluster agent gets none of these.

A job is named by its number, never by its program: the cluster agent knows what it has started, and where. A node that
lies about what it has measured is believed within ``problem_of``, for jobs of that user and program alone, and in part
(``nodectl.policies.parts.gpu_memory.at_second_hand``).

``PhasesForget`` is repeated until ``PhasesForgotten`` answers: each node deletes what programs of a user have left.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import Meta

from foundation.digest import sha256_hex
from foundation.shell.errors import plain_reason
from foundation.wire.power_messages import Envelope, WireError

MOST_CLOCKS, MOST_PHASES = 32, 8
"""Of a table; ``nodectl.policies.parts`` has no more."""

MOST_CARDS: Final = 4
"""Ours: kinds of cards in a node."""

MOST_DIGESTS: Final = 1000
"""Ours: programs that one ``PhasesForget`` names."""

MOST_SHARE, MOST_BLOCKS, MOST_VARIANCE = 1.5, 1e4, 1.0
MOST_MHZ: Final = 10_000
MOST_OVER_LIMIT: Final = 2.0
"""Ours: what a measurement may be at most: shares of time with the error of counters, blocks, variances, and watts over
a board's limit."""

UP: Final = {"phases-kept": 1 << 15}
DOWN: Final = {"phases-found": 1 << 16, "phases-forget": 1 << 15}
"""Kinds of message that may be larger than ``power_messages.MAX_BYTES``, and their limit: from nodes, and to them."""

Name: TypeAlias = Annotated[str, Meta(max_length=96)]
Text: TypeAlias = Annotated[str, Meta(max_length=256)]
Digest: TypeAlias = Annotated[str, Meta(pattern=r"^[0-9a-f]{16}\Z")]
Number: TypeAlias = Annotated[int, Meta(ge=1, lt=1 << 53)]
Runs: TypeAlias = Annotated[int, Meta(ge=1, lt=1 << 31)]


class KeptPhase(msgspec.Struct, frozen=True):
    """One phase. For each of ``clocks_mhz``, descending: ``blocks`` measured, their mean ``traffic`` (share of time
    that memory is active) and ``watts`` of a board. ``utilization`` at the highest clock; ``scatter2`` and ``jump2``:
    relative variances of a block's traffic over ``scatters`` and ``jumps`` blocks; ``tick_traffic2`` and
    ``tick_watts2``: variances among pulses; ``share`` of a run's time, the last one counts half; ``after``: the shares
    of the phases that came next, in the order in which they are kept."""

    clocks_mhz: tuple[int, ...]
    blocks: tuple[float, ...]
    traffic: tuple[float, ...]
    watts: tuple[float, ...]
    utilization: float
    scatter2: float
    scatters: float
    jump2: float
    jumps: float
    tick_traffic2: float
    tick_watts2: float
    share: float
    after: tuple[float, ...] = ()

    @property
    def is_sound(self) -> bool:
        """Whether this can be a measurement: a damaged or foreign file may have anything."""
        columns = (self.blocks, self.traffic, self.watts)
        numbers = (
            self.utilization, self.scatter2, self.scatters, self.jump2, self.jumps, self.tick_traffic2,
            self.tick_watts2, self.share,
        )  # fmt: skip
        return (
            all(len(column) == len(self.clocks_mhz) for column in columns)
            and len(self.clocks_mhz) <= MOST_CLOCKS
            and all(math.isfinite(value) and value >= 0 for column in (*columns, numbers) for value in column)
            and all(watts > 0 for watts in self.watts)
            and len(self.after) <= MOST_PHASES
            and all(0 <= value <= 1.0 for value in self.after)
        )


class Card(msgspec.Struct, frozen=True, order=True):
    """What must be the same for phases to apply. ``limit_w``: the power limit of a board."""

    card: Text
    driver: Text
    limit_w: Annotated[float, Meta(gt=0, le=1e5)]


class Key(msgspec.Struct, frozen=True, order=True, omit_defaults=True):
    """Whose phases these are: ``Card``, and ``program``: what started the job; "" where nobody says. ``user``: whose
    job; "" on a node, which shares among its users what it has measured."""

    program: str
    card: str
    driver: str
    limit_w: float
    user: str = ""

    @property
    def digest(self) -> str:
        """The name of its file, without the suffix."""
        return sha256_hex(msgspec.json.encode(self))[:16]

    @property
    def hardware(self) -> Card:
        """The card alone."""
        return Card(self.card, self.driver, self.limit_w)


class Table(msgspec.Struct, frozen=True, omit_defaults=True):
    """The phases of one program. ``runs``: how many have measured them; ``used_at``: when the last of them ended;
    ``node``: where, if it was another one than the node that has the table."""

    phases: tuple[KeptPhase, ...]
    runs: Runs
    used_at: Annotated[str, Meta(max_length=64)]
    node: Name = ""


class PhasesWanted(msgspec.Struct, frozen=True):
    """This node begins this job, and has no phases of its program on these cards."""

    node: Name
    job: Number
    attempt: Number
    cards: Annotated[list[Card], Meta(min_length=1, max_length=MOST_CARDS)]


class PhasesKept(msgspec.Struct, frozen=True):
    """What this node has measured of a job that ends."""

    node: Name
    job: Number
    attempt: Number
    card: Card
    table: Table


class PhasesFound(msgspec.Struct, frozen=True):
    """The answer to ``PhasesWanted``, if there is any table."""

    job: Number
    attempt: Number
    cards: Annotated[list[tuple[Card, Table]], Meta(min_length=1, max_length=MOST_CARDS)]


class PhasesForget(msgspec.Struct, frozen=True):
    """Delete the files of these names (``Key.digest``), and keep nothing of a program among them that runs."""

    number: Number
    digests: Annotated[list[Digest], Meta(max_length=MOST_DIGESTS)]


class PhasesForgotten(msgspec.Struct, frozen=True):
    """This node has done what ``PhasesForget`` with this number, and all before it, have said."""

    node: Name
    number: Number


FromNode: TypeAlias = PhasesWanted | PhasesKept | PhasesForgotten
ToNode: TypeAlias = PhasesFound | PhasesForget

KINDS_UP: Final[dict[str, type[Any]]] = {
    "phases-wanted": PhasesWanted, "phases-kept": PhasesKept, "phases-forgotten": PhasesForgotten,
}  # fmt: skip
KINDS_DOWN: Final[dict[str, type[Any]]] = {"phases-found": PhasesFound, "phases-forget": PhasesForget}


def kind_of(message: FromNode | ToNode) -> str:
    """The message's kind on the wire."""
    return _KIND_OF[type(message)]


def read_phase_message(envelope: Envelope) -> Any:
    """Decode a message of ``KINDS_UP`` or ``KINDS_DOWN``; ``WireError`` for a wrong body or impossible figures."""
    try:
        message = _DECODERS[envelope.kind].decode(envelope.body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise WireError(f"not a {envelope.kind!r} message: {plain_reason(str(error))}") from None
    if isinstance(message, PhasesKept | PhasesFound):
        tables = [(message.card, message.table)] if isinstance(message, PhasesKept) else message.cards
        for card, table in tables:
            if problem := problem_of(card, table):
                raise WireError(f"not a {envelope.kind!r} message: {problem}")
    return message


def problem_of(card: Card, table: Table) -> str:
    """Why these cannot be phases that somebody has measured on such a card; "" if they can."""
    if not 0 < len(table.phases) <= MOST_PHASES:
        return f"{len(table.phases)} phases"
    for number, phase in enumerate(table.phases, 1):
        if why := _wrong(card, phase):
            return f"phase {number}: {why}"
    return ""


def _wrong(card: Card, phase: KeptPhase) -> str:
    clocks = phase.clocks_mhz
    if not phase.is_sound or not clocks:
        return "columns differ in length or are no measurement"
    if clocks[0] > MOST_MHZ or clocks[-1] < 1 or any(one <= two for one, two in pairwise(clocks)):
        return "clocks do not descend"
    if max(phase.watts) > MOST_OVER_LIMIT * card.limit_w:
        return f"{max(phase.watts):.0f} W on a board of {card.limit_w:g} W"
    if max(*phase.traffic, phase.utilization, phase.share) > MOST_SHARE:
        return "a share of more than all of the time"
    numbers = (phase.scatter2, phase.jump2, phase.tick_traffic2, phase.tick_watts2)
    if max(*phase.blocks, phase.scatters, phase.jumps) > MOST_BLOCKS or max(numbers) > MOST_VARIANCE:
        return "more than a run can measure"
    return ""


_KIND_OF: Final = {made: kind for kind, made in (KINDS_UP | KINDS_DOWN).items()}
_DECODERS: Final = {kind: msgspec.msgpack.Decoder(made) for kind, made in (KINDS_UP | KINDS_DOWN).items()}
