"""What SCMI costs: encoding and decoding each kind of message.

Per message, from batches, so that the clock's own cost does not count. Round trips are in ``scmi_round_trip``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from firmware_bridge.scmi.messages.codec import decode, encode
from firmware_bridge.scmi.messages.header import Kind, Sender
from firmware_bridge.scmi.messages.message import Body
from firmware_bridge.scmi.protocols.performance import DescribeLevelsResponse, Level, LevelSet
from firmware_bridge.scmi.protocols.power_capping import (
    CapChanged,
    CapGet,
    CapGetResponse,
    CapSet,
    PowercapDomainResponse,
)
from firmware_bridge.scmi.protocols.sensor import Reading, ReadingGetResponse

OUT = Path(__file__).parent.parent / "out" / "bench" / "scmi_codec.json"
BATCH = 200

MESSAGES: list[tuple[str, Kind, Body]] = [
    ("CAP_GET command", Kind.COMMAND, CapGet(1)),
    ("CAP_GET response", Kind.RESPONSE, CapGetResponse(100_000)),
    ("CAP_SET command", Kind.COMMAND, CapSet(1, 0, 100_000)),
    ("LEVEL_SET command", Kind.COMMAND, LevelSet(1, 2_400_000)),
    ("CAP_CHANGED notification", Kind.NOTIFICATION, CapChanged(1, 0, 100_000, 500)),
    ("READING_GET response", Kind.RESPONSE, ReadingGetResponse((Reading(120_000, 0),))),
    ("DOMAIN_ATTRIBUTES response", Kind.RESPONSE,
     PowercapDomainResponse(0, "package", 500, 100_000, 500, 20_000, 324_000, 100, 250_000, 3, 0xFFFFFFFF)),
    ("DESCRIBE_LEVELS response, 6 levels", Kind.RESPONSE,
     DescribeLevelsResponse(11, tuple(Level(i, i, 1000, i, i) for i in range(6)))),
]  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    repeats = 200 if parser.parse_args(arguments).quick else 2000
    rows: list[dict[str, Any]] = []
    for name, kind, body in MESSAGES:
        sender = Sender.AGENT if kind is Kind.COMMAND else Sender.PLATFORM
        data = encode(body, 5)
        rows.append(_row(f"encode {name}", _batches(partial(encode, body, 5), repeats)))
        rows.append(_row(f"decode {name}", _batches(partial(decode, data, sender), repeats)))
    print(f"{'what':<52} {'median':>9} {'p99':>9}  us")
    for row in rows:
        print(f"{row['what']:<52} {row['median_us']:9.2f} {row['p99_us']:9.2f}")
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(rows, indent=1))
    return 0


def _batches(work: Callable[[], object], repeats: int) -> list[float]:
    """Microseconds per call, one figure per batch."""
    costs = []
    for _ in range(max(repeats // 10, 20)):
        begin_ns = time.perf_counter_ns()
        for _ in range(BATCH):
            work()
        costs.append((time.perf_counter_ns() - begin_ns) / BATCH / 1e3)
    return costs


def _row(what: str, costs_us: list[float]) -> dict[str, Any]:
    ordered = sorted(costs_us)
    p99 = ordered[min(len(ordered) - 1, round(0.99 * len(ordered)))]
    return {"what": what, "median_us": statistics.median(ordered), "p99_us": p99, "calls": len(ordered)}


if __name__ == "__main__":
    sys.exit(main())
