"""Backfilling under a power cap, by four levers: nodes left idle, switched off, at lower frequencies, or a mix of both.

A job starts only if the cluster, every running job at its maximum watts, stays under every known cap for as long as the
job may run (*admit*, Glesser §4.5). Switch-off is planned when a cap becomes known: the fewest nodes, whole racks and
chassis first, off for the window. ``mix`` chooses between the levers by the sign of rho; the thesis prints that rule
with the wrong sign, which is ``rule=printed``.

Ours: with ``rescale`` running jobs are lowered when a cap begins, and raised as far as it allows when jobs end and when
it ends; so a job may start that fits under later caps at its lowest frequency alone. With ``metered`` a running job
counts with what it draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from cluster_agent.cap_steps import Cap
from cluster_agent.cluster import Machine
from cluster_agent.scheduler.cap_reactions import kills, slows, slows_then_kills
from cluster_agent.scheduler.policies.api import EstimateParams, Policy, Published
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.power_phases import Idle, Off, Power, React
from cluster_agent.scheduler.power_shedding import Lever, Rule, lever, nodes_off

Mode: TypeAlias = Literal["mix", "shut", "dvfs", "idle"]

MIX_FLOOR_MHZ = 2000
"""Thesis §4.5: on Curie energy for performance is best between 2.0 and 2.7 GHz. With ``rescale`` the machine's lowest,
which does most work in the hour of a cap (benchmarks/powercap_rescaled.py)."""


class PublishedRule(Published, frozen=True, forbid_unknown_fields=True):
    """``rule`` goes with ``mode=mix``: as the thesis prints it, or ``corrected``, the default."""

    rule: Rule | None = None


class Params(EstimateParams, frozen=True, forbid_unknown_fields=True):
    """``kill`` ends the newest jobs if a cap begins below the present power;
    ``backfill``: who gets a reservation, the head or every job. ``rescale``: running jobs are lowered and raised as
    caps begin and end; ``metered``: they count with what they draw, and not with the most that nodes can."""

    published: PublishedRule = PublishedRule()
    mode: Mode = "mix"
    kill: bool = False
    rescale: bool = False
    metered: bool = False
    floor_mhz: int | None = None
    application: str | None = None
    backfill: Literal["easy", "conservative"] = "easy"


def compose(params: Params) -> Composition:
    """Backfilling in processors and watts, with the levers of the mode."""
    rule = params.published.rule
    if rule is not None and params.mode != "mix":
        raise ValueError(f"rule={rule} needs mode=mix, the only one that chooses")
    if params.floor_mhz is not None and params.mode in ("shut", "idle"):
        raise ValueError(f"floor_mhz={params.floor_mhz} needs mode=dvfs or mix")
    if params.rescale and params.mode in ("shut", "idle"):
        raise ValueError(f"rescale=true needs mode=dvfs or mix: with {params.mode} jobs have one frequency")
    default_mhz = {"mix": 0 if params.rescale else MIX_FLOOR_MHZ, "dvfs": 0}.get(params.mode)
    floor_mhz = default_mhz if params.floor_mhz is None else params.floor_mhz
    return Composition(
        **params.phases(),
        backfill=params.backfill,
        power=Power(
            floor_mhz=floor_mhz,
            idle=switches_off(params, floor_mhz or 0) if params.mode in ("mix", "shut") else None,
            react=_reaction(params),
            reacts_to_ends="after" if params.rescale else "unheard",
            rescales=params.rescale,
            meters=params.metered,
            application=params.application,
        ),
    )


def _reaction(params: Params) -> React | None:
    if params.rescale:
        return slows_then_kills("newest-start", "singly") if params.kill else slows("singly")
    return kills("newest-start") if params.kill else None


def switches_off(params: Params, floor_mhz: int) -> Idle:
    """The choice of §4.4, for every window that is known."""

    def idle(machine: Machine, caps: Sequence[Cap], now_s: int) -> Sequence[Off]:
        frequencies = machine.node.frequency_mhz
        floor = max((i for i, mhz in enumerate(frequencies) if mhz >= floor_mhz), default=0)
        degradation = machine.slowdowns(params.application)[floor]
        found = []
        for cap in caps:
            watts = cap.watts - machine.fixed_w
            chosen: Lever = "off"
            if params.mode == "mix":
                chosen = lever(machine, watts, degradation, floor, params.published.rule or "corrected")
            nodes = nodes_off(machine, watts, degradation, floor, chosen).nodes
            if nodes:
                found.append(Off(cap.from_s, cap.to_s, nodes))
        return found

    return idle


POLICY = Policy(
    name="powercap",
    summary="EASY under a power cap known ahead: nodes left idle, off, slower, or a mix of that.",
    source="Glesser, Road to exascale, PhD thesis, Grenoble 2016, ch. 4; Georgiou, Glesser, Trystram, IPDPSW 2015",
    params=Params,
    compose=compose,
)
