"""``nodectl policies``: what can be chosen, with its parameters and where it comes from.

``origin`` is null for what ships with nodectl.
"""

from __future__ import annotations

import textwrap
from typing import Any

import click
import msgspec

from foundation.shell.extension import Extension
from foundation.shell.plain_text import echo, echo_block, json_text
from nodectl.policies import registry
from nodectl.policies.api import Policy


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def policies(as_json: bool) -> None:
    """List every policy with its parameters, their defaults, and its source."""
    found = [registry.find(name, domain) for domain in registry.DOMAINS for name in registry.names(domain)]
    rows = [_described(one) for one in [*found, *registry.added()]]
    if as_json:
        echo_block(json_text(rows, indent=2))
        return
    for row in rows:
        echo(f"{row['name']}  ({row['domain']}): {row['summary']}")
        echo(f"    source: {row['source']}")
        if row["origin"]:
            echo(f"    from: {row['origin']['package']} {row['origin']['version']} ({row['origin']['file']})")
        params = ", ".join(f"{key}={_short(value)}" for key, value in row["params"].items())
        text = textwrap.fill(f"parameters: {params or 'none'}", 110, initial_indent=" " * 4, subsequent_indent=" " * 8)
        echo_block(text)
    echo("The suffix of a domain may be left out where the domain is clear: --gpu-policy fixed means fixed-gpu.")
    echo(f"{registry.NONE!r} leaves a domain alone. FILE.py[:NAME] is a policy of your own (docs/extending.md).")


def _described(found: Extension[Policy]) -> dict[str, Any]:
    policy = found.value
    return {
        "name": policy.name,
        "domain": policy.domain,
        "summary": policy.summary,
        "source": policy.source,
        "params": _defaults(policy),
        "reasons": list(policy.reasons),
        "origin": msgspec.to_builtins(found.origin),
    }


def _defaults(policy: Policy) -> dict[str, Any]:
    fields = msgspec.structs.fields(policy.params)
    defaults = policy.params()
    return {field.name: msgspec.to_builtins(getattr(defaults, field.name)) for field in fields}


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
