"""From a phase's front to the clock that follows it, in virtual time, and what that is worth to the application.

Phases alternate between computing (a high level) and waiting for memory (a low one), so half of the requests are lower.
Three kinds of high-level controller, as published: (i) samples at a period of 1 ms and predicts that the next period is
like the last; (ii) gets the time of the front; (iii) too, and the firmware applies lower requests ahead of its slot.
A request takes the transport latency to reach the doorbell: 0, 26 or 190 us (190 is the published SCMI less the
published shared memory). Fronts fall anywhere in the control slot. Jobs take the time given in JOB_US.
"""

from __future__ import annotations

import argparse
import heapq
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.experiment import save
from benchmarks.firmware_rig import PERFORMANCE, Rig, command
from firmware_bridge.controlpulp.host import SLOT_S, HostOptions
from twin.pulp.plant import CLASSES, CORES

LOW_KHZ, HIGH_KHZ = 1_600_000, 2_900_000
MIDDLE_KHZ = (LOW_KHZ + HIGH_KHZ) // 2
"""A clock has followed once it is on the other side: the published law misses the requested clocks by a little."""
SAMPLE_S = 1e-3
JOB_US = (3.0, 130.0, 4.0)
"""Fast, control, one message: what the rv32 build was counted to take at 500 MHz (benchmarks/firmware_rv32.py)."""
TRANSPORTS_US = (0, 26, 190)
PHASE_S = 4.9e-3
"""Ours: chosen once, so that the published firmware gains REGALE's 2.75 % from (i) to (ii); then frozen."""
PUBLISHED_MS = {"(i)": (2.20, 1.94), "(ii)": (1.35, 1.16), "(iii)": (0.77, None)}
"""REGALE D2.3, 3.5: over SCMI and over shared memory."""


@dataclass(frozen=True, slots=True)
class Delays:
    """Of every command that changed the clock, ms."""

    lowers: NDArray[np.float64]
    raises: NDArray[np.float64]

    def row(self) -> dict[str, float]:
        """Means and quantiles."""
        both = np.concatenate((self.lowers, self.raises))
        return {
            "commands": len(both),
            "mean": float(both.mean()),
            "p50": float(np.quantile(both, 0.5)),
            "p99": float(np.quantile(both, 0.99)),
            "max": float(both.max()),
            "lower mean": float(self.lowers.mean()),
            "lower max": float(self.lowers.max()),
            "raise mean": float(self.raises.mean()),
            "raise max": float(self.raises.max()),
        }


def measure(options: HostOptions, transport_us: float, *, is_periodic: bool, commands: int, seed: int) -> Delays:
    """Random phases of 4 to 7 ms; the delay counts from the front to the last core that has followed."""
    random = np.random.default_rng(seed)
    rig = Rig.start(options, np.full(CORES, CLASSES[0]))
    rig.plant.settle(np.full(CORES, 2.0))
    rig.level(LOW_KHZ)
    rig.host.advance_slots(40)
    host, frequency = rig.host, rig.host.wires["freq_khz"]
    front_ns, is_high = host.now_ns, False
    lowers: list[float] = []
    raises: list[float] = []
    for _ in range(commands):
        front_ns += round(float(random.uniform(4e-3, 7e-3)) * 1e9)
        is_high = not is_high
        wanted = HIGH_KHZ if is_high else LOW_KHZ
        requested_ns = front_ns
        if is_periodic:  # the first sample after the front sees it; samples and control slots drift
            requested_ns += round(float(random.uniform(0, SAMPLE_S)) * 1e9)
        host.advance_to(requested_ns + round(transport_us * 1000))
        host.send(0, command(PERFORMANCE, 0x7, 0, wanted))
        applied_ns = 0
        for _ in range(64):
            host.advance(40e-6)
            if ((frequency[:9] > MIDDLE_KHZ) == is_high).all():
                applied_ns = round(host.view().last_change_s[0] * 1e9)
                break
        assert applied_ns > front_ns, "the clock never followed"
        (raises if is_high else lowers).append((applied_ns - front_ns) * 1e-6)
        assert host.poll(0) is not None
    return Delays(np.array(lowers), np.array(raises))


# ---- what it is worth ----


def _served_ns(options: HostOptions, rung_ns: int) -> int:
    """When the firmware serves a doorbell. The four requests of a front are served together, as one of them would be:
    the published firmware knows one domain, and with one mailbox four would take it four slots."""
    fast, control, message = (round(us * 1000) for us in options.job_us)
    if options.polled_messages:
        slot_ns = round(SLOT_S * 1e9)
        polled_ns = rung_ns // slot_ns * slot_ns + fast + control
        rung_ns = polled_ns if rung_ns <= polled_ns else polled_ns + slot_ns
    return rung_ns + message


@dataclass(frozen=True, slots=True)
class Setting:
    """Of the application and its cap."""

    phase_s: float = PHASE_S
    memory_share: float = 0.95
    """Of a waiting core's time, at the highest clock."""
    cap_w: float = 150.0


def work_of(options: HostOptions, transport_us: float, *, is_periodic: bool, setting: Setting, phases: int) -> float:
    """Work done per second under a cap while phases alternate: seconds of the highest clock.

    Two clusters compute while the other two wait for memory, and change places at each front: watts freed by the
    waiting ones are spent by the computing ones as soon as the controller knows.
    """
    random = np.random.default_rng(11)
    rig = Rig.start(options, np.full(CORES, CLASSES[2]))
    rig.plant.settle(np.full(CORES, 4.0))
    rig.cap(setting.cap_w)
    host, plant = rig.host, rig.plant
    halves = [np.arange(CORES) < CORES // 2, np.arange(CORES) >= CORES // 2]
    pending: list[tuple[int, int]] = []
    fronts = np.cumsum(random.uniform(0.8, 1.2, phases) * setting.phase_s)
    for number, front in enumerate(fronts):
        front_ns = round(float(front) * 1e9)
        requested = front_ns + (round(float(random.uniform(0, SAMPLE_S)) * 1e9) if is_periodic else 0)
        heapq.heappush(pending, (front_ns, 2 * number))
        heapq.heappush(pending, (_served_ns(options, requested + round(transport_us * 1000)), 2 * number + 1))
    while pending:
        at_ns, what = heapq.heappop(pending)
        host.advance_to(at_ns)
        computing = halves[what // 2 % 2]
        if what % 2 == 0:
            plant.memory_share[:] = np.where(computing, 0.0, setting.memory_share)
            plant.capacitance[:] = np.where(computing, CLASSES[2], CLASSES[1])
        else:
            for domain in range(4):
                level = 3_660_000 if computing[domain * 9] else LOW_KHZ
                host.exchange(0, command(PERFORMANCE, 0x7, domain, level))
    return float(plant.work_s.sum() / (host.now_ns * 1e-9) / CORES)


def variants(job_us: tuple[float, float, float]) -> list[tuple[str, str, HostOptions, bool]]:
    """Firmware, controller kind, options, whether it samples."""
    ours = HostOptions(bypass=False, job_us=job_us, interrupt_us=0.5)
    fast = HostOptions(bypass=True, job_us=job_us, interrupt_us=0.5)
    published = HostOptions(published_law=True, polled_messages=True, bypass=False, job_us=job_us)
    optimised = HostOptions(published_law=True, polled_messages=True, bypass=True, job_us=job_us)
    return [
        ("ours", "(i)", ours, True),
        ("ours", "(ii)", ours, False),
        ("ours", "(iii)", fast, False),
        ("published", "(i)", published, True),
        ("published", "(ii)", published, False),
        ("published", "(iii)", optimised, False),
    ]


def speed_ups(phases: int) -> dict[str, float]:
    """Work over that of the published firmware with (i) and no transport, in percent."""
    table: dict[str, float] = {}
    for transport_us in (0, 190, 1000):
        for firmware, kind, options, is_periodic in variants(JOB_US):
            work = work_of(options, transport_us, is_periodic=is_periodic, setting=Setting(), phases=phases)
            table[f"{firmware} {kind} {transport_us} us"] = work
    base = table["published (i) 0 us"]
    return {name: 100 * (work / base - 1) for name, work in table.items()}


SWEEP = [
    *(Setting(phase_s=phase_s) for phase_s in (1.2e-3, 2.5e-3, PHASE_S, 10e-3)),
    *(Setting(memory_share=share) for share in (0.0, 0.5, 0.8, 0.99)),
    *(Setting(cap_w=cap_w) for cap_w in (100.0, 120.0, 200.0, 300.0)),
]


def bypass_gains(phases: int) -> list[tuple[Setting, float, float]]:
    """What the bypass adds to the work of (ii), in percent: with our law and with the published one."""
    kinds = {(firmware, kind): options for firmware, kind, options, _ in variants(JOB_US)}
    rows = []
    for setting in SWEEP:
        work = {
            key: work_of(options, 0, is_periodic=False, setting=setting, phases=phases)
            for key, options in kinds.items()
            if key[1] != "(i)"
        }
        ours, published = (100 * (work[law, "(iii)"] / work[law, "(ii)"] - 1) for law in ("ours", "published"))
        rows.append((setting, ours, published))
    return rows


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="firmware_delay", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="500 commands instead of 10 000")
    commands = 500 if parser.parse_args(arguments).quick else 10_000
    results: dict[str, dict[str, float]] = {}
    shown = ("mean", "p50", "p99", "max", "lower mean", "lower max", "raise mean", "raise max")
    print(f"command delay, ms, {commands} commands\n{'':26}" + "".join(f"{name:>11}" for name in shown) + "   REGALE")
    for transport_us in TRANSPORTS_US:
        for firmware, kind, options, is_periodic in variants(JOB_US):
            row = measure(options, transport_us, is_periodic=is_periodic, commands=commands, seed=7).row()
            results[f"{firmware} {kind} {transport_us} us"] = row
            scmi, memory = PUBLISHED_MS[kind]
            figure = f"{scmi:.2f} SCMI" if transport_us == 190 else f"{memory:.2f} memory" if memory else ""
            figures = "".join(f"{row[name]:11.3f}" for name in shown)
            print(f"{firmware:10} {kind:6}{transport_us:4} us  {figures}   {figure}")
    bounds = {"(i)": 2.20, "(ii)": 1.35, "(iii)": 0.60}
    is_met = all(results[f"ours {kind} 190 us"]["mean"] <= bound for kind, bound in bounds.items())
    is_met = is_met and results["ours (iii) 190 us"]["lower mean"] <= 0.26
    verdict = "met" if is_met else "NOT met"
    print(f"required at 190 us: (i) <= 2.20, (ii) <= 1.35, (iii) <= 0.60 and lowers <= 0.26 ms: {verdict}")
    gains = speed_ups(300 if commands == 500 else 3000)
    print(f"\nspeed-up over published (i) without transport, %, cap 150 W, phases of {PHASE_S * 1e3:.1f} ms")
    for firmware in ("ours", "published"):
        for kind in ("(i)", "(ii)", "(iii)"):
            gained = [gains[f"{firmware} {kind} {us} us"] for us in (0, 190, 1000)]
            line = f"{firmware:10} {kind:6}" + "".join(f"{gain:8.2f}" for gain in gained)
            print(f"{line}   at 0, 190, 1000 us; loss {gained[0] - gained[2]:.2f} per ms")
    print("\nwhat the bypass adds to the work of (ii), %, without transport")
    swept = bypass_gains(150 if commands == 500 else 1000)
    for setting, ours, published in swept:
        where = f"{setting.phase_s * 1e3:4.1f} ms, memory {setting.memory_share:.2f}, cap {setting.cap_w:.0f} W"
        print(f"  phases {where}: ours {ours:+.2f}, published {published:+.2f}")
    is_met = is_met and gains["ours (ii) 0 us"] > 2.75 and gains["ours (iii) 0 us"] > 3.18
    save(
        "firmware_delay",
        {
            "job_us": JOB_US,
            "delay_ms": results,
            "phase_s": PHASE_S,
            "speed_up": gains,
            "bypass": [(asdict(one), *gained) for one, *gained in swept],
        },
    )
    return 0 if is_met else 1


if __name__ == "__main__":
    raise SystemExit(main())
