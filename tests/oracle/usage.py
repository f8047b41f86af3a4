"""Past usage and priorities in plain Python: what ``csrc/orders/priority.c`` is tested against."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp2, log

from cluster_agent.scheduler.orders.priority import Priority


class Usage:
    """The usage of all users, in plain Python: the charges as they came, added up again for each result.

    A charge is weighted by 2^(half-lives since the first submission): the present's weight brings it to the present.
    """

    def __init__(self, priority: Priority, processors: int, users: Sequence[int]) -> None:
        self.priority = priority
        self.processors = processors
        self.share, self.efficiency = priority.of_users(users)
        self.first_s: int | None = None
        self.charges: list[tuple[int, int, float]] = []  # when, user, processor-seconds

    def submit(self, now_s: int) -> None:
        """Time begins with the first submission."""
        self.first_s = now_s if self.first_s is None else self.first_s

    def charge(self, now_s: int, user: int, processor_s: int) -> None:
        """A job has ended."""
        self.charges.append((now_s, user, float(processor_s)))

    def priority_of(self, now_s: int, user: int, submit_s: int, width: int) -> float:
        """Of a waiting job."""
        priority = self.priority
        age = min((now_s - submit_s) / priority.oldest_s, 1.0)
        past = priority.cpu * self._past(now_s, user, False) + priority.energy * self._past(now_s, user, True)
        return float(priority.age * age + priority.size * (width / self.processors) + past)

    def used(self, now_s: int, user: int, is_energy: bool = False) -> float:
        """U: the user's part of what the machine had to give, in processor-seconds or in joules."""
        usage = self._usage(is_energy).get(user, 0.0)
        return usage / self._capacity(now_s) if usage else 0.0

    def _past(self, now_s: int, user: int, is_energy: bool) -> float:
        share = self.share
        if self.priority.is_relative:
            usage = self._usage(is_energy)
            most = max((used / share[one] for one, used in usage.items()), default=0.0)
            return -float(usage.get(user, 0.0) / share[user] / most) if most else 0.0
        return exp2(-(self.used(now_s, user, is_energy) / share[user]) / self.priority.damping)

    def _usage(self, is_energy: bool) -> dict[int, float]:
        usage: dict[int, float] = {}
        for at_s, user, processor_s in self.charges:
            amount = processor_s * self.efficiency[user] if is_energy else processor_s
            usage[user] = usage.get(user, 0.0) + amount * exp2(self._half_lives(at_s))
        return usage

    def _half_lives(self, now_s: int) -> float:
        since_s = now_s - (self.first_s or 0)
        period_s, half_life_s = self.priority.period_s, self.priority.half_life_s
        return (since_s // period_s) * (period_s / half_life_s) if period_s else since_s / half_life_s

    def _capacity(self, now_s: int) -> float:
        """The sum over periods, the present one in full, or the integral over time."""
        period_s, half_life_s = self.priority.period_s, self.priority.half_life_s
        if not period_s:
            return self.processors * (half_life_s / log(2.0)) * (exp2(self._half_lives(now_s)) - 1.0)
        step = period_s / half_life_s
        return self.processors * float(period_s) * (exp2(self._half_lives(now_s) + step) - 1.0) / (exp2(step) - 1.0)
