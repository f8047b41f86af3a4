"""A small conforming platform, written from the standard's tables and independent of the product's codec.

Two power domains, two performance domains, two sensors, in virtual time: an accepted cap or level shows in GET at once,
a delayed response comes after ``DELAY_S``. Hooks let a test make it late, silent, busy or wrong.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

SUCCESS, NOT_SUPPORTED, INVALID, DENIED, NOT_FOUND, OUT_OF_RANGE, BUSY = 0, -1, -2, -3, -4, -5, -6
PROTOCOL_ERROR = -10
DELAY_S = 0.004

VERSIONS = {0x10: 0x20001, 0x13: 0x40000, 0x15: 0x30001, 0x18: 0x20000}
OLDER = {0x10: 0x20000, 0x13: 0x30000, 0x15: 0x30000, 0x18: 0x10000}
LEVELS = (400_000, 800_000, 1_350_000, 2_400_000, 3_660_000)
CAP_MIN, CAP_MAX, CAP_STEP = 30_500, 300_000, 500

Handler = Callable[[int, tuple[int, ...]], "tuple[int, bytes]"]


def u32(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *(value & 0xFFFFFFFF for value in values))


def text(value: str, size: int = 16) -> bytes:
    return value.encode().ljust(size, b"\0")


@dataclass
class SmallPlatform:
    """Answers one message at a time; ``agents`` share the caps, the lowest is in force."""

    versions: dict[int, int] = field(default_factory=lambda: dict(VERSIONS))
    caps: dict[tuple[int, int], int] = field(default_factory=dict)
    levels: dict[tuple[int, int], int] = field(default_factory=dict)
    limits: dict[int, tuple[int, int]] = field(
        default_factory=lambda: {0: (400_000, 3_660_000), 1: (400_000, 3_660_000)}
    )
    pai_us: dict[int, int] = field(default_factory=lambda: {0: 1000, 1: 500})
    power_mw: dict[int, int] = field(default_factory=lambda: {0: 120_000, 1: 31_000})
    denied: set[tuple[int, int]] = field(default_factory=set)
    watches: set[tuple[str, int, int]] = field(default_factory=set)
    now_s: float = 0.0
    served: list[tuple[int, int]] = field(default_factory=list)
    busy_left: int = 0
    caps_ignored: bool = False

    def __post_init__(self) -> None:
        self._responses: dict[int, deque[bytes]] = {}
        self._events: dict[int, deque[bytes]] = {}
        self._due: list[tuple[float, int, bytes]] = []

    # what the in-process transport needs

    def send(self, channel: int, message: bytes) -> None:
        self._responses.setdefault(channel, deque()).append(self.answer(channel, message))

    def poll(self, channel: int) -> bytes | None:
        waiting = self._responses.get(channel)
        return waiting.popleft() if waiting else None

    def notifications(self, channel: int) -> list[bytes]:
        self._release()
        events = list(self._events.get(channel, ()))
        self._events.pop(channel, None)
        return events

    def advance(self, duration_s: float) -> None:
        self.now_s += duration_s

    # the platform

    def answer(self, agent: int, message: bytes) -> bytes:
        header = int.from_bytes(message[:4], "little")
        protocol, kind, number, token = header >> 10 & 0xFF, header >> 8 & 3, header & 0xFF, header >> 18 & 0x3FF
        self.served.append((protocol, number))
        status, values = self._served(agent, protocol, kind, number, message[4:], token)
        return message[:4] + struct.pack("<i", status) + (values if status == SUCCESS else b"")

    def _served(
        self, agent: int, protocol: int, kind: int, number: int, payload: bytes, token: int
    ) -> tuple[int, bytes]:
        if kind or len(payload) % 4:
            return PROTOCOL_ERROR, b""
        if self.busy_left:
            self.busy_left -= 1
            return BUSY, b""
        words = struct.unpack(f"<{len(payload) // 4}I", payload)
        if protocol not in self.versions:
            return NOT_SUPPORTED, b""
        sizes = SIZES[protocol]
        if number == 0x0:
            return SUCCESS, u32(self.versions[protocol])
        if number == 0x2:
            return (SUCCESS, u32(0)) if words[0] in sizes else (NOT_FOUND, b"")
        if number == 0x10:
            if words[0] not in (VERSIONS[protocol], OLDER[protocol]):
                return NOT_SUPPORTED, b""
            self.versions[protocol] = words[0]
            return SUCCESS, b""
        if number not in sizes:
            return NOT_FOUND, b""
        if len(words) != sizes[number]:
            return PROTOCOL_ERROR, b""
        self._token = token
        handler: Handler = getattr(self, f"_{NAMES[protocol]}")
        return handler(agent, (number, *words))

    def _base(self, agent: int, words: tuple[int, ...]) -> tuple[int, bytes]:
        number, *values = words
        others = sorted(set(self.versions) - {0x10})
        if number == 0x1:
            return SUCCESS, u32(len(others) | 2 << 8)
        if number == 0x3:
            return SUCCESS, text("tests")
        if number == 0x5:
            return SUCCESS, u32(7)
        if number == 0x6:
            if values[0] > len(others):
                return INVALID, b""
            some = bytes(others[values[0] :])
            return SUCCESS, u32(len(some)) + some.ljust(-(-len(some) // 4) * 4, b"\0")
        if number == 0x7:
            who = agent if values[0] == 0xFFFFFFFF else values[0]
            return (
                (SUCCESS, u32(who) + text("platform" if who == 0 else f"agent-{who}")) if who <= 2 else (NOT_FOUND, b"")
            )
        return NOT_SUPPORTED, b""

    def _performance(self, agent: int, words: tuple[int, ...]) -> tuple[int, bytes]:
        number, *values = words
        if number == 0x1:
            return SUCCESS, u32(2 | 1 << 16, 0, 0, 0)
        domain = values[0]
        if domain > 1:
            return NOT_FOUND, b""
        if number == 0x3:
            return SUCCESS, u32(0xF << 28 | 1 << 26, 500, 2_400_000, 2_400_000) + text(f"domain-{domain}")
        if number == 0x4:
            return self._describe(values[1])
        if number == 0x5:
            return self._set_limits(domain, values[1], values[2])
        if number == 0x6:
            return SUCCESS, u32(*reversed(self.limits[domain]))
        if number == 0x7:
            low, high = self.limits[domain]
            if not low <= values[1] <= high:
                return OUT_OF_RANGE, b""
            self.levels[domain, agent] = values[1]
            self._tell("level", domain, 0x13, 0x1, (agent, domain, values[1]))
            return SUCCESS, b""
        if number == 0x8:
            return SUCCESS, u32(max((level for (d, _), level in self.levels.items() if d == domain), default=400_000))
        if number in (0x9, 0xA):
            return self._watch("limits" if number == 0x9 else "level", domain, agent, values[1])
        return SUCCESS, u32(0) + text(f"voltage domain {domain} with a long name", 64)

    def _describe(self, first: int) -> tuple[int, bytes]:
        if first >= len(LEVELS):
            return INVALID, b""
        some = LEVELS[first : first + 3]
        head = u32((len(LEVELS) - first - len(some)) << 16 | len(some))
        wide = self.versions[0x13] == 0x40000
        entries = (u32(khz, 1000 * (first + i), 125, *((khz, first + i) if wide else ())) for i, khz in enumerate(some))
        return SUCCESS, head + b"".join(entries)

    def _set_limits(self, domain: int, high: int, low: int) -> tuple[int, bytes]:
        old_low, old_high = self.limits[domain]
        high, low = high or old_high, low or old_low
        if not LEVELS[0] <= low <= LEVELS[-1] or not LEVELS[0] <= high <= LEVELS[-1]:
            return OUT_OF_RANGE, b""
        if high < low:
            return INVALID, b""
        self.limits[domain] = low, high
        self._tell("limits", domain, 0x13, 0x0, (0, domain, high, low))
        return SUCCESS, b""

    def _sensor(self, agent: int, words: tuple[int, ...]) -> tuple[int, bytes]:
        number, *values = words
        if number == 0x1:
            return SUCCESS, u32(2 | 1 << 16, 0, 0, 0)
        if number == 0x3:
            if values[0] > 1:
                return INVALID, b""
            every = (u32(0, 1 << 31, 0x7 | (-3 & 0x1F) << 11) + text("power"), u32(1, 0, 0x2) + text("temperature"))
            return SUCCESS, u32((1 - values[0]) << 16 | 1) + every[values[0]]
        if values[0] > 1:
            return NOT_FOUND, b""
        if values[1] > 1:
            return INVALID, b""
        reading = struct.pack("<qQ", self.power_mw[0] if values[0] == 0 else -5, 0)
        if not values[1]:
            return SUCCESS, reading
        if values[0] == 1:
            return NOT_SUPPORTED, b""
        self._later(agent, 0x15, 0x6, u32(0) + u32(0) + reading)
        return SUCCESS, b""

    def _powercap(self, agent: int, words: tuple[int, ...]) -> tuple[int, bytes]:
        number, *values = words
        if number == 0x1:
            return SUCCESS, u32(2)
        domain = values[0]
        if domain > 1:
            return NOT_FOUND, b""
        if number == 0x3:
            attributes = 0xF << 28 | 7 << 25 | 2 << 23
            return SUCCESS, u32(attributes) + text(("package", "domain-0")[domain]) + u32(
                500, 10_000, 500, CAP_MIN, CAP_MAX, CAP_STEP, 250_000, 2, (0xFFFFFFFF, 0)[domain]
            )
        if number == 0x4:
            return SUCCESS, u32(self.enforced(domain))
        if number == 0x5:
            return self._set_cap(agent, domain, values[1], values[2])
        if number == 0x6:
            return SUCCESS, u32(self.pai_us[domain])
        if number == 0x7:
            if values[1]:
                return INVALID, b""
            if not 500 <= values[2] <= 10_000:
                return OUT_OF_RANGE, b""
            self.pai_us[domain] = values[2]
            return SUCCESS, b""
        if number == 0x8:
            return SUCCESS, u32(0) + text(("package", "domain-0")[domain], 64)
        if number == 0x9:
            return SUCCESS, u32(self.power_mw[domain], self.pai_us[domain])
        return self._watch("cap" if number == 0xA else "power", domain, agent, values[1])

    def enforced(self, domain: int) -> int:
        return min((cap for (d, _), cap in self.caps.items() if d == domain and cap), default=0)

    def _set_cap(self, agent: int, domain: int, flags: int, cap: int) -> tuple[int, bytes]:
        if (agent, domain) in self.denied:
            return DENIED, b""
        if flags > 3:
            return INVALID, b""
        if cap and not CAP_MIN <= cap <= CAP_MAX:
            return OUT_OF_RANGE, b""
        if not self.caps_ignored:
            self.caps[domain, agent] = cap if cap == CAP_MIN else cap - cap % CAP_STEP
        self._tell("cap", domain, 0x18, 0x0, (agent, domain, self.enforced(domain), self.pai_us[domain]))
        if flags & 2 and not flags & 1:
            self._later(agent, 0x18, 0x5, u32(0, domain, cap))
        return SUCCESS, b""

    def _watch(self, what: str, domain: int, agent: int, enable: int) -> tuple[int, bytes]:
        if enable > 1:
            return INVALID, b""
        (self.watches.add if enable else self.watches.discard)((what, domain, agent))
        return SUCCESS, b""

    def _tell(self, what: str, domain: int, protocol: int, number: int, values: tuple[int, ...]) -> None:
        for watched, of, agent in self.watches:
            if (watched, of) == (what, domain):
                self._events.setdefault(agent, deque()).append(u32(number | 3 << 8 | protocol << 10, *values))

    def _later(self, agent: int, protocol: int, number: int, values: bytes) -> None:
        header = u32(number | 2 << 8 | protocol << 10 | self._token << 18)
        self._due.append((self.now_s + DELAY_S, agent, header + values))

    def _release(self) -> None:
        for due in [due for due in self._due if due[0] <= self.now_s]:
            self._due.remove(due)
            self._events.setdefault(due[1], deque()).append(due[2])


NAMES = {0x10: "base", 0x13: "performance", 0x15: "sensor", 0x18: "powercap"}
SIZES: dict[int, dict[int, int]] = {
    0x10: {0x0: 0, 0x1: 0, 0x2: 1, 0x3: 0, 0x4: 0, 0x5: 0, 0x6: 1, 0x7: 1, 0x10: 1},
    0x13: {0x0: 0, 0x1: 0, 0x2: 1, 0x3: 1, 0x4: 2, 0x5: 3, 0x6: 1, 0x7: 2, 0x8: 1, 0x9: 2, 0xA: 2, 0xC: 1, 0x10: 1},
    0x15: {0x0: 0, 0x1: 0, 0x2: 1, 0x3: 1, 0x6: 2, 0x10: 1},
    0x18: {0x0: 0, 0x1: 0, 0x2: 1, 0x3: 1, 0x4: 1, 0x5: 3, 0x6: 1, 0x7: 3, 0x8: 1, 0x9: 1, 0xA: 2, 0xB: 4, 0x10: 1},
}
