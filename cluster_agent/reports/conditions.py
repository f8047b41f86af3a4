"""Replays put together for a report: by condition, policy and seed, with what each policy changes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np

from cluster_agent.campaigns.campaign_folder import DONE
from cluster_agent.campaigns.campaign_grid import Published
from cluster_agent.errors import ClusterError, WrongUseError
from cluster_agent.replay.compare import Run, name_of
from cluster_agent.reports import effects
from cluster_agent.reports.effects import Effect, PerJob, Sums, difference, log_ratio
from cluster_agent.reports.ranks import Ranks, ranks
from cluster_agent.scheduler.job_columns import Float64s, Int64s


class Condition(msgspec.Struct, frozen=True):
    """Replays that can be compared: of one trace, machine, cap, state, closed loop and switches."""

    name: str
    runs: dict[str, dict[int, Run]]  # by policy and seed

    @property
    def all_runs(self) -> list[Run]:
        """One after the other."""
        return [run for of_policy in self.runs.values() for run in of_policy.values()]

    def mean(self, policy: str, of: Callable[[Run], float | None]) -> float | None:
        """Over seeds; None if it is unknown for any."""
        values = [value for run in self.runs[policy].values() if (value := of(run)) is not None]
        return float(np.mean(values)) if len(values) == len(self.runs[policy]) else None


class Against(msgspec.Struct, frozen=True):
    """What a policy changes against the baseline; ratios of means, and differences of a mean."""

    slowdown: Effect  # a ratio over all conditions
    energy: Effect | None
    conditions: dict[str, Effect]  # the ratio in each
    slowdown_differs: dict[str, Effect]
    wait_differs: dict[str, Effect]  # s
    jobs: dict[str, int]  # that both started, seeds that differ together


class Comparison(msgspec.Struct, frozen=True):
    """All that a report shows."""

    conditions: list[Condition]
    baseline: str
    against: dict[str, Against]
    ranks: Ranks | None
    published: dict[tuple[str, str], float]  # by condition and policy

    @property
    def policies(self) -> list[str]:
        """In the campaign's order."""
        return list(dict.fromkeys(policy for one in self.conditions for policy in one.runs))


def compare(runs: Sequence[Run], baseline: str | None, published: Mapping[tuple[str, str], Published]) -> Comparison:
    """Compare all policies with the baseline (None: the first), wherever both were replayed.

    ``WrongUseError`` for a baseline that was not.
    """
    base = _baseline(list(dict.fromkeys(run.policy for run in runs)), baseline)
    conditions = _conditions(runs)
    against, tables = {}, {}
    for policy in dict.fromkeys(policy for one in conditions for policy in one.runs):
        both = [one for one in conditions if policy in one.runs and base in one.runs] if policy != base else []
        found = [(one, made) for one in both if (made := _pairs(one, policy, base, lambda run: run.slowdown))]
        if found:
            tables[policy] = [made for _, made in found]
            against[policy] = _against(found, policy, base)
    return Comparison(conditions, base, against, ranks(tables, base), _stated(conditions, published))


def _baseline(have: Sequence[str], wanted: str | None) -> str:
    """As it is printed, or as it was chosen."""
    if wanted is None:
        return have[0]
    name = wanted
    if wanted not in have:
        with suppress(WrongUseError):  # no policy is called so
            name = name_of(wanted)
    if name not in have:
        raise WrongUseError(f"--baseline {name}: no replay of it here; there are {', '.join(have)}")
    return name


def _stated(
    conditions: Sequence[Condition], published: Mapping[tuple[str, str], Published]
) -> dict[tuple[str, str], float]:
    every = [(one.name, policy, runs) for one in conditions for policy, runs in one.runs.items()]
    values = {(name, policy): _published_of(next(iter(runs.values())), published) for name, policy, runs in every}
    return {key: value for key, value in values.items() if value is not None}


def _conditions(runs: Sequence[Run]) -> list[Condition]:
    found: dict[str, dict[str, dict[int, Run]]] = {}
    for run in runs:
        of_group, policy = found.setdefault(run.group, {}), run.policy
        places = iter((run.folder.parent, run.folder) if (run.folder / DONE).exists() else (run.folder,))
        while run.seed in of_group.get(policy, {}):  # the same once more, of another folder or another campaign
            policy = f"{run.policy} ({next(places)})"
        of_group.setdefault(policy, {})[run.seed] = run
    return [Condition(name, of_group) for name, of_group in found.items()]


def _pairs(one: Condition, policy: str, base: str, of: Callable[[Run], Float64s | Int64s]) -> Sums | None:
    both = [(seed, run, one.runs[base][seed]) for seed, run in one.runs[policy].items() if seed in one.runs[base]]
    if not both:
        return None

    def per_job(run: Run) -> PerJob:
        return PerJob(run.job, run.submit_s, np.asarray(of(run), np.float64))

    return effects.sums(both[0][1].log, [(seed, per_job(run), per_job(against)) for seed, run, against in both])


def _against(found: Sequence[tuple[Condition, Sums]], policy: str, base: str) -> Against:
    waits = {one.name: _pairs(one, policy, base, lambda run: run.wait_s) for one, _ in found}
    energy = [_energy(one, policy, base) for one, _ in found]
    known = [one for one in energy if one is not None]
    return Against(
        effects.effect([made for _, made in found], log_ratio).map(math.exp),
        effects.effect(known, log_ratio).map(math.exp) if len(known) == len(energy) else None,
        {one.name: effects.effect([made], log_ratio).map(math.exp) for one, made in found},
        {one.name: effects.effect([made], difference) for one, made in found},
        {name: effects.effect([made], difference) for name, made in waits.items() if made},
        {one.name: int(made.jobs.sum()) for one, made in found},
    )


def _energy(one: Condition, policy: str, base: str) -> Sums | None:
    """Joules of whole replays: there are seeds, but no weeks."""
    seeds = [seed for seed in one.runs[policy] if seed in one.runs[base]]
    joules = [[one.runs[name][seed].metrics.get("energy_j") for seed in seeds] for name in (policy, base)]
    if not all(value for values in joules for value in values):
        return None
    mine, theirs = (np.array(values, np.float64)[:, None] for values in joules)
    return effects.drawn(Sums(one.runs[policy][seeds[0]].log, tuple(seeds), 1, mine, theirs, np.ones_like(mine)))


def _published_of(run: Run, published: Mapping[tuple[str, str], Published]) -> float | None:
    """What was published for this replay; None for another cut of the log, or under other conditions."""
    one = published.get((run.trace, run.policy))
    return one.AVEbsld if one and run.is_plain and one.jobs in (0, run.metrics["jobs"]) else None


def published_figures(folders: Sequence[str]) -> dict[tuple[str, str], Published]:
    """Published values by trace and policy, from campaigns that list some."""
    found: dict[tuple[str, str], Published] = {}
    for folder in folders:
        path = Path(folder) / "published.json"
        if not path.exists():
            continue
        try:
            for one in msgspec.json.decode(path.read_bytes(), type=list[Published]):
                if ".py" not in one.policy:  # a record starts no file
                    found[one.trace, name_of(one.policy)] = one
        except OSError as error:
            raise ClusterError(f"{path}: {error.strerror}; run the campaign again") from None
        except (msgspec.DecodeError, UnicodeDecodeError, WrongUseError):
            raise ClusterError(f"{path}: not as a campaign writes it; run the campaign again") from None
    return found
