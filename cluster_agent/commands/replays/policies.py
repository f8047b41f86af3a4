"""``clusterctl policies``: what can be chosen, with its parameters and the papers that it comes from.

Policies say which job starts when, for replays and partitions; sharers divide a partition's budget of watts among its
nodes (``budget.sharers``). ``origin`` is null for what ships with nodectl. Of a policy with its default parameters,
``live`` says whether a live partition runs it, and ``owns_watts`` whether that has no sharer then.
"""

from __future__ import annotations

from typing import Any, Final

import click
import msgspec

from cluster_agent import choosing
from cluster_agent.budget.sharers import registry as sharers
from cluster_agent.budget.sharers.api import Method
from cluster_agent.scheduler.policies import registry
from cluster_agent.scheduler.policies.api import Estimates, Policy
from foundation.shell.extension import Extension
from foundation.shell.plain_text import echo, echo_block, json_text

GROUPS: Final = {"estimate": Estimates}
"""Groups of parameters, which many policies have. What only repeats a paper (``Published``) is not listed."""


def _of_group(name: str, kind: type[msgspec.Struct]) -> dict[str, Any]:
    about = {
        "name": name,
        "kind": "group",
        "summary": "How long jobs are taken to run, and what follows.",
        "source": "",
    }
    return {**about, "parameters": choosing.values(kind), "groups": [], "origin": None}


def _of_policy(policy: Policy) -> dict[str, bool | None]:
    return {"live": registry.runs_live(policy), "owns_watts": registry.owns_watts(policy)}


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def policies(as_json: bool) -> None:
    """List every scheduling policy and every sharer of a budget with its parameters (the default first) and papers."""
    of_kinds: dict[str, list[Extension[Policy]] | list[Extension[Method]]] = {
        "policy": [*map(registry.find, registry.names()), *registry.added()],
        "sharer": [*map(sharers.find, sharers.names()), *sharers.added()],
    }
    rows: list[dict[str, Any]] = [
        {
            "name": one.value.name,
            "kind": kind,
            "summary": one.value.summary,
            "source": one.value.source,
            "parameters": choosing.values(one.value.params),
            "groups": [name for name in GROUPS if name in choosing.groups_of(one.value.params)],
            **(_of_policy(one.value) if isinstance(one.value, Policy) else {}),
            "origin": msgspec.to_builtins(one.origin),
        }
        for kind, listed in of_kinds.items()
        for one in listed
    ]
    rows += [_of_group(name, kind) for name, kind in GROUPS.items()]
    if as_json:
        echo_block(json_text(rows, indent=2))
        return
    for row in rows:
        kind = {"sharer": " (sharer of a budget)", "group": " (parameters of many policies)"}.get(row["kind"], "")
        kind = kind or ("" if row["live"] else " (replays only)")
        echo(f"{row['name']}{kind}: {row['summary']}", f"    {row['source']}")
        if row["origin"]:
            echo(f"    from {row['origin']['package']} {row['origin']['version']} ({row['origin']['file']})")
        for key, values in row["parameters"].items():
            echo(f"    {key}={'|'.join(values)}")
        for group in row["groups"]:
            echo(f"    and the group {group}, below")
