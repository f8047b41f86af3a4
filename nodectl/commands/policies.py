"""``nodectl policies``: what can be chosen, with its parameters and where it comes from."""

from __future__ import annotations

import textwrap
from typing import Any

import click
import msgspec

from nodectl.policies import registry
from nodectl.policies.api import Policy


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def policies(as_json: bool) -> None:
    """List every policy with its parameters, their defaults, and its source."""
    rows = [_described(name, domain) for domain in registry.DOMAINS for name in registry.names(domain)]
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(rows), indent=2))
        return
    for row in rows:
        click.echo(f"{row['name']}  ({row['domain']}): {row['summary']}")
        click.echo(f"    source: {row['source']}")
        params = ", ".join(f"{key}={_short(value)}" for key, value in row["params"].items())
        click.echo(
            textwrap.fill(f"parameters: {params or 'none'}", 110, initial_indent=" " * 4, subsequent_indent=" " * 8)
        )
    click.echo("The suffix of a side may be left out where the side is clear: --gpu-policy fixed means fixed-gpu.")
    click.echo(f"{registry.NONE!r} leaves a side alone.")


def _described(name: str, domain: registry.type_domain) -> dict[str, Any]:
    policy = registry.policy(name, domain)
    return {
        "name": name,
        "domain": domain,
        "summary": policy.summary,
        "source": policy.source,
        "params": _defaults(policy),
        "reasons": list(policy.reasons),
    }


def _defaults(policy: Policy) -> dict[str, Any]:
    fields = msgspec.structs.fields(policy.params)
    defaults = policy.params()
    return {field.name: msgspec.to_builtins(getattr(defaults, field.name)) for field in fields}


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
