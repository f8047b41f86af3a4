"""Parts of a sysfs tree, and the kernel's parsing of numbers that are written into it.

An attribute is a pair of functions, ``show`` and ``store``, as in the kernel. No text is stored: each read computes it.
A store gets the text up to the first NUL, as the kernel's string functions see it: powercap-utils writes "150000000", a
NUL and the rest of its buffer.
"""

from __future__ import annotations

import errno
import functools
import os
import posixpath
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

PAGE_BYTES = 4096
"""Size limit of a sysfs attribute and of one write: a page (fs/kernfs/file.c)."""

type_show = Callable[[], str]
type_store = Callable[[str, bool], None]
"""Called with the text and whether to apply it to the machine (False: the file changes, the hardware does not)."""


_LINKS_MAX = 40  # the kernel's limit (MAXSYMLINKS)
_BACK_LINKS = ("subsystem", "device")  # links from a device to its class and its parent


class Attribute:
    """A file: its functions to read and write. ``wraps_at`` is the range of a counter that restarts at zero."""

    __slots__ = ("mode", "path", "show", "standing", "standing_generation", "store", "wraps_at")

    def __init__(self, path: str, show: type_show | None, store: type_store | None, mode: int, wraps_at: int) -> None:
        self.path = path
        self.show = show
        self.store = store
        self.mode = mode
        self.wraps_at = wraps_at
        self.standing: tuple[Any, ...] = ()  # cache of the faults on this file, kept by twin.files.sysfs_tree
        self.standing_generation = -1


class Nodes:
    """Directories, files and links by absolute path. Adding a node creates the directories above it."""

    def __init__(self) -> None:
        self.files: dict[str, Attribute] = {}
        self.links: dict[str, str] = {}
        self.children: dict[str, dict[str, None]] = {}
        self._names: dict[str, str] | None = None
        self._links_to: dict[str, list[str]] | None = None

    def file(
        self,
        path: str,
        show: type_show | str | None,
        store: type_store | None = None,
        mode: int | None = None,
        wraps_at: int = 0,
    ) -> None:
        """Add a file; a ``show`` that is text is a constant. Modes default to the kernel's 0444, 0644 and 0200."""
        if mode is None:
            mode = (0o444 if show is not None else 0) | (0o200 if store is not None else 0)
        self.files[path] = Attribute(path, _constant(show) if isinstance(show, str) else show, store, mode, wraps_at)
        self._enter(path)

    def link(self, path: str, target: str) -> None:
        """Add a symbolic link to the absolute path ``target``. It reads back relative, as links of the kernel do.

        The relative path goes through the target's parent even if the target is above the link
        (kernfs_get_target_path).
        """
        parent, name = posixpath.split(target)
        self.links[path] = posixpath.join(posixpath.relpath(parent, posixpath.dirname(path)), name)
        self._enter(path)

    def directory(self, path: str) -> None:
        """Add a directory that may stay empty."""
        if path not in self.children:
            self.children[path] = {}
            self._enter(path)

    def device(self, path: str, subsystem: str, uevent: str = "") -> None:
        """Add the files of every kernel device: ``uevent``, ``power/`` and the link to its bus or class."""
        self.link(f"{path}/subsystem", subsystem)
        self.file(f"{path}/uevent", uevent, store=_ignore, mode=0o644)
        self.file(f"{path}/power/control", "auto\n")
        self.file(f"{path}/power/runtime_status", "unsupported\n")

    # ---- in the complete tree: names and links -----------------------------------------------------------------

    def names(self) -> Mapping[str, str]:
        """All names of all files, also through links to directories: name to path without links."""
        if self._names is None:
            self._names = {name: path for path in self.files for name in self.names_of(path)}
        return self._names

    def names_of(self, path: str) -> list[str]:
        """The names of one file, its path without links first."""
        if self._links_to is None:
            self._links_to = {}
            for link, target in self.links.items():
                if posixpath.basename(link) not in _BACK_LINKS:
                    folder = posixpath.normpath(posixpath.join(posixpath.dirname(link), target))
                    self._links_to.setdefault(folder, []).append(link)
        folder, _, name = path.rpartition("/")
        return [path, *(f"{link}/{name}" for link in self._links_to.get(folder, ()))]

    def names_of_directory(self, path: str) -> list[str]:
        """The names of one directory, or of what a link to one points to, its path without links first."""
        real = self.real(path) if path in self.links else path
        self.names_of(real)
        return [real, *(self._links_to or {}).get(real, ())]

    def real(self, path: str) -> str:
        """``path`` with all links followed; the last component need not exist."""
        here = self.real_parent(path)
        for _ in range(_LINKS_MAX):
            if here not in self.links:
                return here
            here = self.real_parent(posixpath.join(posixpath.dirname(here), self.links[here]))
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)

    def real_parent(self, path: str) -> str:
        """``path`` with all links followed except one in the last component."""
        path = posixpath.normpath(path)
        folder, _, name = path.rpartition("/")
        if not folder or folder in self.children:
            return path
        return f"{self.real(folder)}/{name}"

    def _enter(self, path: str) -> None:
        parent, _, name = path.rpartition("/")
        if not name:
            return
        parent = parent or "/"
        if parent not in self.children:
            self.directory(parent)
        self.children[parent][name] = None


# ---- numbers as the kernel reads them ------------------------------------------------------------------------------


def as_string(data: bytes) -> str:
    """What a store function sees of the bytes written: at most a page, up to the first NUL."""
    return data[:PAGE_BYTES].split(b"\0", 1)[0].decode("latin-1")


_BASE_0 = re.compile(r"\+?(?:0[xX]([0-9a-fA-F]+)|0([0-7]+)|(0|[1-9][0-9]*))\n?")
_BASE_10 = re.compile(r"\+?([0-9]+)\n?")


def unsigned(text: str, bits: int = 64, base: int = 0) -> int:
    """``kstrtoull`` and its narrower variants: a number, perhaps a newline, nothing else.

    OSError EINVAL if it is not a number, ERANGE if it does not fit. Base 0 accepts hexadecimal and octal as in C.
    """
    if base == 10:
        match = _BASE_10.fullmatch(text)
        value = int(match[1]) if match else -1
    else:
        match = _BASE_0.fullmatch(text)
        value = -1 if not match else int(match[1], 16) if match[1] else int(match[2], 8) if match[2] else int(match[3])
    if value < 0:
        raise refused(errno.EINVAL)
    if value >= 1 << bits:
        raise refused(errno.ERANGE)
    return value


def boolean(text: str) -> bool:
    """``kstrtobool``: only the first letters count, so "yes", "1", "on" and "true" are all true."""
    if text[:1] in ("y", "Y", "t", "T", "1") or text[:2].lower() == "on":
        return True
    if text[:1] in ("n", "N", "f", "F", "0") or text[:2].lower() == "of":
        return False
    raise refused(errno.EINVAL)


def word(text: str, length: int = 15) -> str:
    """``sscanf("%15s")``: the first word; OSError EINVAL if there is none."""
    words = text.split()
    if not words:
        raise refused(errno.EINVAL)
    return words[0][:length]


def refused(number: int) -> OSError:
    """The error of a store function that refuses a value."""
    return OSError(number, os.strerror(number))


# ---- lists as the kernel writes them -------------------------------------------------------------------------------


def ranges(numbers: Iterable[int]) -> str:
    """``%*pbl``: "0-7,16-23"."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in parts)


def mask(numbers: Iterable[int], size: int) -> str:
    """``%*pb``: hexadecimal words of 32 bits, highest first, as wide as ``size`` CPUs need."""
    bits = sum(1 << number for number in numbers)
    words = [(bits >> shift) & 0xFFFFFFFF for shift in range(0, max(size, 1), 32)]
    top = size % 32 or 32
    digits = [f"{words[-1]:0{(top + 3) // 4}x}", *(f"{word:08x}" for word in reversed(words[:-1]))]
    return ",".join(digits)


@functools.cache
def _constant(text: str) -> type_show:
    """One function for equal texts, of which a large node has thousands."""
    return lambda: text


def _ignore(text: str, effective: bool) -> None:
    """A store without effect here (a write to uevent makes the kernel announce the device again)."""
