"""The worst case of the firmware's jobs on two cores in RTL, in cycles: bound by the longest path, and the worst seen.

A bound under these assumptions, not certified: no instruction takes longer than it was seen to take at its place or,
where it was never seen, than the slowest of its kind; no loop turns more often than its source says, which the run
checks; the image runs our law without bypass. The runs have loads, caps, faults of sensors, leases, and three agents
that watch and write all there is and send every message. EMULATED: the cores are published RTL, memory and devices
ours (twin/rtl/soc.h).
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from benchmarks.experiment import save
from benchmarks.firmware_lockstep import run
from benchmarks.firmware_rig import POWERCAP, Rig, command, mixed_load
from benchmarks.firmware_rtl import SLOT_CYCLES
from benchmarks.worst_case.control_flow import Function, disassembled, reachable
from benchmarks.worst_case.longest_path import Bounds
from benchmarks.worst_case.loop_bounds import of_loops
from benchmarks.worst_case.traces import Seen, Walk, costs
from firmware_bridge.controlpulp import rtl
from firmware_bridge.controlpulp.host import HostOptions
from tests.firmware.stack_bound import ONLY, pointed_to
from twin.pulp.plant import CLASSES, CORES
from twin.rtl import CORES as MODELS
from twin.rtl import library

MOST_RATIO = 2.0
"""Required: the bound over the worst seen, for each job."""

JOBS = {"fast": ("fast_job",), "control": ("firmware_do", "mailbox_serve"), "message": ("mailbox_serve",)}
"""Each job's function, and where it begins one that belongs to another job."""
OPTIONAL = ("published_step", "bypass")
"""Left out: what only images with other options run."""
FEW = {"fast_channel_poll": (("scmi_set_level", "scmi_set_limits", "scmi_set_cap", "scmi_set_pai"), 4)}
"""What a function calls at most so often in all: the run counts it (MOST_REQUESTS in fast_channel.c)."""
SENSOR, PERFORMANCE, TELEMETRY = 0x15, 0x13, 0x80
PROTOCOLS = (0x12, 0x13, 0x14, 0x15, 0x18, 0x80, 0x10)
"""All that the firmware speaks. Base comes last: it takes rights away and resets agents."""
LEASE_MS = 2


class Image:
    """The image with what belongs to it: functions, bounds of loops, and what pointers may call."""

    def __init__(self, path: Path) -> None:
        self.path = path
        everything = disassembled(path)
        self.entries: dict[str, list[int]] = {}
        for one in everything:
            self.entries.setdefault(one.name, []).append(one.entry)
        names = {"": pointed_to(path) - {"trap", "_start"}, **ONLY}
        self.pointed = {
            caller: {entry for name in called for entry in self.entries.get(name, [])}
            for caller, called in names.items()
        }
        self.roots = {job: self.entries[root][0] for job, (root, *_) in JOBS.items()}
        self.everything = everything
        self.few = {
            self.entries[name][0]: ([self.entries[one][0] for one in chosen], calls)
            for name, (chosen, calls) in FEW.items()
        }
        self.functions = reachable(everything, self.roots.values(), self.pointed)
        self.turns = of_loops(path, self.functions.values())


def watched_by_all(core: rtl.RtlController) -> None:
    """Each agent requests every notification, with bands that the readings leave and enter, over the longest means."""
    for channel in range(3):
        for domain in range(5):
            _tell(core, channel, command(POWERCAP, 0x7, domain, 0, 100_000))
            _tell(core, channel, command(POWERCAP, 0xB, domain, 1, 40_000, 41_000))
            _tell(core, channel, command(POWERCAP, 0xA, domain, 1))
        for domain in range(4):
            _tell(core, channel, command(PERFORMANCE, 0xA, domain, 1))
            _tell(core, channel, command(PERFORMANCE, 0x9, domain, 1))
        for sensor in range(18):
            _tell(core, channel, command(SENSOR, 0xA, sensor, 1 | 1 << 1))
            _tell(core, channel, command(SENSOR, 0xB, sensor, 1))


def _tell(core: rtl.RtlController, channel: int, message: bytes) -> None:
    core.send(channel, message)
    core.poll(channel)


def send_all(core: rtl.RtlController, random: np.random.Generator) -> None:
    """Each message of each protocol, with so many and so large words that most are carried out and some refused."""
    for protocol in PROTOCOLS:
        for message in range(0x11):
            for n_words in range(5):
                for channel in range(3):
                    words = random.choice([0, 0, 1, 3, 30_000], n_words).tolist()
                    _tell(core, channel, command(protocol, message, *words))


def traces(image: Path, model: str, folder: Path, slots: int) -> Iterator[Path]:
    """One after the other, each under another load; all decisions are compared with the host's."""
    parts = (("mixed", 0.0, 100), ("mixed", 7.5, 150), ("heavy", 7.5, 120), ("mixed", 0.0, 0))
    for seed, (name, heat_w, cap_w) in enumerate(parts, start=5):
        trace = folder / f"{model}-{seed}.trace"
        core = rtl.RtlController(image, library(model), trace=trace)
        load = mixed_load(seed) if name == "mixed" else np.full(CORES, CLASSES[3])
        rig = Rig.start(HostOptions(), load, seed=seed, noisy=True)
        if heat_w:
            rig.plant.settle(np.full(CORES, heat_w))
        message = command(POWERCAP, 0x5, 0, 0, cap_w * 1000)
        rig.host.exchange(0, message)
        _tell(core, 0, message)
        run(rig, core, slots, seed)
        core.close()
        yield trace
        trace.unlink()
    yield from _abused(image, model, folder, slots)


def _abused(image: Path, model: str, folder: Path, slots: int) -> Iterator[Path]:
    """Sensors that fail and lie, agents that watch everything, let their leases end and send every message."""
    random = np.random.default_rng(1)
    trace = folder / f"{model}-abused.trace"
    core = rtl.RtlController(image, library(model), trace=trace)
    watched_by_all(core)
    for slot in range(slots):
        core.words("temperature_mk")[:] = random.choice([250_000, 320_000, 353_200, 369_000, 2**31], CORES)
        core.words("capacitance_ff")[:] = random.choice([0, 500_000, 2_000_000, 4_000_000], CORES)
        core.words("power_uw")[:] = random.choice([0, 20_000_000, 90_000_000, 2**31], 5)
        if slot % 16 == 0:
            for channel in range(3):
                _tell(core, channel, command(TELEMETRY, 0x5, LEASE_MS, 0))
        if slot % 3 == 0:
            _tell(
                core, slot % 2, command(POWERCAP, 0x5, int(random.integers(5)), 0, int(random.integers(20_000, 90_000)))
            )
        for _ in range(4):
            if slot % 16 < 8:  # then all leases end in one slot
                flood(core, random)
            core.tick()
    send_all(core, random)
    core.close()
    yield trace
    trace.unlink()


def flood(core: rtl.RtlController, random: np.random.Generator) -> None:
    """All agents write all words of their FastChannels that request something."""
    windows = core.words("fast").reshape(3, -1)
    for domain in range(4):
        levels = windows[:, 6 * domain : 6 * domain + 4]
        levels[:, 0] = random.choice([400_000, 800_000, 1_350_000, 3_660_000], 3)
        levels[:, 2], levels[:, 3] = random.choice([2_000_000, 3_000_000, 3_660_000]), random.choice([400_000, 800_000])
    for domain in range(5):
        caps = windows[:, 24 + 4 * domain : 28 + 4 * domain]
        caps[:, 0], caps[:, 2] = random.integers(20_000, 90_000, 3), random.choice([500, 10_000, 100_000], 3)


def seen_on(image: Image, model: str, folder: Path, slots: int) -> Seen:
    """What the traces show."""
    walk = Walk(image.everything, set(image.roots.values()), {one: chosen for one, (chosen, _) in image.few.items()})
    for trace in traces(image.path, model, folder, slots):
        walk.follow(trace)
    return walk.seen


def exceeded(image: Image, seen: Seen) -> list[str]:
    """Loops that turned more often than their bounds allow, and too many calls: none, or the bounds are wrong."""
    calls = [
        f"{image.functions[entry].name}: {seen.calls[entry]} calls where {most} are allowed"
        for entry, (_, most) in image.few.items()
        if seen.calls[entry] > most
    ]
    return calls + [
        f"{function.name}: the loop at {loop.key:#x} turned {seen.turns[loop.key]} times, "
        f"its bound is {image.turns[loop.key]}"
        for function in image.functions.values()
        for loop in function.all_loops
        if seen.turns[loop.key] > image.turns[loop.key]
    ]


def bound(image: Image, spent: Mapping[tuple[int, bool], int], job: str) -> int:
    """Cycles of a job, from those of each instruction."""
    root, *others = JOBS[job]
    without = {entry for name in (*others, *OPTIONAL) for entry in image.entries[name]}
    functions: dict[int, Function] = {entry: one for entry, one in image.functions.items() if entry not in without}
    bounds = Bounds(
        functions, image.turns, lambda one, is_later: spent[one.address, is_later], image.pointed, image.few
    )
    return bounds.of(image.entries[root][0])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="firmware_bound", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="16 slots of each load instead of 64")
    slots = 16 if parser.parse_args(arguments).quick else 64
    rows, is_kept, is_close = [], True, True
    print(f"EMULATED. {'core':10}{'job':>10}{'seen':>10}{'bound':>10}{'ratio':>8}{'of a slot':>11}")
    with tempfile.TemporaryDirectory() as folder:
        image = Image(rtl.build(Path(folder) / "controlpulp.elf", "-g"))
        for model in MODELS:
            seen = seen_on(image, model, Path(folder), slots)
            spent = costs(image.functions.values(), seen)
            for line in exceeded(image, seen):
                print(line)
                is_kept = False
            for job, root in image.roots.items():
                most, worst = bound(image, spent, job), seen.tasks[root]
                is_kept = is_kept and worst <= most
                is_close = is_close and most <= MOST_RATIO * worst
                rows.append({"core": model, "job": job, "seen": worst, "bound": most})
                print(f"          {model:10}{job:>10}{worst:10}{most:10}{most / worst:8.2f}"
                      f"{100 * most / SLOT_CYCLES:10.1f}%")  # fmt: skip
    if is_kept:
        print("no loop turned more often than its bound, and no job took longer")
    print(f"required: a ratio of at most {MOST_RATIO:g}: {'kept' if is_close else 'not kept'}")
    save("firmware_bound", {"rows": rows, "kept": is_kept})
    return 0 if is_kept else 1


if __name__ == "__main__":
    raise SystemExit(main())
