"""What task managers and node managers say to each other, and what both request of whoever runs them.

``job`` and ``attempt`` are in every message of a job: a task manager counts its attempts to find nodes, and no number
is used twice. Times are microseconds of the receiver's own clock, slots whole ones of ``Rules.slot_us``.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from cluster_agent.dispatch.fitting_index import Need, Window

Address: TypeAlias = int
"""Nodes from 0 on; the task manager of job j is -1 - j."""

Way: TypeAlias = Literal["first", "uniform", "exponential"]
"""How a node chooses the starts that it offers (Bridi §5; exponential in the form of §7)."""


def owner_of(job: int) -> Address:
    """The address of a job's task manager."""
    return -1 - job


CANCELLED: Final = "cancelled"
"""Why a job ended that its user has cancelled, and how the words of any cancellation begin."""


def cancelled_by(administrator: str) -> str:
    """Why a job ended that was cancelled; ``administrator``: the name of the key that did, "" of its user."""
    return f"{CANCELLED} by administrator {administrator}" if administrator else CANCELLED


class Rules(msgspec.Struct, frozen=True):
    """Times that both sides know. The defaults are ours, but for the depth of backfilling (32, the cores of a node)."""

    slot_us: int = 60_000_000
    reply_us: int = 15_000
    """So long a task manager waits for candidates, and then goes on with those that have come."""
    offer_us: int = 30_000
    """So long a node keeps an offer free for its task manager: twice the reply time. Else a dead one would block it."""
    retry_us: int = 6_000
    """After so long a message without an answer is sent again, then after twice that, up to ``slowest_us``."""
    slowest_us: int = 10_000_000
    grace_us: int = 90_000_000
    """So long after its start a reservation stays without a word from the lead node."""
    ahead_us: int = 0
    """A start is offered at the earliest so much later."""
    skew_us: int = 30_000_000
    """Clocks further apart are an error: half a slot."""
    pause_us: int = 60_000_000
    """So long a task manager waits after many attempts in vain."""
    depth: int = 32
    """How many planned jobs are looked at when a job ends; 0: no backfilling."""

    def slot_after(self, time_us: int) -> int:
        """The first slot that begins at that time or later."""
        return -(-time_us // self.slot_us)


class Reservation(msgspec.Struct, frozen=True, gc=False):
    """Of one unit on one node: what its journal keeps.

    *accepted* on every node of an attempt; *started* on its lead node, which then answers for the job; *joined* on the
    others until their units begin; *running* while the job runs. The rest take no room: *done*, *cut* (a node of it
    crashed), *returned* (not run) wait on the lead until the task manager has heard of it, *left* (the unit has ended)
    and *lost* (it crashed) on another node for the lead.
    """

    job: int
    attempt: int
    first: int
    last: int
    need: Need
    packed: bytes
    phase: Literal["accepted", "started", "joined", "running", "done", "cut", "returned", "left", "lost"] = "accepted"
    lead: Address = -1
    members: tuple[Address, ...] = ()
    """All nodes of the job, the lead first; of another node from its unit's beginning on."""
    why: str = ""
    """How its program failed; "": it did not, or has not ended. A lead that has this of a job that runs ends its units,
    also after a restart."""


class Message(msgspec.Struct, frozen=True, gc=False):
    """About an attempt of a job."""

    job: int
    attempt: int


# --- from task managers


class Submit(Message, frozen=True, gc=False):
    """Which starts can you offer?"""

    need: Need
    window: Window
    starts: int
    way: Way
    within: bool
    """Only starts that fit the profile: with *first* in the slot of the start alone, else until the end."""
    seed: int


class Confirm(Message, frozen=True, gc=False):
    """This start of the offered ones."""

    first: int


class Release(Message, frozen=True, gc=False):
    """Neither the offer nor the reservation is needed."""


class Start(Message, frozen=True, gc=False):
    """To the lead: all ``members`` have accepted, so run the job, in place of every earlier attempt."""

    members: tuple[Address, ...]


class Cancel(Message, frozen=True, gc=False):
    """To the lead, of any attempt: the job is to end, and is not to begin. ``by``: the administrator's name, which a
    node manager takes from the key of the sender."""

    by: str = ""


class Closed(Message, frozen=True, gc=False):
    """Its end, or return, has been heard of."""


# --- from node managers


class Candidates(Message, frozen=True, gc=False):
    """``spans`` of starts: from, to (exclusive), fitting index. ``clock_us``: the node's. ``free_from``: the slot from
    which on nothing is planned there. ``ever``: an empty node could run a unit."""

    node: Address
    spans: tuple[tuple[int, int, float], ...]
    clock_us: int
    free_from: int
    ever: bool = True


class Accepted(Message, frozen=True, gc=False):
    """The reservation is in the journal."""

    node: Address


class Refused(Message, frozen=True, gc=False):
    """The attempt has failed. ``start``: the answer to a start, or a cancellation, not to a confirmation, whose refusal
    may come late."""

    node: Address
    why: str
    start: bool = False


class Started(Message, frozen=True, gc=False):
    """The lead answers for the job from now on."""


class Ended(Message, frozen=True, gc=False):
    """``result``: *done*, *cut* because a node crashed, or *returned*: it was not run, and needs another attempt. One
    that was cancelled is *done*, also before it began."""

    node: Address
    result: Literal["done", "cut", "returned"]
    why: str = ""


class Hint(Message, frozen=True, gc=False):
    """A job has ended on your node, or it may draw more: here you could start earlier."""


# --- between the nodes of a job


class Join(Message, frozen=True, gc=False):
    """The lead to the others: the job begins."""

    lead: Address


class Joined(Message, frozen=True, gc=False):
    """The unit's place is taken; nothing else ends that until the lead says so, or the requested time is over."""

    node: Address


class NotJoined(Message, frozen=True, gc=False):
    """There is no such reservation any more (``final``), or no room yet, or no watts."""

    node: Address
    why: str
    final: bool


class Begin(Message, frozen=True, gc=False):
    """The lead to the others, again until they answer: all have joined, so run your unit; or ``stops``: end it, since
    another one has failed, or the job is cancelled."""

    members: tuple[Address, ...]
    stops: bool = False


class Begun(Message, frozen=True, gc=False):
    """The unit runs."""

    node: Address


class Left(Message, frozen=True, gc=False):
    """The unit's program has ended; ``why``: how it failed."""

    node: Address
    why: str = ""


class End(Message, frozen=True, gc=False):
    """The lead to the others: the job is over."""


class Lost(Message, frozen=True, gc=False):
    """The node crashed, and its unit with it."""

    node: Address


# --- to a manager from its own machine


class Due(Message, frozen=True, gc=False):
    """A time that the manager had set has come."""

    what: str
    wait_us: int = 0


class ProgramEnded(Message, frozen=True, gc=False):
    """Of this node's unit; ``why``: how it failed."""

    why: str = ""


class Grant(msgspec.Struct, frozen=True, gc=False):
    """The ledger's: the node may draw ``cap_mw`` for jobs until ``until_us``, and then the lower of it and its safe
    cap."""

    cap_mw: int
    until_us: int


# --- what a manager wants done, in this order


class Send(msgspec.Struct, frozen=True, gc=False):
    """To another manager; may be lost."""

    to: Address
    message: Message


class Later(msgspec.Struct, frozen=True, gc=False):
    """To itself, at that time."""

    at_us: int
    message: Due


class Write(msgspec.Struct, frozen=True, gc=False):
    """Into the journal, before anything that follows is done: this reservation as it is now."""

    row: Reservation


class Erase(msgspec.Struct, frozen=True, gc=False):
    """From the journal."""

    job: int
    attempt: int


class Run(msgspec.Struct, frozen=True, gc=False):
    """Start the program of the job on this node."""

    row: Reservation


class Stop(msgspec.Struct, frozen=True, gc=False):
    """End it: a unit on another node has failed, or the job is cancelled."""

    row: Reservation


class Note(msgspec.Struct, frozen=True, gc=False):
    """One line for the log, or for the user."""

    text: str


Order: TypeAlias = Send | Later | Write | Erase | Run | Stop | Note
