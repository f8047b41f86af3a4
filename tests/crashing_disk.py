"""What a crash may leave on a disk: the states of a directory tree at any point of a recorded sequence of operations.

The rules are those of POSIX, which promise less than most file systems keep:

- Bytes are on the disk when a sync of their file has returned. Of what was written since, any part may be there:
  nothing, all, all up to some byte, zeros in its place, or a later write without an earlier one.
- A name (made, renamed, removed) is on the disk when a sync of its directory has returned. Each change since may be
  there or not. A rename is there whole or not at all.

``Disk.saw`` takes the operations in order, ``Mark`` among them: what the program did meanwhile elsewhere (moved a knob,
sent a message). ``Disk.after_crash`` gives the trees that may be left after the operations so far, as
``{path: bytes}``. ``RecordedOs`` stands in for ``os`` in a module and records; ``traced`` reads what strace recorded.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

TORN_AT_EVERY_BYTE: Final = 400
"""A longer write is torn at its sectors only."""
SECTOR: Final = 512

Tree: TypeAlias = dict[str, bytes]


@dataclass(frozen=True, slots=True)
class Create:
    path: str


@dataclass(frozen=True, slots=True)
class Write:
    path: str
    at: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Truncate:
    path: str
    size: int


@dataclass(frozen=True, slots=True)
class Sync:
    """Of a file or of a directory."""

    path: str


@dataclass(frozen=True, slots=True)
class Rename:
    path: str
    to: str


@dataclass(frozen=True, slots=True)
class Unlink:
    path: str


@dataclass(frozen=True, slots=True)
class MakeDirectory:
    path: str


@dataclass(frozen=True, slots=True)
class Mark:
    """Something else that happened at this point."""

    what: str
    value: Any = None


Operation: TypeAlias = Create | Write | Truncate | Sync | Rename | Unlink | MakeDirectory | Mark


@dataclass(eq=False, slots=True)
class _File:
    synced: bytes = b""
    pending: list[Write | Truncate] = field(default_factory=list)

    def all(self) -> bytes:
        return _applied(self.synced, self.pending)

    def parts(self) -> Iterator[bytes]:
        """What may be left of it."""
        if not self.pending:
            yield self.synced
            return
        for n in range(len(self.pending) + 1):
            before = _applied(self.synced, self.pending[:n])
            yield before
            if n < len(self.pending) and isinstance(write := self.pending[n], Write):
                for cut in _cuts(len(write.data)):
                    yield _applied(before, [Write(write.path, write.at, write.data[:cut])])
                yield _applied(before, [Write(write.path, write.at, bytes(len(write.data)))])
        for n in range(len(self.pending) - 1):
            yield _applied(self.synced, self.pending[:n] + self.pending[n + 1 :])

    def samples(self) -> Iterator[bytes]:
        """Some of that: a half, and that with half of the next write."""
        half = len(self.pending) // 2
        yield _applied(self.synced, self.pending[:half])
        if half < len(self.pending) and isinstance(write := self.pending[half], Write):
            torn = Write(write.path, write.at, write.data[: len(write.data) // 2])
            yield _applied(self.synced, [*self.pending[:half], torn])


class _Directory:
    pass


class Disk:
    """The directory tree below ``root``, which is there from the beginning and empty."""

    def __init__(self, root: str | Path, sampled: tuple[str, ...] = ()) -> None:
        """``sampled``: of files whose names end so, only some of what may be left is tried: a database that is never
        synced between its checkpoints has too many states."""
        self.root, self.sampled = str(root), sampled
        self._now: dict[str, _File | _Directory] = {}
        self._synced: dict[str, _File | _Directory] = {}
        self._unsynced: list[dict[str, _File | _Directory | None]] = []

    def saw(self, operation: Operation) -> None:
        """One operation more."""
        match operation:
            case Create(path):
                self._change({path: _File()})
            case MakeDirectory(path):
                self._change({path: _Directory()})
            case Unlink(path):
                self._change({path: None})
            case Rename(path, to):
                self._change({path: None, to: self._now[path]})
            case Write(path) | Truncate(path):
                self._file(path).pending.append(operation)
            case Sync(path) if path == self.root or isinstance(self._now[path], _Directory):
                self._sync_directory(path)
            case Sync(path):
                file = self._file(path)
                file.synced, file.pending = file.all(), []

    def sync_all(self) -> None:
        """Everything is on the disk."""
        for path in list(self._now):
            self.saw(Sync(os.path.dirname(path)))
            self.saw(Sync(path))
        assert not self._unsynced

    def as_it_is(self) -> Tree:
        """What every program sees now, and what the death of one leaves."""
        return {path: one.all() for path, one in self._now.items() if isinstance(one, _File)}

    def after_crash(self) -> Iterator[Tree]:
        """What may be left if the machine goes down now, each tree once."""
        seen: set[frozenset[tuple[str, bytes]]] = set()
        for tree in self._trees():
            if (found := frozenset(tree.items())) not in seen:
                seen.add(found)
                yield tree

    def _trees(self) -> Iterator[Tree]:
        for kept in itertools.product((False, True), repeat=len(self._unsynced)):
            names = dict(self._synced)
            for is_kept, change in zip(kept, self._unsynced, strict=True):
                if is_kept:
                    for path, one in change.items():
                        if one is None:
                            names.pop(path, None)
                        else:
                            names[path] = one
            files = {path: one for path, one in names.items() if isinstance(one, _File) and self._is_below(path, names)}
            for others in (lambda file: file.synced, lambda file: file.all()):
                rest = {path: others(file) for path, file in files.items()}
                yield rest
                for path, file in files.items():
                    parts = file.samples() if path.endswith(self.sampled) else file.parts()
                    for part in parts:
                        yield rest | {path: part}

    def _is_below(self, path: str, names: Mapping[str, _File | _Directory]) -> bool:
        above = os.path.dirname(path)
        return above == self.root or (above in names and self._is_below(above, names))

    def _change(self, change: dict[str, _File | _Directory | None]) -> None:
        self._unsynced.append(change)
        for path, one in change.items():
            if one is None:
                self._now.pop(path, None)
            else:
                self._now[path] = one

    def _sync_directory(self, directory: str) -> None:
        waiting = []
        for change in self._unsynced:
            if all(os.path.dirname(path) == directory for path in change):
                for path, one in change.items():
                    if one is None:
                        self._synced.pop(path, None)
                    else:
                        self._synced[path] = one
            else:
                waiting.append(change)
        self._unsynced = waiting

    def _file(self, path: str) -> _File:
        file = self._now[path]
        assert isinstance(file, _File)
        return file


def put(tree: Tree, at: Path) -> None:
    """Lay a tree of absolute paths out below ``at``, which stands for the root of them all."""
    for path, data in tree.items():
        file = at / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)


def _cuts(length: int) -> range:
    return range(1, length, 1 if length <= TORN_AT_EVERY_BYTE else SECTOR)


def _applied(data: bytes, operations: list[Write | Truncate]) -> bytes:
    made = bytearray(data)
    for one in operations:
        if isinstance(one, Truncate):
            made = made[: one.size] + bytes(max(one.size - len(made), 0))
        else:
            made += bytes(max(one.at - len(made), 0))
            made[one.at : one.at + len(one.data)] = one.data
    return bytes(made)


class RecordedOs:
    """``os`` for one module, on real files; what it changes is recorded in ``operations``.

    Only what is written out here can be called: a function that the module begins to use must be recorded too.
    """

    path = os.path

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.is_full = range(0)
        """The operations, by number, during which the disk is full: a write that is the first of them is cut short."""
        self.tries = 0
        self._paths: dict[int, str] = {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("O_") or name in ("close", "fstat", "geteuid", "lseek", "pread", "stat", "SEEK_SET"):
            return getattr(os, name)
        raise AttributeError(f"os.{name} is not recorded: add it to tests/crashing_disk.py")

    def mark(self, what: str, value: Any = None) -> None:
        self.operations.append(Mark(what, value))

    def open_new(self, path: str) -> int:
        """In place of ``planted_links.open_new``."""
        if os.path.exists(path):
            self.unlink(path)
        return self.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        is_new = flags & os.O_CREAT and not os.path.exists(path)
        if is_new:
            self._saw(Create(path))
        fd = os.open(path, flags, mode)
        self._paths[fd] = path
        return fd

    def write(self, fd: int, data: bytes) -> int:
        path = self._paths[fd]
        data = data[: max(len(data) // 2, 1)] if self.tries in self.is_full[:1] else data
        self._saw(Write(path, os.fstat(fd).st_size, data), does_fit=self.tries in self.is_full[:1])  # it appends
        return os.write(fd, data)

    def pwrite(self, fd: int, data: bytes, at: int) -> int:
        self._saw(Write(self._paths[fd], at, data))
        return os.pwrite(fd, data, at)

    def fsync(self, fd: int) -> None:
        self._saw(Sync(self._paths[fd]))

    def makedirs(self, path: str, mode: int = 0o777, exist_ok: bool = False) -> None:
        above = os.path.dirname(path)
        if not os.path.exists(above):
            self.makedirs(above, mode, exist_ok)
        if not (exist_ok and os.path.isdir(path)):
            self.mkdir(path, mode)

    def mkdir(self, path: str, mode: int = 0o777) -> None:
        self._saw(MakeDirectory(path), os.path.exists(path))
        os.mkdir(path, mode)

    def replace(self, path: str, to: str) -> None:
        self._saw(Rename(path, to))
        os.replace(path, to)
        self._paths = {fd: to if name == path else name for fd, name in self._paths.items()}

    rename = replace

    def unlink(self, path: str) -> None:
        self._saw(Unlink(path), not os.path.exists(path))
        os.unlink(path)

    def _saw(self, operation: Operation, is_refused: bool = False, does_fit: bool = False) -> None:
        """``is_refused``: the real one will raise, and changes nothing."""
        self.tries += 1
        if self.tries - 1 in self.is_full and not does_fit:
            raise OSError(28, os.strerror(28))
        if not is_refused:
            self.operations.append(operation)


SYSTEM_CALLS: Final = (
    "open,openat,creat,write,pwrite64,writev,pwritev,fsync,fdatasync,sync_file_range,ftruncate,fallocate,"
    "rename,renameat,renameat2,unlink,unlinkat,mkdir,mkdirat,link,linkat"
)
STRACE: Final = ("strace", "-f", "--seccomp-bpf", "-y", "-xx", "-s", "10000000", "-e", f"trace={SYSTEM_CALLS}")
"""``-y``: descriptors with their paths; ``-xx``: all text as bytes."""

_CALL: Final = re.compile(r"^(?:\d+ +)?(\w+)\((.*)\) += (\d+)(?:<(.*)>)?$")
_BYTES: Final = re.compile(r"(?:\\x[0-9a-f]{2})+")


def traced(lines: list[str], root: str | Path, marks: str) -> list[Operation]:
    """The operations below ``root`` of a program that ran under ``STRACE``; what it wrote to ``marks`` are marks."""
    operations: list[Operation] = []
    there: set[str] = set()

    def text(escaped: str) -> str:
        return _BYTES.sub(lambda found: bytes.fromhex(found[0].replace("\\x", "")).decode("latin-1"), escaped)

    for line in lines:
        assert "unfinished" not in line, "calls of two threads overlap: their order is not known"
        if not (found := _CALL.match(line)):
            continue  # it failed, or is a signal
        call, arguments = found[1], found[2].split(", ")
        path = text(re.findall(r'"(.*?)"|<(.*?)>', found[2])[-1 if call.startswith("mkdirat") else 0][0] or "")
        if call in ("open", "openat", "creat"):
            path = text(found[4])
            is_made = "O_CREAT" in found[2] or call == "creat"
            if is_made and path.startswith(f"{root}/") and path not in there:
                operations.append(Create(path))
                there.add(path)
            assert "O_TRUNC" not in found[2] or not path.startswith(f"{root}/"), f"not understood: {line[:200]}"
            continue
        if call == "fallocate":
            path = text(re.search(r"<(.*?)>", arguments[0])[1])
            assert arguments[1] == "0", f"not understood: {line[:200]}"
            if path.startswith(f"{root}/"):
                operations.append(Truncate(path, int(arguments[2]) + int(arguments[3])))
            continue
        if call in ("write", "pwrite64", "fsync", "fdatasync", "ftruncate"):
            path = text(re.search(r"<(.*?)>", arguments[0])[1])
            data = text(found[2].split('"')[1]).encode("latin-1") if "write" in call else b""
            if call == "write" and path == marks:
                operations.append(Mark(data.decode()))
            if path != str(root) and not path.startswith(f"{root}/"):
                continue
            if call == "pwrite64":
                operations.append(Write(path, int(arguments[-1]), data[: int(found[3])]))
            elif call in ("fsync", "fdatasync"):
                operations.append(Sync(path))
            else:
                assert call == "ftruncate", f"not understood: {line[:200]}"
                operations.append(Truncate(path, int(arguments[-1])))
            continue
        paths = [text(one) for one in re.findall(r'"(.*?)"', found[2])]
        if not any(one.startswith(f"{root}/") for one in paths):
            continue
        if call in ("mkdir", "mkdirat"):
            operations.append(MakeDirectory(paths[0]))
        elif call in ("unlink", "unlinkat"):
            operations.append(Unlink(paths[0]))
            there.discard(paths[0])
        elif call.startswith("rename"):
            operations.append(Rename(*paths))
            there.discard(paths[0])
            there.add(paths[1])
        else:
            raise AssertionError(f"not understood: {line[:200]}")
    return operations
