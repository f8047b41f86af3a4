"""What Slurm writes into the columns of ``sacct``, as numbers.

A value that is there and cannot be one is None where its absence would be too: the reader decides what that means for a
job, and counts it. Slurm writes ``NO_VAL`` (2^32 - 2), ``INFINITE`` (2^32 - 1) and their kin of 64 bits where it knows
nothing, and an energy counter that went backwards as a number close to 2^64.
Sources: Slurm 23.11, ``slurm/slurm.h`` (sentinels), ``src/sacct/print.c`` (columns), ``src/common/slurm_time.c``.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final, NamedTuple

from cluster_agent.cluster import MOST_PROCESSORS
from cluster_agent.workloads.node_trace import MOST_KIB

NO_TIME: Final = ("", "None", "Unknown", "N/A", "INVALID")
NO_LIMIT: Final = {"", "unlimited", "infinite", "partition_limit", "not_set", "none", "n/a", "invalid"}
SENTINELS: Final = frozenset(2**bits - least for bits in (32, 64) for least in (1, 2, 3))
"""INFINITE, NO_VAL and NO_CONSUME_VAL, of 32 and of 64 bits."""


MOST_LIMIT_S: Final = 10 * 366 * 86400
"""Ours: a time limit of ten years; what is above it is no limit that a site sets."""

STATES: Final = {
    "BF": "BOOT_FAIL", "CA": "CANCELLED", "CD": "COMPLETED", "CF": "CONFIGURING", "CG": "COMPLETING",
    "DL": "DEADLINE", "F": "FAILED", "NF": "NODE_FAIL", "OOM": "OUT_OF_MEMORY", "PD": "PENDING", "PR": "PREEMPTED",
    "R": "RUNNING", "RQ": "REQUEUED", "RS": "RESIZING", "RV": "REVOKED", "S": "SUSPENDED", "TO": "TIMEOUT",
}  # fmt: skip
MIC_NAMES: Final = ("mic", "phi")

_KIB: Final = {"K": 1, "M": 1 << 10, "G": 1 << 20, "T": 1 << 30, "P": 1 << 40}
_POWER: Final = " KMGTPE"
_NUMBER: Final = r"(\d{1,24}(?:\.\d{0,9})?)"
_COUNT: Final = re.compile(_NUMBER + r"([KMG]?)", re.ASCII)
_JOULES: Final = re.compile(r"(\d{1,24}(?:\.\d{0,9})?(?:[eE]\+?\d{1,2})?)([KMGTPE]?)", re.ASCII)
_MEMORY: Final = re.compile(_NUMBER + r"([KMGTP]?)B?([cn]?)", re.ASCII)
_CLOCK: Final = re.compile(r"(?:(\d{1,7})-)?(\d{1,7}):(\d{1,4})(?::(\d{1,4}))?(?:\.\d*)?", re.ASCII)
_EPOCH: Final = datetime(1970, 1, 1)


class Moment(NamedTuple):
    """Seconds since 1970; ``is_local``: of a clock whose offset from UTC is not given."""

    at_s: int
    is_local: bool


class Resources(NamedTuple):
    """Of a whole job. ``is_odd``: an amount could not be read, and is not counted."""

    gpus: int = 0
    mics: int = 0
    memory_kib: int = 0
    joules: str = ""
    is_odd: bool = False


def moment(text: str) -> Moment | None:
    """ISO 8601 with or without an offset (``%Y-%m-%dT%H:%M:%S%z``), or Unix seconds (``%s``)."""
    if text.isascii() and text.isdecimal() and 9 <= len(text) <= 11:
        return Moment(int(text), False)
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return None
    if when.tzinfo is None:
        return Moment(int((when - _EPOCH).total_seconds()), True)
    return Moment(int((when - _EPOCH.replace(tzinfo=UTC)).total_seconds()), False)


def state(text: str) -> str:
    """The first word, written out: ``CANCELLED by 1000``, ``CANCELLED+`` and ``CA`` are CANCELLED."""
    word = (text.split() or [""])[0].rstrip("+").upper()
    return STATES.get(word, word)


def count(text: str) -> int | None:
    """A number of nodes or cores; ``2K`` is 2048."""
    found = _COUNT.fullmatch(text)
    if not found:
        return None
    amount = float(found[1]) * 1024 ** _POWER.index(found[2] or " ")
    return int(amount) if amount == int(amount) <= MOST_PROCESSORS and int(amount) not in SENTINELS else None


def seconds(raw: str, clock: str) -> int | None:
    """``ElapsedRaw``, or where that is none ``Elapsed`` (``1-02:03:04``)."""
    if raw.isascii() and raw.isdecimal() and len(raw) <= 12 and int(raw) not in SENTINELS:
        return int(raw)
    found = _CLOCK.fullmatch(clock)
    return _of_clock(found) if found else None


def limit_s(raw: str, clock: str) -> tuple[int | None, bool]:
    """``TimelimitRaw`` (minutes), or where that is none ``Timelimit``, in seconds; None where the job had no limit of
    its own (``UNLIMITED``, ``Partition_Limit``). Then: whether the text is none that Slurm writes."""
    if raw.isascii() and raw.isdecimal() and len(raw) <= 12:
        return (None if int(raw) in SENTINELS else 60 * int(raw) or None), False
    found = _CLOCK.fullmatch(clock)
    if found:
        return _of_clock(found) or None, False
    return None, not {raw.lower(), clock.lower()} <= NO_LIMIT


def _of_clock(found: re.Match[str]) -> int:
    days, first, second, third = (int(part or 0) for part in found.groups())
    if found[4] is None and found[1] is None:  # minutes:seconds
        return 60 * first + second
    return 86400 * days + 3600 * first + 60 * second + third


def joules(text: str) -> tuple[float, bool]:
    """0 where nothing was measured. Then: whether the text is none that a meter gives (a sentinel, negative, NaN)."""
    if not text:
        return 0.0, False
    found = _JOULES.fullmatch(text)
    if not found:
        return 0.0, True
    is_sentinel = found[1].isdecimal() and int(found[1]) in SENTINELS
    amount = float(found[1]) * 1000 ** _POWER.index(found[2] or " ")
    return (0.0, True) if is_sentinel or amount >= 2**63 else (amount, False)


def memory_kib(text: str, units: int, cores: int) -> int | None:
    """``4000Mc`` per core and ``64Gn`` per node (before Slurm 21.08), ``64G`` for the job; MiB where no unit is
    given."""
    found = _MEMORY.fullmatch(text)
    if not found:
        return None if text.strip("?") else 0
    amount = float(found[1]) * _KIB[found[2] or "M"] * {"c": cores, "n": units, "": 1}[found[3]]
    return round(amount) if amount <= MOST_KIB else None


def resources(texts: list[str]) -> Resources:
    """GPUs, cards, memory and joules, each of the first text that has any: ``cpu=16,mem=64G,gres/gpu:a100=2`` of
    ``AllocTRES``, or the older ``gpu:tesla:2,mic:1`` and ``gpu(IDX:0-3)`` of ``AllocGRES``.

    A typed entry repeats the untyped one, so of each kind the larger sum counts. A slice of a GPU (``gpu:1g.5gb=2``)
    counts as one.
    """
    all_found = [_resources(text) for text in texts if text]
    return Resources(
        *(next((found[at] for found in all_found if found[at]), nothing) for at, nothing in enumerate(Resources()))  # type: ignore[arg-type]
    )


def _resources(text: str) -> Resources:
    plain, typed = {"gpu": 0, "mic": 0}, {"gpu": 0, "mic": 0}
    memory, energy, is_odd = 0, "", False
    for part in re.split(r",(?![^()]*\))", text):
        name, kind, amount, indices = _entry(part.strip())
        name = "mic" if name in MIC_NAMES else name
        if name == "energy":
            energy = amount
        elif name == "mem":
            found = memory_kib(amount, 1, 1)
            is_odd |= found is None
            memory = found or 0
        elif name in plain:
            cards = _indices(indices) if not amount else count(amount)
            is_odd |= cards is None
            (typed if kind else plain)[name] += cards or 0
    return Resources(max(plain["gpu"], typed["gpu"]), max(plain["mic"], typed["mic"]), memory, energy, is_odd)


def _entry(part: str) -> tuple[str, str, str, str]:
    """Name, type, amount and what is in brackets. A type may begin with a digit and have dots: ``gpu:1g.5gb:2``."""
    part, _, brackets = part.partition("(")
    part = part.removeprefix("gres/").removeprefix("gres:")
    if "=" in part:
        name, _, amount = part.rpartition("=")
    else:
        name, _, amount = part.rpartition(":")
        if not name or not re.fullmatch(r"\d+[KMG]?", amount, re.ASCII):
            name, amount = part, ""
    name, _, kind = name.partition(":")
    if brackets.startswith("IDX:") and not kind:  # gpu(IDX:0-3), gpu:2(IDX:0-1), and a type of digits: gpu:4090(IDX:0)
        amount = ""
    return name.lower(), kind, amount, brackets.rstrip(")")


def _indices(brackets: str) -> int | None:
    """How many cards ``IDX:0-3,6`` lists; without a list, one."""
    if not brackets.startswith("IDX:"):
        return 1
    cards = 0
    for part in brackets.removeprefix("IDX:").split(","):
        found = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part, re.ASCII)
        if not found:
            return None
        cards += max(int(found[2] or found[1]) - int(found[1]) + 1, 0)
    return cards
