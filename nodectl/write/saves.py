"""The save: what the knobs were before this agent moved them, on disk.

One file is appended to, one line per event; each line is complete and has its own checksum:

    9f1c02ab {"kind":"capture","v":1,"boot":"4a0c…","knob":"cpu/policy0/max_khz","value":"3200000"}
    0be4d1c7 {"kind":"wrote","v":1,"boot":"4a0c…","values":{"cpu/policy0/max_khz":1200000}}
    77ab3d10 {"kind":"restored","v":1,"boot":"4a0c…","knobs":["cpu/policy0/max_khz"]}

- ``capture`` lines are on the disk before the first write of their knob: the file is synced, and at the first sync its
  directory and the one above, so that the names are on the disk too.
- ``wrote`` lines go to the kernel before each write but are not synced. They distinguish a value of ours from somebody
  else's after the agent was killed; a machine that went down has lost its settings anyway. A line is written before
  the knob is, so the agent may die between the two: the last *two* values of a knob count as ours.
- A ``hold`` line gives the restore limits: while a cluster's grant is in force, a restore sets these knobs to at most
  these values in place of the captured ones. It is synced like ``capture``.

A line that is cut short or damaged is skipped and reported; the others stay valid. The first capture of a knob counts
until the knob is restored: a later one would capture our own value.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from nodectl.shell.errors import NodectlError, plain_reason

SCHEMA_VERSION = 1
SAVE_NAME = "captured.jsonl"
BOOT_ID_PATH = "/proc/sys/kernel/random/boot_id"
COMPACT_BYTES = 4_000_000
"""Ours: above this size the file is rewritten with what still counts; some minutes of a busy large node."""


class SaveError(NodectlError):
    """The save cannot be read or written; without it no knob may be moved. The message names the file."""


def boot_id() -> str:
    """The kernel's name for this boot: settings do not outlive it, so neither must a save. Source: random(4)."""
    try:
        with open(BOOT_ID_PATH) as file:
            return file.read().strip()
    except OSError as error:
        raise SaveError(f"{BOOT_ID_PATH}: {error.strerror}; is /proc mounted?") from None


def node_id(lock_path: str) -> str:
    """Names the boot, and within it the node: an emulated node that is served on the same machine has its own settings.

    ``lock_path`` is ``Ports.lock_path``, which differs between the real node and every emulated one.
    """
    node = os.path.basename(lock_path).removeprefix("lock")
    return boot_id() + node


class _Line(msgspec.Struct, frozen=True, tag_field="kind", kw_only=True):
    v: int = SCHEMA_VERSION
    boot: str


class _Capture(_Line, frozen=True, tag="capture"):
    knob: str
    value: str


class _Wrote(_Line, frozen=True, tag="wrote"):
    values: dict[str, int]


class _RestoreLimits(_Line, frozen=True, tag="hold"):
    values: dict[str, int]


class _Restored(_Line, frozen=True, tag="restored"):
    knobs: list[str]


@dataclass(slots=True)
class Captured:
    """One knob's original value, and the last two values that we wrote or were about to write."""

    value: str
    ours: tuple[int, ...] = ()
    restore_limit: int | None = None
    """Under a cluster's grant: the most that a restore may set, until the node may leave its cluster."""
    ceiling: int | None = None
    """The limit that somebody else has set, where that is below the captured value."""

    @property
    def to_restore(self) -> str:
        """What a restore sets. In the file this is the captured value."""
        return self.value if self.ceiling is None else str(self.ceiling)

    def note(self, value: int) -> None:
        """Remember a value of ours."""
        if not self.ours or self.ours[-1] != value:
            self.ours = (*self.ours[-1:], value)


@dataclass(slots=True)
class SavedState:
    """A save as read: knobs still to restore in the order of their capture, and what was wrong with the file."""

    boot_id: str = ""
    knobs: dict[str, Captured] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    restore_limits: dict[str, int] = field(default_factory=dict)


def read_save(path: str) -> SavedState:
    """Read a save; an absent file is an empty one. ``SaveError`` if it cannot be read or comes from a newer version."""
    state = SavedState()
    try:
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return state
    except OSError as error:
        raise SaveError(f"{path}: cannot read what the knobs were: {error.strerror}") from error
    lines = data.split(b"\n")
    for number, line in enumerate(lines, start=1):
        if line:
            _take(state, line, path, number, is_last=number == len(lines))
    return state


def _take(state: SavedState, line: bytes, path: str, number: int, is_last: bool) -> None:
    """Add one line to ``state``."""
    checksum, _, payload = line.partition(b" ")
    if checksum != _checksum(payload):
        how = "cut short" if is_last else "damaged"
        state.problems.append(f"{path}:{number}: line is {how}, skipped")
        return
    version = msgspec.json.decode(payload, type=_Version).v
    if version > SCHEMA_VERSION:
        raise SaveError(
            f"{path}:{number}: written by a newer nodectl (save version {version}, this one knows {SCHEMA_VERSION}); "
            "run `nodectl restore` of that version"
        )
    try:
        entry = _DECODER.decode(payload)
    except msgspec.ValidationError as error:
        state.problems.append(f"{path}:{number}: {plain_reason(str(error))}, skipped")
        return
    state.boot_id = state.boot_id or entry.boot
    match entry:
        case _Capture():
            restore_limit = state.restore_limits.get(entry.knob)
            state.knobs.setdefault(entry.knob, Captured(entry.value, restore_limit=restore_limit))
        case _Wrote():
            for knob, value in entry.values.items():
                if knob in state.knobs:
                    state.knobs[knob].note(value)
        case _RestoreLimits():
            state.restore_limits = entry.values
            for knob, captured in state.knobs.items():
                captured.restore_limit = entry.values.get(knob)
        case _Restored():
            for knob in entry.knobs:
                state.knobs.pop(knob, None)


def is_there(path: str) -> bool:
    """Whether there is a save; ``SaveError`` where this process may not look."""
    with _naming(path, "look for"):
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
    return True


class _Version(msgspec.Struct):
    v: int = SCHEMA_VERSION


_DECODER = msgspec.json.Decoder(_Capture | _Wrote | _RestoreLimits | _Restored)


def _checksum(payload: bytes) -> bytes:
    return b"%08x" % zlib.crc32(payload)


class Save:
    """The save of this boot, open for appending. Every method raises ``SaveError`` and then nothing was recorded."""

    def __init__(self, path: str, boot_id: str) -> None:
        self.path = path
        self._boot = boot_id
        self._fd = -1
        self._size = 0
        self._has_name_on_disk = False

    def capture(self, values: Mapping[str, str]) -> None:
        """Record captured values; on return they are on the disk."""
        self._open()
        self._append(*(_Capture(boot=self._boot, knob=knob, value=value) for knob, value in values.items()))
        self._sync()

    def wrote(self, values: Mapping[str, int]) -> None:
        """Record values that are about to be written, or that the hardware made of one by rounding."""
        self._open()
        self._append(_Wrote(boot=self._boot, values=dict(values)))

    def limit_restores(self, values: Mapping[str, int]) -> None:
        """Record the most that a restore may set until this node may leave its cluster; an empty mapping cancels this.
        On return it is on the disk."""
        self._open()
        self._append(_RestoreLimits(boot=self._boot, values=dict(values)))
        self._sync()

    def restored(self, knobs: Sequence[str]) -> None:
        """Record that these knobs need no restoring any more."""
        self._open()
        self._append(_Restored(boot=self._boot, knobs=list(knobs)))

    def compact(self, knobs: Mapping[str, Captured], restore_limits: Mapping[str, int]) -> None:
        """Once the file has grown large, replace it by one with only what still counts."""
        if self._size > COMPACT_BYTES:
            self.rewrite(knobs, restore_limits)

    def rewrite(self, knobs: Mapping[str, Captured], restore_limits: Mapping[str, int]) -> None:
        """Replace the file by one with only what still counts; on return it is on the disk."""
        new_path = f"{self.path}.new"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new_path)
        replacement = Save(new_path, self._boot)
        try:
            replacement.capture({name: knob.to_restore for name, knob in knobs.items()})
            replacement.limit_restores(restore_limits)
            for age in (-2, -1):
                values = {name: knob.ours[age] for name, knob in knobs.items() if len(knob.ours) >= -age}
                if values:
                    replacement.wrote(values)
            replacement._sync()
            with _naming(self.path, "write"):
                os.replace(new_path, self.path)
        except SaveError:
            replacement.close()  # the writer tries again at each apply
            raise
        self.close()
        self._fd, self._size = replacement._fd, replacement._size
        self._sync()

    def remove(self) -> None:
        """All knobs are restored: delete the file."""
        self.close()
        with _naming(self.path, "remove"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)
            _sync_directory(self.path)

    def close(self) -> None:
        """Close the file; it stays on the disk."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self._has_name_on_disk = False

    def _open(self) -> None:
        """Open for appending, past a line that was cut short."""
        if self._fd >= 0:
            return
        with _naming(self.path, "open"):
            make_directory(os.path.dirname(self.path) or ".")
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                self._size = os.fstat(self._fd).st_size
                if self._size and os.pread(self._fd, 1, self._size - 1) != b"\n":
                    self._size += os.write(self._fd, b"\n")
            except OSError:
                self.close()  # else the next append would continue the line that was cut short
                raise

    def _append(self, *lines: _Line) -> None:
        payloads = (msgspec.json.encode(line) for line in lines)
        data = b"".join(b"%s %s\n" % (_checksum(payload), payload) for payload in payloads)
        try:
            with _naming(self.path, "write"):
                while data:
                    count = os.write(self._fd, data)
                    self._size += count
                    data = data[count:]
        except SaveError:
            self.close()  # the next append opens the file again and starts on a line of its own
            raise

    def _sync(self) -> None:
        """Sync the file, and the first time after opening also its directory and the one above. This is needed even
        where the file was there already: whoever made it may have been killed before its name was on the disk."""
        with _naming(self.path, "write"):
            os.fsync(self._fd)
            if not self._has_name_on_disk:
                _sync_directory(self.path)
                with contextlib.suppress(PermissionError):  # a directory that we did not make and may not read
                    _sync_directory(os.path.dirname(os.path.abspath(self.path)))
                self._has_name_on_disk = True


def set_aside(path: str) -> str:
    """Rename a save that does not apply to this boot, never over another; returns its new name."""
    for number in range(1, 10_000):
        aside = f"{path}.old-{number}"
        if not os.path.exists(aside):
            break
    with _naming(path, "rename"):
        os.rename(path, aside)
        _sync_directory(path)
    return aside


@contextlib.contextmanager
def _naming(path: str, verb: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SaveError(f"{path}: cannot {verb} the save of what the knobs were: {error.strerror}") from error


def make_directory(path: str) -> None:
    """Make a directory for this user alone, and missing ones above it; on return their names are on the disk."""
    missing = [os.path.abspath(path)]
    while not os.path.isdir(missing[-1]):
        missing.append(os.path.dirname(missing[-1]))
    os.makedirs(path, mode=0o700, exist_ok=True)
    for made in missing[:-1]:
        _sync_directory(made)


def _sync_directory(path: str) -> None:
    """Sync the directory that contains ``path``."""
    fd = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
