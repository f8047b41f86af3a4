"""A node with an allowed key that lies: every message is well formed and encrypted, and none of it is true.

``python hostile_node.py NAME URL KEYS SEED``. It claims epochs and sequences out of all range, boots and times that
never were, caps and powers from nothing to a megawatt, the parts of other nodes' jobs in every state, and NaN where the
wire cannot have it. Every now and then it falls silent, or is honest, so that others get watts to lose.
"""

from __future__ import annotations

import contextlib
import random
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import zmq

from foundation.wire.job_messages import MAX_PARTS
from foundation.wire.keys import read_pair, read_public
from foundation.wire.link_options import QUEUED
from foundation.wire.power_messages import PROTOCOL

PERIOD_S, MOOD_S, SILENT_SHARE = 0.06, 3.0, 0.2
LARGEST = (1 << 62) - 1
PHASES = ("running", "ending", "ended", "refused", "lost")


def report(dice: random.Random, name: str) -> dict[str, Any]:
    """One of the truths that could be, with some of its fields as no node ever was."""
    now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    lies: dict[str, Any] = {
        "seen_epoch": dice.choice((0, 1, 2, 50, 1 << 19, 1 << 20, 1 << 40, LARGEST)),
        "epoch": dice.choice((0, 1, 2, 3, 4, 1 << 20, LARGEST)),
        "sequence": dice.choice((0, 1, 2, 100, 1 << 40, LARGEST)),
        "report_id": dice.choice((0, 1, now_ns - 10**12, now_ns + 10**12, LARGEST)),
        "limit_mw": dice.choice((0, 1, 150_000, 500_000, 10**9)),
        "power_mw": dice.choice((-1, 0, 1, 400_000, 10**9)),
        "asked_mw": dice.choice((-1, 0, 10**9)),
        "energy_mj": dice.choice((-1, 0, LARGEST)),
        "units": dice.choice((-1, 0, LARGEST)),
        "instructions": dice.choice((-1, 0, LARGEST)),
        "boot_id": dice.choice(("boot-1", "boot-2", f"{dice.random()}")),
        "is_leaving": True,
        "effect": dice.choice(("seen", "unseen", "provisional")),
        "declaration": declaration(dice),
        "tag": dice.choice(("", "COMPUTE", "no such tag", "\x1b[31m")),
        "quality": dice.choice(("measured", "\x07")),
        "held": dice.choice(("", "no", "unsure", "yes")),
    }
    honest = {
        "node": dice.choice((name, "n0", "n1")), "boot_id": "boot-1", "report_id": now_ns, "seen_epoch": 0, "epoch": 0,
        "sequence": 0, "limit_mw": 500_000, "effect": "seen", "power_mw": 100_000, "energy_mj": 1,
        "declaration": {"tdp_mw": 500_000, "mop_mw": 150_000, "safe_mw": 200_000, "boot_mw": 0, "lease_class": "os"},
    }  # fmt: skip
    return honest | {field: lies[field] for field in dice.sample(sorted(lies), dice.choice((0, 1, 2, 5)))}


def declaration(dice: random.Random) -> dict[str, Any]:
    tdp_mw = dice.choice((1, 1_000, 500_000, 10**9))
    powers = {field: dice.randint(1, tdp_mw) for field in ("mop_mw", "safe_mw", "boot_mw")}
    times = {field: dice.choice((0, 1, 600_000)) for field in ("settle_ms", "watchdog_ms")}
    return {"tdp_mw": tdp_mw, **powers, **times, "lease_class": dice.choice(("hw", "os", "sticky"))}


def jobs(dice: random.Random, name: str) -> dict[str, Any]:
    """The parts of jobs that other nodes run."""
    parts = [
        {
            "job": dice.choice((dice.randint(1, 400), (1 << 53) - 1)),
            "attempt": dice.choice((1, 1, 2, (1 << 53) - 1)),
            "phase": dice.choice(PHASES),
            "status": dice.choice((0, 1, -9, 255)),
            "cause": dice.choice(("", "walltime", "told")),
            "started_s": dice.choice((0.0, 1e11, time.time(), float("nan"))),
            "ended_s": dice.choice((0.0, 1e11, time.time(), float("inf"), float("nan"))),
            "detail": dice.choice(("", "\x1b]0;x\x07", "x" * 300)),
            "slowdown": dice.choice((None, -0.99, 1e6)),
        }
        for _ in range(dice.randint(0, MAX_PARTS))
    ]
    return {"node": dice.choice((name, "n0")), "boot_id": dice.choice(("boot-1", "boot-2")), "parts": parts}


def main(name: str, url: str, keys: str, seed: str) -> None:
    dice = random.Random(int(seed))
    pair = read_pair(Path(keys) / f"{name}.key")
    with zmq.Context() as context, context.socket(zmq.DEALER) as door:
        for option, value in ((zmq.LINGER, 0), (zmq.IMMEDIATE, 1), (zmq.SNDHWM, QUEUED), (zmq.RECONNECT_IVL, 100)):
            door.setsockopt(option, value)
        door.curve_publickey, door.curve_secretkey = pair.public.encode(), pair.secret.encode()
        door.curve_serverkey = read_public(f"{keys}/cluster.key").encode()
        door.connect(url)
        while True:
            is_silent, until_s = dice.random() < SILENT_SHARE, time.monotonic() + MOOD_S
            while time.monotonic() < until_s:
                kind, body = dice.choice((("report", report(dice, name)), ("jobs", jobs(dice, name))))
                with contextlib.suppress(zmq.Again):
                    while not is_silent:
                        door.recv(zmq.NOBLOCK)
                if not is_silent:
                    with contextlib.suppress(zmq.Again):
                        door.send(msgspec.msgpack.encode([PROTOCOL, PROTOCOL, kind, body]), zmq.NOBLOCK)
                time.sleep(PERIOD_S)


if __name__ == "__main__":
    main(*sys.argv[1:])
