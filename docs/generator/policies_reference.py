"""The policies of nodes and of the scheduler, and the sharers, with their parameters."""

from __future__ import annotations

import inspect
import io
import json
import re
import tokenize
from typing import Any

from click.testing import CliRunner

from cluster_agent.cli import clusterctl
from docs.generator.page_text import literal, page, paragraph, table
from nodectl.policies import registry
from nodectl.policies.api import Policy


def policies_pages() -> dict[str, str]:
    """``reference/policies.md``."""
    parts = [
        "Chosen by name in `cpu_policy`, `gpu_policy` and `[policies]` ([settings](settings.md)); `nodectl policies`"
        " prints the same list, and policies that others have added.",
    ]
    for domain in registry.DOMAINS:
        parts.append(f"## Of a node: `{domain}`")
        for name in registry.names(domain):
            parts += _node_policy(registry.find(name, domain).value)
    rows = json.loads(CliRunner().invoke(clusterctl, ["policies", "--json"], catch_exceptions=False).stdout)
    for kind, title in (("policy", "Of the scheduler"), ("sharer", "Sharers: how a partition's watts are divided")):
        parts.append(f"## {title}")
        kinds = (kind, "group") if kind == "policy" else (kind,)
        for row in rows:
            if row["kind"] in kinds:
                parts += _cluster_policy(row)
    return {"reference/policies.md": page("Policies", *parts)}


def _node_policy(policy: Policy) -> list[str]:
    said = comments(policy.params)
    defaults = policy.params()
    rows = [
        (f"`{name}`", f"`{literal(getattr(defaults, name))}`", said.get(name, ""))
        for name in defaults.__struct_fields__
    ]
    text = f"{policy.summary[:1].upper()}{policy.summary[1:]}.\nSource: {policy.source}."
    return [
        f"### `{policy.name}`",
        text,
        table(("parameter", "default", "meaning"), rows) if rows else "No parameters.",
    ]


def _cluster_policy(row: dict[str, Any]) -> list[str]:
    given = [(f"`{name}`", ", ".join(f"`{word}`" for word in words)) for name, words in row["parameters"].items()]
    about = [paragraph(row["summary"]) + (f"\nSource: {row['source']}." if row.get("source") else "")]
    if "live" in row:
        owner = 'owns the watts: `sharer = "none"`' if row["owns_watts"] else "leaves the watts to a sharer"
        about.append(f"Runs live; {owner}." if row["live"] else "In replays only.")
    if row["groups"]:
        about.append("And the parameters of " + ", ".join(f"[`{name}`](#{name})" for name in row["groups"]) + ".")
    return [
        f"### `{row['name']}`",
        *about,
        table(("parameter", "values, the default first"), given) if given else "No parameters.",
    ]


def comments(kind: type[Any]) -> dict[str, str]:
    """The comment at the end of each field's line, by the field's name."""
    source = inspect.getsource(kind)
    lines = source.splitlines()
    found: dict[str, str] = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and (named := re.match(r"\s*(\w+)\s*:", lines[token.start[0] - 1])):
            found[named[1]] = token.string.lstrip("# ").strip()
    return found
