"""How long a fuzzing goes on."""

from __future__ import annotations

import time


class Goal:
    """A number, or a time in seconds with an ``s`` after it."""

    def __init__(self, text: str) -> None:
        self._end_s = time.monotonic() + float(text[:-1]) if text.endswith("s") else float("inf")
        self._number = float("inf") if text.endswith("s") else int(text)

    def is_reached(self, done: int) -> bool:
        """Whether so many are enough."""
        return done >= self._number or time.monotonic() >= self._end_s

    def part(self, most: int, done: int) -> int:
        """How many to do before asking again."""
        return int(min(most, self._number - done))
