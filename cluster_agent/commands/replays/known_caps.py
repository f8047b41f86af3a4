"""``--cap`` of policies that know all caps from the start: on nodes, and with configurations."""

from __future__ import annotations

from cluster_agent.cap_steps import read_caps
from cluster_agent.errors import WrongUseError
from cluster_agent.scheduler.power_cap import UNCAPPED, PowerCap, constant, from_caps
from cluster_agent.workloads.text_tables import first_line


def cap_of(text: str | None) -> PowerCap:
    """``2000`` (watts, always), a file of caps, or ``FILE:PROFILE`` of a table of cap profiles."""
    if text is None:
        return UNCAPPED
    try:
        watts = float(text)
    except ValueError:
        # only here: a short replay is as long as its imports
        from cluster_agent.workloads.rte import is_rte, rte_caps

        if is_rte(text):
            return from_caps(rte_caps(text))
        path, colon, profile = text.partition(":")
        if first_line(path).startswith("profile,"):
            from cluster_agent.workloads.eurora import read_cap_profile

            return read_cap_profile(path, profile if colon else None)
        caps = read_caps(text)
        if any(cap.announced_s for cap in caps):
            raise WrongUseError(
                f"--cap {text}: this policy knows all caps from the start: remove announced_s"
            ) from None
        return from_caps(caps)
    if not 0 < watts < float("inf"):
        raise WrongUseError(f"--cap {text}: give watts above 0, or a file")
    return constant(watts)
