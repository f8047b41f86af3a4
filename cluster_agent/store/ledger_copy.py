"""A second copy of what the budget cannot be kept without, in a file next to the store: ``cluster.db-copy``.

    6b1f02aa 00000000000000000417                 the number of the last commit, overwritten in place by each
    0c9d51e0 ["epoch",7]
    9f1c02ab ["member",0,"n01",{"tdp_mw":520000, ...}]
    4410be97 ["budget",1400000,[]]
    77ab3d10 ["schema",[["table","owner","owner",2], ...]]

It is read only where the store is damaged. The names and declarations of nodes are needed then: a node whose count is
damaged counts its TDP, and one whose name is lost would count nothing. The number shows whether the store has lost
commits: a damaged write-ahead log ends, for SQLite, at its last good frame, without an error, and an older copy that
was put back is in perfect order.

Nodes are appended and synced after their commit and before anything is granted to them; of several lines the last one
counts. So what the copy has and the store has not, was lost. Counts are not in it: they change all the
time. The number goes to the kernel after each commit and is not synced: it outlives a killed agent, and a machine that
went down makes counts uncertain anyway.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from cluster_agent.errors import ClusterError
from nodectl.wire.power_messages import Declaration

Steps: TypeAlias = list[tuple[float, int]]
Members: TypeAlias = Mapping[int, tuple[str, Declaration]]

_NUMBER_DIGITS: Final = 20


@dataclass(slots=True)
class Copy:
    """What a copy says. ``commit``: the number of a commit that the store had; 0: not known. ``damaged``: so many lines
    are."""

    commit: int = 0
    epoch: int = 0
    members: dict[int, tuple[str, Declaration]] = field(default_factory=dict)
    budget: tuple[int, Steps] | None = None
    schema: list[tuple[str, str, str, int]] = field(default_factory=list)
    damaged: int = 0

    def take(self, kind: str, *values: Any) -> None:
        """One line; an exception of msgspec, or ``ValueError``, for one that cannot be."""
        if kind == "epoch":
            (self.epoch,) = msgspec.convert(values, tuple[int])
        elif kind == "member":
            place, name, declaration = msgspec.convert(values, tuple[int, str, Declaration])
            self.members[place] = name, declaration
        elif kind == "budget":
            self.budget = msgspec.convert(values, tuple[int, Steps])
        elif kind == "schema":
            (self.schema,) = msgspec.convert(values, tuple[list[tuple[str, str, str, int]]])


class LedgerCopy:
    """The copy at ``path``. What cannot be written raises ``ClusterError``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, commit: int, *lines: tuple[Any, ...]) -> None:
        """Replace the whole copy."""
        part = self.path.with_name(f"{self.path.name}.new")
        with self._saying():
            part.unlink(missing_ok=True)
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            _put(descriptor, _numbered(commit) + b"".join(_line(one) for one in lines), 0)
            os.replace(part, self.path)
            sync_directory(self.path.parent)

    def append(self, *lines: tuple[Any, ...]) -> None:
        """Add lines, if there is a copy; they are on the disk when this returns."""
        with self._saying(), contextlib.suppress(FileNotFoundError):
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
            # the last line may have been cut short
            _put(descriptor, b"\n" + b"".join(_line(one) for one in lines), os.fstat(descriptor).st_size)

    def note(self, commit: int) -> None:
        """The store has this commit. Without a copy, and where it cannot be written, this does nothing."""
        with contextlib.suppress(OSError):
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.pwrite(descriptor, _numbered(commit), 0)
            finally:
                os.close(descriptor)

    def read(self) -> Copy | None:
        """What it says; None: there is none."""
        try:
            first, *lines = self.path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ClusterError(f"{self.path}: cannot read it: {error.strerror}") from None
        found = Copy()
        digits = first[9:]
        if first == _numbered(int(digits) if digits.isdigit() else 0)[:-1]:
            found.commit = int(digits)
        else:
            found.damaged += 1
        for line in filter(None, lines):
            try:
                if int(line[:8], 16) != zlib.crc32(line[9:]):
                    raise ValueError("its checksum is wrong")
                found.take(*msgspec.json.decode(line[9:]))
            except (ValueError, TypeError, RecursionError, msgspec.MsgspecError):
                found.damaged += 1
        return found

    @contextlib.contextmanager
    def _saying(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ClusterError(f"{self.path}: cannot write the store: {error.strerror}") from None


def sync_directory(path: Path) -> None:
    """Put the names in it on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _put(descriptor: int, data: bytes, at: int) -> None:
    """Write all of it there, sync, and close."""
    try:
        while data:
            written = os.pwrite(descriptor, data, at)
            data, at = data[written:], at + written
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _numbered(commit: int) -> bytes:
    digits = b"%0*d" % (_NUMBER_DIGITS, commit)
    return b"%08x %s\n" % (zlib.crc32(digits), digits)


def _line(values: tuple[Any, ...]) -> bytes:
    text = msgspec.json.encode(values)
    return b"%08x %s\n" % (zlib.crc32(text), text)
