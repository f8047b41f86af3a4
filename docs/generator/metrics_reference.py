"""What Prometheus reads of a node and of a partition."""

from __future__ import annotations

from cluster_agent.commands.metrics import BUDGET, NODES, OTHERS
from docs.generator.page_text import page, table
from nodectl.loop.metrics_page import FAMILIES

HEADS = ("metric", "kind", "meaning", "labels")


def metrics_pages() -> dict[str, str]:
    """``reference/metrics.md``."""
    node = [(f"`nodectl_{name}`", kind, text, labels) for name, (kind, text, labels) in FAMILIES.items()]
    partition = [(f"`clusterctl_{one.name}`", "gauge", one.help, "") for one in BUDGET]
    partition += [(f"`clusterctl_{one.name}`", "gauge", one.help, "node") for one in NODES]
    partition += [
        (_scraped(name, kind), kind, text, ", ".join(labels)) for name, (kind, text, labels) in OTHERS.items()
    ]
    head = "A value that is not known is left out; a counter starts again with its process."
    how = "How to switch them on: [operations.md](../operations.md)."
    return {
        "reference/metrics.md": page(
            "Metrics", f"{head} {how}", "## `nodectl metrics`", table(HEADS, node), "## `clusterctl metrics`",
            table(HEADS, sorted(partition)),
        )
    }  # fmt: skip


def _scraped(name: str, kind: str) -> str:
    """The name as it is scraped: the Prometheus client adds _total to counters."""
    return f"`clusterctl_{name}{'_total' if kind == 'counter' else ''}`"
