"""What fits into a message, each value at its boundary, and which versions of a protocol have a message."""

from __future__ import annotations

import msgspec
import pytest

from firmware_bridge.errors import MessageError
from firmware_bridge.scmi.messages.header import Kind
from firmware_bridge.scmi.messages.message import (
    NEWEST,
    WIRES,
    Body,
    command,
    delayed,
    notification,
    response,
    wire_of,
)
from firmware_bridge.scmi.messages.value_layout import (
    COUNT_LIMIT,
    I32,
    I64,
    REMAINING_LIMIT,
    U32,
    U64,
    Bits,
    Fixed,
    Name16,
    Word,
    pack_count,
    pack_text,
    unpack_word,
)


class One(msgspec.Struct, frozen=True):
    u32: U32 = 0
    i32: I32 = 0
    u64: U64 = 0
    i64: I64 = 0


class Nobodys(Body, frozen=True):
    value: U32 = 0


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("u32", 0, 4_294_967_295),
        ("i32", -2_147_483_648, 2_147_483_647),
        ("u64", 0, 18_446_744_073_709_551_615),
        ("i64", -9_223_372_036_854_775_808, 9_223_372_036_854_775_807),
    ],
)
def test_an_integer_fits_to_the_last_number_of_its_field_and_the_error_names_the_range(
    name: str, low: int, high: int
) -> None:
    layout = Fixed(One)
    for value in (low, high):
        packed = layout.pack(*msgspec.structs.astuple(One(**{name: value})))
        assert One(*layout.unpack(packed)) == One(**{name: value})
    for value in (low - 1, high + 1):
        with pytest.raises(MessageError) as caught:
            layout.pack(*msgspec.structs.astuple(One(**{name: value})))
        assert str(caught.value) == f"{name} is {value}, which is not in {low}..{high}"


def test_of_several_values_the_one_that_does_not_fit_is_named() -> None:
    highest = One(2**32 - 1, 2**31 - 1, 2**64 - 1, 2**63)
    with pytest.raises(MessageError, match=r"^i64 is 9223372036854775808, which"):
        Fixed(One).pack(*msgspec.structs.astuple(highest))


def test_a_name_fits_with_its_nul_and_has_none_in_it() -> None:
    assert pack_text("abc", 4) == b"abc\0"
    for name in ("abcd", "a\0c"):
        with pytest.raises(MessageError, match="does not fit: 3 characters without NUL do"):
            pack_text(name, 4)


def test_a_partial_list_fits_to_the_last_number_of_its_two_counts() -> None:
    assert pack_count(COUNT_LIMIT, REMAINING_LIMIT) == bytes.fromhex("ff0fffff") and (COUNT_LIMIT, 65535) == (
        4095,
        REMAINING_LIMIT,
    )
    for count, remaining in ((4096, 0), (0, 65536), (0, -1)):
        with pytest.raises(MessageError, match=f"^{count} entries here and {remaining} remaining do not fit"):
            pack_count(count, remaining)


def test_a_word_needs_its_four_bytes() -> None:
    assert unpack_word(bytes(8), "x", 4) == 0
    for payload, offset in ((bytes(3), 0), (bytes(7), 4), (b"", 0)):
        with pytest.raises(MessageError, match=f"^x: {len(payload)} bytes are too short$"):
            unpack_word(payload, "x", offset)


def test_fields_have_no_named_bits_and_bits_no_named_values_unless_they_say_so() -> None:
    assert Word("I").bits == () and Bits("sign", 3).values == ()


def test_a_message_is_in_all_versions_from_its_first_to_its_last() -> None:
    try:
        for declare, kind in (
            (command, Kind.COMMAND), (response, Kind.RESPONSE), (delayed, Kind.DELAYED),
            (notification, Kind.NOTIFICATION),
        ):  # fmt: skip
            declare(0x18, 7, "TRIED")(Nobodys)
            wire = wire_of(Nobodys())
            assert (wire.name, wire.kind, wire.protocol, wire.message) == ("TRIED", kind, 0x18, 7)
            assert (wire.since, wire.until) == (0, NEWEST) and NEWEST == 0xFFFFFFFF
            assert wire.is_in(0) and wire.is_in(NEWEST)
            declare(0x18, 7, "TRIED", since=2, until=3)(Nobodys)
            assert [wire_of(Nobodys()).is_in(version) for version in (1, 2, 3, 4)] == [False, True, True, False]
    finally:
        WIRES.pop(Nobodys, None)


def test_what_was_never_declared_is_no_message_and_has_no_payload() -> None:
    with pytest.raises(MessageError, match=r"^Nobodys is not a declared SCMI message$"):
        wire_of(Nobodys())
    with pytest.raises(NotImplementedError):
        Nobodys().pack_payload()
    with pytest.raises(NotImplementedError):
        Nobodys.unpack_payload(b"")


def test_a_message_of_one_protocol_packs_a_field_that_is_called_protocol() -> None:
    class Asked(Body, frozen=True):
        protocol: U32 = 0

    try:
        command(0x10, 9, "OF ONE")(Asked)
        of_one = wire_of(Asked()).layout
        command(None, 9, "OF ALL")(Asked)
        of_all = wire_of(Asked()).layout
    finally:
        WIRES.pop(Asked, None)
    assert of_one and of_all and (of_one.size, of_all.size) == (8, 4)


def test_text_is_read_only_where_there_is_some() -> None:
    class Named(msgspec.Struct):
        name: Name16

    assert Fixed(Named).unpack(b"chip" + bytes(12)) == ("chip",)
