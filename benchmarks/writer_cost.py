"""What the writer process costs: one round of 384 clocks from the agent and back, its idleness, and false lease ends.

*Round*: `RemoteWriter.apply` that changes 384 clock limits, from the call to its return. The writer process saves
what it is about to write, looks for foreign writers, writes each file and reads it back. The files are a tree in
memory (tmpfs), whose open, read and write cost about what sysfs costs. The writer is below its restorer, so it looks
before each write whether it is still its turn. Next to it the same in the agent's own process, and a round that
renews leases and changes nothing. *Idle*: the writer's processor time and wake-ups without leases. *False ends*:
leases of one second that ended although the agent lived, renewed every 100 ms, with 25 busy processes next to it.
Target: 2 ms where a yardstick takes 130 us; judged by the processor time of both processes (schedstat, the median
round), since other programs delay a round on a shared machine.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.experiment import save
from nodectl.knobs import open_knob
from nodectl.write.writer import Writer
from pmu.system import system_ports
from tests.writer_process.tree_writer import make_tree, writer_on
from tests.yardstick import yardstick_us

CLOCKS, MOST_MS, AT_YARDSTICK_US = 384, 2.0, 130.0
NAMES = [f"cpu/policy{policy}/max_khz" for policy in range(CLOCKS)]
VALUES_KHZ = (1_500_000, 1_800_000)
PERIOD_S = 0.1


def rounds_ms(apply: Callable[[dict[str, int]], object], settings: Sequence[dict[str, int]]) -> list[float]:
    """Milliseconds of each round; the first one, which captures, is not counted."""
    return [row[0] for row in rounds_and_used_ms(apply, settings, ())]


def rounds_and_used_ms(
    apply: Callable[[dict[str, int]], object], settings: Sequence[dict[str, int]], pids: Sequence[int]
) -> list[list[float]]:
    """Of each round but the first its milliseconds, and then those of processor time in each of these processes."""
    apply(settings[0])
    rows = []
    for setting in settings[1:]:
        before_ms, began_ns = [used_ms(pid) for pid in pids], time.perf_counter_ns()
        apply(setting)
        took_ms = (time.perf_counter_ns() - began_ns) / 1e6
        rows.append([took_ms, *(used_ms(pid) - at for pid, at in zip(pids, before_ms, strict=True))])
    return rows


def used_ms(pid: int) -> float:
    """Processor time of the process' first thread, to the nanosecond (proc(5), schedstat)."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e6


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.writer_cost", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, and shorter")
    parser.add_argument("--busy", type=int, default=25, help="how many busy processes (default: 25)")
    options = parser.parse_args(arguments)
    quick = options.quick
    rounds, idle_s, busy_s = (50, 2.0, 10.0) if quick else (300, 10.0, 60.0)
    moving = [dict.fromkeys(NAMES, VALUES_KHZ[n % 2]) for n in range(rounds)]
    still = [moving[0]] * rounds
    folder = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=folder) as directory:
        at = Path(directory)
        tree = make_tree(at / "node", CLOCKS)
        ports = system_ports(str(tree))
        own = Writer([open_knob(ports, name) for name in NAMES], str(at / "own"), "boot", ports.clock)
        own.start()
        writer = writer_on(tree, at / "state", lock=at / "lock")
        writer.start()
        assert writer._link and writer._link.process
        (process,) = psutil.Process(writer._link.process.pid).children()
        figures = {"in process, one by one": rounds_ms(own.apply, moving)}
        own.restore_all()
        own.close()
        measured = np.array(rounds_and_used_ms(writer.apply, moving, (os.getpid(), process.pid)))
        figures["writer process"] = measured[:, 0].tolist()
        agent_ms, writer_ms = np.median(measured[:, 1:], axis=0).tolist()
        both_ms = float(np.median(measured[:, 1:].sum(axis=1)))
        figures["renewal only"] = rounds_ms(writer.apply, still)
        yardstick = yardstick_us(50)
        writer.restore_all()
        idle = _idle(process, idle_s)
        renewals, load = _busy_rounds(writer.apply, busy_s, options.busy)
        expired = writer.expired
        writer.restore_all()
        writer.close()
    rows = {name: [float(at) for at in np.percentile(took, [50, 99])] for name, took in figures.items()}
    for name, (p50_ms, p99_ms) in rows.items():
        print(f"{CLOCKS} clocks, {name:24} p50 {p50_ms:7.2f} ms  p99 {p99_ms:7.2f} ms")
    in_yardsticks = both_ms * 1e3 / yardstick
    most = MOST_MS * 1e3 / AT_YARDSTICK_US
    print(
        f"processor time of a round (median): agent {agent_ms:.2f} ms, writer {writer_ms:.2f} ms, both {both_ms:.2f} ms"
    )
    print(f"yardstick {yardstick:.0f} us; both are {in_yardsticks:.1f} of them (target {most:.1f})")
    print(f"idle writer: {idle['cpu_s']:.3f} s of processor time, {idle['wakeups']} wake-ups in {idle_s:g} s")
    print(f"leases that ended while the agent lived: {expired} ({renewals} renewals) at a load of {load:.1f}")
    content = {"rows": rows, "used_ms": [agent_ms, writer_ms, both_ms], "yardstick_us": yardstick, "idle": idle}
    content |= {"expired": expired, "renewals": renewals, "load": load}
    print("JSON:", save("writer_cost", content))
    return int(in_yardsticks > most or idle["cpu_s"] > 0 or idle["wakeups"] > 0)


def _idle(process: psutil.Process, seconds: float) -> dict[str, float]:
    time.sleep(0.2)
    before, switches = process.cpu_times(), process.num_ctx_switches()
    time.sleep(seconds)
    wakeups = process.num_ctx_switches().voluntary - switches.voluntary
    return {"cpu_s": _used_s(process, before), "wakeups": wakeups}


def _used_s(process: psutil.Process, before: Any) -> float:
    after = process.cpu_times()
    return float(after.user + after.system - before.user - before.system)


def _busy_rounds(apply: Callable[[dict[str, int]], object], seconds: float, n_busy: int) -> tuple[int, float]:
    """Renew every 100 ms next to busy processes: how often, and the load at the end."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(n_busy)]
    end_s, rounds = time.monotonic() + seconds, 0
    try:
        while time.monotonic() < end_s:
            apply(dict.fromkeys(NAMES, VALUES_KHZ[rounds % 2]))
            rounds += 1
            time.sleep(PERIOD_S)
        return rounds, psutil.getloadavg()[0]
    finally:
        for one in busy:
            one.kill()
        for one in busy:
            one.wait()


if __name__ == "__main__":
    raise SystemExit(main())
