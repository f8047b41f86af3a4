"""The save: what the knobs were before this agent moved them, on disk.

One file is appended to, one line per event; each line is complete and has its own checksum:

    5d20c9f1 {"kind":"head","v":2,"boot":"4a0c…","n":0,"lines":3}
    9f1c02ab {"kind":"capture","v":2,"boot":"4a0c…","n":1,"knob":"cpu/policy0/max_khz","value":"3200000","recipe":{…}}
    0be4d1c7 {"kind":"wrote","v":2,"boot":"4a0c…","n":2,"values":{"cpu/policy0/max_khz":1200000}}
    77ab3d10 {"kind":"restored","v":2,"boot":"4a0c…","n":3,"knobs":["cpu/policy0/max_khz"]}

- The ``head`` says how many lines follow; it is replaced in one piece after each append, before any knob moves. Lines
  are numbered (``n``). So a save from which anything was cut or in which a byte was changed is known to be damaged: a
  restore puts back what is still legible, keeps the file under another name and is not complete.
- ``capture`` lines have the whole recipe for putting the knob back (``nodectl.knobs.recipe``), which the restorer
  follows without Python (``nodectl/csrc/restorer``).
- ``capture`` lines are on the disk before the first write of their knob: the file is synced, and at the first sync its
  directory and the one above, so that the names are on the disk too.
- ``wrote`` lines go to the kernel before each write but are not synced. They distinguish a value of ours from somebody
  else's after the agent was killed; a machine that went down has lost its settings anyway. A line is written before
  the knob is, so the agent may die between the two: the last *two* values of a knob count as ours.
- A ``hold`` line gives the restore limits: while a cluster's grant is in force, a restore sets these knobs to at most
  these values in place of the captured ones. It is synced like ``capture``.

A line that is cut short or damaged is skipped and reported; the others stay valid. After a full disk or a kill there
may be such a line that the head does not count: no knob was moved after it, so nothing is lost. The first capture of a
knob counts until the knob is restored: a later one would capture our own value.

Version 1 had neither head nor numbers nor recipes. It is still read; there any illegible line counts as a loss.
"""

from __future__ import annotations

import contextlib
import errno
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from foundation.boot import boot_id
from foundation.directories import make_directory, sync_directory
from foundation.planted_links import open_new, open_safely
from foundation.shell.errors import NodectlError, plain_reason
from nodectl.knobs.recipe import Recipe

SCHEMA_VERSION = 2
SAVE_NAME = "captured.jsonl"
COMPACT_BYTES = 4_000_000
"""Ours: above this size the file is rewritten with what still counts; some minutes of a busy large node."""


class SaveError(NodectlError):
    """The save cannot be read or written; without it no knob may be moved. The message names the file."""


def node_id(lock_path: str) -> str:
    """Names the boot, and within it the node: an emulated node that is served on the same machine has its own settings.

    ``lock_path`` is ``Ports.lock_path``, which differs between the real node and every emulated one.
    """
    node = os.path.basename(lock_path).removeprefix("lock")
    return boot_id() + node


class _Line(msgspec.Struct, frozen=True, tag_field="kind", kw_only=True):
    v: int = SCHEMA_VERSION
    boot: str
    n: int = 0


class _Head(_Line, frozen=True, tag="head"):
    lines: int


class _Capture(_Line, frozen=True, tag="capture"):
    knob: str
    value: str
    recipe: Recipe | None = None


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
    recipe: Recipe | None = None
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
    """A save as read: knobs still to restore in the order of their capture, and what was wrong with the file.

    ``lost``: what shows that the save is damaged, so that it may have named other knobs, values or limits; "" if it is
    whole. ``version``: of its first legible line.
    """

    boot_id: str = ""
    knobs: dict[str, Captured] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    restore_limits: dict[str, int] = field(default_factory=dict)
    lost: str = ""
    version: int = SCHEMA_VERSION


def read_save(path: str) -> SavedState:
    """Read a save; an absent file is an empty one. ``SaveError`` if it cannot be read or comes from a newer version."""
    state = SavedState()
    try:
        data = _bytes_of(path)
    except FileNotFoundError:
        return state
    except OSError as error:
        raise SaveError(f"{path}: cannot read what the knobs were: {error.strerror}") from error
    lines = data.split(b"\n")
    count = _Count()
    for number, line in enumerate(lines, start=1):
        if line:
            _take(state, count, line, path, number, is_last=number == len(lines))
    state.lost = state.lost or count.missing(state)
    return state


def _bytes_of(path: str) -> bytes:
    """``OSError`` for a save of another user than root or this process's own."""
    with open(open_safely(path, os.O_RDONLY), "rb") as file:
        owner = os.fstat(file.fileno()).st_uid
        if owner not in (0, os.geteuid()):
            why = f"it belongs to user {owner}, who could have any knob set by it: remove it"
            raise PermissionError(errno.EPERM, why, path)
        return file.read()


@dataclass(slots=True)
class _Count:
    """How many lines there should be, and which there are."""

    lines: int | None = None  # of the head
    found: set[int] = field(default_factory=set)
    has_any: bool = False

    def add(self, state: SavedState, entry: _Line, version: int) -> None:
        if not self.has_any:
            self.has_any, state.version = True, version
        if isinstance(entry, _Head):
            self.lines = entry.lines
        elif entry.n:
            self.found.add(entry.n)

    def missing(self, state: SavedState) -> str:
        if not self.has_any:
            return "no line is legible"
        if self.lines is None:
            is_old = state.version == 1
            return ("an illegible line" if state.problems else "") if is_old else "no legible head"
        gone = next((n for n in range(1, self.lines + 1) if n not in self.found), 0)
        return f"line {gone} of {self.lines} is missing or illegible" if gone else ""


def _take(state: SavedState, count: _Count, line: bytes, path: str, number: int, is_last: bool) -> None:
    """Add one line to ``state``."""
    checksum, _, payload = line.partition(b" ")
    if checksum != _checksum(payload) or is_last:
        how = "cut short" if is_last else "damaged"
        state.problems.append(f"{path}:{number}: line is {how}, skipped")
        return
    try:
        version = msgspec.json.decode(payload, type=_Version).v
        if version > SCHEMA_VERSION:
            raise SaveError(
                f"{path}:{number}: written by a newer nodectl (save version {version}, this one knows"
                f" {SCHEMA_VERSION}); run `nodectl restore` of that version"
            )
        entry = _DECODER.decode(payload)
    except _ILLEGIBLE as error:
        state.problems.append(f"{path}:{number}: {plain_reason(str(error))}, skipped")
        return
    state.boot_id = state.boot_id or entry.boot
    count.add(state, entry, version)
    match entry:
        case _Capture():
            restore_limit = state.restore_limits.get(entry.knob)
            state.knobs.setdefault(entry.knob, Captured(entry.value, restore_limit=restore_limit, recipe=entry.recipe))
        case _Wrote():
            for knob, value in entry.values.items():
                if knob in state.knobs:
                    state.knobs[knob].note(value)
                else:
                    state.lost = f"{knob} was written, and nothing says what it was before"
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
    v: int = 1


class _Number(msgspec.Struct):
    kind: str
    n: int = 0


_ILLEGIBLE = (msgspec.DecodeError, ValueError, RecursionError)
"""What the decoder raises at a line whose checksum is right and whose text makes no sense."""

_DECODER = msgspec.json.Decoder(_Head | _Capture | _Wrote | _RestoreLimits | _Restored)

_LINES_DIGITS = 10
"""Ours: the head has room for as many, so that its length never changes."""


def _as_line(entry: _Line) -> bytes:
    payload = msgspec.json.encode(entry)
    if isinstance(entry, _Head):
        payload += b" " * (_LINES_DIGITS - len(str(entry.lines)))
    return b"%s %s\n" % (_checksum(payload), payload)


_NO_RECIPES: Mapping[str, Recipe | None] = {}


def _no_recipe(_: str) -> Recipe | None:
    return None


def _checksum(payload: bytes) -> bytes:
    return b"%08x" % zlib.crc32(payload)


class Save:
    """The save of this boot, open for appending. Every method raises ``SaveError`` and then nothing was recorded.

    ``recipe_of``: how the knob of a name is put back without this program.
    """

    def __init__(self, path: str, boot_id: str, recipe_of: Callable[[str], Recipe | None] = _no_recipe) -> None:
        self.path = path
        self._boot = boot_id
        self._recipe_of = recipe_of
        self._fd = -1
        self._size = 0
        self._lines: int  # these two are of the open file: _find_lines
        self._has_head: bool
        self._has_name_on_disk = False

    def capture(self, values: Mapping[str, str], known: Mapping[str, Recipe | None] = _NO_RECIPES) -> None:
        """Record captured values; on return they are on the disk. ``known``: recipes of knobs that are gone now."""
        recipes = {knob: self._recipe_of(knob) or known.get(knob) for knob in values}
        self._open()
        self._append(
            *(_Capture(boot=self._boot, knob=knob, value=value, recipe=recipes[knob]) for knob, value in values.items())
        )
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

    @property
    def is_large(self) -> bool:
        """Whether ``compact`` has something to do."""
        return self._size > COMPACT_BYTES

    def compact(self, knobs: Mapping[str, Captured], restore_limits: Mapping[str, int]) -> None:
        """Once the file has grown large, replace it by one with only what still counts."""
        if self.is_large:
            self.rewrite(knobs, restore_limits)

    def replace(self, knobs: Mapping[str, Captured], restore_limits: Mapping[str, int]) -> None:
        """Replace the file by one with only these knobs, whatever it has now; without knobs remove it."""
        if knobs:
            self.rewrite(knobs, restore_limits)
            self.close()
        else:
            self.remove()

    def rewrite(self, knobs: Mapping[str, Captured], restore_limits: Mapping[str, int]) -> None:
        """Replace the file by one with only what still counts; on return it is on the disk."""
        new_path = f"{self.path}.new"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new_path)
        replacement = Save(new_path, self._boot, self._recipe_of)
        try:
            replacement._fill(knobs, restore_limits)
            with _naming(self.path, "write"):
                os.replace(new_path, self.path)
        except SaveError:
            replacement.close()  # the writer tries again at each apply
            raise
        self.close()
        self._fd, self._size, self._lines = replacement._fd, replacement._size, replacement._lines
        self._has_head = replacement._has_head
        self._sync()

    def _fill(self, knobs: Mapping[str, Captured], restore_limits: Mapping[str, int]) -> None:
        """All that still counts, in a new file."""
        known = {name: knob.recipe for name, knob in knobs.items() if knob.recipe}
        self.capture({name: knob.to_restore for name, knob in knobs.items()}, known)
        self.limit_restores(restore_limits)
        for age in (-2, -1):
            values = {name: knob.ours[age] for name, knob in knobs.items() if len(knob.ours) >= -age}
            if values:
                self.wrote(values)
        self._sync()

    def remove(self) -> None:
        """All knobs are restored: delete the file."""
        self.close()
        with _naming(self.path, "remove"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)
            sync_directory(os.path.dirname(self.path) or ".")

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
            if not os.path.exists(self.path):
                self._begin()
            self._fd = open_safely(self.path, os.O_RDWR)
            try:
                self._size = os.fstat(self._fd).st_size
                self._find_lines()
                os.lseek(self._fd, self._size, os.SEEK_SET)
                if self._size and os.pread(self._fd, 1, self._size - 1) != b"\n":
                    self._size += os.write(self._fd, b"\n")
            except OSError:
                self.close()  # else the next append would continue the line that was cut short
                raise

    def _begin(self) -> None:
        """Make the file with its head, both or neither: an empty save is a damaged one."""
        new_path = f"{self.path}.begun"
        fd = open_new(new_path)
        try:
            os.write(fd, _as_line(_Head(boot=self._boot, lines=0)))
        finally:
            os.close(fd)
        os.replace(new_path, self.path)

    def _find_lines(self) -> None:
        """Go on with the numbers of the file. A head that is not whole is left as it is: it shows the damage."""
        self._lines, self._has_head = 0, False
        for at, line in enumerate(os.pread(self._fd, self._size, 0).split(b"\n")):
            checksum, _, payload = line.partition(b" ")
            if checksum == _checksum(payload):
                with contextlib.suppress(*_ILLEGIBLE):
                    found = msgspec.json.decode(payload, type=_Number)
                    self._lines = max(self._lines, found.n)
                    self._has_head = self._has_head or (at == 0 and found.kind == "head")

    def _append(self, *lines: _Line) -> None:
        numbered = (msgspec.structs.replace(line, n=self._lines + at) for at, line in enumerate(lines, start=1))
        data = b"".join(map(_as_line, numbered))
        try:
            with _naming(self.path, "write"):
                while data:
                    count = os.write(self._fd, data)
                    self._size += count
                    data = data[count:]
                self._lines += len(lines)
                if self._has_head:
                    head = _as_line(_Head(boot=self._boot, lines=self._lines)).rstrip(b"\n")
                    os.pwrite(self._fd, head, 0)  # its newline stays: a crash in between costs no other line
        except SaveError:
            self.close()  # the next append opens the file again and starts on a line of its own
            raise

    def _sync(self) -> None:
        """Sync the file, and the first time after opening also its directory and the one above. This is needed even
        where the file was there already: whoever made it may have been killed before its name was on the disk."""
        with _naming(self.path, "write"):
            os.fsync(self._fd)
            if not self._has_name_on_disk:
                sync_directory(os.path.dirname(self.path) or ".")
                with contextlib.suppress(PermissionError):  # a directory that we did not make and may not read
                    sync_directory(os.path.dirname(os.path.dirname(os.path.abspath(self.path))) or ".")
                self._has_name_on_disk = True


def set_aside(path: str) -> str:
    """Rename a save that does not apply to this boot, never over another; returns its new name."""
    aside = _free_name(path)
    with _naming(path, "rename"):
        os.rename(path, aside)
        sync_directory(os.path.dirname(path) or ".")
    return aside


def keep(path: str) -> str:
    """Give a damaged save a second name, under which it stays when the first one goes; returns it."""
    aside = _free_name(path)
    with _naming(path, "keep"):
        os.link(path, aside, follow_symlinks=False)
        sync_directory(os.path.dirname(path) or ".")
    return aside


def _free_name(path: str) -> str:
    for number in range(1, 10_000):
        aside = f"{path}.old-{number}"
        if not os.path.exists(aside):
            break
    return aside


@contextlib.contextmanager
def _naming(path: str, verb: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SaveError(f"{path}: cannot {verb} the save of what the knobs were: {error.strerror}") from error
