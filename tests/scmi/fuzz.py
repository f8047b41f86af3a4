"""``python -m tests.scmi.fuzz [MILLIONS] [SEED]``: changed and random messages through codec and frame decoder.

Hypothesis looks for small counterexamples in the tests; this is the long run. Each message is a known
header, or a message that was decoded before, with a few bytes changed, a random tail, or its end cut off. Anything but
a message or a ``MessageError`` ends the run with the bytes that did it.
"""

from __future__ import annotations

import random
import sys
import time

from firmware_bridge.errors import MessageError
from firmware_bridge.scmi.messages.codec import LATEST, SPOKEN, Dialect, decode, encode
from firmware_bridge.scmi.messages.header import Sender
from firmware_bridge.scmi.messages.message import WIRES
from firmware_bridge.scmi.protocols.vendor import VERSIONS
from firmware_bridge.scmi.transports.frames import FrameDecoder, FrameKind, pack_frame

OLDEST = Dialect({protocol: versions[0] for protocol, versions in SPOKEN.items()} | VERSIONS)


def main(arguments: list[str]) -> int:
    millions = float(arguments[0]) if arguments else 1.0
    chance = random.Random(int(arguments[1]) if len(arguments) > 1 else 1)
    corpus = [wire.address.to_bytes(4, "little") + bytes(4 * wire.has_status) for wire in WIRES.values()]
    decoder = FrameDecoder()
    decoded = refused = frames = 0
    begin_s = time.monotonic()
    for _ in range(int(millions * 1e6)):
        data = changed(chance.choice(corpus), chance)
        sender, dialect = chance.choice((Sender.AGENT, Sender.PLATFORM)), chance.choice((LATEST, OLDEST))
        try:
            try:
                message = decode(data, sender, dialect)
            except MessageError:
                refused += 1
            else:
                decoded += 1
                again = encode(message.body, message.token)
                assert decode(again, sender, dialect) == message
                if len(corpus) < 4096:
                    corpus.append(data)
            if chance.random() < 0.1:
                line = pack_frame(FrameKind.COMMAND, 1, data[:256])
                frames += len(decoder.feed(changed(line, chance)))
        except Exception:
            print(f"seed run ended by {data.hex()} from the {sender.value}", file=sys.stderr)
            raise
    rate = millions * 1e6 / (time.monotonic() - begin_s)
    print(
        f"{decoded} decoded, {refused} refused, {frames} frames found or broken; {rate:.0f} messages/s; nothing crashed"
    )
    return 0


def changed(data: bytes, chance: random.Random) -> bytes:
    """A few bytes changed, and perhaps a tail added, or the end cut off."""
    out = bytearray(data)
    how = chance.random()
    if how < 0.5:
        out += chance.randbytes(chance.choice((4, 8, 12, 16, 20, 24, chance.randrange(140))))
    elif how < 0.6:
        del out[chance.randrange(len(out)) :]
    for _ in range(chance.randrange(4)):
        if out:
            out[chance.randrange(len(out))] = chance.choice((0, 1, 2, 0xFF, chance.randrange(256)))
    return bytes(out)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
