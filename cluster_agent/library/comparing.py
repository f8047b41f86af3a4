"""``compare``: results next to each other, and how certain a difference between two of them is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cluster_agent.errors import WrongUseError
from foundation.shell.errors import nearest

if TYPE_CHECKING:
    from cluster_agent.library.results import Result
    from cluster_agent.reports.effects import PerJob


def compare(results: Mapping[str, Result] | Sequence[Result], baseline: str | None = None) -> dict[str, list[Any]]:
    """Measures as columns with a row for each result, for ``pandas.DataFrame``: the policy, AVEbsld, its paired
    difference to ``baseline`` (the first one if left out) with the 95 % interval of ``clusterctl report`` and what that
    is over or why there is none, then the other measures; of those that have a spread the mean, and as ``NAME_max`` the
    most. None: not known, no interval, or fewer than two jobs in both.

    ``results``: by name, or in a sequence, whose names are those of their policies. ``WrongUseError`` without a result,
    for two of one name, and for a baseline that is none of them.
    """
    from cluster_agent.reports.effects import difference, effect, sums  # a program that compares nothing is quicker

    named = _named(results)
    first = next(iter(named)) if baseline is None else baseline
    if first not in named:
        raise WrongUseError(f"compare: no result is called {first!r}{nearest(first, named)}")
    table: dict[str, list[Any]] = {"policy": list(named)}
    bsld = {name: _slowdowns(one) for name, one in named.items()}
    tables = [sums(name, [(0, bsld[name], bsld[first])]) for name in named]
    effects = [None if one is None else effect([one], difference) for one in tables]
    for column, field in (("bsld_difference", "value"), ("low", "low"), ("high", "high"), ("interval", "over")):
        table[column] = [None if one is None else getattr(one, field) for one in effects]
    metrics = [_flat(one.metrics) for one in named.values()]
    for column in dict.fromkeys(column for one in metrics for column in one):
        table[column] = [one.get(column) for one in metrics]
    return table


def _named(results: Mapping[str, Result] | Sequence[Result]) -> dict[str, Result]:
    named = dict(results) if isinstance(results, Mapping) else {one.policy.text: one for one in results}
    if not named or len(named) < len(results):
        raise WrongUseError("compare: give at least one result, each with a name of its own: {name: result}")
    for name, one in named.items():
        if not hasattr(one, "start_s"):
            raise WrongUseError(f"compare: {name!r} is {type(one).__name__}: give what replay returns")
    return named


def _slowdowns(result: Result) -> PerJob:
    """Bounded slowdowns of the jobs that were started."""
    from cluster_agent.replay.measures import NODES_TAU_S, TAU_S, bounded_slowdown  # as above
    from cluster_agent.reports.effects import PerJob

    is_started = result.start_s >= 0
    tau_s = NODES_TAU_S if result.world.kind == "nodes" else TAU_S
    names = result.jobs.name or tuple(map(str, result.jobs.number.tolist()))
    slowdown = bounded_slowdown(result.wait_s[is_started], result.run_s[is_started], tau_s)
    started = [name for name, is_one in zip(names, is_started.tolist(), strict=True) if is_one]
    return PerJob(started, result.jobs.submit_s[is_started], slowdown)


def _flat(metrics: Mapping[str, Any]) -> dict[str, Any]:
    found = dict[str, Any]()
    for name, value in metrics.items():
        is_spread = isinstance(value, dict) and "mean" in value
        found[name] = value["mean"] if is_spread else value
        if is_spread and "max" in value:
            found[f"{name}_max"] = value["max"]
    return found
