"""What a mutation is, what became of it, and the list of survivors that are known: ``tests/mutants.toml``.

A mutation is identified by the text that it changes, not by its line number, so that an edit elsewhere in the file
leaves the entries of ``mutants.toml`` valid:

    [[mutant]]
    file = "nodectl/member/lease.py"
    where = "NodeLease.take"            # function, qualified by its class; "" outside of any
    before = "if now_ns >= end_ns:"     # the changed line or lines, each run of white space as one space
    after = "if now_ns > end_ns:"
    kind = "equivalent"                 # no test could notice; or "gap": one could, and is missing
    reason = "at end_ns itself both branches return the same"

A language's half is a module of this folder with two names, which ``__main__`` puts together:

    TARGETS: Sequence[Target]
    def try_mutants(root: Path, targets: Sequence[Target], jobs: int, every: int) -> Iterator[Result]

``try_mutants`` works on a copy of the tree at ``root``, which it never changes, runs ``jobs`` processes at a time, and
yields a row as soon as a mutant is decided. ``every``: try only each n-th mutant, for a quick look; 1: all.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal, Protocol, TypeAlias

import msgspec

Outcome: TypeAlias = Literal["killed", "survived", "timeout", "build-failed"]
"""``timeout``: the tests did not end in the time that they need many times less of; it counts as killed.
``build-failed``: the compiler refused the mutant, so it is none and counts nowhere."""

Kind: TypeAlias = Literal["equivalent", "gap"]

LEAST_SCORE: Final = 0.9
"""Ours: of the mutants of a file, and of all together, at least so many must be killed."""


class MutationError(Exception):
    """Mutants cannot be tried: ``mutants.toml`` is wrong, or the tests fail without a mutation. For people."""


@dataclass(frozen=True, slots=True)
class Target:
    """One file whose mutants are tried.

    ``tests``: what is run against them, as arguments of pytest. ``is_safety``: belongs to the safety set,
    which ``make mutate`` tries; the others are tried by ``make mutate MUTATE=all``.
    """

    file: str
    tests: tuple[str, ...]
    is_safety: bool = True


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change of one file. Text as ``squeeze`` gives it."""

    file: str
    where: str
    before: str
    after: str
    occurrence: int = 1
    """Which of the places in ``where`` that this describes, should there be several; the first is 1."""

    def __str__(self) -> str:
        number = f" (occurrence {self.occurrence})" if self.occurrence > 1 else ""
        return f"{self.file}: {self.where or '(module)'}{number}\n    - {self.before}\n    + {self.after}"


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a mutant. ``line`` and ``seconds`` (of CPU time) are for the reader only. ``is_sampled``: false of
    one outside of the sample, which was tried since it is listed; the score is that of the sample."""

    mutation: Mutation
    outcome: Outcome
    seconds: float
    line: int = 0
    is_sampled: bool = True


@dataclass(frozen=True, slots=True)
class Entry:
    """One survivor that is known."""

    mutation: Mutation
    kind: Kind
    reason: str


class Half(Protocol):
    """``try_mutants`` of a language."""

    def __call__(self, root: Path, targets: Sequence[Target], jobs: int, every: int) -> Iterator[Result]:
        """See above."""
        ...


def squeeze(text: str) -> str:
    """Source text on one line, each run of white space as one space."""
    return re.sub(r"\s+", " ", text).strip()


def numbered(mutations: Sequence[Mutation]) -> list[Mutation]:
    """The same, with the occurrence of each among those that read alike."""
    seen: Counter[Mutation] = Counter()
    result = []
    for one in mutations:
        seen[one] += 1
        result.append(Mutation(one.file, one.where, one.before, one.after, seen[one]))
    return result


class _Table(msgspec.Struct, forbid_unknown_fields=True):
    file: str
    where: str
    before: str
    after: str
    kind: Kind
    reason: Annotated[str, msgspec.Meta(min_length=1)]
    occurrence: int = 1


class _File(msgspec.Struct, forbid_unknown_fields=True):
    mutant: list[_Table] = []


def read_entries(path: Path) -> dict[Mutation, Entry]:
    """The survivors that are known. ``MutationError``: the file is missing, or an entry is not as above."""
    try:
        tables = msgspec.toml.decode(path.read_bytes(), type=_File).mutant
    except (OSError, msgspec.DecodeError) as error:
        raise MutationError(f"{path}: {error}") from None
    entries: dict[Mutation, Entry] = {}
    for one in tables:
        mutation = Mutation(one.file, one.where, squeeze(one.before), squeeze(one.after), one.occurrence)
        if mutation in entries:
            raise MutationError(f"{path}: listed twice: {mutation}")
        entries[mutation] = Entry(mutation, one.kind, one.reason)
    return entries
