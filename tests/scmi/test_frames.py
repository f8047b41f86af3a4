"""Frames are found in whatever comes over a line, and only frames that were sent."""

from hypothesis import given, settings
from hypothesis import strategies as st

from firmware_bridge.scmi.transports.frames import SYNC, Broken, Frame, FrameDecoder, FrameKind, crc16, pack_frame
from tests.scmi.frame_device import crc, frame

FRAMES = st.builds(Frame, st.sampled_from(FrameKind), st.integers(0, 255), st.binary(max_size=140))


def cut_at_random(draw, stream: bytes) -> list[bytes]:
    cuts = sorted(draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    return [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]


def whole(found) -> list[Frame]:
    return [one for one in found if isinstance(one, Frame)]


def test_the_crc_is_ccitt_false():
    assert crc16(b"123456789") == crc(b"123456789") == 0x29B1


@given(FRAMES)
def test_both_ends_write_the_same_bytes(one):
    assert pack_frame(*one) == frame(*one)


@settings(max_examples=150)
@given(st.data())
def test_frames_in_any_pieces_and_any_garbage_are_all_found(data):
    frames = data.draw(st.lists(FRAMES, max_size=4))
    stray = st.binary(max_size=20) | st.just(SYNC) | st.just(SYNC + b"\x03\x00\xff\x00")
    stream = b"".join(data.draw(stray) + pack_frame(*one) for one in frames) + data.draw(stray)
    decoder = FrameDecoder()
    found = [one for piece in cut_at_random(data.draw, stream) for one in decoder.feed(piece)]
    found += decoder.end_of_burst()
    assert whole(found) == frames
    assert not decoder.is_within_frame


@settings(max_examples=150)
@given(st.data())
def test_a_damaged_frame_never_arrives_and_its_neighbours_do(data):
    before, hit, after = (data.draw(FRAMES) for _ in range(3))
    damaged = bytearray(pack_frame(*hit))
    at = data.draw(st.integers(0, len(damaged) - 1))
    damaged[at] ^= data.draw(st.integers(1, 255))
    decoder = FrameDecoder()
    found = decoder.feed(pack_frame(*before) + damaged + pack_frame(*after)) + decoder.end_of_burst()
    assert whole(found) == [before, after]


@given(FRAMES, st.data())
def test_a_truncated_frame_is_reported_once_the_line_is_silent(one, data):
    bytes_sent = pack_frame(*one)
    decoder = FrameDecoder()
    cut = data.draw(st.integers(6, len(bytes_sent) - 1))
    assert whole(decoder.feed(bytes_sent[:cut])) == []
    assert Broken(one.sequence) in decoder.end_of_burst()
    assert decoder.feed(bytes_sent) == [one]


@settings(max_examples=200)
@given(st.lists(st.binary(max_size=300), max_size=6))
def test_the_decoder_keeps_no_more_than_one_frame_of_anything(pieces):
    decoder = FrameDecoder()
    for piece in pieces:
        decoder.feed(piece)
        assert len(decoder._kept) < 8 + 256
