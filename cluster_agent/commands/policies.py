"""``clusterctl policies``: what can be chosen, with its parameters and the papers it comes from."""

from __future__ import annotations

import click
import msgspec

from cluster_agent.scheduler.policies import registry


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def policies(as_json: bool) -> None:
    """List every scheduling policy with its parameters (the default first) and its papers."""
    rows = [
        {
            "name": policy.name,
            "summary": policy.summary,
            "source": policy.source,
            "parameters": registry.values(policy),
        }
        for policy in map(registry.policy, registry.names())
    ]
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(rows), indent=2))
        return
    for row in rows:
        click.echo(f"{row['name']}: {row['summary']}\n    {row['source']}")
        for key, values in row["parameters"].items():  # type: ignore[attr-defined]
            click.echo(f"    {key}={'|'.join(values)}")
