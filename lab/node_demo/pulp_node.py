"""An emulated node around the ControlPULP plant: a chip, its controller, and a few files of a kernel, in virtual time.

The chip is ``twin.pulp`` (published power and heat of 36 cores), the controller is the firmware's host board, and both
share one clock with the agent. Of the kernel there is little: four frequency domains with limits, and one energy
counter without limits of its own, as on AMD. Ours: the kernel's clock limits work independently of the controller, by a
divider after the PLL, so they limit clocks without it and change no voltage.

The controller can be killed and started again. While it is dead its mailbox stays, nothing answers, and the chip keeps
the clocks and voltages that it had.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from firmware_bridge.controlpulp.host import HostController
from firmware_bridge.scmi.client import Client
from firmware_bridge.scmi.messages.codec import decode, encode
from firmware_bridge.scmi.messages.header import Sender
from firmware_bridge.scmi.protocols.power_capping import CapGet, CapGetResponse
from firmware_bridge.scmi.transports.in_process import InProcess
from pmu.ports import CounterSet, KeptFile, Ports
from twin.pulp.plant import CORES, DOMAIN_CORES, DOMAINS, Plant

TICK_NS: Final = 125_000
SLOT_NS: Final = 500_000
MIN_KHZ, MAX_KHZ = 400_000, 3_660_000

RUNTIME_CHANNEL, OTHER_CHANNEL = 1, 2
"""Channels of the controller: the agent's own, and another agent's (the ``bmc``)."""

REPLY_TIMEOUT_S: Final = 5e-3
"""Ten control slots. In virtual time the loop waits as well, so a silent controller must not cost it 30 ms."""

CPU, CPUFREQ, ZONE = "/sys/devices/system/cpu", "/sys/devices/system/cpu/cpufreq", "/sys/class/powercap/emulated:0"


class PulpNode:
    """The node. ``events`` run when their time has come, in order: ``[(ns, what), ...]``."""

    def __init__(self, capacitance: float, *, seed: int = 1) -> None:
        self.plant = Plant(seed=seed)
        self.plant.capacitance[:] = capacitance
        self.plant.settle(np.full(CORES, 4.0))
        self.now_ns = 0
        self.events: list[tuple[int, Callable[[], None]]] = []
        self.caps_mw: list[int] = []
        self.limits_khz = [MAX_KHZ] * DOMAINS
        self.controller: HostController | None = None
        self.wires: dict[str, NDArray[np.int32]] = {
            "temperature_mk": np.full(CORES, 300_000, np.int32), "capacitance_ff": np.zeros(CORES, np.int32),
            "power_uw": np.zeros(DOMAINS + 1, np.int32), "freq_khz": np.full(CORES, MIN_KHZ, np.int32),
            "volt_mv": np.full(DOMAINS, 500, np.int32),
        }  # fmt: skip
        self._given_khz = self.wires["freq_khz"].copy()
        self._began_ns = 0
        self.plant.wire(self.wires)
        self.start_controller()

    # ---- the controller's life ----

    def start_controller(self) -> None:
        """Start a new one, after reset, on the chip as it is."""
        self.controller = HostController()
        self._began_ns = self.now_ns

    def kill_controller(self) -> None:
        """End it; all that it was sent is lost."""
        self.controller = None

    def cap_in_force_mw(self) -> int:
        """The package cap in the controller; 0 for none, -1 while it is dead."""
        if self.controller is None:
            return -1
        answer = decode(self.controller.exchange(OTHER_CHANNEL, encode(CapGet(0), 0)), Sender.PLATFORM).body
        assert isinstance(answer, CapGetResponse)
        return answer.cap

    def connect(self, channel: int = RUNTIME_CHANNEL) -> Client:
        """A client on one of the controller's channels, in the node's time."""
        transport = InProcess(self, channel)
        transport.clock, transport.reply_timeout_s = NodeClock(self), REPLY_TIMEOUT_S
        return Client(transport, tries=1)

    # ---- what ``InProcess`` needs ----

    def send(self, channel: int, message: bytes) -> None:
        """Write to the mailbox; a dead controller reads nothing from it."""
        if self.controller is not None:
            self.controller.send(channel, message)

    def poll(self, channel: int) -> bytes | None:
        """Take the answer; None if there is none."""
        return self.controller.poll(channel) if self.controller else None

    def notifications(self, channel: int) -> list[bytes]:
        """Notifications of the controller."""
        return self.controller.notifications(channel) if self.controller else []

    def advance(self, duration_s: float) -> None:
        """Let time pass."""
        self.advance_to(self.now_ns + round(duration_s * 1e9))

    # ---- time ----

    def advance_to(self, until_ns: int) -> None:
        """Let time pass: plant, then controller, then the kernel's limits on its clocks."""
        while self.now_ns < until_ns:
            next_ns = min(until_ns, (self.now_ns // TICK_NS + 1) * TICK_NS)
            while self.events and self.events[0][0] <= next_ns:
                self.events.pop(0)[1]()
            self.now_ns = next_ns
            self._step()

    def _step(self) -> None:
        self.plant.advance_to(self.now_ns)
        if self.controller is not None:
            theirs = self.controller.wires
            for name in ("temperature_mk", "capacitance_ff", "power_uw"):
                theirs[name][:] = self.wires[name]
            self.controller.advance_to(self.now_ns - self._began_ns)
            self._given_khz = theirs["freq_khz"].copy()
            self.wires["volt_mv"][:] = theirs["volt_mv"]
        limits = np.repeat(np.array(self.limits_khz, np.int32), DOMAIN_CORES)
        np.minimum(self._given_khz, limits, out=self.wires["freq_khz"])
        if self.now_ns % TICK_NS == 0:
            self.caps_mw.append(self.cap_in_force_mw())

    @property
    def ports(self) -> Ports:
        """The ports for the agent."""
        return Ports(NodeFiles(self), NoCounters(), None, "this node has no GPU", PortClock(self))


class NodeClock:
    """The node's time, for an SCMI client."""

    def __init__(self, node: PulpNode) -> None:
        self._node = node

    def now_s(self) -> float:
        """Seconds since the node's start."""
        return self._node.now_ns / 1e9

    def sleep(self, duration_s: float) -> None:
        """Let time pass."""
        self._node.advance(duration_s)


class PortClock:
    """The same, for the agent."""

    def __init__(self, node: PulpNode) -> None:
        self._node = node

    def now_ns(self) -> int:
        """Nanoseconds since the node's start."""
        return self._node.now_ns

    def sleep_until_ns(self, deadline_ns: int) -> None:
        """Let time pass."""
        self._node.advance_to(deadline_ns)


class NoCounters:
    """``pmu.ports.Counters`` of a chip without emulated counters: a cap needs none."""

    def why_not(self, event: str) -> str | None:
        """Always the same reason."""
        return "this emulated chip has no counters"

    def open(self, cpus: tuple[int, ...], events: tuple[str, ...]) -> CounterSet:
        """Never called: there is no event."""
        raise NotImplementedError


class ShownChip(Protocol):
    """What ``NodeFiles`` shows of a node."""

    limits_khz: list[int]

    @property
    def plant(self) -> Plant:
        """Its chip."""

    @property
    def wires(self) -> Mapping[str, NDArray[np.int32]]:
        """Between the chip and its controller."""


class NodeFiles:
    """``pmu.ports.Files`` with the few files that the agent needs here."""

    def __init__(self, node: ShownChip) -> None:
        self._node = node
        self._texts: dict[str, Callable[[], object]] = {
            f"{CPU}/online": lambda: f"0-{CORES - 1}",
            f"{ZONE}/name": lambda: "package-0",
            f"{ZONE}/energy_uj": lambda: round(node.plant.energy_j * 1e6),
            f"{ZONE}/max_energy_range_uj": lambda: 2**40,
        }
        for domain in range(DOMAINS):
            first = domain * DOMAIN_CORES
            base = f"{CPUFREQ}/policy{first}"
            self._texts |= {
                f"{base}/related_cpus": lambda first=first: f"{first}-{first + DOMAIN_CORES - 1}",  # type: ignore[misc]
                f"{base}/cpuinfo_min_freq": lambda: MIN_KHZ,
                f"{base}/cpuinfo_max_freq": lambda: MAX_KHZ,
                f"{base}/scaling_driver": lambda: "emulated",
                f"{base}/scaling_governor": lambda: "performance",
                f"{base}/scaling_max_freq": lambda domain=domain: node.limits_khz[domain],  # type: ignore[misc]
                f"{base}/scaling_cur_freq": lambda first=first: node.wires["freq_khz"][first],  # type: ignore[misc]
            }

    def read(self, path: str) -> str:
        """The text with its newline."""
        if path not in self._texts:
            raise _absent(path)
        return f"{self._texts[path]()}\n"

    def write(self, path: str, text: str) -> None:
        """A clock limit; nothing else can be written."""
        if not self.writable(path):
            raise _absent(path)
        khz = int(text)
        if not MIN_KHZ <= khz <= MAX_KHZ:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
        policy = int(path.split("/")[-2].removeprefix("policy"))
        self._node.limits_khz[policy // DOMAIN_CORES] = khz

    def keep(self, path: str) -> KeptFile:
        """A file to be read repeatedly."""
        self.read(path)
        return _Kept(self, path)

    def listdir(self, path: str) -> list[str]:
        """Names below a directory."""
        names = {text.removeprefix(f"{path}/").partition("/")[0] for text in self._texts if text.startswith(f"{path}/")}
        if not names:
            raise _absent(path)
        return sorted(names)

    def exists(self, path: str) -> bool:
        """A file or a directory."""
        return path in self._texts or any(text.startswith(f"{path}/") for text in self._texts)

    def writable(self, path: str) -> bool:
        """Clock limits are."""
        return path in self._texts and path.endswith("/scaling_max_freq")

    def realpath(self, path: str) -> str:
        """There are no links."""
        return path


class _Kept:
    def __init__(self, files: NodeFiles, path: str) -> None:
        self._files, self._path = files, path

    def read(self) -> bytes:
        """The content now."""
        return self._files.read(self._path).encode()

    def close(self) -> None:
        """Nothing to release."""


def _absent(path: str) -> OSError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
