"""The dynamic loader's list of libraries, ``/etc/ld.so.cache``, with one library put in.

With such a list bound over the host's in a mount namespace, every program of the namespace finds the library by its
plain name, with any environment, and the host's folders are as they were. What ``ldconfig -p`` lists is the same file.

A list is a header, entries of 24 bytes in descending order of their names, and strings, to which all offsets count from
the start of the header (glibc: elf/cache.c, sysdeps/generic/dl-cache.h). An entry more moves all that is behind the
entries; the new strings go to the end. Lists before glibc 2.32 have another one in front, for older loaders, which is
left out.
"""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PLACE = "/etc/ld.so.cache"

_MAGIC = b"glibc-ld.so.cache1.1"
_HEADER = struct.Struct("=20sII4sI12s")  # magic, entries, bytes of strings, flags, offset of the extensions, unused
_ENTRY = struct.Struct("=iIIIQ")  # flags, name, path, unused, hardware capabilities
_EXTENSIONS = struct.Struct("=II")  # magic, sections
_SECTION = struct.Struct("=IIII")  # tag, flags, offset, bytes
_EXTENSIONS_MAGIC = 0xEAA42174
_HARDWARE_NAMES = 1
"""Tag of the section with offsets of names of folders (glibc-hwcaps)."""

_C_LIBRARY = "libc.so.6"


class UnknownListError(Exception):
    """The file is no list of the known format; the message says what is wrong."""


@dataclass(frozen=True, slots=True)
class _Entry:
    flags: int
    name: int
    path: int
    unused: int
    hardware: int

    def packed(self, moved: int) -> bytes:
        return _ENTRY.pack(self.flags, self.name + moved, self.path + moved, self.unused, self.hardware)


def with_library(listed: bytes, library: str) -> bytes:
    """``listed`` with ``library``, under its file name, in place of all others of this name.

    UnknownListError if the format is unknown, or if no C library of the same processor is in the list.
    """
    whole = listed[max(listed.find(_MAGIC), 0) :]
    if len(whole) < _HEADER.size or not whole.startswith(_MAGIC):
        raise UnknownListError("this list has another format than that of glibc 2.2 and later")
    magic, count, strings, flags, extensions, unused = _HEADER.unpack_from(whole)
    behind = _HEADER.size + count * _ENTRY.size
    found = [_Entry(*_ENTRY.unpack_from(whole, _HEADER.size + i * _ENTRY.size)) for i in range(count)]
    name = Path(library).name
    kept = [each for each in found if _string(whole, each.name) != name]
    moved = (len(kept) + 1 - count) * _ENTRY.size
    added = name.encode() + b"\0" + library.encode() + b"\0"
    entry = _Entry(_flags_of(whole, found, library), len(whole), len(whole) + len(name.encode()) + 1, 0, 0)
    place = next((i for i, each in enumerate(kept) if _order(_string(whole, each.name), name) < 0), len(kept))
    kept.insert(place, entry)
    rest = bytearray(whole[behind:])
    if extensions:
        _move_extensions(rest, extensions - behind, behind, moved)
    head = _HEADER.pack(magic, len(kept), strings + len(added), flags, extensions and extensions + moved, unused)
    return b"".join((head, *(each.packed(moved) for each in kept), rest, added))


def libraries(listed: bytes) -> Iterator[tuple[str, str]]:
    """Name and path of each entry, in the order of the list."""
    count = _HEADER.unpack_from(listed)[1]
    for i in range(count):
        entry = _Entry(*_ENTRY.unpack_from(listed, _HEADER.size + i * _ENTRY.size))
        yield _string(listed, entry.name), _string(listed, entry.path)


def _string(listed: bytes, offset: int) -> str:
    return listed[offset : listed.index(b"\0", offset)].decode()


def _flags_of(listed: bytes, found: list[_Entry], library: str) -> int:
    """The processor and C library that ``library`` is for, as the list says it of its C library."""
    kind = _processor(library)
    for each in found:
        path = Path(_string(listed, each.path))
        if _string(listed, each.name) == _C_LIBRARY and path.exists() and _processor(path) == kind:
            return each.flags
    raise UnknownListError(f"the list has no {_C_LIBRARY} of the processor of {library}")


def _processor(library: str | Path) -> tuple[bytes, bytes]:
    """Word size and byte order, and the processor, from an ELF header (elf(5))."""
    with open(library, "rb") as file:
        head = file.read(20)
    return head[4:6], head[18:20]


def _order(one: str, other: str) -> int:
    """As the loader compares names: numbers by their value (_dl_cache_libcmp)."""
    return functools.reduce(lambda known, pair: known or pair[0] - pair[1], _compared(one, other), 0)


def _compared(one: str, other: str) -> Iterator[tuple[int, int]]:
    first, second = (re.findall(r"\d+|\D", text) for text in (one, other))
    for left, right in zip([*first, ""], [*second, ""], strict=False):
        if left.isdigit() != right.isdigit():
            yield int(left.isdigit()), int(right.isdigit())
        elif left.isdigit():
            yield int(left), int(right)
        else:
            yield ord(left or "\0"), ord(right or "\0")


def _move_extensions(rest: bytearray, at: int, behind: int, moved: int) -> None:
    """Correct the offsets in the extensions, which begin ``at`` bytes from the start of ``rest``."""
    magic, sections = _EXTENSIONS.unpack_from(rest, at)
    if magic != _EXTENSIONS_MAGIC:
        raise UnknownListError(f"the list has extensions of an unknown kind ({magic:#x})")
    for number in range(sections):
        place = at + _EXTENSIONS.size + number * _SECTION.size
        tag, flags, offset, size = _SECTION.unpack_from(rest, place)
        _SECTION.pack_into(rest, place, tag, flags, offset + moved, size)
        if tag == _HARDWARE_NAMES:
            names = struct.Struct(f"={size // 4}I")
            names.pack_into(rest, offset - behind, *(each + moved for each in names.unpack_from(rest, offset - behind)))
