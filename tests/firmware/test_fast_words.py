"""A client that only writes FastChannel words is right: the enforced value is that of the last accepted request.

Writes, messages, resets, leases and permissions in any order, next to a model that keeps every agent's requests. Long
runs: ``python -m tests.firmware.test_fast_words 1000000``.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Final

import pytest

from firmware_bridge.controlpulp.host import AGENTS, TICK_S, HostController
from tests.firmware.scmi_words import BASE, PERFORMANCE, POWERCAP, SUCCESS, TELEMETRY, ask, must

DOMAINS, POWER_DOMAINS = 4, 5
REQUESTS: Final = 2 * (DOMAINS + POWER_DOMAINS)
MOST_REQUESTS: Final = 4
"""What a window has, and what a poll carries out."""
EMPTY: Final = 0xFFFFFFFF
LEVELS: Final = (400_000, 800_000, 1_350_000, 1_600_000, 2_000_000, 3_050_000, 3_660_000)
CAPS: Final = (0, 1, 20_000, 60_000, 70_000, 81_000)
PAIS: Final = (0, 500, 1000, 50_000)
LIMITS: Final = ((2_000_000, 800_000), (3_660_000, 400_000), (800_000, 2_000_000), (1_350_000, 1_350_000), (0, 0))


def level_word(domain: int, word: int) -> int:
    return 6 * domain + word


def cap_word(domain: int, word: int) -> int:
    return 6 * DOMAINS + 4 * domain + word


def words_of(request: int) -> list[int]:
    """Of a window, in the order in which the platform looks: limits and level of each domain, then cap and interval."""
    domain, second = divmod(request, 2)
    if domain >= DOMAINS:
        return [cap_word(domain - DOMAINS, 2 * second)]
    return [level_word(domain, 0)] if second else [level_word(domain, 2), level_word(domain, 3)]


class Agent:
    """What one agent asks for, and what it has written and the platform has not looked at."""

    def __init__(self) -> None:
        self.forget()
        self.denied: set[tuple[int, int]] = set()

    def forget(self) -> None:
        self.level = [0] * DOMAINS
        self.limits = [(0, 0)] * DOMAINS
        self.cap = [0] * POWER_DOMAINS
        self.written: dict[tuple[str, int], int] = {}
        self.refused: dict[tuple[str, int], int] = {}
        self.limits_written: dict[int, list[int]] = {}  # domain: max, min, polls since
        self.limits_refused: dict[int, tuple[int, int]] = {}

    def drop(self, kind: str, number: int) -> None:
        """A message has replaced what was written."""
        self.written.pop((kind, number), None)
        self.refused.pop((kind, number), None)


class Model:
    """All agents' requests, by the rules of the standard and of ``docs/firmware.md``."""

    def __init__(self) -> None:
        self.agents = [Agent() for _ in range(AGENTS)]
        self.pai = [500] * POWER_DOMAINS
        self.agent = self.request = 0  # where the next poll begins

    def changed(self) -> None:
        """What is allowed may have changed: refused words are tried again."""
        for a in self.agents:
            a.written = a.refused | a.written
            a.refused = {}
            a.limits_written = {d: [*pair, 0] for d, pair in a.limits_refused.items()} | a.limits_written
            a.limits_refused = {}

    def limits(self, d: int) -> tuple[int, int]:
        high = min((a.limits[d][0] for a in self.agents if a.limits[d][0]), default=3_660_000)
        return high, min(max(400_000, *(a.limits[d][1] for a in self.agents)), high)

    def level(self, d: int) -> int:
        high, low = self.limits(d)
        return max(low, min(max(a.level[d] for a in self.agents) or 3_660_000, high))

    def cap(self, p: int) -> int:
        return min((a.cap[p] for a in self.agents if a.cap[p]), default=0)

    def set_level(self, a: Agent, d: int, level: int) -> bool:
        high, low = self.limits(d)
        is_fine = (d + 1, PERFORMANCE) not in a.denied and (level == 0 or low <= level <= high)
        if is_fine:
            a.level[d] = level
            self.changed()
        return is_fine

    def set_limits(self, a: Agent, d: int, high: int, low: int) -> bool:
        top, bottom = high or a.limits[d][0], low or a.limits[d][1]
        is_fine = (d + 1, PERFORMANCE) not in a.denied and bool(high or low) and not (top and bottom > top)
        if is_fine:
            a.limits[d] = (top, bottom)
            self.changed()
        return is_fine

    def set_cap(self, a: Agent, p: int, cap: int) -> bool:
        least, most = (20_000, 324_000) if p == 0 else (5_000, 81_000)
        is_fine = (p, POWERCAP) not in a.denied and (cap == 0 or least <= cap <= most)
        if is_fine:
            a.cap[p] = cap
            self.changed()
        return is_fine

    def set_pai(self, a: Agent, p: int, pai: int) -> bool:
        is_fine = (p, POWERCAP) not in a.denied and 500 <= pai <= 100_000
        if is_fine:
            self.pai[p] = pai
            self.changed()
        return is_fine

    def poll(self) -> list[tuple[int, int]]:
        """The platform looks at words, up to the fourth request that it carries out; the next poll goes on from there.
        Returns agent and request of each that it has looked at."""
        seen: list[tuple[int, int]] = []
        carried_out = 0
        for _ in range(AGENTS * REQUESTS):
            a = self.agents[self.agent]
            if carried_out == MOST_REQUESTS:
                return seen
            if a.written or a.limits_written:
                carried_out += self.poll_request(a, *divmod(self.request, 2))
                seen.append((self.agent, self.request))
            self.request = (self.request + 1) % REQUESTS
            if self.request == 0:
                self.agent = (self.agent + 1) % AGENTS
        self.agent = self.request = 0
        return seen

    def poll_request(self, a: Agent, domain: int, second: int) -> bool:
        """Whether it was carried out, be it refused."""
        if domain >= DOMAINS:
            p = domain - DOMAINS
            if not second:
                return self.look(a, "cap", p, self.set_cap) is not None
            is_fine = self.look(a, "pai", p, self.set_pai)
            if is_fine:
                self.pai_set(p, a)
            return is_fine is not None
        if second:
            return self.look(a, "level", domain, self.set_level) is not None
        if domain not in a.limits_written:
            return False
        a.limits_written[domain][2] += 1
        if a.limits_written[domain][2] < 2:
            return False
        high, low, _ = a.limits_written.pop(domain)
        if not self.set_limits(a, domain, high, low):
            a.limits_refused[domain] = (high, low)
        return True

    def look(self, a: Agent, kind: str, number: int, put: Callable[[Agent, int, int], bool]) -> bool | None:
        """Whether it was accepted; None: nothing was written."""
        if (kind, number) not in a.written:
            return None
        value = a.written.pop((kind, number))
        is_fine = put(a, number, value)
        if not is_fine:
            a.refused[kind, number] = value
        return is_fine

    def pai_set(self, p: int, by: Agent | None) -> None:
        """The interval is the last writer's: what others wrote before is void."""
        for a in self.agents:
            if a is not by:
                a.drop("pai", p)


class Both:
    """Firmware and model take the same steps."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.host, self.model = HostController(), Model()
        self.host.wires["temperature_mk"][:] = 320_000
        self.host.advance(TICK_S / 2)
        self.windows = [self.host.fast_channel(channel) for channel in range(AGENTS)]
        self.polled = [window.copy() for window in self.windows]

    def _poll_before_return(self, channel: int, *wanted: tuple[int, int]) -> None:
        """A word that changes and changes back between two polls shows nothing, so let a poll come between."""
        window, polled = self.windows[channel], self.polled[channel]
        while any(value == polled[word] and window[word] not in (value, EMPTY) for word, value in wanted):
            self.tick()

    def _write(self, channel: int, word: int, value: int) -> bool:
        """Whether the word changed: a repetition asks for nothing new."""
        is_new = int(self.windows[channel][word]) != value
        self.windows[channel][word] = value
        return is_new

    def write(self) -> None:
        channel, rng = self.rng.randrange(AGENTS), self.rng
        a = self.model.agents[channel]
        kind = rng.choice(["level", "cap", "pai", "limits"])
        d, p = rng.randrange(DOMAINS), rng.randrange(POWER_DOMAINS)
        if kind == "limits":
            high, low = rng.choice(LIMITS)
            self._poll_before_return(channel, (level_word(d, 2), high), (level_word(d, 3), low))
            if self._write(channel, level_word(d, 2), high) | self._write(channel, level_word(d, 3), low):
                a.limits_written[d] = [high, low, 0]
                a.limits_refused.pop(d, None)
        elif kind == "level":
            level = rng.choice((0, *LEVELS))
            self._poll_before_return(channel, (level_word(d, 0), level))
            if self._write(channel, level_word(d, 0), level):
                a.drop("level", d)
                a.written["level", d] = level
        else:
            value = rng.choice(CAPS if kind == "cap" else PAIS)
            word = cap_word(p, 0 if kind == "cap" else 2)
            self._poll_before_return(channel, (word, value))
            if self._write(channel, word, value):
                a.drop(kind, p)
                a.written[kind, p] = value

    def message(self) -> None:
        channel, rng, model = self.rng.randrange(AGENTS), self.rng, self.model
        a = model.agents[channel]
        d, p = rng.randrange(DOMAINS), rng.randrange(POWER_DOMAINS)
        kind = rng.randrange(4)
        if kind == 0:
            level = rng.choice((0, *LEVELS))
            code, _ = ask(self.host, PERFORMANCE, 0x7, d, level, channel=channel)
            if model.set_level(a, d, level):
                a.drop("level", d)
                assert code == SUCCESS
        elif kind == 1:
            high, low = rng.choice(LIMITS)
            code, _ = ask(self.host, PERFORMANCE, 0x5, d, high, low, channel=channel)
            if model.set_limits(a, d, high, low):
                a.limits_written.pop(d, None)
                a.limits_refused.pop(d, None)
                assert code == SUCCESS
        elif kind == 2:
            cap = rng.choice(CAPS)
            code, _ = ask(self.host, POWERCAP, 0x5, p, 0, cap, channel=channel)
            if model.set_cap(a, p, cap):
                a.drop("cap", p)
                assert code == SUCCESS
        else:
            pai = rng.choice(PAIS)
            code, _ = ask(self.host, POWERCAP, 0x7, p, 0, pai, channel=channel)
            if model.set_pai(a, p, pai):
                model.pai_set(p, None)
                assert code == SUCCESS

    def tick(self) -> None:
        self.host.advance(TICK_S)
        for agent, request in self.model.poll():
            for word in words_of(request):
                self.polled[agent][word] = self.windows[agent][word]

    def reset(self) -> None:
        agent = self.rng.randrange(AGENTS)
        by = self.rng.choice([agent, AGENTS - 1])
        must(self.host, BASE, 0xB, agent + 1, 0, channel=by)
        self.model.agents[agent].forget()
        self.model.changed()

    def permit(self) -> None:
        """The management controller forbids or allows an agent a domain."""
        agent, device = self.rng.randrange(AGENTS - 1), self.rng.randrange(1, POWER_DOMAINS)
        protocol, allow = self.rng.choice([PERFORMANCE, POWERCAP]), self.rng.random() < 0.7
        must(self.host, BASE, 0xA, agent + 1, device, protocol, allow, channel=AGENTS - 1)
        denied = self.model.agents[agent].denied
        denied.discard((device, protocol)) if allow else denied.add((device, protocol))
        self.model.changed()

    def lease(self) -> None:
        """Of silence, and nobody speaks until it has ended: the agreed cap, and what was written is void."""
        channel = self.rng.randrange(AGENTS)
        agreed = self.rng.choice([0, 40_000])
        must(self.host, TELEMETRY, 0x5, 1, agreed, channel=channel)
        for _ in range(6 * 8):
            self.tick()
        a = self.model.agents[channel]
        cap = a.cap[0]
        a.forget()
        a.cap[0] = (min(cap, agreed) if cap else agreed) if agreed else 0
        self.model.changed()
        for _ in range(24):  # it ended during these ticks, and the words refused until then were tried again
            self.model.poll()

    def check_all(self) -> None:
        host, model = self.host, self.model
        seen = {
            "caps": [must(host, POWERCAP, 0x4, p, channel=2)[0] for p in range(POWER_DOMAINS)],
            "pai": [must(host, POWERCAP, 0x6, p, channel=2)[0] for p in range(POWER_DOMAINS)],
            "levels": [must(host, PERFORMANCE, 0x8, d, channel=2)[0] for d in range(DOMAINS)],
            "limits": [tuple(must(host, PERFORMANCE, 0x6, d, channel=2)) for d in range(DOMAINS)],
        }
        expected = {
            "caps": [model.cap(p) for p in range(POWER_DOMAINS)],
            "pai": model.pai,
            "levels": [model.level(d) for d in range(DOMAINS)],
            "limits": [model.limits(d) for d in range(DOMAINS)],
        }
        assert seen == expected

    def steps(self, number: int) -> None:
        deeds: list[tuple[Callable[[], None], int]] = [
            (self.write, 50), (self.message, 20), (self.tick, 30), (self.reset, 1), (self.permit, 2), (self.lease, 1),
        ]  # fmt: skip
        for i, deed in enumerate(self.rng.choices([d for d, _ in deeds], [w for _, w in deeds], k=number)):
            deed()
            if deed == self.tick and i % 8 == 0:
                self.check_all()
        self.tick()
        self.tick()
        self.check_all()


@pytest.mark.parametrize(("seed", "steps"), [(0, 1500), (1, 1500), (1009, 1500), (1054, 5000)])
def test_the_enforced_value_is_that_of_the_last_accepted_request(seed: int, steps: int) -> None:
    """The last one has a word that is refused until another agent's lease ends."""
    both = Both(seed)
    both.steps(steps)
    both.check_all()


def test_a_cap_written_again_after_a_message_withdrew_it_is_in_force() -> None:
    host = HostController()
    host.advance_slots(1)
    for _ in range(2):
        host.fast_channel(0)[cap_word(0, 0)] = 100_000
        host.advance_slots(1)
        assert must(host, POWERCAP, 0x4, 0) == [100_000]
        must(host, POWERCAP, 0x5, 0, 0, 0)
        assert must(host, POWERCAP, 0x4, 0) == [0]


def test_a_pair_of_limits_of_which_one_word_is_written_is_not_in_force() -> None:
    host = HostController()
    host.advance_slots(1)
    host.fast_channel(0)[level_word(1, 2)] = 2_000_000
    host.advance_slots(1)
    assert must(host, PERFORMANCE, 0x6, 1) == [3_660_000, 400_000]
    host.fast_channel(0)[level_word(1, 3)] = 800_000
    host.advance_slots(1)
    assert must(host, PERFORMANCE, 0x6, 1) == [2_000_000, 800_000]


def test_a_refused_word_stands_and_is_in_force_once_it_is_allowed() -> None:
    host = HostController()
    host.advance_slots(1)
    word = host.fast_channel(0)
    must(host, BASE, 0xA, 1, 1, POWERCAP, 0, channel=2)
    word[cap_word(1, 0)] = 30_000
    host.advance_slots(1)
    must(host, BASE, 0xA, 1, 1, POWERCAP, 1, channel=2)
    host.advance_slots(2)
    assert must(host, POWERCAP, 0x4, 1) == [30_000]
    must(host, POWERCAP, 0x5, 1, 0, 0)
    host.advance_slots(2)
    assert must(host, POWERCAP, 0x4, 1) == [0], "a later message voids it"


def test_who_writes_keeps_its_lease_while_others_write_all_their_words_all_the_time() -> None:
    host = HostController()
    host.advance_slots(1)
    windows = [host.fast_channel(channel) for channel in range(AGENTS)]
    must(host, TELEMETRY, 0x5, 1, 40_000, channel=1)
    for number in range(400):
        for other in (0, 2):
            for d in range(DOMAINS):
                windows[other][level_word(d, 0)] = LEVELS[number % 2]
                windows[other][level_word(d, 2)], windows[other][level_word(d, 3)] = LIMITS[number // 2 % 2]
            for p in range(POWER_DOMAINS):
                windows[other][cap_word(p, 0)] = 70_000 + number % 2
                windows[other][cap_word(p, 2)] = PAIS[1 + number % 2]
        if number % 7 == 0:
            windows[1][cap_word(0, 0)] = 60_000 + number
        host.advance(TICK_S)
        assert windows[1][cap_word(0, 0)] == 60_000 + number // 7 * 7, "the end of its lease empties the word"
    for _ in range(32):
        host.advance(TICK_S)
    assert windows[1][cap_word(0, 0)] == EMPTY, "it is silent"


def test_a_pair_that_a_poll_meets_first_is_in_force_after_the_next_also_where_the_poll_began_amid_the_window() -> None:
    host = HostController()
    host.advance_slots(1)
    window = host.fast_channel(0)
    for d in (0, 1):
        window[level_word(d, 2)], window[level_word(d, 3)] = 3_000_000, 800_000
    host.advance(TICK_S)
    for d in (0, 1, 2):
        window[level_word(d, 0)] = 2_000_000
    host.advance(TICK_S)  # carries out two pairs and two levels; the next poll begins with the third domain
    window[level_word(3, 2)], window[level_word(3, 3)] = 2_000_000, 800_000
    host.advance(TICK_S)
    assert must(host, PERFORMANCE, 0x6, 3)[0] == 3_660_000
    host.advance(TICK_S)
    assert must(host, PERFORMANCE, 0x6, 3) == [2_000_000, 800_000]


def test_a_refused_word_is_forgotten_with_the_memory_that_it_stood_in() -> None:
    host = HostController()
    host.advance_slots(1)
    host.fast_channel(2)[cap_word(0, 0)] = 1_000  # below the lowest
    host.advance_slots(1)
    host.map_fast_channel(2, None, 0)
    host.fast_channel(1)[cap_word(0, 0)] = 90_000  # what was refused is tried again
    host.advance_slots(1)
    memory = bytearray(4096)
    host.map_fast_channel(2, memory, 0x9000)
    host.advance_slots(1)
    assert must(host, POWERCAP, 0x4, 0) == [90_000]


if __name__ == "__main__":
    total = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    for number in range(-(-total // 5000)):
        Both(1000 + number).steps(5000)
    print(f"{-(-total // 5000) * 5000} steps, nothing found")
