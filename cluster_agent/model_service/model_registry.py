"""Models on the disk: ``NAME/VERSION/{model.npz, card.toml, metrics.json}``, and which of them predicts.

A version is a folder that comes by one rename and never changes. Its card says what it was trained on, and has the
SHA-256 of the other two files; the card's last line is its own (``foundation.sealed_file``). ``NAME/champion`` is one
such sealed file: the version that predicts, those that did before, who chose it, when and why. It too comes by one
rename, so whoever reads it finds the state before a change or after it, wherever the change was killed.

A model is data. What is read has to belong to root or to this process's own user, and nobody else may write it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import stat
import time
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from cluster_agent.errors import ClusterError, WrongUseError
from cluster_agent.model_service.group_table import MOST_BYTES, GroupTable, TableError
from cluster_agent.model_service.room_model import RoomModel
from foundation.directories import sync_directory
from foundation.sealed_file import SealedFileError, sealed, text_of, write_whole
from foundation.shell.errors import nearest, plain_reason

FORMAT: Final = 1
CHAMPION: Final = "champion"
MODEL, CARD, METRICS = "model.npz", "card.toml", "metrics.json"
CODE: Final = (".pkl", ".pickle", ".joblib", ".pt", ".pth", ".py")
WATTS, HAZARD = "group table", "hazard"
KINDS: Final[Mapping[str, type[GroupTable] | type[RoomModel]]] = {WATTS: GroupTable, HAZARD: RoomModel}
"""What a version may be, by the ``kind`` of its card."""

FORMER: Final = 100
"""Ours: changes that the champion's file remembers."""

_NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,31}")
_VERSION: Final = re.compile(r"[1-9][0-9]{0,8}")

Read = TypeVar("Read", bound=msgspec.Struct)


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """What a version is. ``known_s``: every job that it has learned from ended by then. ``shares``: of the jobs that
    it was trained on, in the bins of ``drift``. ``error``: on jobs that it had not seen, as in ``on_line_errors``. Of a
    hazard, the jobs are hours of a room."""

    format: int = FORMAT
    kind: str = WATTS
    name: str
    version: int
    jobs: int
    known_s: float
    error: float | None = None
    model_sha256: str
    metrics_sha256: str
    shares: dict[str, list[float]]


class Metrics(msgspec.Struct, frozen=True):
    """On the last fifth of its jobs, which the judged table had not seen: mean errors of the table and of the nearest
    past jobs, and by how much the table's is lower, with the 95 % interval; None: too few jobs."""

    judged: int = 0
    error: float | None = None
    nearest_error: float | None = None
    gain: float | None = None
    gain_low: float | None = None
    gain_high: float | None = None


class Change(msgspec.Struct, frozen=True):
    """A change of the champion, from version ``was`` to ``version``. 0: none; the nearest past jobs predict."""

    version: int
    was: int
    unix_s: float
    by: str
    why: str
    is_forced: bool = False
    is_rollback: bool = False
    is_alarm: bool = False


class Champion(msgspec.Struct, frozen=True):
    """The newest change first."""

    changes: list[Change] = []
    format: int = FORMAT

    @property
    def version(self) -> int:
        """That predicts now; 0: none."""
        return self.changes[0].version if self.changes else 0

    @property
    def alarm(self) -> str:
        """Why an alarm is on, from a rollback for drift to the next change; empty: none."""
        return self.changes[0].why if self.changes and self.changes[0].is_alarm else ""

    @property
    def taken_back(self) -> set[int]:
        """Versions that were rolled back and not promoted since."""
        found = set[int]()
        for change in reversed(self.changes):
            found.discard(change.version)
            if change.is_rollback:
                found.add(change.was)
        return found

    @property
    def earlier(self) -> list[int]:
        """Former champions that one can go back to, the newest first."""
        found = dict.fromkeys(change.was for change in self.changes)
        return [version for version in found if version not in {0, self.version, *self.taken_back}]


class Version(msgspec.Struct, frozen=True):
    """A version that was read."""

    card: Card
    metrics: Metrics
    content: GroupTable | RoomModel
    sha256: str
    """Of the card, and so of all."""

    @property
    def table(self) -> GroupTable:
        """Of watts; ``ClusterError`` for a version of another kind."""
        if not isinstance(self.content, GroupTable):
            raise ClusterError(f"{self.card.name}: predicts the hazard of a room, and not the watts of jobs")
        return self.content

    @property
    def room(self) -> RoomModel:
        """Of a hazard; ``ClusterError`` for a version of another kind."""
        if not isinstance(self.content, RoomModel):
            raise ClusterError(f"{self.card.name}: predicts the watts of jobs, and not the hazard of a room")
        return self.content


class Registry:
    """The versions of one model below ``folder``. ``ClusterError`` in one line for what is damaged or not ours."""

    def __init__(self, folder: Path, name: str) -> None:
        """``WrongUseError`` for a name that cannot be."""
        if not _NAME.fullmatch(name):
            raise WrongUseError(f"{name!r} is no name of a model: small letters, digits and -, such as watts")
        self.name, self.path = name, folder / name

    def versions(self) -> list[int]:
        """All, the oldest first."""
        try:
            return sorted(int(entry) for entry in os.listdir(self.path) if _VERSION.fullmatch(entry))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ClusterError(f"{self.path}: cannot be read: {error.strerror}") from None

    def champion(self) -> Champion:
        """Who predicts."""
        path = self.path / CHAMPION
        try:
            content = own_content(path)
        except FileNotFoundError:
            return Champion()
        found = _decoded(_unsealed(content, path), path, Champion)
        if any(min(change.version, change.was) < 0 for change in found.changes):
            raise ClusterError(f"{path}: has a version below 0")
        return found

    def version(self, number: int) -> Version:
        """One of ``versions``."""
        folder = self.path / str(number)
        if not folder.is_dir():
            known = ", ".join(map(str, self.versions())) or "none"
            raise WrongUseError(f"{self.path}: there is no version {number} (there is {known})")
        for entry in os.listdir(folder):
            if entry.endswith(CODE):
                raise ClusterError(f"{folder / entry}: is code, not data, and is not read: remove it")
        try:
            card_bytes, metrics_bytes, model = (own_content(folder / one) for one in (CARD, METRICS, MODEL))
        except FileNotFoundError as error:
            raise ClusterError(f"{error.filename}: is missing") from None
        card = _decoded(_unsealed(card_bytes, folder / CARD), folder / CARD, Card)
        for content, wanted, file in ((metrics_bytes, card.metrics_sha256, METRICS), (model, card.model_sha256, MODEL)):
            if hashlib.sha256(content).hexdigest() != wanted:
                raise ClusterError(f"{folder / file}: was changed or cut off: its SHA-256 is not that of {CARD}")
        if (card.name, card.version) != (self.name, number):
            raise ClusterError(f"{folder / CARD}: is of {card.name} version {card.version}: folders were moved")
        try:
            metrics = msgspec.json.decode(metrics_bytes, type=Metrics)
            if card.kind not in KINDS:
                raise ClusterError(f"{folder / CARD}: its kind {card.kind!r} is none of {', '.join(KINDS)}")
            found = KINDS[card.kind].of_content(model)
        except msgspec.MsgspecError as error:
            raise ClusterError(f"{folder / METRICS}: {plain_reason(str(error))}") from None
        except TableError as error:
            raise ClusterError(f"{folder / MODEL}: {error}") from None
        return Version(card, metrics, found, hashlib.sha256(card_bytes).hexdigest())

    @property
    def kind(self) -> str:
        """Of its versions: of the newest whose card can be read; ``WATTS`` where there is none."""
        for number in reversed(self.versions()):
            path = self.path / str(number) / CARD
            with contextlib.suppress(ClusterError, FileNotFoundError):
                return _decoded(_unsealed(own_content(path), path), path, Card).kind
        return WATTS

    def refuse_other(self, kind: str) -> None:
        """``WrongUseError`` where there are versions of another kind."""
        if self.versions() and self.kind != kind:
            raise WrongUseError(f"{self.path}: has versions of another kind ({self.kind}): choose another name")

    def add(self, card: Card, metrics: Metrics, content: GroupTable | RoomModel) -> Version:
        """Write the next version; it is there whole or not at all. The caller has ``locked``."""
        self.sweep()
        number = max(self.versions(), default=0) + 1
        model, metrics_bytes = content.content(), msgspec.json.format(msgspec.json.encode(metrics), indent=1)
        card = msgspec.structs.replace(
            card, name=self.name, version=number, model_sha256=hashlib.sha256(model).hexdigest(),
            metrics_sha256=hashlib.sha256(metrics_bytes).hexdigest(),
        )  # fmt: skip
        made, folder = self.path / f".new-{os.getpid()}", self.path / str(number)
        try:
            os.makedirs(made, 0o755)
            write_whole(made / MODEL, model)
            write_whole(made / METRICS, metrics_bytes)
            write_whole(made / CARD, sealed(_toml(card)))
            sync_directory(made)
            os.rename(made, folder)
            sync_directory(self.path)
        except (OSError, SealedFileError) as error:
            shutil.rmtree(made, ignore_errors=True)
            why = error.strerror if isinstance(error, OSError) else str(error).rpartition(": ")[2]
            raise ClusterError(f"{folder}: cannot be written: {why}; no version was made") from None
        return self.version(number)

    def change(self, change: Change) -> None:
        """Another champion, by one rename. The caller has ``locked``."""
        self.sweep()
        path = self.path / CHAMPION
        changes = [change, *self.champion().changes][:FORMER]
        try:
            write_whole(path, sealed(_toml(Champion(changes))))
            sync_directory(self.path)
        except (OSError, SealedFileError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error).rpartition(": ")[2]
            raise ClusterError(f"{path}: cannot be written: {why}; the champion stays as it was") from None

    def sweep(self) -> None:
        """Remove what commands left that were killed: folders of ``add``, files of ``write_whole``. The caller has
        ``locked``."""
        for entry in self.path.glob(".new-*"):
            shutil.rmtree(entry, ignore_errors=True)
        for entry in (*self.path.glob(f".{CHAMPION}.*"), *self.path.glob(".*.json.*")):
            with contextlib.suppress(OSError):
                entry.unlink()


@contextlib.contextmanager
def locked(folder: Path, patience_s: float = 60.0) -> Iterator[None]:
    """One process at a time changes what is below this folder, which is made and has to be this user's own."""
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        owner = folder.stat().st_uid
        if owner != os.geteuid():
            raise ClusterError(
                f"{folder}: belongs to user {owner}, and this is user {os.geteuid()}: run it as that user"
                " (sudo -u clusterctl clusterctl models ...)"
            )
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ClusterError(f"{folder}: cannot be used: {error.strerror}") from None
    until_s = time.monotonic() + patience_s
    try:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() > until_s:
                    raise ClusterError(f"{folder}: another `clusterctl models` changes it; try again later") from None
                time.sleep(0.05)
        yield
    finally:
        os.close(lock)


def names(folder: Path) -> list[str]:
    """The models below a folder that have a version: a first training that was killed leaves a folder without."""
    try:
        found = [entry.name for entry in os.scandir(folder) if entry.is_dir() and _NAME.fullmatch(entry.name)]
        return sorted(name for name in found if Registry(folder, name).versions())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ClusterError(f"{folder}: cannot be read: {error.strerror}") from None


def existing(folder: Path, name: str) -> Registry:
    """The registry of a model that has a version; ``WrongUseError`` with the nearest name if there is none."""
    found = Registry(folder, name)
    if not found.versions():
        raise WrongUseError(
            f"{folder}: has no model {name!r}{nearest(name, names(folder))}; `clusterctl models train` makes one"
        )
    return found


def own_content(path: Path, most: int = MOST_BYTES) -> bytes:
    """A file that only root and this process's own user can have written. ``FileNotFoundError``, else ``ClusterError``
    in one line."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise ClusterError(f"{path}: is no regular file")
            if found.st_uid not in (0, os.geteuid()):
                raise ClusterError(f"{path}: belongs to user {found.st_uid}, whose word does not count here: chown it")
            if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise ClusterError(f"{path}: others may write it (mode {found.st_mode & 0o777:o}): chmod go-w it")
            if found.st_size > most:
                raise ClusterError(f"{path}: has more than {most >> 20} MiB")
            return file.read()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ClusterError(f"{path}: cannot be read: {error.strerror}") from None


def _unsealed(content: bytes, path: Path) -> str:
    try:
        return text_of(content.decode(), str(path))
    except UnicodeDecodeError:
        raise ClusterError(f"{path}: is no text") from None
    except SealedFileError as error:
        raise ClusterError(str(error).replace("is no table, or its end is missing", "its end is missing")) from None


def _decoded(text: str, path: Path, kind: type[Read]) -> Read:
    try:
        values = tomllib.loads(text)
        made = values.get("format")
        if isinstance(made, int) and made > FORMAT:
            raise ClusterError(f"{path}: was made by a newer nodectl (format {made}, this one reads {FORMAT})")
        return msgspec.convert(values, kind)
    except tomllib.TOMLDecodeError:
        raise ClusterError(f"{path}: is no TOML") from None
    except msgspec.MsgspecError as error:
        raise ClusterError(f"{path}: {plain_reason(str(error))}") from None


def _toml(values: msgspec.Struct) -> str:
    """As TOML, which has no nothing: that is left out."""
    lines, tables = list[str](), list[str]()
    for key, value in msgspec.to_builtins(values).items():
        if isinstance(value, dict):
            tables += ["", f"[{key}]", *(f"{name} = {_value(one)}" for name, one in value.items())]
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for row in value:
                tables += ["", f"[[{key}]]", *_rows(row)]
        elif value is not None:
            lines.append(f"{key} = {_value(value)}")
    return "\n".join([*lines, *tables]) + "\n"


def _rows(row: Mapping[str, Any]) -> list[str]:
    return [f"{key} = {_value(value)}" for key, value in row.items() if value is not None]


def _value(value: Any) -> str:
    """Of TOML: its numbers, texts and lists are those of JSON, which escapes all control characters but DEL."""
    if isinstance(value, str):  # of the command line or environment: it may be no text
        value = value.encode("utf-8", "replace").decode()
    return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")
