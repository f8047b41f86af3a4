"""The files of phases that runs of a program leave to the next ones (``nodectl.policies.parts.gpu_memory``).

One file for each program on each kind of card, in a folder of mode 0700, each of mode 0600: what runs on a node is
nobody else's business. A node has those of its own jobs, the cluster agent those of each user's jobs. The name of a
file is a digest of the key, its last line the SHA-256 of all before it. A file that is damaged, of another format, or
that somebody other than this user and root could have written is not used; the next run of its program writes it again.
At most ``most`` are kept, those used last; one that was not used in ``LASTS_DAYS`` is dropped.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from foundation.planted_links import open_safely
from foundation.sealed_file import SealedFileError, sealed, text_of, write_whole
from foundation.shell.errors import plain_reason
from foundation.wire.phase_messages import KeptPhase, Key, Table

FOLDER: Final = "phases"
SUFFIX: Final = ".phases"
FORMAT: Final = 1

MOST_FILES: Final = 256
"""Ours: some 6 KB each."""

MOST_BYTES: Final = 1 << 20
"""Ours: of a file; eight phases of 32 clocks are 10 KB."""

MOST_TABLES, MOST_UNNAMED = 2, 16
"""Ours: so many programs of one name are distinguished, and so many without a name; a further one takes the place of
the one used longest ago."""

LASTS_DAYS: Final = 180
"""Ours, as a calibration: memory chips are the same, the program's libraries are not."""


class Remembered(msgspec.Struct, frozen=True):
    """One file: ``tables`` of programs of one name, the one used last first."""

    key: Key
    tables: tuple[Table, ...]
    format: int = FORMAT


@dataclass(frozen=True, slots=True)
class PhaseFiles:
    """The files below one folder, of which there are ``most`` at most."""

    folder: Path
    most: int = MOST_FILES

    @staticmethod
    def below(state_dir: str) -> PhaseFiles:
        """Those of the agent with this state directory."""
        return PhaseFiles(Path(state_dir) / FOLDER)

    def path(self, key: Key) -> Path:
        """Where the phases of this key are."""
        return self.folder / (key.digest + SUFFIX)

    def read(self, key: Key, now: datetime.datetime) -> Remembered | None:
        """What is kept of this key, without tables that are too old; None: nothing. ``SealedFileError`` if it cannot be
        used."""
        path = self.path(key)
        try:
            found = read_file(path)
        except FileNotFoundError:
            return None
        if found.key != key:
            raise SealedFileError(f"{path}: is of another program or card")
        tables = tuple(table for table in found.tables if not _is_old(table.used_at, now))
        return msgspec.structs.replace(found, tables=tables) if tables else None

    def write(self, found: Remembered, is_synced: bool = True) -> None:
        """Put this in place of what was kept of its key, and delete the files used longest ago above ``most``.
        ``is_synced``: whether it waits until a power cut cannot take it any more."""
        with contextlib.suppress(FileExistsError):
            self.folder.mkdir(mode=0o700, parents=True)
        write_whole(
            self.path(found.key), sealed(msgspec.json.encode(found).decode() + "\n"), mode=0o600, is_synced=is_synced
        )
        if sum(name.endswith(SUFFIX) for name in os.listdir(self.folder)) > self.most:  # without a look at each
            for path in self.paths()[self.most :]:
                path.unlink(missing_ok=True)

    def forget(self, digests: Iterable[str]) -> int:
        """Delete these, named by ``Key.digest``; how many there were. ``OSError`` if one cannot be deleted."""
        paths = [self.folder / (digest + SUFFIX) for digest in digests]
        found = [path for path in paths if path.exists()]
        for path in found:
            path.unlink(missing_ok=True)
        return len(found)

    def paths(self) -> list[Path]:
        """Every file, the one written last first."""
        return sorted(self.folder.glob("*" + SUFFIX), key=_modified, reverse=True)

    def all(self, most: int | None = None) -> tuple[list[Remembered], list[str]]:
        """The ``most`` files used last, by program; and a line for each that cannot be used."""
        found, lines = [], []
        for path in self.paths()[: most or self.most]:
            try:
                found.append(read_file(path))
            except FileNotFoundError:
                continue
            except SealedFileError as error:
                lines.append(str(error))
        return sorted(found, key=lambda one: one.key), lines


def read_file(path: Path) -> Remembered:
    """One file. ``SealedFileError`` in one line if it cannot be used, ``FileNotFoundError`` if it is not there."""
    try:
        with open(open_safely(path, os.O_RDONLY), "rb") as file:
            state = os.fstat(file.fileno())
            if state.st_uid not in (0, os.geteuid()) or state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise SealedFileError(f"{path}: not used: others than its agent could have written it")
            content = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise SealedFileError(f"{path}: cannot be read: {error.strerror}") from None
    if len(content) > MOST_BYTES:
        raise SealedFileError(f"{path}: has more than {MOST_BYTES >> 20} MiB")
    text = text_of(content.decode(errors="replace"), str(path))
    try:
        found = msgspec.json.decode(text, type=Remembered)
    except (msgspec.DecodeError, RecursionError) as error:
        raise SealedFileError(f"{path}: has no phases: {plain_reason(str(error))}") from None
    if found.format != FORMAT:
        raise SealedFileError(f"{path}: is of format {found.format}, this agent reads {FORMAT}")
    if not all(phase.is_sound for table in found.tables for phase in table.phases):
        raise SealedFileError(f"{path}: has a phase whose columns differ in length or are no measurement")
    return found


def with_run(
    before: Remembered | None, key: Key, place: int | None, phases: tuple[KeptPhase, ...], now: datetime.datetime
) -> Remembered:
    """What is kept after a run that ended with ``phases``; ``place``: the table that it began with, None: a new one."""
    tables = list(before.tables) if before else []
    runs = 1
    if place is not None and place < len(tables):
        runs += tables.pop(place).runs
    table = Table(phases, runs, now.isoformat(timespec="seconds"))
    return Remembered(key, (table, *tables)[: MOST_TABLES if key.program else MOST_UNNAMED])


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _is_old(used_at: str, now: datetime.datetime) -> bool:
    try:
        return datetime.datetime.fromisoformat(used_at) + datetime.timedelta(days=LASTS_DAYS) < now
    except (ValueError, TypeError):
        return True
