"""What a budget of joules has stored at each second of its window, if all goes as planned."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from math import floor

from tests.oracle.joules_ledger import Ledger


class StoredJoules:
    """``drawn_uw``: the cluster's planned power at a second from now on. ``take`` adds a job."""

    def __init__(self, ledger: Ledger, now_s: int, drawn_uw: Callable[[int], int]) -> None:
        self._now_s, self._to_s = now_s, ledger.budget.to_s
        self._stored_uj = floor(ledger.stored_j * 1e6)
        self._spare_uw = [ledger.budget.limit_uw - drawn_uw(at_s) for at_s in range(now_s, self._to_s)]

    def take(self, from_s: int, to_s: int, uw: int) -> None:
        """A job draws so much more in [from_s, to_s)."""
        for at_s in range(from_s, min(to_s, self._to_s)):
            self._spare_uw[at_s - self._now_s] -= uw

    def suffice_from_s(self, uw: int, length_s: int) -> int:
        """The first second from which a job can draw so much for so long, and the store is never below 0 until the
        window ends, whatever was before."""
        stored_uj = list(accumulate(self._spare_uw, initial=self._stored_uj))
        for at_s in range(self._now_s, self._to_s):
            later = range(at_s, self._to_s + 1)
            if all(stored_uj[one - self._now_s] >= uw * min(one - at_s, length_s) for one in later):
                return at_s
        return self._to_s
