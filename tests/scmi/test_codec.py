"""The codec against the published layouts, every message both ways, and bytes that are no messages."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firmware_bridge.errors import MessageError, ScmiError, UnknownMessageError
from firmware_bridge.scmi.messages.codec import LATEST, SPOKEN, Dialect, decode, encode
from firmware_bridge.scmi.messages.header import Kind, Sender, protocol_name
from firmware_bridge.scmi.messages.message import WIRES, Body, Command, Failed, Message, command, response
from firmware_bridge.scmi.messages.value_layout import U32
from firmware_bridge.scmi.messages.words import as_json, describe, describe_bytes
from firmware_bridge.scmi.protocols import base, common, performance, power_capping, sensor, vendor
from tests.scmi.messages import FAILED, bodies

OLDEST = Dialect({protocol: versions[0] for protocol, versions in SPOKEN.items()} | vendor.VERSIONS)
DECLARED = list(WIRES.values())


def words(*values: int) -> bytes:
    return b"".join((value & 0xFFFFFFFF).to_bytes(4, "little") for value in values)


def dialect_of(wire) -> Dialect:
    return LATEST if wire.protocol is None or wire.is_in(LATEST.versions[wire.protocol]) else OLDEST


@pytest.mark.hypothesis
@pytest.mark.parametrize("wire", DECLARED, ids=lambda wire: wire.body.__name__)
def test_what_is_encoded_decodes_to_the_same_message_and_to_words(wire):
    sender = Sender.AGENT if wire.kind is Kind.COMMAND else Sender.PLATFORM

    @settings(max_examples=12)
    @given(bodies(wire.body), st.integers(0, 1023))
    def both_ways(body, token):
        message = Message(token, body)
        assert decode(encode(body, token), sender, dialect_of(wire)) == message
        assert describe(message).startswith(f"{wire.name} {wire.kind.value}, token {token}")
        assert as_json(message)["token"] == token

    both_ways()


@given(FAILED, st.integers(0, 1023))
def test_error_responses_of_any_protocol_decode_to_the_same_status(failed, token):
    data = encode(failed, token)
    assert decode(data, Sender.PLATFORM) == Message(token, failed)
    assert decode(data + b"values that a platform may append", Sender.PLATFORM) == Message(token, failed)


# Header words printed in the standard's reference, payloads laid out by hand from its tables.
@pytest.mark.parametrize(
    ("body", "token", "data"),
    [
        (common.ProtocolVersion(0x10), 0, words(0x00004000)),
        (performance.LevelSet(2, 2_400_000), 5, words(0x00144C07, 2, 2_400_000)),
        (power_capping.CapSet(1, 0, 100_000), 0, words(0x00006005, 1, 0, 100_000)),
        (performance.LevelChanged(1, 2, 3), 0, words(0x00004F01, 1, 2, 3)),
        (sensor.ReadingComplete(4, (sensor.Reading(-5, 7),)), 9, words(0x00245606, 0, 4, -5, -1, 7, 0)),
        (base.ListProtocolsResponse((0x13, 0x15, 0x18, 0x80, 0x81)), 0,
         words(0x00004006, 0, 5) + bytes((0x13, 0x15, 0x18, 0x80, 0x81, 0, 0, 0))),
        (base.DiscoverVendorResponse("ours"), 0, words(0x00004003, 0) + b"ours".ljust(16, b"\0")),
        (performance.DescribeLevelsResponse(11, (performance.Level(1, 2, 3, 4, 5),)), 0,
         words(0x00004C04, 0, 11 << 16 | 1, 1, 2, 3, 4, 5)),
        (performance.DescribeLevelsV3Response(0, (performance.LevelV3(1, 2, 3),)), 0,
         words(0x00004C04, 0, 1, 1, 2, 3)),
        (common.NegotiateVersion(0x13, 0x30000), 1, words(0x00044C10, 0x30000)),
        (Failed(0x18, 0x5, -3), 2, words(0x00086005, -3)),
    ],
)  # fmt: skip
def test_messages_have_the_bytes_that_the_standard_prints(body, token, data):
    assert encode(body, token) == data


def test_sizes_are_those_of_the_standard():
    sizes = {wire.body: wire.layout.size - wire.payload_offset for wire in DECLARED if wire.layout}
    assert sizes[power_capping.PowercapDomainResponse] == 56
    assert sizes[power_capping.PowercapFastChannelResponse] == sizes[performance.PerformanceFastChannelResponse] == 44
    assert sizes[performance.PerformanceNameResponse] == 68
    scalar = sensor.SensorDescriptor(1, 1 << 8, 0x7, "power", sensor.Extended(0, sensor.ValueRange(0, -1, 1)))
    assert len(scalar.pack()) == 52
    assert len(sensor.SensorDescriptor(1, 0, 0x7, "power").pack()) == 28


def test_a_level_entry_has_20_bytes_in_version_4_and_12_before():
    data = encode(performance.DescribeLevelsV3Response(0, (performance.LevelV3(1, 2, 3),)))
    assert isinstance(decode(data, Sender.PLATFORM, OLDEST).body, performance.DescribeLevelsV3Response)
    with pytest.raises(MessageError, match="12 bytes of levels are no multiple of 20"):
        decode(data, Sender.PLATFORM)


@pytest.mark.hypothesis
@pytest.mark.parametrize("dialect", [LATEST, OLDEST], ids=["newest", "oldest"])
@pytest.mark.parametrize("sender", list(Sender))
def test_no_bytes_crash_the_decoder(sender, dialect):
    known = st.sampled_from([wire.address for wire in DECLARED]).map(lambda word: word.to_bytes(4, "little"))
    protocol = st.integers(0, 2**18 - 1).map(lambda word: word.to_bytes(4, "little"))
    success = st.just(bytes(4))

    @settings(max_examples=250)
    @given(st.one_of(
        st.binary(max_size=160),
        st.tuples(known | protocol, st.binary(max_size=140)).map(b"".join),
        st.tuples(known, success, st.binary(max_size=140)).map(b"".join),
    ))  # fmt: skip
    def fuzz(data):
        assert describe_bytes(data, sender, dialect).count("\n") == 0
        try:
            message = decode(data, sender, dialect)
        except MessageError as error:
            assert str(error) and "\n" not in str(error)
        else:
            assert decode(encode(message.body, message.token), sender, dialect) == message

    fuzz()


@settings(max_examples=200)
@given(st.data())
def test_a_message_with_bytes_changed_or_cut_decodes_or_is_malformed(data):
    wire = data.draw(st.sampled_from(DECLARED))
    sender = Sender.AGENT if wire.kind is Kind.COMMAND else Sender.PLATFORM
    whole = bytearray(encode(data.draw(bodies(wire.body))))
    for _ in range(data.draw(st.integers(0, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    kept = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    try:
        decode(kept, sender, dialect_of(wire))
    except ScmiError as error:
        assert isinstance(error, MessageError)


@pytest.mark.parametrize(
    ("data", "sender", "expected"),
    [
        (b"", Sender.AGENT, "0 bytes are too few for the 4-byte SCMI header"),
        (words(0xF0004000), Sender.AGENT, "header 0xf0004000: bits 31:28 are not zero"),
        (words(0x10004000), Sender.AGENT, "header 0x10004000: bits 31:28 are not zero"),
        (words(0x4000 | 3 << 8), Sender.AGENT, "an agent sends no message of type 3"),
        (words(0x4000 | 1 << 8), Sender.PLATFORM, "message type 1 is not used"),
        (words(0x6005, 1), Sender.AGENT, "POWERCAP_CAP_SET command: payload of 4 bytes instead of 12"),
        (words(0x6004), Sender.PLATFORM, "POWERCAP_CAP_GET response: no status word"),
        (words(0x6004, 7), Sender.PLATFORM, "POWERCAP_CAP_GET response: status 7 is positive"),
        (words(0x6004) + b"\xff" * 3, Sender.PLATFORM, "POWERCAP_CAP_GET response: no status word"),
        (words(0x42 << 10 | 0x5, 1), Sender.PLATFORM, "message 0x5 of protocol 0x42 response: status 1 is positive"),
        (words(0x4003, 0) + b"x" * 16, Sender.PLATFORM, "has no end"),
        (words(0x4003, 0) + b"\xff".ljust(16, b"\0"), Sender.PLATFORM, "is not ASCII"),
        (words(0x4006, 0, 5, 0x13), Sender.PLATFORM, "list of protocols: announces 5, has 4 bytes"),
        (words(0x4006, 0, 2, 0x01001513), Sender.PLATFORM, "is not 2 ids and padding"),
        (words(0x4C04, 0, 2, 1, 2, 3, 4, 5), Sender.PLATFORM, "levels: announces 2 entries, has 1"),
        (words(0x5403, 0, 1, 1, 1 << 8, 7, 0, 0, 0, 0, 0, 0), Sender.PLATFORM, "sensor descriptors: 4 bytes left"),
    ],
)  # fmt: skip
def test_a_malformed_message_is_refused_in_one_line_that_says_what_is_wrong(data, sender, expected):
    with pytest.raises(MessageError) as raised:
        decode(data, sender)
    assert expected in str(raised.value)


def test_messages_that_the_dialect_lacks_are_named():
    with pytest.raises(UnknownMessageError, match="protocol 0x14 is not spoken here"):
        decode(words(0x14 << 10 | 0x7, 0), Sender.AGENT)
    with pytest.raises(UnknownMessageError, match="protocol 0x18 version 0x20000 has no message 0x42 of type 0"):
        decode(words(0x18 << 10 | 0x42, 0), Sender.AGENT)
    with pytest.raises(UnknownMessageError, match="protocol 0x18 version 0x20000 has no message 0x42 of type 3"):
        decode(words(0x18 << 10 | 3 << 8 | 0x42, 0), Sender.PLATFORM)


def test_the_versions_that_are_spoken_are_those_of_linux_and_the_ones_before():
    assert SPOKEN == {
        0x10: (0x20000, 0x20001),
        0x13: (0x30000, 0x40000),
        0x15: (0x30000, 0x30001),
        0x18: (0x10000, 0x20000),
    }
    assert LATEST.versions == {0x10: 0x20001, 0x13: 0x40000, 0x15: 0x30001, 0x18: 0x20000} | vendor.VERSIONS


@pytest.mark.parametrize("end", [Failed(0, 0, -1), Failed(255, 255, -(2**31), True)])
def test_error_responses_reach_to_the_ends_of_their_fields(end):
    assert decode(encode(end), Sender.PLATFORM) == Message(0, end)


@pytest.mark.parametrize(
    "body",
    [Failed(-1, 0, -1), Failed(256, 0, -1), Failed(0, -1, -1), Failed(0, 256, -1), Failed(0, 0, 0), Failed(0, 0, 1),
     Failed(0, 0, -(2**31) - 1)],
)  # fmt: skip
def test_an_error_response_beyond_its_fields_is_refused(body):
    with pytest.raises(MessageError, match="does not fit an error response"):
        encode(body)


@pytest.mark.parametrize("protocol", [-1, 256])
def test_a_protocol_beyond_its_field_is_refused(protocol):
    with pytest.raises(MessageError, match=f"protocol {protocol} is not in 0..255"):
        encode(common.ProtocolVersion(protocol))
    assert encode(common.ProtocolVersion(255)) == words(255 << 10)


@pytest.mark.parametrize("token", [-1, 1024])
def test_a_token_beyond_its_field_is_refused(token):
    with pytest.raises(MessageError, match=f"token {token} is not in 0..1023"):
        encode(power_capping.CapGet(0), token)


@pytest.mark.parametrize(
    ("body", "token", "expected"),
    [
        (power_capping.CapSet(1, 0, -1), 0, "cap is -1, which is not in 0..4294967295"),
        (power_capping.CapGet(0), 1024, "token 1024 is not in 0..1023"),
        (base.DiscoverVendorResponse("a name too long!"), 0, "15 characters"),
        (base.DiscoverVendorResponse("Zürich"), 0, "is not ASCII"),
        (common.ProtocolVersion(300), 0, "protocol 300 is not in 0..255"),
        (base.ListProtocolsResponse((0,)), 0, "not all in 1..255"),
    ],
)
def test_values_that_do_not_fit_are_named_before_anything_is_sent(body, token, expected):
    with pytest.raises(MessageError, match=expected):
        encode(body, token)


def test_flag_words_are_spelt_out():
    attributes = 1 << 31 | 1 << 27 | 1 << 26 | 2 << 23
    body = power_capping.PowercapDomainResponse(
        attributes, "pkg", 500, 500, 0, 30_000, 300_000, 500, 250_000, 2, power_capping.ROOT
    )
    assert "(cap changes notified, cap configurable, monitoring, power unit mW)" in describe(Message(0, body))
    assert body.power_unit == "mW" and body.can_set_cap and not body.can_set_pai


def test_a_vendor_protocol_is_spoken_once_its_messages_are_declared():
    @response(0xE7, 0x3, "TEST_COUNTERS_GET")
    class CountersResponse(Body, frozen=True):
        overruns: U32

    @command(0xE7, 0x3, "TEST_COUNTERS_GET")
    class Counters(Command[CountersResponse], frozen=True):
        domain: U32

    try:
        spoken = LATEST.with_version(0xE7, 0x10000)
        assert decode(encode(Counters(3), 1), Sender.AGENT, spoken) == Message(1, Counters(3))
        assert decode(encode(CountersResponse(8)), Sender.PLATFORM, spoken).body == CountersResponse(8)
        with pytest.raises(UnknownMessageError):
            decode(encode(Counters(3)), Sender.AGENT)
    finally:
        del WIRES[Counters], WIRES[CountersResponse]


def test_two_messages_in_one_place_are_refused():
    @command(0xE7, 0x3, "TEST_ONE")
    class One(Body, frozen=True):
        domain: U32

    @command(0xE7, 0x3, "TEST_OTHER")
    class Other(Body, frozen=True):
        domain: U32

    try:
        with pytest.raises(ValueError, match="Other and One have the same place"):
            LATEST.with_version(0xE7, 0x10000)
    finally:
        del WIRES[One], WIRES[Other]


def test_an_error_status_outside_the_standard_is_kept():
    assert "status -77" in describe(Message(0, Failed(0x18, 0x5, -77)))


@pytest.mark.parametrize(
    ("protocol", "name"),
    [(0x13, "performance"), (0x12, "system power"), (0x14, "clock"), (0x80, "vendor"), (0x1F, "unknown")],
)
def test_a_protocol_of_the_standard_is_never_taken_for_a_vendors(protocol: int, name: str) -> None:
    assert protocol_name(protocol) == name
