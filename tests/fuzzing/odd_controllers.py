"""Controllers that answer what nobody expects over SCMI: words that are zero, all ones, or cut off, in every answer.

An input is a seed. It decides at which messages a platform that conforms (``tests.scmi.small_platform``) answers oddly,
and how. A client may then refuse, in its own way; a knob that believes an answer must show, capture and store numbers
that hardware can be at.

    python -m tests.fuzzing.odd_controllers 1000000|60s [SEED]
"""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import msgspec

from firmware_bridge.errors import ScmiError
from firmware_bridge.scmi.client import Client
from firmware_bridge.scmi.controller import Controller
from firmware_bridge.scmi.transports.in_process import InProcess
from nodectl.controller.scmi_knobs import Direct, ScmiKnob, scmi_knob
from nodectl.decide.node_cap import CapLease
from nodectl.knobs.api import KnobError
from tests.fuzzing.goal import Goal
from tests.scmi.small_platform import SmallPlatform

WORDS: Final = (0, 1, 2, 255, 65_535, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1, 0x7F80_0000, 0x0101_0101)
MOST_MESSAGES: Final = 20_000
"""Ours: more than a client asks of two domains and sensors; one that asks for ever is a finding."""

MOST: Final = 100_000_000
"""Milliwatts, or kilohertz, beyond any hardware."""

NAMES: Final = ("package/cap_mw", "0/cap_mw", "1/limit_khz", "0/level_khz")


class OddPlatform(SmallPlatform):
    """Some answers have other words than they should, or fewer, or more."""

    chance: random.Random
    share = 0.0
    messages = 0

    def answer(self, agent: int, message: bytes) -> bytes:
        """The answer, or an odd one."""
        self.messages += 1
        if self.messages > MOST_MESSAGES:
            raise AssertionError("asks for ever")
        whole = super().answer(agent, message)
        return self._odd(whole) if self.chance.random() < self.share else whole

    def _odd(self, whole: bytes) -> bytes:
        chance = self.chance
        kind = chance.randrange(10)
        if kind == 0:
            return whole[: 4 * chance.randrange(len(whole) // 4 + 1)]
        if kind == 1:
            return whole + bytes(4 * chance.randrange(1, 8))
        if kind == 2:
            return whole[:4] + chance.choice((-20, -11, -1, 1, 7)).to_bytes(4, "little", signed=True) + whole[8:]
        words = [whole[at : at + 4] for at in range(0, len(whole), 4)]
        for _ in range(chance.choice((1, 1, 2, 4))):
            if len(words) > 2:
                words[chance.randrange(2, len(words))] = chance.choice(WORDS).to_bytes(4, "little")
        return b"".join(words)


def problem_with_scmi(seed: int) -> str:
    """All that this program asks of a controller that answers oddly; "" or what is wrong."""
    chance = random.Random(seed)
    platform = OddPlatform()
    platform.chance, platform.share = chance, chance.choice((0.02, 0.1, 0.3))
    try:
        controller = Controller(Client(InProcess(platform, 1))) if chance.random() < 0.2 else _known(platform)
        for part in (controller.cap_domains, controller.speed_domains, controller.sensors):
            msgspec.json.encode(part)
        for name in chance.sample(NAMES, 2):
            _use_knob(scmi_knob(Direct(controller), f"scmi+shm:/run/a#{name}"), controller, chance)
    except ScmiError:
        return ""
    except Exception as error:
        return f"seed {seed}: {error!r}"
    return ""


@cache
def _conforming() -> Controller:
    platform = OddPlatform()
    platform.chance = random.Random(1)
    controller = Controller(Client(InProcess(platform, 1)))
    assert controller.cap_domains and controller.speed_domains and controller.sensors
    return controller


def _known(platform: OddPlatform) -> Controller:
    """A controller that was discovered while it conformed."""
    controller, client = copy.copy(_conforming()), Client(InProcess(platform, 1))
    client.dialect, controller.client, controller._fast = controller.client.dialect, client, {}
    return controller


def _use_knob(knob: ScmiKnob, controller: Controller, chance: random.Random) -> None:
    uses: list[Callable[[], Any]] = [
        knob.read, knob.read_back, lambda: knob.set(chance.choice((100_000, 1, 2**31))), lambda: knob.look(controller),
        lambda: knob.explain(100_000, knob.present), lambda: knob.restore(knob.read()), knob.recipe,
        lambda: knob.assert_again(controller),
    ]  # fmt: skip
    if hasattr(knob, "end_at"):
        uses.append(lambda: knob.end_at(CapLease(10**9, 50_000, lambda: 0)))
    for use in uses:
        try:
            found = use()
        except (KnobError, ScmiError):
            continue
        for number in (found, knob.present, getattr(knob, "power_mw", None)):
            if isinstance(number, int) and not 0 <= number < MOST:
                raise AssertionError(f"{knob.name} is at {number}")
    msgspec.json.encode(knob.recipe())


def run(goal: Goal, seed: int) -> list[str]:
    """Until the goal is reached; what was found, at most ten."""
    found: list[str] = []
    done = 0
    while not goal.is_reached(done) and len(found) < 10:
        if problem := problem_with_scmi(seed + done):
            found.append(problem)
        done += 1
    print(f"odd_controllers: {done} inputs from seed {seed}, {len(found)} findings")
    return found


if __name__ == "__main__":
    problems = run(*Goal.of_command(sys.argv[1:]))
    print("\n".join(problems))
    sys.exit(bool(problems))
