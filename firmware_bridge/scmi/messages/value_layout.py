"""The byte layout of a message's values.

Everything is little-endian, so a 64-bit value is its low word, then its high word. Strings are NUL-terminated ASCII in
a zero-padded field. A message class declares its fields with the annotated types below, in the order of the standard;
``Fixed`` compiles them into one ``struct``, so that a message costs one pack or unpack. Messages with a list of entries
have their own ``pack_payload`` and ``unpack_payload``.
"""

from __future__ import annotations

import struct
import typing
from collections.abc import Sequence
from typing import Annotated, Any, Final, NamedTuple, TypeVar

import msgspec

from firmware_bridge.errors import MessageError


class Bits(NamedTuple):
    """A named bit field of a word, for reading and printing it."""

    name: str
    low: int
    width: int = 1
    values: tuple[str, ...] = ()

    def of(self, word: int) -> int:
        """The field's value."""
        return word >> self.low & (1 << self.width) - 1


class Word(NamedTuple):
    """An integer field, as a ``struct`` code."""

    code: str
    bits: tuple[Bits, ...] = ()


class Text(NamedTuple):
    """A string field of fixed size; the last byte is always NUL."""

    size: int


U32 = Annotated[int, Word("I")]
I32 = Annotated[int, Word("i")]
U64 = Annotated[int, Word("Q")]
I64 = Annotated[int, Word("q")]
Name16 = Annotated[str, Text(16)]
Name64 = Annotated[str, Text(64)]

RANGES: Final = {"I": (0, 2**32 - 1), "i": (-(2**31), 2**31 - 1), "Q": (0, 2**64 - 1), "q": (-(2**63), 2**63 - 1)}
"""The range of each integer field, by its ``struct`` code."""

S = TypeVar("S", bound=msgspec.Struct)


def declared(shape: type[msgspec.Struct]) -> list[tuple[str, Word | Text | None]]:
    """The fields of a class with their wire types; ``None`` for a field that is not one plain value."""
    hints = typing.get_type_hints(shape, include_extras=True)
    return [(name, _wire_type(hints[name])) for name in shape.__struct_fields__]


def _wire_type(hint: Any) -> Word | Text | None:
    return next((part for part in getattr(hint, "__metadata__", ()) if isinstance(part, Word | Text)), None)


class Fixed:
    """The layout of a class whose fields are all plain values, after an optional ``prefix`` of other words."""

    def __init__(self, shape: type[msgspec.Struct], prefix: str = "", skip: Sequence[str] = ()) -> None:
        fields = [(name, kind) for name, kind in declared(shape) if name not in skip]
        codes = [f"{kind.size}s" if isinstance(kind, Text) else kind.code for _, kind in fields if kind is not None]
        assert len(codes) == len(fields), f"{shape.__name__} has a field without a wire type"
        self.fields = fields
        self.packing = struct.Struct("<" + prefix + "".join(codes))
        self.size = self.packing.size
        first = len(struct.Struct("<" + prefix).unpack(bytes(struct.calcsize("<" + prefix))))
        self.texts = [(first + i, kind.size) for i, (_, kind) in enumerate(fields) if isinstance(kind, Text)]

    def pack(self, *values: Any) -> bytes:
        """The bytes of the prefix words and the fields; ``MessageError`` names the value that does not fit."""
        if self.texts:
            values = self._with_bytes(values)
        try:
            return self.packing.pack(*values)
        except struct.error:
            raise MessageError(self._misfit(values)) from None

    def unpack(self, data: bytes | memoryview, offset: int = 0) -> tuple[Any, ...]:
        """Prefix words and fields; the caller has checked the length."""
        values = self.packing.unpack_from(data, offset)
        return self._with_strings(values) if self.texts else values

    def _with_bytes(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        changed = list(values)
        for i, size in self.texts:
            changed[i] = pack_text(values[i], size)
        return tuple(changed)

    def _with_strings(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        changed = list(values)
        for i, _ in self.texts:
            changed[i] = unpack_text(values[i])
        return tuple(changed)

    def _misfit(self, values: tuple[Any, ...]) -> str:
        own = values[len(values) - len(self.fields) :]
        for (name, kind), value in zip(self.fields, own, strict=True):
            if isinstance(kind, Word):
                low, high = RANGES[kind.code]
                if not isinstance(value, int) or not low <= value <= high:
                    return f"{name} is {value!r}, which is not in {low}..{high}"
        return f"values {values!r} do not fit the message"


def pack_text(text: str, size: int) -> bytes:
    """A string as a zero-padded field of ``size`` bytes with at least one NUL at its end."""
    try:
        data = text.encode("ascii")
    except UnicodeEncodeError:
        raise MessageError(f"name {text!r} is not ASCII") from None
    if len(data) >= size or b"\0" in data:
        raise MessageError(f"name {text!r} does not fit: {size - 1} characters without NUL do")
    return data.ljust(size, b"\0")


def unpack_text(data: bytes) -> str:
    """The string up to the first NUL; ``MessageError`` when that is missing or a character is not ASCII."""
    text, nul, _ = data.partition(b"\0")
    if not nul:
        raise MessageError(f"name {data!r} has no end")
    try:
        return text.decode("ascii")
    except UnicodeDecodeError:
        raise MessageError(f"name {text!r} is not ASCII") from None


def pack_entries(layout: Fixed, entries: Sequence[msgspec.Struct]) -> bytes:
    """The bytes of all entries in order."""
    return b"".join(layout.pack(*msgspec.structs.astuple(entry)) for entry in entries)


def unpack_entries(layout: Fixed, shape: type[S], data: bytes, offset: int, what: str) -> tuple[S, ...]:
    """Entries from ``offset`` to the end of ``data``; ``MessageError`` for an incomplete one."""
    if (len(data) - offset) % layout.size:
        raise MessageError(f"{len(data) - offset} bytes of {what} are no multiple of {layout.size}")
    return tuple(shape(*layout.unpack(data, at)) for at in range(offset, len(data), layout.size))


COUNT_LIMIT = 0xFFF
REMAINING_LIMIT = 0xFFFF


def pack_count(count: int, remaining: int) -> bytes:
    """The word before a partial list: bits 11:0 entries here, 31:16 entries that remain."""
    if not 0 <= remaining <= REMAINING_LIMIT or count > COUNT_LIMIT:
        raise MessageError(f"{count} entries here and {remaining} remaining do not fit their fields")
    return struct.pack("<I", remaining << 16 | count)


def unpack_word(payload: bytes, what: str, offset: int = 0) -> int:
    """One word at ``offset``."""
    if len(payload) < offset + 4:
        raise MessageError(f"{what}: {len(payload)} bytes are too short")
    return int.from_bytes(payload[offset : offset + 4], "little")


def check_count(count: int, found: int, what: str) -> None:
    """Check that a list has as many entries as it says."""
    if count != found:
        raise MessageError(f"{what}: announces {count} entries, has {found}")
