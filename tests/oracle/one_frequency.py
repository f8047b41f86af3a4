"""What the schedulers in plain Python have in common that know no watts."""

from __future__ import annotations

from collections.abc import Iterator

from cluster_agent.errors import WrongUseError
from cluster_agent.scheduler.power_cap import PowerCap, whole_uw
from cluster_agent.scheduler.power_phases import Ends, Reaction


class OneFrequency:
    """The part of a scheduler that never changes frequencies or running jobs, and starts cold."""

    def carry_out(self, now_s: int, job: int) -> None:
        """Without a record nothing is to be carried out."""
        raise WrongUseError("this scheduler has no warm start: leave --state out")

    def level(self, job: int) -> int:
        """The highest."""
        return 0

    def begins_s(self, now_s: int, job: int) -> int:
        """At once."""
        return now_s

    def next_change_s(self) -> int | None:
        """Never."""
        return None

    def advance(self, now_s: int) -> bool:
        """Nothing comes."""
        return False

    @property
    def reacts_to_ends(self) -> Ends:
        """No."""
        return "unheard"

    def react(self, now_s: int) -> Reaction:
        """Nothing."""
        return Reaction()


class UnderACap(OneFrequency):
    """A machine of nodes whose running jobs together stay within a cap that changes at known times."""

    def __init__(self, cap: PowerCap, seen_s: int) -> None:
        self.cap = cap
        self._seen_s = seen_s

    def next_change_s(self) -> int | None:
        """When another cap is in force next."""
        return self.cap.next_change_s(self._seen_s)

    def advance(self, now_s: int) -> bool:
        """It is."""
        self._seen_s = now_s
        return False

    def drawn_uw(self, at_s: int) -> int:
        """What the running jobs draw that are expected to run beyond ``at_s``."""
        raise NotImplementedError

    def left_uw(self, from_s: int, span_s: int) -> int:
        """The least that these leave under the caps. Between changes of the cap they only become fewer, so the
        beginning and these changes are the worst."""
        return min(whole_uw(self.cap.at(at_s)) - self.drawn_uw(at_s) for at_s in self._instants(from_s, span_s))

    def _instants(self, from_s: int, span_s: int) -> Iterator[int]:
        yield from_s
        yield from self.cap.changes(from_s, from_s + span_s)
