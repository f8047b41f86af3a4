"""How long a fuzzing goes on."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence


class Goal:
    """A number, or a time in seconds with an ``s`` after it."""

    def __init__(self, text: str) -> None:
        self._end_s = self._number = float("inf")
        try:
            if text.endswith("s"):
                self._end_s = time.monotonic() + float(text[:-1])
            else:
                self._number = int(text)
        except ValueError:
            raise SystemExit(f"{text}: neither a number nor a time such as 60s") from None

    @classmethod
    def of_command(cls, arguments: Sequence[str]) -> tuple[Goal, int]:
        """The goal and the seed of ``python -m ... GOAL [SEED]``; without a seed one is drawn."""
        if not 1 <= len(arguments) <= 2:
            raise SystemExit("usage: GOAL [SEED], with GOAL a number or a time such as 60s")
        goal = cls(arguments[0])
        try:
            return goal, int(arguments[1]) if arguments[1:] else random.randrange(1 << 32)
        except ValueError:
            raise SystemExit(f"{arguments[1]}: no seed") from None

    def is_reached(self, done: int) -> bool:
        """Whether so many are enough."""
        return done >= self._number or time.monotonic() >= self._end_s

    def part(self, most: int, done: int) -> int:
        """How many to do before asking again."""
        return int(min(most, self._number - done))
