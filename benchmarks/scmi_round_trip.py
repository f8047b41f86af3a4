"""Round trips of CAP_GET over every link that is here: in process, shared memory, and any URL that is given.

In process: encode, the platform on its host board, decode (at most 10 us is required of these), and the client with
mailbox in virtual time. Shared memory: the client in this process, the controller with its plant in another, as an
ordinary process and, with the right to it, as SCHED_FIFO. Serial: the rv32 image in QEMU, over a pty, its control loop
running in QEMU's time, and stopped. ``--url scmi+serial:...`` adds a controller that runs somewhere else. Each
call is timed by itself.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from firmware_bridge.controlpulp import qemu, rv32
from firmware_bridge.controlpulp.host import HostController
from firmware_bridge.controlpulp.posix import PosixController
from firmware_bridge.controlpulp.shared_memory import TIME_BY_TIMER, TIME_BY_WORD
from firmware_bridge.scmi.client import Client
from firmware_bridge.scmi.messages.codec import decode, encode
from firmware_bridge.scmi.messages.header import Sender
from firmware_bridge.scmi.protocols.power_capping import CapGet
from firmware_bridge.scmi.protocols.telemetry import TelemetryStatus
from firmware_bridge.scmi.transports.in_process import InProcess
from firmware_bridge.scmi.transports.url import open_client
from twin.pulp.plant import CLASSES, CORES
from twin.pulp.shared_plant import LIBRARY, SharedPlant

OUT = Path(__file__).parent.parent / "out" / "bench" / "scmi_round_trip.json"
PLATFORM_BUDGET_US = 10.0
"""Required of codec and platform in process."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scmi_round_trip", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--url", action="append", default=[], help="a further controller, e.g. scmi+serial:/dev/pts/3")
    chosen = parser.parse_args(arguments)
    repeats = 1000 if chosen.quick else 20_000
    rows = [_codec_and_platform(repeats), _in_process(repeats)]
    rows += [_shared_memory(repeats, fifo) for fifo in (False, True)]
    rows += _serial_in_qemu(repeats // 10)
    for url in chosen.url:
        client = open_client(url)
        rows.append(_row(url, client, repeats // 20))
        client.close()
    print(f"{'what':<56} {'median':>8} {'p90':>8} {'p99':>8}  us   late slots")
    for row in rows:
        late = f"{row['late_slots']:10.2%}" if "late_slots" in row else ""
        print(f"{row['what']:<56} {row['median_us']:8.1f} {row['p90_us']:8.1f} {row['p99_us']:8.1f}     {late}")
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(rows, indent=1))
    alone_us = rows[0]["median_us"]
    verdict = "within" if alone_us <= PLATFORM_BUDGET_US else "ABOVE"
    print(f"codec and platform: {alone_us:.1f} us, {verdict} {PLATFORM_BUDGET_US:.0f} us")
    return 0 if alone_us <= PLATFORM_BUDGET_US else 1


def _codec_and_platform(repeats: int) -> dict[str, Any]:
    controller = HostController()

    def once() -> None:
        decode(controller.exchange(0, encode(CapGet(0), 5)), Sender.PLATFORM)

    return _timed("codec and platform, in process", once, repeats)


def _in_process(repeats: int) -> dict[str, Any]:
    return _row("client and mailbox, in process, virtual time", Client(InProcess(HostController())), repeats)


def _shared_memory(repeats: int, fifo: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        plant = SharedPlant(Path(name) / "plant")
        plant.capacitance[:] = CLASSES[2]
        plant.settle(np.full(CORES, 4.0))
        options = ("--fifo", "try") if fifo else ()
        controller = PosixController(Path(name) / "scmi", *options, plant=(LIBRARY, plant.path))
        is_fifo = os.sched_getscheduler(controller.process.pid) == os.SCHED_FIFO
        client = open_client(controller.url(2))
        before = client.request(TelemetryStatus())
        what = f"shared memory, controller as {'SCHED_FIFO' if is_fifo else 'an ordinary process'}"
        row = _row(what, client, repeats)
        after = client.request(TelemetryStatus())
        client.close()
        controller.stop()
    merged = after.merged_control - before.merged_control
    return {**row, "late_slots": merged / (merged + after.slots - before.slots)}


def _serial_in_qemu(repeats: int) -> list[dict[str, Any]]:
    if reason := qemu.missing():
        print(f"serial line in QEMU: not run, {reason}")
        return []
    rows = []
    with tempfile.TemporaryDirectory() as name:
        image = rv32.build(Path(name) / "controlpulp.elf")
        for mode, what in ((TIME_BY_TIMER, "control loop running"), (TIME_BY_WORD, "control loop standing")):
            controller = qemu.QemuController(image, mode)
            client = open_client(f"scmi+serial://{controller.pty}?baud=921600")
            before = client.request(TelemetryStatus())
            row = _row(f"serial line in QEMU, {what}", client, repeats)
            after = client.request(TelemetryStatus())
            client.close()
            controller.kill()
            merged, slots = after.merged_control - before.merged_control, after.slots - before.slots
            rows.append({**row, "late_slots": merged / (merged + slots)} if slots else row)
    return rows


def _row(what: str, client: Client, repeats: int) -> dict[str, Any]:
    return _timed(what, lambda: client.request(CapGet(0)), repeats)


def _timed(what: str, work: Callable[[], object], repeats: int) -> dict[str, Any]:
    costs_us = []
    for _ in range(repeats):
        begin_ns = time.perf_counter_ns()
        work()
        costs_us.append((time.perf_counter_ns() - begin_ns) / 1e3)
    parts = statistics.quantiles(costs_us, n=100)
    return {"what": what, "median_us": parts[49], "p90_us": parts[89], "p99_us": parts[98], "calls": repeats}


if __name__ == "__main__":
    sys.exit(main())
