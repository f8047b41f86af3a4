"""Hardware that comes while a run lasts: a driver loaded late, CPUs put on line, a card plugged in or reset.

A run's layout and its knobs are found once. Every few seconds this watch looks at what the kernel shows
(``pmu.inventory``), at NVIDIA's cards on the PCI bus, and at sensors that this run has and no longer reads. Where there
is more than the run knows, the run begins again (``nodectl.loop.whole_run``): it puts its knobs back, finds everything,
and goes on. What goes away needs no new beginning: its readings are missing, and its knobs have vanished.

A card on the bus that NVML does not show draws power that nobody reads. Until it is read, or the settings leave it out
(``[gpu] absent``), there is an alarm, and in a cluster the node counts with its whole TDP.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

import numpy as np

from nodectl.loop.notices import Notices, listed
from pmu import inventory
from pmu.cpulist import format_list
from pmu.instruments import gpu, pci_gpus
from pmu.instruments.counters import EVENTS
from pmu.instruments.gpu import RETRY_NS
from pmu.layout import Layout
from pmu.ports import Ports
from pmu.readings import RAW_MISSING, PmuError, RawSweep

LOOK_NS: Final = RETRY_NS
"""As often as a lost card is looked for."""

SETTLED_NS: Final = 1_000_000_000
"""Ours: more hardware must have stayed the same for so long; CPUs come one by one, and so do the cards of a driver."""

LONGEST_NS: Final = 600_000_000_000
"""Ours: where a new beginning found no more, or hardware comes and goes, each wait is twice the last, up to this."""

FORGET_NS: Final = 3_600_000_000_000
"""Ours: after an hour without a new beginning, the next one waits as long as the first."""

IN_VAIN: Final = 8
"""Ours: a reason that so many new beginnings have not removed stays; what it says is logged with each of them."""

ALARM_NS: Final = 600_000_000_000
"""Ours: how often the alarm about a card that nobody reads is repeated."""

PROBE_LONGEST_NS: Final = 60_000_000_000
"""Ours: a new process that counts NVML's cards costs some 50 ms of a CPU."""

AT_ONCE_S: Final = 0.05
"""Ours: a driver that is up answers by then, and a loop's tick is not much later for it."""

_PROBE: Final = """
from pmu.instruments import gpu
from pmu.system import load_nvml
for card in gpu.find(*load_nvml())[0]:
    print(card.uuid)
"""


class Patience:
    """How long the next segment waits before it looks for more, and which reasons are none any more; kept over the
    segments of one run."""

    def __init__(self) -> None:
        self.wait_ns = LOOK_NS
        self._last_ns = 0
        self._times: Counter[str] = Counter()

    def began_again(self, now_ns: int, reasons: Sequence[str]) -> None:
        """Another segment begins: soon after the last one, the next must wait longer."""
        is_soon = self._last_ns and now_ns - self._last_ns < FORGET_NS
        self.wait_ns = min(2 * self.wait_ns, LONGEST_NS) if is_soon else LOOK_NS
        if not is_soon:
            self._times.clear()
        self._times.update(reasons)
        self._last_ns = now_ns

    def is_in_vain(self, reason: str) -> bool:
        """Whether the run has begun again for this reason often enough."""
        return self._times[reason] >= IN_VAIN


class HardwareWatch:
    """``look`` at every tick. ``more``: what there is that this run does not have, in words; "" while there is none.
    ``reasons``: the same one by one."""

    def __init__(
        self,
        ports: Ports,
        layout: Layout,
        notices: Notices,
        absent: Sequence[str] = (),
        patience: Patience | None = None,
        vanished: Callable[[], Sequence[str]] = lambda: (),
        not_written: Callable[[], Sequence[str]] = lambda: (),
        cards_back: Callable[[], Collection[str]] = lambda: (),
    ) -> None:
        """``absent``: patterns of PCI addresses that are left out. ``vanished``: files that this run reads and whose
        device is gone. ``not_written``: knobs of this run that its writer process does not have yet. ``cards_back``:
        GPUs that have been silent in this run, and are not any more."""
        self._ports, self._layout, self._notices, self._absent = ports, layout, notices, absent
        self._vanished, self._not_written, self._cards_back = vanished, not_written, cards_back
        self.more, self.reasons = "", list[str]()
        self.unseen: tuple[str, ...] = ()
        """Addresses of the cards on the bus that NVML does not show."""
        self._before = inventory.take(ports.files)
        self._has = self._before.parts
        now_ns = ports.clock.now_ns()
        self._patience = patience or Patience()
        self._earliest_ns = now_ns + self._patience.wait_ns
        self._due_ns = now_ns + LOOK_NS
        self._seen = [card.pci for card in layout.gpus]
        self._alarm_ns = 0
        self._found: list[str] = []
        self._nvml: _LateNvml | _Probe | None = None
        self._see_cards(now_ns)

    def look(self, sweep: RawSweep) -> str:
        """``more``, which is new every few seconds at most."""
        if sweep.time_ns >= self._due_ns and not self.more:
            self._look(sweep)
        return self.more

    @property
    def alarm(self) -> str:
        """What is wrong with the cards on the bus, in short; "" if nothing is."""
        if not self.unseen:
            return ""
        many = f"{len(self.unseen)} GPUs are" if len(self.unseen) > 1 else "a GPU is"
        return f"{many} on the PCI bus and not in NVML ({listed(list(self.unseen))}): nobody reads the power"

    def close(self) -> None:
        """End what still looks."""
        if self._nvml:
            self._nvml.close()
            self._nvml = None

    def _look(self, sweep: RawSweep) -> None:
        now_ns = sweep.time_ns
        now = inventory.take(self._ports.files, self._before)
        self._has &= now.parts  # what has gone is more when it is back
        self._before = now
        counters = [*self._countable_at_last(), *self._countable_again(sweep)]
        found = [*self._come(now), *self._readable_again(), *counters, *self._late_cards(sweep)]
        found = [reason for reason in (*found, *self._late_knobs()) if not self._patience.is_in_vain(reason)]
        self._see_cards(now_ns)
        self._due_ns = now_ns + (SETTLED_NS if found else LOOK_NS)
        if found and found == self._found and now_ns >= self._earliest_ns:
            self.more, self.reasons = "; ".join(found), found
        self._found = found

    def _come(self, now: inventory.Inventory) -> list[str]:
        parts = now.parts - self._has
        return [f"{inventory.in_words(parts)} came"] if parts else []

    def _readable_again(self) -> list[str]:
        """Files of this run whose device was gone, and is there again: an open file does not come back with it."""
        paths = [path for path in self._vanished() if self._ports.files.exists(path)]
        return [f"{listed(paths)} can be read again"] if paths else []

    def _countable_at_last(self) -> list[str]:
        """Events that could not be counted when this run began: another program had the counters, or the kernel did not
        allow it yet."""
        layout = self._layout
        absent = [event for event in EVENTS if event not in layout.events or event in layout.estimated_events]
        events = [event for event in absent if layout.cpus and self._ports.counters.why_not(event) is None]
        return [f"{listed(events)} can be counted by now"] if events else []

    def _countable_again(self, sweep: RawSweep) -> list[str]:
        """CPUs on line whose counters are silent, and which count when they are opened again: those of a CPU that was
        off line stay silent."""
        layout = self._layout
        counted = tuple(event for event in layout.events if event not in layout.estimated_events)
        if not counted or not len(layout.cpus):
            return []
        columns = [layout.events.index(event) for event in counted]
        silent = (sweep.counters[:, columns] == RAW_MISSING).all(axis=1)
        there = {name for kind, name in self._before.parts if kind == "CPU"}
        cpus = [layout.cpus[row] for row in np.flatnonzero(silent).tolist() if str(layout.cpus[row]) in there]
        if not cpus or not self._counts(cpus[0], counted):
            return []
        return [f"counters of CPU {format_list(cpus)} can be read again"]

    def _counts(self, cpu: int, events: tuple[str, ...]) -> bool:
        try:
            counters = self._ports.counters.open((cpu,), events)
        except PmuError:
            return False
        try:
            out = np.full((1, len(events)), RAW_MISSING, np.int64)
            counters.sweep(out)
        finally:
            counters.close()
        return bool((out != RAW_MISSING).any())

    def _late_cards(self, sweep: RawSweep) -> list[str]:
        """Cards that NVML would show to a process that begins now, and that this run does not read."""
        cards = zip(self._layout.gpus, sweep.gpu, strict=True)
        silent = {card.uuid for card, row in cards if (row == RAW_MISSING).all()}
        if not (self.unseen or silent) or self._ports.nvml_again is None:
            return []
        if self._nvml is None:
            self._nvml = _LateNvml(self._ports.nvml_again) if self._ports.nvml is None else _Probe()
        read = {card.uuid for card in self._layout.gpus} - silent
        more = sorted(self._nvml.cards(sweep.time_ns) - read)
        return [f"NVML shows {listed(more)}"] if more else []

    def _late_knobs(self) -> list[str]:
        names = list(self._not_written())
        found = [f"the writer may have {listed(names)} by now"] if names else []
        back = sorted(self._cards_back())
        return [*found, f"GPU {listed(back)} was gone, and what was set of it with it"] if back else found

    def _see_cards(self, now_ns: int) -> None:
        before, self.unseen = self.unseen, pci_gpus.unseen(self._before.bus.cards, self._seen, self._absent)
        if not self.unseen:
            return
        if self.unseen != before or now_ns >= self._alarm_ns:
            self._alarm_ns = now_ns + ALARM_NS
            self._notices.add(f"ALARM: {self.alarm}: {pci_gpus.why_unseen(self._ports.files, self.unseen[0])}")


class _LateNvml:
    """Begins NVML in a thread, since a driver takes seconds for a card that nobody uses yet."""

    def __init__(self, begin: Callable[[], tuple[Any | None, str]]) -> None:
        self._begin = begin
        self._thread: threading.Thread | None = None
        self._cards: frozenset[str] = frozenset()

    def cards(self, now_ns: int) -> frozenset[str]:
        """UUIDs of the cards that it shows; none while it has not begun."""
        if not self._cards and (self._thread is None or not self._thread.is_alive()):
            self._thread = threading.Thread(target=self._try, name="nvml", daemon=True)
            self._thread.start()
            self._thread.join(AT_ONCE_S)
        return self._cards

    def close(self) -> None:
        """A thread that waits for a driver ends by itself."""

    def _try(self) -> None:
        nvml, why = self._begin()
        gpus, _ = gpu.find(nvml, why)
        self._cards = frozenset(card.uuid for card in gpus)


class _Probe:
    """Lists NVML's cards in a new process: NVML finds them once, when a process begins, and this process uses it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._due_ns, self._wait_ns = 0, LOOK_NS
        self._cards: frozenset[str] = frozenset()

    def cards(self, now_ns: int) -> frozenset[str]:
        """UUIDs of the cards that answered a new process the last time."""
        if self._process is None and now_ns >= self._due_ns:
            self._due_ns, self._wait_ns = now_ns + self._wait_ns, min(2 * self._wait_ns, PROBE_LONGEST_NS)
            self._start()
        elif self._process is not None and self._process.poll() is not None:
            text, _ = self._process.communicate()
            self._process = None
            self._cards = frozenset(text.split())
        return self._cards

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _start(self) -> None:
        command = [sys.executable, "-c", _PROBE]
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        except OSError:
            return  # no memory or no process left: the next look tries again
