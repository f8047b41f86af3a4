"""A message as text, for people who read traces."""

from __future__ import annotations

import functools
from typing import Any, Final

import msgspec

from firmware_bridge.errors import MessageError, named_status
from firmware_bridge.scmi.messages.codec import LATEST, Dialect, decode
from firmware_bridge.scmi.messages.header import Kind, Sender, address, unpack_header
from firmware_bridge.scmi.messages.message import Body, Failed, Message, wire_of
from firmware_bridge.scmi.messages.value_layout import Word, declared


def describe(message: Message, dialect: Dialect = LATEST) -> str:
    """One line: ``POWERCAP_CAP_SET command, token 5: domain 1, flags 0, cap 100000``."""
    body = message.body
    title = f"{name_of(body, dialect)} {kind_of(body).value}, token {message.token}"
    values = values_in_words(body)
    return f"{title}: {values}" if values else title


def name_of(body: Body, dialect: Dialect = LATEST) -> str:
    """The standard's name of a message."""
    if not isinstance(body, Failed):
        return wire_of(body).name
    wire = dialect.wire_at(address(kind_of(body), body.protocol, body.message), Sender.PLATFORM)
    return wire.name if wire else f"message {body.message:#x} of protocol {body.protocol:#x}"


def kind_of(body: Body) -> Kind:
    """Which of the four kinds of message."""
    if isinstance(body, Failed):
        return Kind.DELAYED if body.is_delayed else Kind.RESPONSE
    return wire_of(body).kind


def values_in_words(body: Body) -> str:
    """The fields, with the bits of flag words by name."""
    if isinstance(body, Failed):
        return ": ".join(named_status(body.status))
    return _fields(body)


def as_json(message: Message, dialect: Dialect = LATEST) -> dict[str, Any]:
    """The message as plain values."""
    body = message.body
    plain: dict[str, Any] = msgspec.to_builtins(body)
    status = named_status(body.status)[0] if isinstance(body, Failed) else None
    return {
        "name": name_of(body, dialect),
        "kind": kind_of(body).value,
        "token": message.token,
        **({"status": status} if status else {}),
        "values": plain,
    }


def describe_bytes(data: bytes, sender: Sender, dialect: Dialect = LATEST) -> str:
    """Like ``describe``, for bytes from a link; bytes that cannot be decoded are shown as such."""
    try:
        return describe(decode(data, sender, dialect), dialect)
    except MessageError as error:
        return f"{_header_in_words(data)}: {error}"


def _header_in_words(data: bytes) -> str:
    try:
        header = unpack_header(data)
    except MessageError:
        return "not SCMI"
    return f"message {header.message:#x} of protocol {header.protocol:#x}, type {header.type}, token {header.token}"


def _fields(value: msgspec.Struct) -> str:
    words = _words_of(type(value))
    return ", ".join(
        f"{name.replace('_', ' ')} {_value(getattr(value, name), words.get(name), name in _IN_HEX)}"
        for name in value.__struct_fields__
    )


_IN_HEX: Final = frozenset({"protocol", "protocols", "version", "message", "address", "doorbell_address", "header"})
"""Fields that are printed in hexadecimal."""


@functools.cache
def _words_of(shape: type[msgspec.Struct]) -> dict[str, Word]:
    return {name: kind for name, kind in declared(shape) if isinstance(kind, Word) and kind.bits}


def _value(value: Any, word: Word | None, is_in_hex: bool) -> str:
    if word is not None:
        return _bits(value, word)
    if is_in_hex:
        return f"{value:#x}" if isinstance(value, int) else f"[{' '.join(f'{one:#x}' for one in value)}]"
    if isinstance(value, msgspec.Struct):
        return f"({_fields(value)})"
    if isinstance(value, tuple):
        return f"[{'; '.join(_fields(v) if isinstance(v, msgspec.Struct) else str(v) for v in value)}]"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return repr(value)
    return "none" if value is None else str(value)


def _bits(value: int, word: Word) -> str:
    parts: list[str] = []
    for bits in word.bits:
        field = bits.of(value)
        if bits.values:
            parts.append(f"{bits.name} {bits.values[field]}")
        elif bits.width > 1:
            parts.append(f"{bits.name} {field}")
        elif field:
            parts.append(bits.name)
    return f"{value:#x} ({', '.join(parts)})" if parts else f"{value:#x}"
