"""What the schedulers in plain Python have in common that know no watts."""

from __future__ import annotations

from cluster_agent.errors import WrongUseError
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
