"""The files of phases that runs of a program leave to the next ones (``nodectl.policies.parts.gpu_memory``).

One file for each program on each kind of card, in ``phases`` below the agent's state directory, of mode 0600: what runs
on a node is nobody else's business. Its name is a digest of the key, its last line the SHA-256 of all before it. A file
that is damaged, of another format, or that somebody other than this user and root could have written is not used; the
next run of its program writes it again. At most ``MOST_FILES`` are kept, those used last; one that was not used in
``LASTS_DAYS`` is dropped.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from foundation.digest import sha256_hex
from foundation.planted_links import open_safely
from foundation.sealed_file import SealedFileError, sealed, text_of, write_whole
from foundation.shell.errors import plain_reason
from nodectl.policies.parts.gpu_memory import KeptPhase

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


class Key(msgspec.Struct, frozen=True, order=True):
    """What must be the same for phases to apply. ``program``: what started the job; "" where nobody says.
    ``limit_w``: the power limit of a board."""

    program: str
    card: str
    driver: str
    limit_w: float

    @property
    def digest(self) -> str:
        """The name of its file, without the suffix."""
        return sha256_hex(msgspec.json.encode(self))[:16]


class Table(msgspec.Struct, frozen=True):
    """The phases of one program. ``runs``: how many have measured them; ``used_at``: when the last of them ended."""

    phases: tuple[KeptPhase, ...]
    runs: int
    used_at: str


class Remembered(msgspec.Struct, frozen=True):
    """One file: ``tables`` of programs of one name, the one used last first."""

    key: Key
    tables: tuple[Table, ...]
    format: int = FORMAT


@dataclass(frozen=True, slots=True)
class PhaseFiles:
    """The files below one state directory."""

    folder: Path

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

    def write(self, found: Remembered) -> None:
        """Put this in place of what was kept of its key, and delete the files used longest ago above ``MOST_FILES``."""
        with contextlib.suppress(FileExistsError):
            self.folder.mkdir(mode=0o700, parents=True)
        write_whole(self.path(found.key), sealed(msgspec.json.encode(found).decode() + "\n"), mode=0o600)
        for path in self.paths()[MOST_FILES:]:
            path.unlink(missing_ok=True)

    def paths(self) -> list[Path]:
        """Every file, the one written last first."""
        return sorted(self.folder.glob("*" + SUFFIX), key=_modified, reverse=True)

    def all(self, most: int = MOST_FILES) -> tuple[list[Remembered], list[str]]:
        """The ``most`` files used last, by program; and a line for each that cannot be used."""
        found, lines = [], []
        for path in self.paths()[:most]:
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
